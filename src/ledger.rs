//! The accounts: what this process holds of each GPU, and whether it may have more.
//!
//! A [`Slice`] is the process's place in its container's slice of one GPU. The bytes are counted in the region, where all
//! processes of the container meet; what is known about each allocation is in [`book`]. The order is always the same:
//! reserve, ask the driver, keep or give back. So the container is over its cap at no moment, whoever else is asking.

pub mod book;
pub mod pools;
pub mod slice;
pub mod truth;

use std::ffi::CStr;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use ration_contract::Settings;
use ration_region::{Gpu, Region};

use crate::abi::cuda::CUdevice;
use crate::{entry, log, sys};

pub use slice::Slice;

/// What the settings say.
static STATE: AtomicU8 = AtomicU8::new(OFF);
/// Nothing was asked for: calls pass.
const OFF: u8 = 0;
/// There is a slice.
const ON: u8 = 1;
/// What was asked for cannot be understood, so that nobody knows what the limit is: no GPU work.
const REFUSING: u8 = 2;

static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(null_mut());
/// By the device's number. Null: not looked at yet; [`NONE`]: a GPU without a limit.
static SLICES: [AtomicPtr<Slice>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];
const NONE: *mut Slice = std::ptr::without_provenance_mut(1);

/// Where an injector puts the limits, read-only for the program.
const QUOTA_FILE: &CStr = c"/etc/ration/quota";

/// Reads the settings. Called once, at the process's first hooked call.
pub fn begin() {
    let get = |name: &str| {
        let name = std::ffi::CString::new(name).ok()?;
        // A limit holds for programs with more rights than their user too; where files are made is not the user's to say.
        let value = if name.as_c_str() == c"RATION_DIR" { sys::setting(&name) } else { sys::setting_of_anybody(&name) };
        Some(value?.to_string_lossy().into_owned())
    };
    let file = sys::read(QUOTA_FILE);
    match Settings::read(&get, file.as_deref()) {
        Ok(settings) if settings.memory.is_empty() => {}
        Ok(settings) => {
            SETTINGS.store(Box::into_raw(Box::new(settings)), Ordering::Release);
            STATE.store(ON, Ordering::Release);
            entry::watch_for(entry::SLICED);
        }
        Err(errors) => {
            for error in errors {
                log::error!("{error}");
            }
            log::error!("no GPU work until that is put right: without knowing the limit, none is allowed");
            STATE.store(REFUSING, Ordering::Release);
            entry::watch_for(entry::SLICED);
        }
    }
}

/// Calls under way that change what the driver holds for this process, and how many there ever were.
static CHANGING: AtomicU32 = AtomicU32::new(0);
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// To be held from before the driver is asked until the books are right again.
pub struct Changing(());

/// A call begins that changes what the driver holds for this process.
pub fn changing() -> Changing {
    CHANGING.fetch_add(1, Ordering::SeqCst);
    CHANGES.fetch_add(1, Ordering::SeqCst);
    Changing(())
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Changing {
    /// What the driver says at a moment at which this is the only change under way, so that the books can be held against
    /// it. `None`: there was no such moment.
    fn alone<T>(&self, ask: impl FnOnce() -> Option<T>) -> Option<T> {
        let before = CHANGES.load(Ordering::SeqCst);
        if CHANGING.load(Ordering::SeqCst) != 1 {
            return None;
        }
        ask().filter(|_| CHANGING.load(Ordering::SeqCst) == 1 && CHANGES.load(Ordering::SeqCst) == before)
    }
}

/// Whether GPU work is refused altogether.
pub fn is_refusing() -> bool {
    STATE.load(Ordering::Acquire) == REFUSING
}

/// The slice of a GPU.
pub fn of(device: CUdevice, changing: &Changing) -> Option<&'static Slice> {
    if STATE.load(Ordering::Acquire) != ON {
        return None;
    }
    let word = SLICES.get(usize::try_from(device).ok()?)?;
    let mut slice = word.load(Ordering::Acquire);
    if slice.is_null() {
        // SAFETY: made by `begin`, before the state said so, and never taken away.
        let settings = unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }?;
        let made = Slice::make(device, settings, changing)?.map_or(NONE, |slice| Box::into_raw(Box::new(slice)));
        slice = match word.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                if made != NONE {
                    // SAFETY: it came from a box just above, and nobody else has seen it.
                    drop(unsafe { Box::from_raw(made) });
                }
                other
            }
        };
    }
    // SAFETY: not the mark for none, so it came from a box that is never freed.
    if slice == NONE { None } else { unsafe { slice.as_ref() } }
}

/// A container's slice as somebody sees it who does not use the GPU himself, such as `nvidia-smi`: the limit, and what is used.
pub fn seen_from_outside(uuid: &[u8; 16], total: u64) -> Option<(u64, u64)> {
    if let Some(slice) = all().find(|slice| slice.uuid == *uuid) {
        return Some((slice.cap, slice.used()));
    }
    // SAFETY: made by `begin`, before the state said so, and never taken away.
    let settings = unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }?;
    // NVML numbers GPUs in its own way, so one that is limited by its number is not known here.
    let cap = settings.memory.for_gpu(u32::MAX, uuid)?.bytes(total);
    let gpu = Gpu { uuid: *uuid, total };
    let name = slice::name(settings);
    let used = directory(settings).iter().find_map(|dir| {
        let region = Region::open(Path::new(dir), &gpu).ok()?;
        region
            .containers()
            .find(|container| container.name.as_bytes() == name.as_bytes())
            .map(|container| container.used())
    });
    Some((cap, used.unwrap_or(0)))
}

/// Every slice that is in use.
pub fn all() -> impl Iterator<Item = &'static Slice> {
    SLICES.iter().filter_map(|word| {
        let slice = word.load(Ordering::Acquire);
        // SAFETY: as in `of`.
        if slice == NONE { None } else { unsafe { slice.as_ref() } }
    })
}

/// In a forked child: it holds nothing, and its parent's allocations are not its own.
pub fn forget_the_parent() {
    ration_region::forget_in_child();
    CHANGING.store(0, Ordering::SeqCst);
    for word in &SLICES {
        word.store(null_mut(), Ordering::Release);
    }
    book::forget_the_parent();
    pools::forget_the_parent();
}

/// Where the region lies: the place that was set, the node's, or one of this user's own.
fn directory(settings: &Settings) -> Vec<String> {
    if let Some(dir) = &settings.dir {
        return vec![dir.clone()];
    }
    // SAFETY: takes nothing and always succeeds.
    let user = unsafe { libc::geteuid() };
    let node = "/run/ration".to_owned();
    let own = format!("/dev/shm/ration-{user}");
    if Path::new(&node).is_dir() { vec![node, own] } else { vec![own] }
}
