//! A stretch of work: what was launched between two looks, and how long the GPU worked on it.
//!
//! It is marked by events of ours in the program's own streams: one before the first launch in each stream, one behind the
//! last so far. The GPU writes the time into them as it passes. They are recorded by threads that launch into that very
//! stream, or while nobody can begin a capture in it.

use std::ptr::null_mut;

use ration_policy::{Busy, Cost};

use super::costs::{self, Work};
use crate::abi::cuda::*;
use crate::driver::{Stream, calls};

/// An event of ours.
#[derive(Clone, Copy)]
pub struct Event(CUevent);

// SAFETY: a handle, which the driver takes from any thread.
unsafe impl Send for Event {}

/// Our marks in one stream.
struct Marked {
    stream: Stream,
    begin: Event,
    end: Event,
    /// When the begin mark was recorded, by the host's clock, and how much later the first launch behind it was made: in a
    /// stream with nothing to do, the GPU passes the mark at once and waits for that launch.
    begun: u64,
    lead: Option<u64>,
    /// Something was launched behind the end mark.
    moved: bool,
    /// The stream can take no more marks: it is gone, or records a graph.
    closed: bool,
}

/// A stretch of work in one context.
pub struct Stretch {
    pub context: usize,
    /// When it began, by the host's clock.
    pub opened: u64,
    /// When the last launch was.
    pub launched: u64,
    /// When an end was last marked.
    marked: u64,
    /// What all of it should take.
    pub expected: u64,
    /// Of some of it nothing is known.
    pub unknown: bool,
    works: Vec<(Work, u32)>,
    streams: Vec<Marked>,
}

/// As often as this an end is marked while launches come quickly.
const BETWEEN_MARKS: u64 = 50_000;

impl Stretch {
    /// Nothing yet.
    pub fn new(context: usize, now: u64) -> Stretch {
        Stretch {
            context,
            opened: now,
            launched: now,
            marked: 0,
            expected: 0,
            unknown: false,
            works: Vec::new(),
            streams: Vec::new(),
        }
    }

    /// Something is about to be launched into a stream.
    pub fn before(&mut self, stream: Stream, work: Work, events: &mut Events, now: u64) -> bool {
        if !self.streams.iter().any(|marked| marked.stream == stream && !marked.closed) {
            let (Some(begin), Some(end)) = (events.take(), events.take()) else { return false };
            if !record(begin, stream) {
                events.give([begin, end]);
                return false;
            }
            self.streams.push(Marked { stream, begin, end, begun: now, lead: None, moved: true, closed: false });
        }
        match costs::of(work).expected() {
            Some(cost) => self.expected = self.expected.saturating_add(cost),
            None => self.unknown = true,
        }
        match self.works.iter_mut().find(|(known, _)| *known == work) {
            Some((_, count)) => *count += 1,
            None => self.works.push((work, 1)),
        }
        true
    }

    /// It was launched.
    pub fn after(&mut self, stream: Stream, now: u64) {
        self.launched = now;
        let due = now.saturating_sub(self.marked) >= BETWEEN_MARKS;
        for marked in self.streams.iter_mut().filter(|marked| marked.stream == stream && !marked.closed) {
            marked.moved = true;
            marked.lead.get_or_insert(now.saturating_sub(marked.begun));
            if due && record(marked.end, marked.stream) {
                marked.moved = false;
                self.marked = now;
            }
        }
    }

    /// Marks the end of all that was launched so far. Nobody begins a capture meanwhile.
    pub fn mark_ends(&mut self, now: u64) {
        for marked in self.streams.iter_mut().filter(|marked| marked.moved && !marked.closed) {
            if !marked.stream.can_be_marked() {
                marked.closed = true;
            } else if record(marked.end, marked.stream) {
                marked.moved = false;
                self.marked = now;
            } else {
                marked.closed = true;
            }
        }
    }

    /// A stream is about to record a graph or to go away: its end is marked, and it takes no more marks.
    pub fn close(&mut self, stream: Stream, now: u64) {
        if self.streams.iter().any(|marked| marked.stream == stream) {
            self.mark_ends(now);
            self.streams.iter_mut().filter(|marked| marked.stream == stream).for_each(|marked| marked.closed = true);
        }
    }

    /// Whether the GPU has passed all marks, and whatever was launched behind them is surely done by now.
    pub fn is_done(&self, now: u64) -> bool {
        /// What was launched behind the last mark takes less than this.
        const BEHIND: u64 = 2_000_000;
        self.streams.iter().all(|marked| {
            (!marked.moved || marked.closed || now.saturating_sub(self.launched) > BEHIND) && has_passed(marked.end)
        })
    }

    /// How long the GPU worked on it, by its own clock; and what was learned from that. The events go back.
    pub fn settle(self, events: &mut Events) -> u64 {
        let mut busy = Busy::new();
        let mut total = 0;
        let Some(first) = self.streams.first().map(|marked| marked.begin) else { return 0 };
        // Times are told from one event to another. Some may lie before the first: all are moved into the future.
        const SHIFT: i64 = 1 << 40;
        let at = |event| elapsed(first, event).map(|ns| (ns + SHIFT).max(0) as u64);
        for marked in &self.streams {
            if let (Some(begin), Some(end)) = (at(marked.begin), at(marked.end)) {
                total += busy.add(begin.saturating_add(marked.lead.unwrap_or(0)), end);
            }
        }
        self.learn(total);
        events.give(self.streams.iter().flat_map(|marked| [marked.begin, marked.end]));
        total
    }

    fn learn(&self, measured: u64) {
        let known = self.works.iter().map(|(work, count)| (*work, costs::of(*work), u64::from(*count)));
        let unknown = known.clone().filter(|(_, cost, _)| *cost == Cost::UNKNOWN).map(|(_, _, count)| count).sum();
        for (work, cost, _) in known {
            costs::set(work, cost.learned(self.expected, unknown, measured));
        }
    }
}

fn record(event: Event, stream: Stream) -> bool {
    // SAFETY: an event of ours in the context of the stream, which a caller is using or has not destroyed.
    (unsafe { calls::cuEventRecord(event.0, stream.handle()) }) == CUDA_SUCCESS
}

fn has_passed(event: Event) -> bool {
    // SAFETY: an event of ours. An error is as good as an end: nobody waits for what is not there.
    let told = calls::without_breaking_captures(|| unsafe { calls::cuEventQuery(event.0) });
    told != CUDA_ERROR_NOT_READY
}

/// Nanoseconds of the GPU's time between two marks.
fn elapsed(from: Event, to: Event) -> Option<i64> {
    let mut ms = 0f32;
    // SAFETY: events of ours that the GPU has passed, and a place to write to.
    let told = unsafe { calls::cuEventElapsedTime(&raw mut ms, from.0, to.0) };
    (told == CUDA_SUCCESS).then(|| (f64::from(ms) * 1e6) as i64)
}

/// Events of ours in one context, to be used again and again.
pub struct Events {
    free: Vec<Event>,
    made: usize,
}

impl Events {
    /// As many are made at most.
    const MOST: usize = 256;

    /// None yet.
    pub const fn new() -> Events {
        Events { free: Vec::new(), made: 0 }
    }

    fn take(&mut self) -> Option<Event> {
        if let Some(event) = self.free.pop() {
            return Some(event);
        }
        let mut event: CUevent = null_mut();
        // SAFETY: a place to write to, in a context that the caller is using.
        let told = self.made < Events::MOST && unsafe { calls::cuEventCreate(&raw mut event, 0) } == CUDA_SUCCESS;
        self.made += usize::from(told);
        told.then_some(Event(event))
    }

    fn give(&mut self, events: impl IntoIterator<Item = Event>) {
        self.free.extend(events);
    }
}
