//! A stretch of work: what was launched between two looks, and how long the GPU worked on it.
//!
//! It is marked by events of ours in the program's own streams: one before the first launch in each stream, and more behind
//! later ones. The GPU writes the time into them as it passes. They are recorded by threads that launch into that very
//! stream, or while nobody can begin a capture in it.

use std::collections::VecDeque;

use ration_policy::{Busy, Clocks, Lessons, Mix};

use super::costs::{self, Work};
use super::marks::{Event, Events, elapsed, has_passed, is_idle, record, record_timely};
use super::sent::WAITS;
use crate::driver::Stream;
use crate::sys;

/// What was launched into a stream between two marks.
#[derive(Clone, Copy)]
struct Piece {
    /// When the first and the last of it had been launched, by the host's clock, and what the last should take.
    first: u64,
    last: u64,
    last_cost: u64,
    launches: u32,
    mix: Mix,
    /// Some call took so long that it is not known when the GPU was told.
    is_vague: bool,
    /// The GPU may have worked on it beside work in another stream.
    is_shared: bool,
}

impl Piece {
    fn and(self, more: Piece) -> Piece {
        Piece {
            first: self.first,
            launches: self.launches.saturating_add(more.launches),
            mix: self.mix.and(more.mix),
            is_vague: self.is_vague || more.is_vague,
            is_shared: self.is_shared || more.is_shared,
            ..more
        }
    }
}

/// A mark behind some work.
#[derive(Clone, Copy)]
struct Mark {
    event: Event,
    /// What all work before it, in its stream and stretch, should take.
    upto: u64,
    piece: Option<Piece>,
    /// When it had been recorded, by the host's clock.
    recorded: u64,
}

/// A mark that the GPU has passed.
#[derive(Clone, Copy)]
struct Passed {
    /// When, by its own clock: see [`SHIFT`].
    at: u64,
    upto: u64,
}

/// How far the GPU had got when the turn was handed over, or when it came back to what was left of it.
#[derive(Clone, Copy)]
struct Handed {
    /// When it had passed the last mark, by its own clock; nothing: it had passed none.
    at: Option<u64>,
    /// What should have been left, in all streams.
    left: u64,
}

/// Our marks in one stream.
struct Marked {
    stream: Stream,
    begin: Event,
    /// When the begin mark had been recorded, by the host's clock, and how much later the first launch behind it had been made:
    /// in a stream with nothing to do, the GPU passes the mark at once and waits for that launch.
    begun: u64,
    lead: Option<u64>,
    /// The last mark that the GPU was seen to have passed.
    passed: Option<Passed>,
    /// Those behind it.
    marks: VecDeque<Mark>,
    /// When it was last seen that the GPU had not passed the first of those.
    not_yet: u64,
    /// What all that was launched should take.
    launched: u64,
    /// How many launches that is, with those that may go.
    launches: u64,
    /// Launches that may go, and of which it is not known that they have.
    going: u32,
    /// What was launched behind the last mark.
    piece: Option<Piece>,
    /// Something was launched behind the last mark, or nothing is marked yet.
    moved: bool,
    /// The stream can take no more marks: it is gone, or records a graph.
    closed: bool,
}

impl Marked {
    fn marked_upto(&self) -> u64 {
        self.marks.back().map_or(self.passed_upto(), |mark| mark.upto)
    }

    fn passed_upto(&self) -> u64 {
        self.passed.as_ref().map_or(0, |mark| mark.upto)
    }

    /// Something is launched into another stream: what is not done here, as far as is known, is done beside it. Whether that is
    /// anything.
    fn meets_another(&mut self) -> bool {
        let is_beside = self.launched > self.passed_upto();
        if is_beside {
            self.piece.iter_mut().for_each(|piece| piece.is_shared = true);
            let marked = self.marks.iter_mut().rev().filter_map(|mark| mark.piece.as_mut());
            marked.take_while(|piece| !piece.is_shared).for_each(|piece| piece.is_shared = true);
        }
        is_beside
    }

    /// Marks the end of what was launched so far. False: that is not possible.
    fn mark(&mut self, events: &mut Events) -> bool {
        /// There are no more marks in a stream than this: the last one is moved on.
        const MOST: usize = 32;
        let mut piece = self.piece;
        let event = if self.marks.len() < MOST { events.take() } else { None };
        let event = event.or_else(|| {
            let moved = self.marks.pop_back()?;
            piece = match (moved.piece, piece) {
                (Some(one), Some(more)) => Some(one.and(more)),
                (one, more) => one.or(more),
            };
            Some(moved.event)
        });
        let Some(event) = event else { return false };
        if !record(event, self.stream) {
            events.give([event]);
            return false;
        }
        self.marks.push_back(Mark { event, upto: self.launched, piece, recorded: sys::nanoseconds() });
        (self.piece, self.moved) = (None, false);
        true
    }
}

/// A launch that may go, as part of a stretch.
#[derive(Clone, Copy)]
pub struct Ticket {
    pub stretch: u64,
    /// Which of its streams, by number.
    stream: usize,
    /// Which of its kinds of work, by number.
    kind: usize,
    cost: u64,
    has_time: bool,
}

/// A stretch of work in one context.
pub struct Stretch {
    /// No other of this process has it.
    pub number: u64,
    pub context: usize,
    /// When it began, by the host's clock.
    pub opened: u64,
    /// Its turn was lost, and the GPU does the rest of it beside others' work: how much it had done for them until then.
    pub lost: Option<u64>,
    /// When the last launch was.
    pub launched: u64,
    /// When an end was last marked.
    marked: u64,
    /// When the GPU passed the last mark that it was seen to have passed, or was given work when it had none.
    progressed: u64,
    clocks: Clocks,
    /// What all of it should take.
    pub expected: u64,
    /// Of some of it nothing is known.
    pub unknown: bool,
    /// How long there is no mark at most: on the host's clock, and of work.
    between_marks: [u64; 2],
    /// So many more launches are marked each by itself, where the GPU waits for them.
    singled_out: u32,
    /// Another process had the GPU before it, or has it since the last of it was launched: see [`Stretch::passed`].
    begins_turn: bool,
    handed: Option<Handed>,
    /// No other container uses the GPU.
    is_alone: bool,
    busy: Busy,
    /// How long the GPU worked on what lies before marks that it has passed.
    worked: u64,
    /// The kinds of work in it, and what is learned about them.
    works: Vec<Work>,
    lessons: Lessons,
    streams: Vec<Marked>,
}

/// In which way something is launched.
#[derive(Clone, Copy)]
pub struct How {
    /// Another process had the GPU before.
    pub begins_turn: bool,
    /// None uses it meanwhile.
    pub is_alone: bool,
    /// It is to be known how much is under way.
    pub is_marked_often: bool,
}

/// As often as this an end is marked while launches come quickly, and behind so much work.
const BETWEEN_MARKS: [u64; 2] = [OFTEN, 80_000];
pub const OFTEN: u64 = 50_000;
/// The same where nobody asks how much is in flight, nor how long the GPU waits for launches.
const SELDOM: [u64; 2] = [1_000_000, 2_000_000];
/// And where it is asked, but not by anybody who waits for the end.
const SOMETIMES: [u64; 2] = [400_000, 400_000];
/// Times on the GPU's clock are told from one event to another. Some may lie before the first of a stretch: all are moved into
/// the future.
const SHIFT: u64 = 1 << 40;

impl Stretch {
    /// Nothing yet.
    pub fn new(number: u64, context: usize, how: How, now: u64) -> Stretch {
        let How { begins_turn, is_alone, is_marked_often } = how;
        Stretch {
            number,
            context,
            opened: now,
            lost: None,
            launched: now,
            marked: 0,
            progressed: now,
            clocks: Clocks::new(now, false),
            expected: 0,
            unknown: false,
            between_marks: if is_marked_often { BETWEEN_MARKS } else { SELDOM },
            // Not in all of them: a mark takes the GPU as long as a short kernel does.
            singled_out: if is_marked_often && number % 8 == 1 { 16 } else { 0 },
            begins_turn,
            handed: None,
            is_alone,
            busy: Busy::new(),
            worked: 0,
            works: Vec::new(),
            lessons: Lessons::new(),
            streams: Vec::new(),
        }
    }

    /// Something is about to be launched into a stream. Until it is said to have been, the stretch is not done: another thread
    /// may get that far in between. `has_time`: the turn that it is in does not end soon. Nothing: it cannot be measured.
    pub fn before(
        &mut self,
        stream: Stream,
        work: Work,
        has_time: bool,
        events: &mut Events,
        now: u64,
    ) -> Option<Ticket> {
        if self.in_flight() == 0 {
            self.progressed = now;
        }
        let of_stream = |marked: &Marked| marked.stream == stream && !marked.closed;
        let place = self.streams.iter().position(of_stream).unwrap_or(self.streams.len());
        if place == self.streams.len() {
            let at_once = self.streams.is_empty() && self.is_alone && is_idle(stream);
            let begin = events.take()?;
            let Some(begun) = record_timely(begin, stream) else {
                events.give([begin]);
                return None;
            };
            if self.streams.is_empty() {
                self.clocks = Clocks::new(begun, at_once);
            }
            self.streams.push(Marked {
                stream,
                begin,
                begun,
                lead: None,
                passed: None,
                marks: VecDeque::new(),
                not_yet: 0,
                launched: 0,
                launches: 0,
                going: 0,
                piece: None,
                moved: true,
                closed: false,
            });
        }
        let cost = costs::of(work);
        self.unknown |= cost.expected().is_none();
        let kind = self.works.iter().position(|known| *known == work).unwrap_or(self.works.len());
        if kind == self.works.len() {
            self.works.push(work);
            self.lessons.meet(cost);
        }
        self.lessons.launch(kind);
        let cost = cost.expected().unwrap_or(0);
        self.expected = self.expected.saturating_add(cost);
        self.streams[place].going += 1;
        self.streams[place].launches += 1;
        Some(Ticket { stretch: self.number, stream: place, kind, cost, has_time })
    }

    /// It was launched, by a call that began at `called`.
    pub fn after(&mut self, ticket: Ticket, events: &mut Events, called: u64, now: u64) {
        let is_vague = now.saturating_sub(called) > WAITS;
        let sent = if is_vague { called } else { now };
        self.launched = now;
        /// With so much queued, the GPU will not wait for the next launch; in a turn, where less is, hardly.
        const PLENTY: u64 = 1_000_000;
        const ENOUGH: u64 = 700_000;
        // A mark takes the GPU two microseconds.
        let [time, work] = match self.left(now) {
            left if self.is_alone && left > PLENTY => SELDOM,
            left if ticket.has_time && left > ENOUGH => SOMETIMES,
            _ => self.between_marks,
        };
        // Behind what nothing is known of there is a mark at once: nobody could tell when it is done.
        let due = self.unknown || now.saturating_sub(self.marked.max(self.opened)) >= time;
        let is_awaited = self.singled_out > 0 && self.in_flight() < OFTEN;
        self.singled_out -= u32::from(is_awaited);
        let due = due || is_awaited;
        let others = self.streams.iter_mut().enumerate().filter(|(place, _)| *place != ticket.stream);
        let is_shared = others.fold(false, |is_shared, (_, marked)| marked.meets_another() || is_shared);
        let Some(marked) = self.streams.get_mut(ticket.stream) else { return };
        marked.going = marked.going.saturating_sub(1);
        marked.launched = marked.launched.saturating_add(ticket.cost);
        marked.moved = true;
        let mix = Mix::of(ticket.kind);
        let one = Piece { first: sent, last: sent, last_cost: ticket.cost, launches: 1, mix, is_vague, is_shared };
        marked.piece = Some(marked.piece.map_or(one, |piece| piece.and(one)));
        // From the end of the one call to the end of the other: each tells the GPU at the same point on its way.
        marked.lead.get_or_insert(sent.saturating_sub(marked.begun));
        let much = marked.launched.saturating_sub(marked.marked_upto()) >= work;
        if (due || much) && !marked.closed && marked.mark(events) {
            self.marked = now;
        }
    }

    /// Whether there is no room for this in a stretch that is not to be longer. Where streams are filled in turn, those that
    /// had nothing in the last round get theirs, if that is not much: without, the GPU would be partly idle at the end.
    pub fn is_full(&self, stream: Stream, work: Work, longest: u64) -> bool {
        if self.unknown || self.expected < longest {
            return self.unknown;
        }
        let most = self.streams.iter().map(|marked| marked.launches).max().unwrap_or(0);
        let misses_one = |marked: &Marked| marked.stream == stream && marked.launches + 1 == most;
        let more = costs::of(work).expected().unwrap_or(longest);
        self.expected.saturating_add(more) > longest + longest / 8 || !self.streams.iter().any(misses_one)
    }

    /// Whether a thread that may launch something has not said that it has.
    pub fn is_going(&self) -> bool {
        self.streams.iter().any(|marked| marked.going > 0)
    }

    /// Marks the end of all that was launched so far, where nobody is about to launch more. Nobody begins a capture meanwhile.
    pub fn mark_ends(&mut self, events: &mut Events, now: u64) {
        for marked in self.streams.iter_mut().filter(|marked| marked.moved && !marked.closed && marked.going == 0) {
            if marked.stream.can_be_marked() && marked.mark(events) {
                self.marked = now;
            } else {
                marked.closed = true;
            }
        }
    }

    /// A stream is about to record a graph or to go away: its end is marked, and it takes no more marks.
    pub fn close(&mut self, stream: Stream, events: &mut Events, now: u64) {
        if self.streams.iter().any(|marked| marked.stream == stream) {
            self.mark_ends(events, now);
            self.streams.iter_mut().filter(|marked| marked.stream == stream).for_each(|marked| marked.closed = true);
        }
    }

    /// How many pieces of work it has.
    pub fn launches(&self) -> u64 {
        self.lessons.launches()
    }

    /// Another may begin before the last of it is done: see [`Stretch::passed`].
    pub fn hand_over(&mut self) {
        self.handed = Some(Handed { at: self.last_passed(), left: self.in_flight() });
    }

    /// When the GPU passed the last mark that it was seen to have passed.
    fn last_passed(&self) -> Option<u64> {
        self.streams.iter().filter_map(|marked| marked.passed).map(|passed| passed.at).max()
    }

    /// Sees how far the GPU has got.
    pub fn look(&mut self, events: &mut Events, now: u64) {
        let before = self.last_passed();
        for place in 0..self.streams.len() {
            while self.handed.is_none() && self.has_passed_next(place, now) {
                self.pass(place, events);
            }
        }
        // What others did in between is told from what comes after it.
        while self.handed.is_some()
            && let Some(place) = self.first_passed(now)
        {
            self.pass(place, events);
        }
        let last = self.last_passed();
        if let Some(last) = last.filter(|_| last > before) {
            self.progressed = self.clocks.host(last.saturating_sub(SHIFT)).max(self.progressed).min(now);
        }
    }

    /// Whether the GPU has passed the next mark in a stream.
    fn has_passed_next(&mut self, place: usize, now: u64) -> bool {
        let marked = &mut self.streams[place];
        let Some(mark) = marked.marks.front() else { return false };
        let has = has_passed(mark.event);
        if !has {
            marked.not_yet = now;
        }
        has
    }

    /// Where that is so in several, the stream in which it was first.
    fn first_passed(&mut self, now: u64) -> Option<usize> {
        let mut first: Option<(Option<u64>, usize)> = None;
        for place in 0..self.streams.len() {
            if self.has_passed_next(place, now) {
                let at = self.streams[place].marks.front().and_then(|mark| self.at(mark.event));
                first = Some(first.map_or((at, place), |first| first.min((at, place))));
            }
        }
        first.map(|(_, place)| place)
    }

    /// It has.
    fn pass(&mut self, place: usize, events: &mut Events) {
        if let Some(mark) = self.streams[place].marks.pop_front() {
            // It may be a while since the caller looked at the clock.
            self.passed(place, mark, sys::nanoseconds());
            events.give([mark.event]);
        }
    }

    /// When an event was, by the GPU's clock.
    fn at(&self, event: Event) -> Option<u64> {
        let later = elapsed(self.streams.first()?.begin, event)?;
        Some(SHIFT.saturating_add_signed(later))
    }

    /// The GPU has passed a mark: how long it worked on what lies before that.
    ///
    /// - It begins with what comes when it is done with what came before.
    /// - If the last launch was done as soon as it could be, the GPU had been waiting for that, and will have waited for others
    ///   before it, too: they took what they should. Only of one that is marked by itself is it known how long it took. And not
    ///   even of that, if the GPU passed the mark as soon as there was one: it had been done before.
    /// - It may pass the first mark while it is still at another's work, and then has to switch: what the first piece took
    ///   beyond what it should have, up to `SWITCH`, was not ours. And it may leave what is left for what the next has sent: then
    ///   that took longer by `SLICE` and more, and it is as if nothing had been done in any stream until then.
    fn passed(&mut self, place: usize, mark: Mark, now: u64) {
        const SWITCH: u64 = 500_000;
        const SLICE: u64 = 1_000_000;
        const AT_ONCE: u64 = 5_000;
        let begin = self.at(self.streams[place].begin);
        let at = self.at(mark.event);
        let marked = &mut self.streams[place];
        let not_yet = std::mem::take(&mut marked.not_yet);
        let before = marked.passed;
        let (Some(begin), Some(at)) = (begin, at) else {
            // Its context is broken. What it took cannot be known any more.
            marked.passed = Some(Passed { at: before.map_or(SHIFT, |before| before.at), upto: mark.upto });
            return;
        };
        marked.passed = Some(Passed { at, upto: mark.upto });
        if at >= SHIFT {
            self.clocks.passed(at - SHIFT, not_yet, now);
        }
        let expected = mark.upto.saturating_sub(before.map_or(0, |before| before.upto));
        let mut from = before.map_or_else(|| begin.saturating_add(marked.lead.unwrap_or(0)), |before| before.at);
        if before.is_none() && self.begins_turn && !self.unknown {
            from = from.max(at.saturating_sub(mark.upto).min(from.saturating_add(SWITCH)));
        }
        let mut to = at;
        if let Some(handed) = self.handed.filter(|_| !self.unknown) {
            let left = self.in_flight();
            let should = handed.at.unwrap_or(from).saturating_add(handed.left.saturating_sub(left));
            if at > should.saturating_add(SLICE) {
                to = should.max(from);
                self.handed = Some(Handed { at: Some(at), left });
                for marked in &mut self.streams {
                    marked.passed = Some(Passed { at, upto: marked.passed_upto() });
                }
            }
        }
        let mut is_exact = true;
        if let Some(piece) = mark.piece {
            // When the host sent something, by the GPU's clock: no later than this.
            let came = |host: u64| self.clocks.gpu(host).saturating_add(SHIFT);
            from = from.max(came(piece.first).min(at));
            let was_awaited = at <= came(piece.last).saturating_add(piece.last_cost + piece.last_cost / 8 + AT_ONCE);
            let was_over = at <= came(mark.recorded).saturating_add(AT_ONCE / 2);
            if (was_awaited && piece.launches > 1 || was_over) && !self.unknown {
                (to, is_exact) = (to.min(from.saturating_add(expected)), false);
            }
            is_exact &= !piece.is_vague;
        }
        let worked = self.busy.add(from, to);
        self.worked = self.worked.saturating_add(worked);
        match mark.piece {
            Some(piece) if is_exact && !piece.is_shared => self.lessons.took(&piece.mix, worked, expected),
            _ if is_exact => self.lessons.took_together(worked, expected),
            _ => {}
        }
    }

    /// When to look again to know well how far the GPU has got: when it should have passed the next mark, and often from then
    /// on. Nothing: it is known, or the next takes much longer than it should.
    pub fn look_at(&self, now: u64) -> Option<u64> {
        const STEP: u64 = 10_000;
        const MUCH: u64 = 500_000;
        if self.unknown || self.clocks.are_close() {
            return None;
        }
        let next = |marked: &Marked| Some(marked.marks.front()?.upto.saturating_sub(marked.passed_upto()));
        let at = self.progressed.saturating_add(self.streams.iter().filter_map(next).min()?);
        (now < at + MUCH).then_some(at.max(now + STEP))
    }

    /// What should still be under way, counted from mark to mark.
    fn in_flight(&self) -> u64 {
        self.streams.iter().map(|marked| marked.launched.saturating_sub(marked.passed_upto())).sum()
    }

    /// Whether what is next to be done should have been done for a while.
    pub fn is_overdue(&self, now: u64) -> bool {
        const A_WHILE: u64 = 100_000;
        now.saturating_sub(self.progressed) > self.in_flight() + A_WHILE
    }

    /// What should still be under way by now.
    pub fn left(&self, now: u64) -> u64 {
        // Beyond the next mark it has not got.
        let next = |marked: &Marked| {
            marked.marks.front().map_or(marked.launched, |mark| mark.upto).saturating_sub(marked.passed_upto())
        };
        let most = self.streams.iter().map(next).sum();
        self.in_flight().saturating_sub(now.saturating_sub(self.progressed).min(most))
    }

    /// Whether the GPU has passed all marks, and whatever was launched behind them is surely done by now.
    pub fn is_done(&self, now: u64) -> bool {
        /// What is launched behind the last mark takes little, and longer than expected by no more than this.
        const BEHIND: u64 = 300_000;
        let behind = |marked: &Marked| 2 * marked.launched.saturating_sub(marked.marked_upto()) + BEHIND;
        /// A thread that ends within a launch never says that it has made it.
        const GONE: u64 = 10_000_000_000;
        let over = now.saturating_sub(self.launched.max(self.progressed));
        if self.is_going() && over < GONE {
            return false;
        }
        let done = |marked: &Marked| {
            marked.marks.is_empty() && (!marked.moved || marked.closed || !self.unknown && over > behind(marked))
        };
        self.streams.iter().all(done)
    }

    /// How long the GPU worked on it, by its own clock; `by_itself`: on nothing else, so that something can be learned from
    /// that. The events go back.
    pub fn settle(mut self, by_itself: bool, events: &mut Events) -> u64 {
        // What is behind the last mark took what it should.
        let unmarked = |marked: &Marked| marked.launched.saturating_sub(marked.passed_upto());
        let behind = self.streams.iter().map(unmarked).sum();
        if by_itself && self.worked > 0 {
            let learned = self.lessons.learned(self.worked.saturating_add(behind));
            self.works.iter().zip(learned).for_each(|(work, cost)| costs::set(*work, cost));
        }
        for marked in self.streams.drain(..) {
            events.give(marked.marks.into_iter().map(|mark| mark.event).chain([marked.begin]));
        }
        self.worked.saturating_add(behind)
    }
}
