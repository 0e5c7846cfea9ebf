//! Whoever may write to a region's file may also cut it short while this process reads it. The kernel then sends `SIGBUS`, which
//! is answered as the library does.

use std::ffi::{c_int, c_void};

extern "C" fn answer(signal: c_int, about: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel gives a handler that asked for it what the signal is about; of this one, the address.
    let address = unsafe { (*about).si_addr() };
    if !ration_region::rescue(address) {
        // Not a region: it happens again when this returns, and then ends the process as it should.
        // SAFETY: puts back what the signal does by itself.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// From now on, a region that is cut short is found empty.
pub fn be_ready() {
    // SAFETY: the handler makes one system call and takes no lock, whatever was interrupted; zero is a value of all fields.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = answer as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}
