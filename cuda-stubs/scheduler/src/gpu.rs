//! A GPU in virtual time, for unit tests: groups with queues of work, and a clock that moves when it is told to.

use std::collections::VecDeque;

use crate::{Costs, Doing, Engine, Groups, SLICE};

/// A piece of work that is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Whose it was.
    pub group: usize,
    /// Its number in that group, from 1.
    pub piece: u64,
    /// When its first nanosecond ran; for an event, when it was stamped.
    pub began: u64,
    /// When it was finished.
    pub at: u64,
}

/// A GPU. Times are nanoseconds from 0 on.
#[derive(Debug, Clone)]
pub struct Gpu {
    costs: Costs,
    now: u64,
    engine: Engine,
    groups: List,
    switching: u64,
}

#[derive(Debug, Clone, Default)]
struct List(Vec<Group>);

#[derive(Debug, Clone)]
struct Group {
    slice: u64,
    on: bool,
    saved: bool,
    queue: VecDeque<Piece>,
    pushed: u64,
    busy: u64,
    restoring: u64,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    began: Option<u64>,
    left: u64,
}

impl Groups for List {
    fn has_work(&self, group: usize) -> bool {
        !self.0[group].queue.is_empty()
    }

    fn is_on(&self, group: usize) -> bool {
        self.0[group].on
    }

    fn slice(&self, group: usize) -> u64 {
        self.0[group].slice
    }

    fn next_after(&self, group: Option<usize>) -> Option<usize> {
        let (count, first) = (self.0.len(), group.map_or(0, |group| group + 1));
        let others = (first..first + count).map(|at| at % count).filter(|at| Some(*at) != group);
        others.into_iter().find(|at| self.has_work(*at) && self.is_on(*at))
    }

    fn is_saved(&self, group: usize) -> bool {
        self.0[group].saved
    }

    fn set_saved(&mut self, group: usize, saved: bool) {
        self.0[group].saved = saved;
    }
}

impl Default for Gpu {
    fn default() -> Gpu {
        Gpu::new(Costs::H200)
    }
}

impl Gpu {
    /// A GPU without groups.
    pub fn new(costs: Costs) -> Gpu {
        Gpu { costs, now: 0, engine: Engine::default(), groups: List::default(), switching: 0 }
    }

    /// A new group, on, with the slice that libcuda gives; returns its number.
    pub fn add_group(&mut self) -> usize {
        let queue = VecDeque::new();
        self.groups.0.push(Group { slice: SLICE, on: true, saved: false, queue, pushed: 0, busy: 0, restoring: 0 });
        self.groups.0.len() - 1
    }

    /// Queues work of so long; returns its number in the group. Work of no time is an event: it is done, and stamped, when
    /// all before it is done and the group is on the engine.
    pub fn push(&mut self, group: usize, time: u64) -> u64 {
        let group = &mut self.groups.0[group];
        group.queue.push_back(Piece { began: None, left: time });
        group.pushed += 1;
        group.pushed
    }

    /// Sets a group's slice: in force from its next one on, or at once if the running one is longer already.
    pub fn set_slice(&mut self, group: usize, slice: u64) {
        self.groups.0[group].slice = slice;
    }

    /// A group's slice.
    pub fn slice(&self, group: usize) -> u64 {
        self.groups.0[group].slice
    }

    /// Takes a group off: what runs is preempted, keeps its remaining time, and nothing runs until it is put on.
    pub fn off(&mut self, group: usize) {
        self.groups.0[group].on = false;
    }

    /// Puts it back on.
    pub fn on(&mut self, group: usize) {
        self.groups.0[group].on = true;
    }

    /// Whether it is on.
    pub fn is_on(&self, group: usize) -> bool {
        self.groups.0[group].on
    }

    /// Drops all work of a group, as when its process dies.
    pub fn abandon(&mut self, group: usize) {
        self.engine.forget(group, self.now);
        let group = &mut self.groups.0[group];
        group.pushed -= group.queue.len() as u64;
        group.queue.clear();
        (group.on, group.saved) = (true, false);
    }

    /// The time.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Pieces of a group that are not finished.
    pub fn in_flight(&self, group: usize) -> u64 {
        self.groups.0[group].queue.len() as u64
    }

    /// How much time they still need.
    pub fn backlog(&self, group: usize) -> u64 {
        self.groups.0[group].queue.iter().map(|piece| piece.left).sum()
    }

    /// Pieces that a group has finished.
    pub fn finished(&self, group: usize) -> u64 {
        self.groups.0[group].pushed - self.in_flight(group)
    }

    /// Time in which a group's work ran.
    pub fn busy(&self, group: usize) -> u64 {
        self.groups.0[group].busy
    }

    /// Time in which no work ran because groups were saved, restored or left.
    pub fn switching(&self) -> u64 {
        self.switching + self.groups.0.iter().map(|group| group.restoring).sum::<u64>()
    }

    /// When something changes next, if nobody does anything: a piece is done, a slice ends, a group is restored.
    pub fn next_change(&self) -> Option<u64> {
        let mut ahead = self.clone();
        match ahead.engine.decide(ahead.now, ahead.costs, &mut ahead.groups) {
            Doing::Idle => None,
            Doing::Switching { until } | Doing::Restoring { until, .. } => Some(until),
            Doing::Running { group, until } => {
                let first = ahead.groups.0[group].queue.front();
                first.map(|piece| until.min(ahead.now + piece.left))
            }
        }
    }

    /// Lets time pass until `to`; returns what was finished, in order.
    pub fn advance(&mut self, to: u64) -> Vec<Done> {
        let mut done = Vec::new();
        loop {
            let doing = self.engine.decide(self.now, self.costs, &mut self.groups);
            let end = match doing {
                Doing::Idle => to,
                Doing::Switching { until } | Doing::Restoring { until, .. } => until.min(to),
                Doing::Running { group, until } => {
                    let piece = self.groups.0[group].queue.front().expect("it has work");
                    until.min(self.now + piece.left).min(to)
                }
            };
            let time = end.saturating_sub(self.now);
            match doing {
                Doing::Idle => {}
                Doing::Switching { .. } => self.switching += time,
                Doing::Restoring { group, .. } => self.groups.0[group].restoring += time,
                Doing::Running { group, .. } => done.extend(self.run(group, time)),
            }
            // What takes no time is done before time is up.
            let again = matches!(doing, Doing::Running { group, .. } if self.is_at_an_event(group));
            self.now = self.now.max(end);
            if self.now >= to && !again {
                return done;
            }
        }
    }

    fn is_at_an_event(&self, group: usize) -> bool {
        self.groups.0[group].queue.front().is_some_and(|piece| piece.left == 0)
    }

    fn run(&mut self, group: usize, time: u64) -> Option<Done> {
        self.engine.ran(time);
        let (number, now) = (group, self.now);
        let group = &mut self.groups.0[group];
        group.busy += time;
        let piece = group.queue.front_mut()?;
        let began = *piece.began.get_or_insert(now);
        piece.left -= time;
        if piece.left > 0 {
            return None;
        }
        group.queue.pop_front();
        Some(Done { group: number, piece: group.pushed - group.queue.len() as u64, began, at: now + time })
    }
}
