//! Events of ours, as marks in the program's own streams: the GPU writes the time into them as it passes.

use std::ptr::null_mut;

use crate::abi::cuda::*;
use crate::driver::{Stream, calls};
use crate::sys;

/// An event of ours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Event(CUevent);

// SAFETY: a handle, which the driver takes from any thread.
unsafe impl Send for Event {}

/// Records a mark. False: that is not possible.
pub fn record(event: Event, stream: Stream) -> bool {
    // SAFETY: an event of ours in the context of the stream, which a caller is using or has not destroyed.
    (unsafe { calls::cuEventRecord(event.0, stream.handle()) }) == CUDA_SUCCESS
}

/// The same, and when it had been recorded. A thread that was not given the processor meanwhile does not know when in the call
/// that was, and does it again.
pub fn record_timely(event: Event, stream: Stream) -> Option<u64> {
    const LATE: u64 = 20_000;
    let mut called = sys::nanoseconds();
    for _ in 0..3 {
        if !record(event, stream) {
            return None;
        }
        let now = sys::nanoseconds();
        if now.saturating_sub(called) < LATE {
            return Some(now);
        }
        called = now;
    }
    Some(called)
}

/// Whether the GPU has passed a mark.
pub fn has_passed(event: Event) -> bool {
    // SAFETY: an event of ours. An error is as good as an end: nobody waits for what is not there.
    let told = calls::without_breaking_captures(|| unsafe { calls::cuEventQuery(event.0) });
    told != CUDA_ERROR_NOT_READY
}

/// Nanoseconds of the GPU's time between two marks.
pub fn elapsed(from: Event, to: Event) -> Option<i64> {
    let mut ms = 0f32;
    // SAFETY: events of ours that the GPU has passed, and a place to write to.
    let told = unsafe { calls::cuEventElapsedTime(&raw mut ms, from.0, to.0) };
    (told == CUDA_SUCCESS).then(|| (f64::from(ms) * 1e6) as i64)
}

/// Whether a stream has nothing to do.
pub fn is_idle(stream: Stream) -> bool {
    // SAFETY: a stream that the caller is about to launch into.
    let told = calls::without_breaking_captures(|| unsafe { calls::cuStreamQuery(stream.handle()) });
    told == CUDA_SUCCESS
}

/// Events of ours in one context, to be used again and again.
pub struct Events {
    free: Vec<Event>,
    made: usize,
}

impl Events {
    /// As many are made at most.
    const MOST: usize = 512;

    /// None yet.
    pub const fn new() -> Events {
        Events { free: Vec::new(), made: 0 }
    }

    /// One to record.
    pub fn take(&mut self) -> Option<Event> {
        if let Some(event) = self.free.pop() {
            return Some(event);
        }
        let mut event: CUevent = null_mut();
        // SAFETY: a place to write to, in a context that the caller is using.
        let told = self.made < Events::MOST && unsafe { calls::cuEventCreate(&raw mut event, 0) } == CUDA_SUCCESS;
        self.made += usize::from(told);
        told.then_some(Event(event))
    }

    /// They are not needed any more.
    pub fn give(&mut self, events: impl IntoIterator<Item = Event>) {
        self.free.extend(events);
    }
}
