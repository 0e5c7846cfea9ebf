//! Holds the process to its container's share of the GPU's time.
//!
//! A container with a limit works in stretches: some milliseconds' worth of launches go through, then nothing until the GPU has
//! done them and as much wall time has passed as they are worth. How long the GPU worked is read off its own clock
//! ([`stretch`]), and goes into the container's bucket in the region, which all of its processes share. Only one of them has
//! a stretch under way at a time, so that none is charged for the time of another.
//!
//! Launches into a stream that records a graph are no work and pass. Every wait has an end: work that does not end by itself,
//! because it waits for what is launched after it, is not waited for.

pub mod costs;
mod stretch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use costs::Work;
use stretch::{Events, Stretch};

use crate::abi::cuda::CUcontext;
use crate::driver::Stream;
use crate::ledger::Slice;
use crate::sys;
use crate::thread::Guarded;

/// How much is let through at a time, as far as is known what it takes.
const STRETCH: u64 = 10_000_000;
/// For so long the end of a stretch is waited for, beyond what it was expected to take.
const PATIENCE: u64 = 200_000_000;
/// A process that is not heard of for so long has lost its turn to the container's others.
const LOST: u64 = 50_000_000;
/// A launch that comes so long after the last may find that the GPU had nothing to do in between.
const GAP: u64 = 15_000;

/// Whether launches have to ask, on any GPU.
static ANY_GATED: AtomicBool = AtomicBool::new(false);

/// Whether launches have to ask, on any GPU.
#[inline]
pub fn is_any_gated() -> bool {
    ANY_GATED.load(Ordering::Relaxed)
}

/// A process's pace on one GPU.
pub struct Pace {
    /// Whether there is anything to hold it to.
    gated: AtomicBool,
    state: Guarded<State>,
}

struct State {
    stretch: Option<Stretch>,
    /// The stretch is full: it is waited for.
    closing: bool,
    /// Stretches that nobody waits for any more, to be charged when they end.
    late: Vec<Stretch>,
    events: BTreeMap<usize, Events>,
}

/// What a launch has to do next.
enum Step {
    Go,
    /// Not before then, or when something has happened.
    Wait(u64),
}

impl Pace {
    /// Of a process that has launched nothing.
    pub fn new(gated: bool) -> Pace {
        if gated {
            ANY_GATED.store(true, Ordering::Relaxed);
        }
        let state = State { stretch: None, closing: false, late: Vec::new(), events: BTreeMap::new() };
        Pace { gated: AtomicBool::new(gated), state: Guarded::new(state) }
    }

    /// Whether launches have to ask.
    #[inline]
    pub fn is_gated(&self) -> bool {
        self.gated.load(Ordering::Relaxed)
    }

    /// Sends work to the GPU when its time has come. The driver is asked once, whatever happens.
    pub fn launch<T>(
        &self,
        slice: &Slice,
        context: CUcontext,
        stream: Stream,
        work: Work,
        driver: impl FnOnce() -> T,
    ) -> T {
        if !stream.can_be_marked() {
            return driver();
        }
        let began = sys::nanoseconds();
        let mut now = began;
        while let Step::Wait(until) = self.state.with(|state| state.step(slice, context as usize, stream, work, now)) {
            sys::sleep_until(until.min(now + 1_000_000), now);
            now = sys::nanoseconds();
        }
        if now > began + GAP {
            slice.compute().throttled(now - began);
        }
        let result = driver();
        let now = sys::nanoseconds();
        self.state.with(|state| {
            if let Some(stretch) = state.stretch.as_mut().filter(|stretch| stretch.context == context as usize) {
                stretch.after(stream, now);
            }
        });
        result
    }

    /// The program is about to wait for the GPU: what it waits for is marked, so that it is known when it ended.
    pub fn before_wait(&self) {
        self.state.with(|state| {
            if let Some(stretch) = &mut state.stretch {
                stretch.mark_ends(sys::nanoseconds());
            }
        });
    }

    /// A stream is about to record a graph, or to go away.
    pub fn before_capture(&self, stream: Stream) {
        self.state.with(|state| {
            let now = sys::nanoseconds();
            state.late.iter_mut().chain(&mut state.stretch).for_each(|stretch| stretch.close(stream, now));
        });
    }

    /// A context is gone, and our events with it.
    pub fn forget_context(&self, slice: &Slice, context: CUcontext) {
        self.state.with(|state| {
            state.events.remove(&(context as usize));
            state.late.retain(|stretch| stretch.context != context as usize);
            if let Some(stretch) = state.stretch.take_if(|stretch| stretch.context == context as usize) {
                state.closing = false;
                // How long it took cannot be known any more.
                slice.compute().charge(stretch.opened, stretch.expected);
                slice.compute().give_turn();
            }
        });
    }
}

impl State {
    fn step(&mut self, slice: &Slice, context: usize, stream: Stream, work: Work, now: u64) -> Step {
        self.settle_late(slice);
        if let Some(stretch) = &mut self.stretch {
            let full = stretch.unknown || stretch.expected >= STRETCH;
            if stretch.context != context || full || !slice.compute().keep_turn(now + LOST) {
                self.closing = true;
            }
            let gap = now.saturating_sub(stretch.launched) >= GAP;
            if self.closing {
                stretch.mark_ends(now);
            }
            if (self.closing || gap) && stretch.is_done(now) {
                self.settle(slice);
            } else if self.closing {
                let end = stretch.opened + stretch.expected;
                if now > stretch.launched.max(end) + PATIENCE {
                    self.late.extend(self.stretch.take());
                    self.closing = false;
                    slice.compute().give_turn();
                } else {
                    // The last of it is looked at more closely, so that the next stretch follows at once.
                    return Step::Wait(if end > now + 80_000 { end - 60_000 } else { now + 5_000 });
                }
            }
        }
        if self.stretch.is_none() {
            if let Err(until) = slice.compute().take_turn(now, now + LOST) {
                return Step::Wait(until);
            }
            self.stretch = Some(Stretch::new(context, now));
        }
        let events = self.events.entry(context).or_insert(Events::new());
        if let Some(stretch) = &mut self.stretch {
            stretch.before(stream, work, events, sys::nanoseconds());
        }
        Step::Go
    }

    /// The stretch has ended.
    fn settle(&mut self, slice: &Slice) {
        self.closing = false;
        if let Some(stretch) = self.stretch.take() {
            self.charge(slice, stretch);
            slice.compute().give_turn();
        }
    }

    fn charge(&mut self, slice: &Slice, stretch: Stretch) {
        let opened = stretch.opened;
        let events = self.events.entry(stretch.context).or_insert(Events::new());
        let gpu = stretch.settle(events);
        slice.compute().charge(opened, gpu);
    }

    fn settle_late(&mut self, slice: &Slice) {
        while let Some(at) = self.late.iter().position(|stretch| stretch.is_done(u64::MAX)) {
            let stretch = self.late.swap_remove(at);
            self.charge(slice, stretch);
        }
    }
}
