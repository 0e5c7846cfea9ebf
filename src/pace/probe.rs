//! How much of the GPU's time a program takes that nobody holds up.
//!
//! Some of its launches are measured, a few in a row, a few dozen times a second: each has a mark of ours behind it, in the
//! stream that it went into. The others, which pass without asking, are only counted, and taken to be like those.

use ration_policy::Quickest;
use ration_policy::sample::{self, Begin, Launched, Rate};

use super::costs::{self, Work};
use super::free::DEEPEST_ALONE;
use super::marks::{Event, Events, elapsed, has_passed, is_idle, record, record_timely};
use crate::driver::Stream;

/// A launch that is measured.
#[derive(Clone, Copy)]
struct Measured {
    work: Work,
    /// When it had been sent, or that it came in time.
    sent: u64,
    /// The mark behind it.
    event: Event,
    /// The GPU had not passed the mark before it when it was sent, and had no pause between them.
    follows: bool,
}

/// Launches in a row that are measured.
struct Probe {
    context: usize,
    stream: Stream,
    begin: Event,
    /// The stream had nothing to do when `begin` was recorded.
    is_idle: bool,
    opened: u64,
    last: u64,
    /// The first so many.
    launches: [Option<Measured>; Probe::MOST],
    count: usize,
    /// A mark behind the last of those, with nothing in between.
    extra: Option<Event>,
    /// Nothing was launched for a while since then: what comes next need not be like these.
    is_past: bool,
    /// It began where something came that was not measured yet, and does not show what the program does most of the time.
    is_chosen: bool,
}

impl Probe {
    /// In a row: no more than so many, and for no longer than this.
    const MOST: usize = 16;
    const LONGEST: u64 = 2_000_000;

    fn launches(&self) -> impl DoubleEndedIterator<Item = Measured> + Clone + '_ {
        self.launches.iter().copied().flatten()
    }

    /// The mark behind the last launch.
    fn behind(&self) -> Option<Event> {
        self.launches().next_back().map(|launch| launch.event)
    }

    fn last_mark(&self) -> Option<Event> {
        self.extra.or_else(|| self.behind())
    }

    /// What a mark took that had nothing before it.
    fn mark(&self) -> Option<u64> {
        u64::try_from(elapsed(self.behind()?, self.extra?)?).ok()
    }

    fn add(&mut self, launch: Measured) {
        self.launches[self.count] = Some(launch);
        self.count += 1;
    }

    /// When the GPU was done with each, by its own clock, after the mark before the first.
    fn done(&self) -> [u64; Probe::MOST] {
        let done = |launch: Measured| elapsed(self.begin, launch.event).and_then(|done| u64::try_from(done).ok());
        self.launches.map(|launch| launch.and_then(done).unwrap_or(0))
    }

    /// What each took that the GPU began at once when it was done with the one before. `mark`: what a mark takes.
    fn learn(&self, done: &[u64; Probe::MOST], mark: u64, quickest: &mut Quickest) {
        let mut before = 0;
        for (launch, &done) in self.launches().zip(done) {
            if launch.follows && done > before {
                quickest.learn(launch.work.number(), (done - before).saturating_sub(mark));
            }
            before = done;
        }
    }
}

/// What was measured, and what is to be.
pub struct Probes {
    /// The next launch begins one.
    due: bool,
    /// So many launches were let pass since then.
    tries: u32,
    open: Option<Probe>,
    /// The last one, which the GPU is not done with.
    ending: Option<Probe>,
    /// When it was last asked for.
    looked: u64,
    /// What a mark takes by itself: the least that was seen.
    mark: u64,
    /// What each kind of work takes by itself, for in company most measurements have the time of others in them.
    quickest: Quickest,
    /// Some was launched of which that is not known; and the last row was begun for such work: every other may be.
    is_missed: bool,
    was_chosen: bool,
    rate: Rate,
    /// Launches of work that is measured in another way.
    held: u64,
    metered: u64,
}

impl Probes {
    const TRIES: u32 = 8;
    /// The same while one of a kind that is not known is waited for: a program may launch many short ones before each long one.
    const TRIES_FOR_MISSED: u32 = 128;

    /// Nothing yet; the first launch is measured.
    pub const fn new() -> Probes {
        Probes {
            due: true,
            tries: 0,
            open: None,
            ending: None,
            looked: 0,
            mark: u64::MAX,
            quickest: Quickest::new(),
            is_missed: false,
            was_chosen: false,
            rate: Rate::new(),
            held: 0,
            metered: 0,
        }
    }

    /// Something is about to be launched into a stream that can be marked, and nobody holds it up.
    pub fn before(&mut self, context: usize, stream: Stream, work: Work, events: &mut Events, now: u64) {
        if let Some(open) = &self.open {
            // In another stream it does not count, and after a pause a new row begins.
            if open.context == context && (now.saturating_sub(open.last) > Probe::LONGEST || now < open.last) {
                self.end();
            }
            return;
        }
        if !self.due || self.ending.is_some() {
            return;
        }
        // Times are told best from a moment at which the stream has nothing to do. Some programs have none. But where something is
        // launched that was not measured yet, it is to be that, every other time.
        let is_idle = is_idle(stream);
        let is_chosen = self.is_missed && !self.was_chosen;
        let tries = match (is_chosen, is_idle) {
            (true, _) if self.takes(work).is_some() => Probes::TRIES_FOR_MISSED,
            (false, false) => Probes::TRIES,
            _ => 0,
        };
        if self.tries < tries {
            self.tries += 1;
            return;
        }
        let Some(begin) = events.take() else { return };
        let Some(now) = record_timely(begin, stream) else {
            events.give([begin]);
            return;
        };
        (self.due, self.tries, self.is_missed, self.was_chosen) = (false, 0, false, is_chosen);
        self.open = Some(Probe {
            context,
            stream,
            begin,
            is_idle,
            opened: now,
            last: now,
            launches: [None; Probe::MOST],
            count: 0,
            extra: None,
            is_past: false,
            is_chosen,
        });
    }

    /// It was launched.
    pub fn after(&mut self, context: usize, stream: Stream, work: Work, events: &mut Events, now: u64) {
        let is_in = |probe: &Probe| probe.launches().any(|launch| launch.work == work);
        self.is_missed |= self.takes(work).is_none() && self.open.is_none() && !self.ending.as_ref().is_some_and(is_in);
        let Some(open) = &mut self.open else { return };
        if open.context == context && open.stream == stream {
            open.last = now;
            // Where the GPU has not even come to the first mark, it does not wait for this one.
            let is_early = !open.is_idle && !has_passed(open.begin);
            let sent = if is_early { open.opened } else { now };
            let follows = !has_passed(open.behind().unwrap_or(open.begin));
            match events.take() {
                Some(event) if record(event, stream) => open.add(Measured { work, sent, event, follows }),
                event => {
                    events.give(event);
                    self.end();
                    return;
                }
            }
            if open.count == Probe::MOST {
                open.extra = events.take();
                events.give(open.extra.take_if(|extra| !record(*extra, stream)));
            }
        }
        if open.count >= Probe::MOST || now.saturating_sub(open.opened) > Probe::LONGEST {
            self.end();
        }
    }

    /// Whether launches are to be shown to us.
    pub fn is_open(&self) -> bool {
        self.open.is_some() || self.tries > 0
    }

    /// No more launches go into the row.
    pub fn end(&mut self) {
        self.tries = 0;
        if let Some(open) = self.open.take() {
            self.ending = Some(open);
        }
    }

    /// The context of one that the GPU may not be done with; 0: there is none.
    pub fn context(&self) -> usize {
        self.ending.as_ref().or(self.open.as_ref()).map_or(0, |probe| probe.context)
    }

    /// Sees, now and then, whether the GPU is done with the last one. `in_company`: whether other containers use the GPU.
    pub fn look(&mut self, events: &mut Events, in_company: impl FnOnce() -> bool, now: u64) {
        const BETWEEN_LOOKS: u64 = 1_000_000;
        if now.saturating_sub(self.looked) < BETWEEN_LOOKS {
            return;
        }
        self.looked = now;
        let is_done = |probe: &mut Probe| probe.last_mark().is_none_or(has_passed);
        let Some(probe) = self.ending.take_if(is_done) else { return };
        if let Some(mark) = probe.mark() {
            self.mark = self.mark.min(mark);
        }
        if probe.count > 0 {
            // Until one was measured by itself, none takes anything.
            let mark = if self.mark == u64::MAX { 0 } else { self.mark };
            let in_company = in_company();
            let done = probe.done();
            probe.learn(&done, mark, &mut self.quickest);
            let launched = |(launch, &done): (Measured, &u64)| {
                let known = if in_company { self.quickest.of(launch.work.number()) } else { None };
                Launched { sent: launch.sent, done, at_most: known.unwrap_or(u64::MAX) }
            };
            let begin = Begin { at: probe.opened, is_idle: probe.is_idle };
            let time = sample::worked(begin, mark, probe.launches().zip(&done).map(launched));
            let launches = probe.count as u64;
            if !probe.is_chosen {
                self.rate.learn(launches, time, in_company);
            }
            if probe.is_past {
                self.rate.forget_last();
            }
        }
        events.give(probe.launches().map(|launch| launch.event).chain([probe.begin]).chain(probe.extra));
    }

    /// A context is gone, and our events with it.
    pub fn forget_context(&mut self, context: usize) {
        self.open.take_if(|probe| probe.context == context);
        self.ending.take_if(|probe| probe.context == context);
    }

    /// A stream is about to record a graph, or to go away.
    pub fn close(&mut self, stream: Stream) {
        if self.open.as_ref().is_some_and(|open| open.stream == stream) {
            self.end();
        }
    }

    /// So many launches were measured in another way, and took so long.
    pub fn learn(&mut self, launches: u64, time: u64, in_company: bool) {
        self.rate.learn(launches, time, in_company);
    }

    /// How long the GPU takes for such work by itself, as was seen here or in turns; nothing, if that is not known.
    pub fn takes(&self, work: Work) -> Option<u64> {
        self.quickest.of(work.number()).or_else(|| costs::of(work).expected())
    }

    /// How long the GPU should take for so many launches like the last; nothing, if that is not known.
    pub fn expected(&self, launches: u64) -> Option<u64> {
        self.rate.lately(launches)
    }

    /// What was known last was found in turns, or is what turns were wanted for: it is measured again.
    pub fn decide_anew(&mut self) {
        self.due = true;
        self.rate.forget_last();
    }

    /// Nothing was launched for a while: what comes next may be anything, and is measured. What the last ones took may be known
    /// only later.
    pub fn rest(&mut self) {
        self.end();
        if let Some(probe) = &mut self.ending {
            probe.is_past = true;
        }
        self.quickest.forget();
        self.is_missed = false;
        self.decide_anew();
    }

    /// Something was launched that is measured in another way.
    pub fn is_held(&mut self) {
        self.held += 1;
    }

    /// What was launched until now is measured in another way.
    pub fn pass(&mut self, now: u64) {
        (self.held, self.metered) = (0, now);
    }

    /// The process has launched so many more. How long the GPU worked on those of them that nobody held up.
    pub fn meter(&mut self, launches: u64, now: u64) -> u64 {
        let free = launches.saturating_sub(std::mem::take(&mut self.held));
        let since = if self.metered == 0 { now } else { self.metered };
        // What was launched before anything was measured is accounted for later, and so is the time of it.
        self.metered = if self.rate.is_unknown() { since } else { now };
        let wall = now.saturating_sub(since);
        // Not at every look, and not at every other: a program with a rhythm of its own shows all of its sides by and by.
        self.due |= now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0;
        self.rate.of(free, wall, DEEPEST_ALONE)
    }
}
