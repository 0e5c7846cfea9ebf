//! Several containers on one GPU, in simulated time, by the rules of this crate and nothing else.
//!
//! Each container keeps the words that it has in the region; whoever waits looks at them as the shim does. What came of it is
//! judged by the model's own record of when the GPU worked for whom, which the rules never see.

use std::collections::VecDeque;
use std::iter::Copied;
use std::slice::Iter;

use ration_policy::turns::{Contender, Priority, Queue, Rules, Turn};
use ration_policy::{Bucket, Busy, Cost, Flight, Share};

use crate::load::{self, Load};
use crate::outcome::{Outcome, Record};

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// A switch between busy contexts, as measured on an H200.
pub const SWITCH: u64 = 150 * US;
/// From the end of one container's work to the first launch of the next: the end is noticed, and a futex wakes it.
pub const WAKE: u64 = 30 * US;
/// From one launch of a program to its next, and from a launch to its start on the GPU.
const LAUNCH: u64 = 4 * US;
const ARRIVAL: u64 = 6 * US;
/// What a program queues when nobody limits it.
const DEEP: u64 = 10 * MS;

/// A container, as somebody configures it.
#[derive(Clone, Debug)]
pub struct Setup {
    pub request: u32,
    pub limit: u32,
    pub priority: Priority,
    pub load: Load,
    /// From when to when its process is stopped, whatever it was doing; from the start of the run.
    pub stopped: Option<(u64, u64)>,
    /// From when on it has another limit, in per cent; from the start of the run.
    pub changes: Option<(u64, u32)>,
}

/// Per cent as millionths.
pub const fn percent(percent: u32) -> u32 {
    percent * 10_000
}

impl Setup {
    /// A request in per cent, no limit, and endless work.
    pub fn new(request: u32, load: Load) -> Setup {
        Setup {
            request: percent(request),
            limit: percent(100),
            priority: Priority::Normal,
            load,
            stopped: None,
            changes: None,
        }
    }

    pub fn limit(self, limit: u32) -> Setup {
        Setup { limit: percent(limit), ..self }
    }

    pub fn priority(self, priority: Priority) -> Setup {
        Setup { priority, ..self }
    }
}

/// A piece of work that was started.
#[derive(Debug)]
struct Piece {
    kind: usize,
    begins: u64,
    ends: u64,
    batch_ends: bool,
}

/// A container: its words, and its one process.
struct Container {
    setup: Setup,
    limit: Share,
    // In the region.
    virtual_time: u64,
    used_until: u64,
    since: Option<u64>,
    served: u64,
    // In its process.
    busy: Busy,
    costs: Vec<Cost>,
    in_flight: VecDeque<Piece>,
    may_launch: u64,
    quiet: Option<u64>,
    heard: u64,
    // In the program.
    work: load::Work,
}

impl Container {
    fn new(setup: Setup, seed: u64) -> Container {
        Container {
            limit: Share::from_ppm(setup.limit),
            virtual_time: 0,
            used_until: 0,
            since: None,
            served: 0,
            busy: Busy::new(),
            costs: vec![Cost::UNKNOWN; setup.load.kinds()],
            in_flight: VecDeque::new(),
            may_launch: 0,
            quiet: Some(START),
            heard: 0,
            work: load::Work::new(&setup.load, START, seed),
            setup,
        }
    }

    fn weight(&self) -> Share {
        Share::weight(self.setup.request, self.limit)
    }

    fn bucket(&self, now: u64) -> Bucket {
        Bucket::new(self.limit).kept_waiting(self.since.map_or(0, |since| now - since))
    }

    fn is_stopped(&self, now: u64) -> bool {
        self.setup.stopped.is_some_and(|(from, to)| (START + from..START + to).contains(&now))
    }

    fn wants(&self, now: u64) -> bool {
        !self.in_flight.is_empty() || self.work.available_at() <= now
    }

    /// What is expected to be under way.
    fn expected(&self, now: u64) -> u64 {
        let cost = |piece: &Piece| Flight::USUAL.counted(self.costs[piece.kind]);
        let worked = self.in_flight.front().map_or(0, |piece| now.saturating_sub(piece.begins).min(cost(piece)));
        self.in_flight.iter().map(cost).sum::<u64>() - worked
    }

    /// When what is under way lets the next piece through; now or before, if it does.
    fn admitted_at(&self, now: u64, bound: Option<Flight>) -> u64 {
        let expected = self.expected(now);
        let next = self.costs[self.work.next_kind()];
        // Held to a limit, it is bounded also when it is alone.
        let bound = bound.or((!self.limit.is_whole()).then_some(Flight::USUAL));
        let at_most = match bound {
            None => DEEP,
            Some(flight) if flight.admits(expected, next) => expected,
            Some(flight) => flight.most.saturating_sub(flight.counted(next)).max(flight.low),
        };
        now + expected.saturating_sub(at_most)
    }
}

/// Time begins here, so that no word is 0 by chance.
pub const START: u64 = SECOND;

/// One GPU.
pub struct Model {
    rules: Rules,
    containers: Vec<Container>,
    now: u64,
    // In the region.
    clock: u64,
    holder: Option<usize>,
    began: u64,
    // The hardware.
    free: u64,
    last: Option<usize>,
    record: Record,
}

impl Model {
    pub fn new(setups: Vec<Setup>, rules: Rules, seed: u64) -> Model {
        let record = Record::new(setups.len());
        let containers = setups.into_iter().zip(seed..).map(|(setup, seed)| Container::new(setup, seed)).collect();
        Model { rules, containers, now: START, clock: 0, holder: None, began: START, free: START, last: None, record }
    }

    /// Runs it for so long.
    pub fn run(mut self, length: u64) -> Outcome {
        let end = START + length;
        while self.now < end {
            self.settle();
            let next = self.next_event();
            assert!(next > self.now, "time goes on");
            self.now = next.min(end);
        }
        self.record.outcome(length)
    }

    /// All that happens at this moment.
    fn settle(&mut self) {
        for index in 0..self.containers.len() {
            self.apply_changes(index);
            self.complete(index);
        }
        for index in 0..self.containers.len() {
            let (now, holds) = (self.now, self.holder == Some(index));
            let container = &mut self.containers[index];
            let goes_on = container.setup.stopped.is_some_and(|(from, to)| START + to == now && to - from > self.rules.lost);
            if container.wants(now) && !holds && (container.since.is_none() || goes_on) {
                container.since = Some(now);
            }
        }
        let mut hops = 0;
        while self.hand_over() {
            hops += 1;
            assert!(hops < 100, "turns are over before they begin");
        }
        if let Some(holder) = self.holder {
            while self.launch_at(holder).is_some_and(|at| at <= self.now) {
                self.launch(holder);
            }
        }
    }

    /// Whoever changes a limit brings the word along.
    fn apply_changes(&mut self, index: usize) {
        let now = self.now;
        let container = &mut self.containers[index];
        if let Some((_, limit)) = container.setup.changes.take_if(|(from, _)| START + *from <= now) {
            let old = container.bucket(now);
            container.limit = Share::from_ppm(percent(limit));
            container.used_until = old.changed(container.bucket(now), container.used_until, now);
        }
    }

    /// What is done is looked at, measured and charged.
    fn complete(&mut self, index: usize) {
        let now = self.now;
        let container = &mut self.containers[index];
        if container.is_stopped(now) {
            return;
        }
        while container.in_flight.front().is_some_and(|piece| piece.ends <= now) {
            let piece = container.in_flight.pop_front().expect("it is there");
            let gpu = container.busy.add(piece.begins, piece.ends);
            container.used_until = container.bucket(now).charged(container.used_until, now, gpu);
            let cost = &mut container.costs[piece.kind];
            let (expected, unknown) = cost.expected().map_or((0, 1), |expected| (expected, 0));
            *cost = cost.learned(expected, unknown, gpu);
            container.heard = now;
            if piece.batch_ends {
                let asked_at = container.work.batch_ended(piece.ends);
                self.record.answered(index, asked_at, piece.ends);
            }
        }
        if container.in_flight.is_empty() && container.quiet.is_none() {
            container.quiet = Some(now);
        }
    }

    fn contender(&self, index: usize) -> Contender {
        let container = &self.containers[index];
        let (now, weight) = (self.now, container.weight());
        let bucket = container.bucket(now);
        let together = self.containers.iter().filter(|it| it.wants(now)).map(|it| u64::from(it.weight().ppm())).sum();
        let free = bucket.free_at(container.used_until, now);
        let ready = match container.setup.priority {
            Priority::Latency => free,
            _ => bucket.ready_at(container.used_until, now, self.rules.worth(weight, together)),
        };
        Contender {
            index,
            weight,
            priority: container.setup.priority,
            virtual_time: container.virtual_time,
            since: container.since.unwrap_or(now),
            served: container.served,
            free,
            ready,
        }
    }

    fn waiting(&self) -> Vec<Contender> {
        let waits = |index: &usize| {
            let container = &self.containers[*index];
            // Who waits looks again all the time, unless it is stopped.
            let stopped = container.setup.stopped.filter(|_| container.is_stopped(self.now));
            let heard = stopped.map_or(self.now, |(from, _)| START + from);
            self.holder != Some(*index) && container.wants(self.now) && self.rules.is_heard(heard, self.now)
        };
        (0..self.containers.len()).filter(waits).map(|index| self.contender(index)).collect()
    }

    fn queue<'a>(&'a self, waiting: &'a [Contender]) -> Queue<'a, Copied<Iter<'a, Contender>>> {
        let turn = self.holder.map(|index| {
            let container = &self.containers[index];
            // With something to launch that only its ceiling holds back, it is quiet as well.
            let quiet = container.quiet.filter(|_| {
                let blocked = container.bucket(self.now).free_at(container.used_until, self.now) > self.now;
                container.work.available_at() > self.now || blocked
            });
            Turn { holder: self.contender(index), began: self.began, quiet, heard: container.heard }
        });
        Queue { clock: self.clock, turn, waiting: waiting.iter().copied(), now: self.now, rules: &self.rules }
    }

    /// If the turn is over and all that was started is done, or if it is lost, another begins. Returns whether one does.
    fn hand_over(&mut self) -> bool {
        let waiting = self.waiting();
        let queue = self.queue(&waiting);
        let drained = self.holder.is_none_or(|holder| {
            let container = &self.containers[holder];
            container.in_flight.is_empty() && !container.is_stopped(self.now)
        });
        let lost = queue.lost_at().is_some_and(|at| at <= self.now);
        if !(self.holder.is_none() || queue.is_over() && drained || lost) {
            return false;
        }
        let Some(grant) = queue.next() else { return false };
        if let Some(old) = self.holder {
            let wants = self.containers[old].wants(self.now);
            let container = &mut self.containers[old];
            container.virtual_time = container.virtual_time.saturating_add(grant.charge);
            container.served = self.now;
            container.since = wants.then_some(self.now);
        }
        self.clock = self.clock.max(grant.clock);
        let new = &mut self.containers[grant.index];
        new.virtual_time = new.virtual_time.max(grant.virtual_time);
        new.may_launch = self.now + WAKE;
        new.quiet = None;
        new.heard = self.now;
        self.record.granted(grant.index, self.now - new.since.unwrap_or(self.now));
        (self.holder, self.began) = (Some(grant.index), self.now);
        true
    }

    /// When the holder launches its next piece, as things are. `None`: not before something else happens.
    fn launch_at(&self, index: usize) -> Option<u64> {
        let container = &self.containers[index];
        let waiting = self.waiting();
        let over = self.queue(&waiting).is_over();
        if over || container.is_stopped(self.now) || container.work.available_at() == u64::MAX {
            return None;
        }
        let free = container.bucket(self.now).free_at(container.used_until, self.now);
        let wanted = |(other, it): (usize, &Container)| {
            let waits = waiting.iter().any(|it| it.index == other);
            (other != index).then_some((it.setup.priority, if waits { self.now } else { it.served }))
        };
        let others = self.containers.iter().enumerate().filter_map(wanted);
        let bound = self.rules.flight(others, self.now);
        let admitted = container.admitted_at(self.now, bound);
        Some(container.work.available_at().max(container.may_launch).max(free).max(admitted))
    }

    fn launch(&mut self, index: usize) {
        let now = self.now;
        let container = &mut self.containers[index];
        let (kind, length, batch_ends) = container.work.take(now);
        let switch = if self.last == Some(index) { 0 } else { SWITCH };
        let begins = self.free.max(now + ARRIVAL) + switch;
        let ends = begins + length;
        container.in_flight.push_back(Piece { kind, begins, ends, batch_ends });
        container.quiet = None;
        container.heard = now + container.expected(now);
        container.may_launch = now + LAUNCH;
        (self.free, self.last) = (ends, Some(index));
        self.record.worked(index, begins, ends);
    }

    /// When something happens next.
    fn next_event(&self) -> u64 {
        let mut next = u64::MAX;
        let mut at = |time: u64| {
            if time > self.now {
                next = next.min(time);
            }
        };
        for (index, container) in self.containers.iter().enumerate() {
            container.in_flight.front().into_iter().for_each(|piece| at(piece.ends));
            if let Some((from, to)) = container.setup.stopped {
                [from, from + self.rules.lost, to].into_iter().for_each(|time| at(START + time));
            }
            if let Some((from, _)) = container.setup.changes {
                at(START + from);
            }
            if self.holder != Some(index) {
                at(container.work.available_at());
            }
        }
        if let Some(holder) = self.holder {
            self.launch_at(holder).into_iter().for_each(&mut at);
            // Waiting for its own ceiling, it is quiet from now on.
            at(self.containers[holder].work.available_at());
        }
        let waiting = self.waiting();
        let queue = self.queue(&waiting);
        queue.over_at().into_iter().chain(queue.lost_at()).for_each(&mut at);
        waiting.iter().flat_map(|it| [it.free, it.ready]).for_each(&mut at);
        next
    }
}
