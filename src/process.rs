//! The shim's life in a process: nothing until the first hooked call, then what must be told of forks and of the end.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::resolve::elf;
use crate::{entry, log, ops, thread, trace};

/// 0: nothing yet. Otherwise the process and thread that began, or [`BEGUN`].
static STATE: AtomicU64 = AtomicU64::new(0);
const BEGUN: u64 = 1;

fn this_process() -> u64 {
    // SAFETY: takes nothing and always succeeds.
    (unsafe { libc::getpid() }) as u64
}

/// Called before the first hooked call of a thread goes on. The first one of all reads the settings.
///
/// Others wait for it, but not for ever, and not if it is this very thread that a signal interrupted: then the call goes on
/// with what is there, which is a shim that counts and writes nothing.
pub fn begin() {
    if STATE.load(Ordering::Acquire) == BEGUN {
        return;
    }
    let mine = this_process() << 32 | thread::number() as u64 & 0xffff_ffff;
    for _ in 0..100_000 {
        let now = STATE.load(Ordering::Acquire);
        if now == BEGUN || now == mine {
            return;
        }
        // A fork in the middle of another thread's beginning leaves that beginning without anybody to end it.
        if (now == 0 || now >> 32 != this_process())
            && STATE.compare_exchange(now, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            thread::make_key();
            // SAFETY: a function of the right type, which stays loaded. No handle: it is never taken back.
            unsafe { __register_atfork(None, None, Some(in_forked_child), std::ptr::null_mut()) };
            log::begin();
            trace::begin();
            STATE.store(BEGUN, Ordering::Release);
            return;
        }
        // SAFETY: gives the processor to another thread; no arguments.
        unsafe { libc::sched_yield() };
    }
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

unsafe extern "C" fn in_forked_child() {
    thread::forget_the_parent();
    trace::forget_the_parent();
    ops::forget_the_parent();
    entry::stop_watching_for(entry::LATE);
}

/// At `exit`, when the library's turn comes among the destructors. Later calls are written as they come.
extern "C" fn at_exit() {
    trace::write_counts();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
#[cfg(test)]
const _: extern "C" fn() = at_exit;

/// Stands in front of libc's: a process that ends this way runs no destructors.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _exit(status: i32) -> ! {
    trace::write_counts();
    go_on(c"_exit", status)
}

/// Stands in front of libc's, which is another name for `_exit`.
#[allow(non_snake_case, reason = "C's name")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _Exit(status: i32) -> ! {
    trace::write_counts();
    go_on(c"_Exit", status)
}

/// To the function behind ours; should there be none, or should it return, straight to the kernel.
fn go_on(name: &std::ffi::CStr, status: i32) -> ! {
    if let Some(next) = elf::function_behind_us(name) {
        // SAFETY: a function behind us of this name has this type.
        unsafe { std::mem::transmute::<*const (), extern "C" fn(i32)>(next)(status) };
    }
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}
