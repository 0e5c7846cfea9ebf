//! Who may use a GPU's time, and when.
//!
//! Pure arithmetic: the clock is an argument, nothing is remembered here, nothing waits, and no number can overflow. The
//! words that these functions work on live in the shared region; the shim's controller calls them.
//!
//! All times are nanoseconds. *GPU time* is what the GPU worked; *wall time* is what passed.
//! - [`Bucket`]: the ceiling. A container at 30% has used up 10 ms of wall time when the GPU has worked 3 ms for it.
//! - [`steer`]: how long the slice of a container is, who holds the GPU next where several fill it, and for how long.
//! - [`Priority`]: how urgent its work is.
//!
//! Requests are weights. Where those who want the GPU ask for more than all of it together, each gets its part of the sum;
//! where they ask for less, the rest is shared out in the same proportion, up to limits. Who asked for nothing weighs as much
//! as [one who asked for a hundredth](Share::UNASKED).
//!
//! [`tuning`] has the values that were chosen, and where each comes from.

mod bucket;
mod priority;
mod share;
pub mod steer;
pub mod tuning;

#[cfg(test)]
mod testing;

pub use bucket::{Bucket, Debt};
pub use priority::Priority;
pub use share::Share;
