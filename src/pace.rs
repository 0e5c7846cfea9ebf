//! Holds the process to its container's share of the GPU's time.
//!
//! A launch is in one of three situations:
//!
//! - **Alone.** The container has no limit and no other container uses the GPU. Launches pass without asking. Every few
//!   milliseconds one of them is looked at ([`pacer`]), so that no more is queued than is done within some fifty
//!   milliseconds: who comes later must not wait for it.
//! - **In company**, without a limit. Launches are looked at, and pass, until the program is seen to do little but wait for the
//!   GPU ([`bound`]): then the container *wants* it, and takes turns with the others that do ([`ration_region::Whose`]).
//!   Containers whose work is done as fast as they send it do not take turns; the hardware does that better. Of theirs, most
//!   launches pass without being looked at.
//! - **Held**: in a turn, or with a limit. Work goes in *stretches* ([`stretch`]): launches go through until the turn is over
//!   or some milliseconds' worth of them are under way; then nothing until the GPU has done them. How long it worked is read
//!   off its own clock, and goes into the container's bucket in the region, which all of its processes share. Only one of them
//!   has a stretch under way at a time, so that none is charged for the time of another.
//!
//! Launches into a stream that records a graph are no work and pass. Every wait has an end: work that does not end by itself,
//! because it waits for what is launched after it, is not waited for.

mod bound;
pub mod costs;
mod free;
mod glances;
mod held;
mod marks;
mod pacer;
mod probe;
mod samples;
mod sent;
mod sleep;
mod state;
mod stretch;
mod wish;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use costs::Work;
use ration_policy::Flight;
use ration_region::Compute;
use state::{Asked, GAP, Launched, State, Step};

use crate::abi::cuda::CUcontext;
use crate::driver::Stream;
use crate::ledger::{self, Slice};
use crate::steer::{self, Steer};
use crate::sys;
use crate::thread::Guarded;

/// Whether launches have to ask, on any GPU.
static ANY_GATED: AtomicBool = AtomicBool::new(false);

/// Whether launches have to ask, on any GPU.
#[inline]
pub fn is_any_gated() -> bool {
    ANY_GATED.load(Ordering::Relaxed)
}

/// In a forked child: it has launched nothing.
pub fn forget_the_parent() {
    pacer::forget_the_parent();
    steer::forget_the_parent();
}

/// How much may be in flight because of other containers. The first: as much as it likes.
const FLIGHTS: [Option<Flight>; 4] = [None, Some(Flight::USUAL), Some(Flight::SHORT), Some(Flight::AWAITED)];

/// A process's pace on one GPU.
pub struct Pace {
    /// Where channels are driven, all of the rest is not used.
    steer: Option<Steer>,
    /// Whether they are: not where that was not asked for, nor where it turned out that they cannot be.
    is_steered: AtomicBool,
    /// Whether containers use this GPU by turns.
    takes_turns: bool,
    /// Whether launches have to ask.
    gated: AtomicBool,
    /// Whether anything was launched since somebody last looked.
    touched: AtomicBool,
    /// Whether other containers use the GPU.
    in_company: AtomicBool,
    /// How much may be in flight because of them: which of [`FLIGHTS`].
    flight: AtomicU8,
    state: Guarded<State>,
}

impl Pace {
    /// Of a process that has launched nothing. The first launch is looked at in any case.
    pub fn new(takes_turns: bool) -> Pace {
        ANY_GATED.store(true, Ordering::Relaxed);
        let steer = steer::is_wanted().then(Steer::new);
        Pace {
            is_steered: AtomicBool::new(steer.is_some()),
            steer,
            takes_turns,
            gated: AtomicBool::new(true),
            touched: AtomicBool::new(false),
            in_company: AtomicBool::new(false),
            flight: AtomicU8::new(0),
            state: Guarded::new(State::new()),
        }
    }

    /// The steering of channels, where that is in use.
    #[inline]
    pub fn steer(&self) -> Option<&Steer> {
        self.steer.as_ref().filter(|_| self.is_steered.load(Ordering::Relaxed))
    }

    /// Channels cannot be driven: from now on launches are held in their calls.
    pub fn falls_back(&self) {
        if self.is_steered.swap(false, Ordering::Relaxed) {
            steer::is_left();
            self.gate();
        }
    }

    /// Whether launches are counted from now on, for the steering of channels.
    pub fn is_counted(&self, is: bool) {
        if is {
            self.gate();
        } else {
            self.ungate();
        }
    }

    /// Whether launches have to ask.
    #[inline]
    pub fn is_gated(&self) -> bool {
        self.gated.load(Ordering::Relaxed)
    }

    fn gate(&self) {
        self.gated.store(true, Ordering::Relaxed);
        ANY_GATED.store(true, Ordering::Relaxed);
    }

    /// Launches pass, unless there is a reason to look at them.
    fn ungate(&self) {
        self.gated.store(false, Ordering::Relaxed);
        ANY_GATED.store(ledger::all().any(|slice| slice.pace.is_gated()), Ordering::Relaxed);
    }

    fn bound(&self, compute: &Compute<'_>) -> Option<Flight> {
        let flight = FLIGHTS.get(usize::from(self.flight.load(Ordering::Relaxed))).copied().flatten();
        let flight = flight.or_else(|| compute.is_wanted_by_others().then_some(Flight::USUAL));
        flight.map(|flight| flight.with_limit(compute.limit()))
    }

    fn set_bound(&self, flight: Option<Flight>) {
        let number = FLIGHTS.iter().zip(0..).find(|(it, _)| **it == flight).map_or(0, |(_, number)| number);
        self.flight.store(number, Ordering::Relaxed);
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
        if let Some(steer) = self.steer() {
            return steer.launch(slice, context, stream, work, driver);
        }
        if !stream.can_be_marked() {
            return driver();
        }
        self.touched.store(true, Ordering::Relaxed);
        pacer::start();
        // Alone, nobody waits to hear of it, and a launch makes no system call.
        if self.in_company.load(Ordering::Relaxed) {
            pacer::wake_if_idle();
        }
        let began = sys::nanoseconds();
        let (mut now, mut waited) = (began, 0);
        self.state.with(State::asks);
        let ticket = loop {
            // Each time anew: the region may be lost meanwhile, and another be in its place.
            let compute = slice.compute();
            let bell = compute.bell();
            let asked = Asked { context: context as usize, stream, work, has_waited: waited > 0 };
            let step = self.state.with(|state| {
                // At once, and not when the launch has gone: a turn may end in between.
                state.was_held_up(waited, now);
                state.step(self, &compute, &asked, now)
            });
            let before = now;
            match step {
                Step::Go(ticket) => break ticket,
                Step::Wait(until) => sys::sleep_until(until.min(now + 1_000_000), now),
                Step::Ahead(until) => {
                    let in_a_hurry = self.bound(&compute) == Some(Flight::SHORT);
                    sleep::while_ahead(&compute, bell, in_a_hurry, until, now);
                }
                Step::Turn(until) => sleep::until_turn(&compute, bell, until, now),
            }
            now = sys::nanoseconds();
            waited = if matches!(step, Step::Turn(_)) { 0 } else { now - before };
        };
        if now > began + GAP {
            slice.compute().throttled(now - began);
        }
        let called = sys::nanoseconds();
        let result = driver();
        let now = sys::nanoseconds();
        let in_company = self.in_company.load(Ordering::Relaxed);
        let launched = Launched { context: context as usize, stream, work, ticket, called };
        if !self.state.with(|state| state.after(&launched, in_company, now)) {
            self.ungate();
        }
        result
    }

    /// The program is about to wait for the GPU: what it waits for is marked, so that it is known when it ended.
    pub fn before_wait(&self) {
        if self.steer().is_some() {
            return;
        }
        self.state.with(|state| state.before_wait(sys::nanoseconds()));
    }

    /// The program has waited so long, and may have nothing more to do.
    pub fn after_wait(&self, slice: &Slice, length: u64, now: u64) {
        if self.steer().is_some() {
            return;
        }
        let compute = slice.compute();
        self.state.with(|state| state.after_wait(self, &compute, length, now));
    }

    /// A stream is about to record a graph, or to go away.
    pub fn before_capture(&self, stream: Stream) {
        if self.steer().is_some() {
            return steer::forget_stream(stream);
        }
        self.state.with(|state| state.close(stream, sys::nanoseconds()));
    }

    /// A context may be about to go, and our events with it; [`Pace::after_leaving`] follows.
    pub fn forget_context(&self, slice: &Slice, context: CUcontext) {
        if let Some(steer) = self.steer() {
            return steer.before_leaving(slice, context);
        }
        let compute = slice.compute();
        self.state.with(|state| state.forget_context(&compute, context as usize, sys::nanoseconds()));
    }

    /// The context that may have been about to go is gone, or stayed.
    pub fn after_leaving(&self) {
        if let Some(steer) = self.steer() {
            steer.after_leaving();
        }
    }
}

/// Of two threads that make a slice at once, one throws its own away.
impl Drop for Pace {
    fn drop(&mut self) {
        if *self.is_steered.get_mut() {
            steer::is_left();
        }
    }
}
