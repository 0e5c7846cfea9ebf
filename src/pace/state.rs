//! How a process's work on one GPU stands, and what a launch has to do next.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use ration_policy::turns::Priority;
use ration_policy::{Flight, Pauses};
use ration_region::{Compute, Whose};

use super::Pace;
use super::costs::Work;
use super::marks::Events;
use super::probe::Probes;
use super::samples::Samples;
use super::stretch::{Stretch, Ticket};
use super::wish::Wish;
use crate::driver::Stream;
use crate::sys;

/// For so long the end of a stretch is waited for, beyond what it was expected to take.
pub const PATIENCE: u64 = 200_000_000;
/// A launch that comes so long after the last may find that the GPU had nothing to do in between.
pub const GAP: u64 = 15_000;
/// One that comes no later than this goes on with the stretch that is open, though all of it may be done.
const PAUSE: u64 = 200_000;
/// A container that has not launched anything for so long does not want turns any more.
const FORGOTTEN: u64 = 20_000_000;

/// How a process's work on one GPU stands.
pub struct State {
    pub stretch: Option<Stretch>,
    /// How many there were.
    pub stretches: u64,
    /// The stretch is full, or the turn is over: it is waited for.
    pub closing: bool,
    /// Stretches that nobody waits for any more, to be charged when they end.
    pub late: Vec<Stretch>,
    /// When the turn began in which something was last launched, 0: there was none; and how many stretches other processes of
    /// the container had had by then.
    pub turn: [u64; 2],
    /// How many stretches were charged.
    pub charged: u64,
    /// Until when no turn is wanted, unless those have ended before: in it, nothing might get done either.
    pub stuck_until: u64,
    /// What is under way outside of stretches.
    pub samples: Samples,
    /// How long the GPU works on that.
    pub probes: Probes,
    pub events: BTreeMap<usize, Events>,
    /// Whether the container is to take turns, as far as this process knows.
    pub wish: Wish,
    /// When anything was last launched.
    launched: u64,
    /// Threads that are about to launch something.
    pub asking: u32,
    /// How much more has to be in flight because threads are woken late.
    pub lateness: u64,
    /// How long the program stays away when it has nothing more to do.
    pauses: Pauses,
}

/// What somebody wants to launch.
pub struct Asked {
    pub context: usize,
    pub stream: Stream,
    pub work: Work,
    /// It was told to wait just now, for something else than a turn.
    pub has_waited: bool,
}

/// What somebody has launched.
pub struct Launched {
    pub context: usize,
    pub stream: Stream,
    pub work: Work,
    pub ticket: Option<Ticket>,
    /// When the driver was asked to.
    pub called: u64,
}

/// What a launch has to do next.
pub enum Step {
    /// As part of a stretch, if it is held to one.
    Go(Option<Ticket>),
    /// Not before then, or when something has happened.
    Wait(u64),
    /// The same, where the bell rings when somebody is in a hurry.
    Ahead(u64),
    /// The same, where the bell rings when the turn may be ours.
    Turn(u64),
}

impl State {
    /// Nothing was launched.
    pub fn new() -> State {
        State {
            stretch: None,
            stretches: 0,
            closing: false,
            late: Vec::new(),
            turn: [0; 2],
            charged: 0,
            stuck_until: 0,
            samples: Samples::new(),
            probes: Probes::new(),
            events: BTreeMap::new(),
            wish: Wish::new(),
            launched: 0,
            asking: 0,
            lateness: 0,
            pauses: Pauses::new(),
        }
    }

    /// A thread is about to launch something.
    pub fn asks(&mut self) {
        self.asking += 1;
    }

    /// It was held up for so long.
    pub fn was_held_up(&mut self, length: u64, now: u64) {
        if length > 0 {
            self.wish.waits.held_up(length, now);
        }
    }

    /// What the launch has to do next.
    pub fn step(&mut self, pace: &Pace, compute: &Compute<'_>, asked: &Asked, now: u64) -> Step {
        self.launched = now;
        self.pauses.end(now);
        self.wish.asks(now);
        self.look(compute, now);
        self.want_if_bound(pace, compute, now);
        if !self.wish.is_there() && compute.limit().is_whole() {
            return self.step_freely(pace, compute, asked, now);
        }
        self.probes.end();
        self.step_held(pace, compute, asked, now).map_or_else(|step| step, Step::Go)
    }

    /// It was launched. Whether the next one has to ask.
    pub fn after(&mut self, launched: &Launched, in_company: bool, now: u64) -> bool {
        let Launched { context, stream, work, ticket, called } = *launched;
        self.launched = now;
        self.wish.waits.is_there(now);
        let takes = self.probes.takes(work);
        self.wish.waits.launched(takes);
        if self.samples.left() > 0 {
            self.wish.waits.called(now.saturating_sub(called), now);
        }
        self.asking = self.asking.saturating_sub(1);
        let events = self.events.entry(context).or_insert(Events::new());
        if let Some(ticket) = ticket {
            // It may have been left meanwhile, or even be gone with its context.
            let mut all = self.stretch.iter_mut().chain(&mut self.late);
            if let Some(stretch) = all.find(|stretch| stretch.number == ticket.stretch) {
                stretch.after(ticket, events, called, now);
            }
            self.probes.is_held();
        } else {
            self.samples.after(context, stream, takes, events, in_company, now);
            self.probes.after(context, stream, work, events, now);
        }
        let is_held = self.stretch.is_some() || self.wish.is_there() || self.probes.is_open();
        let is_watched = is_held || if in_company { !self.may_look_away(now) } else { !self.samples.are_short() };
        if !is_watched {
            self.wish.glances.end(in_company || self.are_launches_quick());
            self.samples.begin_again(self.events.entry(context).or_insert(Events::new()));
        }
        is_watched
    }

    /// The program is about to wait for the GPU.
    pub fn before_wait(&mut self, now: u64) {
        self.wish.waits.begin();
        if let Some(stretch) = &mut self.stretch {
            stretch.mark_ends(self.events.entry(stretch.context).or_insert(Events::new()), now);
        }
    }

    /// It has waited for so long.
    pub fn after_wait(&mut self, pace: &Pace, compute: &Compute<'_>, length: u64, now: u64) {
        self.wish.waits.end(length, now);
        self.want_if_bound(pace, compute, now);
        self.look(compute, now);
        if compute.priority() == Priority::Latency && self.stretch.as_ref().is_some_and(|it| it.is_done(now)) {
            // The program is not to wait while we reckon up what it took: the pacer does that.
            if self.pauses.begin(now) { compute.rests_for_long(now) } else { compute.rests(now) }
        } else {
            self.rest_if_done(compute, now);
        }
    }

    /// A stream is about to record a graph, or to go away.
    pub fn close(&mut self, stream: Stream, now: u64) {
        self.probes.close(stream);
        for stretch in self.late.iter_mut().chain(&mut self.stretch) {
            stretch.close(stream, self.events.entry(stretch.context).or_insert(Events::new()), now);
        }
    }

    /// A context is gone, and our events with it.
    pub fn forget_context(&mut self, compute: &Compute<'_>, context: usize, now: u64) {
        self.events.remove(&context);
        self.late.retain(|stretch| stretch.context != context);
        self.probes.forget_context(context);
        if self.samples.context() == context {
            self.samples.forget();
        }
        if let Some(stretch) = self.stretch.take_if(|stretch| stretch.context == context) {
            self.closing = false;
            // How long it took cannot be known any more.
            compute.charge(stretch.opened, now, stretch.expected);
            self.charged += 1;
            compute.give_turn();
            compute.rests(now);
        }
    }

    /// Sees how far the GPU has got.
    fn look(&mut self, compute: &Compute<'_>, now: u64) {
        for stretch in self.late.iter_mut().chain(&mut self.stretch) {
            stretch.look(self.events.entry(stretch.context).or_insert(Events::new()), now);
        }
        if self.probes.context() != 0 {
            let events = self.events.entry(self.probes.context()).or_insert(Events::new());
            self.probes.look(events, || compute.company(now).0 || compute.has_company_inside(), now);
        }
        while let Some(at) = self.late.iter().position(|stretch| stretch.is_done(now)) {
            let stretch = self.late.swap_remove(at);
            self.charge(compute, stretch);
        }
        if self.late.iter().any(|stretch| stretch.lost.is_some()) {
            compute.is_late(now);
        }
    }

    /// The stretch has ended.
    pub fn settle(&mut self, compute: &Compute<'_>) {
        self.closing = false;
        if let Some(stretch) = self.stretch.take() {
            self.charge(compute, stretch);
            compute.give_turn();
        }
    }

    /// If all is done, others may have the GPU until something is launched again.
    fn rest_if_done(&mut self, compute: &Compute<'_>, now: u64) {
        if self.stretch.as_ref().is_some_and(|stretch| stretch.is_done(now)) {
            if self.asking == 0 {
                compute.pauses(now);
            }
            self.settle(compute);
        }
    }

    /// The stretch is not waited for.
    pub fn leave_stretch(&mut self, compute: &Compute<'_>, now: u64) {
        self.closing = false;
        if let Some(mut stretch) = self.stretch.take() {
            stretch.mark_ends(self.events.entry(stretch.context).or_insert(Events::new()), now);
            self.late.push(stretch);
            compute.give_turn();
        }
    }

    /// What was started in a turn does not end, and others have theirs now.
    pub fn is_stuck(&mut self, compute: &Compute<'_>, now: u64) {
        self.stuck_until = now + PATIENCE;
        if let Some(stretch) = &mut self.stretch {
            stretch.lost = Some(compute.gpu_time_of_others());
        }
        compute.is_late(now);
    }

    /// The turn is over, and all that was started in it is done.
    pub fn end_turn(&mut self, compute: &Compute<'_>, now: u64) {
        compute.hand_over(now);
        self.lateness -= self.lateness / 8;
        let expected = |launches| self.probes.expected(launches);
        if self.wish.is_over_with_turn(compute.priority(), expected, now) {
            self.wants_no_more(compute);
        }
    }

    /// A thread that waited for room in flight came back when there was nothing left in it: the machine has too much to do for
    /// our threads to be woken in time, and more has to be in flight.
    pub fn came_late(&mut self, flight: Option<Flight>) {
        const MOST: u64 = 6_000_000;
        // Next to a `latency` container, which is kept waiting by all that is in flight, once in a while does not count for much.
        let more = if flight == Some(Flight::SHORT) { self.lateness / 4 } else { self.lateness };
        self.lateness = (self.lateness + more).clamp(20_000, MOST);
    }

    /// What should still be under way by now, as far as it is known.
    pub fn left(&self, now: u64) -> u64 {
        let stretches = self.late.iter().chain(&self.stretch).map(|stretch| stretch.left(now));
        stretches.fold(self.samples.left(), u64::saturating_add)
    }

    pub fn wants_no_more(&mut self, compute: &Compute<'_>) {
        self.wish.end(sys::nanoseconds());
        self.probes.decide_anew();
        compute.wants_no_more();
    }

    fn charge(&mut self, compute: &Compute<'_>, stretch: Stretch) {
        let (opened, lost, expected) = (stretch.opened, stretch.lost, stretch.expected);
        let is_known = !stretch.unknown;
        let was_beside = compute.was_beside_others(opened);
        let events = self.events.entry(stretch.context).or_insert(Events::new());
        let (by_itself, launches) = (lost.is_none() && !was_beside, stretch.launches());
        let measured = stretch.settle(by_itself, events);
        let now = sys::nanoseconds();
        // Between two of its turns' launches the GPU may have worked for those that take none.
        if by_itself && !compute.is_beside_free_ones(now) {
            self.probes.learn(launches, measured, compute.company(now).0);
        }
        let gpu = match lost {
            // What it took and what others took meanwhile are in one; and so are two switches of 0.15 ms for each of its time
            // slices of 2.09 ms.
            Some(before) => {
                let others = compute.gpu_time_of_others().saturating_sub(before);
                let rest = measured.saturating_sub(others);
                (rest - (rest / 8).min(others)).max(measured.min(expected))
            }
            None if was_beside && is_known => measured.min(expected),
            None => measured,
        };
        compute.charge(opened, now, gpu);
        self.charged += 1;
    }

    /// What the pacer does when nobody launches. Returns when it is to look again, and whether a bell may ring before.
    pub fn tick(&mut self, pace: &Pace, compute: &Compute<'_>, now: u64) -> (u64, bool) {
        self.look(compute, now);
        if self.stretch.as_ref().is_some_and(|stretch| now > stretch.launched + PAUSE) {
            self.rest_if_done(compute, now);
        }
        if self.wish.is_there() {
            if let Some(stretch) = &self.stretch {
                // Whoever has work under way hands over; the others are to know that there is somebody.
                if !stretch.is_done(now) {
                    compute.still_works(now);
                }
            } else if compute.is_used_inside(now) {
                // Another process has.
            } else if now.saturating_sub(self.launched) > FORGOTTEN {
                compute.rests(now);
                let expected = |launches| self.probes.expected(launches);
                self.wish.end_for_now(expected, now);
                compute.wants_no_more();
            } else if compute.is_holder() && compute.whose_turn(now) == Whose::Mine(0) {
                self.end_turn(compute, now);
            }
        }
        let context = self.samples.context();
        let in_company = pace.in_company.load(Ordering::Relaxed);
        let under_way = self.samples.age(self.events.entry(context).or_insert(Events::new()), in_company, now);
        let is_under_way = !self.wish.is_there() && under_way > 0 && in_company;
        if is_under_way {
            // A launch that waits counts by itself.
            let paused = if self.asking == 0 { now.saturating_sub(self.launched) } else { 0 };
            self.wish.waits.look(paused, now);
            self.want_if_bound(pace, compute, now);
        }
        const SOON: u64 = 50_000;
        const LATER: u64 = 1_000_000;
        let until = match &self.stretch {
            // Who launches again at once sees by itself that it is done; the others are to have the GPU when it does not.
            Some(stretch) if self.wish.is_there() => {
                now + (stretch.left(now) + compute.keeps_turn_for()).clamp(SOON, LATER)
            }
            Some(stretch) => now + (stretch.left(now) + PAUSE).clamp(SOON, LATER),
            None if self.wish.is_there() => {
                compute.pauses_until().map_or(now + LATER, |until| until.clamp(now + SOON, now + LATER))
            }
            None if !self.late.is_empty() || is_under_way => now + LATER,
            None => u64::MAX,
        };
        (until, self.wish.is_there())
    }
}
