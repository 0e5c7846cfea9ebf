//! What a program is told about its GPU: its slice, as if that were the whole. Here the memory; who uses it, and how busy
//! they keep it, below.

pub mod processes;
pub mod utilization;

use std::ffi::{CStr, c_char, c_uint};

use ration_contract::parse_uuid;

use super::memory::here;
use super::{Call, Outcome};
use crate::abi::cuda::{CUDA_SUCCESS, CUdevice};
use crate::abi::nvml::{
    NVML_SUCCESS, nvmlDevice_t, nvmlGetMemoryLimits_v1_t, nvmlMemory_t, nvmlMemory_v2, nvmlMemory_v2_t,
};
use crate::driver::calls;
use crate::ledger::{self, outside};

/// Free and total of a slice with a limit and so much in use: no more than the GPU itself has free.
fn of_slice((cap, used): (u64, u64), free: u64, total: u64) -> (u64, u64) {
    let cap = cap.min(total);
    (cap.saturating_sub(used).min(free), cap)
}

/// `cuMemGetInfo_v2`
pub unsafe fn info(call: &mut Call<'_>, free: *mut usize, total: *mut usize) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS
        && let Ok((slice, _)) = here(&changing)
        && !free.is_null()
        && !total.is_null()
    {
        slice.look_closely(&changing);
        // SAFETY: the driver has just written both.
        unsafe {
            let (f, t) = of_slice((slice.cap(), slice.used()), *free as u64, *total as u64);
            (*free, *total) = (f as usize, t as usize);
        }
    }
    Outcome::Done(result)
}

/// `cuMemGetInfo`, of CUDA 2, which cannot tell of more than 4 GiB
pub unsafe fn info_32(call: &mut Call<'_>, free: *mut c_uint, total: *mut c_uint) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS
        && let Ok((slice, _)) = here(&changing)
        && !free.is_null()
        && !total.is_null()
    {
        // SAFETY: the driver has just written both.
        unsafe {
            let (f, t) = of_slice((slice.cap(), slice.used()), (*free).into(), slice.total);
            (*free, *total) = (f.min((*free).into()) as c_uint, t.min((*total).into()) as c_uint);
        }
    }
    Outcome::Done(result)
}

/// `cuDeviceTotalMem_v2`
pub unsafe fn total(call: &mut Call<'_>, bytes: *mut usize, device: CUdevice) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS
        && let Ok(slice) = ledger::of(device, &changing)
        && !bytes.is_null()
    {
        // SAFETY: the driver has just written it.
        unsafe { *bytes = (*bytes).min(slice.cap() as usize) };
    }
    Outcome::Done(result)
}

/// `cuDeviceTotalMem`, of CUDA 2
pub unsafe fn total_32(call: &mut Call<'_>, bytes: *mut c_uint, device: CUdevice) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS
        && let Ok(slice) = ledger::of(device, &changing)
        && !bytes.is_null()
    {
        // SAFETY: the driver has just written it.
        unsafe { *bytes = (*bytes).min(slice.cap().min(c_uint::MAX.into()) as c_uint) };
    }
    Outcome::Done(result)
}

/// The GPU that NVML calls by a handle. A part of one (MIG) has a name of another kind, and no slice.
fn uuid_of(device: nvmlDevice_t) -> Option<[u8; 16]> {
    let mut name = [0 as c_char; 96];
    // SAFETY: the caller's handle, with which NVML has just succeeded, and room for a name, which ends in NUL.
    let name = unsafe {
        if calls::nvmlDeviceGetUUID(device, name.as_mut_ptr(), name.len() as c_uint) != NVML_SUCCESS {
            return None;
        }
        CStr::from_ptr(name.as_ptr())
    };
    parse_uuid(name.to_str().ok()?).ok()
}

/// What it has in all.
fn total_of(device: nvmlDevice_t) -> u64 {
    let mut memory = nvmlMemory_t::default();
    // SAFETY: the caller's handle, with which NVML has just succeeded, and a place to write to.
    unsafe { calls::nvmlDeviceGetMemoryInfo(device, &raw mut memory) };
    memory.total
}

/// The limit of the GPU that NVML calls by a handle, and what the container uses.
fn by_handle(device: nvmlDevice_t, total: u64) -> Option<(u64, u64)> {
    outside::limit_and_use(&uuid_of(device)?, device, total)
}

/// `nvmlDeviceGetMemoryInfo`
pub unsafe fn nvml_memory(call: &mut Call<'_>, device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> Outcome {
    let result = call.driver();
    if result == NVML_SUCCESS
        && !memory.is_null()
        // SAFETY: NVML has just written it.
        && let memory = unsafe { &mut *memory }
        && let Some(slice) = by_handle(device, memory.total)
    {
        (memory.free, memory.total) = of_slice(slice, memory.free, memory.total);
        memory.used = memory.total - memory.free;
    }
    Outcome::Done(result)
}

/// `nvmlDeviceGetMemoryInfo_v2`
pub unsafe fn nvml_memory_v2(call: &mut Call<'_>, device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) -> Outcome {
    let result = call.driver();
    if result == NVML_SUCCESS
        && !memory.is_null()
        // SAFETY: NVML has just written it.
        && let memory = unsafe { &mut *memory }
        && memory.version == nvmlMemory_v2
        && let Some(slice) = by_handle(device, memory.total)
    {
        (memory.free, memory.total) = of_slice(slice, memory.free, memory.total);
        memory.reserved = 0;
        memory.used = memory.total - memory.free;
    }
    Outcome::Done(result)
}

/// `nvmlDeviceGetMemoryLimits_v1`, of R615: what the driver itself allows a cgroup. No cgroup has more in here than the slice
/// has, so that is the most that a program is told. Where no limit is set, the answer to that stays the driver's.
pub unsafe fn memory_limits(
    call: &mut Call<'_>,
    device: nvmlDevice_t,
    limits: *mut nvmlGetMemoryLimits_v1_t,
) -> Outcome {
    let result = call.driver();
    if result == NVML_SUCCESS
        && !limits.is_null()
        // SAFETY: NVML has just written it.
        && let limits = unsafe { &mut *limits }
        && let Some((cap, _)) = by_handle(device, total_of(device))
    {
        limits.hardLimit = limits.hardLimit.min(cap);
        limits.softLimit = limits.softLimit.min(limits.hardLimit);
    }
    Outcome::Done(result)
}
