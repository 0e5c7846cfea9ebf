//! Holds a stream: until a launch that is measured is queued between its two events, so that the GPU does not wait for the host,
//! nor leave for others, between them; or until what is kept back is to go ([`batch`]).
//!
//! The stream waits for a word of ours, and goes on when somebody has written it. Before a measurement the GPU writes another word
//! then, which is the compute engine's work: after a copy, a stream's event is the copy engine's, and passes while others compute.
//!
//! A thread may never get there, or late: it was cancelled in the launch; the launch waits for the stream (`CUDA_LAUNCH_BLOCKING`,
//! a debugger's doing); or for another thread that waits for the GPU with a lock of the driver's. A thread of ours that never calls
//! the driver, the *watcher*, opens what was closed at its last look, too.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use ration_policy::tuning::{CALM, LATCHED, STUCK};

use super::{batch, lane};
use crate::abi::cuda::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CU_STREAM_WAIT_VALUE_GEQ,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_SUCCESS, CUcontext, CUdeviceptr,
};
use crate::driver::{Stream, calls};
use crate::sys;

/// Latches that the watcher had to open, or that the driver refused. After some of them there are no more.
static TROUBLE: AtomicU32 = AtomicU32::new(0);
/// There is a watcher.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// What the GPU reads and writes, in a page of its own.
struct Words {
    opened: AtomicU32,
    /// Written by the GPU, and read by nobody.
    _other: AtomicU32,
}

/// A thread's.
pub struct Latch {
    /// Ours for as long as the process lives; shared memory, so that a fork does not part us from the GPU.
    words: AtomicPtr<Words>,
    /// Where the GPU finds it, in this context; 0: in none.
    address: Cell<CUdeviceptr>,
    context: AtomicUsize,
    /// How often it was closed: it is open when the word says so.
    closed: AtomicU32,
    /// What the watcher last saw of that.
    seen: AtomicU32,
    /// It is closed for what is kept back.
    keeps: AtomicBool,
}

// SAFETY: its cell is touched by its own thread alone.
unsafe impl Sync for Latch {}

impl Latch {
    pub const fn new() -> Latch {
        Latch {
            words: AtomicPtr::new(null_mut()),
            address: Cell::new(0),
            context: AtomicUsize::new(0),
            closed: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            keeps: AtomicBool::new(false),
        }
    }

    fn words(&self) -> Option<&'static Words> {
        // SAFETY: null, or a page that is never unmapped; in a forked child, before it is used, null.
        unsafe { self.words.load(Ordering::Acquire).as_ref() }
    }

    /// Before the first event of a measurement. `closes`: and the stream goes no further. Without a word, or where the driver would
    /// not, nothing happens.
    pub fn begin(&self, closes: bool, stream: Stream, context: CUcontext) {
        if !is_usable() || !self.is_made(context) || closes && !self.keeps() && !self.close(stream) {
            return;
        }
        let address = self.address.get() + size_of::<AtomicU32>() as u64;
        // SAFETY: a stream that the caller uses, and a word that is registered in its context.
        if unsafe { calls::cuMemsetD32Async(address, 0, 1, stream.handle()) } != CUDA_SUCCESS {
            self.is_refused();
        }
    }

    /// The stream goes no further, until what is kept back is to go. Whether that is so.
    pub fn keep(&self, stream: Stream, context: CUcontext) -> bool {
        let is_kept = is_usable() && self.is_made(context) && self.close(stream);
        self.keeps.store(is_kept, Ordering::Release);
        is_kept
    }

    /// Whether something is kept back.
    #[inline]
    pub fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    /// What is kept back goes.
    pub fn release(&self) {
        if self.keeps.swap(false, Ordering::AcqRel) {
            self.open_it();
        }
    }

    fn close(&self, stream: Stream) -> bool {
        let next = self.closed.load(Ordering::Relaxed).wrapping_add(1);
        // Whoever opens it from now on opens this one.
        self.closed.store(next, Ordering::Release);
        let (stream, address) = (stream.handle(), self.address.get());
        // SAFETY: a stream that the caller uses, and a word that is registered in its context.
        let told = unsafe { calls::cuStreamWaitValue32_v2(stream, address, next, CU_STREAM_WAIT_VALUE_GEQ) };
        if told != CUDA_SUCCESS {
            self.is_refused();
        }
        told == CUDA_SUCCESS
    }

    #[cold]
    fn is_refused(&self) {
        TROUBLE.store(STUCK, Ordering::Relaxed);
        self.open_it();
    }

    /// A measurement is over: opens it, if it is closed, and keeps nothing back.
    #[inline]
    pub fn open(&self) {
        if !self.keeps() {
            self.open_it();
        }
    }

    #[inline]
    fn open_it(&self) {
        let closed = self.closed.load(Ordering::Acquire);
        if let Some(words) = self.words()
            && words.opened.load(Ordering::Relaxed) != closed
        {
            words.opened.store(closed, Ordering::Release);
        }
    }

    /// By the watcher: whether it was closed since the last look. Opens it where it was then, too.
    fn look(&self) -> bool {
        let closed = self.closed.load(Ordering::Acquire);
        let is_new = self.seen.swap(closed, Ordering::Relaxed) != closed;
        if let Some(words) = self.words()
            && !is_new
            && !self.keeps()
            && words.opened.load(Ordering::Acquire) != closed
        {
            words.opened.store(closed, Ordering::Release);
            TROUBLE.fetch_add(1, Ordering::Relaxed);
        }
        is_new
    }

    fn is_made(&self, context: CUcontext) -> bool {
        let there = self.context.load(Ordering::Relaxed);
        if there != 0 {
            return there == context as usize;
        }
        let is_made = self.make().is_some_and(|words| self.register(words));
        if is_made && is_watched() {
            self.context.store(context as usize, Ordering::Relaxed);
            return true;
        }
        TROUBLE.store(STUCK, Ordering::Relaxed);
        false
    }

    #[cold]
    fn make(&self) -> Option<&'static Words> {
        const PAGE: usize = 4096;
        if self.words().is_none() {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping, wherever there is room.
            let page = unsafe { libc::mmap(null_mut(), PAGE, access, kind, -1, 0) };
            if page != libc::MAP_FAILED {
                let words = page.cast::<Words>();
                // SAFETY: a page of zeroes is what they are made of, and nobody else knows it.
                unsafe { &*words }.opened.store(self.closed.load(Ordering::Relaxed), Ordering::Relaxed);
                self.words.store(words, Ordering::Release);
            }
        }
        self.words()
    }

    /// Tells the driver of it, in the context that the caller launches in.
    fn register(&self, words: &'static Words) -> bool {
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        let memory = std::ptr::from_ref(words).cast_mut().cast::<c_void>();
        // SAFETY: memory that stays, and a place to write to. A context that was to go, and stayed, knows it already.
        calls::without_breaking_captures(|| unsafe {
            match calls::cuMemHostRegister_v2(memory, size_of::<Words>(), flags) {
                CUDA_SUCCESS | CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => {
                    calls::cuMemHostGetDevicePointer_v2(self.address.as_ptr(), memory, 0)
                }
                error => error,
            }
        }) == CUDA_SUCCESS
    }

    /// Its context goes away, and the GPU's way to the word with it.
    pub fn forget_context(&self, context: CUcontext) {
        if self.context.compare_exchange(context as usize, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.keeps.store(false, Ordering::Relaxed);
            self.open_it();
        }
    }

    /// In a forked child: the word is its parent's, and so is the watcher.
    pub fn forget_the_parent(&self) {
        self.words.store(null_mut(), Ordering::Relaxed);
        self.context.store(0, Ordering::Relaxed);
        self.keeps.store(false, Ordering::Relaxed);
        WATCHED.store(false, Ordering::Relaxed);
    }
}

/// Whether there may be latches.
pub fn is_usable() -> bool {
    TROUBLE.load(Ordering::Relaxed) < STUCK
}

/// Somebody was kept waiting by one.
pub fn was_stuck() {
    TROUBLE.fetch_add(1, Ordering::Relaxed);
}

/// Whether there is a watcher; starts it.
fn is_watched() -> bool {
    if WATCHED.swap(true, Ordering::AcqRel) {
        return true;
    }
    let _errno = sys::Errno::kept();
    // SAFETY: it needs nothing.
    let is_there = unsafe { ration_region::start_thread(watch, null_mut()) } == 0;
    WATCHED.store(is_there, Ordering::Release);
    is_there
}

extern "C" fn watch(_: *mut c_void) -> *mut c_void {
    // SAFETY: the name ends in NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"ration-latch".as_ptr()) };
    let mut rest = LATCHED;
    loop {
        let is_used = lane::all().fold(false, |any, lane| lane.latch().look() | any);
        rest = if is_used { LATCHED } else { (2 * rest).min(5 * CALM) };
        let now = sys::nanoseconds();
        sys::nap(batch::look(now).unwrap_or(now + rest), now);
    }
}
