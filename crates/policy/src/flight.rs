//! How much work may be under way at once.
//!
//! Whoever waits for a turn, or for a ceiling, waits for what is under way first. So while somebody waits, little is; but
//! never so little that the GPU runs dry between two pieces.

use crate::{Cost, Share};

/// How much may be in flight while somebody is throttled or waits. Alone and below its limit a program queues as it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flight {
    /// So much expected GPU time may be in flight in all.
    pub most: u64,
    /// With no more than this in flight the next piece is let through however long it is, or the GPU would run dry before
    /// it came: longer than a launch takes to arrive.
    pub low: u64,
    /// In the middle of a turn there may be more, and no more than this: see [`Flight::within`].
    pub ahead: u64,
}

impl Flight {
    /// Pieces of half a millisecond follow each other without a gap, and a hand-over waits for at most 0.6 ms of them.
    pub const USUAL: Flight = Flight { most: 400_000, low: 100_000, ahead: 1_500_000 };

    /// Where all who take turns wait for theirs: nobody comes before the end of this one who would wait for what is in flight.
    pub const AWAITED: Flight = Flight { ahead: 5_000_000, ..Flight::USUAL };

    /// Next to a `latency` container, for which half of a hand-over is waiting for what is in flight.
    pub const SHORT: Flight = Flight { most: 250_000, low: 60_000, ahead: 250_000 };

    /// The same for one that has a limit. What is in flight is charged when it is done, and may be more than was due by then.
    #[must_use]
    pub fn with_limit(self, limit: Share) -> Flight {
        if limit.is_whole() { self } else { Flight { ahead: self.ahead.min(Flight::USUAL.ahead), ..self } }
    }

    /// The same in a turn that lasts for so long yet: nobody waits for what is done before its end. So the GPU does not run dry
    /// when the thread that launches has no processor for a while, or when a program takes longer to launch a part of its work
    /// than the GPU takes to do it. Not next to a `latency` container, which waits for nobody's turn to end.
    #[must_use]
    pub fn within(self, turn: u64) -> Flight {
        const LOWER: u64 = Flight::USUAL.ahead - Flight::USUAL.most;
        let most = turn.saturating_add(self.most).min(self.ahead);
        // A long piece is to follow in time, and need not wait behind all of it.
        let more = most.saturating_sub(self.most).min(LOWER);
        Flight { most, low: self.low + more / 4, ..self }
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
        let is = |flight: Flight, most: u64, low: u64| (flight.most, flight.low) == (most, low);
        assert!(is(usual.within(20 * MS), MS + MS / 2, MS / 8 * 3));
        assert_eq!(usual.within(u64::MAX), usual.within(2 * MS));
        assert!(is(usual.within(MS), MS / 10 * 14, MS / 20 * 7));
        assert!(is(usual.within(MS / 10), MS / 2, MS / 8));
        assert!(is(usual.within(0), usual.most, usual.low));
        assert!(is(Flight::AWAITED.within(20 * MS), 5 * MS, MS / 8 * 3));
        assert!(is(Flight::AWAITED.within(2 * MS), 2 * MS + usual.most, MS / 8 * 3));
        assert_eq!(Flight::AWAITED.with_limit(Share::from_ppm(500_000)), usual);
        assert_eq!(Flight::AWAITED.with_limit(Share::WHOLE), Flight::AWAITED);
        assert_eq!(Flight::AWAITED.within(MS).most, usual.within(MS).most, "the end is the same");
        assert!(is(Flight::SHORT.within(20 * MS), MS / 4, 60_000), "one in a hurry does not wait for the end");
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
