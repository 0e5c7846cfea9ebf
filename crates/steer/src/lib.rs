//! What a container does about its share of a GPU's time, look by look.
//!
//! A process's controller looks, about every millisecond, at what the GPU has done for it, and hands what it saw to a
//! [`State`]. The state keeps the account, says in the region what is so, reads there what the others say, decides by
//! [`ration_policy`], and has the process taken off the GPU, put on it or given another slice, by a [`Process`].
//!
//! Nothing here calls the driver, reads a clock or waits. So the same code runs in the library, on a GPU, and in tests, on a model
//! of the GPU's scheduler in virtual time. docs/design/compute.md says how and why.
//!
//! - `account`: what was used, from what was done;
//! - `demand`: whether the program would fill the GPU;
//! - `leases`: who has the GPU, among those that fill it;
//! - `room`: who makes way for a `latency` container until its answer is complete;
//! - `switching`: off, on and slices;
//! - `state`: all of it together.

#![forbid(unsafe_code)]

mod account;
mod demand;
mod leases;
mod room;
mod state;
mod switching;

use ration_policy::steer::Together;

pub use state::{Epoch, Next, Seen, State};

/// Why a process is off the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Off {
    /// Its container is at its limit.
    Limit,
    /// It has had its share, and others are short of theirs.
    Due,
    /// Another container has a lease, or needs the GPU for itself.
    Others,
}

/// Why something was not switched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It was, but that took too long: others keep the kernel module busy.
    Slow,
    /// It cannot be, now or later.
    Broken(&'static str),
}

/// Takes a process off one GPU, puts it on, and gives it slices.
pub trait Switch {
    /// Whether it works, as far as is known without trying.
    fn is_usable(&self) -> Result<(), Fault>;

    /// Off or on; `under_way`: something that was launched is not done. Since when it is so; `None`: it will be, and the caller
    /// asks again soon.
    fn put(&self, on: bool, under_way: bool) -> Result<Option<u64>, Fault>;

    /// How long it may keep the GPU from others, in nanoseconds.
    fn set_slice(&self, length: u64) -> Result<(), Fault>;

    /// How often there was something new that is on, whatever was said before.
    fn generation(&self) -> u64;

    /// Whether off takes effect at once: who makes way for another waits until that one is on.
    fn is_prompt(&self) -> bool;
}

/// A process on one GPU, as its state drives it.
pub trait Process {
    /// The time. It passes while something is switched.
    fn now(&self) -> u64;

    /// What takes it off the GPU now.
    fn switch(&self) -> &dyn Switch;

    /// Whether that is its launches, and not its channels.
    fn is_by_launches(&self) -> bool;

    /// Its channels cannot be driven: they are put on, and launches are what is switched from now on.
    fn goes_over(&self, why: &str);

    /// It is off now, or on.
    fn is_off(&self, off: Option<Off>);

    /// Its launches are counted from now on, or not.
    fn counts(&self, is: bool);

    /// Whether others make room as soon as it launches something: it is a `latency` container.
    fn is_awaited(&self, is: bool);

    /// Its launches are kept back and go together; `None`: each as it comes. Whether they do.
    fn batches(&self, together: Option<Together>) -> bool;

    /// Whether launches wait in their calls for it to come on.
    fn is_waited_for(&self) -> bool;

    /// Whether a context is about to go: what waits for its work needs the GPU.
    fn is_leaving(&self) -> bool;

    /// By launches: so many threads of the container have something under way. `is_free`: there is no limit, and nobody else.
    /// `ends`: when it will make way for others.
    fn has_room(&self, threads: u32, is_free: bool, ends: u64, now: u64);
}
