//! Several containers on one GPU, in simulated time, by the rules of this crate and nothing else.
//!
//! Each container keeps the words that it has in the region; whoever waits looks at them as the shim does. What came of it is
//! judged by the hardware's own record of when the GPU worked for whom, which the rules never see.

use std::iter::Copied;
use std::slice::Iter;

use ration_policy::turns::{Contender, Queue, Rules, Turn};

use crate::container::{Container, Setup};
use crate::gpu::{Gpu, START, US};
use crate::outcome::{Outcome, Record};

/// From the end of one container's work to the first launch of the next: the end is noticed, and a futex wakes it.
const WAKE: u64 = 30 * US;
/// From one launch of a program to its next, and from a launch to its start on the GPU.
const LAUNCH: u64 = 4 * US;
const ARRIVAL: u64 = 6 * US;

/// The GPU's words, its containers, and the hardware.
pub struct Model {
    rules: Rules,
    containers: Vec<Container>,
    now: u64,
    // In the region.
    clock: u64,
    holder: Option<usize>,
    began: u64,
    // What whoever looks sees now.
    together: u64,
    waiting: Vec<Contender>,
    over: Option<u64>,
    lost: Option<u64>,
    /// Before this time it stays so, unless somebody who waits does something, or the holder is quiet.
    stays: u64,
    // Beyond what the rules see.
    gpu: Gpu,
    record: Record,
}

impl Model {
    pub fn new(setups: Vec<Setup>, seed: u64) -> Model {
        let (gpu, record) = (Gpu::new(setups.len()), Record::new(setups.len()));
        let containers = setups.into_iter().zip(seed..).map(|(setup, seed)| Container::new(setup, seed)).collect();
        Model {
            rules: Rules::USUAL,
            containers,
            now: START,
            clock: 0,
            holder: None,
            began: START,
            together: 0,
            waiting: Vec::new(),
            over: None,
            lost: None,
            stays: 0,
            gpu,
            record,
        }
    }

    /// The same, with a record that is fit for a long run.
    pub fn for_long(self) -> Model {
        Model { record: self.record.coarse(), ..self }
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
        self.gpu.advance(end, &mut self.record);
        (0..self.containers.len()).for_each(|index| self.complete(index));
        self.record.outcome(length)
    }

    /// All that happens at this moment.
    fn settle(&mut self) {
        let now = self.now;
        self.gpu.advance(now, &mut self.record);
        for index in 0..self.containers.len() {
            self.trouble(index);
            self.complete(index);
            let holds = self.holder == Some(index);
            let container = &mut self.containers[index];
            if !holds && container.since.is_none() && container.wants(now) {
                container.since = Some(now);
            }
        }
        let is_quiet = self.holder.is_none_or(|holder| self.containers[holder].quiet.is_some());
        if is_quiet || now >= self.stays {
            self.look();
        }
        let mut hops = 0;
        while self.hand_over() {
            self.look();
            hops += 1;
            assert!(hops < 100, "turns are over before they begin");
        }
        if let Some(holder) = self.holder.filter(|holder| self.launch_at(*holder).is_some_and(|at| at <= now)) {
            let was_quiet = self.containers[holder].quiet.is_some();
            self.launch(holder);
            if was_quiet {
                self.look();
            }
        }
    }

    /// What somebody does to a container from outside.
    fn trouble(&mut self, index: usize) {
        let now = self.now;
        let container = &mut self.containers[index];
        if let Some((_, request, limit, priority)) = container.setup.changes.take_if(|(from, ..)| START + *from <= now)
        {
            container.change(request, limit, priority, now);
        }
        if container.setup.dies.take_if(|at| START + *at <= now).is_some() {
            container.die(&mut self.gpu, index);
        }
        // Who was stopped for long has not been waiting.
        let goes_on = |(from, to): (u64, u64)| START + to == now && to - from > self.rules.lost;
        if container.setup.stopped.is_some_and(goes_on) && container.since.is_some() {
            container.since = Some(now);
        }
    }

    /// What is done is looked at, measured and charged.
    fn complete(&mut self, index: usize) {
        let container = &mut self.containers[index];
        if container.is_stopped(self.now) {
            return;
        }
        while let Some(piece) = self.gpu.look(index) {
            let gpu = container.look(&piece, self.now);
            if self.holder != Some(index) {
                self.stays = 0;
            }
            self.record.measured(index, gpu);
            if piece.batch_ends {
                let asked_at = container.work.batch_ended(piece.ends);
                self.record.answered(index, asked_at, piece.ends);
            }
        }
    }

    /// Looks at all words: who waits, and until when the turn lasts.
    fn look(&mut self) {
        let now = self.now;
        let weights = self.containers.iter().filter(|it| it.wants(now)).map(|it| u64::from(it.weight.ppm()));
        self.together = weights.sum();
        self.waiting.clear();
        for (index, container) in self.containers.iter().enumerate() {
            // Who waits looks again all the time, unless it is stopped.
            let is_unheard = container.is_unheard && container.is_stopped(now);
            let is_heard = !is_unheard && self.rules.is_heard(container.seen(now), now);
            if self.holder != Some(index) && container.wants(now) && is_heard {
                self.waiting.push(self.contender(index));
            }
        }
        let queue = Queue { turn: self.turn(), ..self.queue() };
        let over = queue.over_at();
        // Not before then can it be lost, and it is costly to ask.
        let heard = queue.turn.map_or(0, |turn| turn.heard);
        let seen = queue.turn.map_or(0, |turn| turn.seen.max(heard));
        let asked = over.map(|over| {
            let lost = (over.min(heard) + self.rules.lost).min(seen + self.rules.stalled);
            lost.min(over.max(heard).saturating_add(self.rules.late))
        });
        let lost = if asked.is_some_and(|at| at <= now) { queue.lost_at() } else { asked };
        (self.over, self.lost) = (over, lost);
        let mut stays = u64::MAX;
        self.changes_at(|time| stays = stays.min(time));
        self.stays = stays;
    }

    fn contender(&self, index: usize) -> Contender {
        let container = &self.containers[index];
        container.contender(index, self.now, self.rules.worth(container.weight, self.together))
    }

    fn turn(&self) -> Option<Turn> {
        let index = self.holder?;
        let holder = &self.containers[index];
        Some(Turn {
            holder: self.contender(index),
            began: self.began,
            quiet: holder.quiet_since(self.now),
            heard: holder.heard,
            seen: holder.seen(self.now),
        })
    }

    fn queue(&self) -> Queue<'_, Copied<Iter<'_, Contender>>> {
        Queue {
            clock: self.clock,
            turn: None,
            waiting: self.waiting.iter().copied(),
            now: self.now,
            rules: &self.rules,
        }
    }

    /// If the turn is over and all that was started is done, or if it is lost, another begins. Returns whether one does.
    fn hand_over(&mut self) -> bool {
        let now = self.now;
        let has_come = |at: Option<u64>| at.is_some_and(|at| at <= now);
        let drained = |holder: usize| {
            let container = &self.containers[holder];
            container.is_dead || self.gpu.is_drained(holder) && !container.is_stopped(now)
        };
        // That a holder is dead is seen by whoever looks because its turn should be over or lost.
        let ends = self.holder.is_none_or(|holder| has_come(self.lost) || has_come(self.over) && drained(holder));
        if !ends {
            return false;
        }
        let turn = self.turn().filter(|turn| !self.containers[turn.holder.index].is_dead);
        let queue = Queue { turn, ..self.queue() };
        let (Some(grant), is_stalled) = (queue.next(), queue.is_stalled()) else { return false };
        if let Some(old) = self.holder {
            let drained = self.gpu.is_drained(old);
            let container = &mut self.containers[old];
            container.virtual_time = container.virtual_time.saturating_add(grant.charge);
            container.served = now;
            container.holds_since = None;
            container.is_unheard = is_stalled;
            container.overran = (!drained).then_some(self.gpu.shared_time());
            container.since = container.wants(now).then_some(grant.since);
            self.record.held(old, now - self.began, container.weight.gpu(grant.charge));
        }
        self.clock = self.clock.max(grant.clock);
        let new = &mut self.containers[grant.index];
        new.virtual_time = new.virtual_time.max(grant.virtual_time);
        new.holds_since = Some(now);
        new.may_launch = now + WAKE;
        new.quiet = None;
        new.heard = now;
        self.record.granted(grant.index, now - new.since.unwrap_or(now));
        (self.holder, self.began) = (Some(grant.index), now);
        true
    }

    /// When the holder launches its next piece, as things are. `None`: not before something else happens.
    fn launch_at(&self, index: usize) -> Option<u64> {
        let (now, container) = (self.now, &self.containers[index]);
        let over = self.over.is_some_and(|at| at <= now);
        if over || container.is_dead || container.is_stopped(now) || container.work.available_at() == u64::MAX {
            return None;
        }
        let wanted = |(other, it): (usize, &Container)| {
            let waits = self.waiting.iter().any(|it| it.index == other);
            (other != index).then_some((it.setup.priority, if waits { now } else { it.served }))
        };
        let bound = self.rules.flight(self.containers.iter().enumerate().filter_map(wanted), now);
        let lasts = self.over.map_or(u64::MAX, |at| at.saturating_sub(now));
        let bound = bound.map(|flight| flight.with_limit(container.limit).within(lasts));
        let admitted = container.admitted_at(self.gpu.front(index), now, bound);
        Some(container.work.available_at().max(container.may_launch).max(container.free_at(now)).max(admitted))
    }

    fn launch(&mut self, index: usize) {
        let now = self.now;
        let container = &mut self.containers[index];
        // Who had nothing to do for a while has not been kept waiting.
        if container.quiet.is_some_and(|since| now - since > self.rules.idle) {
            container.since = None;
        }
        container.may_launch = now + LAUNCH;
        let piece = container.launch(now, now + ARRIVAL);
        self.gpu.start(index, piece);
    }

    /// The times at which what all see may change, though nobody does anything.
    fn changes_at(&self, mut then: impl FnMut(u64)) {
        let mut at = |time: u64| {
            if time > self.now {
                then(time);
            }
        };
        for (index, container) in self.containers.iter().enumerate() {
            if self.holder != Some(index) {
                at(container.work.available_at());
            }
            let setup = &container.setup;
            let stops = setup.stopped.into_iter().flat_map(|(from, to)| [from, from + self.rules.lost, to]);
            let changes = setup.changes.map(|(from, ..)| from);
            stops.chain(changes).chain(setup.dies).for_each(|time| at(START + time));
        }
        self.over.into_iter().chain(self.lost).for_each(&mut at);
        self.waiting.iter().flat_map(|it| [it.free, it.ready]).for_each(&mut at);
    }

    /// When something happens next.
    fn next_event(&self) -> u64 {
        let mut next = u64::MAX;
        let mut at = |time: u64| {
            if time > self.now {
                next = next.min(time);
            }
        };
        at(self.stays);
        (0..self.containers.len()).filter_map(|index| self.gpu.worth_looking_at(index)).for_each(&mut at);
        if let Some(holder) = self.holder {
            at(self.containers[holder].work.available_at());
            self.launch_at(holder).into_iter().for_each(&mut at);
        }
        next
    }
}
