//! `RATION_TRACE`: which functions were called and how often, or each call as it is made.
//!
//! A file of counts is appended to, one piece per process, so that a whole tree of processes can share it:
//!
//! ```text
//! # ration trace 1: pid 1234 /usr/bin/python3.11
//! 1234 cuInit 1
//! 1234 cuMemAlloc_v2 20
//! ```
//!
//! A reader adds up the lines of a process and a symbol. What is called after the piece was written, in the destructors of
//! other libraries, follows in lines of its own.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::fmt::Write;
use std::os::raw::c_char;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::driver::{Place, Stream};
use crate::ops::{self, Reason};
use crate::sys::{self, Errno, Text};
use crate::table::{COUNT, Library, ROWS};
use crate::thread::{self, ShortLock};
use crate::{entry, ledger, log};

/// The process whose counts these are; 0: nothing is traced.
static TRACED: AtomicI32 = AtomicI32::new(0);
/// Counts that are in the file already.
static WRITTEN: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];
/// Counts of threads that could not be given a block.
static BLOCKLESS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];
/// Held while counts are written.
static WRITING: ShortLock = ShortLock::new();
static FILE: Shared<[u8; PATH]> = Shared(UnsafeCell::new([0; PATH]));
static PIECE: Shared<[u8; 64 * 1024]> = Shared(UnsafeCell::new([0; 64 * 1024]));
const PATH: usize = 4096;

/// Memory with one writer at a time, by the rules of those who use it.
struct Shared<T>(UnsafeCell<T>);

// SAFETY: FILE is written by `begin` alone, before TRACED says that there is something to trace; PIECE under WRITING.
unsafe impl<T> Sync for Shared<T> {}

/// Where the trace goes.
fn file() -> &'static CStr {
    // SAFETY: written once, by `begin`, which happened before anything is traced; its last byte stays 0.
    CStr::from_bytes_until_nul(unsafe { &*FILE.0.get() }).unwrap_or(c"")
}

/// Reads `RATION_TRACE`. Called once, at the process's first hooked call; which may be made at its very end, when nothing
/// will call [`write_counts`] any more.
pub fn begin(ended: bool) {
    let Some(value) = sys::setting(c"RATION_TRACE") else { return };
    let (calls, path) = match value.to_bytes().strip_prefix(b"calls:") {
        Some(path) => (true, path),
        None => (false, value.to_bytes()),
    };
    // SAFETY: nobody else looks at it yet: TRACED is 0, and there is one beginning.
    if path.is_empty() || !absolute(path, unsafe { &mut *FILE.0.get() }) {
        log::warn!("RATION_TRACE={value:?} names no file: give a path, or calls: and a path. Nothing is traced");
        return;
    }
    // SAFETY: takes nothing and always succeeds.
    TRACED.store(unsafe { libc::getpid() }, Ordering::Release);
    if calls {
        entry::watch_for(entry::CALLS);
        return;
    }
    if ended {
        entry::watch_for(entry::LATE);
    }
    at_fatal_signals();
    // SAFETY: a function that stays loaded.
    unsafe { at_quick_exit(write_counts_at_quick_exit) };
}

unsafe extern "C" {
    #[link_name = "__cxa_at_quick_exit"]
    fn register_at_quick_exit(function: extern "C" fn(*mut std::ffi::c_void), dso: *mut std::ffi::c_void) -> c_int;
}

unsafe fn at_quick_exit(function: extern "C" fn(*mut std::ffi::c_void)) {
    // SAFETY: the caller's word for the function. glibc keeps a list; no handle, so it is never taken off.
    unsafe { register_at_quick_exit(function, std::ptr::null_mut()) };
}

extern "C" fn write_counts_at_quick_exit(_: *mut std::ffi::c_void) {
    write_counts();
}

/// The path, from the root: the program may go to another directory before the trace is written.
fn absolute(path: &[u8], to: &mut [u8; PATH]) -> bool {
    let mut text = Text::new(&mut to[..PATH - 1]);
    if path[0] != b'/' {
        let mut here = [0; PATH];
        // SAFETY: room for a path; what is written ends in NUL.
        let found = unsafe { libc::getcwd(here.as_mut_ptr().cast::<c_char>(), here.len()) };
        let Some(here) = CStr::from_bytes_until_nul(&here).ok().filter(|_| !found.is_null()) else { return false };
        text.push(here.to_bytes());
        text.push(b"/");
    }
    let whole = text.bytes().len() + path.len() < PATH - 1;
    text.push(path);
    whole
}

/// Whether this is the process whose counts are traced; not so in a child that shares its parent's memory (`vfork`).
fn traced() -> Option<i32> {
    let traced = TRACED.load(Ordering::Acquire);
    // SAFETY: takes nothing and always succeeds.
    (traced != 0 && traced == unsafe { libc::getpid() }).then_some(traced)
}

/// In a forked child: its own counts, from zero.
pub fn forget_the_parent() {
    for id in 0..COUNT {
        WRITTEN[id].store(0, Ordering::Relaxed);
        BLOCKLESS[id].store(0, Ordering::Relaxed);
    }
    WRITING.free();
    if TRACED.load(Ordering::Acquire) != 0 {
        // SAFETY: takes nothing and always succeeds.
        TRACED.store(unsafe { libc::getpid() }, Ordering::Release);
    }
}

/// Counts a call in a thread for which there was no memory.
pub fn count_without_a_thread(id: usize) {
    BLOCKLESS[id].fetch_add(1, Ordering::Relaxed);
}

/// Writes the counts that the file does not have yet. Later calls are then written as they are made.
///
/// May be called from a signal handler: allocates nothing, and waits for no other thread for long.
pub fn write_counts() {
    let Some(pid) = traced().filter(|_| !entry::watches_for(entry::CALLS)) else { return };
    let _errno = Errno::kept();
    entry::watch_for(entry::LATE);
    let Some(_writing) = WRITING.take() else { return };
    // SAFETY: WRITING is held.
    let mut text = Text::new(unsafe { &mut *PIECE.0.get() });
    let first = WRITTEN.iter().all(|written| written.load(Ordering::Relaxed) == 0);
    if first {
        let _ = write!(text, "# ration trace 1: pid {pid} ");
        program(&mut text);
        text.push(b"\n");
    }
    let heading = text.bytes().len();
    for (id, row) in ROWS.iter().enumerate() {
        let total = thread::total(id).wrapping_add(BLOCKLESS[id].load(Ordering::Relaxed));
        let before = WRITTEN[id].swap(total, Ordering::Relaxed);
        if total != before {
            let _ = write!(text, "{pid} ");
            text.push(row.symbol.to_bytes());
            let _ = writeln!(text, " {}", total.wrapping_sub(before));
        }
    }
    if text.bytes().len() == heading {
        return;
    }
    for reason in Reason::ALL.into_iter().filter(|_| first) {
        if ops::bypassed(reason) != 0 {
            let _ = writeln!(text, "# bypassed, {}: {}", reason.name(), ops::bypassed(reason));
        }
    }
    if first && ledger::losses() != 0 {
        let _ = writeln!(text, "# places in a region lost: {}", ledger::losses());
    }
    if first && ops::refusals() != 0 {
        let _ = writeln!(text, "# refused, not knowing what may be had: {}", ops::refusals());
    }
    append(text.bytes());
}

/// The name of the program's file.
fn program(text: &mut Text<'_>) {
    let mut path = [0; 1024];
    // SAFETY: a path that ends in NUL, and room for what it leads to.
    let length = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), path.len()) };
    text.push(&path[..usize::try_from(length).unwrap_or(0)]);
}

fn append(bytes: &[u8]) {
    match sys::append(file(), bytes) {
        Ok(()) => {}
        // The program has no descriptor left, or the disk no room: the next line may do better.
        Err(error @ (libc::EMFILE | libc::ENFILE | libc::ENOSPC | libc::EDQUOT | libc::EINTR)) => {
            log::warn!("RATION_TRACE: a piece of the trace is missing in {:?} (error {error})", file());
        }
        Err(error) => {
            if TRACED.swap(0, Ordering::AcqRel) != 0 {
                log::warn!("RATION_TRACE: cannot write to {:?} (error {error}): the program goes on untraced", file());
            }
            entry::stop_watching_for(entry::CALLS | entry::LATE);
        }
    }
}

/// An argument of a call, as the trace shows it.
#[derive(Debug, Clone, Copy)]
pub enum Arg {
    /// A number.
    Number(i128),
    /// A handle or an address.
    Pointer(usize),
    /// Something else, passed by value.
    Struct,
}

macro_rules! numbers {
    ($($kind:ty),*) => { $(impl From<$kind> for Arg {
        fn from(number: $kind) -> Arg {
            Arg::Number(number as i128)
        }
    })* };
}
numbers!(i8, u8, i16, u16, i32, u32, i64, u64, usize);

impl<T> From<*const T> for Arg {
    fn from(pointer: *const T) -> Arg {
        Arg::Pointer(pointer as usize)
    }
}

impl<T> From<*mut T> for Arg {
    fn from(pointer: *mut T) -> Arg {
        Arg::Pointer(pointer as usize)
    }
}

impl<F: Copy> From<Option<F>> for Arg {
    /// A function, or null.
    fn from(function: Option<F>) -> Arg {
        if size_of::<Option<F>>() != size_of::<usize>() {
            return Arg::Struct;
        }
        // SAFETY: as large as an address, and an address is what an optional function of C is.
        Arg::Pointer(unsafe { std::mem::transmute_copy(&function) })
    }
}

/// What the trace shows of a call besides its name.
pub struct Shown {
    args: [Arg; Shown::MOST],
    count: usize,
    stream: Option<Stream>,
}

impl Shown {
    /// No function of the driver takes more.
    const MOST: usize = 16;

    /// The arguments, and the stream among them.
    pub fn new(given: &[Arg], stream: Option<Stream>) -> Shown {
        let mut args = [Arg::Struct; Shown::MOST];
        let count = given.len().min(Shown::MOST);
        args[..count].copy_from_slice(&given[..count]);
        Shown { args, count, stream }
    }
}

/// Writes a line for a call that has returned.
pub fn write_call(id: usize, shown: &Shown, result: u32) {
    let Some(pid) = traced() else { return };
    let _errno = Errno::kept();
    let mut buffer = [0; 768];
    let mut text = Text::new(&mut buffer);
    let _ = write!(text, "{pid} {} {:.6} ", thread::number(), sys::now());
    text.push(ROWS[id].symbol.to_bytes());
    for (number, arg) in shown.args[..shown.count].iter().enumerate() {
        text.push(if number == 0 { b"(" } else { b", " });
        let _ = match arg {
            Arg::Number(value) => write!(text, "{value}"),
            Arg::Pointer(value) => write!(text, "{value:#x}"),
            Arg::Struct => write!(text, "{{…}}"),
        };
    }
    let _ = write!(text, "{}) = {result}", if shown.count == 0 { "(" } else { "" });
    if ROWS[id].library == Library::Driver
        && let Some(place) = Place::current()
    {
        let capturing = shown.stream.is_some_and(Stream::is_capturing);
        let _ = write!(text, " [device {}", place.device);
        let _ = write!(text, ", context {:#x}{}]", place.context as usize, if capturing { ", capturing" } else { "" });
    }
    text.push(b"\n");
    append(text.bytes());
}

/// Signals that end a process unless it takes care of them.
const FATAL: [c_int; 15] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

/// Writes the counts when one of these ends the process. Only while tracing, and only where nobody else cares for it.
fn at_fatal_signals() {
    for signal in FATAL {
        // SAFETY: structures of integers and null pointers, for which zero is a value; places to read from and write to.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut before) != 0 || before.sa_sigaction != libc::SIG_DFL {
                continue;
            }
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = at_fatal_signal as *const () as usize;
            // One shot: the default action is back when the handler runs, and a second signal ends the process at once.
            ours.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER | libc::SA_ONSTACK | libc::SA_SIGINFO;
            libc::sigaction(signal, &raw const ours, std::ptr::null_mut());
        }
    }
}

extern "C" fn at_fatal_signal(signal: c_int, info: *const libc::siginfo_t, _context: *mut std::ffi::c_void) {
    write_counts();
    // A fault happens again when the handler returns, at the instruction where it happened, and now ends the process; that
    // leaves the better core file. A signal that was sent is sent again.
    // SAFETY: the kernel gives the handler a valid description of the signal.
    let fault =
        unsafe { (*info).si_code } > 0 && matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE);
    if !fault {
        // SAFETY: to this thread, with its own numbers.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread::number(), signal) };
    }
}
