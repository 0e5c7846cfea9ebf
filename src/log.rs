//! Words to the person who looks at the program's standard error: few, and never on a path that the program repeats.
//!
//! `RATION_LOG` says how much. Each place in the code that logs has a limit of its own, so that nothing a program can do
//! floods its output; what was left out is counted and told with the next line.

use std::fmt::{Arguments, Write};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::sys::{self, Errno, Text};

/// How much is said, from the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Off,
    /// What the user asked for is not done.
    Error,
    /// Something is not as it should be, and was worked around.
    Warn,
    /// What the shim is doing, once.
    Info,
    /// More than that.
    Debug,
}

const LEVELS: [(&str, Level); 5] = [
    ("off", Level::Off),
    ("error", Level::Error),
    ("warn", Level::Warn),
    ("info", Level::Info),
    ("debug", Level::Debug),
];

static LEVEL: AtomicU8 = AtomicU8::new(Level::Warn as u8);
/// Which file standard error was when the shim began, so that it is never mistaken for one that got its number later.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Reads `RATION_LOG`. Called once, at the process's first hooked call.
pub fn begin() {
    let (device, inode) = standard_error().unwrap_or((0, 0));
    DEVICE.store(device, Ordering::Relaxed);
    INODE.store(inode, Ordering::Relaxed);
    if let Some(value) = sys::setting(c"RATION_LOG") {
        let text = value.to_str().unwrap_or("");
        match LEVELS.iter().find(|(name, _)| *name == text) {
            Some((_, level)) => LEVEL.store(*level as u8, Ordering::Relaxed),
            None => warn!("RATION_LOG={value:?} is none of off, error, warn, info, debug: going on with warn"),
        }
    }
    info!(concat!("this is libration.so ", env!("CARGO_PKG_VERSION"), " of ration"));
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map_or(("?", 0), |at| (at.file(), at.line()));
        error!("an error inside of the shim, at {}:{}; the program goes on without it", at.0, at.1);
    }));
}

fn standard_error() -> Option<(u64, u64)> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a place to write to.
    (unsafe { libc::fstat(2, &raw mut status) } == 0).then_some((status.st_dev, status.st_ino))
}

/// One place in the code that logs: at most [`Limit::BURST`] lines in [`Limit::WINDOW`] seconds.
pub struct Limit {
    /// Start of the present window, in whole seconds; 0: none yet.
    window: AtomicU64,
    said: AtomicU32,
    left_out: AtomicU32,
}

impl Limit {
    const BURST: u32 = 3;
    const WINDOW: u64 = 60;

    /// Nothing said yet.
    pub const fn new() -> Limit {
        Limit { window: AtomicU64::new(0), said: AtomicU32::new(0), left_out: AtomicU32::new(0) }
    }

    /// Whether a line may be written at this second, and how many were left out before it. Two threads at once may both
    /// be allowed one line too many, which is no harm.
    pub fn allows(&self, second: u64) -> Option<u32> {
        let begun = self.window.load(Ordering::Relaxed);
        if begun == 0 || second.saturating_sub(begun) >= Limit::WINDOW {
            self.window.store(second.max(1), Ordering::Relaxed);
            self.said.store(0, Ordering::Relaxed);
        }
        if self.said.fetch_add(1, Ordering::Relaxed) < Limit::BURST {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Writes a line. Use the macros, which bring the limit.
pub fn write(level: Level, limit: &Limit, message: Arguments<'_>) {
    if level as u8 > LEVEL.load(Ordering::Relaxed) {
        return;
    }
    let _errno = Errno::kept();
    let Some(left_out) = limit.allows(sys::now() as u64) else { return };
    let same = standard_error() == Some((DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed)));
    if !same {
        return;
    }
    let mut buffer = [0; 512];
    let room = buffer.len() - 1;
    let mut text = Text::new(&mut buffer[..room]);
    let _ = write!(text, "ration: {message}");
    if left_out > 0 {
        let _ = write!(text, " ({left_out} more like it before)");
    }
    let used = text.bytes().len();
    buffer[used] = b'\n';
    let _ = sys::write(2, &buffer[..=used]);
}

macro_rules! at {
    ($level:ident, $($message:tt)*) => {{
        static LIMIT: $crate::log::Limit = $crate::log::Limit::new();
        $crate::log::write($crate::log::Level::$level, &LIMIT, format_args!($($message)*));
    }};
}

macro_rules! error {
    ($($message:tt)*) => { $crate::log::at!(Error, $($message)*) };
}

macro_rules! warning {
    ($($message:tt)*) => { $crate::log::at!(Warn, $($message)*) };
}

macro_rules! info {
    ($($message:tt)*) => { $crate::log::at!(Info, $($message)*) };
}

pub(crate) use {at, error, info, warning as warn};

#[cfg(test)]
mod tests {
    use super::Limit;

    #[test]
    fn a_place_says_a_few_lines_a_minute_and_how_many_it_left_out() {
        let limit = Limit::new();
        for _ in 0..Limit::BURST {
            assert_eq!(limit.allows(100), Some(0));
        }
        for second in 100..100 + Limit::WINDOW {
            assert_eq!(limit.allows(second), None, "at {second}");
        }
        assert_eq!(limit.allows(100 + Limit::WINDOW), Some(Limit::WINDOW as u32));
        assert_eq!(limit.allows(100 + Limit::WINDOW), Some(0));
    }
}
