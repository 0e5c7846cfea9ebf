//! What takes this process off the GPU and puts it back, as [`ration_steer`] has it done: its channels, or, where those cannot be
//! driven, its launches.
//!
//! What is decided is the same for both. By channels, off takes effect in the middle of a kernel; by launches ([`Gate`]), when
//! all is done that was launched before.
//!
//! [`Gate`]: super::gate::Gate

use std::sync::atomic::Ordering;

use ration_policy::steer::Together;
use ration_policy::tuning::{OFF_AFTER, SLICE};
use ration_steer::{Fault, Off, Process, Switch};

use super::{Steer, batch};
use crate::abi::cuda::CUdevice;
use crate::channels::{self, Trouble};
use crate::{ledger, log, sys};

/// By the channels of the process on a GPU.
pub struct ByChannels(pub CUdevice);

impl Switch for ByChannels {
    fn is_usable(&self) -> Result<(), Fault> {
        match channels::is_drivable(self.0) {
            Err(Trouble::Unseen) if channels::were_there(self.0) => Ok(()),
            result => result.map_err(fault),
        }
    }

    fn put(&self, on: bool, _under_way: bool) -> Result<Option<u64>, Fault> {
        let began = sys::nanoseconds();
        match channels::put(self.0, on) {
            // They went with their context. Those of another are found by the generation.
            Err(Trouble::Unseen) if channels::were_there(self.0) => {}
            result => _ = result.map_err(fault)?,
        }
        Ok(Some(if on { sys::nanoseconds() } else { began + OFF_AFTER }))
    }

    fn set_slice(&self, length: u64) -> Result<(), Fault> {
        match channels::set_slice(self.0, length / 1_000) {
            // There will be some, or it will be found out that there are none.
            Err(Trouble::Unseen) => Ok(()),
            result => result.map_err(fault),
        }
    }

    fn generation(&self) -> u64 {
        channels::generation()
    }

    fn is_prompt(&self) -> bool {
        true
    }
}

fn fault(trouble: Trouble) -> Fault {
    Fault::Broken(match trouble {
        Trouble::Slow => return Fault::Slow,
        Trouble::Unseen => "no channels were seen being made",
        Trouble::Shared => "they belong to another process, such as an MPS server",
        Trouble::DriversOwn => "the driver switches them itself",
        Trouble::Closed => "the program closed the driver's descriptor",
        Trouble::Refused(_) => "the kernel module refuses",
        Trouble::Failed => "the system call fails",
    })
}

/// This process on one GPU.
pub struct Here<'a> {
    pub steer: &'a Steer,
    pub channels: ByChannels,
}

impl Process for Here<'_> {
    fn now(&self) -> u64 {
        sys::nanoseconds()
    }

    fn switch(&self) -> &dyn Switch {
        if self.is_by_launches() { &self.steer.gate } else { &self.channels }
    }

    fn is_by_launches(&self) -> bool {
        self.steer.by_launches.load(Ordering::Relaxed)
    }

    fn goes_over(&self, why: &str) {
        let device = self.channels.0;
        log::warn!("channels of GPU {device} cannot be driven: {why}; launches are held in their calls instead");
        let _ = channels::put(device, true);
        let _ = channels::set_slice(device, SLICE / 1_000);
        self.steer.holds(false);
        self.steer.by_launches.store(true, Ordering::Relaxed);
    }

    fn is_off(&self, off: Option<Off>) {
        // Where channels are driven, launches wait while the container is at its limit.
        if !self.is_by_launches() {
            self.steer.holds(matches!(off, Some(Off::Limit | Off::Due)));
        }
    }

    fn counts(&self, is: bool) {
        self.steer.counts(is);
    }

    fn is_awaited(&self, is: bool) {
        self.steer.is_awaited.store(is, Ordering::Relaxed);
    }

    fn batches(&self, together: Option<Together>) -> bool {
        // A process's launches are kept back by one rule: where it is on several GPUs, they are not.
        let is_only = ledger::all().nth(1).is_none();
        batch::keeps(together.filter(|_| is_only && !self.is_by_launches()))
    }

    fn is_waited_for(&self) -> bool {
        self.steer.gate.is_waited_at()
    }

    fn is_leaving(&self) -> bool {
        super::is_leaving()
    }

    fn has_room(&self, threads: u32, is_free: bool, ends: u64, now: u64) {
        self.steer.gate.is_looked_at(threads, is_free, ends, now);
    }
}
