//! The system, from inside of somebody else's process: system calls of our own, because many of the C library's functions
//! are points at which a thread can be cancelled.

use std::ffi::{CStr, CString, c_int, c_long, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The error that the last system call left.
pub fn errno() -> c_int {
    // SAFETY: the address of this thread's errno, always valid.
    unsafe { *libc::__errno_location() }
}

/// What a system call returned, or its error number.
pub fn outcome(result: c_long) -> Result<c_long, c_int> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

/// A file that is open, and closed when dropped.
pub struct File(pub c_int);

impl File {
    /// Opens one; if it is made, then for this user alone.
    pub fn open(path: &CStr, flags: c_int) -> Result<File, c_int> {
        let flags = flags | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: a path that ends in NUL.
        let file = outcome(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) })?;
        Ok(File(file as c_int))
    }

    /// What the file begins with; less if there is less.
    pub fn read(&self, bytes: &mut [u8]) -> Result<usize, c_int> {
        loop {
            // SAFETY: the bytes are ours to write.
            let read = unsafe { libc::syscall(libc::SYS_pread64, self.0, bytes.as_mut_ptr(), bytes.len(), 0i64) };
            match outcome(read) {
                Err(libc::EINTR) => {}
                other => return other.map(|read| read as usize),
            }
        }
    }

    /// Writes all of it.
    pub fn write(&self, bytes: &[u8], at: usize) -> Result<(), c_int> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            // SAFETY: the bytes are ours to read.
            let written =
                unsafe { libc::syscall(libc::SYS_pwrite64, self.0, rest.as_ptr(), rest.len(), (at + done) as i64) };
            match outcome(written) {
                Ok(0) => return Err(libc::EIO),
                Ok(written) => done += written as usize,
                Err(libc::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether it is a plain file, and its size.
    pub fn kind(&self) -> Result<(bool, u64), c_int> {
        let about = self.about()?;
        Ok((about.st_mode & libc::S_IFMT == libc::S_IFREG, about.st_size as u64))
    }

    /// The number of its inode: no other file that is there at the same time, on the same file system, has it.
    pub fn number(&self) -> Result<u64, c_int> {
        Ok(self.about()?.st_ino)
    }

    /// What the system says of it.
    pub fn about(&self) -> Result<libc::stat, c_int> {
        // SAFETY: numbers, for which zero is a value.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a place to write to, in the form that the kernel writes, which is also the C library's on 64-bit machines.
        outcome(unsafe { libc::syscall(libc::SYS_fstat, self.0, &raw mut about) })?;
        Ok(about)
    }
}

impl File {
    /// Reads so many words from a place; says whether they were there.
    pub fn read_words(&self, words: &mut [u64], at: usize) -> bool {
        let size = size_of_val(words);
        // SAFETY: the words are ours to write, and any bytes are a value of them.
        let read = unsafe { libc::syscall(libc::SYS_pread64, self.0, words.as_mut_ptr(), size, at as i64) };
        read == size as c_long
    }
}

/// A directory that is open.
pub struct Directory(File);

impl Directory {
    const FLAGS: c_int = libc::O_RDONLY | libc::O_DIRECTORY;

    /// Opens one.
    pub fn open(path: &CStr) -> Result<Directory, c_int> {
        File::open(path, Directory::FLAGS).map(Directory)
    }

    /// One in it, which is no link.
    pub fn inner(&self, name: &CStr) -> Result<Directory, c_int> {
        self.open_at(name, Directory::FLAGS).map(Directory)
    }

    /// A file in it, to be read, which is no link.
    pub fn file(&self, name: &CStr) -> Result<File, c_int> {
        self.open_at(name, libc::O_RDONLY)
    }

    fn open_at(&self, name: &CStr, flags: c_int) -> Result<File, c_int> {
        let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: a descriptor, and a name that ends in NUL.
        let file = outcome(unsafe { libc::syscall(libc::SYS_openat, (self.0).0, name.as_ptr(), flags, 0) })?;
        Ok(File(file as c_int))
    }

    /// The number of the user whose it is.
    pub fn owner(&self) -> u32 {
        self.0.about().map_or(u32::MAX, |about| about.st_uid)
    }

    /// When it was last changed.
    pub fn mtime(&self) -> (i64, i64) {
        self.0.about().map_or((0, 0), |about| (about.st_mtime, about.st_mtime_nsec))
    }

    /// The names in it, no more than so many.
    pub fn names(&self, most: usize) -> Vec<CString> {
        let mut names = Vec::new();
        let mut buffer = [0u64; 1024];
        loop {
            let (into, size) = (buffer.as_mut_ptr(), size_of_val(&buffer));
            // SAFETY: a descriptor, and bytes that are ours to write.
            let read = outcome(unsafe { libc::syscall(libc::SYS_getdents64, (self.0).0, into, size) });
            let Ok(read @ 1..) = read else { return names };
            // SAFETY: the kernel has written so many of the buffer's bytes.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), (read as usize).min(size)) };
            let mut rest = bytes;
            // Each entry: two numbers of 8 bytes, its own length in 2, a kind, and the name, ended by NUL.
            while let Some(length) = rest.get(16..18).map(|it| usize::from(u16::from_ne_bytes([it[0], it[1]]))) {
                let Some(entry) = rest.get(..length).filter(|it| it.len() > 19) else { break };
                if names.len() == most {
                    return names;
                }
                names.extend(CStr::from_bytes_until_nul(&entry[19..]).map(CStr::to_owned));
                rest = &rest[length..];
            }
        }
    }
}

/// Copies memory of this process's own from several places, `size` bytes of each, as another process's would be: what is not there is
/// an error, and no signal. Says how many bytes were copied, up to the first that could not be.
pub fn copy_own(into: &mut [u64], from: &[usize], size: usize) -> Result<usize, c_int> {
    /// What the kernel takes at a time.
    const MOST: usize = 512;
    let from = &from[..from.len().min(MOST)];
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: (from.len() * size).min(size_of_val(into)) };
    let remote: Vec<libc::iovec> =
        from.iter().map(|at| libc::iovec { iov_base: *at as *mut c_void, iov_len: size }).collect();
    let (process, count) = (pid(), remote.len());
    // SAFETY: bytes that are ours to write, any of which are a value of words; where they come from the kernel checks.
    outcome(unsafe {
        libc::syscall(libc::SYS_process_vm_readv, process, &raw const local, 1usize, remote.as_ptr(), count, 0usize)
    })
    .map(|copied| copied as usize)
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor that `open` was given, and is nobody else's.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// This process, as it sees itself.
pub fn pid() -> u32 {
    // SAFETY: takes nothing and always succeeds.
    (unsafe { libc::getpid() }) as u32
}

/// The inode of the PID namespace that this process is in; 0 where it cannot be had.
pub fn pid_namespace() -> u64 {
    // SAFETY: numbers, for which zero is a value.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    let path = c"/proc/self/ns/pid".as_ptr();
    // SAFETY: a path that ends in NUL, and a place to write to, in the kernel's form, which is the C library's too.
    let result = unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, &raw mut about, 0) };
    if result == 0 { about.st_ino } else { 0 }
}

/// The number that the kernel gave itself when it was started; zeros where it cannot be had.
pub fn boot() -> [u64; 2] {
    let mut text = [0; 36];
    let read = File::open(c"/proc/sys/kernel/random/boot_id", libc::O_RDONLY).and_then(|file| file.read(&mut text));
    if read == Ok(text.len()) { hexadecimal(&text) } else { [0; 2] }
}

/// The first 32 digits of a text, as a number in two halves.
fn hexadecimal(text: &[u8]) -> [u64; 2] {
    let digits = text.iter().filter_map(|digit| char::from(*digit).to_digit(16));
    let number = digits.take(32).fold(0u128, |number, digit| number << 4 | u128::from(digit));
    [(number >> 64) as u64, number as u64]
}

/// A limit on the size of files that has room for one of so many bytes, until dropped. Whoever writes beyond the limit is killed by a
/// signal, unless the program knows better; batch systems set it.
pub struct RoomForFile(Option<libc::rlimit64>);

impl RoomForFile {
    /// `EFBIG`: the system does not let it be raised so far.
    pub fn of(bytes: u64) -> Result<RoomForFile, c_int> {
        let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
        limit_of_files(null(), &raw mut limit)?;
        if limit.rlim_cur >= bytes {
            return Ok(RoomForFile(None));
        }
        if limit.rlim_max < bytes {
            return Err(libc::EFBIG);
        }
        let raised = libc::rlimit64 { rlim_cur: bytes, ..limit };
        limit_of_files(&raw const raised, null_mut())?;
        Ok(RoomForFile(Some(limit)))
    }
}

impl Drop for RoomForFile {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = limit_of_files(std::ptr::from_ref(before), null_mut());
        }
    }
}

fn limit_of_files(new: *const libc::rlimit64, old: *mut libc::rlimit64) -> Result<(), c_int> {
    // SAFETY: this process's limit; places to read and to write, or none, in the kernel's form.
    outcome(unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, new, old) }).map(drop)
}

/// Measures how long somebody has waited.
pub struct Clock {
    begun: Duration,
    naps: u32,
}

impl Clock {
    fn now() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a place to write the time to.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// From now on.
    pub fn start() -> Clock {
        Clock { begun: Clock::now(), naps: 0 }
    }

    /// How long it has been.
    pub fn passed(&self) -> Duration {
        Clock::now().saturating_sub(self.begun)
    }

    /// Waits a little, and says how long it has been.
    pub fn nap(&mut self) -> Duration {
        self.naps += 1;
        sleep(Duration::from_micros(if self.naps < 50 { 20 } else { 1000 }));
        self.passed()
    }
}

/// For less than a second.
pub fn sleep(time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: a time to read, and none to write.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, null_mut::<c_void>()) };
}

/// Sleeps while the word, which is this process's alone, has this value; with a limit, for less than a second.
pub fn futex_wait(word: &AtomicU32, value: u32, limit: Option<Duration>) {
    let limit = limit.map(|time| libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() });
    let limit = limit.as_ref().map_or(null(), std::ptr::from_ref);
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that lives, and a time that does, or none.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, value, limit, null_mut::<c_void>(), 0) };
}

/// Wakes all that sleep on it.
pub fn futex_wake(word: &AtomicU32) {
    let (wake, nothing) = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, null_mut::<c_void>());
    // SAFETY: a word that lives.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, c_int::MAX, nothing, nothing, 0) };
}

/// Sleeps while the low half of a word that processes share has this value; for less than a second. `false`: there is no such word.
pub fn futex_wait_shared(word: usize, value: u32, limit: Duration) -> bool {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
    let nothing = null_mut::<c_void>();
    // SAFETY: a time that lives; whether there is a word the kernel checks, of which a little-endian machine has the low half first.
    let waited = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, &raw const limit, nothing, 0) };
    waited == 0 || ![libc::EFAULT, libc::EINVAL].contains(&errno())
}

/// Wakes all that sleep on it, in all processes.
pub fn futex_wake_shared(word: &crate::sync::AtomicU64) {
    let (low, nothing) = (std::ptr::from_ref(word).cast::<u32>(), null_mut::<c_void>());
    // SAFETY: a word that lives.
    unsafe { libc::syscall(libc::SYS_futex, low, libc::FUTEX_WAKE, c_int::MAX, nothing, nothing, 0) };
}

/// Runs `f` with all signals blocked, so that a thread made in it never runs the program's handlers.
///
/// (The C library leaves out the two signals by which it cancels threads and changes the user of all of them: a thread that
/// does not answer the latter would make `setuid` wait for ever.)
pub fn with_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: sets of bits, for which zero is a value; what was blocked before is put back.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let value = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        value
    }
}

/// Does something in the middle of which no handler of signals may run, because it might jump out of it, or end the thread: the value
/// of a lock would be half changed, and the lock never free again. Two system calls; nothing that a launch has to do comes by here.
///
/// Signals that an instruction raises are let through: one that is blocked ends the process, and that of a region which was cut
/// short is put right by a handler of ours.
pub fn with_no_handler<T>(work: impl FnOnce() -> T) -> T {
    struct Masked(u64);
    impl Drop for Masked {
        fn drop(&mut self) {
            set_mask(libc::SIG_SETMASK, self.0);
        }
    }
    const RAISED: [c_int; 7] =
        [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];
    // And the two by which the C library tells all threads of a new user, or cancels them, which it is told not to.
    let raised = RAISED.iter().fold(0b11 << 31, |set, signal| set | 1 << (signal - 1));
    let _masked = Masked(set_mask(libc::SIG_BLOCK, !raised));
    work()
}

/// Changes which signals are blocked; says which were.
fn set_mask(how: c_int, mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: sets of 64 bits, as the kernel has them. The C library's function would do the same with sets of 1024.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, size_of::<u64>());
    }
    before
}

/// Starts a thread that runs none of the program's signal handlers, and that nobody waits for. Returns the error number, or 0.
///
/// # Safety
/// The function may be run in another thread, with this argument, for as long as the process lives.
pub unsafe fn start_thread(run: extern "C" fn(*mut c_void) -> *mut c_void, argument: *mut c_void) -> c_int {
    let start = |stack: usize| {
        // SAFETY: the attributes are made, used and destroyed here; the function and what it is given are the caller's word.
        unsafe {
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            libc::pthread_attr_init(&raw mut attributes);
            libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
            if stack > 0 {
                libc::pthread_attr_setstacksize(&raw mut attributes, stack);
            }
            let mut thread: libc::pthread_t = std::mem::zeroed();
            let error = libc::pthread_create(&raw mut thread, &raw const attributes, run, argument);
            libc::pthread_attr_destroy(&raw mut attributes);
            error
        }
    };
    // Little is needed, but the C library takes the program's thread-local storage from the same memory.
    let mut error = libc::EINVAL;
    for size in [256 << 10, 1 << 20, 0] {
        if error == libc::EINVAL {
            error = with_signals_blocked(|| start(size));
        }
    }
    error
}

/// Runs `f` with `SIGBUS` let through, in a thread in which all signals are blocked: a region's file may be cut short at any
/// moment, and a handler that knows what to do about it ([`crate::rescue`]) must then be run. If it is blocked, the kernel
/// ends the process.
pub fn with_truncation_noticed<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: sets of bits, for which zero is a value; what was blocked before is put back.
    unsafe {
        let mut bus: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut bus, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const bus, &raw mut before);
        let value = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        value
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_boot_has_a_number() {
        assert_eq!(super::hexadecimal(b"00000000-0000-0001-0000-00000000000f"), [1, 15]);
        assert_ne!(super::boot(), [0; 2], "this kernel does not say which boot it is");
        assert_eq!(super::boot(), super::boot());
    }
}
