//! The shim's life in a process: nothing until the first hooked call, then what must be told of forks and of the end.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::resolve::elf;
use crate::{channels, entry, ledger, log, ops, thread, trace};

/// 0: nothing yet. Otherwise the process and thread that began, or [`BEGUN`].
static STATE: AtomicU64 = AtomicU64::new(0);
const BEGUN: u64 = 1;
/// The process that has begun.
static OWNER: AtomicU64 = AtomicU64::new(0);

/// How often somebody who waits for another thread looks, before going on without: a second or so.
const PATIENCE: u32 = 100_000;

fn this_process() -> u64 {
    // SAFETY: takes nothing and always succeeds.
    (unsafe { libc::getpid() }) as u64
}

fn wait_a_little() {
    // SAFETY: gives the processor to another thread; no arguments.
    unsafe { libc::sched_yield() };
}

/// Called before the first hooked call of a thread goes on. The first one of all reads the settings.
///
/// Others wait for it, but not for ever, and not if it is this very thread that a signal interrupted: then the call goes on
/// with what is there, which is a shim that counts and writes nothing.
pub fn begin() {
    if STATE.load(Ordering::Acquire) == BEGUN {
        // A thread that registers what runs in forked children while another is in the middle of a fork is too late for that
        // fork's child, which then finds out here.
        let me = this_process();
        if OWNER.swap(me, Ordering::AcqRel) != me {
            // SAFETY: what the handler does may be done twice.
            unsafe { in_forked_child() };
        }
        return;
    }
    let mine = this_process() << 32 | thread::number() as u64 & 0xffff_ffff;
    for _ in 0..PATIENCE {
        let now = STATE.load(Ordering::Acquire);
        if now == BEGUN || now == mine {
            return;
        }
        // A fork in the middle of another thread's beginning leaves that beginning without anybody to end it.
        if (now == 0 || now >> 32 != this_process())
            && STATE.compare_exchange(now, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            watch_forks();
            thread::make_key();
            log::begin();
            for exit in &EXITS {
                exit.next.store(
                    elf::function_behind_us(exit.name).unwrap_or(std::ptr::null()).cast_mut(),
                    Ordering::Release,
                );
            }
            if !stands_aside() {
                trace::begin(ENDED.load(Ordering::Acquire));
                ledger::begin();
            }
            OWNER.store(this_process(), Ordering::Release);
            STATE.store(BEGUN, Ordering::Release);
            return;
        }
        wait_a_little();
    }
}

/// Whether another copy of the library, preloaded from another file, is in front of this one. That one does the work; this
/// one hands on, traces nothing and answers look-ups as if it were not there.
pub fn stands_aside() -> bool {
    const UNKNOWN: u32 = 0;
    const NO: u32 = 1;
    const YES: u32 = 2;
    static KNOWN: AtomicU32 = AtomicU32::new(UNKNOWN);
    let mut known = KNOWN.load(Ordering::Relaxed);
    if known == UNKNOWN {
        known = if elf::is_first_of_its_name(c"libration.so") { NO } else { YES };
        KNOWN.store(known, Ordering::Relaxed);
    }
    known == YES
}

unsafe extern "C" {
    /// What glibc's `pthread_atfork` is made of. That one is not in the shared library of every version, this one is.
    fn __register_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
        dso: *mut std::ffi::c_void,
    ) -> i32;
}

/// Threads that are walking the loader's list of objects for us.
static WALKING: AtomicU32 = AtomicU32::new(0);
/// Threads that are about to fork.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// To be held while the loader's list is walked.
///
/// The loader holds a lock meanwhile. A fork at that moment would leave it locked in the child, with nobody to unlock it,
/// and the child would hang in the first thing that it loads; so forks wait for walkers, and walkers for forks.
pub fn walking() -> impl Drop {
    struct Walking;
    impl Drop for Walking {
        fn drop(&mut self) {
            WALKING.fetch_sub(1, Ordering::AcqRel);
        }
    }
    watch_forks();
    for _ in 0..PATIENCE {
        // Sequentially consistent, as is the other side's pair: one of the two sees the other.
        WALKING.fetch_add(1, Ordering::SeqCst);
        if FORKING.load(Ordering::SeqCst) == 0 {
            return Walking;
        }
        WALKING.fetch_sub(1, Ordering::SeqCst);
        wait_a_little();
    }
    WALKING.fetch_add(1, Ordering::SeqCst);
    Walking
}

fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.load(Ordering::Acquire) {
        // Two threads at once both register them, which does no harm; neither goes on before they are registered.
        // SAFETY: functions of the right type, which stay loaded. No handle: they are never taken back.
        unsafe { __register_atfork(Some(before_fork), Some(after_fork), Some(in_forked_child), null_mut()) };
        WATCHED.store(true, Ordering::Release);
    }
}

unsafe extern "C" fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    for _ in 0..PATIENCE {
        if WALKING.load(Ordering::SeqCst) == 0 {
            return;
        }
        wait_a_little();
    }
}

unsafe extern "C" fn after_fork() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

unsafe extern "C" fn in_forked_child() {
    FORKING.store(0, Ordering::SeqCst);
    WALKING.store(0, Ordering::SeqCst);
    thread::forget_the_parent();
    trace::forget_the_parent();
    channels::forget_the_parent();
    ops::forget_the_parent();
    ledger::forget_the_parent();
    entry::stop_watching_for(entry::LATE);
    OWNER.store(this_process(), Ordering::Release);
}

/// The library's turn among the destructors has come.
static ENDED: AtomicBool = AtomicBool::new(false);

/// At `exit`, when the library's turn comes among the destructors. Later calls are written as they come.
extern "C" fn at_exit() {
    ENDED.store(true, Ordering::Release);
    trace::write_counts();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
#[cfg(test)]
const _: extern "C" fn() = at_exit;

/// A function that ends the process, and what comes behind ours of that name.
struct Exit {
    name: &'static std::ffi::CStr,
    next: AtomicPtr<()>,
}

static EXITS: [Exit; 2] = [
    Exit { name: c"_exit", next: AtomicPtr::new(null_mut()) },
    Exit { name: c"_Exit", next: AtomicPtr::new(null_mut()) },
];

/// Stands in front of libc's: a process that ends this way runs no destructors.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _exit(status: i32) -> ! {
    end(&EXITS[0], status)
}

/// Stands in front of libc's, which is another name for `_exit`.
#[allow(non_snake_case, reason = "C's name")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _Exit(status: i32) -> ! {
    end(&EXITS[1], status)
}

/// On to the function behind ours, if it has been found. It is not looked for here: this may be the child of a fork, in
/// which the loader is locked for ever. Straight to the kernel is what libc's own function does.
fn end(exit: &Exit, status: i32) -> ! {
    trace::write_counts();
    let next = exit.next.load(Ordering::Acquire).cast_const();
    if !next.is_null() {
        // SAFETY: a function behind us of this name has this type.
        unsafe { std::mem::transmute::<*const (), extern "C" fn(i32)>(next)(status) };
    }
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}
