//! A stretch of work: what was launched between two looks, and how long the GPU worked on it.
//!
//! It is marked by events of ours in the program's own streams: one before the first launch in each stream, and more behind
//! later ones. The GPU writes the time into them as it passes. They are recorded by threads that launch into that very
//! stream, or while nobody can begin a capture in it.

use std::collections::VecDeque;
use std::ptr::null_mut;

use ration_policy::{Busy, Cost};

use super::costs::{self, Work};
use crate::abi::cuda::*;
use crate::driver::{Stream, calls};
use crate::sys;

/// An event of ours.
#[derive(Clone, Copy)]
pub struct Event(CUevent);

// SAFETY: a handle, which the driver takes from any thread.
unsafe impl Send for Event {}

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
    /// What all that was launched should take.
    launched: u64,
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
        self.first.iter().chain(&self.handed).any(|kept| kept.event.0 == mark.event.0)
    }

    /// Sees which marks the GPU has passed.
    fn look(&mut self, events: &mut Events) {
        while self.marks.front().is_some_and(|mark| has_passed(mark.event)) {
            let passed = self.marks.pop_front();
            let before = std::mem::replace(&mut self.passed, passed);
            match self.first {
                None => self.first = before,
                Some(_) => events.give(before.filter(|mark| !self.is_kept(mark)).map(|mark| mark.event)),
            }
        }
    }
}

/// A stretch of work in one context.
pub struct Stretch {
    pub context: usize,
    /// When it began, by the host's clock.
    pub opened: u64,
    /// Its turn was lost, and the GPU does the rest of it beside others' work: how much it had done for them until then.
    pub lost: Option<u64>,
    /// When the last launch was.
    pub launched: u64,
    /// When an end was last marked.
    marked: u64,
    /// When the GPU was last seen to have got on, or was given work when it had none.
    progressed: u64,
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
const BETWEEN_MARKS: u64 = 50_000;
/// As often as this it is looked which marks of one that nobody holds up the GPU has passed.
const BETWEEN_LOOKS: u64 = 20_000;
/// And behind so much work.
const WORK_BETWEEN_MARKS: u64 = 80_000;

impl Stretch {
    /// Nothing yet. `is_marked_often`: it is to be known how much of it is under way.
    pub fn new(context: usize, begins_turn: bool, is_marked_often: bool, now: u64) -> Stretch {
        Stretch {
            context,
            opened: now,
            lost: None,
            launched: now,
            marked: 0,
            progressed: now,
            expected: 0,
            unknown: false,
            between_marks: if is_marked_often { [BETWEEN_MARKS, WORK_BETWEEN_MARKS] } else { [1_000_000; 2] },
            begins_turn,
            works: Vec::new(),
            streams: Vec::new(),
        }
    }

    /// Something is about to be launched into a stream.
    pub fn before(&mut self, stream: Stream, work: Work, events: &mut Events, now: u64) -> bool {
        if self.in_flight() == 0 {
            self.progressed = now;
        }
        let of_stream = |marked: &&mut Marked| marked.stream == stream && !marked.closed;
        if self.streams.iter_mut().find(of_stream).is_none() {
            let Some(begin) = events.take() else { return false };
            let Some(begun) = record_timely(begin, stream) else {
                events.give([begin]);
                return false;
            };
            self.streams.push(Marked {
                stream,
                begin,
                begun,
                lead: None,
                first: None,
                handed: None,
                passed: None,
                marks: VecDeque::new(),
                launched: 0,
                moved: true,
                closed: false,
            });
        }
        match costs::of(work).expected() {
            Some(cost) => {
                self.expected = self.expected.saturating_add(cost);
                if let Some(marked) = self.streams.iter_mut().find(of_stream) {
                    marked.launched = marked.launched.saturating_add(cost);
                }
            }
            None => self.unknown = true,
        }
        match self.works.iter_mut().find(|(known, _)| *known == work) {
            Some((_, count)) => *count += 1,
            None => self.works.push((work, 1)),
        }
        true
    }

    /// It was launched.
    pub fn after(&mut self, stream: Stream, events: &mut Events, now: u64) {
        self.launched = now;
        let [time, work] = self.between_marks;
        // Behind what nothing is known of there is a mark at once: nobody could tell when it is done.
        let due = self.unknown || now.saturating_sub(self.marked.max(self.opened)) >= time;
        for marked in self.streams.iter_mut().filter(|marked| marked.stream == stream && !marked.closed) {
            marked.moved = true;
            // From the end of the one call to the end of the other: each tells the GPU at the same point on its way.
            marked.lead.get_or_insert(now.saturating_sub(marked.begun));
            let much = marked.launched.saturating_sub(marked.marked_upto()) >= work;
            if (due || much) && marked.mark(events) {
                self.marked = now;
            }
        }
    }

    /// Marks the end of all that was launched so far. Nobody begins a capture meanwhile.
    pub fn mark_ends(&mut self, events: &mut Events, now: u64) {
        for marked in self.streams.iter_mut().filter(|marked| marked.moved && !marked.closed) {
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
        let before = self.in_flight();
        self.streams.iter_mut().for_each(|marked| marked.look(events));
        let done = before - self.in_flight();
        if done > 0 {
            // It was done before it was seen: the GPU has been at the next since it should have been, if that is earlier.
            self.progressed = now.min(self.progressed.saturating_add(done));
        }
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
        let over = now.saturating_sub(self.launched.max(self.progressed));
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
                if !marks.iter().any(|event| event.0 == mark.event.0) {
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

/// A mark behind a launch that nobody held up.
struct Sample {
    event: Event,
    stream: Stream,
    /// When it was recorded, by the host's clock.
    at: u64,
    /// How many launches there were up to it.
    count: u64,
    /// The one before was under way when this one was recorded, so that the GPU had no pause between them.
    follows: bool,
}

/// Marks behind some of the work of a program that nobody holds up, to know how much of it is under way, and for how long.
/// While there is one that the GPU has not passed, others are put into that stream only: what is done between marks in two
/// streams says nothing about how long it takes.
pub struct Samples {
    context: usize,
    marks: VecDeque<Sample>,
    passed: Option<Sample>,
    marked: u64,
    looked: u64,
    count: u64,
    /// What a launch takes on average; 0: not known.
    cost: u64,
    /// How often that was found since launches are watched.
    found: u32,
}

impl Samples {
    /// While nothing is known, no more than this is under way.
    const UNKNOWN: u64 = 16;
    /// Where a launch takes less than this on average, the hardware's queue (of 1024 launches) is short enough.
    const SHORT: u64 = 40_000;
    /// And where others wait for them.
    const QUICK: u64 = 10_000;

    /// None yet.
    pub const fn new() -> Samples {
        Samples { context: 0, marks: VecDeque::new(), passed: None, marked: 0, looked: 0, count: 0, cost: 0, found: 0 }
    }

    /// Something was launched into a stream that can be marked.
    pub fn after(&mut self, context: usize, stream: Stream, events: &mut Events, now: u64) {
        const MOST: usize = 64;
        if self.context != context {
            self.forget();
            self.context = context;
        }
        self.count += 1;
        let last = self.marks.back().or(self.passed.as_ref()).map_or(0, |sample| sample.count);
        let due = now.saturating_sub(self.marked) >= BETWEEN_MARKS || self.cost == 0 && self.count - last >= 8;
        let is_other = self.marks.back().is_some_and(|sample| sample.stream != stream);
        if !due || is_other || self.marks.len() >= MOST {
            return;
        }
        let Some(event) = events.take() else { return };
        if record(event, stream) {
            let follows = self.marks.back().is_some_and(|sample| !has_passed(sample.event));
            self.marks.push_back(Sample { event, stream, at: now, count: self.count, follows });
            self.marked = now;
        } else {
            events.give([event]);
        }
    }

    /// Sees how far the GPU has got. For how long the oldest of what was marked has been under way.
    pub fn age(&mut self, events: &mut Events, now: u64) -> u64 {
        let again = now.saturating_sub(self.looked) >= BETWEEN_LOOKS;
        if again {
            self.looked = now;
        }
        while again && self.marks.front().is_some_and(|sample| has_passed(sample.event)) {
            let Some(sample) = self.marks.pop_front() else { break };
            if let Some(before) = &self.passed
                && sample.follows
                && sample.stream == before.stream
                && let Some(took) = elapsed(before.event, sample.event)
            {
                self.cost = (took.max(1) as u64 / (sample.count - before.count).max(1)).max(1);
                self.found += 1;
            }
            events.give(self.passed.replace(sample).map(|before| before.event));
        }
        self.marks.front().map_or(0, |sample| now.saturating_sub(sample.at))
    }

    /// What should be under way.
    pub fn left(&self) -> u64 {
        let under_way = self.count - self.passed.as_ref().map_or(0, |sample| sample.count);
        if self.marks.is_empty() { 0 } else { under_way.saturating_mul(self.cost) }
    }

    /// Whether more may be launched, if no more is to be under way than this.
    pub fn admits(&self, most: u64) -> bool {
        let under_way = self.count - self.passed.as_ref().map_or(0, |sample| sample.count);
        match self.cost {
            // The next one can be marked, so this does not go on.
            _ if self.marks.is_empty() => true,
            0 => under_way < Samples::UNKNOWN,
            cost => under_way < 2 || under_way.saturating_mul(cost) <= most,
        }
    }

    /// Whether it is known what they take.
    pub fn are_known(&self) -> bool {
        self.cost != 0
    }

    /// Whether launches are so short that nobody need watch how many there are.
    pub fn are_short(&self) -> bool {
        self.are_within(Samples::SHORT)
    }

    /// Whether they are so short that nobody need, not even where others wait for them.
    pub fn are_quick(&self) -> bool {
        self.are_within(Samples::QUICK)
    }

    fn are_within(&self, cost: u64) -> bool {
        self.cost != 0 && self.cost < cost && self.found > 0 || self.count > 64 && self.marks.is_empty()
    }

    /// Launches were not watched for a while.
    pub fn begin_again(&mut self, events: &mut Events) {
        events.give(self.marks.drain(..).chain(self.passed.take()).map(|sample| sample.event));
        (self.count, self.found) = (0, 0);
    }

    /// The context that they are in.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Their context is gone, or another is looked at. (The events of one that is not gone stay with it.)
    pub fn forget(&mut self) {
        *self = Samples { cost: self.cost, ..Samples::new() };
    }
}

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
