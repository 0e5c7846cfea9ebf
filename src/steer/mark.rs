//! Marks: events of ours in the program's streams, and what was launched between them.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ration_steer::Epoch;

use super::costs::Entry;
use crate::abi::cuda::{CUDA_SUCCESS, CUevent};
use crate::driver::calls;

/// A mark.
#[derive(Default)]
pub struct Slot {
    pub event: AtomicUsize,
    /// The context that the event is in.
    pub context: AtomicUsize,
    pub device: AtomicU32,
    /// What was launched since the mark before, in nanoseconds.
    pub work: AtomicU64,
    pub launches: AtomicU32,
    /// Launches that are not in there, because nothing was known of what they cost; and of which kind the last of them was.
    pub unknown: AtomicU32,
    pub kind: AtomicPtr<Entry>,
    /// The same, as it counts for what may be under way.
    pub weight: AtomicU64,
    /// What was launched between the mark before and this one, if it is one launch that is measured.
    pub measured: AtomicPtr<Entry>,
    /// The GPU had not come to the mark before when this one was recorded.
    pub sealed: AtomicBool,
    /// When the controller found it done: which of its times on the GPU that was.
    epoch: AtomicU64,
    off: [AtomicU64; 2],
}

impl Slot {
    pub fn epoch(&self) -> Epoch {
        let off = self.off.each_ref().map(|off| off.load(Ordering::Relaxed));
        Epoch { number: self.epoch.load(Ordering::Relaxed), off }
    }

    /// The launches that are not in its work, and the kind of the last of them.
    pub fn unknown(&self) -> Option<(&'static Entry, u64)> {
        // SAFETY: null, or an entry of the table, which is static.
        let kind = unsafe { self.kind.load(Ordering::Relaxed).as_ref() };
        Some((kind?, u64::from(self.unknown.load(Ordering::Relaxed)))).filter(|(_, count)| *count > 0)
    }

    /// What it costs until it is done, as far as that is known.
    pub fn costs(&self) -> Option<u64> {
        let work = self.work.load(Ordering::Relaxed);
        self.unknown().map_or(Some(work), |(kind, count)| kind.is_known().then(|| work + count * kind.cost()))
    }

    pub fn is_done_in(&self, epoch: Epoch) {
        self.epoch.store(epoch.number, Ordering::Relaxed);
        for (place, off) in self.off.iter().zip(epoch.off) {
            place.store(off, Ordering::Relaxed);
        }
    }
}

/// What was measured between two marks: how long it took, and whether it was sealed. What was not done in one time on the GPU took no
/// longer than from one mark to the other without the time between those two.
pub fn measured(took: u64, sealed: bool, from: Epoch, to: Epoch) -> (u64, bool) {
    let off = to.off[0].saturating_sub(from.off[1]);
    (took.saturating_sub(off), sealed && from.number == to.number && to.number != 0)
}

/// Nanoseconds of the GPU's time between two marks.
pub fn elapsed(from: usize, to: usize) -> Option<u64> {
    let mut ms = 0f32;
    // SAFETY: events of ours that the GPU has passed, and a place to write to.
    let told = unsafe { calls::cuEventElapsedTime(&raw mut ms, from as CUevent, to as CUevent) };
    (told == CUDA_SUCCESS && ms >= 0.0).then(|| (f64::from(ms) * 1e6) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_off_between_two_marks_is_nobodys() {
        let epoch = |number, least, most| Epoch { number, off: [least, most] };
        let (first, last) = (epoch(3, 5_000, 5_000), epoch(5, 23_000, 23_000));
        assert_eq!(measured(24_000, true, first, first), (24_000, true));
        assert_eq!(measured(24_000, true, first, last), (6_000, false), "an upper bound");
        assert_eq!(measured(24_000, true, epoch(0, 0, 5_000), epoch(0, 15_000, 23_000)), (14_000, false));
    }
}
