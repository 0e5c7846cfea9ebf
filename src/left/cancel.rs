//! Threads that are cancelled in a call.
//!
//! For the length of an op nobody is cancelled: the C library would unwind our frames at any instruction of theirs. To tell it so
//! costs a call as much as all that is counted of it, and hardly any program cancels threads. So a library in front of libc's
//! `pthread_cancel` waits for the first who does. From then on, ops put cancellation off ([`Cancel::begins`]); a thread that is in
//! the middle of one which has not is left a note, and cancels itself when that op ends.
//!
//! It is two threads that write one word and look at the other's: `state` and `note`, or `state` and [`SOMEBODY_DOES`]. The one
//! that calls the driver does so with plain stores and loads; the fences between them are all in [`everybody_sees`], on the other side.

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use crate::resolve::elf;
use crate::thread::Thread;
use crate::{process, sys};

/// What comes behind our `pthread_cancel`.
static NEXT: AtomicPtr<()> = AtomicPtr::new(null_mut());
/// Somebody has cancelled a thread of this process, or is about to.
static SOMEBODY_DOES: AtomicBool = AtomicBool::new(false);

/// In no op.
const NONE: u32 = 0;
/// In an op, and may be cancelled in it.
const OPEN: u32 = 1;
/// In an op, and cannot be.
const PUT_OFF: u32 = 2;

const DISABLE: c_int = 1;
/// Cancelled where the program waits, and not anywhere.
const DEFERRED: c_int = 0;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

type Next = unsafe extern "C-unwind" fn(libc::pthread_t) -> c_int;

/// Of a thread: whether it can be cancelled. Written by that thread, but for the note.
pub struct Cancel {
    state: AtomicU32,
    /// It is to cancel itself when its op has ended.
    note: AtomicU32,
    /// As `pthread_self` has it. 0: nobody's.
    owner: AtomicU64,
    /// Whether it could be cancelled before it was put off, and where.
    before: Cell<c_int>,
    kind: Cell<c_int>,
}

impl Cancel {
    /// The calling thread's from now on.
    pub fn is_mine(&self) {
        self.is_nobodys();
        // SAFETY: takes nothing and always succeeds.
        self.owner.store(unsafe { libc::pthread_self() }, Ordering::Release);
    }

    /// Its thread has ended, or is not in this process.
    pub fn is_nobodys(&self) {
        self.owner.store(0, Ordering::Relaxed);
        self.state.store(NONE, Ordering::Relaxed);
        self.note.store(0, Ordering::Relaxed);
    }

    /// In a forked child, in a thread that may be in an op: who is to be cancelled is the parent's.
    pub fn forget_the_note(&self) {
        self.note.store(0, Ordering::Relaxed);
    }

    /// An op begins: from here on nobody is cancelled until [`Cancel::ends`], which is for who was told `true`. A handler of signals
    /// that comes in before it is known that an op runs is told that another will see to it.
    #[inline]
    pub fn begins(&self) -> bool {
        if self.state.load(Ordering::Relaxed) != NONE {
            return false;
        }
        self.state.store(OPEN, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if SOMEBODY_DOES.load(Ordering::Relaxed) {
            self.put_off();
        }
        true
    }

    /// It ends, or has been left. May end the thread, if that asked to be cancelled anywhere.
    #[inline]
    pub fn ends(&self) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(NONE, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        if state == PUT_OFF || self.note.load(Ordering::Relaxed) != 0 {
            self.lets(state);
        }
    }

    #[cold]
    fn put_off(&self) {
        // Where there are no threads, an old C library answers without writing.
        let (mut kind, mut before) = (DEFERRED, 0);
        // SAFETY: this thread's own, and places to write to. Makes no system call. The kind comes first: who was to be cancelled
        // anywhere may have been sent the signal for that, and some releases of glibc then look at the kind alone.
        unsafe {
            pthread_setcanceltype(DEFERRED, &raw mut kind);
            pthread_setcancelstate(DISABLE, &raw mut before);
        }
        self.kind.set(kind);
        self.before.set(before);
        self.state.store(PUT_OFF, Ordering::Release);
    }

    #[cold]
    fn lets(&self, state: u32) {
        if state != PUT_OFF {
            self.put_off();
            self.state.store(NONE, Ordering::Relaxed);
        }
        if self.note.swap(0, Ordering::AcqRel) != 0 {
            // SAFETY: takes nothing and always succeeds.
            let own = unsafe { libc::pthread_self() };
            // SAFETY: this very thread. It cannot be cancelled here, so that this returns.
            unsafe { next(own) };
        }
        let mut unused = 0;
        // SAFETY: this thread's own. What unwinds from here finds no frame of ours with anything to do.
        unsafe {
            pthread_setcancelstate(self.before.get(), &raw mut unused);
            if self.kind.get() != DEFERRED {
                // Not by setting the kind: some releases of glibc then tell whoever joins the thread that it returned.
                pthread_testcancel();
                pthread_setcanceltype(self.kind.get(), &raw mut unused);
            }
        }
    }
}

/// Stands in front of libc's.
///
/// # Safety
/// As of libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    // SAFETY: the caller's word.
    if will_itself(thread) { 0 } else { unsafe { next(thread) } }
}

/// Whether a thread has been told to cancel itself. If not, it is in no op that it could be cancelled in, and will be in none.
fn will_itself(thread: libc::pthread_t) -> bool {
    SOMEBODY_DOES.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    // A thread that is not among them yet will see the word.
    if Thread::all().next().is_none() {
        return false;
    }
    everybody_sees();
    let of = |it: &&Thread| it.under_way.cancel.owner.load(Ordering::Acquire) == thread;
    let Some(Thread { under_way, .. }) = Thread::all().find(of) else { return false };
    let Cancel { state, note, .. } = &under_way.cancel;
    if state.load(Ordering::Acquire) != OPEN {
        return false;
    }
    note.store(1, Ordering::SeqCst);
    everybody_sees();
    // If its op has ended meanwhile, it has seen the note or not.
    state.load(Ordering::Acquire) == OPEN || note.swap(0, Ordering::AcqRel) == 0
}

/// What this thread has written is seen by all others from here on, and what they had written is seen by this one.
fn everybody_sees() {
    const PRIVATE: c_long = 1 << 3;
    const REGISTER: c_long = 1 << 4;
    /// Far longer than a processor keeps to itself what was written.
    const LONG_ENOUGH: u64 = 2_000_000;
    let _errno = sys::Errno::kept();
    fence(Ordering::SeqCst);
    // SAFETY: takes numbers. Where the process is registered, to do it again is nothing.
    let is_done = unsafe {
        libc::syscall(libc::SYS_membarrier, REGISTER, 0, 0) == 0
            && libc::syscall(libc::SYS_membarrier, PRIVATE, 0, 0) == 0
    };
    if !is_done {
        let now = sys::nanoseconds();
        sys::nap(now + LONG_ENOUGH, now);
    }
    fence(Ordering::SeqCst);
}

/// # Safety
/// As of libc's.
unsafe fn next(thread: libc::pthread_t) -> c_int {
    let mut next = NEXT.load(Ordering::Acquire);
    if next.is_null() {
        let _walking = process::walking();
        let _errno = sys::Errno::kept();
        next = elf::function_behind_us(c"pthread_cancel").map_or(null_mut(), <*const ()>::cast_mut);
        NEXT.store(next, Ordering::Release);
    }
    if next.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: a function of this name has this type; the caller's word for the thread.
    unsafe { std::mem::transmute::<*mut (), Next>(next)(thread) }
}
