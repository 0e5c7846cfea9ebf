//! What a kernel, a graph or a copy is expected to take.
//!
//! It decides how much is let through before somebody looks at what it took; what is charged is what it took. So it may be
//! wrong by a little without harm, and must not be wrong by much for long.

/// An expectation, as one word: nanoseconds, 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost(pub u64);

impl Cost {
    /// Nothing is known.
    pub const UNKNOWN: Cost = Cost(0);
    /// No more than this is believed of a single piece of work: a minute.
    pub const MOST: u64 = 60_000_000_000;

    /// What is expected, if anything is.
    #[inline]
    pub const fn expected(self) -> Option<u64> {
        match self.0 {
            0 => None,
            1..Cost::MOST => Some(self.0),
            // Whatever a word says.
            _ => Some(Cost::MOST),
        }
    }

    /// After it was seen by itself.
    #[inline]
    pub fn seen(measured: u64) -> Cost {
        Cost(measured.clamp(1, Cost::MOST))
    }

    /// After a stretch of work took `measured`, of which `expected` was expected in all, `unknown` pieces not counted.
    ///
    /// What was not known before takes an equal part of what the others are not expected to have taken, and an equal part of
    /// it all where they leave nothing. What was known is scaled: half the way upwards and a quarter downwards, because
    /// expecting too little lets too much through. In a stretch with unknown pieces it is left alone, since the fault may be
    /// theirs.
    #[inline]
    pub fn learned(self, expected: u64, unknown: u64, measured: u64) -> Cost {
        match self.expected() {
            None => {
                let pieces = unknown.max(1);
                let left = measured.saturating_sub(expected) / pieces;
                Cost::seen(if left > 0 { left } else { measured / pieces.saturating_add(1) })
            }
            Some(known) if unknown == 0 && expected > 0 => {
                let right = u128::from(known) * u128::from(measured) / u128::from(expected);
                let right = u64::try_from(right).unwrap_or(Cost::MOST).clamp(1, Cost::MOST);
                Cost(if right > known {
                    known + (right - known).div_ceil(2)
                } else {
                    known - (known - right).div_ceil(4)
                })
            }
            Some(known) => Cost(known),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{MS, any_time};

    #[test]
    fn it_is_believed_more_quickly_that_work_is_long_than_that_it_is_short() {
        let cost = Cost::seen(100);
        assert_eq!(cost.learned(100, 0, 200), Cost(150));
        assert_eq!(cost.learned(100, 0, 20), Cost(80));
        assert_eq!(cost.learned(1000, 0, 500), Cost(87), "one of ten, which took half of what was expected");
        assert_eq!(cost.learned(100, 1, 5000), cost, "with something unknown in it, the known is not to blame");
    }

    #[test]
    fn the_unknown_takes_what_the_known_leaves() {
        assert_eq!(Cost::UNKNOWN.expected(), None);
        assert_eq!(Cost::UNKNOWN.learned(0, 1, 5 * MS), Cost(5 * MS));
        assert_eq!(Cost::UNKNOWN.learned(MS, 2, 5 * MS), Cost(2 * MS));
        assert_eq!(
            Cost::UNKNOWN.learned(5 * MS, 1, 4 * MS),
            Cost(2 * MS),
            "the others were expected to take more than all"
        );
    }

    proptest! {
        /// From anything to the truth in so many looks as halving or quartering takes, exactly, and then it stays.
        #[test]
        fn it_converges(first in any::<u64>(), truth in 1..Cost::MOST, pieces in 1..1000u64) {
            let mut cost = Cost(first);
            for _ in 0..150 {
                let (expected, unknown) = cost.expected().map_or((0, pieces), |each| (each * pieces, 0));
                cost = cost.learned(expected, unknown, truth * pieces);
            }
            prop_assert_eq!(cost, Cost(truth));
        }

        /// Three kinds of kernels, 50 µs to 5 ms, always several in one stretch and never the same ones: each is learned.
        #[test]
        fn kernels_that_are_never_seen_alone_are_told_apart(
            truth in [50_000..5 * MS, 50_000..5 * MS, 50_000..5 * MS],
            first in [0..5 * MS, 0..5 * MS, 0..5 * MS],
            stretches in prop::collection::vec([0..4u64, 0..4u64, 0..4u64], 800),
        ) {
            let mut costs = first.map(Cost);
            for counts in stretches {
                let measured: u64 = (0..3).map(|kind| counts[kind] * truth[kind]).sum();
                let expected: u64 = (0..3).map(|kind| counts[kind] * costs[kind].expected().unwrap_or(0)).sum();
                let unknown: u64 = (0..3).filter(|kind| costs[*kind] == Cost::UNKNOWN).map(|kind| counts[kind]).sum();
                for kind in (0..3).filter(|kind| counts[*kind] > 0) {
                    costs[kind] = costs[kind].learned(expected, unknown, measured);
                }
            }
            for kind in 0..3 {
                let (believed, true_cost) = (costs[kind].0 as f64, truth[kind] as f64);
                prop_assert!((believed / true_cost - 1.0).abs() < 0.1, "believed {believed}, is {true_cost}");
            }
        }

        #[test]
        fn it_is_never_nothing_and_never_endless(
            word in any::<u64>(), expected in any_time(), unknown in any_time(), measured in any_time(),
        ) {
            let next = Cost(word).learned(expected, unknown, measured);
            prop_assert!((1..=Cost::MOST).contains(&next.0));
            prop_assert!((1..=Cost::MOST).contains(&Cost::seen(measured).0));
            prop_assert!(Cost(word).expected().is_none_or(|known| (1..=Cost::MOST).contains(&known)));
        }
    }
}
