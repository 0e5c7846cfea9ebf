//! Who may use a GPU's time, and when.
#![forbid(unsafe_code)]

mod bucket;
mod busy;
mod cost;
mod flight;
mod share;
pub mod turns;

#[cfg(test)]
mod testing;

pub use bucket::Bucket;
pub use busy::Busy;
pub use cost::Cost;
pub use flight::Flight;
pub use share::Share;
