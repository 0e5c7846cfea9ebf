//! A stretch of work: what was launched between two looks, and how long the GPU worked on it.
//!
//! It is marked by events of ours in the program's own streams: one before the first launch in each stream, and more behind
//! later ones. The GPU writes the time into them as it passes. They are recorded by threads that launch into that very
//! stream, or while nobody can begin a capture in it.

use std::collections::VecDeque;

use ration_policy::{Busy, Clocks, Cost};

use super::costs::{self, Work};
use super::marks::{Event, Events, elapsed, has_passed, record, record_timely};
use crate::driver::Stream;

/// A mark behind some work.
#[derive(Clone, Copy)]
struct Mark {
    event: Event,
    /// What all work before it, in its stream and stretch, should take.
    upto: u64,
}

/// Our marks in one stream.
struct Marked {
    stream: Stream,
    begin: Event,
    /// When the begin mark had been recorded, by the host's clock, and how much later the first launch behind it had been made:
    /// in a stream with nothing to do, the GPU passes the mark at once and waits for that launch.
    begun: u64,
    lead: Option<u64>,
    /// The first mark that the GPU was seen to have passed, where it is not the last.
    first: Option<Mark>,
    /// The last mark that the GPU was seen to have passed when the turn was handed over.
    handed: Option<Mark>,
    /// The last mark that the GPU was seen to have passed.
    passed: Option<Mark>,
    /// Those behind it.
    marks: VecDeque<Mark>,
    /// When it was last seen that the GPU had not passed the first of those.
    not_yet: u64,
    /// What all that was launched should take.
    launched: u64,
    /// Launches that may go, and of which it is not known that they have.
    going: u32,
    /// Something was launched behind the last mark.
    moved: bool,
    /// The stream can take no more marks: it is gone, or records a graph.
    closed: bool,
}

impl Marked {
    fn marked_upto(&self) -> u64 {
        self.marks.back().or(self.passed.as_ref()).map_or(0, |mark| mark.upto)
    }

    fn passed_upto(&self) -> u64 {
        self.passed.as_ref().map_or(0, |mark| mark.upto)
    }

    /// Marks the end of what was launched so far. False: that is not possible.
    fn mark(&mut self, events: &mut Events) -> bool {
        /// There are no more marks in a stream than this: the last one is moved on.
        const MOST: usize = 32;
        let event = if self.marks.len() < MOST { events.take() } else { None };
        let event = event.or_else(|| self.marks.pop_back().map(|mark| mark.event));
        let Some(event) = event else { return false };
        if !record(event, self.stream) {
            events.give([event]);
            return false;
        }
        self.marks.push_back(Mark { event, upto: self.launched });
        self.moved = false;
        true
    }

    /// Whether a mark that was passed is asked for at the end.
    fn is_kept(&self, mark: &Mark) -> bool {
        self.first.iter().chain(&self.handed).any(|kept| kept.event == mark.event)
    }

    /// Sees which marks the GPU has passed, and how long after the first of the stretch.
    fn look(&mut self, first: Event, clocks: &mut Clocks, events: &mut Events, now: u64) -> Option<u64> {
        let mut last = None;
        while let Some(mark) = self.marks.front().copied() {
            if !has_passed(mark.event) {
                self.not_yet = now;
                break;
            }
            let passed = self.marks.pop_front();
            let before = std::mem::replace(&mut self.passed, passed);
            let not_yet = std::mem::take(&mut self.not_yet);
            if let Some(later) = elapsed(first, mark.event).and_then(|later| u64::try_from(later).ok()) {
                clocks.passed(later, not_yet, now);
                last = Some(later);
            }
            match self.first {
                None => self.first = before,
                Some(_) => events.give(before.filter(|mark| !self.is_kept(mark)).map(|mark| mark.event)),
            }
        }
        last
    }
}

/// A launch that may go, as part of a stretch.
#[derive(Clone, Copy)]
pub struct Ticket {
    pub stretch: u64,
    /// Which of its streams, by number.
    stream: usize,
    cost: u64,
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
    /// Another container had the GPU before it: see [`Stretch::settle`].
    begins_turn: bool,
    works: Vec<(Work, u32)>,
    streams: Vec<Marked>,
}

/// As often as this an end is marked while launches come quickly.
pub const BETWEEN_MARKS: u64 = 50_000;
/// And behind so much work.
const WORK_BETWEEN_MARKS: u64 = 80_000;

impl Stretch {
    /// Nothing yet. `is_marked_often`: it is to be known how much of it is under way.
    pub fn new(number: u64, context: usize, begins_turn: bool, is_marked_often: bool, now: u64) -> Stretch {
        Stretch {
            number,
            context,
            opened: now,
            lost: None,
            launched: now,
            marked: 0,
            progressed: now,
            clocks: Clocks::new(now),
            expected: 0,
            unknown: false,
            between_marks: if is_marked_often { [BETWEEN_MARKS, WORK_BETWEEN_MARKS] } else { [1_000_000; 2] },
            begins_turn,
            works: Vec::new(),
            streams: Vec::new(),
        }
    }

    /// Something is about to be launched into a stream. Until it is said to have been, the stretch is not done: another thread
    /// may get that far in between. Nothing: it cannot be measured.
    pub fn before(&mut self, stream: Stream, work: Work, events: &mut Events, now: u64) -> Option<Ticket> {
        if self.in_flight() == 0 {
            self.progressed = now;
        }
        let of_stream = |marked: &Marked| marked.stream == stream && !marked.closed;
        let place = self.streams.iter().position(of_stream).unwrap_or(self.streams.len());
        if place == self.streams.len() {
            let begin = events.take()?;
            let Some(begun) = record_timely(begin, stream) else {
                events.give([begin]);
                return None;
            };
            if self.streams.is_empty() {
                self.clocks = Clocks::new(begun);
            }
            self.streams.push(Marked {
                stream,
                begin,
                begun,
                lead: None,
                first: None,
                handed: None,
                passed: None,
                marks: VecDeque::new(),
                not_yet: 0,
                launched: 0,
                going: 0,
                moved: true,
                closed: false,
            });
        }
        let expected = costs::of(work).expected();
        self.unknown |= expected.is_none();
        let cost = expected.unwrap_or(0);
        self.expected = self.expected.saturating_add(cost);
        self.streams[place].going += 1;
        match self.works.iter_mut().find(|(known, _)| *known == work) {
            Some((_, count)) => *count += 1,
            None => self.works.push((work, 1)),
        }
        Some(Ticket { stretch: self.number, stream: place, cost })
    }

    /// It was launched.
    pub fn after(&mut self, ticket: Ticket, events: &mut Events, now: u64) {
        self.launched = now;
        let [time, work] = self.between_marks;
        // Behind what nothing is known of there is a mark at once: nobody could tell when it is done.
        let due = self.unknown || now.saturating_sub(self.marked.max(self.opened)) >= time;
        let Some(marked) = self.streams.get_mut(ticket.stream) else { return };
        marked.going = marked.going.saturating_sub(1);
        marked.launched = marked.launched.saturating_add(ticket.cost);
        marked.moved = true;
        // From the end of the one call to the end of the other: each tells the GPU at the same point on its way.
        marked.lead.get_or_insert(now.saturating_sub(marked.begun));
        let much = marked.launched.saturating_sub(marked.marked_upto()) >= work;
        if (due || much) && !marked.closed && marked.mark(events) {
            self.marked = now;
        }
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
        self.works.iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// Another may begin before the last of it is done: see [`Stretch::settle`].
    pub fn hand_over(&mut self) {
        self.streams.iter_mut().for_each(|marked| marked.handed = marked.passed);
    }

    /// Sees how far the GPU has got.
    pub fn look(&mut self, events: &mut Events, now: u64) {
        let Some(first) = self.streams.first().map(|marked| marked.begin) else { return };
        let clocks = &mut self.clocks;
        let last = self.streams.iter_mut().filter_map(|marked| marked.look(first, clocks, events, now)).max();
        if let Some(last) = last {
            self.progressed = self.clocks.host(last).max(self.progressed).min(now);
        }
    }

    /// When to look again to know well how far the GPU has got: when it should have passed the next mark, and often from then
    /// on. Nothing: it is known, or the next takes much longer than it should.
    pub fn look_at(&self, now: u64) -> Option<u64> {
        const OFTEN: u64 = 10_000;
        const MUCH: u64 = 500_000;
        if self.unknown || self.clocks.are_close() {
            return None;
        }
        let next = |marked: &Marked| Some(marked.marks.front()?.upto.saturating_sub(marked.passed_upto()));
        let at = self.progressed.saturating_add(self.streams.iter().filter_map(next).min()?);
        (now < at + MUCH).then_some(at.max(now + OFTEN))
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
    ///
    /// The GPU may pass the first mark while it is still at another's work, and then has to switch: what the first piece took
    /// beyond what it should have, up to `SWITCH`, was not ours. And it may leave the last piece for what the next has sent:
    /// then that took longer by `SLICE` and more.
    pub fn settle(mut self, by_itself: bool, events: &mut Events) -> u64 {
        const SWITCH: u64 = 500_000;
        const SLICE: u64 = 1_000_000;
        let mut busy = Busy::new();
        let mut total = 0;
        let Some(first) = self.streams.first().map(|marked| marked.begin) else { return 0 };
        // Times are told from one event to another. Some may lie before the first: all are moved into the future.
        const SHIFT: i64 = 1 << 40;
        let at = |event| elapsed(first, event).map(|ns| (ns + SHIFT).max(0) as u64);
        for marked in &self.streams {
            let end = marked.passed.as_ref().and_then(|mark| at(mark.event));
            if let (Some(begin), Some(end)) = (at(marked.begin), end) {
                let mut begin = begin.saturating_add(marked.lead.unwrap_or(0));
                if self.begins_turn
                    && !self.unknown
                    && let Some(first) = marked.first.as_ref().or(marked.passed.as_ref())
                    && let Some(passed) = at(first.event)
                {
                    begin = begin.max(passed.saturating_sub(first.upto).min(begin.saturating_add(SWITCH)));
                }
                let mut end = end;
                if let Some(handed) = &marked.handed
                    && let Some(passed) = at(handed.event)
                {
                    let should = passed.saturating_add(marked.launched.saturating_sub(handed.upto));
                    end = if end > should + SLICE { should } else { end };
                }
                total += busy.add(begin, end);
            }
        }
        // What is behind the last mark took what it should.
        let unmarked = |marked: &Marked| marked.launched.saturating_sub(marked.passed_upto());
        total = total.saturating_add(self.streams.iter().map(unmarked).sum());
        if by_itself && total > 0 {
            self.learn(total);
        }
        self.give_events(events);
        total
    }

    fn give_events(&mut self, events: &mut Events) {
        for mut marked in self.streams.drain(..) {
            let mut marks: Vec<Event> = marked.marks.drain(..).map(|mark| mark.event).collect();
            for mark in [marked.first, marked.handed, marked.passed].into_iter().flatten() {
                if !marks.contains(&mark.event) {
                    marks.push(mark.event);
                }
            }
            events.give(marks.into_iter().chain([marked.begin]));
        }
    }

    fn learn(&self, measured: u64) {
        let known = self.works.iter().map(|(work, count)| (*work, costs::of(*work), u64::from(*count)));
        let unknown = known.clone().filter(|(_, cost, _)| *cost == Cost::UNKNOWN).map(|(_, _, count)| count).sum();
        for (work, cost, _) in known {
            costs::set(work, cost.learned(self.expected, unknown, measured));
        }
    }
}
