//! `cuGetProcAddress`: the driver answers, for the caller's name, version and flags; what it found is swapped if it is a row
//! of ours. By the identity of the pointer, because only the driver knows which of a name's versions it means.

use std::ffi::{c_char, c_int, c_void};

use super::{Call, Outcome};
use crate::abi::cuda::{CUDA_SUCCESS, cuuint64_t};
use crate::resolve;

/// `cuGetProcAddress`, until CUDA 11.
pub unsafe fn get_proc_address(
    call: &mut Call<'_>,
    _symbol: *const c_char,
    found: *mut *mut c_void,
    _version: c_int,
    _flags: cuuint64_t,
) -> Outcome {
    let result = call.driver();
    // SAFETY: the driver has just succeeded with this pointer of the caller's.
    unsafe { swap(found, result) };
    Outcome::Done(result)
}

/// `cuGetProcAddress_v2`, since CUDA 12. A name that is not found is a success with a null pointer.
pub unsafe fn get_proc_address_v2(
    call: &mut Call<'_>,
    _symbol: *const c_char,
    found: *mut *mut c_void,
    _version: c_int,
    _flags: cuuint64_t,
    _status: *mut u32,
) -> Outcome {
    let result = call.driver();
    // SAFETY: as above.
    unsafe { swap(found, result) };
    Outcome::Done(result)
}

/// # Safety
/// Where the driver succeeded, `found` is where it wrote the function.
unsafe fn swap(found: *mut *mut c_void, result: u32) {
    if result != CUDA_SUCCESS || found.is_null() {
        return;
    }
    // SAFETY: the driver wrote it, so it can be read and written.
    unsafe {
        if let Some(door) = resolve::door_for((*found).cast_const().cast()) {
            *found = door.cast_mut().cast();
        }
    }
}
