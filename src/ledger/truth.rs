//! What the driver itself says about who holds what: NVML's figures, which count what no call tells of.

use std::ffi::CString;
use std::fmt::Write as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use super::Slice;
use crate::abi::nvml::{NVML_ERROR_INSUFFICIENT_SIZE, NVML_SUCCESS, nvmlDevice_t, nvmlProcessInfo_t};
use crate::driver::calls;

/// NVML's handles, by the number of the device.
static HANDLES: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];
/// 0: not tried, 1: there, 2: not there.
static READY: AtomicU8 = AtomicU8::new(0);

/// NVML's handle for the slice's GPU. `None`: the machine has no NVML, or it does not know the GPU.
fn handle(slice: &Slice) -> Option<nvmlDevice_t> {
    let word = HANDLES.get(usize::try_from(slice.device).ok()?)?;
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
    let name = CString::new(uuid_text(&slice.uuid)).ok()?;
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

/// What this process holds of the slice's GPU, its contexts and all included.
pub fn of_this_process(slice: &Slice) -> Option<u64> {
    // SAFETY: takes nothing and always succeeds.
    let me = unsafe { libc::getpid() } as u32;
    let processes = processes(slice)?;
    // Not in the list: it holds nothing yet.
    let mine = processes.iter().find(|process| process.pid == me).map_or(0, |process| process.usedGpuMemory);
    // All ones: the driver does not tell.
    (mine != u64::MAX).then_some(mine)
}

/// Whether the driver has let go of what a process held that is known to be dead.
pub fn has_let_go(slice: &Slice, pid: u32) -> bool {
    processes(slice).is_none_or(|processes| processes.iter().all(|process| process.pid != pid))
}
