//! Waiting for events. None ever happens here: no errors, no change of clocks that anybody is told of, no GPU that
//! leaves.

use std::ffi::c_uint;
use std::time::Duration;

use crate::abi::*;
use crate::api::{Out, Outcome};

/// The events that a GPU of this kind has.
const SUPPORTED: u64 = nvmlEventTypeAll as u64;

/// A set, as callers hold it: an allocation that only its address is wanted of.
struct Set(#[allow(dead_code)] u64);

fn create() -> *mut Set {
    Box::into_raw(Box::new(Set(0)))
}

fn free(set: *mut Set) -> Outcome {
    if set.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: NVML's contract is that a set is one of `create`'s, and freed once.
    drop(unsafe { Box::from_raw(set) });
    Ok(())
}

fn wait(milliseconds: c_uint) -> Outcome {
    std::thread::sleep(Duration::from_millis(u64::from(milliseconds)));
    Err(NVML_ERROR_TIMEOUT)
}

nvml! {
    export fn nvmlEventSetCreate(lib: Library; set: Out<nvmlEventSet_t>) {
        if set.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        set.set(create().cast())
    }

    export fn nvmlEventSetFree(lib: Library; set: nvmlEventSet_t) {
        free(set.cast())
    }

    export fn nvmlDeviceGetSupportedEventTypes(gpu: Gpu; types: Out<u64>) {
        types.set(SUPPORTED)
    }

    export fn nvmlDeviceRegisterEvents(gpu: Gpu; types: u64, set: nvmlEventSet_t) {
        if set.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // Below 2^16 the driver takes what the GPU has of it.
        if types > 0xffff { Err(NVML_ERROR_NOT_SUPPORTED) } else { Ok(()) }
    }

    export fn nvmlEventSetWait | nvmlEventSetWait_v2 (
        lib: Library;
        set: nvmlEventSet_t,
        data: Out<nvmlEventData_t>,
        timeout: c_uint,
    ) {
        if set.is_null() || data.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        wait(timeout)
    }

    export fn nvmlSystemEventSetCreate(lib: Library; request: Out<nvmlSystemEventSetCreateRequest_t>) {
        request.versioned(nvmlSystemEventSetCreateRequest_v1, |request| {
            request.set = create().cast();
            Ok(())
        })
    }

    export fn nvmlSystemEventSetFree(lib: Library; request: Out<nvmlSystemEventSetFreeRequest_t>) {
        request.versioned(nvmlSystemEventSetFreeRequest_v1, |request| free(request.set.cast()))
    }

    export fn nvmlSystemRegisterEvents(lib: Library; request: Out<nvmlSystemRegisterEventRequest_t>) {
        request.versioned(nvmlSystemRegisterEventRequest_v1, |request| {
            if request.set.is_null() { Err(NVML_ERROR_INVALID_ARGUMENT) } else { Ok(()) }
        })
    }

    export fn nvmlSystemEventSetWait(lib: Library; request: Out<nvmlSystemEventSetWaitRequest_t>) {
        request.versioned(nvmlSystemEventSetWaitRequest_v1, |request| {
            request.numEvent = 0;
            wait(request.timeoutms)
        })
    }
}
