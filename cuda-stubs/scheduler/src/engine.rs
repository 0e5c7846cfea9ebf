//! Who has the compute engine. Pure: the clock and the groups are arguments.

use crate::US;

/// What going from one group to another costs, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Saving a group that is left with work.
    pub save: u64,
    /// Restoring a group that was saved.
    pub restore: u64,
    /// Leaving a group that ran dry, counted from when it did.
    pub leave: u64,
}

impl Costs {
    /// As measured: a change between two groups that fill the GPU takes 0.2 ms. What it costs to leave one that ran dry is by rows of
    /// short kernels beside long ones (docs/design/compute.md).
    pub const H200: Costs = Costs { save: 100 * US, restore: 100 * US, leave: 150 * US };
}

/// The groups of one GPU, as the engine sees them.
pub trait Groups {
    /// Whether it has work that could run now if it were on the engine.
    fn has_work(&self, group: usize) -> bool;
    /// Whether it may run: false while it is taken off.
    fn is_on(&self, group: usize) -> bool;
    /// Its time slice now, ns.
    fn slice(&self, group: usize) -> u64;
    /// The first group in round robin behind this one, itself excluded, that has work and is on.
    fn next_after(&self, group: Option<usize>) -> Option<usize>;
    /// Whether it was saved and not restored yet.
    fn is_saved(&self, group: usize) -> bool;
    /// Says so.
    fn set_saved(&mut self, group: usize, saved: bool);
}

/// What the engine does from now on, while nothing else changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Nothing: no group has work and is on.
    Idle,
    /// Goes from one group to another, until then.
    Switching {
        /// When it is through.
        until: u64,
    },
    /// Restores a group, until then.
    Restoring {
        /// Which.
        group: usize,
        /// When it is through.
        until: u64,
    },
    /// Runs a group's work.
    Running {
        /// Which.
        group: usize,
        /// When its slice ends, if it runs all the time until then.
        until: u64,
    },
}

/// The state of a compute engine. Plain words, so that it can be kept anywhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Engine {
    /// The group that is on the engine, or comes onto it.
    pub resident: Option<usize>,
    /// How much of its slice it has had, ns.
    pub used: u64,
    /// Its slice as it was when the slice began.
    pub granted: u64,
    /// When the group before it is off the engine.
    pub left_at: u64,
    /// When it is restored.
    pub restored_at: u64,
    /// When it ran dry; 0 while it has work.
    pub dry_at: u64,
}

impl Engine {
    /// Decides what the engine does at `now`. To be asked whenever work comes or is done, a group goes off or on, a slice is
    /// set, and when what was said last is over.
    pub fn decide(&mut self, now: u64, costs: Costs, groups: &mut impl Groups) -> Doing {
        loop {
            if now < self.left_at {
                return Doing::Switching { until: self.left_at };
            }
            if let Some(group) = self.resident.filter(|_| now < self.restored_at) {
                return Doing::Restoring { group, until: self.restored_at };
            }
            let runs = self.resident.filter(|group| groups.has_work(*group) && groups.is_on(*group));
            if let Some(group) = runs {
                self.dry_at = 0;
                // A slice that was made longer is in force from the next one on; one that was made shorter, at once.
                let left = self.granted.min(groups.slice(group)).saturating_sub(self.used);
                if left > 0 {
                    return Doing::Running { group, until: now + left };
                }
            } else if self.dry_at == 0 {
                self.dry_at = now.max(1);
            }
            match (groups.next_after(self.resident), runs) {
                (Some(next), _) => self.change(next, now, costs, groups),
                // Alone: the next slice begins where this one ended.
                (None, Some(group)) => self.begin_slice(groups.slice(group)),
                (None, None) => return Doing::Idle,
            }
        }
    }

    /// The resident group's work ran for so long.
    pub fn ran(&mut self, time: u64) {
        self.used += time;
    }

    /// A group is no more.
    pub fn forget(&mut self, group: usize, now: u64) {
        if self.resident == Some(group) {
            self.resident = None;
            self.dry_at = now.max(1);
        }
    }

    fn begin_slice(&mut self, slice: u64) {
        self.used = 0;
        self.granted = slice.max(1);
    }

    fn change(&mut self, next: usize, now: u64, costs: Costs, groups: &mut impl Groups) {
        self.left_at = match self.resident {
            Some(old) if groups.has_work(old) => {
                groups.set_saved(old, true);
                now + costs.save
            }
            Some(_) => now.max(self.dry_at + costs.leave),
            None => now,
        };
        self.restored_at = self.left_at;
        if groups.is_saved(next) {
            groups.set_saved(next, false);
            self.restored_at += costs.restore;
        }
        self.resident = Some(next);
        self.dry_at = 0;
        self.begin_slice(groups.slice(next));
    }
}
