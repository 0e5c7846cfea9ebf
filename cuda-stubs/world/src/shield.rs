//! Calls that a program may leave where they wait, by a jump out of a handler: in all the rest of such a call signals are
//! held back, for a lock of the driver's that is left behind would stop its process, and one of the world's everybody's.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::life::{block_all, set_blocked};

/// Whether this process's calls are like that.
static IS_UP: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// In a call, outside of its waits: what was blocked before it.
    static BEFORE: Cell<Option<libc::sigset_t>> = const { Cell::new(None) };
}

/// From now on this process's calls are like that.
pub fn raise() {
    IS_UP.store(true, Ordering::Relaxed);
}

/// Runs a call.
#[inline]
pub fn call<T>(body: impl FnOnce() -> T) -> T {
    if IS_UP.load(Ordering::Relaxed) { shielded(body) } else { body() }
}

fn shielded<T>(body: impl FnOnce() -> T) -> T {
    if BEFORE.get().is_some() {
        return body();
    }
    BEFORE.set(Some(block_all()));
    let value = body();
    if let Some(before) = BEFORE.take() {
        set_blocked(&before);
    }
    value
}

/// Runs a wait of a call's. It may not come back.
pub fn wait<T>(body: impl FnOnce() -> T) -> T {
    let Some(before) = BEFORE.take() else { return body() };
    set_blocked(&before);
    let value = body();
    BEFORE.set(Some(block_all()));
    value
}
