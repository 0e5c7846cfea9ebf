//! One GPU of the world, and what it is doing.

use sim_world::layout::{HISTORY, HISTORY_NS};
use sim_world::{GpuSettings, Word, WorldFile, procs, timeline};

use crate::abi::nvmlDevice_t;
use crate::library::Library;

/// So many history periods, one second, are what utilization is an average of.
const WINDOW: u64 = 10;

/// A GPU.
#[derive(Clone, Copy)]
pub(crate) struct Gpu {
    pub lib: &'static Library,
    pub index: usize,
}

/// What a GPU is doing, at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Simulated time.
    pub clock: u64,
    /// Nanoseconds with a kernel on the engine, ever.
    pub busy: u64,
    /// Thousandths of the last second with a kernel on the engine.
    pub last_second: u64,
    /// The same of the last one or two history periods.
    pub instant: u64,
    /// Bytes that clients hold.
    pub used: u64,
}

impl Load {
    /// Per cent of the last second.
    pub(crate) fn percent(self) -> u32 {
        percent(self.last_second)
    }

    /// Per cent of the last second that the memory was busy. Bandwidth has no model: it is a fixed part of the compute
    /// time.
    pub(crate) fn memory_percent(self) -> u32 {
        percent(self.last_second * MEMORY_PART / 100)
    }

    /// Whether the clocks are up.
    pub(crate) fn awake(self) -> bool {
        self.last_second > 0
    }
}

/// How many per cent of compute time count as memory time.
pub(crate) const MEMORY_PART: u64 = 30;

/// Thousandths as per cent, rounded.
pub(crate) fn percent(thousandths: u64) -> u32 {
    (thousandths.min(1000) as u32 + 5) / 10
}

/// How many thousandths of `time` a part of it is.
pub(crate) fn thousandths(part: u64, time: u64) -> u64 {
    (u128::from(part) * 1000 / u128::from(time.max(1))).min(1000) as u64
}

/// A cumulative figure as it was at the end of history period `tick`.
pub(crate) fn at_tick(history: &[Word; HISTORY], tick: u64) -> u64 {
    history[tick as usize % HISTORY].get()
}

impl Gpu {
    /// What it was made with.
    pub(crate) fn settings(self) -> &'static GpuSettings {
        &self.lib.world.settings().gpu[self.index]
    }

    /// Its handle.
    pub(crate) fn handle(self) -> nvmlDevice_t {
        Library::handle(self.index)
    }

    /// Looks at the world as it is now: the timeline brought up to the present, the dead noticed, nobody else changing
    /// it. What is done in `with` keeps all clients waiting.
    pub(crate) fn look<T>(self, with: impl FnOnce(&'static WorldFile) -> T) -> T {
        let world = &self.lib.world;
        let tx = world.lock();
        timeline::advance(&tx, world.now());
        procs::reap(&tx);
        with(world.file())
    }

    /// What it is doing.
    pub(crate) fn load(self) -> Load {
        self.look(|file| {
            let gpu = &file.gpus[self.index];
            let (clock, busy, tick) = (file.clock.get(), gpu.busy.get(), file.history_tick.get());
            let since = |periods: u64| {
                let then = tick.saturating_sub(periods);
                thousandths(busy.saturating_sub(at_tick(&gpu.history, then)), clock.saturating_sub(then * HISTORY_NS))
            };
            Load { clock, busy, last_second: since(WINDOW), instant: since(1), used: gpu.used.get() }
        })
    }

    /// Its PCI device number; domain, bus and function are 0.
    pub(crate) fn pci_device(self) -> u32 {
        6 + self.index as u32
    }

    /// Its PCI address in today's form.
    pub(crate) fn bus_id(self) -> String {
        format!("00000000:00:{:02X}.0", self.pci_device())
    }

    /// Its PCI address in the form of before.
    pub(crate) fn bus_id_legacy(self) -> String {
        self.bus_id()[4..].to_owned()
    }

    /// Eight bytes that differ between GPUs.
    pub(crate) fn fingerprint(self) -> u64 {
        // FNV-1a
        self.settings()
            .uuid
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }

    /// Its serial number, with as many digits as a board's.
    pub(crate) fn serial(self) -> String {
        format!("16540{:08}", self.fingerprint() % 100_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_rounded_and_never_more_than_all() {
        assert_eq!(thousandths(1, 3), 333);
        assert_eq!(thousandths(7, 0), 1000);
        assert_eq!((percent(0), percent(4), percent(5), percent(995), percent(2000)), (0, 0, 1, 100, 100));
    }
}
