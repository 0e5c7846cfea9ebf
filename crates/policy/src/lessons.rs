//! What each kind of work takes, told from pieces of work of several kinds.
//!
//! What is measured is the time between two marks, and between two there are many launches. Where all kinds were to blame alike
//! for what a piece took too long, long kernels and short ones that are always in one stretch would come to be expected to
//! take the same. So each kind is judged by the pieces that it is in: of what a piece took, a kind had the part that it was
//! expected to have. Pieces are of different mixes, and what is wrong for one of them is right for no other.

use crate::Cost;

/// What a piece of work is made of: kinds, by number, and how many launches of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    kinds: [(u16, u16); Mix::MOST],
    len: u8,
    /// There were more kinds than it has room for.
    is_cut: bool,
}

impl Mix {
    /// From a piece of more kinds than this there is little to learn about any.
    const MOST: usize = 8;

    /// One launch of a kind.
    pub fn of(kind: usize) -> Mix {
        let mut mix = Mix { kinds: [(0, 0); Mix::MOST], len: 0, is_cut: false };
        match u16::try_from(kind) {
            Ok(kind) => mix.add(kind, 1),
            Err(_) => mix.is_cut = true,
        }
        mix
    }

    /// Both together.
    #[must_use]
    pub fn and(mut self, more: Mix) -> Mix {
        more.kinds().iter().for_each(|(kind, count)| self.add(*kind, *count));
        self.is_cut |= more.is_cut;
        self
    }

    fn kinds(&self) -> &[(u16, u16)] {
        &self.kinds[..usize::from(self.len)]
    }

    fn add(&mut self, kind: u16, count: u16) {
        let len = usize::from(self.len);
        if let Some((_, there)) = self.kinds[..len].iter_mut().find(|(there, _)| *there == kind) {
            self.is_cut |= there.checked_add(count).is_none();
            *there = there.saturating_add(count);
        } else if len < Mix::MOST {
            self.kinds[len] = (kind, count);
            self.len += 1;
        } else {
            self.is_cut = true;
        }
    }
}

/// A kind of work in a stretch.
#[derive(Debug, Clone, Copy)]
struct Kind {
    cost: Cost,
    launches: u64,
    /// What its part of the pieces took, and what it should have: time, or the number of launches where nothing is known.
    took: u64,
    should: u64,
}

/// What a stretch of work teaches.
#[derive(Debug, Clone, Default)]
pub struct Lessons {
    kinds: Vec<Kind>,
    /// What pieces took, and should have, of which it cannot be told whose part was what.
    rest: [u64; 2],
}

impl Lessons {
    /// None.
    pub const fn new() -> Lessons {
        Lessons { kinds: Vec::new(), rest: [0; 2] }
    }

    /// There is one more kind, of which so much is expected. They are numbered as they come.
    pub fn meet(&mut self, cost: Cost) {
        self.kinds.push(Kind { cost, launches: 0, took: 0, should: 0 });
    }

    /// One of a kind is launched.
    pub fn launch(&mut self, kind: usize) {
        if let Some(kind) = self.kinds.get_mut(kind) {
            kind.launches = kind.launches.saturating_add(1);
        }
    }

    /// How many were.
    pub fn launches(&self) -> u64 {
        self.kinds.iter().fold(0, |all, kind| all.saturating_add(kind.launches))
    }

    /// A piece took so long; `expected`: and should have.
    pub fn took(&mut self, mix: &Mix, measured: u64, expected: u64) {
        if mix.is_cut || measured == 0 {
            return self.took_together(measured, expected);
        }
        let of = |kind: u16| self.kinds.get(usize::from(kind)).map_or(Cost::UNKNOWN, |kind| kind.cost);
        let (mut known, mut unknown) = (0u64, 0u64);
        for (kind, count) in mix.kinds() {
            match of(*kind).expected() {
                Some(cost) => known = known.saturating_add(cost.saturating_mul(u64::from(*count))),
                None => unknown += u64::from(*count),
            }
        }
        let each = Cost::UNKNOWN.learned(known, unknown, measured).0;
        for (kind, count) in mix.kinds() {
            let Some(kind) = self.kinds.get_mut(usize::from(*kind)) else { continue };
            let count = u64::from(*count);
            let (took, should) = match kind.cost.expected() {
                None => (each.saturating_mul(count), count),
                // It may be the fault of those that are not known.
                Some(_) if unknown > 0 => continue,
                Some(cost) => {
                    let should = cost.saturating_mul(count);
                    let part = u128::from(measured) * u128::from(should) / u128::from(known.max(1));
                    (u64::try_from(part).unwrap_or(u64::MAX), should)
                }
            };
            kind.took = kind.took.saturating_add(took);
            kind.should = kind.should.saturating_add(should);
        }
    }

    /// The same of a piece that was done beside others.
    pub fn took_together(&mut self, measured: u64, expected: u64) {
        self.rest = [self.rest[0].saturating_add(measured), self.rest[1].saturating_add(expected)];
    }

    /// What is expected of each kind from now on, in their order. `measured`: what all of it took.
    pub fn learned(&self, measured: u64) -> impl Iterator<Item = Cost> {
        let is_left = |kind: &&Kind| kind.cost == Cost::UNKNOWN && kind.should == 0;
        let left = self.kinds.iter().filter(is_left).fold(0u64, |all, kind| all.saturating_add(kind.launches));
        let told = |kind: &Kind| match kind.cost.expected() {
            _ if kind.should == 0 => kind.cost,
            None => Cost::seen(kind.took / kind.should),
            Some(_) => kind.cost.learned(kind.should, 0, kind.took),
        };
        let all = self.kinds.iter().fold(0u64, |all, kind| {
            all.saturating_add(told(kind).expected().unwrap_or(0).saturating_mul(kind.launches))
        });
        let [took, should] = self.rest;
        self.kinds.iter().map(move |kind| match kind.cost.expected() {
            _ if kind.should > 0 => told(kind),
            None => kind.cost.learned(all, left, measured),
            // Unless it may be the fault of those that are not known.
            Some(_) if should > 0 && left == 0 => kind.cost.learned(should, 0, took),
            Some(_) => kind.cost,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_time;

    const US: u64 = 1_000;

    fn mix(kinds: &[(usize, u32)]) -> Mix {
        let all = kinds.iter().flat_map(|(kind, count)| (0..*count).map(|_| Mix::of(*kind)));
        all.reduce(Mix::and).expect("something is launched")
    }

    /// What is expected after a stretch of such pieces, where each kind takes what it does.
    fn after(costs: &[Cost], takes: &[u64], pieces: &[&[(usize, u32)]]) -> Vec<Cost> {
        let mut lessons = Lessons::new();
        costs.iter().for_each(|cost| lessons.meet(*cost));
        let mut all = 0;
        for piece in pieces {
            let sum = |of: &dyn Fn(usize) -> u64| piece.iter().map(|(kind, count)| of(*kind) * u64::from(*count)).sum();
            let (measured, expected): (u64, u64) = (sum(&|kind| takes[kind]), sum(&|kind| costs[kind].0));
            piece.iter().for_each(|(kind, count)| (0..*count).for_each(|_| lessons.launch(*kind)));
            lessons.took(&mix(piece), measured, expected);
            all += measured;
        }
        lessons.learned(all).collect()
    }

    #[test]
    fn long_and_short_ones_are_told_apart_though_they_come_together() {
        let takes = [500 * US, 12 * US];
        let mut costs = vec![Cost(154 * US), Cost(131 * US)];
        for _ in 0..40 {
            costs = after(&costs, &takes, &[&[(0, 1)], &[(0, 1), (1, 20)], &[(1, 30)], &[(1, 10), (0, 1)]]);
        }
        assert!(costs[0].0.abs_diff(takes[0]) < 5 * US && costs[1].0.abs_diff(takes[1]) < US, "{costs:?}");
    }

    #[test]
    fn one_of_which_nothing_is_known_is_known_when_it_was_seen_by_itself() {
        let costs = [Cost::UNKNOWN, Cost(100 * US), Cost::UNKNOWN];
        let found = after(&costs, &[7 * US, 100 * US, 300 * US], &[&[(0, 1)], &[(1, 1)], &[(2, 1)], &[(0, 1)]]);
        assert_eq!(found, [Cost(7 * US), Cost(100 * US), Cost(300 * US)]);
        let found = after(&costs, &[7 * US, 100 * US, 7 * US], &[&[(0, 2), (1, 1), (2, 2)]]);
        assert_eq!(found, [Cost(7 * US), Cost(100 * US), Cost(7 * US)], "or what the known leaves");
    }

    #[test]
    fn where_it_cannot_be_told_whose_part_was_what_all_are_scaled_alike() {
        let mut lessons = Lessons::new();
        [10, 20].iter().for_each(|cost| lessons.meet(Cost(cost * US)));
        (0..2).for_each(|kind| lessons.launch(kind));
        lessons.took_together(60 * US, 30 * US);
        assert_eq!(lessons.learned(60 * US).collect::<Vec<_>>(), [Cost(15 * US), Cost(30 * US)]);
        lessons.took(&Mix::of(1), 20 * US, 20 * US);
        assert_eq!(lessons.learned(80 * US).collect::<Vec<_>>(), [Cost(15 * US), Cost(20 * US)], "but who was seen");
        let many: Vec<(usize, u32)> = (0..9).map(|kind| (kind, 1)).collect();
        let found = after(&[Cost(10 * US); 9], &[20 * US; 9], &[&many]);
        assert_eq!(found, [Cost(15 * US); 9], "also where there are too many kinds");
        lessons.meet(Cost::UNKNOWN);
        lessons.launch(2);
        let found: Vec<Cost> = lessons.learned(100 * US).collect();
        assert_eq!(found, [Cost(10 * US), Cost(20 * US), Cost(70 * US)], "what was not seen takes the rest");
    }

    proptest! {
        #[test]
        fn no_number_is_too_large(
            costs in prop::collection::vec(any_time(), 1..12),
            pieces in prop::collection::vec((0usize..12, 0usize..12, any_time(), any_time()), 0..20),
        ) {
            let mut lessons = Lessons::new();
            costs.iter().for_each(|cost| lessons.meet(Cost(*cost)));
            for (one, other, measured, expected) in pieces {
                lessons.launch(one);
                lessons.took(&Mix::of(one).and(Mix::of(other)), measured, expected);
            }
            for (cost, before) in lessons.learned(u64::MAX).zip(&costs) {
                prop_assert!(cost.0 <= Cost::MOST.max(*before));
            }
        }
    }
}
