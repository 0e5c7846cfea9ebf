//! What the driver itself says about who holds what: NVML's figures, which count what no call tells of.

use std::ffi::CString;
use std::fmt::Write as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use super::Slice;
use crate::abi::cuda::CUdevice;
use crate::abi::nvml::{NVML_ERROR_INSUFFICIENT_SIZE, NVML_SUCCESS, nvmlDevice_t, nvmlProcessInfo_t};
use crate::driver::calls;

/// NVML's handles, by the number of the device.
static HANDLES: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];
/// 0: not tried, 1: there, 2: not there.
static READY: AtomicU8 = AtomicU8::new(0);

fn handle(slice: &Slice) -> Option<nvmlDevice_t> {
    handle_of(slice.device, &slice.uuid)
}

/// NVML's handle for a GPU. `None`: the machine has no NVML, or it does not know the GPU.
pub fn handle_of(device: CUdevice, uuid: &[u8; 16]) -> Option<nvmlDevice_t> {
    let word = HANDLES.get(usize::try_from(device).ok()?)?;
    let known = word.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known.cast());
    }
    if READY.load(Ordering::Acquire) == 0 {
        // SAFETY: takes nothing. Counted by NVML, and never taken back: the program's own shutdown leaves ours in place.
        let there = calls::load_nvml() && unsafe { calls::nvmlInit_v2() } == NVML_SUCCESS;
        READY.store(if there { 1 } else { 2 }, Ordering::Release);
    }
    if READY.load(Ordering::Acquire) != 1 {
        return None;
    }
    let name = CString::new(uuid_text(uuid)).ok()?;
    let mut found: nvmlDevice_t = null_mut();
    // SAFETY: a name that ends in NUL, and a place to write to.
    if unsafe { calls::nvmlDeviceGetHandleByUUID(name.as_ptr(), &raw mut found) } != NVML_SUCCESS {
        return None;
    }
    word.store(found.cast(), Ordering::Release);
    Some(found)
}

/// `GPU-xxxxxxxx-xxxx-…`
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (at, byte) in uuid.iter().enumerate() {
        let dash = if matches!(at, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
        let _ = write!(text, "{dash}{byte:02x}");
    }
    text
}

/// The processes that compute on the slice's GPU, and what each holds. `None`: nobody knows.
fn processes(slice: &Slice) -> Option<Vec<nvmlProcessInfo_t>> {
    let handle = handle(slice)?;
    let mut room = 64;
    for _ in 0..4 {
        let mut found = vec![nvmlProcessInfo_t::default(); room];
        let mut count = room as u32;
        // SAFETY: as many places to write to as is said.
        let told =
            unsafe { calls::nvmlDeviceGetComputeRunningProcesses_v3(handle, &raw mut count, found.as_mut_ptr()) };
        match told {
            NVML_SUCCESS => {
                found.truncate(count as usize);
                return Some(found);
            }
            NVML_ERROR_INSUFFICIENT_SIZE => room = count as usize + 64,
            _ => return None,
        }
    }
    None
}

/// The processes on the slice's GPU by NVML's numbers, and what each holds; without those of which the driver does not tell.
pub fn figures(slice: &Slice) -> Option<Vec<(u32, u64)>> {
    let told = processes(slice)?;
    Some(told.iter().map(|p| (p.pid, p.usedGpuMemory)).filter(|(_, bytes)| *bytes != u64::MAX).collect())
}

/// By which number NVML was seen to know this process; 0: not seen yet.
///
/// Drivers of today number processes as the caller's PID namespace does. Others give the machine's own numbers, which a
/// process in a container cannot know; then it is the one that came into the list with its first context.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// In a forked child, which has another.
pub fn forget_the_parent() {
    NUMBER.store(0, Ordering::Release);
}

fn own_number() -> u32 {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::getpid() as u32 }
}

/// Whether NVML's numbers are those of this process's PID namespace, as far as this process could see yet.
pub fn are_own_numbers() -> bool {
    let known = NUMBER.load(Ordering::Acquire);
    known == 0 || known == own_number()
}

/// What this process holds of the slice's GPU, its contexts and all included. `holds`: it is known to hold something. `None`:
/// nobody knows.
pub fn of_this_process(slice: &Slice, holds: bool) -> Option<u64> {
    let processes = processes(slice)?;
    let known = NUMBER.load(Ordering::Acquire);
    let me = if known == 0 { own_number() } else { known };
    let mine = match processes.iter().find(|process| process.pid == me) {
        Some(process) => {
            NUMBER.store(me, Ordering::Release);
            process.usedGpuMemory
        }
        // It was in the list before, or nothing says that it should be: it holds nothing now.
        None if known != 0 || !holds => 0,
        None => return None,
    };
    // All ones: the driver does not tell.
    (mine != u64::MAX).then_some(mine)
}

/// Who was in NVML's list before this process's first context was made. `None`: it is known by which number it is there.
pub fn before_context(slice: &Slice) -> Option<Vec<u32>> {
    let unknown = NUMBER.load(Ordering::Acquire) == 0;
    Some(processes(slice).filter(|_| unknown)?.iter().map(|process| process.pid).collect())
}

/// The context is there. Returns the number by which NVML knows this process, if that is another than its own.
pub fn after_context(slice: &Slice, before: &[u32]) -> Option<u32> {
    let processes = processes(slice)?;
    let me = own_number();
    if processes.iter().any(|process| process.pid == me) {
        NUMBER.store(me, Ordering::Release);
        return None;
    }
    let mut new = processes.iter().map(|process| process.pid).filter(|pid| !before.contains(pid));
    let only = new.next()?;
    // If others came at the same moment, nobody can tell which one it is.
    if new.next().is_some() {
        return None;
    }
    NUMBER.store(only, Ordering::Release);
    Some(only)
}

/// Whether the driver has let go of what a process held that is known to be dead.
pub fn has_let_go(slice: &Slice, pid: u32) -> bool {
    processes(slice).is_none_or(|processes| processes.iter().all(|process| process.pid != pid))
}
