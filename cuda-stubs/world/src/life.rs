//! Knowing that a process is gone, whatever its PID namespace and however it went.
//!
//! Each process has a keeper: a thread that sleeps. Its robust-futex list holds one word, which lies in the process's slot of
//! the world. When the thread ends, which it does only with its process (exit, kill, exec), the kernel itself sets the
//! word's `FUTEX_OWNER_DIED` bit. No descriptor is involved, so a program that closes all of its descriptors loses nothing.

use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel's mark, from its futex interface.
const OWNER_DIED: u32 = 0x4000_0000;

/// Whether the process that held this word is gone.
#[inline]
pub fn is_over(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) & OWNER_DIED != 0
}

/// One entry, in the kernel's form: a ring of pointers through the head, and the distance from an entry to its futex word.
#[repr(C)]
struct RobustList {
    next: *mut RobustList,
    futex_offset: isize,
    pending: *mut RobustList,
}

/// Starts the keeper; returns once the kernel knows the word.
pub fn keep(word: &'static AtomicU32) -> std::io::Result<()> {
    let (tell, told) = std::sync::mpsc::channel();
    block_signals(|| {
        std::thread::Builder::new().name("ration-sim-life".into()).stack_size(64 << 10).spawn(move || {
            // SAFETY: gettid has no preconditions.
            let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
            let list: &'static mut [RobustList; 2] = Box::leak(Box::new([
                RobustList { next: std::ptr::null_mut(), futex_offset: 0, pending: std::ptr::null_mut() },
                RobustList { next: std::ptr::null_mut(), futex_offset: 0, pending: std::ptr::null_mut() },
            ]));
            let [head, entry] = list;
            head.futex_offset = word.as_ptr() as isize - std::ptr::from_mut(entry) as isize;
            entry.next = head;
            head.next = entry;
            // SAFETY: the list is leaked, so it stays where it is for as long as the thread lives; this thread takes no robust
            // mutex of libc's, whose list head is the one replaced here.
            let rc = unsafe { libc::syscall(libc::SYS_set_robust_list, std::ptr::from_mut(head), 24usize) };
            // Who was here before stays dead until the kernel would notice our death, too.
            if rc == 0 {
                word.store(tid, Ordering::Release);
            }
            let _ = tell.send(if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) });
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1 << 30));
            }
        })
    })?;
    told.recv().map_err(|_| std::io::Error::other("the keeper thread ended before it began"))?
}

/// Runs `f` with all signals blocked, so that a thread made in it never runs the program's handlers.
pub fn block_signals<T>(f: impl FnOnce() -> T) -> T {
    let before = block_all();
    let value = f();
    set_blocked(&before);
    value
}

/// Blocks all signals in this thread; returns what was blocked before.
pub(crate) fn block_all() -> libc::sigset_t {
    // SAFETY: both sets are initialised by sigfillset/pthread_sigmask before they are read.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

/// Blocks these, and no others.
pub(crate) fn set_blocked(set: &libc::sigset_t) {
    // SAFETY: a set that `pthread_sigmask` wrote.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, std::ptr::null_mut()) };
}
