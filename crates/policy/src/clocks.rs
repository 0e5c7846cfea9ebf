//! When the GPU did something, by the host's clock.
//!
//! The GPU's clock tells exactly how long after one mark it passed another, and nothing about the host's. But it passes no mark
//! before that was recorded, nor before a moment at which the host asked and it had not yet; and it has passed one that the
//! host sees it to have passed. Each such answer about any mark tells something about the first.

/// When the GPU passed the first of some marks, by the host's clock, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    earliest: u64,
    latest: u64,
}

impl Clocks {
    /// So much may be open, and nobody need ask more often.
    const CLOSE: u64 = 30_000;

    /// The first mark was recorded then. `at_once`: there is nothing that could keep the GPU from passing it at once.
    pub const fn new(recorded: u64, at_once: bool) -> Clocks {
        let latest = if at_once { recorded.saturating_add(Clocks::CLOSE) } else { u64::MAX };
        Clocks { earliest: recorded, latest }
    }

    /// The host saw now that the GPU had passed a mark, so long after the first; when it last asked before, at `not_yet`, it had
    /// not. 0: it never asked.
    pub fn passed(&mut self, later: u64, not_yet: u64, now: u64) {
        self.latest = self.latest.min(now.saturating_sub(later));
        // One who is not given the processor between asking and reading the clock knows less than it seems.
        self.earliest = self.earliest.max(not_yet.saturating_sub(later)).min(self.latest);
    }

    /// When the GPU passed a mark, so long after the first, by the host's clock: no later than this by much.
    pub fn host(&self, later: u64) -> u64 {
        self.earliest.saturating_add(later)
    }

    /// How long after the first mark it was when the host's clock said so. 0: nothing is known, or it was before. Where much is
    /// open, no less than this. Where little is, the GPU had nothing to do and passed the first mark at once, most likely.
    pub fn gpu(&self, host: u64) -> u64 {
        host.saturating_sub(if self.are_close() { self.earliest } else { self.latest })
    }

    /// Whether that is known well.
    pub fn are_close(&self) -> bool {
        self.latest - self.earliest <= Clocks::CLOSE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_time;

    const US: u64 = 1000;

    #[test]
    fn each_answer_tells_something_about_all_marks() {
        // The GPU is held up by 200 us before it passes the first mark, recorded at 1000, and then at every 500.
        let mut clocks = Clocks::new(1000 * US, false);
        assert_eq!(clocks.host(500 * US), 1500 * US, "as far as is known");
        assert!(!clocks.are_close());
        clocks.passed(500 * US, 1600 * US, 1900 * US);
        assert_eq!(clocks.host(500 * US), 1600 * US);
        clocks.passed(1000 * US, 2190 * US, 2205 * US);
        assert!(clocks.are_close());
        assert_eq!(clocks.host(500 * US), 1690 * US);
        assert_eq!((clocks.gpu(1690 * US), clocks.gpu(1000 * US)), (500 * US, 0));
        clocks.passed(1500 * US, 0, 9000 * US);
        assert_eq!(clocks.host(1500 * US), 2690 * US, "who did not ask learns nothing");
        let mut clocks = Clocks::new(1000 * US, true);
        assert!(clocks.are_close());
        clocks.passed(500 * US, 0, 9000 * US);
        assert_eq!((clocks.host(500 * US), clocks.gpu(1700 * US)), (1500 * US, 700 * US));
    }

    proptest! {
        /// Whatever is asked and when, the GPU did it between the two.
        #[test]
        fn the_truth_lies_between(
            recorded in 0..1u64 << 50, held_up in 0..1u64 << 30,
            marks in prop::collection::vec((0..1u64 << 30, 0..1u64 << 20, 0..1u64 << 20), 0..20),
        ) {
            let (truth, mut clocks) = (recorded + held_up, Clocks::new(recorded, false));
            for (later, before, after) in marks {
                let passed = truth + later;
                clocks.passed(later, passed.saturating_sub(before + 1), passed + after);
                prop_assert!(clocks.earliest <= truth && truth <= clocks.latest);
                prop_assert!(clocks.host(later) <= passed && clocks.gpu(passed) <= later + Clocks::CLOSE);
            }
        }

        #[test]
        fn answers_that_make_no_sense_do_no_harm(answers in prop::collection::vec([any_time(), any_time(), any_time()], 0..20)) {
            let mut clocks = Clocks::new(7, false);
            for [later, not_yet, now] in answers {
                clocks.passed(later, not_yet, now);
                prop_assert!(clocks.earliest <= clocks.latest);
                clocks.host(later);
                clocks.are_close();
            }
        }
    }
}
