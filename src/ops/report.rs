//! What a program is told about memory: its slice, as if that were the GPU.

use std::ffi::{CStr, c_char, c_uint};

use ration_contract::parse_uuid;

use super::memory::here;
use super::{Call, Outcome};
use crate::abi::cuda::{CUDA_SUCCESS, CUdevice};
use crate::abi::nvml::{NVML_SUCCESS, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};
use crate::driver::calls;
use crate::ledger;

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
        && let Some((slice, _)) = here(&changing)
        && !free.is_null()
        && !total.is_null()
    {
        slice.look_closely(&changing);
        // SAFETY: the driver has just written both.
        unsafe {
            let (f, t) = of_slice((slice.cap, slice.used()), *free as u64, *total as u64);
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
        && let Some((slice, _)) = here(&changing)
        && !free.is_null()
        && !total.is_null()
    {
        // SAFETY: the driver has just written both.
        unsafe {
            let (f, t) = of_slice((slice.cap, slice.used()), (*free).into(), slice.total);
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
        && let Some(slice) = ledger::of(device, &changing)
        && !bytes.is_null()
    {
        // SAFETY: the driver has just written it.
        unsafe { *bytes = (*bytes).min(slice.cap as usize) };
    }
    Outcome::Done(result)
}

/// `cuDeviceTotalMem`, of CUDA 2
pub unsafe fn total_32(call: &mut Call<'_>, bytes: *mut c_uint, device: CUdevice) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS
        && let Some(slice) = ledger::of(device, &changing)
        && !bytes.is_null()
    {
        // SAFETY: the driver has just written it.
        unsafe { *bytes = (*bytes).min(slice.cap.min(c_uint::MAX.into()) as c_uint) };
    }
    Outcome::Done(result)
}

/// The limit of the GPU that NVML calls by a handle, and what the container uses.
fn by_handle(device: nvmlDevice_t, total: u64) -> Option<(u64, u64)> {
    let mut name = [0 as c_char; 96];
    // SAFETY: the caller's handle, with which NVML has just succeeded, and room for a name, which ends in NUL.
    let name = unsafe {
        if calls::nvmlDeviceGetUUID(device, name.as_mut_ptr(), name.len() as c_uint) != NVML_SUCCESS {
            return None;
        }
        CStr::from_ptr(name.as_ptr())
    };
    ledger::seen_from_outside(&parse_uuid(name.to_str().ok()?).ok()?, total)
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
        && let Some(slice) = by_handle(device, memory.total)
    {
        (memory.free, memory.total) = of_slice(slice, memory.free, memory.total);
        memory.reserved = 0;
        memory.used = memory.total - memory.free;
    }
    Outcome::Done(result)
}
