//! This process as an observer of the world: made by `nvmlInit`, made again in a forked child.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sim_world::layout::GPUS;
use sim_world::surface::COUNTERS;
use sim_world::{Role, World, WorldSettings};

use crate::abi::*;
use crate::api::{Handle, Outcome};
use crate::gpu::Gpu;

/// NVML, joined to the world. There is one per process and it stays: `nvmlShutdown` only makes it unreachable.
pub(crate) struct Library {
    pub world: World,
    /// The process that joined; a forked child is another.
    pid: u32,
    /// CLOCK_REALTIME in microseconds when simulated time was 0: what timestamps count from.
    epoch_us: u64,
}

static JOINED: AtomicPtr<Library> = AtomicPtr::new(std::ptr::null_mut());
/// How often `nvmlInit` was called and `nvmlShutdown` was not. A forked child inherits it, as from the real one.
static USES: AtomicU32 = AtomicU32::new(0);
/// The process that is joining now. Not a lock, because a child forked meanwhile would find it taken for ever.
static JOINING: AtomicU32 = AtomicU32::new(0);

/// Calls made before this process has joined, and whose they are: what a forked child's parent called is its parent's.
static EARLY: [AtomicU64; COUNTERS] = [const { AtomicU64::new(0) }; COUNTERS];
static EARLY_OF: AtomicU32 = AtomicU32::new(0);

/// What handles point to: the address is the GPU's index, and nobody reads what is there.
static PLACES: [u64; GPUS] = [0; GPUS];

/// The library, if this process has joined.
pub(crate) fn joined() -> Option<&'static Library> {
    // SAFETY: `join` stored a leaked box, or nobody stored anything.
    unsafe { JOINED.load(Ordering::SeqCst).as_ref() }.filter(|lib| lib.pid == std::process::id())
}

/// Counts a call, in this process's slot or until it has one; returns how many there were before.
pub(crate) fn count(index: usize) -> u64 {
    if let Some(lib) = joined() {
        return lib.calls()[index].fetch_add(1, Ordering::Relaxed);
    }
    let me = std::process::id();
    if ![0, me].contains(&EARLY_OF.swap(me, Ordering::AcqRel)) {
        EARLY.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
    // SeqCst, as for JOINED: either this count is there when the joining thread collects, or we see that it has joined.
    let before = EARLY[index].fetch_add(1, Ordering::SeqCst);
    if let Some(lib) = joined() {
        lib.collect();
    }
    before
}

/// The library, between `nvmlInit` and `nvmlShutdown`.
pub(crate) fn current() -> Outcome<&'static Library> {
    if USES.load(Ordering::Acquire) == 0 { Err(NVML_ERROR_UNINITIALIZED) } else { join() }
}

fn join() -> Outcome<&'static Library> {
    let me = std::process::id();
    loop {
        if let Some(lib) = joined() {
            return Ok(lib);
        }
        let other = JOINING.load(Ordering::Acquire);
        if other != me && JOINING.compare_exchange(other, me, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1)); // another thread of this process is at it
    }
    let lib = Library::new(me).map(|lib| &*Box::leak(Box::new(lib)));
    if let Ok(lib) = lib {
        JOINED.store(std::ptr::from_ref(lib).cast_mut(), Ordering::SeqCst);
        lib.collect();
    }
    JOINING.store(0, Ordering::Release);
    lib
}

impl Library {
    fn new(pid: u32) -> Outcome<Library> {
        let settings = WorldSettings::from_env(|name| std::env::var(name).ok()).map_err(|bad| {
            complain(&bad);
            NVML_ERROR_UNKNOWN
        })?;
        let world = World::join(&World::default_dir(), &settings, Role::Observer).map_err(|error| {
            complain(&error);
            NVML_ERROR_DRIVER_NOT_LOADED
        })?;
        let since = world.real(world.now()).as_micros() as u64;
        let epoch_us = realtime_us().saturating_sub(since);
        Ok(Library { world, pid, epoch_us })
    }

    /// How many GPUs there are.
    pub(crate) fn gpus(&'static self) -> usize {
        self.world.settings().gpus as usize
    }

    /// The GPU with this index.
    pub(crate) fn gpu_at(&'static self, index: usize) -> Option<Gpu> {
        (index < self.gpus()).then_some(Gpu { lib: self, index })
    }

    /// All of them.
    pub(crate) fn each(&'static self) -> impl Iterator<Item = Gpu> {
        (0..self.gpus()).map(move |index| Gpu { lib: self, index })
    }

    /// The GPU that a handle names.
    pub(crate) fn gpu(&'static self, handle: Handle) -> Outcome<Gpu> {
        let offset = (handle.0 as usize).wrapping_sub(PLACES.as_ptr() as usize);
        let index = Some(offset / size_of::<u64>()).filter(|_| offset.is_multiple_of(size_of::<u64>()));
        index.and_then(|index| self.gpu_at(index)).ok_or(NVML_ERROR_INVALID_ARGUMENT)
    }

    /// The other way.
    pub(crate) fn handle(index: usize) -> nvmlDevice_t {
        std::ptr::from_ref(&PLACES[index]).cast_mut().cast()
    }

    /// Where this process's calls are counted, by symbol.
    fn calls(&'static self) -> &'static [AtomicU64; COUNTERS] {
        &self.world.file().procs[self.world.slot()].calls
    }

    /// Moves what was counted before there was a slot into it.
    fn collect(&'static self) {
        if EARLY_OF.load(Ordering::Acquire) == self.pid {
            for (to, from) in self.calls().iter().zip(&EARLY) {
                to.fetch_add(from.swap(0, Ordering::SeqCst), Ordering::Relaxed);
            }
        }
    }

    /// A moment of simulated time as NVML's timestamps have it: microseconds since 1970.
    pub(crate) fn timestamp(&self, simulated: u64) -> u64 {
        self.epoch_us + self.world.real(simulated).as_micros() as u64
    }
}

/// The time of day in microseconds.
pub(crate) fn realtime_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Says once what keeps this process out of the world.
fn complain(why: &dyn std::fmt::Display) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| eprintln!("ration-sim: {why}"));
}

fn init() -> Outcome {
    join()?;
    USES.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

nvml! {
    export fn nvmlInit | nvmlInit_v2 () {
        init()
    }

    export fn nvmlInitWithFlags(; flags: c_uint) {
        // Without GPUs, or without attaching to them: there is always one here, and nothing to attach to.
        let _ = flags;
        init()
    }

    export fn nvmlShutdown() {
        let less = |uses: u32| uses.checked_sub(1);
        USES.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).map(drop).map_err(|_| NVML_ERROR_UNINITIALIZED)
    }
}

/// Calls that are to fail are known from the first one on.
#[used]
#[unsafe(link_section = ".init_array")]
static READ_FAULTS: extern "C" fn() = sim_world::fault::read;
