//! How much work may be under way at once.
//!
//! Whoever waits for a turn, or for a ceiling, waits for what is under way first. So while somebody waits, little is; but
//! never so little that the GPU runs dry between two pieces.

use crate::Cost;

/// How much may be in flight while somebody is throttled or waits. Alone and below its limit a program queues as it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flight {
    /// So much expected GPU time may be in flight in all.
    pub most: u64,
    /// With no more than this in flight the next piece is let through however long it is, or the GPU would run dry before
    /// it came: longer than a launch takes to arrive.
    pub low: u64,
}

impl Flight {
    /// Pieces of half a millisecond follow each other without a gap, and a hand-over waits for at most 0.6 ms of them.
    pub const USUAL: Flight = Flight { most: 400_000, low: 100_000 };

    /// Next to a `latency` container, for which half of a hand-over is waiting for what is in flight.
    pub const SHORT: Flight = Flight { most: 250_000, low: 60_000 };

    /// The same in a turn that lasts for so long yet: nobody waits for what is done before its end. So the GPU does not run dry
    /// when the thread that launches has no processor for a while, or launches many short pieces one after another. Not next to a `latency` container, which waits for nobody's
    /// turn to end.
    #[must_use]
    pub fn within(self, turn: u64) -> Flight {
        const MOST: u64 = 1_500_000;
        if self == Flight::SHORT {
            return self;
        }
        let fits = turn.saturating_add(self.most).min(MOST);
        Flight { most: fits, low: self.low.max(fits / 4) }
    }

    /// How much a piece adds to what is in flight. Of what nothing is known, one is as much as may be: the next is started
    /// when somebody has seen how long it took.
    #[inline]
    pub fn counted(&self, piece: Cost) -> u64 {
        piece.expected().unwrap_or(self.most)
    }

    /// Whether a piece may be started when so much is in flight.
    #[inline]
    pub fn admits(&self, in_flight: u64, piece: Cost) -> bool {
        in_flight <= self.low || in_flight.saturating_add(self.counted(piece)) <= self.most
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_time;

    #[test]
    fn short_pieces_fill_it_and_long_ones_follow_each_other() {
        let flight = Flight::USUAL;
        let mut in_flight = 0;
        while flight.admits(in_flight, Cost(50_000)) {
            in_flight += 50_000;
        }
        assert_eq!(in_flight, 400_000);
        assert!(flight.admits(0, Cost(5_000_000)) && flight.admits(100_000, Cost(5_000_000)));
        assert!(!flight.admits(100_001, Cost(5_000_000)));
        assert!(flight.admits(0, Cost::UNKNOWN) && !flight.admits(100_001, Cost::UNKNOWN));
    }

    #[test]
    fn more_is_in_flight_in_the_middle_of_a_turn_than_at_its_end() {
        const MS: u64 = 1_000_000;
        let usual = Flight::USUAL;
        assert_eq!(usual.within(20 * MS), Flight { most: MS + MS / 2, low: MS / 8 * 3 });
        assert_eq!(usual.within(u64::MAX), usual.within(2 * MS));
        assert_eq!(usual.within(MS), Flight { most: MS / 10 * 14, low: MS / 20 * 7 });
        assert_eq!(usual.within(MS / 10), Flight { most: MS / 2, low: MS / 8 });
        assert_eq!(usual.within(0), usual);
        assert_eq!(Flight::SHORT.within(20 * MS), Flight::SHORT, "one in a hurry does not wait for the end");
    }

    proptest! {
        #[test]
        fn no_more_is_in_flight_than_all_or_a_piece(in_flight in any_time(), cost in any_time()) {
            let (flight, piece) = (Flight::USUAL, Cost(cost));
            prop_assert!(flight.admits(0, piece), "whoever has nothing in flight may start anything");
            if flight.admits(in_flight, piece) {
                let after = in_flight.saturating_add(flight.counted(piece));
                prop_assert!(after <= flight.most.max(flight.low + flight.counted(piece)));
                prop_assert!(piece != Cost::UNKNOWN || !flight.admits(after, piece), "one unknown piece at a time");
            }
        }
    }
}
