//! Kernel launches: the first of a kernel may make the driver take memory for the threads' local variables.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::memory::{REFUSED, here};
use super::{Call, Outcome};
use crate::abi::cuda::{CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, CUDA_SUCCESS, CUfunction};
use crate::driver::calls;
use crate::ledger;

/// Kernels that were launched before. Only ever added to; when it is full, further ones are looked at each time.
static SEEN: [AtomicUsize; SIZE] = [const { AtomicUsize::new(0) }; SIZE];
const SIZE: usize = 1 << 13;
/// How far from its place a kernel may lie.
const REACH: usize = 16;

/// Whether a kernel was launched before; from now on it was.
fn is_new(kernel: usize) -> bool {
    let start = kernel.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - SIZE.trailing_zeros());
    for step in 0..REACH {
        let place = &SEEN[(start + step) % SIZE];
        let there = place.load(Ordering::Relaxed);
        if there == kernel {
            return false;
        }
        if there == 0 {
            match place.compare_exchange(0, kernel, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) if other == kernel => return false,
                Err(_) => {}
            }
        }
    }
    true
}

/// A launch of one kernel, by whichever function.
pub unsafe fn kernel(call: &mut Call<'_>, function: CUfunction) -> Outcome {
    if function.is_null() || !is_new(function as usize) {
        return Outcome::Done(call.driver());
    }
    let changing = ledger::changing();
    let Some((slice, context)) = here(&changing) else { return Outcome::Done(call.driver()) };
    // With lazy loading, this is also when its code and variables get their place.
    slice.is_to_be_learned();
    let local = local_bytes(function);
    let more = slice.local_growth(context, local);
    if more == 0 {
        return Outcome::Done(call.driver());
    }
    let Ok(hold) = slice.reserve(more, &changing) else {
        // It may be launched again, when there is room.
        forget(function as usize);
        return REFUSED;
    };
    let result = call.driver();
    if result == CUDA_SUCCESS {
        slice.set_local(context, local);
    }
    hold.learn(&changing);
    Outcome::Done(result)
}

/// Bytes of local memory that each thread of a kernel wants. What is launched may be a function of a module or a kernel of a
/// library; the driver tells them apart, and each of the two questions fails for the other.
fn local_bytes(function: CUfunction) -> u64 {
    let mut local: c_int = 0;
    let mut ask = |function| {
        // SAFETY: the caller's kernel, which it is about to launch, and a place to write to.
        unsafe {
            calls::cuFuncGetAttribute(&raw mut local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) == CUDA_SUCCESS
        }
    };
    let mut of_kernel: CUfunction = null_mut();
    // SAFETY: as above.
    let told = ask(function)
        || unsafe { calls::cuKernelGetFunction(&raw mut of_kernel, function.cast()) } == CUDA_SUCCESS && ask(of_kernel);
    if told { local.max(0) as u64 } else { 0 }
}

/// Takes a kernel out again. The place stays taken by one that no program has, so that those behind it are still found.
fn forget(kernel: usize) {
    const NOBODY: usize = usize::MAX;
    for place in &SEEN {
        let _ = place.compare_exchange(kernel, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Every kernel is new again: what the driver had made room for is gone.
pub fn forget_all() {
    SEEN.iter().for_each(|place| place.store(0, Ordering::Relaxed));
}
