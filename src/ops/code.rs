//! Code, loaded and unloaded: what it takes is foreseen from its image, and learned once it is there.

use std::ffi::{CStr, c_char, c_uint, c_void};

use super::memory::{REFUSED, here};
use super::{Call, Outcome, launches};
use crate::abi::cuda::*;
use crate::driver::calls;
use crate::image::{self, Needs};
use crate::ledger::code::{self, Foreseen};
use crate::ledger::slice::Hold;
use crate::ledger::{self, Changing, Slice, Unheld};
use crate::sys;

/// As much of a file as is read in order to know what it takes.
const MOST: usize = 256 << 20;

/// Reservations for code that is about to be loaded.
pub struct Room {
    own: Hold,
    beside: Hold,
    foreseen: Foreseen,
    slice: &'static Slice,
    context: CUcontext,
}

impl Room {
    /// `None`: there is no room for it.
    pub fn take(slice: &'static Slice, context: CUcontext, foreseen: Foreseen, changing: &Changing) -> Option<Room> {
        let beside = slice.reserve_at_most(foreseen.beside, changing).ok()?;
        let own = slice.reserve_at_most(foreseen.own, changing).ok()?;
        if foreseen.heap && !slice.foresee_usual_heap(context, changing) {
            return None;
        }
        Some(Room { own, beside, foreseen, slice, context })
    }

    /// The driver has loaded it: what it took is counted, the rest goes back. Returns what is charged for managed variables.
    pub fn settle(self, loaded: bool, changing: &Changing) -> u64 {
        self.own.learn(changing);
        if !loaded {
            return 0;
        }
        if self.foreseen.heap {
            self.slice.set_heap_code(self.context);
        }
        self.beside.keep_beside(self.foreseen.beside);
        self.foreseen.beside
    }
}

/// A module is made of an image, and loaded into the current context at once.
fn module(call: &mut Call<'_>, module: *mut CUmodule, needs: impl FnOnce(u32) -> Option<Needs>) -> Outcome {
    let changing = ledger::changing();
    let (slice, context) = match here(&changing) {
        Ok(place) => place,
        Err(unheld) => return unheld.ask(call),
    };
    let foreseen = needs(slice.sm).map(|needs| Foreseen::of(&needs, slice, context, is_eager())).unwrap_or_default();
    let Some(room) = Room::take(slice, context, foreseen, &changing) else { return REFUSED };
    let result = call.driver();
    let beside = room.settle(result == CUDA_SUCCESS, &changing);
    if result != CUDA_SUCCESS {
        return Outcome::Done(result);
    }
    // SAFETY: the driver has just written the handle there.
    let made = unsafe { *module };
    if slice.used() > slice.cap() {
        // It took more than its image said.
        // SAFETY: the module that the driver has just made, which the program has not seen.
        unsafe { calls::cuModuleUnload(made) };
        slice.refund_beside(beside);
        slice.is_to_be_learned();
        slice.learn(&changing);
        return REFUSED;
    }
    code::keep_module(made, context, slice, beside);
    Outcome::Done(result)
}

/// `cuModuleLoadData` and its like
pub unsafe fn load_module(call: &mut Call<'_>, to: *mut CUmodule, image: *const c_void) -> Outcome {
    // SAFETY: the caller's image, which the driver reads too.
    module(call, to, |sm| unsafe { image::of_pointer(image, sm) })
}

/// `cuModuleLoad`
pub unsafe fn load_module_file(call: &mut Call<'_>, to: *mut CUmodule, name: *const c_char) -> Outcome {
    // SAFETY: the caller's text, which the driver reads too.
    module(call, to, |sm| unsafe { of_file(name, sm) })
}

/// # Safety
/// Null, or a text that ends in NUL.
unsafe fn of_file(name: *const c_char, sm: u32) -> Option<Needs> {
    // SAFETY: the caller's word.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    image::of_bytes(&sys::read_bytes(name, MOST).ok()?, sm)
}

/// `cuModuleUnload`
pub unsafe fn unload_module(call: &mut Call<'_>, module: CUmodule) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS {
        code::forget_module(module);
        gone(&changing);
    }
    Outcome::Done(result)
}

/// Code is gone: what it held is learned, and kernels that come to lie at the same addresses are others.
fn gone(changing: &Changing) {
    launches::forget_all();
    for slice in ledger::all() {
        slice.is_to_be_learned();
        slice.learn(changing);
    }
}

/// The SM version of the GPU of the current context, or of the first that has a limit.
fn sm(changing: &Changing) -> Option<u32> {
    here(changing).ok().map(|(slice, _)| slice).or_else(|| ledger::all().next()).map(|slice| slice.sm)
}

/// A library is made of an image; it is loaded into a context when it is first used there.
fn library(call: &mut Call<'_>, to: *mut CUlibrary, needs: impl FnOnce(u32) -> Option<Needs>) -> Outcome {
    let changing = ledger::changing();
    let place = here(&changing);
    // A library needs no context, so the GPU may not be known yet: the most that any code in the image takes is then the guess.
    let needs = needs(sm(&changing).unwrap_or(0));
    let room = match (place, needs) {
        (Ok((slice, context)), Some(needs)) if is_eager() => {
            let foreseen = Foreseen::of(&needs, slice, context, true);
            let Some(room) = Room::take(slice, context, foreseen, &changing) else { return REFUSED };
            Some(room)
        }
        _ => None,
    };
    // Where code is loaded when it is used, that is held.
    let unheld = place.err().filter(|why| *why == Unheld::Untold && is_eager()).unwrap_or(Unheld::NoLimit);
    let outcome = unheld.ask(call);
    let is_made = call.result() == Some(CUDA_SUCCESS);
    let eager = room.map(|room| room.settle(is_made, &changing));
    if is_made {
        // SAFETY: the driver has just written the handle there.
        let made = unsafe { *to };
        if let Some(needs) = needs {
            code::keep_library(made, needs);
        }
        if !needs.is_some_and(|needs| needs.complete) {
            ledger::all().for_each(Slice::is_to_be_learned);
        }
        if let (Some(beside), Ok((slice, context))) = (eager, place) {
            code::used(made, slice, context, beside);
        }
    }
    outcome
}

/// Whether the process loads all code at once (`CUDA_MODULE_LOADING=EAGER`, and drivers before 11.7).
pub fn is_eager() -> bool {
    let mut mode = 0;
    // SAFETY: a place to write to.
    let told = unsafe { calls::cuModuleGetLoadingMode(&raw mut mode) };
    told != CUDA_SUCCESS || mode == CU_MODULE_EAGER_LOADING
}

/// `cuLibraryLoadData`
pub unsafe fn load_library(call: &mut Call<'_>, to: *mut CUlibrary, image: *const c_void) -> Outcome {
    // SAFETY: the caller's image, which the driver reads too.
    library(call, to, |sm| unsafe { image::of_pointer(image, sm) })
}

/// `cuLibraryLoadFromFile`
pub unsafe fn load_library_file(call: &mut Call<'_>, to: *mut CUlibrary, name: *const c_char) -> Outcome {
    // SAFETY: the caller's text, which the driver reads too.
    library(call, to, |sm| unsafe { of_file(name, sm) })
}

/// `cuLibraryUnload`
pub unsafe fn unload_library(call: &mut Call<'_>, library: CUlibrary) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS {
        code::forget_library(library);
        gone(&changing);
    }
    Outcome::Done(result)
}

/// `cuLibraryGetKernel`: which library a kernel is of, for when it is launched.
pub unsafe fn get_kernel(call: &mut Call<'_>, to: *mut CUkernel, library: CUlibrary) -> Outcome {
    let result = call.driver();
    if result == CUDA_SUCCESS {
        // SAFETY: the driver has just written the handle there.
        code::keep_kernel(unsafe { *to }.cast(), library);
    }
    Outcome::Done(result)
}

/// `cuLibraryEnumerateKernels`
pub unsafe fn enumerate(call: &mut Call<'_>, to: *mut CUkernel, room: c_uint, library: CUlibrary) -> Outcome {
    let result = call.driver();
    let mut there = 0;
    // SAFETY: a place to write to.
    if result == CUDA_SUCCESS && unsafe { calls::cuLibraryGetKernelCount(&raw mut there, library) } == CUDA_SUCCESS {
        for index in 0..room.min(there) as usize {
            // SAFETY: the driver has just written as many handles there as there is room for.
            code::keep_kernel(unsafe { *to.add(index) }.cast(), library);
        }
    }
    Outcome::Done(result)
}

/// Something in a library is used: `cuLibraryGetModule`, `cuLibraryGetGlobal`, `cuLibraryGetManaged`.
pub unsafe fn use_library(call: &mut Call<'_>, library: CUlibrary) -> Outcome {
    let changing = ledger::changing();
    let (slice, context) = match here(&changing) {
        Ok(place) => place,
        Err(unheld) => return unheld.ask(call),
    };
    let foreseen = match code::first_use(library, slice, context) {
        Some(foreseen) => foreseen,
        // It lies there already; or its image could not be read, and what it takes is learned.
        None => return Outcome::Done(call.driver()),
    };
    let Some(room) = Room::take(slice, context, foreseen, &changing) else { return REFUSED };
    let result = call.driver();
    let beside = room.settle(result == CUDA_SUCCESS, &changing);
    if result == CUDA_SUCCESS && !code::used(library, slice, context, beside) {
        slice.refund_beside(beside);
    }
    Outcome::Done(result)
}

/// `cuKernelGetFunction`: the library of the kernel is used.
pub unsafe fn kernel_function(call: &mut Call<'_>, kernel: CUkernel) -> Outcome {
    use_kernel(call, kernel.cast())
}

/// A kernel is used, which may be one of a library.
pub fn use_kernel(call: &mut Call<'_>, kernel: CUfunction) -> Outcome {
    match code::library_of(kernel) {
        // SAFETY: a library that the program has made.
        Some(library) => unsafe { use_library(call, library) },
        None => Outcome::Done(call.driver()),
    }
}

/// `cuFuncLoad`: a function's instructions are loaded now rather than at its first launch.
pub unsafe fn load_function(call: &mut Call<'_>) -> Outcome {
    let _changing = ledger::changing();
    let result = call.driver();
    ledger::all().for_each(Slice::is_to_be_learned);
    Outcome::Done(result)
}
