//! How long the GPU worked: the union of the stretches in which it did.
//!
//! Pieces of work on several streams overlap, and each is measured from its beginning to its end. Time in which two ran is
//! time in which the GPU worked once. Pieces become known in the order in which somebody looks, not in that of the timeline.

/// The stretches that were counted last. It allocates nothing.
#[derive(Debug, Clone)]
pub struct Busy {
    /// The first `kept` are disjoint, in order, and do not touch.
    stretches: [(u64, u64); Busy::KEPT],
    kept: usize,
    /// Before this, nothing is counted any more.
    closed: u64,
}

impl Busy {
    /// As many stretches as are kept. When there are more, the oldest is taken for settled, and all before it: what becomes
    /// known of that time later is not counted, since nobody knows any more whether it was.
    pub const KEPT: usize = 64;

    /// Nothing yet.
    pub const fn new() -> Busy {
        Busy { stretches: [(0, 0); Busy::KEPT], kept: 0, closed: 0 }
    }

    /// The GPU worked from then to then. Returns how much of that was not known before.
    pub fn add(&mut self, from: u64, to: u64) -> u64 {
        let from = from.max(self.closed);
        if from >= to {
            return 0;
        }
        // Those from `first` to before `last` touch the new one, and become one with it.
        let first = self.stretches[..self.kept].partition_point(|stretch| stretch.1 < from);
        let last = first + self.stretches[first..self.kept].partition_point(|stretch| stretch.0 <= to);
        let (mut merged, mut new) = ((from, to), to - from);
        for &(start, end) in &self.stretches[first..last] {
            new -= end.min(to) - start.max(from);
            merged = (merged.0.min(start), merged.1.max(end));
        }
        if first < last {
            self.stretches[first] = merged;
            self.stretches.copy_within(last..self.kept, first + 1);
            self.kept -= last - first - 1;
        } else if self.kept < Busy::KEPT {
            self.stretches.copy_within(first..self.kept, first + 1);
            self.stretches[first] = merged;
            self.kept += 1;
        } else if let Some(place) = first.checked_sub(1) {
            self.closed = self.stretches[0].1;
            self.stretches.copy_within(1..first, 0);
            self.stretches[place] = merged;
        } else {
            // The new one is the oldest itself.
            self.closed = merged.1;
        }
        new
    }

    /// Before this, nothing is counted any more.
    pub fn closed(&self) -> u64 {
        self.closed
    }
}

impl Default for Busy {
    fn default() -> Busy {
        Busy::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_time;

    #[test]
    fn time_in_which_two_worked_counts_once() {
        let mut busy = Busy::new();
        assert_eq!(busy.add(10, 20), 10);
        assert_eq!(busy.add(10, 20), 0, "the same again");
        assert_eq!(busy.add(15, 25), 5);
        assert_eq!(busy.add(40, 50), 10, "another stretch");
        assert_eq!(busy.add(0, 60), 60 - 15 - 10, "around both of them");
        assert_eq!(busy.add(60, 61), 1, "right behind");
        assert_eq!((busy.add(7, 7), busy.add(9, 3), busy.add(0, 61)), (0, 0, 0));
    }

    #[test]
    fn what_is_older_than_what_is_kept_is_not_counted() {
        let mut busy = Busy::new();
        let kept = Busy::KEPT as u64;
        for number in 0..=kept {
            assert_eq!(busy.add(100 * number, 100 * number + 10), 10);
        }
        assert_eq!(busy.closed(), 10, "one more than are kept: the first is settled");
        assert_eq!(busy.add(0, 10), 0, "and known");
        assert_eq!(busy.add(5, 30), 20, "what comes after it is not");
        assert_eq!(
            busy.closed(),
            30,
            "a stretch that is itself the oldest, where there is no room, is settled at once"
        );
        assert_eq!(busy.add(0, 30), 0);
        assert_eq!(
            busy.add(0, 100 * kept + 10),
            70 + 90 * (kept - 1),
            "the gaps: the first is shorter by what was settled"
        );
    }

    /// What is written down nanosecond by nanosecond.
    struct Slowly([bool; 512]);

    impl Slowly {
        fn add(&mut self, from: u64, to: u64) -> u64 {
            (from..to).filter(|at| !std::mem::replace(&mut self.0[*at as usize], true)).count() as u64
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// In any order, as long as the stretches are few enough to be kept.
        #[test]
        fn it_is_the_union(pieces in prop::collection::vec((0..512u64, 0..40u64), 0..Busy::KEPT)) {
            let (mut busy, mut slowly) = (Busy::new(), Slowly([false; 512]));
            for (from, length) in pieces {
                let to = (from + length).min(512);
                prop_assert_eq!(busy.add(from, to), slowly.add(from, to));
            }
        }

        /// In any order and however many: each piece adds what is new in it and not settled, so nothing counts twice.
        #[test]
        fn nothing_counts_twice(pieces in prop::collection::vec((0..512u64, 0..4u64), 0..600)) {
            let (mut busy, mut slowly) = (Busy::new(), Slowly([false; 512]));
            for (from, length) in pieces {
                let (closed, to) = (busy.closed(), (from + length).min(512));
                prop_assert_eq!(busy.add(from, to), slowly.add(from.max(closed), to));
                prop_assert!(busy.closed() >= closed);
            }
        }

        /// On a few streams, each in order, looked at with some delay, as the shim does: nothing is lost, for ever.
        #[test]
        fn streams_that_are_looked_at_in_time_lose_nothing(
            pieces in prop::collection::vec((0..4usize, 0..30u64, 1..50u64), 0..2000),
        ) {
            let mut ends = [0u64; 4];
            let mut made: Vec<(u64, u64)> = pieces.into_iter().map(|(stream, gap, length)| {
                let from = ends[stream] + gap;
                ends[stream] = from + length;
                (from, ends[stream])
            }).collect();
            made.sort_by_key(|piece| piece.1);
            let (mut busy, mut counted, mut union, mut until) = (Busy::new(), 0, 0, 0);
            // Eight at a time, in no good order.
            for looked_at in made.chunks(8) {
                counted += looked_at.iter().rev().map(|&(from, to)| busy.add(from, to)).sum::<u64>();
            }
            made.sort();
            for (from, to) in made {
                union += to.saturating_sub(from.max(until));
                until = until.max(to);
            }
            prop_assert_eq!(counted, union);
        }

        #[test]
        fn no_time_is_too_late_or_too_long(pieces in prop::collection::vec((any_time(), any_time()), 0..300)) {
            let mut busy = Busy::new();
            let mut total = 0u128;
            for (from, to) in pieces {
                let new = busy.add(from, to);
                prop_assert!(new <= to.saturating_sub(from));
                total += u128::from(new);
            }
            prop_assert!(total <= u128::from(u64::MAX));
        }
    }
}
