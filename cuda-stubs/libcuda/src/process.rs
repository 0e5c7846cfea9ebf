//! This process as a client of the world: made by `cuInit`, gone in a forked child.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sim_world::settings::KernelMode;
use sim_world::{Role, World, WorldSettings};

use crate::abi::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_SYSTEM_NOT_READY, CUdevice,
};
use crate::api::{self, Out, Outcome};
use crate::channels;
use crate::context::Context;
use crate::device::Device;
use crate::effects::Effects;
use crate::event::Event;
use crate::handles::{Registry, Tag};
use crate::stream::Stream;

/// What the process has. Objects of each kind are registered by their own rooms.
pub(crate) struct Process {
    pub world: &'static World,
    pub devices: Vec<Device>,
    pub effects: Effects,
}

/// Every context of this process.
pub(crate) static CONTEXTS: Registry<Context> = Registry::new(Tag::Context);
/// Every stream that has a handle of its own.
pub(crate) static STREAMS: Registry<Stream> = Registry::new(Tag::Stream);
/// Every event.
pub(crate) static EVENTS: Registry<Event> = Registry::new(Tag::Event);

static PROCESS: OnceLock<Outcome<Process>> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);
/// What a launch costs besides, ns: `RATION_SIM_LAUNCH_NS`.
pub(crate) static LAUNCH_COST: AtomicU64 = AtomicU64::new(0);
/// Launches wait until they are done: the driver's own `CUDA_LAUNCH_BLOCKING`.
pub(crate) static BLOCKING: AtomicBool = AtomicBool::new(false);

/// The process, once `cuInit` was called.
#[inline]
pub(crate) fn process() -> Outcome<&'static Process> {
    match PROCESS.get() {
        Some(Ok(process)) if !FORKED.load(Ordering::Relaxed) => Ok(process),
        Some(Err(code)) => Err(*code),
        _ => Err(CUDA_ERROR_NOT_INITIALIZED),
    }
}

extern "C" fn in_forked_child() {
    // CUDA does not survive fork: neither the device's state nor the keeper thread came along. A child that never used it
    // before may start; one whose parent did gets CUDA_ERROR_NOT_INITIALIZED, as from the real driver.
    if PROCESS.get().is_some() {
        FORKED.store(true, Ordering::Relaxed);
    }
    api::count_into(None);
}

/// Forked children know that they are. Registered when the library is loaded: registered by a thread while another is in the
/// middle of a fork, it would not run in that fork's child.
extern "C" fn watch_forks() {
    // SAFETY: registers a handler that only stores to atomics.
    unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = watch_forks;

fn start() -> Outcome<Process> {
    let complain = |what: &dyn std::fmt::Display| eprintln!("ration-sim: {what}");
    let settings = WorldSettings::from_env(|name| std::env::var(name).ok()).map_err(|e| {
        complain(&e);
        CUDA_ERROR_SYSTEM_NOT_READY
    })?;
    for (name, cost) in [("RATION_SIM_CALL_NS", &api::CALL_COST), ("RATION_SIM_LAUNCH_NS", &LAUNCH_COST)] {
        if let Some(value) = std::env::var(name).ok().filter(|v| !v.trim().is_empty()) {
            let ns = value.trim().parse().ok().filter(|ns: &u64| *ns <= 1_000_000_000).ok_or_else(|| {
                complain(&format_args!("{name}={value:?} is not understood; accepted: nanoseconds up to 1000000000"));
                CUDA_ERROR_SYSTEM_NOT_READY
            })?;
            cost.store(ns, Ordering::Relaxed);
        }
    }
    if std::env::var("RATION_SIM_LEAVABLE").is_ok_and(|value| value == "1") {
        sim_world::shield::raise();
    }
    BLOCKING.store(std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|value| value == "1"), Ordering::Relaxed);
    let mode = KernelMode::from_env(|name| std::env::var(name).ok()).map_err(|e| {
        complain(&e);
        CUDA_ERROR_SYSTEM_NOT_READY
    })?;
    sim_world::fault::Fault::from_env(|name| std::env::var(name).ok()).map_err(|e| {
        complain(&e);
        CUDA_ERROR_SYSTEM_NOT_READY
    })?;
    let world = World::join(&World::default_dir(), &settings, Role::Client).map_err(|e| {
        complain(&e);
        CUDA_ERROR_SYSTEM_NOT_READY
    })?;
    let world: &'static World = Box::leak(Box::new(world));
    if *world.settings() != settings {
        complain(&format_args!(
            "{} is in use and was made with other RATION_SIM_* settings; those hold, not this process's",
            world.dir().display()
        ));
    }
    channels::open(world, mode);
    api::count_into(Some(&world.file().procs[world.slot()].calls));
    let devices = Device::visible(world);
    Ok(Process { world, devices, effects: Effects::new(world) })
}

impl Process {
    /// The device with this ordinal.
    pub(crate) fn device(&'static self, ordinal: CUdevice) -> Outcome<&'static Device> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get(i)).ok_or(CUDA_ERROR_INVALID_DEVICE)
    }
}

/// The CUDA version of the driver. Asked for before cuInit too, so from the settings alone unless the world is there.
pub(crate) fn driver_version() -> u64 {
    static FROM_SETTINGS: OnceLock<u64> = OnceLock::new();
    match PROCESS.get() {
        Some(Ok(process)) => process.world.settings().driver,
        _ => *FROM_SETTINGS
            .get_or_init(|| WorldSettings::from_env(|n| std::env::var(n).ok()).map_or(13000, |s| s.driver)),
    }
}

/// The context a handle names, if it lives.
pub(crate) fn context(handle: crate::abi::CUcontext) -> Outcome<Arc<Context>> {
    CONTEXTS.get(handle as usize).ok_or(crate::abi::CUDA_ERROR_INVALID_CONTEXT)
}

api! {
    export fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if FORKED.load(Ordering::Relaxed) {
            return Err(CUDA_ERROR_NOT_INITIALIZED);
        }
        let process = PROCESS.get_or_init(start).as_ref().map_err(|code| *code)?;
        if process.devices.is_empty() { Err(CUDA_ERROR_NO_DEVICE) } else { Ok(()) }
    }

    export fn cuDriverGetVersion(version: Out<i32>) { version.set(driver_version() as i32) }
}

/// Calls that are to fail are known from the first one on.
#[used]
#[unsafe(link_section = ".init_array")]
static READ_FAULTS: extern "C" fn() = sim_world::fault::read;
