//! How much of a program's work is under way that nobody holds up.

use std::collections::VecDeque;

use super::marks::{Event, Events, elapsed, has_passed, record};
use super::stretch::OFTEN;
use crate::driver::Stream;

/// As often as this it is looked which marks of one that nobody holds up the GPU has passed.
const BETWEEN_LOOKS: u64 = 20_000;

/// A mark behind a launch that nobody held up.
struct Sample {
    event: Event,
    stream: Stream,
    /// When it was recorded, by the host's clock.
    at: u64,
    /// How many launches there were up to it, what they should take, and how many there were in its stream since the mark before.
    count: u64,
    time: u64,
    own: u64,
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
    /// What those should take, as far as it is known of each kind by itself, and in company: the quickest of what was found are the
    /// short ones, where a program launches short and long ones.
    time: u64,
    /// How many there were in the stream that is marked, since it last was.
    own: u64,
    /// What a launch takes on average; 0: not known. In company, by the quickest of what was found last: in most of it the GPU worked
    /// for others, too, and who is held up for that gives his time to them.
    cost: u64,
    latest: [u64; Samples::LATEST],
    /// How often that was found since launches are watched.
    found: u32,
    /// How many launches in a row came when all that was marked before was done: the program waits for each.
    awaited: u32,
    /// How many of them were not marked for that.
    unmarked: u32,
}

impl Samples {
    /// While nothing is known, no more than this is under way.
    const UNKNOWN: u64 = 16;
    /// Where a launch takes less than this on average, the hardware's queue (of 1024 launches) is short enough.
    const SHORT: u64 = 40_000;
    /// And where others wait for them.
    const QUICK: u64 = 10_000;

    /// A program that waits for so many in a row does it always, most likely, and one that waits for this many does.
    const HABIT: u32 = 16;
    const ALWAYS: u32 = 64;

    /// So much of what was found last counts in company.
    const LATEST: usize = 4;

    /// None yet.
    pub const fn new() -> Samples {
        Samples {
            context: 0,
            marks: VecDeque::new(),
            passed: None,
            marked: 0,
            looked: 0,
            count: 0,
            time: 0,
            own: 0,
            cost: 0,
            latest: [u64::MAX; Samples::LATEST],
            found: 0,
            awaited: 0,
            unmarked: 0,
        }
    }

    /// Something was launched into a stream that can be marked, and takes so long, if that is known.
    pub fn after(
        &mut self,
        context: usize,
        stream: Stream,
        takes: Option<u64>,
        events: &mut Events,
        in_company: bool,
        now: u64,
    ) {
        const MOST: usize = 64;
        /// Of those of a program that waits for each, one launch in so many shows whether it still does.
        const ONE_IN: u32 = 8;
        /// Where nobody else waits for it, there are so many marks in all that is queued, or one behind so much of it: each takes the
        /// GPU two microseconds and more.
        const MARKS_AHEAD: u64 = 3;
        const SELDOM: u64 = 2_000_000;
        if self.context != context {
            self.forget();
            self.context = context;
        }
        self.count += 1;
        self.time = self.time.saturating_add(takes.filter(|_| in_company).unwrap_or(0));
        let is_other = self.marks.back().is_some_and(|sample| sample.stream != stream);
        self.own += u64::from(!is_other);
        let last = self.marks.back().or(self.passed.as_ref()).map_or(0, |sample| sample.count);
        // Where nothing is known, one is marked, the next, and so on at twice the distance, up to eight: it shows soon.
        let is_unseen = self.cost == 0 && self.count - last >= last.clamp(1, 8);
        let is_much = (self.count - last).saturating_mul(self.cost) >= (self.left() / MARKS_AHEAD).min(SELDOM);
        let due = is_unseen || (in_company || is_much) && now.saturating_sub(self.marked) >= OFTEN;
        self.awaited = if self.marks.is_empty() { self.awaited.saturating_add(1) } else { 0 };
        if !due || is_other || self.marks.len() >= MOST {
            return;
        }
        if !in_company && self.awaited > Samples::HABIT && self.unmarked + 1 < ONE_IN {
            self.unmarked += 1;
            return;
        }
        self.unmarked = 0;
        let Some(event) = events.take() else { return };
        if record(event, stream) {
            let follows = self.marks.back().is_some_and(|sample| !has_passed(sample.event));
            let own = std::mem::take(&mut self.own);
            let (count, time) = (self.count, self.time);
            self.marks.push_back(Sample { event, stream, at: now, count, time, own, follows });
            self.marked = now;
        } else {
            events.give([event]);
        }
    }

    /// Sees how far the GPU has got. For how long the oldest of what was marked has been under way.
    pub fn age(&mut self, events: &mut Events, in_company: bool, now: u64) -> u64 {
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
                let cost = cost_of_each(took.max(1) as u64, sample.count - before.count, sample.own);
                self.latest.rotate_right(1);
                self.latest[0] = cost;
                self.cost = if in_company { self.latest.into_iter().fold(cost, u64::min) } else { cost };
                self.found += 1;
            }
            events.give(self.passed.replace(sample).map(|before| before.event));
        }
        self.marks.front().map_or(0, |sample| now.saturating_sub(sample.at))
    }

    /// How many launches should be under way, and what they take.
    fn under_way(&self) -> (u64, u64) {
        let (count, time) = self.passed.as_ref().map_or((0, 0), |sample| (sample.count, sample.time));
        let count = self.count - count;
        (count, count.saturating_mul(self.cost).max(self.time - time))
    }

    /// What should be under way.
    pub fn left(&self) -> u64 {
        if self.marks.is_empty() { 0 } else { self.under_way().1 }
    }

    /// Whether more may be launched, if no more is to be under way than this.
    pub fn admits(&self, most: u64) -> bool {
        let (count, time) = self.under_way();
        match self.cost {
            // The next one can be marked, so this does not go on.
            _ if self.marks.is_empty() => true,
            0 => count < Samples::UNKNOWN,
            _ => count < 2 || time <= most,
        }
    }

    /// Whether this is the stream in which something is marked that the GPU is not done with.
    pub fn is_in(&self, stream: Stream) -> bool {
        self.marks.back().is_some_and(|sample| sample.stream == stream)
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

    /// Whether a launch that takes this long, if that is known, is that short.
    pub fn is_quick(each: Option<u64>) -> bool {
        each.is_some_and(|each| each < Samples::QUICK)
    }

    /// What they take, if that was found since launches are watched.
    pub fn found(&self) -> Option<u64> {
        (self.found > 0).then_some(self.cost)
    }

    fn are_within(&self, cost: u64) -> bool {
        let is_done = self.count > u64::from(Samples::ALWAYS) && self.marks.is_empty() && self.unmarked == 0;
        let is_awaited = self.count > u64::from(Samples::HABIT) && self.awaited > Samples::ALWAYS;
        self.found().is_some_and(|found| found < cost) || is_done || is_awaited
    }

    /// Launches were not watched for a while.
    pub fn begin_again(&mut self, events: &mut Events) {
        events.give(self.marks.drain(..).chain(self.passed.take()).map(|sample| sample.event));
        (self.count, self.time, self.own, self.found) = (0, 0, 0, 0);
    }

    /// Nothing was launched for a while, and nothing is under way: what comes next may be anything.
    pub fn rest(&mut self, events: &mut Events) {
        if self.marks.is_empty() {
            self.begin_again(events);
            (self.cost, self.latest) = (0, [u64::MAX; Samples::LATEST]);
        }
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

/// What a launch takes on average, where the GPU took so long for what is between two marks in a stream: `own` launches, while
/// `all` were made in any stream. It need not have done all of those: who launches much into other streams would seem to launch
/// what takes nothing. So no more of them count than it would do side by side or by turns where all streams have as much; but it
/// is not taken to be much more than that, or too little would be under way in programs with many streams.
fn cost_of_each(took: u64, all: u64, own: u64) -> u64 {
    const MANY: u64 = 8;
    (took / own.clamp(1, all.max(1))).min(took.saturating_mul(MANY) / all.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_rest_nothing_is_known() {
        let (mut samples, mut events) = (Samples { cost: 2_000, found: 3, ..Samples::new() }, Events::new());
        assert!(samples.are_quick() && samples.are_known());
        samples.rest(&mut events);
        assert!(!samples.are_known() && !samples.are_short() && samples.found().is_none());
    }

    #[test]
    fn launches_into_other_streams_do_not_make_all_look_short() {
        assert_eq!(cost_of_each(5_000, 10, 10), 500, "one stream");
        assert_eq!(cost_of_each(2_000, 4, 1), 2_000, "four in step: too much, which does no harm");
        assert_eq!(cost_of_each(2_000, 100, 1), 160, "hardly any here, many elsewhere: not 20");
        assert_eq!(cost_of_each(16_000, 32, 1), 4_000, "many streams: not 16000");
        assert_eq!((cost_of_each(0, 0, 0), cost_of_each(7, 0, 9)), (1, 7));
    }
}
