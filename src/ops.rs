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
}

impl Reason {
    /// All of them, in the order of their counters.
    pub const ALL: [Reason; 3] = [Reason::Reentered, Reason::Panicked, Reason::NoMemory];

    /// For the trace and the log.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Reentered => "reentered",
            Reason::Panicked => "panicked",
            Reason::NoMemory => "no memory",
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

/// In a forked child: nothing was bypassed yet.
pub fn forget_the_parent() {
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
