//! The real driver: where its functions are, and the only place that calls them for the shim's own ends.
//!
//! Nothing here takes a lock. What is found is written into words that only ever change from unknown to known, and every
//! thread that looks finds the same, so a race costs a second look and a fork in the middle of one costs nothing.

pub mod calls;

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::abi::cuda::{self, CUcontext, CUdevice, CUstream};
use crate::abi::nvml;
use crate::entry;
use crate::resolve::{dl, elf};
use crate::table::{COUNT, Library, ROWS};

type Word = AtomicPtr<()>;

/// The libraries' own exports.
static ORIGINALS: [Word; COUNT] = [const { Word::new(null_mut()) }; COUNT];
/// What our exported functions hand on to: the original, or what another library has put in front of it.
static NEXT: [Word; COUNT] = [const { Word::new(null_mut()) }; COUNT];
/// What another library's `dlsym` answered in place of the original.
static ANSWERED: [Word; COUNT] = [const { Word::new(null_mut()) }; COUNT];

fn known(word: &Word) -> Option<*const ()> {
    let address = word.load(Ordering::Acquire);
    (!address.is_null()).then_some(address.cast_const())
}

/// A library that has originals.
struct Real {
    library: Library,
    soname: &'static CStr,
    found: AtomicBool,
}

static DRIVER: Real = Real { library: Library::Driver, soname: c"libcuda.so.1", found: AtomicBool::new(false) };
static NVML: Real = Real { library: Library::Nvml, soname: c"libnvidia-ml.so.1", found: AtomicBool::new(false) };

impl Real {
    fn of(id: usize) -> &'static Real {
        match ROWS[id].library {
            Library::Driver => &DRIVER,
            Library::Nvml => &NVML,
        }
    }

    /// Whether the library is in the process; then its exports are known.
    fn look(&self) -> bool {
        if self.found.load(Ordering::Acquire) {
            return true;
        }
        let Some(object) = elf::loaded_as(self.soname) else { return false };
        // The program may close the library, but the addresses that we and others hold must stay good: one reference is
        // ours. It is loaded already, so this runs no code of it.
        // SAFETY: a name that ends in NUL, and flags that load nothing.
        unsafe { libc::dlopen(self.soname.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        for (row, word) in ROWS.iter().zip(&ORIGINALS) {
            if row.library == self.library {
                store(word, object.function(row.symbol));
            }
        }
        self.found.store(true, Ordering::Release);
        true
    }

    /// The same, and a library that is not there is loaded: the program calls into it, so it must have meant to.
    fn load(&self) -> bool {
        // SAFETY: as in `look`. Runs the library's constructors, as the program's own loading would have.
        self.look() || (!unsafe { libc::dlopen(self.soname.as_ptr(), libc::RTLD_LAZY) }.is_null() && self.look())
    }
}

fn store(word: &Word, found: Option<*const ()>) {
    if let Some(address) = found {
        word.store(address.cast_mut(), Ordering::Release);
    }
}

/// The library's own export for a row, if the library is in the process and has it. Loads nothing.
pub fn original_if_loaded(id: usize) -> Option<*const ()> {
    if Real::of(id).look() { known(&ORIGINALS[id]) } else { None }
}

/// The library's own export for a row that the program calls.
pub fn original(id: usize) -> Option<*const ()> {
    if Real::of(id).load() { known(&ORIGINALS[id]) } else { None }
}

/// What the exported function hands on to, if that has been found out.
#[inline(always)]
pub fn next_if_known(id: usize) -> Option<*const ()> {
    let address = NEXT[id].load(Ordering::Relaxed);
    (!address.is_null()).then_some(address.cast_const())
}

/// What the exported function hands on to.
pub fn next(id: usize) -> Option<*const ()> {
    if let Some(next) = known(&NEXT[id]) {
        return Some(next);
    }
    let original = original(id);
    let next = behind_us(id).or(original)?;
    if Some(next) != original {
        entry::watch_for(entry::CHAINED);
    }
    store(&NEXT[id], Some(next));
    Some(next)
}

/// Another library's definition of a row's symbol, behind us in the order in which symbols are looked for.
///
/// Mostly there is none, and then the loader is not asked: a look-up that finds nothing leaves an error for `dlerror`, which
/// a program that looked up something else would find.
fn behind_us(id: usize) -> Option<*const ()> {
    let symbol = ROWS[id].symbol;
    if !elf::others_behind_us(symbol, known(&ORIGINALS[id]).unwrap_or(std::ptr::null())) {
        return None;
    }
    let found = dl::next_behind_us(symbol);
    if found.is_none() {
        // SAFETY: takes this thread's error, the one that the line above has made.
        unsafe { libc::dlerror() };
    }
    found
}

/// Whether a look-up of the symbol through the whole program, made by the code at `caller`, would find anything if we were
/// not here. Loads nothing; may leave an error for `dlerror`.
pub fn is_there(id: usize, caller: Option<usize>) -> bool {
    let loaded = original_if_loaded(id).is_some();
    let behind = dl::next_behind_us(ROWS[id].symbol).is_some();
    behind || loaded && caller.is_some_and(|caller| elf::loaded_together(caller, Real::of(id).soname))
}

/// What the function that the resolver gave out hands on to.
pub fn handed(id: usize) -> Option<*const ()> {
    known(&ANSWERED[id]).or_else(|| original(id))
}

/// Another library answered a look-up for a row with a function of its own; from now on ours hands on to that.
pub fn set_answered(id: usize, function: *const ()) {
    entry::watch_for(entry::CHAINED);
    store(&ANSWERED[id], Some(function));
}

/// The function to give out for a row whose original was found.
pub fn door(id: usize) -> *const () {
    let alone = known(&ANSWERED[id]).is_none() && next(id) == original(id);
    if alone { ROWS[id].export.0 } else { ROWS[id].handed.0 }
}

/// The row whose original this is.
pub fn row_of(address: *const ()) -> Option<usize> {
    if address.is_null() || !DRIVER.look() {
        return None;
    }
    ORIGINALS.iter().position(|word| word.load(Ordering::Relaxed).cast_const() == address)
}

/// What a program is told that calls a function which the library, or the machine, does not have.
pub fn code_for_missing(id: usize) -> u32 {
    match (ROWS[id].library, Real::of(id).look()) {
        (Library::Driver, true) => cuda::CUDA_ERROR_NOT_SUPPORTED,
        (Library::Driver, false) => cuda::CUDA_ERROR_NO_DEVICE,
        (Library::Nvml, true) => nvml::NVML_ERROR_FUNCTION_NOT_FOUND,
        (Library::Nvml, false) => nvml::NVML_ERROR_LIBRARY_NOT_FOUND,
    }
}

/// The context that is current in this thread, and its device: 20 ns, so it is asked for and not remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Never null.
    pub context: CUcontext,
    /// Its number among the devices that the process sees.
    pub device: CUdevice,
}

impl Place {
    /// `None`: no context is current, or the driver is not started.
    pub fn current() -> Option<Place> {
        let mut context: CUcontext = null_mut();
        let mut device: CUdevice = 0;
        // SAFETY: places to write to.
        let answers = unsafe { [calls::cuCtxGetCurrent(&raw mut context), calls::cuCtxGetDevice(&raw mut device)] };
        (answers == [cuda::CUDA_SUCCESS; 2] && !context.is_null()).then_some(Place { context, device })
    }
}

/// The context that is current in this thread.
pub fn current_context() -> Option<CUcontext> {
    let mut context: CUcontext = null_mut();
    // SAFETY: a place to write to.
    let told = unsafe { calls::cuCtxGetCurrent(&raw mut context) };
    (told == cuda::CUDA_SUCCESS && !context.is_null()).then_some(context)
}

/// A stream as the driver will take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(CUstream);

// SAFETY: a handle, which the driver takes from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// As a caller gave it. Handle 0 means one thing in the plain functions and another in those for per-thread streams.
    pub fn given(stream: CUstream, per_thread: bool) -> Stream {
        const PER_THREAD: usize = 2;
        Stream(if stream.is_null() && per_thread { PER_THREAD as CUstream } else { stream })
    }

    /// Its handle, as functions that are not for per-thread streams take it.
    pub fn handle(self) -> CUstream {
        self.0
    }

    /// The context that it belongs to: of one of the driver's own, the current one.
    pub fn context(self) -> Option<CUcontext> {
        const OWN: usize = 2;
        if self.0 as usize <= OWN {
            return current_context();
        }
        let mut context: CUcontext = null_mut();
        // SAFETY: the stream is the caller's, who is using it, and a place to write to.
        let told = unsafe { calls::cuStreamGetCtx(self.0, &raw mut context) };
        if told == cuda::CUDA_SUCCESS && !context.is_null() { Some(context) } else { current_context() }
    }

    /// Whether an event of ours can be recorded in it: it is a stream of the current context, and neither it nor one that it
    /// waits for records a graph.
    pub fn can_be_marked(self) -> bool {
        let mut status = 0;
        // SAFETY: the stream is the caller's, who is using it.
        let result = unsafe { calls::cuStreamIsCapturing(self.0, &raw mut status) };
        result == cuda::CUDA_SUCCESS && status == cuda::CU_STREAM_CAPTURE_STATUS_NONE
    }

    /// Whether it records a graph instead of working. The one question about a stream that never disturbs a capture.
    pub fn is_capturing(self) -> bool {
        let mut status = 0;
        // SAFETY: the stream is the caller's, who is using it.
        let result = unsafe { calls::cuStreamIsCapturing(self.0, &raw mut status) };
        result == cuda::CUDA_SUCCESS && status != cuda::CU_STREAM_CAPTURE_STATUS_NONE
    }
}
