//! What takes a process off the GPU and puts it back: its channels, or, where those cannot be driven, its launches.
//!
//! What is decided is the same for both. By channels, off takes effect in the middle of a kernel; by launches ([`Gate`]), when
//! all is done that was launched before.
//!
//! [`Gate`]: super::gate::Gate

use crate::abi::cuda::CUdevice;
use crate::channels::{self, Trouble};
use crate::sys;

/// Takes a process off one GPU, puts it on, and gives it slices.
pub trait Switch {
    /// Whether it works, as far as is known without trying.
    fn is_usable(&self) -> Result<(), Trouble>;

    /// Off or on; `under_way`: something that was launched is not done. Since when it is so; `None`: it will be, and the caller
    /// asks again soon.
    fn put(&self, on: bool, under_way: bool) -> Result<Option<u64>, Trouble>;

    /// How long it may keep the GPU from others, in nanoseconds, if `limited` or they are there.
    fn set_slice(&self, length: u64) -> Result<(), Trouble>;

    /// How often there was something new that is on, whatever was said before.
    fn generation(&self) -> u64;

    /// Whether off takes effect at once: who makes way for another waits until that one is on.
    fn is_prompt(&self) -> bool;
}

/// When a call that takes channels off has done so, after it began: of 0.48 ms. With it, a program that is on for a quarter of
/// 20 ms has 24.7% of the time by its own count.
const OFF_AFTER: u64 = 200_000;

/// By the channels of the process on a GPU.
pub struct ByChannels(pub CUdevice);

impl Switch for ByChannels {
    fn is_usable(&self) -> Result<(), Trouble> {
        channels::is_drivable(self.0)
    }

    fn put(&self, on: bool, _under_way: bool) -> Result<Option<u64>, Trouble> {
        let began = sys::nanoseconds();
        channels::put(self.0, on)?;
        Ok(Some(if on { sys::nanoseconds() } else { began + OFF_AFTER }))
    }

    fn set_slice(&self, length: u64) -> Result<(), Trouble> {
        channels::set_slice(self.0, length / 1_000)
    }

    fn generation(&self) -> u64 {
        channels::generation()
    }

    fn is_prompt(&self) -> bool {
        true
    }
}
