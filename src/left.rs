//! Calls that a program leaves without returning from them.
//!
//! A signal handler may jump out of a driver's call (`siglongjmp`, `setcontext`) or end its thread (`pthread_exit`), and a thread
//! may be cancelled in one. The driver's frames are gone then, and so are those of the op that has called it. Nothing of ours may
//! stay half done for it, nor may it end the process, which would have gone on without us:
//!
//! - **Cancellation** is put off for the length of an op: a thread that is to be cancelled is so at the next point of the program's
//!   own at which that can happen. See [`cancel`].
//! - **Unwinding** for `pthread_exit` goes past our frames. Those between the op's beginning ([`within`]) and the driver's
//!   function ([`away`]) have destructors and a firewall for panics, neither of which is made for it. So the frame of [`away`] tells
//!   whoever unwinds that it was called by whoever called [`within`]. What runs between the two is never seen.
//! - **What others can see** of a thread's doings is kept in its block, as [`UnderWay`], and not in frames. Whoever leaves an
//!   op has it put right with the thread's next op, or its end.
//! - **Locks** are held with signals blocked ([`ration_region::with_no_handler`]), and never while the driver answers a call of the program's.
//!
//! An op that was left is told from one that still runs, below a handler of signals or in code that the driver called, by
//! looking at the stack, frame by frame. Who cannot be found there is gone. If that is wrong, because some frame cannot be
//! read, the call is answered like any other; the op that was taken for gone finds that out, and takes nothing back twice.
//!
//! What remains: a handler that ends its thread at an instruction of ours, not of the driver's. It does so in the middle of
//! something that nobody may leave by POSIX's rules; the driver's own code is no better.

mod cancel;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::driver::calls;
use crate::ledger::{self, Slice};
use crate::steer::Gate;
use crate::sys;
use crate::thread::Thread;

use cancel::Cancel;

/// What a thread has under way. Written by that thread alone; others read what is atomic in it.
pub struct UnderWay {
    /// Where the frame of its op is. 0: it is in none.
    frame: Cell<usize>,
    /// How many it has left.
    times: Cell<u32>,
    /// Whether it may be cancelled.
    pub cancel: Cancel,
    /// It waits for the GPU, so many times over.
    pub waits: AtomicU32,
    /// The gate that it waits at.
    pub gate: AtomicPtr<Gate>,
    /// A context of the process's is about to go.
    pub leaving: AtomicBool,
    /// It holds the books against what the driver says.
    pub looks: Cell<bool>,
    /// Which word says that something is this thread's turn, until it has returned from the driver: see [`Turn`].
    turn: Cell<*const Turn>,
    /// What its captures were protected from, plus one, while it asks what would break them.
    pub capture_mode: Cell<u32>,
    /// What it has reserved and the driver has not answered for.
    reserved: Cell<(*const Slice, u64)>,
}

impl UnderWay {
    /// How many ops it has left. What was begun before it left one ends with that.
    #[inline]
    pub fn times(&self) -> u32 {
        self.times.get()
    }

    /// Bytes of a slice are reserved until [`UnderWay::has_answer`].
    pub fn reserves(&self, slice: &'static Slice, bytes: u64) {
        let (of, so_far) = self.reserved.get();
        // Of two slices at a time only one is remembered. What is reserved of the other stays so if the op is left: too much is
        // counted then, and never too little.
        if so_far == 0 || std::ptr::eq(of, slice) {
            self.reserved.set((slice, so_far + bytes));
        }
    }

    /// The driver has answered for so many.
    pub fn has_answer(&self, slice: &'static Slice, bytes: u64) {
        let (of, so_far) = self.reserved.get();
        if std::ptr::eq(of, slice) {
            self.reserved.set((of, so_far.saturating_sub(bytes)));
        }
    }
}

/// Something that one thread at a time may ask the driver for. No lock: it takes long, and who is left waiting too long goes on without;
/// a thread that leaves its op loses its turn.
pub struct Turn(AtomicPtr<Thread>);

impl Turn {
    /// Nobody's.
    pub const fn new() -> Turn {
        Turn(AtomicPtr::new(null_mut()))
    }

    /// Waits until it is this thread's, which it is until the guard is dropped.
    pub fn take(&'static self) -> impl Drop {
        struct Taken(Option<(&'static Thread, &'static Turn, u32)>);
        impl Drop for Taken {
            fn drop(&mut self) {
                if let Some((thread, turn, times)) = self.0
                    && thread.under_way.times() == times
                {
                    turn.ends(thread);
                    thread.under_way.turn.set(std::ptr::null());
                }
            }
        }
        const PATIENCE: u64 = 10_000_000_000;
        const NAP: u64 = 50_000;
        let Some(thread) = Thread::attached() else { return Taken(None) };
        let own = std::ptr::from_ref(thread).cast_mut();
        let end = sys::nanoseconds() + PATIENCE;
        while self.0.compare_exchange(null_mut(), own, Ordering::Acquire, Ordering::Relaxed).is_err() {
            let now = sys::nanoseconds();
            if now > end {
                return Taken(None);
            }
            away(|| sys::nap(now + NAP, now));
        }
        thread.under_way.turn.set(self);
        Taken(Some((thread, self, thread.under_way.times())))
    }

    fn ends(&self, thread: &Thread) {
        let own = std::ptr::from_ref(thread).cast_mut();
        let _ = self.0.compare_exchange(own, null_mut(), Ordering::Release, Ordering::Relaxed);
    }

    /// In a forked child, where nobody is left to end it.
    pub fn forget_the_parent(&self) {
        self.0.store(null_mut(), Ordering::Relaxed);
    }
}

/// Threads that wait for the GPU.
pub fn any_waits() -> bool {
    Thread::all().any(|thread| thread.under_way.waits.load(Ordering::Relaxed) > 0)
}

std::arch::global_asm!(
    // ration_within(work, data, frame): calls work(data), after writing to `frame` where this frame is.
    ".pushsection .text.ration_within, \"ax\", @progbits",
    ".globl ration_within",
    ".hidden ration_within",
    ".type ration_within, @function",
    ".p2align 4",
    "ration_within:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    ".cfi_offset rbx, -24",
    ".cfi_offset r12, -32",
    ".cfi_offset r13, -40",
    ".cfi_offset r14, -48",
    ".cfi_offset r15, -56",
    "sub rsp, 8",
    "mov qword ptr [rdx], rbp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    ".globl ration_within_call",
    ".hidden ration_within_call",
    "ration_within_call:",
    "mov rax, rbp",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size ration_within, . - ration_within",
    // ration_away(work, data, frame): calls work(data). Unwound, it looks as if the frame of ration_within had made the call.
    ".globl ration_away",
    ".hidden ration_away",
    ".type ration_away, @function",
    ".p2align 4",
    "ration_away:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbx, -16",
    "mov rbx, rdx",
    "mov rax, rdi",
    "mov rdi, rsi",
    ".cfi_remember_state",
    ".cfi_def_cfa rbx, 16",
    ".cfi_offset rbp, -16",
    ".cfi_offset rbx, -24",
    ".cfi_offset r12, -32",
    ".cfi_offset r13, -40",
    ".cfi_offset r14, -48",
    ".cfi_offset r15, -56",
    "call rax",
    ".globl ration_away_call",
    ".hidden ration_away_call",
    "ration_away_call:",
    ".cfi_restore_state",
    "pop rbx",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size ration_away, . - ration_away",
    ".popsection",
);

type Work = unsafe extern "C-unwind" fn(*mut c_void);

unsafe extern "C-unwind" {
    fn ration_within(work: Work, data: *mut c_void, frame: *mut usize) -> usize;
    fn ration_away(work: Work, data: *mut c_void, frame: usize);
}

unsafe extern "C" {
    /// Where the two return to from what they call.
    static ration_within_call: u8;
    static ration_away_call: u8;
    fn _Unwind_Backtrace(step: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_GetGR(context: *mut c_void, register: c_int) -> usize;
}

/// Something to do, and what came of it. Neither is to have a destructor: unwinding goes past.
struct Job<F, T>(Option<F>, Option<T>);

/// # Safety
/// A job of these types, that nobody else looks at.
unsafe extern "C-unwind" fn does<F: FnOnce() -> T, T>(job: *mut c_void) {
    // SAFETY: the caller's word.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    if let Some(work) = job.0.take() {
        job.1 = Some(work());
    }
}

/// Runs an op: no other runs in this thread until it has ended or was left. `None`: one does already.
#[inline]
pub fn within<T: Copy>(thread: &'static Thread, work: impl FnOnce() -> T) -> Option<T> {
    let own = &thread.under_way;
    if own.frame.get() != 0 {
        if is_running(own.frame.get()) {
            return None;
        }
        put_right(thread);
        own.cancel.ends();
    }
    let ends = own.cancel.begins();
    let mut job = Job(Some(work), None);
    // SAFETY: a job of the types that it is taken for, which lives as long as the call; the frame's address goes to this thread's
    // own word.
    let frame = unsafe { run(&raw mut job, own) };
    // It may have been taken for gone.
    if own.frame.get() == frame {
        own.frame.set(0);
    }
    if ends {
        own.cancel.ends();
    }
    job.1
}

/// # Safety
/// A job that lives as long as the call.
#[inline]
unsafe fn run<F: FnOnce() -> T, T>(job: *mut Job<F, T>, own: &UnderWay) -> usize {
    // SAFETY: the caller's word for the job; the word is the thread's own.
    unsafe { ration_within(does::<F, T>, job.cast(), own.frame.as_ptr()) }
}

/// Does something that a program may leave without returning: asks the driver, or sleeps. No panic may come out of it.
#[inline]
pub fn away<T: Copy>(work: impl FnOnce() -> T) -> T {
    match Thread::attached().map(|thread| thread.under_way.frame.get()) {
        None | Some(0) => work(),
        Some(frame) => {
            let mut job = Job(Some(work), None);
            // SAFETY: the frame of this thread's op, which is below this one on the stack, or it would not be there.
            unsafe { go(&raw mut job, frame) };
            // SAFETY: `does` has written it, or has not returned.
            unsafe { job.1.unwrap_unchecked() }
        }
    }
}

/// # Safety
/// A job that lives as long as the call, and the frame of this thread's op.
#[inline]
unsafe fn go<F: FnOnce() -> T, T>(job: *mut Job<F, T>, frame: usize) {
    // SAFETY: the caller's word.
    unsafe { ration_away(does::<F, T>, job.cast(), frame) };
}

/// Whether the op whose frame that is still runs.
#[cold]
fn is_running(frame: usize) -> bool {
    struct Search {
        frame: usize,
        is_found: bool,
    }
    extern "C" fn look(context: *mut c_void, search: *mut c_void) -> c_int {
        /// The numbers by which unwinders know the registers in which the two frames have the address.
        const RBX: c_int = 3;
        const RBP: c_int = 6;
        // SAFETY: the search below, which lives as long as the walk.
        let search = unsafe { &mut *search.cast::<Search>() };
        // SAFETY: the unwinder's own word for the frame at which it stands.
        let (at, rbp, rbx) =
            unsafe { (_Unwind_GetIP(context), _Unwind_GetGR(context, RBP), _Unwind_GetGR(context, RBX)) };
        search.is_found = at == (&raw const ration_within_call) as usize && rbp == search.frame
            || at == (&raw const ration_away_call) as usize && rbx == search.frame;
        // Anything but zero ends the walk.
        c_int::from(search.is_found)
    }
    let mut search = Search { frame, is_found: false };
    // SAFETY: calls `look` for each frame of this thread, with that.
    unsafe { _Unwind_Backtrace(look, (&raw mut search).cast()) };
    search.is_found
}

/// The thread has left an op without returning from it: nothing of it is under way any more.
#[cold]
fn put_right(thread: &'static Thread) {
    let own = &thread.under_way;
    own.frame.set(0);
    own.times.set(own.times.get().wrapping_add(1));
    thread.leaves();
    own.waits.store(0, Ordering::Relaxed);
    own.gate.store(null_mut(), Ordering::SeqCst);
    own.leaving.store(false, Ordering::SeqCst);
    if own.looks.take() {
        ledger::has_looked();
    }
    // SAFETY: null, or a turn, which is static.
    if let Some(turn) = unsafe { own.turn.replace(std::ptr::null()).as_ref() } {
        turn.ends(thread);
    }
    let mode = own.capture_mode.take();
    if mode != 0 {
        calls::set_capture_mode(mode - 1);
    }
    let (slice, bytes) = own.reserved.replace((std::ptr::null(), 0));
    // SAFETY: null, or a slice, which is never freed.
    if let Some(slice) = unsafe { slice.as_ref() } {
        slice.may_have_taken(bytes);
    }
    // What it asked for, or gave back, may have happened or not.
    ledger::all().for_each(Slice::is_to_be_learned);
}

/// The thread ends, in an op or not.
pub fn ends(thread: &'static Thread) {
    if thread.under_way.frame.get() != 0 {
        put_right(thread);
    }
    thread.under_way.cancel.is_nobodys();
}

/// In a forked child: what was under way was the parent's. Of this thread, the op may still run.
pub fn forget_the_parent(thread: &Thread, is_mine: bool) {
    let own = &thread.under_way;
    own.times.set(own.times.get().wrapping_add(1));
    own.waits.store(0, Ordering::Relaxed);
    own.gate.store(null_mut(), Ordering::Relaxed);
    own.leaving.store(false, Ordering::Relaxed);
    own.looks.set(false);
    own.turn.set(std::ptr::null());
    own.reserved.set((std::ptr::null(), 0));
    if is_mine {
        own.cancel.forget_the_note();
    } else {
        own.frame.set(0);
        own.cancel.is_nobodys();
    }
}
