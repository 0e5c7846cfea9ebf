//! What the shim keeps per thread: one block of plain words, found by one load.
//!
//! Rust's `thread_local!` in a shared library asks the loader for the address at every access and wants to run destructors;
//! a launch path has no time for the one, and a thread that is already ending no place for the other. So the library has a
//! single thread-local word, in the part of thread-local storage that is laid out when the process starts, and it points
//! to the thread's [`Thread`] block. Blocks are mapped at a thread's first hooked call, never unmapped, and used again by a
//! later thread when theirs ends: what was counted stays counted.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::left::{self, UnderWay};
use crate::steer::Lane;
use crate::sys::Errno;
use crate::table::COUNT;
use crate::{ledger, process};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("libration.so is written for x86-64 Linux: thread.rs and resolve/dl.rs hold its few lines of assembly");

std::arch::global_asm!(
    ".pushsection .tbss.ration_thread, \"awT\", @nobits",
    ".p2align 3",
    ".globl ration_thread",
    ".hidden ration_thread",
    ".type ration_thread, @object",
    ".size ration_thread, 8",
    "ration_thread:",
    ".zero 8",
    ".popsection",
);

/// Where this thread's word is. Initial-exec: the offset from the thread pointer was fixed when the library was loaded.
#[inline(always)]
fn word() -> *mut *mut Thread {
    let at: *mut *mut Thread;
    // SAFETY: reads the word's offset from the global offset table and adds the thread pointer, which x86-64 Linux keeps
    // at fs:0. Touches nothing else, and the answer is the same throughout the thread's life.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + ration_thread@GOTTPOFF]",
            at = out(reg) at,
            options(pure, readonly, nostack),
        );
    }
    at
}

/// The block itself, by one load less than through [`word`].
#[inline(always)]
fn block() -> *mut Thread {
    let block: *mut Thread;
    // SAFETY: as in `word`, and the word is only ever written by its own thread. Not `pure`: the word changes once.
    unsafe {
        std::arch::asm!(
            "mov {block}, qword ptr [rip + ration_thread@GOTTPOFF]",
            "mov {block}, qword ptr fs:[{block}]",
            block = out(reg) block,
            options(readonly, nostack, preserves_flags),
        );
    }
    block
}

/// A thread's block. Written by its thread alone; others read what is atomic in it. What every op needs comes first, in one
/// line of the cache.
#[repr(C, align(64))]
pub struct Thread {
    /// Calls of this thread that change what the driver holds: see [`crate::ledger::changing`].
    pub changes: Tally,
    /// The op that runs in it, and what is to be taken back if it is left.
    pub under_way: UnderWay,
    taken: AtomicBool,
    /// What it has launched, where that is counted.
    pub lane: AtomicPtr<Lane>,
    /// The GPU that this thread is making a context on, plus one.
    making: Cell<i32>,
    /// The call that this thread has handed to another library.
    passing: Cell<Passing>,
    next: AtomicPtr<Thread>,
    counts: [AtomicU64; COUNT],
}

/// A thread's part of a sum over all threads. It has one writer, so that adding to it takes no lock.
pub struct Tally(AtomicU64);

impl Tally {
    /// By the block's own thread. What that thread wrote before is seen by whoever sees this.
    #[inline(always)]
    pub fn add(&self, number: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(number), Ordering::Release);
    }

    /// By the block's own thread: of these bits, none.
    fn clear(&self, bits: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) & !bits, Ordering::Release);
    }

    /// Over all threads, those that have ended included.
    pub fn total(of: impl Fn(&Thread) -> &Tally) -> u64 {
        Thread::all().fold(0, |sum, thread| sum.wrapping_add(of(thread).0.load(Ordering::Acquire)))
    }
}

/// A call that was handed to another library, and has neither come back to us through it nor returned.
#[derive(Clone, Copy)]
struct Passing {
    /// The row plus one; 0: none.
    row: u32,
    /// Where the stack was. A program may jump out of a call (`longjmp`) past us; then this lies below what is in use.
    stack: usize,
}

/// Roughly where the stack is.
#[inline(always)]
fn stack() -> usize {
    let here = 0u8;
    (&raw const here) as usize
}

/// All blocks, newest first. Blocks are only ever added.
static ALL: AtomicPtr<Thread> = AtomicPtr::new(null_mut());

impl Thread {
    /// This thread's block, if it has one.
    #[inline(always)]
    pub fn attached() -> Option<&'static Thread> {
        // SAFETY: the word is null or points to a block that `attach` mapped, and blocks are never unmapped.
        unsafe { block().as_ref() }
    }

    /// This thread's block; a thread that has none is given one. `None`: there is no memory for it.
    ///
    /// May be called from a signal handler: a signal between the two writes below costs an unused block, no more.
    pub fn attach() -> Option<&'static Thread> {
        if let Some(thread) = Thread::attached() {
            return Some(thread);
        }
        process::begin();
        let thread = Thread::used_before().or_else(Thread::mapped)?;
        thread.under_way.cancel.is_mine();
        give_back_at_exit(thread);
        // SAFETY: this thread's own word.
        unsafe { word().write(std::ptr::from_ref(thread).cast_mut()) };
        Some(thread)
    }

    /// Counts a call of a row. One plain addition: the block has one writer.
    #[inline(always)]
    pub fn count(&self, id: usize) {
        let count = &self.counts[id];
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether this is a call of this row that went to another library and now comes back. It comes back once: what else
    /// that library calls is a call of its own.
    pub fn comes_back(&self, id: usize) -> bool {
        let passing = self.passing.get();
        let same = passing.row == id as u32 + 1 && stack() < passing.stack;
        if same {
            self.passing.set(Passing { row: 0, stack: 0 });
        }
        same
    }

    /// The call goes to another library. No guard: unwinding is to find nothing of ours to do, and what it leaves is told by the
    /// stack.
    #[inline]
    pub fn pass_through<T>(&self, id: usize, call: impl FnOnce() -> T) -> T {
        let before = self.passing.replace(Passing { row: id as u32 + 1, stack: stack() });
        let result = call();
        self.passing.set(before);
        result
    }

    /// It has left an op without returning from it.
    pub fn leaves(&self) {
        self.changes.clear(ledger::UNDER_WAY);
        self.making.set(0);
        self.passing.set(Passing { row: 0, stack: 0 });
        // SAFETY: null, or a lane that is never freed.
        if let Some(lane) = unsafe { self.lane.load(Ordering::Relaxed).as_ref() } {
            lane.leaves();
        }
    }

    /// The GPU that this thread is making a context on.
    pub fn making(&self) -> Option<i32> {
        self.making.get().checked_sub(1).filter(|device| *device >= 0)
    }

    /// It makes one on this GPU until the guard is dropped.
    pub fn makes(&self, device: i32) -> impl Drop {
        struct Made<'a>(&'a Cell<i32>);
        impl Drop for Made<'_> {
            fn drop(&mut self) {
                self.0.set(0);
            }
        }
        self.making.set(device + 1);
        Made(&self.making)
    }

    fn used_before() -> Option<&'static Thread> {
        Thread::all()
            .find(|thread| thread.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok())
    }

    fn mapped() -> Option<&'static Thread> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping, at a place of the kernel's choosing.
        let memory = unsafe { libc::mmap(null_mut(), size_of::<Thread>(), protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the mapping is large enough, aligned to a page, never unmapped, and zeroed, which is a valid block.
        let thread = unsafe { &*memory.cast::<Thread>() };
        thread.taken.store(true, Ordering::Relaxed);
        let mut first = ALL.load(Ordering::Acquire);
        loop {
            thread.next.store(first, Ordering::Relaxed);
            match ALL.compare_exchange(first, memory.cast(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(thread),
                Err(now) => first = now,
            }
        }
    }

    /// All of them, those that have ended included.
    pub fn all() -> impl Iterator<Item = &'static Thread> {
        // SAFETY: null, or the newest of the blocks, which are never unmapped.
        let first = unsafe { ALL.load(Ordering::Acquire).as_ref() };
        // SAFETY: null, or the block that was the newest before this one.
        std::iter::successors(first, |thread| unsafe { thread.next.load(Ordering::Acquire).as_ref() })
    }
}

/// Calls of a row by all threads, those that have ended included.
pub fn total(id: usize) -> u64 {
    Thread::all().fold(0, |sum, thread| sum.wrapping_add(thread.counts[id].load(Ordering::Relaxed)))
}

/// In a forked child: nothing was counted yet, and of the threads only this one is left.
pub fn forget_the_parent() {
    let mine = block();
    for thread in Thread::all() {
        for count in thread.counts.iter().chain([&thread.changes.0]) {
            count.store(0, Ordering::Relaxed);
        }
        let is_mine = std::ptr::eq(thread, mine);
        left::forget_the_parent(thread, is_mine);
        thread.taken.store(is_mine, Ordering::Relaxed);
    }
}

/// The key whose destructor runs when a thread ends; [`NO_KEY`] until [`make_key`].
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;

/// Makes the key. Called once, when the process makes its first hooked call.
pub fn make_key() {
    let mut key = 0;
    // SAFETY: `ended` is a function of the type that a destructor has, and stays loaded: the library is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(ended)) } == 0 {
        KEY.store(key, Ordering::Release);
    }
}

fn give_back_at_exit(thread: &'static Thread) {
    let key = KEY.load(Ordering::Acquire);
    if key != NO_KEY {
        // SAFETY: the key was made and is never deleted. When this fails, the block is not used again: 3 KiB are lost.
        unsafe { libc::pthread_setspecific(key, std::ptr::from_ref(thread).cast()) };
    }
}

/// The thread ends. If it calls the driver again, in a destructor that comes after this one, it is given a block again.
extern "C" fn ended(block: *mut c_void) {
    // SAFETY: this thread's own word.
    unsafe { word().write(null_mut()) };
    // SAFETY: the key's value is what `give_back_at_exit` stored, a block.
    let thread = unsafe { &*block.cast::<Thread>() };
    left::ends(thread);
    thread.passing.set(Passing { row: 0, stack: 0 });
    thread.making.set(0);
    thread.taken.store(false, Ordering::Release);
}

/// This thread's number in its process, as the kernel knows it; kept nowhere, because a fork changes it.
pub fn number() -> i32 {
    // SAFETY: takes nothing and always succeeds.
    (unsafe { libc::syscall(libc::SYS_gettid) }) as i32
}

/// A lock for the rare paths that write files: never waited for by the thread that holds it, never for long by another,
/// and free again in a forked child.
pub struct ShortLock(AtomicI32);

impl ShortLock {
    /// A lock that nobody holds.
    pub const fn new() -> ShortLock {
        ShortLock(AtomicI32::new(0))
    }

    /// `None`: this thread holds it already (a signal came in between), or another does and does not let go.
    pub fn take(&self) -> Option<impl Drop> {
        struct Taken<'a>(&'a AtomicI32);
        impl Drop for Taken<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Release);
            }
        }
        let me = number();
        for _ in 0..10_000 {
            match self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Taken(&self.0)),
                Err(holder) if holder == me => return None,
                // SAFETY: gives the processor to another thread; no arguments.
                Err(_) => unsafe { libc::sched_yield() },
            };
        }
        None
    }

    /// In a forked child, whose threads but one are gone.
    pub fn free(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Something that one thread at a time looks at, outside of the launch path. Unlike Rust's own locks it can be made anew
/// in a forked child, whose parent's other threads may have held it.
pub struct Guarded<T> {
    /// 0: free, 1: taken, 2: taken, and somebody sleeps.
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through `with`, by one thread at a time.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// Free.
    pub const fn new(value: T) -> Guarded<T> {
        Guarded { state: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Looks at it. What is done inside is short, and calls neither the program nor anything that may wait for it; nor does a
    /// handler of the program's run meanwhile in this thread.
    pub fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        ration_region::with_no_handler(|| self.with_handlers(look))
    }

    fn with_handlers<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        struct Held<'a>(&'a AtomicU32);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                if self.0.swap(0, Ordering::Release) == 2 {
                    futex(self.0, libc::FUTEX_WAKE, 1);
                }
            }
        }
        let mut seen =
            self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).unwrap_or_else(|now| now);
        for _ in 0..100 {
            if seen == 0 {
                break;
            }
            std::hint::spin_loop();
            seen = self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).unwrap_or_else(|now| now);
        }
        while seen != 0 {
            seen = self.state.swap(2, Ordering::Acquire);
            if seen != 0 {
                futex(&self.state, libc::FUTEX_WAIT, 2);
            }
        }
        let _held = Held(&self.state);
        // SAFETY: held by this thread alone until `_held` is dropped, which is after the last use of the reference.
        look(unsafe { &mut *self.value.get() })
    }

    /// In a forked child: free again, with a new value. The old one may be half changed, so it is left where it is.
    pub fn renew(&self, value: T) {
        // SAFETY: a forked child has one thread.
        std::mem::forget(std::mem::replace(unsafe { &mut *self.value.get() }, value));
        self.state.store(0, Ordering::Release);
    }
}

fn futex(word: &AtomicU32, what: c_int, value: u32) {
    let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    let wait = if what == libc::FUTEX_WAIT { &raw const second } else { std::ptr::null() };
    let _errno = Errno::kept();
    // SAFETY: a word of ours, in private memory; waits for a second at most, and the caller looks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), what | libc::FUTEX_PRIVATE_FLAG, value, wait) };
}
