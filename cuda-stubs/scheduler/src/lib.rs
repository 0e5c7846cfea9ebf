//! How a GPU's hardware shares its compute engine between channel groups, as measured on an H200.
//!
//! A context has one compute channel group. The engine serves one group at a time, in round robin, each for a time slice of
//! its own. Preempting a group that still has work costs time to save it, and time to restore it when it comes back; a group
//! without work, or one that was taken off, is skipped.
//!
//! [`Engine`] is the decision alone: the simulated GPU keeps its state in shared memory and asks it who runs. [`Gpu`] is a
//! whole GPU in virtual time for unit tests: no process, no shared memory, a clock in the test's hand. [`programs`] are
//! the programs that were measured, to run on either.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod engine;
mod gpu;
pub mod programs;

pub use engine::{Costs, Doing, Engine, Groups};
pub use gpu::{Done, Gpu};

/// A microsecond, in nanoseconds.
pub const US: u64 = 1000;
/// A millisecond, in nanoseconds.
pub const MS: u64 = 1_000_000;

/// The slice that libcuda gives a group.
pub const SLICE: u64 = 2048 * US;
/// How long a call takes that puts channels on, or sets a slice: measured 0.26 to 0.46 ms.
pub const ON_CALL: u64 = 350 * US;
/// How long a call takes that takes channels off: measured 0.5 to 0.7 ms.
pub const OFF_CALL: u64 = 550 * US;
