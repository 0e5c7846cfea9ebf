//! Contexts, code and limits: what the driver takes for them is learned, because no call tells it.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::memory::{REFUSED, here};
use super::{Call, Outcome, launches};
use crate::abi::cuda::*;
use crate::driver::calls;
use crate::ledger::{self, Changing, Slice, book};

/// `cuInit`: where the settings cannot be understood, this is as far as a program gets.
pub unsafe fn init(call: &mut Call<'_>) -> Outcome {
    if ledger::is_refusing() { Outcome::Refused(CUDA_ERROR_NOT_PERMITTED) } else { Outcome::Done(call.driver()) }
}

/// Asks for something that takes memory of a size that only the driver knows: so much at most.
fn learned(call: &mut Call<'_>, slice: &'static Slice, at_most: u64, changing: &Changing) -> Outcome {
    let Ok(hold) = slice.reserve(at_most, changing) else { return REFUSED };
    let result = call.driver();
    hold.learn(changing);
    Outcome::Done(result)
}

/// A context of a device: `cuCtxCreate` and all that is like it.
pub unsafe fn create(call: &mut Call<'_>, device: CUdevice) -> Outcome {
    let changing = ledger::changing();
    match ledger::of(device, &changing) {
        Some(slice) => {
            let before = slice.uncounted();
            let outcome = learned(call, slice, slice.context_at_most(), &changing);
            slice.context_took(slice.uncounted() - before);
            outcome
        }
        None => Outcome::Done(call.driver()),
    }
}

fn primary_is_active(device: CUdevice) -> bool {
    let (mut flags, mut active): (_, c_int) = (0, 0);
    // SAFETY: places to write to.
    let told = unsafe { calls::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    told == CUDA_SUCCESS && active != 0
}

/// `cuDevicePrimaryCtxRetain`: the first retains a context, the others a reference.
pub unsafe fn retain(call: &mut Call<'_>, device: CUdevice) -> Outcome {
    if primary_is_active(device) {
        return Outcome::Done(call.driver());
    }
    // SAFETY: as the caller's.
    unsafe { create(call, device) }
}

/// A context is gone, and all that lived in it.
fn gone(context: CUcontext, changing: &Changing) {
    book::refund_context(context);
    launches::forget_all();
    for slice in ledger::all() {
        slice.forget_local(context);
        slice.is_to_be_learned();
        slice.learn(changing);
    }
}

/// `cuCtxDestroy` and its like.
pub unsafe fn destroy(call: &mut Call<'_>, context: CUcontext) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS {
        gone(context, &changing);
    }
    Outcome::Done(result)
}

/// `cuDevicePrimaryCtxReset` and `…Release`: with the last reference the context goes.
pub unsafe fn release(call: &mut Call<'_>, device: CUdevice) -> Outcome {
    let changing = ledger::changing();
    let mut primary: CUcontext = null_mut();
    if primary_is_active(device) {
        // To know its handle: a reference that is given back at once.
        // SAFETY: a place to write to, and the reference that was just taken.
        unsafe {
            if calls::cuDevicePrimaryCtxRetain(&raw mut primary, device) == CUDA_SUCCESS {
                calls::cuDevicePrimaryCtxRelease_v2(device);
            }
        }
    }
    let result = call.driver();
    if result == CUDA_SUCCESS && !primary.is_null() {
        // A reset keeps the context alive for those who hold it, and empty.
        gone(primary, &changing);
    }
    Outcome::Done(result)
}

/// Code is loaded: its variables and instructions take memory of the GPU, now or when it is first used.
pub unsafe fn load_module(call: &mut Call<'_>, module: *mut CUmodule) -> Outcome {
    let changing = ledger::changing();
    let Some((slice, _)) = here(&changing) else { return Outcome::Done(call.driver()) };
    let result = call.driver();
    if result == CUDA_SUCCESS {
        slice.is_to_be_learned();
        slice.learn(&changing);
        if slice.used() > slice.cap {
            // SAFETY: the module that the driver has just made, which the program has not seen.
            unsafe { calls::cuModuleUnload(*module) };
            slice.is_to_be_learned();
            slice.learn(&changing);
            return REFUSED;
        }
    }
    Outcome::Done(result)
}

/// Code is loaded or unloaded in a way that takes or gives memory at some later time.
pub unsafe fn other_code(call: &mut Call<'_>) -> Outcome {
    let _changing = ledger::changing();
    let result = call.driver();
    ledger::all().for_each(Slice::is_to_be_learned);
    Outcome::Done(result)
}

/// `cuCtxSetLimit`: a deeper stack takes memory for all threads that the GPU can hold, at once.
pub unsafe fn set_limit(call: &mut Call<'_>, limit: CUlimit, value: usize) -> Outcome {
    let changing = ledger::changing();
    let Some((slice, context)) = here(&changing) else { return Outcome::Done(call.driver()) };
    match limit {
        CU_LIMIT_STACK_SIZE => {
            let outcome = learned(call, slice, slice.local_growth(context, value as u64), &changing);
            if outcome == Outcome::Done(CUDA_SUCCESS) {
                // What kernels had made it grow to is given back, and they may make it grow again.
                slice.set_local(context, value as u64);
                launches::forget_all();
            }
            outcome
        }
        CU_LIMIT_MALLOC_HEAP_SIZE => heap(call, slice, value as u64, &changing),
        _ => {
            slice.is_to_be_learned();
            Outcome::Done(call.driver())
        }
    }
}

/// The driver makes the heap when a kernel that uses it is launched, which cannot be foreseen then. So it is charged when it
/// is asked for.
fn heap(call: &mut Call<'_>, slice: &'static Slice, value: u64, changing: &Changing) -> Outcome {
    let wanted = slice.heap_charge(value);
    let before = slice.heap.load(Ordering::Acquire);
    let Ok(hold) = slice.reserve(wanted.saturating_sub(before), changing) else { return REFUSED };
    let result = call.driver();
    if result == CUDA_SUCCESS {
        hold.keep_beside(wanted.saturating_sub(before));
        slice.heap.store(wanted, Ordering::Release);
        slice.refund_beside(before.saturating_sub(wanted));
    }
    Outcome::Done(result)
}
