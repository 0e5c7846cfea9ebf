//! Launches that are held to a turn, or to a limit: they go in stretches of work, one after another.

use std::sync::atomic::Ordering;

use ration_policy::turns::Priority;
use ration_policy::{Flight, Share};
use ration_region::{Compute, Whose};

use super::costs;
use super::marks::Events;
use super::state::{Asked, GAP, PATIENCE, State, Step};
use super::stretch::{How, Stretch, Ticket};
use super::{Pace, pacer};
use crate::sys;

/// How much is let through at a time, as far as is known what it takes: so many wall time's worth of the limit, but no less
/// and no more than this. A stretch ends with a GPU that is partly idle, so it is not to be short; and between two of them
/// the program stands still, and others have to wait for its end, so it is not to be long.
const ROUND: u64 = 40_000_000;
const SHORTEST: u64 = 10_000_000;
const LONGEST: u64 = 20_000_000;
/// In a turn only its end is waited for, or where it lasts for very long: a program that launches slowly just then has nothing
/// in flight after each wait, and the GPU is idle for up to a millisecond.
const LONGEST_IN_TURN: u64 = 80_000_000;
/// The same where there are no others.
const ROUND_ALONE: u64 = 50_000_000;
const LONGEST_ALONE: u64 = 45_000_000;
/// A container that lost its turn because what it had started does not end tries again after [`PATIENCE`], and gives the next
/// turn up when that has not ended after so long: it may be waiting behind the same.
const STUCK: u64 = 5_000_000;
/// A process that is not heard of for so long has lost its turn to the container's others.
const LOST: u64 = 50_000_000;
/// A turn is handed over when no more than this of it should be left: the next one's launches take as long to arrive, and the
/// GPU does them when it is done with these.
const EARLY: u64 = 130_000;
/// Of what is launched in a turn that lasts for so long yet, nobody waits for the end: it is done before that is near.
const AHEAD: u64 = 4_000_000;
/// One that waits for another process of its container looks again after so long.
const LOOK: u64 = 200_000;

/// How much is let through at a time.
fn length(limit: Share, in_company: bool, in_turn: bool) -> u64 {
    let (round, longest) = if in_company { (ROUND, LONGEST) } else { (ROUND_ALONE, LONGEST_ALONE) };
    match limit.is_whole() {
        true if in_turn => LONGEST_IN_TURN,
        true => longest,
        false => limit.gpu(round).clamp(SHORTEST, longest),
    }
}

/// What is to be launched; or what it has to do first, and then ask again.
type Held<T> = Result<T, Step>;

impl State {
    /// It is launched as part of a stretch, if that can be measured.
    pub fn step_held(&mut self, pace: &Pace, compute: &Compute<'_>, asked: &Asked, now: u64) -> Held<Option<Ticket>> {
        let lasts = if self.wish.is_there() { self.have_turn(compute, now)? } else { u64::MAX };
        let is_over = lasts == 0;
        if self.stretch.is_some() {
            self.go_on(pace, compute, asked, lasts, now)?;
        }
        if is_over && self.stretch.is_none() {
            if compute.is_used_inside(now) {
                // That process hands over when its work is done.
                return Err(Step::Wait(now + LOOK));
            }
            self.end_turn(compute, now);
            return Err(Step::Wait(now));
        }
        self.join_stretch(pace, compute, asked, lasts, now)
    }

    /// How long the container's turn lasts yet, if it is its turn.
    fn have_turn(&mut self, compute: &Compute<'_>, now: u64) -> Held<u64> {
        if !self.late.is_empty() && now < self.stuck_until {
            compute.wants_no_more();
            return Err(Step::Wait(self.stuck_until));
        }
        compute.wants(now);
        match compute.whose_turn(now) {
            Whose::Mine(lasts) => Ok(lasts),
            Whose::Others(until) => {
                // What is under way was started in a turn that is over, or lost.
                if self.stretch.as_ref().is_some_and(|stretch| !stretch.is_done(now)) {
                    self.is_stuck(compute, now);
                }
                self.leave_stretch(compute, now);
                self.wish.waits.start(now);
                Err(Step::Turn(until))
            }
        }
    }

    /// There is a stretch, and the launch may become part of it, of the next, or of a later turn.
    fn go_on(&mut self, pace: &Pace, compute: &Compute<'_>, asked: &Asked, lasts: u64, now: u64) -> Held<()> {
        let Some(stretch) = &mut self.stretch else { return Ok(()) };
        let is_over = lasts == 0;
        let in_company = pace.in_company.load(Ordering::Relaxed);
        // Where nothing else bounds what is in flight, this does.
        let in_turn = self.wish.is_there() && pace.bound(compute).is_some();
        let longest = length(compute.limit(), in_company, in_turn);
        // What should take little and goes on and on takes more than it should: that is to be found out.
        let is_long = now > stretch.opened + if in_turn { LONGEST_IN_TURN } else { 4 * longest };
        let is_full = is_long || stretch.is_full(asked.stream, asked.work, longest);
        if is_over || stretch.context != asked.context || is_full || !compute.keep_turn(now + LOST) {
            self.closing = true;
        }
        if self.closing {
            let events = self.events.entry(stretch.context).or_insert(Events::new());
            stretch.mark_ends(events, now);
            stretch.look(events, now);
        }
        let gap = now.saturating_sub(stretch.launched) >= GAP;
        let is_done = (self.closing || gap) && stretch.is_done(now);
        let waits_for_late = self.wish.is_there() && !self.late.is_empty() && now > stretch.opened + STUCK;
        if waits_for_late && !is_done && compute.is_wanted_by_others() {
            self.end_turn(compute, now);
            self.is_stuck(compute, now);
            self.leave_stretch(compute, now);
            return Err(Step::Wait(now));
        }
        // What takes longer than expected is waited for.
        let is_nearly = !stretch.unknown && !stretch.is_going() && (1..=EARLY).contains(&stretch.left(now));
        if is_over && (is_done || is_nearly) {
            // The next is not to wait while we reckon up what this one took.
            stretch.hand_over();
            self.end_turn(compute, now);
            self.leave_stretch(compute, now);
            return Err(Step::Wait(now));
        }
        match (self.closing, is_done) {
            (false, true) => {
                // It goes on where it was: how long the GPU had nothing to do is found out.
                if asked.has_waited {
                    self.came_late(pace.bound(compute));
                }
                Ok(())
            }
            (false, false) => self.have_room(pace, compute, asked, lasts, now),
            (true, true) => {
                self.settle(compute);
                if self.wish.is_there() && self.is_uncontested(pace, compute, now) {
                    self.wants_no_more(compute);
                    return Err(Step::Wait(now));
                }
                Ok(())
            }
            (true, false) => self.end_stretch(compute, is_over, now),
        }
    }

    /// In a turn, no more is in flight than others are to wait for.
    fn have_room(&self, pace: &Pace, compute: &Compute<'_>, asked: &Asked, lasts: u64, now: u64) -> Held<()> {
        let is_bounded = self.wish.is_there() && compute.priority() != Priority::Latency;
        let Some(flight) = pace.bound(compute).filter(|_| is_bounded) else { return Ok(()) };
        let Some(stretch) = &self.stretch else { return Ok(()) };
        let left = stretch.left(now);
        // What is in flight may wait for this one.
        let is_stuck = now.saturating_sub(stretch.launched) > left + PATIENCE;
        let flight = flight.within(lasts);
        let flight = Flight { most: flight.most + self.lateness, low: flight.low + self.lateness, ..flight };
        let cost = costs::of(asked.work);
        if is_stuck || flight.admits(left, cost) {
            return Ok(());
        }
        let room = flight.most.saturating_sub(flight.counted(cost)).max(flight.low);
        let until = now + left.saturating_sub(room).max(5_000);
        Err(Step::Ahead(stretch.look_at(now).map_or(until, |look| look.min(until))))
    }

    /// The end of the stretch is waited for; but not for ever.
    fn end_stretch(&mut self, compute: &Compute<'_>, is_over: bool, now: u64) -> Held<()> {
        let Some(stretch) = &self.stretch else { return Ok(()) };
        if now > stretch.launched.max(stretch.opened + stretch.expected) + PATIENCE {
            self.leave_stretch(compute, now);
            return Ok(());
        }
        // The last of it is looked at more closely, so that the next stretch follows at once.
        let left = stretch.left(now);
        let close = if is_over { EARLY } else { 60_000 };
        // One that takes longer than expected may take much longer.
        Err(Step::Wait(match left {
            _ if left > close + 20_000 => now + left - close,
            0 if stretch.is_overdue(now) => now + 200_000,
            _ => now + 5_000,
        }))
    }

    /// It is launched as part of the stretch, or of a new one, which begins when that is due.
    fn join_stretch(
        &mut self,
        pace: &Pace,
        compute: &Compute<'_>,
        asked: &Asked,
        lasts: u64,
        now: u64,
    ) -> Held<Option<Ticket>> {
        let Asked { context, stream, work, .. } = *asked;
        let begins = self.stretch.is_none();
        if begins && let Err(until) = compute.take_turn(now, now + LOST) {
            return Err(Step::Wait(until));
        }
        if self.wish.is_there() {
            let left = self.stretch.as_ref().map_or(0, |stretch| stretch.left(now));
            let cost = costs::of(work).expected().unwrap_or(0);
            if !compute.works(now + left + cost) {
                // Another has taken it, while there was nothing under way.
                if begins {
                    compute.give_turn();
                }
                return Err(Step::Wait(now));
            }
        }
        if begins {
            self.begin_stretch(pace, compute, context, now);
        }
        let Some(stretch) = &mut self.stretch else { return Ok(None) };
        let events = self.events.entry(context).or_insert(Events::new());
        // One in a hurry waits for no turn to end.
        let has_time = self.wish.is_there() && lasts > AHEAD && pace.bound(compute) != Some(Flight::SHORT);
        Ok(stretch.before(stream, work, has_time, events, sys::nanoseconds()))
    }

    fn begin_stretch(&mut self, pace: &Pace, compute: &Compute<'_>, context: usize, now: u64) {
        // Where nobody asks how much is in flight, marks would only cost time.
        let is_marked_often = compute.priority() != Priority::Latency;
        let is_alone = self.late.is_empty() && !pace.in_company.load(Ordering::Relaxed);
        let in_turn = self.wish.is_there();
        // Stretches of the container's other processes count, too: the GPU switches to and from them.
        let of_others = compute.stretches().wrapping_sub(self.charged);
        let turn = if in_turn { [compute.turn_began(), of_others] } else { [0; 2] };
        let begins_turn = turn != std::mem::replace(&mut self.turn, turn) && in_turn;
        self.stretches += 1;
        let how = How { begins_turn, is_alone, is_marked_often };
        self.stretch = Some(Stretch::new(self.stretches, context, how, now));
        pacer::wake();
    }
}
