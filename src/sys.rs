//! Writing from inside of somebody else's process: raw system calls, because libc's functions are points at which a thread
//! may be cancelled; nothing allocated; `errno` left as it was; no descriptor kept, because a program may close them all
//! and be given our number for a file of its own.

use std::ffi::{CStr, c_int, c_long};
use std::ptr::null_mut;

/// Puts `errno` back when dropped.
pub struct Errno(c_int);

impl Errno {
    /// Remembers it.
    pub fn kept() -> Errno {
        // SAFETY: the address of this thread's errno, always valid.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// The error that the last system call left.
#[inline]
pub fn error() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Sets it, for a program to find.
#[inline]
pub fn set_error(error: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
}

/// Adds to the end of a file, in one piece, making the file if need be. `Err` holds the error number.
pub fn append(path: &CStr, bytes: &[u8]) -> Result<(), c_int> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: a path that ends in NUL.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o666) };
    if file < 0 {
        return Err(error());
    }
    let done = write(file, bytes);
    // SAFETY: the descriptor that was just opened, and is nobody else's.
    unsafe { libc::syscall(libc::SYS_close, file) };
    done
}

/// Writes all of it to a descriptor. If that is a pipe that nobody reads any more, or a file that may not be larger, the program does
/// not hear of it.
pub fn write(file: c_long, mut bytes: &[u8]) -> Result<(), c_int> {
    let _quiet = Quiet::here();
    while !bytes.is_empty() {
        // SAFETY: the bytes are ours to read.
        let written = unsafe { libc::syscall(libc::SYS_write, file, bytes.as_ptr(), bytes.len()) };
        match written {
            1.. => bytes = &bytes[(written as usize).min(bytes.len())..],
            0 => return Err(libc::EIO),
            _ if error() == libc::EINTR => {}
            _ => return Err(error()),
        }
    }
    Ok(())
}

/// What the kernel sends to a thread that writes where nobody reads any more, or beyond the limit on the size of files.
const OF_WRITES: [c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Keeps those signals from this thread until dropped, and takes away what came of them meanwhile.
struct Quiet {
    mask: libc::sigset_t,
    pending: [bool; 2],
}

impl Quiet {
    fn set(signals: &[c_int]) -> libc::sigset_t {
        // SAFETY: a set of bits, for which zero is a value; then made a set of these signals.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in signals {
                libc::sigaddset(&raw mut set, *signal);
            }
            set
        }
    }

    fn pending() -> [bool; 2] {
        // SAFETY: a set of bits, filled in and asked for some of them.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let is_known = libc::sigpending(&raw mut set) == 0;
            OF_WRITES.map(|signal| is_known && libc::sigismember(&raw const set, signal) == 1)
        }
    }

    fn here() -> Quiet {
        let both = Quiet::set(&OF_WRITES);
        let mut mask = both;
        // SAFETY: blocks two signals for this thread, and keeps what was blocked before.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const both, &raw mut mask) };
        Quiet { mask, pending: Quiet::pending() }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _errno = Errno::kept();
        let now = Quiet::pending();
        for (which, signal) in OF_WRITES.iter().enumerate() {
            // One that was pending before was not ours.
            if now[which] && !self.pending[which] {
                let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: takes a pending signal of this set, without waiting.
                unsafe { libc::sigtimedwait(&Quiet::set(&[*signal]), null_mut(), &raw const at_once) };
            }
        }
        // SAFETY: back to what was blocked before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, null_mut()) };
    }
}

/// Text in a buffer of fixed size; what does not fit is left out.
pub struct Text<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Text<'a> {
    /// Empty.
    pub fn new(buffer: &'a mut [u8]) -> Text<'a> {
        Text { buffer, used: 0 }
    }

    /// What was written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }

    /// Adds bytes that need not be text, such as a path.
    pub fn push(&mut self, bytes: &[u8]) {
        let fits = bytes.len().min(self.buffer.len() - self.used);
        self.buffer[self.used..self.used + fits].copy_from_slice(&bytes[..fits]);
        self.used += fits;
    }
}

impl std::fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// A setting from the environment, unless the program runs with more rights than its user: then the user has no say.
pub fn setting(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a name that ends in NUL; the value is read at once, before the program can change its environment.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: a value of the environment ends in NUL.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// A setting from the environment, whoever runs the program.
pub fn setting_of_anybody(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: as above.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: as above.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// The text of a small file; `None` where there is none. A file that cannot be read is an error to whoever asked for it, so
/// it comes as a text that no grammar accepts.
pub fn read(path: &CStr) -> Option<String> {
    const MOST: usize = 64 * 1024;
    match read_bytes(path, MOST) {
        Ok(text) => Some(String::from_utf8_lossy(&text).into_owned()),
        Err(libc::ENOENT | libc::ENOTDIR) => None,
        Err(error) => Some(format!("cannot be read: error {error}")),
    }
}

/// The first bytes of a file, so many at most; or the error of opening it.
pub fn read_bytes(path: &CStr, most: usize) -> Result<Vec<u8>, c_int> {
    const STEP: usize = 64 * 1024;
    let _errno = Errno::kept();
    // SAFETY: a path that ends in NUL.
    let file =
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return Err(error());
    }
    let mut bytes = Vec::new();
    while bytes.len() < most {
        let used = bytes.len();
        bytes.resize(used + STEP.min(most - used), 0);
        let room = &mut bytes[used..];
        // SAFETY: room for so many bytes.
        let read = unsafe { libc::syscall(libc::SYS_read, file, room.as_mut_ptr(), room.len()) };
        bytes.truncate(used + usize::try_from(read).unwrap_or(0));
        if read == 0 || read < 0 && error() != libc::EINTR {
            break;
        }
    }
    // SAFETY: the descriptor that was just opened, and is nobody else's.
    unsafe { libc::syscall(libc::SYS_close, file) };
    Ok(bytes)
}

unsafe extern "C" {
    fn secure_getenv(name: *const std::ffi::c_char) -> *const std::ffi::c_char;
}

/// Seconds on a clock that only goes forward.
pub fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place to write the time to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Nanoseconds on a clock that only goes forward, and is the same for all processes of the machine.
pub fn nanoseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place to write the time to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until then, or later; a signal may end it early.
pub fn nap(until: u64, now: u64) {
    let length = until.saturating_sub(now);
    let length = libc::timespec { tv_sec: (length / 1_000_000_000) as i64, tv_nsec: (length % 1_000_000_000) as i64 };
    // SAFETY: a length of time.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const length, 0) };
}

/// Sleeps until about then. The kernel wakes a thread some 60 µs late, so the last of it is spent awake.
pub fn sleep_until(until: u64, now: u64) {
    const LATE: u64 = 70_000;
    let _errno = Errno::kept();
    if until > now + LATE {
        let length = until - now - LATE;
        let length =
            libc::timespec { tv_sec: (length / 1_000_000_000) as i64, tv_nsec: (length % 1_000_000_000) as i64 };
        // SAFETY: a length of time. A signal may end it early; the caller looks again.
        unsafe { libc::syscall(libc::SYS_nanosleep, &raw const length, 0) };
    } else {
        // Not by yielding: where there is much to do, the processor would be gone for milliseconds.
        while nanoseconds() < until {
            for _ in 0..16 {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::Text;

    #[test]
    fn text_that_does_not_fit_is_cut() {
        let mut buffer = [0; 8];
        let mut text = Text::new(&mut buffer);
        let _ = write!(text, "{}-{}", 1234, 5678);
        text.push(b"more");
        assert_eq!(text.bytes(), b"1234-567");
    }
}
