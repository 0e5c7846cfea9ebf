//! Contexts and their limits: what the driver takes for them is learned, because no call tells it.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::code::is_eager;
use super::memory::{REFUSED, forget_contexts, here};
use super::{Call, Outcome, launches};
use crate::abi::cuda::*;
use crate::driver::calls;
use crate::ledger::{self, Changing, Slice, book, code};
use crate::left::Turn;
use crate::steer;
use crate::thread::Thread;

/// `cuInit`: where the settings cannot be understood or kept, this is as far as a program gets.
pub unsafe fn init(call: &mut Call<'_>) -> Outcome {
    let result = call.driver();
    if result == CUDA_SUCCESS {
        ledger::check(&ledger::changing());
    }
    if ledger::is_refusing() { Outcome::Refused(CUDA_ERROR_NOT_PERMITTED) } else { Outcome::Done(result) }
}

/// Asks for something that takes memory of a size that only the driver knows: so much at most.
fn learned(slice: &'static Slice, at_most: u64, changing: &Changing, driver: impl FnOnce() -> CUresult) -> Outcome {
    let Ok(hold) = slice.reserve_at_most(at_most, changing) else { return REFUSED };
    let result = driver();
    if result == CUDA_SUCCESS {
        hold.learn(changing);
    } else {
        // It took nothing, or what it took is found at the next look. A reservation for each try would fill the slice where nobody can
        // be asked.
        slice.is_to_be_learned();
        drop(hold);
    }
    Outcome::Done(result)
}

/// A context of a device: `cuCtxCreate` and all that is like it.
pub unsafe fn create(call: &mut Call<'_>, device: CUdevice) -> Outcome {
    launches::there_are_several_contexts();
    made(call, device)
}

fn made(call: &mut Call<'_>, device: CUdevice) -> Outcome {
    let _making = Thread::attached().map(|thread| thread.makes(device));
    let changing = ledger::changing();
    match ledger::of(device, &changing) {
        Ok(slice) => {
            let before = slice.uncounted();
            let code = if is_eager() { code::eager(slice) } else { 0 };
            let outcome = learned(slice, slice.context_at_most() + code, &changing, || {
                let listed = slice.before_context();
                let result = call.driver();
                slice.after_context(listed.as_deref());
                result
            });
            slice.context_took(slice.uncounted() - before);
            outcome
        }
        Err(unheld) => unheld.ask(call),
    }
}

fn primary_is_active(device: CUdevice) -> bool {
    let (mut flags, mut active): (_, c_int) = (0, 0);
    // SAFETY: places to write to.
    let told = unsafe { calls::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    told == CUDA_SUCCESS && active != 0
}

/// A GPU's primary context. Whether a call makes it or lets it go is known only as long as no other thread does either; and one that was
/// made anew has the handle of the one before.
struct Primary {
    turn: Turn,
    /// Its handle, once it was retained; it stays the same.
    handle: AtomicPtr<CUctx_st>,
}

static PRIMARIES: [Primary; 64] = [const { Primary { turn: Turn::new(), handle: AtomicPtr::new(null_mut()) } }; 64];

fn primary_of(device: CUdevice) -> Option<&'static Primary> {
    PRIMARIES.get(usize::try_from(device).ok()?)
}

/// In a forked child: it has none.
pub fn forget_the_parent() {
    for primary in &PRIMARIES {
        primary.turn.forget_the_parent();
        primary.handle.store(null_mut(), Ordering::Relaxed);
    }
}

/// `cuDevicePrimaryCtxRetain`: the first retains a context, the others a reference.
pub unsafe fn retain(call: &mut Call<'_>, to: *mut CUcontext, device: CUdevice) -> Outcome {
    let primary = primary_of(device);
    let _turn = primary.map(|primary| primary.turn.take());
    let outcome = if primary_is_active(device) {
        Outcome::Done(call.driver())
    } else {
        if ledger::all().any(|slice| slice.device != device) {
            launches::there_are_several_contexts();
        }
        made(call, device)
    };
    if outcome == Outcome::Done(CUDA_SUCCESS)
        && let Some(primary) = primary
    {
        // SAFETY: the driver has just written the handle there.
        primary.handle.store(unsafe { *to }, Ordering::Relaxed);
    }
    outcome
}

/// A context may be about to go: nobody looks at our events in it any more, and what it waits for is let through, until the
/// guard is dropped.
fn goes(context: CUcontext) -> impl Drop {
    struct Leaving;
    impl Drop for Leaving {
        fn drop(&mut self) {
            steer::after_leaving();
        }
    }
    steer::before_leaving(context);
    Leaving
}

/// A context is gone, and all that lived in it.
fn gone(context: CUcontext, changing: &Changing) {
    forget_contexts();
    book::refund_context(context);
    code::forget_context(context);
    launches::forget_all();
    for slice in ledger::all() {
        slice.forget_local(context);
        slice.forget_heap(context);
        slice.is_to_be_learned();
        slice.learn(changing);
    }
}

/// `cuCtxDestroy` and its like.
pub unsafe fn destroy(call: &mut Call<'_>, context: CUcontext) -> Outcome {
    let changing = ledger::changing();
    let _leaving = goes(context);
    let result = call.driver();
    if result == CUDA_SUCCESS {
        gone(context, &changing);
    }
    Outcome::Done(result)
}

/// `cuDevicePrimaryCtxReset` and `…Release`: with the last reference the context goes.
pub unsafe fn release(call: &mut Call<'_>, device: CUdevice) -> Outcome {
    let known = primary_of(device);
    let _turn = known.map(|primary| primary.turn.take());
    let changing = ledger::changing();
    let mut primary: CUcontext = known.map_or(null_mut(), |primary| primary.handle.load(Ordering::Relaxed));
    if primary.is_null() && primary_is_active(device) {
        // Retained before there was a slice. To know its handle: a reference that is given back at once.
        // SAFETY: a place to write to, and the reference that was just taken.
        unsafe {
            if calls::cuDevicePrimaryCtxRetain(&raw mut primary, device) == CUDA_SUCCESS {
                calls::cuDevicePrimaryCtxRelease_v2(device);
            }
        }
    }
    let _leaving = (!primary.is_null()).then(|| goes(primary));
    let result = call.driver();
    // With references left, a release leaves it as it is.
    if result == CUDA_SUCCESS && !primary.is_null() && !primary_is_active(device) {
        gone(primary, &changing);
    } else if result == CUDA_SUCCESS && primary.is_null() {
        // Which context that was cannot be told, nor whether it is gone. What the driver holds for this process can.
        for slice in ledger::all().filter(|slice| slice.device == device) {
            slice.is_to_be_learned();
            slice.learn(&changing);
        }
    }
    Outcome::Done(result)
}

/// `cuCtxSetLimit`: a deeper stack takes memory for all threads that the GPU can hold, at once.
pub unsafe fn set_limit(call: &mut Call<'_>, limit: CUlimit, value: usize) -> Outcome {
    let changing = ledger::changing();
    let (slice, context) = match here(&changing) {
        Ok(place) => place,
        Err(unheld) => return unheld.ask(call),
    };
    match limit {
        CU_LIMIT_STACK_SIZE => {
            let outcome = learned(slice, slice.local_growth(context, value as u64), &changing, || call.driver());
            if outcome == Outcome::Done(CUDA_SUCCESS) {
                // What kernels had made it grow to is given back, and they may make it grow again.
                slice.set_local(context, value as u64);
                launches::forget_all();
            }
            outcome
        }
        CU_LIMIT_MALLOC_HEAP_SIZE => heap(call, slice, context, value as u64, &changing),
        _ => {
            slice.is_to_be_learned();
            Outcome::Done(call.driver())
        }
    }
}

/// The heap is charged when it is asked for, because nobody can tell which launch will make it.
fn heap(call: &mut Call<'_>, slice: &'static Slice, context: CUcontext, value: u64, changing: &Changing) -> Outcome {
    let Some(change) = slice.foresee_heap(context, value, changing) else { return REFUSED };
    let result = call.driver();
    if result == CUDA_SUCCESS {
        change.done();
    }
    Outcome::Done(result)
}
