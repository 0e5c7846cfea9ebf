//! What is done about a call, in plain Rust.
//!
//! An op is given the caller's arguments and a [`Call`], through which it asks the driver. It ends in one of three
//! [`Outcome`]s, so that letting a call through unanswered is a decision with a name and not an accident.

pub mod code;
pub mod contexts;
pub mod graphs;
pub mod launches;
pub mod memory;
pub mod moves;
pub mod paced;
pub mod pools;
pub mod report;
pub mod resolver;
pub mod sharing;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::cuda::{CUDA_ERROR_NOT_PERMITTED, CUDA_SUCCESS};
use crate::ledger::{self, Unheld};
use crate::log;
use crate::table::ROWS;

/// How an op ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The driver was asked, and the program is told this.
    Done(u32),
    /// The program is told this, which is a code that the driver itself might have given.
    Refused(u32),
    /// The shim stands aside: what the driver answers is what the program is told.
    Bypassed(Reason),
}

/// Why the shim stood aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The call was made from inside of an op in the same thread.
    Reentered,
    /// The op had an error of its own.
    Panicked,
    /// There was no memory for what the shim keeps per thread.
    NoMemory,
    /// The driver did it without a context, so that nobody knew on which GPU.
    NoContext,
    /// The driver did it on a GPU that it does not know of.
    NoDevice,
    /// The driver did it without an argument that tells how much it takes.
    NoArgument,
    /// The driver did not tell what has to be known in order to hold the call to a limit.
    Untold,
}

impl Reason {
    /// All of them, in the order of their counters.
    pub const ALL: [Reason; 7] = [
        Reason::Reentered,
        Reason::Panicked,
        Reason::NoMemory,
        Reason::NoContext,
        Reason::NoDevice,
        Reason::NoArgument,
        Reason::Untold,
    ];

    /// For the trace and the log.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Reentered => "reentered",
            Reason::Panicked => "panicked",
            Reason::NoMemory => "no memory",
            Reason::NoContext => "no context",
            Reason::NoDevice => "no device",
            Reason::NoArgument => "no argument",
            Reason::Untold => "the driver did not tell",
        }
    }
}

static BYPASSED: [AtomicU64; Reason::ALL.len()] = [const { AtomicU64::new(0) }; Reason::ALL.len()];

/// Counts a call that the shim stood aside for, and says so where that is a fault.
#[cold]
#[inline(never)]
pub fn note_bypass(id: usize, reason: Reason) {
    BYPASSED[reason as usize].fetch_add(1, Ordering::Relaxed);
    if reason == Reason::Panicked {
        log::warn!("an error inside of the shim in {:?}: the call went to the driver unchanged", ROWS[id].symbol);
    }
}

/// Calls that were refused because nobody knew what the process may have.
static REFUSALS: AtomicU64 = AtomicU64::new(0);

/// Counts a call that was refused because nobody knows what the process may have.
pub fn note_refusal() {
    REFUSALS.fetch_add(1, Ordering::Relaxed);
}

/// How many were.
pub fn refusals() -> u64 {
    REFUSALS.load(Ordering::Relaxed)
}

/// In a forked child: nothing was bypassed or refused yet.
pub fn forget_the_parent() {
    REFUSALS.store(0, Ordering::Relaxed);
    BYPASSED.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    memory::forget_contexts();
    contexts::forget_the_parent();
    graphs::forget_the_parent();
    pools::forget_the_parent();
    crate::steer::forget_the_parent();
}

/// How often the shim stood aside for a reason.
pub fn bypassed(reason: Reason) -> u64 {
    BYPASSED[reason as usize].load(Ordering::Relaxed)
}

/// The call that an op answers, and its way to the driver.
pub struct Call<'a> {
    driver: &'a dyn Fn() -> u32,
    result: Option<u32>,
}

impl<'a> Call<'a> {
    /// A call that the driver has not seen yet.
    pub fn new(driver: &'a dyn Fn() -> u32) -> Call<'a> {
        Call { driver, result: None }
    }

    /// Asks the driver, with the caller's own arguments.
    pub fn driver(&mut self) -> u32 {
        let result = (self.driver)();
        self.result = Some(result);
        result
    }

    /// What the driver answered last.
    pub fn result(&self) -> Option<u32> {
        self.result
    }
}

impl Unheld {
    /// Asks the driver, although there is nothing that the call is held to.
    pub fn ask(self, call: &mut Call<'_>) -> Outcome {
        self.end(call, |call| Outcome::Done(call.driver()))
    }

    /// Does what asks the driver. Where nothing was asked for, that is all there is to it, and where the driver does not do it, nothing
    /// was taken. What is left is a bypass; and where all must be held, it is refused if nobody can tell what it is held to.
    pub fn end(self, call: &mut Call<'_>, go: impl FnOnce(&mut Call<'_>) -> Outcome) -> Outcome {
        self.end_where(ledger::wants_all_held, call, go)
    }

    fn end_where(
        self,
        all_is_held: impl FnOnce() -> bool,
        call: &mut Call<'_>,
        go: impl FnOnce(&mut Call<'_>) -> Outcome,
    ) -> Outcome {
        let reason = match self {
            Unheld::NoLimit => return go(call),
            Unheld::NoContext => Reason::NoContext,
            Unheld::NoDevice => Reason::NoDevice,
            Unheld::NoArgument => Reason::NoArgument,
            Unheld::Untold if all_is_held() => return Outcome::Refused(CUDA_ERROR_NOT_PERMITTED),
            Unheld::Untold => Reason::Untold,
        };
        match go(call) {
            Outcome::Done(CUDA_SUCCESS) => Outcome::Bypassed(reason),
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{Call, Outcome, Reason, Unheld};

    /// What becomes of a call that the driver answers with `code`, and how often the driver was asked.
    fn end(unheld: Unheld, code: u32, all_is_held: bool) -> (Outcome, u32) {
        let asked = Cell::new(0);
        let driver = || {
            asked.set(asked.get() + 1);
            code
        };
        let outcome = unheld.end_where(|| all_is_held, &mut Call::new(&driver), |call| Outcome::Done(call.driver()));
        (outcome, asked.get())
    }

    #[test]
    fn what_nobody_limits_is_no_bypass() {
        for strict in [false, true] {
            assert_eq!(end(Unheld::NoLimit, 0, strict), (Outcome::Done(0), 1));
        }
    }

    #[test]
    fn what_the_driver_refuses_itself_is_no_bypass_and_what_it_does_is_one() {
        for (unheld, reason) in [
            (Unheld::NoContext, Reason::NoContext),
            (Unheld::NoDevice, Reason::NoDevice),
            (Unheld::NoArgument, Reason::NoArgument),
        ] {
            for strict in [false, true] {
                assert_eq!(end(unheld, 201, strict), (Outcome::Done(201), 1));
                assert_eq!(end(unheld, 0, strict), (Outcome::Bypassed(reason), 1));
            }
        }
    }

    #[test]
    fn what_the_driver_does_not_tell_is_a_bypass_or_strictly_refused() {
        assert_eq!(end(Unheld::Untold, 0, false), (Outcome::Bypassed(Reason::Untold), 1));
        assert_eq!(end(Unheld::Untold, 0, true), (Outcome::Refused(800), 0));
    }
}
