//! How a process's work on one GPU stands, and what a launch has to do next.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use ration_policy::turns::Priority;
use ration_policy::{Flight, Pauses, Share};
use ration_region::{Compute, Whose};

use super::bound::{Glances, Waits};
use super::costs::{self, Work};
use super::marks::Events;
use super::probe::Probes;
use super::samples::Samples;
use super::stretch::{How, Stretch, Ticket};
use super::{Pace, pacer};
use crate::driver::Stream;
use crate::sys;

/// How much is let through at a time, as far as is known what it takes: so many wall time's worth of the limit, but no less
/// and no more than this. A stretch ends with a GPU that is partly idle, so it is not to be short; and between two of them
/// the program stands still, and others have to wait for its end, so it is not to be long.
const ROUND: u64 = 40_000_000;
const SHORTEST: u64 = 10_000_000;
const LONGEST: u64 = 20_000_000;
/// The same where there are no others.
const ROUND_ALONE: u64 = 50_000_000;
const LONGEST_ALONE: u64 = 45_000_000;
/// For so long the end of a stretch is waited for, beyond what it was expected to take.
pub const PATIENCE: u64 = 200_000_000;
/// A container that lost its turn because what it had started does not end tries again after [`PATIENCE`], and gives the next
/// turn up when that has not ended after so long: it may be waiting behind the same.
const STUCK: u64 = 5_000_000;
/// A process that is not heard of for so long has lost its turn to the container's others.
const LOST: u64 = 50_000_000;
/// A launch that comes so long after the last may find that the GPU had nothing to do in between.
pub const GAP: u64 = 15_000;
/// One that comes no later than this goes on with the stretch that is open, though all of it may be done.
const PAUSE: u64 = 200_000;
/// A turn is handed over when no more than this of it should be left: the next one's launches take as long to arrive, and the
/// GPU does them when it is done with these.
const EARLY: u64 = 130_000;
/// One that waits for another process of its container looks again after so long.
const LOOK: u64 = 200_000;
/// A container that has not launched anything for so long does not want turns any more.
const FORGOTTEN: u64 = 20_000_000;
/// If it launches again within this time, it does.
const REMEMBERED: u64 = 200_000_000;

/// How a process's work on one GPU stands.
pub struct State {
    pub stretch: Option<Stretch>,
    /// How many there were.
    stretches: u64,
    /// The stretch is full, or the turn is over: it is waited for.
    closing: bool,
    /// Stretches that nobody waits for any more, to be charged when they end.
    pub late: Vec<Stretch>,
    /// When the turn began in which something was last launched, 0: there was none; and how many stretches other processes of
    /// the container had had by then.
    turn: [u64; 2],
    /// How many stretches were charged.
    charged: u64,
    /// Until when no turn is wanted, unless those have ended before: in it, nothing might get done either.
    stuck_until: u64,
    /// What is under way outside of stretches.
    pub samples: Samples,
    /// How long the GPU works on that.
    pub probes: Probes,
    pub events: BTreeMap<usize, Events>,
    /// Whether the container is to take turns, as far as this process knows.
    pub wanting: bool,
    /// Until when it is to want them again at once, because it did until it launched nothing for a while.
    pub bound_until: u64,
    /// When anybody else last did, or seemed about to.
    pub contested: u64,
    /// When anything was last launched.
    launched: u64,
    /// How much of its time the program waits for the GPU; in a turn, since that began.
    pub waits: Waits,
    /// Threads that are about to launch something.
    pub asking: u32,
    /// How much more has to be in flight because threads are woken late.
    lateness: u64,
    /// How long the program stays away when it has nothing more to do.
    pauses: Pauses,
    /// How often launches are looked at that nobody holds up.
    pub glances: Glances,
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

/// How much is let through at a time.
fn length(limit: Share, in_company: bool) -> u64 {
    let (round, longest) = if in_company { (ROUND, LONGEST) } else { (ROUND_ALONE, LONGEST_ALONE) };
    if limit.is_whole() { longest } else { limit.gpu(round).clamp(SHORTEST, longest) }
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
            wanting: false,
            bound_until: 0,
            contested: 0,
            launched: 0,
            waits: Waits::new(),
            asking: 0,
            lateness: 0,
            pauses: Pauses::new(),
            glances: Glances::new(),
        }
    }

    /// A thread is about to launch something.
    pub fn asks(&mut self) {
        self.asking += 1;
    }

    /// It was held up for so long.
    pub fn was_held_up(&mut self, length: u64) {
        self.waits.waited(length);
    }

    /// What the launch has to do next.
    pub fn step(&mut self, pace: &Pace, compute: &Compute<'_>, asked: &Asked, now: u64) -> Step {
        let Asked { context, stream, work, has_waited } = *asked;
        self.launched = now;
        self.pauses.end(now);
        self.waits.is_there(now);
        if self.glances.begin() {
            self.waits.start(now);
        }
        self.look(compute, now);
        let limit = compute.limit();
        self.want_if_bound(pace, compute, now);
        if !self.wanting && limit.is_whole() {
            return self.step_freely(pace, compute, asked, now);
        }
        self.probes.end();
        let mut lasts = u64::MAX;
        if self.wanting {
            if !self.late.is_empty() && now < self.stuck_until {
                compute.wants_no_more();
                return Step::Wait(self.stuck_until);
            }
            compute.wants(now);
            match compute.whose_turn(now) {
                Whose::Others(until) => {
                    // What is under way was started in a turn that is over, or lost.
                    if self.stretch.as_ref().is_some_and(|stretch| !stretch.is_done(now)) {
                        self.is_stuck(compute, now);
                    }
                    self.leave_stretch(compute, now);
                    self.waits.start(now);
                    return Step::Turn(until);
                }
                Whose::Mine(time) => lasts = time,
            }
        }
        let over = lasts == 0;
        if let Some(stretch) = &mut self.stretch {
            let longest = length(limit, pace.in_company.load(Ordering::Relaxed));
            // What should take little and goes on and on takes more than it should: that is to be found out.
            let is_long = now > stretch.opened + 4 * longest;
            let full = stretch.unknown || stretch.expected >= longest || is_long;
            if over || stretch.context != context || full || !compute.keep_turn(now + LOST) {
                self.closing = true;
            }
            let events = self.events.entry(stretch.context).or_insert(Events::new());
            let gap = now.saturating_sub(stretch.launched) >= GAP;
            if self.closing {
                stretch.mark_ends(events, now);
                stretch.look(events, now);
            }
            let is_done = (self.closing || gap) && stretch.is_done(now);
            let waits_for_late = self.wanting && !self.late.is_empty() && now > stretch.opened + STUCK;
            if waits_for_late && !is_done && compute.is_wanted_by_others() {
                self.end_turn(compute, now);
                self.is_stuck(compute, now);
                self.leave_stretch(compute, now);
                return Step::Wait(now);
            }
            // What takes longer than expected is waited for.
            let is_nearly = !stretch.unknown && !stretch.is_going() && (1..=EARLY).contains(&stretch.left(now));
            if over && (is_done || is_nearly) {
                // The next is not to wait while we reckon up what this one took.
                stretch.hand_over();
                self.end_turn(compute, now);
                self.leave_stretch(compute, now);
                return Step::Wait(now);
            }
            if is_done && !self.closing {
                // It goes on where it was: how long the GPU had nothing to do is found out.
                if has_waited {
                    self.came_late(pace.bound(compute));
                }
            } else if is_done {
                self.settle(compute);
                if self.wanting && self.is_uncontested(pace, compute, now) {
                    self.wants_no_more(compute);
                    return Step::Wait(now);
                }
            } else if self.closing {
                if now > stretch.launched.max(stretch.opened + stretch.expected) + PATIENCE {
                    self.leave_stretch(compute, now);
                } else {
                    // The last of it is looked at more closely, so that the next stretch follows at once.
                    let left = stretch.left(now);
                    let close = if over { EARLY } else { 60_000 };
                    // One that takes longer than expected may take much longer.
                    return Step::Wait(match left {
                        _ if left > close + 20_000 => now + left - close,
                        0 if stretch.is_overdue(now) => now + 200_000,
                        _ => now + 5_000,
                    });
                }
            } else if self.wanting
                && compute.priority() != Priority::Latency
                && let Some(flight) = pace.bound(compute)
            {
                let left = stretch.left(now);
                // What is in flight may wait for this one.
                let is_stuck = now.saturating_sub(stretch.launched) > left + PATIENCE;
                let flight = flight.within(lasts);
                let flight = Flight { most: flight.most + self.lateness, low: flight.low + self.lateness };
                if !is_stuck && !flight.admits(left, costs::of(work)) {
                    let room = flight.most.saturating_sub(flight.counted(costs::of(work))).max(flight.low);
                    let until = now + left.saturating_sub(room).max(5_000);
                    return Step::Ahead(stretch.look_at(now).map_or(until, |look| look.min(until)));
                }
            }
        }
        if over && self.stretch.is_none() {
            if compute.is_used_inside(now) {
                // That process hands over when its work is done.
                return Step::Wait(now + LOOK);
            }
            self.end_turn(compute, now);
            return Step::Wait(now);
        }
        let begins = self.stretch.is_none();
        if begins && let Err(until) = compute.take_turn(now, now + LOST) {
            return Step::Wait(until);
        }
        if self.wanting && !compute.works(now) {
            // Another has taken it, while there was nothing under way.
            if begins {
                compute.give_turn();
            }
            return Step::Wait(now);
        }
        if begins {
            // Where nobody asks how much is in flight, marks would only cost time.
            let is_marked_often = compute.priority() != Priority::Latency;
            let is_alone = self.late.is_empty() && !pace.in_company.load(Ordering::Relaxed);
            // Stretches of the container's other processes count, too: the GPU switches to and from them.
            let of_others = compute.stretches().wrapping_sub(self.charged);
            let turn = if self.wanting { [compute.turn_began(), of_others] } else { [0; 2] };
            let begins_turn = turn != std::mem::replace(&mut self.turn, turn) && self.wanting;
            self.stretches += 1;
            let how = How { begins_turn, is_alone, is_marked_often };
            self.stretch = Some(Stretch::new(self.stretches, context, how, now));
            pacer::wake();
        }
        let events = self.events.entry(context).or_insert(Events::new());
        let mut ticket = None;
        if let Some(stretch) = &mut self.stretch {
            ticket = stretch.before(stream, work, events, sys::nanoseconds());
            if self.wanting {
                let cost = costs::of(work).expected().unwrap_or(0);
                compute.works(now + stretch.left(now) + cost);
            }
        }
        Step::Go(ticket)
    }

    /// It was launched. Whether the next one has to ask.
    pub fn after(&mut self, launched: &Launched, in_company: bool, now: u64) -> bool {
        let Launched { context, stream, ticket, called } = *launched;
        self.launched = now;
        self.waits.is_there(now);
        self.waits.launched();
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
            self.samples.after(context, stream, events, in_company, now);
            self.probes.after(context, stream, events, now);
        }
        let is_held = self.stretch.is_some() || self.wanting || self.probes.is_open();
        let is_watched = is_held || if in_company { !self.may_look_away(now) } else { !self.samples.are_short() };
        if !is_watched {
            self.glances.end(in_company || self.are_launches_quick());
            self.samples.begin_again(self.events.entry(context).or_insert(Events::new()));
        }
        is_watched
    }

    /// The program is about to wait for the GPU.
    pub fn before_wait(&mut self, now: u64) {
        self.waits.begin();
        if let Some(stretch) = &mut self.stretch {
            stretch.mark_ends(self.events.entry(stretch.context).or_insert(Events::new()), now);
        }
    }

    /// It has waited for so long.
    pub fn after_wait(&mut self, pace: &Pace, compute: &Compute<'_>, length: u64, now: u64) {
        self.waits.end(length, now);
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
    fn settle(&mut self, compute: &Compute<'_>) {
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
    fn is_stuck(&mut self, compute: &Compute<'_>, now: u64) {
        self.stuck_until = now + PATIENCE;
        if let Some(stretch) = &mut self.stretch {
            stretch.lost = Some(compute.gpu_time_of_others());
        }
        compute.is_late(now);
    }

    /// The turn is over, and all that was started in it is done.
    fn end_turn(&mut self, compute: &Compute<'_>, now: u64) {
        compute.hand_over(now);
        self.lateness -= self.lateness / 8;
        if self.waits.are_few(now) && compute.priority() != Priority::Latency {
            self.wants_no_more(compute);
        }
        self.waits.start(now);
    }

    /// A thread that waited for room in flight came back when there was nothing left in it: the machine has too much to do for
    /// our threads to be woken in time, and more has to be in flight.
    fn came_late(&mut self, flight: Option<Flight>) {
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
        (self.wanting, self.bound_until) = (false, 0);
        compute.wants_no_more();
    }

    fn charge(&mut self, compute: &Compute<'_>, stretch: Stretch) {
        let (opened, lost, expected) = (stretch.opened, stretch.lost, stretch.expected);
        let is_known = !stretch.unknown;
        let was_beside = compute.was_beside_others(opened);
        let events = self.events.entry(stretch.context).or_insert(Events::new());
        let (by_itself, launches) = (lost.is_none() && !was_beside, stretch.launches());
        let measured = stretch.settle(by_itself, events);
        if by_itself {
            self.probes.learn(launches, measured, compute.company(sys::nanoseconds()).0);
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
        compute.charge(opened, sys::nanoseconds(), gpu);
        self.charged += 1;
    }

    /// What the pacer does when nobody launches. Returns when it is to look again, and whether a bell may ring before.
    pub fn tick(&mut self, pace: &Pace, compute: &Compute<'_>, now: u64) -> (u64, bool) {
        self.look(compute, now);
        if self.stretch.as_ref().is_some_and(|stretch| now > stretch.launched + PAUSE) {
            self.rest_if_done(compute, now);
        }
        if self.wanting {
            if self.stretch.is_some() || compute.is_used_inside(now) {
                // Whoever has work under way hands over.
            } else if now.saturating_sub(self.launched) > FORGOTTEN {
                compute.rests(now);
                self.wants_no_more(compute);
                // It may have been stopped, or the whole machine. Its launches are not to come in between those of others
                // until it is found out again what it is.
                self.bound_until = now + REMEMBERED;
            } else if compute.is_holder() && compute.whose_turn(now) == Whose::Mine(0) {
                self.end_turn(compute, now);
            }
        }
        let context = self.samples.context();
        let under_way = self.samples.age(self.events.entry(context).or_insert(Events::new()), now);
        let is_under_way = !self.wanting && under_way > 0 && pace.in_company.load(Ordering::Relaxed);
        if is_under_way {
            self.waits.look(now.saturating_sub(self.launched), now);
            self.want_if_bound(pace, compute, now);
        }
        const SOON: u64 = 50_000;
        const LATER: u64 = 1_000_000;
        let until = match &self.stretch {
            // Who launches again at once sees by itself that it is done; the others are to have the GPU when it does not.
            Some(stretch) if self.wanting => now + (stretch.left(now) + compute.keeps_turn_for()).clamp(SOON, LATER),
            Some(stretch) => now + (stretch.left(now) + PAUSE).clamp(SOON, LATER),
            None if self.wanting => {
                compute.pauses_until().map_or(now + LATER, |until| until.clamp(now + SOON, now + LATER))
            }
            None if !self.late.is_empty() || is_under_way => now + LATER,
            None => u64::MAX,
        };
        (until, self.wanting)
    }
}
