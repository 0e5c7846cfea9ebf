//! Holds a stream until a launch that is measured is queued between its two events, so that the GPU does not wait for the host,
//! nor leave for others, between them.
//!
//! The stream waits for a word of ours, and goes on when the thread has written it, some microseconds later. Then the GPU writes
//! another word, which is the compute engine's work: after a copy, a stream's event is the copy engine's, and passes while others
//! compute.
//!
//! A thread that never gets there (it was cancelled in the launch, or the launch waits for the stream: a debugger's doing,
//! `CUDA_LAUNCH_BLOCKING`) is found by the controller, which writes the word for it.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::abi::cuda::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_STREAM_WAIT_VALUE_GEQ, CUDA_SUCCESS, CUcontext, CUdeviceptr,
};
use crate::driver::{Stream, calls};

/// Latches that the controller had to open, or that the driver refused. After some of them there are no more.
static TROUBLE: AtomicU32 = AtomicU32::new(0);
const TOO_MUCH: u32 = 8;

/// A thread's.
pub struct Latch {
    /// The word, in memory that the GPU can read, and the context that it belongs to.
    word: AtomicPtr<AtomicU32>,
    address: Cell<CUdeviceptr>,
    context: AtomicUsize,
    /// How often it was closed: it is open when the word says so.
    closed: AtomicU32,
    /// The word that opens it, while it is closed.
    opens: Cell<Option<&'static AtomicU32>>,
    /// What the controller last saw of that.
    seen: AtomicU32,
}

// SAFETY: its cells are touched by its own thread alone.
unsafe impl Sync for Latch {}

impl Latch {
    pub const fn new() -> Latch {
        Latch {
            word: AtomicPtr::new(null_mut()),
            address: Cell::new(0),
            context: AtomicUsize::new(0),
            closed: AtomicU32::new(0),
            opens: Cell::new(None),
            seen: AtomicU32::new(0),
        }
    }

    /// Before the first event of a measurement. `closes`: and the stream goes no further. Without a word, or where the driver would
    /// not, nothing happens.
    pub fn begin(&self, closes: bool, stream: Stream, context: CUcontext) {
        if TROUBLE.load(Ordering::Relaxed) >= TOO_MUCH || !self.is_made(context) {
            return;
        }
        let (stream, address) = (stream.handle(), self.address.get());
        let mut told = CUDA_SUCCESS;
        if closes {
            let next = self.closed.load(Ordering::Relaxed).wrapping_add(1);
            // SAFETY: made above; it lives as long as the context that the thread launches in.
            self.opens.set(unsafe { self.word.load(Ordering::Relaxed).as_ref() });
            // Whoever opens it from now on opens this one.
            self.closed.store(next, Ordering::Release);
            // SAFETY: a stream that the caller uses, and a word that lives as long as the context.
            told = unsafe { calls::cuStreamWaitValue32_v2(stream, address, next, CU_STREAM_WAIT_VALUE_GEQ) };
        }
        if told == CUDA_SUCCESS {
            // SAFETY: as above: the word behind it.
            told = unsafe { calls::cuMemsetD32Async(address + size_of::<AtomicU32>() as u64, 0, 1, stream) };
        }
        if told != CUDA_SUCCESS {
            TROUBLE.store(TOO_MUCH, Ordering::Relaxed);
            self.open();
        }
    }

    /// Opens it, if it is closed.
    #[inline]
    pub fn open(&self) {
        if let Some(word) = self.opens.take() {
            word.store(self.closed.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    /// By the controller: opens it where it was closed at the last look, too.
    pub fn look(&self) {
        let closed = self.closed.load(Ordering::Acquire);
        // SAFETY: null, or a word in a context: the controller does not look while one goes.
        let Some(word) = (unsafe { self.word.load(Ordering::Acquire).as_ref() }) else { return };
        if word.load(Ordering::Acquire) != closed && self.seen.swap(closed, Ordering::Relaxed) == closed {
            word.store(closed, Ordering::Release);
            TROUBLE.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_made(&self, context: CUcontext) -> bool {
        let there = self.context.load(Ordering::Relaxed);
        if there != 0 {
            return there == context as usize;
        }
        let mut memory: *mut c_void = null_mut();
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: places to write to, in the context that the caller launches in.
        let told = calls::without_breaking_captures(|| unsafe {
            match calls::cuMemHostAlloc(&raw mut memory, 2 * size_of::<AtomicU32>(), flags) {
                CUDA_SUCCESS => calls::cuMemHostGetDevicePointer_v2(self.address.as_ptr(), memory, 0),
                error => error,
            }
        });
        if told != CUDA_SUCCESS {
            TROUBLE.store(TOO_MUCH, Ordering::Relaxed);
            return false;
        }
        let word = memory.cast::<AtomicU32>();
        // SAFETY: memory of ours, large enough, that nobody else knows.
        unsafe { word.write(AtomicU32::new(self.closed.load(Ordering::Relaxed))) };
        self.context.store(context as usize, Ordering::Relaxed);
        self.word.store(word, Ordering::Release);
        true
    }

    /// Its context goes away, and the word with it.
    pub fn forget_context(&self, context: CUcontext) {
        if self.context.load(Ordering::Relaxed) == context as usize {
            // SAFETY: null, or a word in the context that is still there.
            if let Some(word) = unsafe { self.word.load(Ordering::Acquire).as_ref() } {
                word.store(self.closed.load(Ordering::Acquire), Ordering::Release);
            }
            self.forget();
        }
    }

    /// In a forked child: the word is its parent's.
    pub fn forget(&self) {
        self.word.store(null_mut(), Ordering::Relaxed);
        self.context.store(0, Ordering::Relaxed);
    }
}
