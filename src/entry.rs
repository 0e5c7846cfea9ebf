//! The C edge: every call of a program comes in here, and goes on to the original.
//!
//! Three ways through, from the cheapest:
//! - [`pass`]: the call is counted and the exported function jumps to the original. No frame, no lock, no atomic
//!   read-modify-write; what it needs is found by one look at the thread's block and one at the row's original.
//! - [`watch`]: there is more to do: the first call of a thread or of a row, a line for the trace, another library behind us.
//! - [`answer`]: the row has an op in `ops`. It runs behind a re-entry guard and a panic firewall.
//!
//! While nobody knows what the process may have ([`REFUSING`]), no call simply passes, and those of rows that take something end
//! in [`watch`] or [`answer`], before the driver is asked.
//!
//! A row whose call is merely passed leaves no frame of ours on the stack, so cancellation and unwinding inside the driver
//! are the program's own affair, as without us.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::abi::cuda::CUDA_ERROR_NOT_PERMITTED;
use crate::ops::{self, Call, Outcome, Reason};
use crate::table::{ROWS, Takes};
use crate::thread::Thread;
use crate::trace::{self, Shown};
use crate::{driver, ledger, left, sys};

/// Which of a row's two functions was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// The exported one: what comes behind is whoever is next in the order of loading.
    Exported,
    /// The one that the resolver gave out for a look-up in a particular library.
    Handed,
}

/// Reasons for which a call must not simply pass: any bit set sends every call to [`watch`].
static WATCH: AtomicU32 = AtomicU32::new(0);

/// Every call is written down.
pub const CALLS: u32 = 1;
/// The counts were written already, and a call made now would be missed.
pub const LATE: u32 = 2;
/// Another library stands between us and the driver, and may come back to us with the same call.
pub const CHAINED: u32 = 4;

/// The process is held to a slice: calls that an op answers go to it.
pub const SLICED: u32 = 8;
/// Nobody knows what the process may have: calls of rows that take something are refused.
pub const REFUSING: u32 = 16;
/// All of them.
pub const ANY: u32 = u32::MAX;

/// From now on every call is watched, for this reason.
pub fn watch_for(reason: u32) {
    WATCH.fetch_or(reason, Ordering::Release);
}

/// Whether calls are watched for this reason.
pub fn watches_for(reason: u32) -> bool {
    WATCH.load(Ordering::Acquire) & reason != 0
}

/// Not any more.
pub fn stop_watching_for(reason: u32) {
    WATCH.fetch_and(!reason, Ordering::AcqRel);
}

/// Counts the call and says where it goes; `None`: it wants [`watch`] or [`answer`], for one of these reasons.
#[inline(always)]
pub fn pass<const REASONS: u32>(id: usize) -> Option<*const ()> {
    let thread = Thread::attached()?;
    if WATCH.load(Ordering::Relaxed) & REASONS != 0 {
        return None;
    }
    let original = driver::next_if_known(id)?;
    thread.count(id);
    Some(original)
}

/// The same for a call that an op answers in a slice, where the op would have nothing to do.
#[inline(always)]
pub fn pass_if(id: usize, has_nothing_to_do: impl FnOnce() -> bool) -> Option<*const ()> {
    let thread = Thread::attached()?;
    let watch = WATCH.load(Ordering::Relaxed);
    if watch != 0 && (watch != SLICED || !has_nothing_to_do()) {
        return None;
    }
    let original = driver::next_if_known(id)?;
    thread.count(id);
    Some(original)
}

/// A call's way out when there is more to do than to count.
pub fn watch(id: usize, door: Door, shown: &dyn Fn() -> Shown, call: &dyn Fn(*const ()) -> u32) -> u32 {
    let thread = Thread::attach();
    let way = match Way::out(id, door, thread) {
        Ok(way) => way,
        Err(code) => return code,
    };
    way.count(id, thread);
    let result = if is_refused(id) { refusal() } else { way.go(id, thread, call) };
    settle(id, &way, shown, result);
    result
}

/// Whether a call takes something of a GPU while nobody knows what the process may have. (What the shim itself asks of the driver
/// does not come by here, so an op that is under way when that begins is not left half done.)
#[inline]
fn is_refused(id: usize) -> bool {
    watches_for(REFUSING) && ROWS[id].takes != Takes::Nothing && !ledger::refuses_no_more()
}

/// What a program is told whose call is refused for that. It is counted, and not logged: why is said once, when it begins.
#[cold]
fn refusal() -> u32 {
    ops::note_refusal();
    CUDA_ERROR_NOT_PERMITTED
}

/// A call that an op answers in a process that has a slice, and only there.
pub fn answer_in_a_slice(
    id: usize,
    door: Door,
    shown: &dyn Fn() -> Shown,
    call: &dyn Fn(*const ()) -> u32,
    op: &mut dyn FnMut(&mut Call<'_>) -> Outcome,
) -> u32 {
    // A thread's first call of all: only now the settings are known.
    thread_of_call();
    if watches_for(SLICED) { answer(id, door, shown, call, op) } else { watch(id, door, shown, call) }
}

/// The calling thread's block. It has one already in all of its calls but the first.
#[inline(always)]
fn thread_of_call() -> Option<&'static Thread> {
    match Thread::attached() {
        None => Thread::attach(),
        attached => attached,
    }
}

/// A call that an op answers.
pub fn answer(
    id: usize,
    door: Door,
    shown: &dyn Fn() -> Shown,
    call: &dyn Fn(*const ()) -> u32,
    op: &mut dyn FnMut(&mut Call<'_>) -> Outcome,
) -> u32 {
    let thread = thread_of_call();
    let way = match Way::out(id, door, thread) {
        Ok(way) => way,
        Err(code) => return code,
    };
    way.count(id, thread);
    let result = if is_refused(id) {
        refusal()
    } else {
        // What the op found out may be that nobody knows any more what the process may have.
        let refused = |code| if code == CUDA_ERROR_NOT_PERMITTED || is_refused(id) { refusal() } else { code };
        run(thread, &|| way.go(id, thread, call), op, refused, |reason| ops::note_bypass(id, reason))
    };
    settle(id, &way, shown, result);
    result
}

/// Runs an op behind the re-entry guard and the panic firewall. Whatever happens in it, the program gets an answer, and the
/// driver is asked once for it where the op did not say otherwise. If the program never comes back from it, see [`left`].
fn run(
    thread: Option<&'static Thread>,
    driver: &dyn Fn() -> u32,
    op: &mut dyn FnMut(&mut Call<'_>) -> Outcome,
    refused: impl FnOnce(u32) -> u32,
    bypassed: impl FnOnce(Reason),
) -> u32 {
    // What the driver leaves in it is the program's, and nothing of what is done beside.
    let errno = Cell::new(sys::error());
    let ask = || {
        sys::set_error(errno.get());
        let result = left::away(driver);
        errno.set(sys::error());
        result
    };
    let mut asked = Call::new(&ask);
    // The op's own state is gone with a panic; what the driver did is in `asked`, and nothing else is shared.
    let mut guarded =
        || catch_unwind(AssertUnwindSafe(|| op(&mut asked))).unwrap_or(Outcome::Bypassed(Reason::Panicked));
    let outcome = match thread {
        None => Outcome::Bypassed(Reason::NoMemory),
        Some(thread) => left::within(thread, &mut guarded).unwrap_or(Outcome::Bypassed(Reason::Reentered)),
    };
    sys::set_error(errno.get());
    match outcome {
        Outcome::Done(result) => result,
        Outcome::Refused(code) => refused(code),
        Outcome::Bypassed(reason) => {
            bypassed(reason);
            sys::set_error(errno.get());
            asked.result().unwrap_or_else(driver)
        }
    }
}

/// Where a call goes from here.
struct Way {
    target: *const (),
    by: By,
}

/// What stands between us and the driver. (As large as an address, so that a [`Way`] is two words and nothing else.)
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
enum By {
    /// Nothing: the target is the driver's own.
    Nobody,
    /// The target is another library, which may come back.
    Another,
    /// The call went to another library, which came back to us with it: it has been counted before.
    AnotherAgain,
}

impl Way {
    /// `Err`: there is no original, and this is what the program is told.
    #[inline]
    fn out(id: usize, door: Door, thread: Option<&Thread>) -> Result<Way, u32> {
        // Where no other library stands behind us, none can have come back, and there is one way. Who finds one says so before
        // the way leads there.
        let next = driver::next_if_known(id);
        fence(Ordering::Acquire);
        match next {
            Some(target) if door == Door::Exported && !watches_for(CHAINED) => Ok(Way { target, by: By::Nobody }),
            _ => Way::found(id, door, thread),
        }
    }

    #[cold]
    fn found(id: usize, door: Door, thread: Option<&Thread>) -> Result<Way, u32> {
        let original = driver::original(id);
        if thread.is_some_and(|thread| thread.comes_back(id)) {
            let target = original.ok_or_else(|| driver::code_for_missing(id))?;
            return Ok(Way { target, by: By::AnotherAgain });
        }
        let target = match door {
            Door::Exported => driver::next(id),
            Door::Handed => driver::handed(id),
        };
        let target = target.ok_or_else(|| driver::code_for_missing(id))?;
        Ok(Way { target, by: if Some(target) == original { By::Nobody } else { By::Another } })
    }

    fn count(&self, id: usize, thread: Option<&Thread>) {
        if self.by != By::AnotherAgain {
            match thread {
                Some(thread) => thread.count(id),
                None => trace::count_without_a_thread(id),
            }
        }
    }

    #[inline]
    fn go(&self, id: usize, thread: Option<&'static Thread>, call: &dyn Fn(*const ()) -> u32) -> u32 {
        if self.by != By::Another {
            return call(self.target);
        }
        match thread {
            Some(thread) => thread.pass_through(id, || call(self.target)),
            None => call(self.target),
        }
    }
}

/// After the driver's answer: what the trace wants to know.
#[inline]
fn settle(id: usize, way: &Way, shown: &dyn Fn() -> Shown, result: u32) {
    let watch = WATCH.load(Ordering::Acquire);
    if watch & (CALLS | LATE) != 0 && way.by != By::AnotherAgain {
        write(id, watch, shown, result);
    }
}

#[cold]
fn write(id: usize, watch: u32, shown: &dyn Fn() -> Shown, result: u32) {
    if watch & CALLS != 0 {
        trace::write_call(id, &shown(), result);
    } else {
        trace::write_counts();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::run;
    use crate::ops::{Call, Outcome, Reason};
    use crate::thread::Thread;

    /// Runs an op on a driver that answers 7; returns the answer, how often the driver was asked, and the bypass.
    fn trial(op: &mut dyn FnMut(&mut Call<'_>) -> Outcome) -> (u32, u32, Option<Reason>) {
        let asked = Cell::new(0);
        let bypass = Cell::new(None);
        let driver = || {
            asked.set(asked.get() + 1);
            7
        };
        let answer = run(Thread::attach(), &driver, op, |code| code, |reason| bypass.set(Some(reason)));
        (answer, asked.get(), bypass.get())
    }

    #[test]
    fn an_op_decides_what_the_program_is_told() {
        assert_eq!(trial(&mut |call| Outcome::Done(call.driver() + 1)), (8, 1, None));
        assert_eq!(trial(&mut |_| Outcome::Refused(2)), (2, 0, None));
    }

    #[test]
    fn a_panic_never_reaches_the_program_and_asks_the_driver_once() {
        assert_eq!(trial(&mut |_| panic!("before")), (7, 1, Some(Reason::Panicked)));
        let after = &mut |call: &mut Call<'_>| {
            call.driver();
            panic!("after")
        };
        assert_eq!(trial(after), (7, 1, Some(Reason::Panicked)));
        // The guard was let go on the way out.
        assert_eq!(trial(&mut |call| Outcome::Done(call.driver())), (7, 1, None));
    }

    #[test]
    fn an_op_inside_of_an_op_stands_aside() {
        let mut inner = Vec::new();
        let outer = trial(&mut |call| {
            // Every one of them, not only the first.
            inner.extend((0..3).map(|_| trial(&mut |_| Outcome::Refused(2))));
            Outcome::Done(call.driver())
        });
        assert_eq!(outer, (7, 1, None));
        assert_eq!(inner, [(7, 1, Some(Reason::Reentered)); 3]);
    }

    #[test]
    fn without_memory_for_a_block_the_driver_answers() {
        let bypassed = |reason| assert_eq!(reason, Reason::NoMemory);
        assert_eq!(run(None, &|| 7, &mut |_| Outcome::Refused(2), |code| code, bypassed), 7);
    }
}
