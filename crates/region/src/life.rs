//! Knowing that somebody is gone, whatever its PID namespace and however it went.
//!
//! A *life word* is a robust futex, as the kernel knows it: it holds the number of a thread. When that thread ends, the
//! kernel itself replaces the number by [`DIED`]. The thread is the process's keeper ([`crate::keeper`]), which ends with
//! its process: at exit, by a signal, at exec. No descriptor is involved that a program could close, and no PID has to
//! be looked up.

use crate::sync::{AtomicU32, SeqCst};

/// The kernel's mark that the thread which held a word is gone: `FUTEX_OWNER_DIED`.
pub const DIED: u32 = 0x4000_0000;
/// Held by a process that could not start a keeper, in memory that no other process has. No thread has this number.
pub const UNKEPT: u32 = 0x3fff_ffff;

/// Whether this word's holder is gone.
#[inline]
pub fn is_over(word: &AtomicU32) -> bool {
    word.load(SeqCst) & DIED != 0
}

/// Whether somebody holds it, and is there.
#[inline]
pub fn is_held(word: &AtomicU32) -> bool {
    let value = word.load(SeqCst);
    value != 0 && value & DIED == 0
}

/// A thread that may hold life words.
pub trait Owner {
    /// Takes a word that has the value `from`: 0, or one with [`DIED`]. False if it has another. From then on, until it is given
    /// back, the owner's death is marked in it.
    fn take(&self, word: &AtomicU32, from: u32) -> bool;
    /// Gives back a word that was taken: it becomes 0, unless it has another number than this owner's. Either way, the owner's
    /// death is not marked in it any more.
    fn give(&self, word: &AtomicU32);
}
