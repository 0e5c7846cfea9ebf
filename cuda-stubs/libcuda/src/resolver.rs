//! `cuGetProcAddress`: an address by name, version and stream mode.

use std::ffi::{c_char, c_void};

use sim_world::surface::{self, Resolution};

use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::process::driver_version;
use crate::stubs::EXPORTS;

fn look_up(symbol: In<c_char>, version: i32, flags: u64) -> Outcome<Resolution> {
    let name = symbol.text()?;
    let known = u64::from(CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    if flags & !known != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // A negative version is taken for the newest there is; one that the driver has not come to yet is refused.
    let newest = driver_version() as u32;
    let version = u32::try_from(version).unwrap_or(newest);
    if version > newest {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // With both flags, per-thread wins: so R470 to R595 answer.
    let per_thread = flags & u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    Ok(surface::resolve(&name.to_string_lossy(), version, per_thread))
}

fn address(found: Resolution) -> *mut c_void {
    match found {
        Resolution::Export(index) => EXPORTS[index].0.cast_mut().cast(),
        _ => std::ptr::null_mut(),
    }
}

api! {
    export fn cuGetProcAddress(symbol: In<c_char>, function: Out<*mut c_void>, version: i32, flags: u64) {
        function.required()?;
        // Unlike the second form it says that there is no such thing, and leaves the pointer alone.
        match look_up(symbol, version, flags)? {
            found @ Resolution::Export(_) => function.set(address(found)),
            _ => Err(CUDA_ERROR_NOT_FOUND),
        }
    }
    export fn cuGetProcAddress_v2(symbol: In<c_char>, function: Out<*mut c_void>, version: i32, flags: u64, status: Out<CUdriverProcAddressQueryResult>) {
        function.required()?;
        let found = look_up(symbol, version, flags)?;
        function.set(address(found))?;
        status.maybe(match found {
            Resolution::Export(_) => CU_GET_PROC_ADDRESS_SUCCESS,
            Resolution::VersionTooOld => CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
            Resolution::Unknown => CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        });
        Ok(())
    }
}
