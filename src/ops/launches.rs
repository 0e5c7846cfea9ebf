//! Kernel launches: the first of a kernel may make the driver take memory: for its library, for the threads' local variables,
//! for the heap.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::code::Room;
use super::memory::{REFUSED, here};
use super::{Call, Outcome};
use crate::abi::cuda::*;
use crate::driver::{self, Stream, calls};
use crate::ledger::code::{self, Foreseen};
use crate::ledger::{self, Changing, Slice, Unheld};
use crate::steer::{self, Work};

/// Kernels that were launched before. Only ever added to; when it is full, further ones are looked at each time.
static SEEN: [AtomicUsize; SIZE] = [const { AtomicUsize::new(0) }; SIZE];
const SIZE: usize = 1 << 13;
/// How far from its place a kernel may lie.
const REACH: usize = 16;
const SPREAD: usize = 0x9e37_79b9_7f4a_7c15;

/// Whether the process has more than one context. A library's kernel is then another in each of them.
static SEVERAL_CONTEXTS: AtomicBool = AtomicBool::new(false);

/// There is a context besides a GPU's primary one, or besides another GPU's.
pub fn there_are_several_contexts() {
    SEVERAL_CONTEXTS.store(true, Ordering::Release);
}

/// What stands for a kernel among those that were seen.
fn key(kernel: CUfunction) -> usize {
    let context = if SEVERAL_CONTEXTS.load(Ordering::Relaxed) { driver::current_context() } else { None };
    kernel as usize ^ context.map_or(0, |context| (context as usize).rotate_left(24))
}

fn places(key: usize) -> impl Iterator<Item = &'static AtomicUsize> {
    let start = key.wrapping_mul(SPREAD) >> (usize::BITS - SIZE.trailing_zeros());
    (start..start + REACH).map(|place| &SEEN[place % SIZE])
}

/// Whether a kernel was launched before; from now on it was.
fn is_new(key: usize) -> bool {
    for place in places(key) {
        let there = place.load(Ordering::Relaxed);
        if there == key {
            return false;
        }
        if there == 0 {
            match place.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) if other == key => return false,
                Err(_) => {}
            }
        }
    }
    true
}

/// Whether there is nothing to do about the launch of a kernel: it was launched before, and nobody holds launches up.
#[inline(always)]
pub fn passes(kernel: CUfunction) -> bool {
    let place = (kernel as usize).wrapping_mul(SPREAD) >> (usize::BITS - SIZE.trailing_zeros());
    !steer::is_any_counted()
        && !SEVERAL_CONTEXTS.load(Ordering::Relaxed)
        && SEEN[place % SIZE].load(Ordering::Relaxed) == kernel as usize
}

/// The same, without making it so.
pub fn was_launched(kernel: CUfunction) -> bool {
    let key = key(kernel);
    places(key).any(|place| place.load(Ordering::Relaxed) == key)
}

/// A launch of one kernel, by whichever function, when its time has come.
fn launched(call: &mut Call<'_>, function: CUfunction, stream: Stream, work: impl FnOnce() -> Work) -> Outcome {
    if !steer::is_any_counted() || function.is_null() {
        return with_room(call, function);
    }
    paced(call, stream, work, |call| with_room(call, function))
}

/// Sends work to the GPU when its time has come.
pub fn paced(
    call: &mut Call<'_>,
    stream: Stream,
    work: impl FnOnce() -> Work,
    go: impl FnOnce(&mut Call<'_>) -> Outcome,
) -> Outcome {
    let place = here(&ledger::changing());
    match place {
        Ok((slice, context)) if slice.steer.is_counted() => {
            slice.steer.launch(slice, context, stream, work(), || go(call))
        }
        Ok(_) => go(call),
        Err(unheld) => unheld.end(call, go),
    }
}

/// The first launch of a kernel takes memory.
fn with_room(call: &mut Call<'_>, function: CUfunction) -> Outcome {
    if function.is_null() || !is_new(key(function)) {
        return Outcome::Done(call.driver());
    }
    let changing = ledger::changing();
    let (slice, context) = match here(&changing) {
        Ok(place) => place,
        Err(unheld) => {
            let outcome = unheld.ask(call);
            if unheld != Unheld::NoLimit {
                // Another time it may be known what it is held to.
                forget(key(function));
            }
            return outcome;
        }
    };
    // With lazy loading, this is also when its instructions get their place.
    slice.is_to_be_learned();
    let need = Need::of(&[function], slice, context);
    let outcome = need.provide(call, true, &changing);
    if outcome == REFUSED {
        // It may be launched again, when there is room.
        forget(key(function));
    }
    outcome
}

/// How a kernel is launched: over which grid, in which blocks.
type Size = [c_uint; 3];

/// `cuLaunchKernel`, `cuLaunchCooperativeKernel`
pub unsafe fn kernel(call: &mut Call<'_>, f: CUfunction, grid: Size, block: Size, stream: CUstream) -> Outcome {
    launched(call, f, Stream::given(stream, false), || Work::kernel(f as usize, grid, block))
}

/// The same for per-thread streams
pub unsafe fn kernel_ptsz(call: &mut Call<'_>, f: CUfunction, grid: Size, block: Size, stream: CUstream) -> Outcome {
    launched(call, f, Stream::given(stream, true), || Work::kernel(f as usize, grid, block))
}

/// `cuLaunchKernelEx`
pub unsafe fn kernel_ex(call: &mut Call<'_>, config: *const CUlaunchConfig, f: CUfunction) -> Outcome {
    // SAFETY: as the caller's.
    unsafe { extended(call, config, f, false) }
}

/// `cuLaunchKernelEx_ptsz`
pub unsafe fn kernel_ex_ptsz(call: &mut Call<'_>, config: *const CUlaunchConfig, f: CUfunction) -> Outcome {
    // SAFETY: as the caller's.
    unsafe { extended(call, config, f, true) }
}

/// # Safety
/// Null, or a description of a launch.
unsafe fn extended(call: &mut Call<'_>, config: *const CUlaunchConfig, f: CUfunction, per_thread: bool) -> Outcome {
    // SAFETY: the caller's word; the driver reads it too.
    let Some(config) = (unsafe { config.as_ref() }) else { return Unheld::NoArgument.ask(call) };
    let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
    let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
    launched(call, f, Stream::given(config.hStream, per_thread), || Work::kernel(f as usize, grid, block))
}

/// `cuLaunch`, `cuLaunchGrid`, `cuLaunchGridAsync`, of CUDA 2
pub unsafe fn old(call: &mut Call<'_>, f: CUfunction, width: c_int, height: c_int, stream: CUstream) -> Outcome {
    let grid = [width.max(0) as c_uint, height.max(0) as c_uint, 1];
    launched(call, f, Stream::given(stream, false), || Work::kernel(f as usize, grid, [1; 3]))
}

/// `cuLaunchCooperativeKernelMultiDevice`: what it takes is learned afterwards.
pub unsafe fn several(call: &mut Call<'_>, _launches: *mut CUDA_LAUNCH_PARAMS, _count: c_uint, _: c_uint) -> Outcome {
    let _changing = ledger::changing();
    let result = call.driver();
    ledger::all().for_each(Slice::is_to_be_learned);
    Outcome::Done(result)
}

/// What the driver takes before kernels can run that have not run before.
pub struct Need {
    slice: &'static Slice,
    context: CUcontext,
    /// Of local memory, for every thread.
    local: u64,
    /// What the largest of them makes it grow by.
    growth: u64,
    /// Libraries that are not loaded yet, and all that they take.
    libraries: Vec<(CUlibrary, Foreseen)>,
}

impl Need {
    /// What these kernels need in a context.
    pub fn of(kernels: &[CUfunction], slice: &'static Slice, context: CUcontext) -> Need {
        let local = kernels.iter().map(|kernel| local_bytes(*kernel, slice.device)).max().unwrap_or(0);
        let mut libraries: Vec<(CUlibrary, Foreseen)> = Vec::new();
        for library in kernels.iter().filter_map(|kernel| code::library_of(*kernel)) {
            if libraries.iter().all(|(known, _)| *known != library)
                && let Some(foreseen) = code::first_use(library, slice, context)
            {
                libraries.push((library, foreseen));
            }
        }
        Need { slice, context, local, growth: slice.local_growth(context, local), libraries }
    }

    /// Whether there is anything to be done about it.
    pub fn is_nothing(&self) -> bool {
        self.growth == 0 && self.libraries.is_empty() && !self.slice.heaps.is_ahead()
    }

    /// Makes room for it, asks the driver, and learns what that took. `surely`: the call is one after which it is there.
    pub fn provide(self, call: &mut Call<'_>, surely: bool, changing: &Changing) -> Outcome {
        if self.is_nothing() {
            return Outcome::Done(call.driver());
        }
        let Need { slice, context, .. } = self;
        let libraries = self.libraries.iter().fold(Foreseen::default(), |sum, (_, foreseen)| sum.and(*foreseen));
        let all = libraries.and(Foreseen { own: self.growth, ..Foreseen::default() });
        let Some(room) = Room::take(slice, context, all, changing) else { return REFUSED };
        let before = slice.uncounted();
        let result = call.driver();
        let beside = room.settle(result == CUDA_SUCCESS, changing);
        if result == CUDA_SUCCESS {
            let took = slice.uncounted() - before;
            if self.growth > 0 && (surely || took >= (self.growth / 2) as i64) {
                slice.set_local(context, self.local);
            }
            let mut charged = beside;
            for (library, foreseen) in self.libraries {
                if code::used(library, slice, context, foreseen.beside) {
                    charged -= foreseen.beside;
                }
            }
            // Another thread was first to use them, and has it charged already.
            slice.refund_beside(charged);
        }
        Outcome::Done(result)
    }
}

/// Bytes of local memory that each thread of a kernel wants. What is launched may be a function of a module or a kernel of a
/// library; the driver tells them apart, and each of the two questions fails for the other. Neither loads anything.
fn local_bytes(function: CUfunction, device: CUdevice) -> u64 {
    let mut local: c_int = 0;
    // SAFETY: the caller's kernel, which it is about to launch, and a place to write to.
    let told = unsafe {
        calls::cuFuncGetAttribute(&raw mut local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) == CUDA_SUCCESS
            || calls::cuKernelGetAttribute(
                &raw mut local,
                CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                function.cast::<CUkern_st>(),
                device,
            ) == CUDA_SUCCESS
    };
    if told { local.max(0) as u64 } else { 0 }
}

/// Takes a kernel out again. The place stays taken by one that no program has, so that those behind it are still found.
fn forget(key: usize) {
    const NOBODY: usize = usize::MAX;
    for place in places(key) {
        let _ = place.compare_exchange(key, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Every kernel is new again: what the driver had made room for is gone.
pub fn forget_all() {
    SEEN.iter().for_each(|place| place.store(0, Ordering::Relaxed));
}
