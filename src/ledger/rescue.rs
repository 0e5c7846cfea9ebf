//! `SIGBUS` from a region's file that somebody has cut short while it is in use.
//!
//! The program did nothing wrong, and must not end because of it. So from the moment at which this process first looks at a region,
//! there is a handler: a fault in a region is put right ([`ration_region::rescue`]), and the access that is made again finds zeros.
//! Any other `SIGBUS` is the program's own, and ends as it would have ended without us.
//!
//! The handler runs as the one before it asked to run: with its mask, on its stack, restarting system calls or not. Where
//! there was none it runs on the alternate stack, if the thread has one: a thread that made one may have no other room.
//! Whoever sets a handler later replaces this one, and is not told. It stays in a forked child and ends with `exec`.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use crate::sys::Errno;
use crate::thread;

/// What happened to the signal before.
static HANDLER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static FLAGS: AtomicI32 = AtomicI32::new(0);

/// Puts the handler in place, once. To be called before a region is opened.
pub fn prepare() {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    if PREPARED.load(Ordering::Acquire) || PREPARED.swap(true, Ordering::AcqRel) {
        return;
    }
    let _errno = Errno::kept();
    // SAFETY: structures of integers and pointers, for which zero is a value; places to read from and write to. The handler
    // stays loaded, and makes no call that is not allowed in one.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, null(), &raw mut before) != 0 {
            return;
        }
        // Another thread may set another one meanwhile; then this is done again with that one.
        for _ in 0..3 {
            HANDLER.store(before.sa_sigaction, Ordering::Release);
            FLAGS.store(before.sa_flags, Ordering::Release);
            let is_function = !matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = at_bus_error as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO;
            if is_function {
                ours.sa_mask = before.sa_mask;
                ours.sa_flags |= before.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART | libc::SA_ONSTACK);
            } else {
                ours.sa_flags |= libc::SA_RESTART | libc::SA_ONSTACK;
            }
            let seen = (before.sa_sigaction, before.sa_flags);
            if libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) != 0
                || (before.sa_sigaction, before.sa_flags) == seen
                || before.sa_sigaction == ours.sa_sigaction
            {
                return;
            }
        }
    }
}

/// Lets the signal through in a thread of ours, where all others are blocked: a fault whose signal is blocked ends the process.
pub fn watch_this_thread() {
    // SAFETY: a set of bits, for which zero is a value; only this thread's mask changes.
    unsafe {
        let mut bus: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut bus, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const bus, null_mut());
    }
}

/// Memory that went bad, noticed before anybody used it: no instruction will fault again.
const BUS_MCEERR_AO: c_int = 5;

extern "C" fn at_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives the handler a valid description of the signal, and so must whoever calls it besides.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr()) };
    // One that was sent by somebody has no address.
    let is_fault = code > 0;
    if is_fault && is_put_right(address) {
        return;
    }
    let comes_again = is_fault && code != BUS_MCEERR_AO;
    let flags = FLAGS.load(Ordering::Acquire);
    let before = if flags & libc::SA_RESETHAND == 0 {
        HANDLER.load(Ordering::Acquire)
    } else {
        // It asked to be called once. The next one finds no handler.
        HANDLER.swap(libc::SIG_DFL, Ordering::AcqRel)
    };
    match before {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => end_by(signal, comes_again),
        // SAFETY: the program gave this function to be called with these arguments, as the flags say.
        function if flags & libc::SA_SIGINFO != 0 => unsafe {
            std::mem::transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(function)(
                signal, info, context,
            );
        },
        // SAFETY: as above.
        function => unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(function)(signal) },
    }
}

/// Not in the handler itself: a program's own may jump out of it, past whatever is there to be dropped.
fn is_put_right(address: *const c_void) -> bool {
    let _errno = Errno::kept();
    ration_region::rescue(address)
}

/// The process ends by the signal, as it does where there is no handler; a fault does, too, where signals are ignored.
fn end_by(signal: c_int, comes_again: bool) {
    // SAFETY: a structure of integers and pointers, of which zero means the default; a place to read from.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &raw const default, null_mut());
    }
    // A fault happens again when the handler returns, at the same instruction, which leaves the better core file. Anything else is
    // sent again, to this thread, and comes when the handler returns.
    if !comes_again {
        // SAFETY: numbers of this process's own.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread::number(), signal) };
    }
}
