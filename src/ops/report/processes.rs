//! Who uses the GPU: of NVML's lists, the container's own processes.
//!
//! Those are the processes that are in the region: what they hold is what counts against the limit, so the list adds up to
//! what the container is said to use. A process of the container that does without this library is not in the list, as it is
//! not held to the limit; from outside it is seen. Where nobody knows who belongs to the container, because the region cannot
//! be read or the processes could not join it, the driver's list stays as it is: too long a list misleads nobody for long, a
//! list without the program that asks for it would.

use std::ffi::c_uint;

use super::super::{Call, Outcome};
use super::uuid_of;
use crate::abi::nvml::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT, NVML_SUCCESS, nvmlDevice_t, nvmlProcessDetail_v1_t,
    nvmlProcessDetailList_t, nvmlProcessDetailList_v1, nvmlProcessInfo_t, nvmlProcessInfo_v1_t,
};
use crate::driver::calls;
use crate::ledger::outside::{self, Members};

/// An entry of a list of NVML's: plain words, for which zero is a value.
pub(super) trait Entry: Copy + Default {
    fn pid(&self) -> u32;
}

macro_rules! entries {
    ($($entry:ty),* $(,)?) => { $(impl Entry for $entry {
        fn pid(&self) -> u32 {
            self.pid
        }
    })* };
}
pub(super) use entries;

entries!(nvmlProcessInfo_v1_t, nvmlProcessInfo_t, nvmlProcessDetail_v1_t);

/// The container's processes on the GPU that NVML calls by a handle.
pub(super) fn members(device: nvmlDevice_t) -> Option<Members> {
    outside::members(&uuid_of(device)?)
}

/// Moves those that are wanted to the front, in their order, and wipes the others: how many they are.
pub(super) fn keep<T: Entry>(entries: &mut [T], is_wanted: impl Fn(u32) -> bool) -> usize {
    let mut kept = 0;
    for at in 0..entries.len() {
        if is_wanted(entries[at].pid()) {
            entries[kept] = entries[at];
            kept += 1;
        }
    }
    entries[kept..].fill(T::default());
    kept
}

/// All entries of a list, asked for with a count of how many there is room for. `None`: NVML does not tell.
pub(super) fn whole<T: Entry>(mut ask: impl FnMut(*mut c_uint, *mut T) -> c_uint) -> Option<Vec<T>> {
    let mut room = 64;
    for _ in 0..4 {
        let mut entries = vec![T::default(); room];
        let mut count = room as c_uint;
        match ask(&raw mut count, entries.as_mut_ptr()) {
            NVML_SUCCESS => {
                entries.truncate(count as usize);
                return Some(entries);
            }
            // Somebody may come meanwhile.
            NVML_ERROR_INSUFFICIENT_SIZE => room = count as usize + 64,
            _ => return None,
        }
    }
    None
}

/// What the driver answered, cut down to the container's own: `result` and the caller's list, in which there was room for
/// `room` entries and which now has `count`, or would need it.
///
/// # Safety
/// If `result` is success, `list` has `count` entries; it has room for `room`, or is null.
unsafe fn cut<T: Entry>(
    result: u32,
    device: nvmlDevice_t,
    room: c_uint,
    count: &mut c_uint,
    list: *mut T,
    ask: impl FnMut(*mut c_uint, *mut T) -> c_uint,
) -> u32 {
    if ![NVML_SUCCESS, NVML_ERROR_INSUFFICIENT_SIZE].contains(&result) || *count == 0 {
        return result;
    }
    let Some(members) = members(device) else { return result };
    if result == NVML_SUCCESS && !list.is_null() {
        // SAFETY: the caller of this says that the driver has just written so many.
        let entries = unsafe { std::slice::from_raw_parts_mut(list, (*count).min(room) as usize) };
        *count = keep(entries, |pid| members.has(pid)) as c_uint;
        return result;
    }
    // There is no room for all of them, but there may be for ours.
    let Some(mut all) = whole(ask) else { return result };
    let ours = keep(&mut all, |pid| members.has(pid));
    *count = ours as c_uint;
    if *count > room {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    if ours > 0 && list.is_null() {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (at, entry) in all[..ours].iter().enumerate() {
        // SAFETY: the caller of this says that there is room, and it was seen to be enough.
        unsafe { list.add(at).write(*entry) };
    }
    NVML_SUCCESS
}

/// A list whose length is an argument of its own.
///
/// # Safety
/// The arguments are those of a call to the function that `ask` is.
unsafe fn list<T: Entry>(
    call: &mut Call<'_>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut T,
    ask: unsafe fn(nvmlDevice_t, *mut c_uint, *mut T) -> c_uint,
) -> Outcome {
    // SAFETY: a caller that gives a count at all gives the room in its list.
    let room = unsafe { count.as_ref() }.copied().unwrap_or(0);
    let result = call.driver();
    // SAFETY: as above, and NVML has looked at it before us.
    let Some(count) = (unsafe { count.as_mut() }) else { return Outcome::Done(result) };
    // SAFETY: the handle is good, or NVML would not have answered so; the places are those that `whole` gives.
    let ask = |count, entries| unsafe { ask(device, count, entries) };
    // SAFETY: NVML has just answered with this count, for a list of the caller's with this room.
    Outcome::Done(unsafe { cut(result, device, room, count, infos, ask) })
}

macro_rules! lists {
    ($($name:ident = $symbol:ident($entry:ty);)*) => { $(
        #[doc = concat!("`", stringify!($symbol), "`")]
        pub unsafe fn $name(
            call: &mut Call<'_>, device: nvmlDevice_t, count: *mut c_uint, infos: *mut $entry,
        ) -> Outcome {
            // SAFETY: the caller's arguments, for this very function.
            unsafe { list(call, device, count, infos, calls::$symbol) }
        }
    )* };
}

lists! {
    compute = nvmlDeviceGetComputeRunningProcesses(nvmlProcessInfo_v1_t);
    compute_v2 = nvmlDeviceGetComputeRunningProcesses_v2(nvmlProcessInfo_t);
    compute_v3 = nvmlDeviceGetComputeRunningProcesses_v3(nvmlProcessInfo_t);
    graphics = nvmlDeviceGetGraphicsRunningProcesses(nvmlProcessInfo_v1_t);
    graphics_v2 = nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlProcessInfo_t);
    graphics_v3 = nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlProcessInfo_t);
    mps = nvmlDeviceGetMPSComputeRunningProcesses(nvmlProcessInfo_v1_t);
    mps_v2 = nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlProcessInfo_t);
    mps_v3 = nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlProcessInfo_t);
}

/// `nvmlDeviceGetRunningProcessDetailList`
pub unsafe fn details(call: &mut Call<'_>, device: nvmlDevice_t, list: *mut nvmlProcessDetailList_t) -> Outcome {
    // SAFETY: a caller that gives a list at all gives one that begins with its version.
    let version = (!list.is_null()).then(|| unsafe { (*list).version });
    if version != Some(nvmlProcessDetailList_v1) {
        // A layout that is not known here is left alone.
        return Outcome::Done(call.driver());
    }
    // SAFETY: the version says that it is this struct.
    let (room, mode) = unsafe { ((*list).numProcArrayEntries, (*list).mode) };
    let result = call.driver();
    // SAFETY: as above.
    let list = unsafe { &mut *list };
    let ask = |count: *mut c_uint, entries| {
        let version = nvmlProcessDetailList_v1;
        let mut asked = nvmlProcessDetailList_t { version, mode, numProcArrayEntries: 0, procArray: entries };
        // SAFETY: the count is that of `whole`, and so are the places; the handle is good, or NVML would not have answered.
        unsafe {
            asked.numProcArrayEntries = *count;
            let result = calls::nvmlDeviceGetRunningProcessDetailList(device, &raw mut asked);
            *count = asked.numProcArrayEntries;
            result
        }
    };
    // SAFETY: NVML has just answered with this count, for an array of the caller's with this room.
    Outcome::Done(unsafe { cut(result, device, room, &mut list.numProcArrayEntries, list.procArray, ask) })
}

/// The numbers of all processes that use a GPU, as the driver lists them. `None`: it does not tell.
pub(super) fn listed(device: nvmlDevice_t) -> Option<Vec<u32>> {
    // SAFETY: a handle with which NVML has just succeeded, and the places that `whole` gives.
    let compute = whole(|count, entries: *mut nvmlProcessInfo_t| unsafe {
        calls::nvmlDeviceGetComputeRunningProcesses_v3(device, count, entries)
    });
    // SAFETY: as above.
    let graphics = whole(|count, entries: *mut nvmlProcessInfo_t| unsafe {
        calls::nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, entries)
    });
    Some(compute?.iter().chain(&graphics.unwrap_or_default()).map(|process| process.pid).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(pid: u32) -> nvmlProcessInfo_v1_t {
        nvmlProcessInfo_v1_t { pid, usedGpuMemory: u64::from(pid) << 20 }
    }

    #[test]
    fn what_is_kept_comes_first_and_the_rest_is_gone() {
        let mut entries = [info(1), info(2), info(3), info(4)];
        assert_eq!(keep(&mut entries, |pid| pid % 2 == 0), 2);
        let left = entries.map(|entry| (entry.pid, entry.usedGpuMemory));
        assert_eq!(left, [(2, 2 << 20), (4, 4 << 20), (0, 0), (0, 0)]);
        assert_eq!(keep(&mut entries[..0], |_| true), 0);
    }

    #[test]
    fn a_list_that_grows_is_asked_for_again() {
        let mut sizes = [100, 170, 165].into_iter();
        let found = whole(|count: *mut c_uint, entries: *mut nvmlProcessInfo_v1_t| {
            let there = sizes.next().expect("asked three times");
            // SAFETY: the count and the places are those of `whole`.
            unsafe {
                let room = std::mem::replace(&mut *count, there);
                if room < there {
                    return NVML_ERROR_INSUFFICIENT_SIZE;
                }
                (0..there).for_each(|at| entries.add(at as usize).write(info(at)));
            }
            NVML_SUCCESS
        });
        assert_eq!(found.map(|found| found.len()), Some(165));
        assert!(whole(|_, _: *mut nvmlProcessInfo_v1_t| NVML_ERROR_INVALID_ARGUMENT).is_none());
    }
}
