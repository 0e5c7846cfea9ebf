//! Whether a program that has nothing more to do will be back in a moment.

/// The pauses that a program makes. One that answers requests makes long ones and one that waits for each of its kernels short
/// ones, and most do the same again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// Since when it pauses; 0: it does not.
    since: u64,
    /// How many in a row were long.
    long: u32,
}

impl Pauses {
    /// So many in a row make a habit.
    const HABIT: u32 = 4;
    /// Nobody keeps a turn for as long as this.
    const LONG: u64 = 1_000_000;

    /// Nothing is known of it.
    pub const fn new() -> Pauses {
        Pauses { since: 0, long: 0 }
    }

    /// All is done, and the program goes on with something else. Whether that will most likely take long.
    pub fn begin(&mut self, now: u64) -> bool {
        if self.since == 0 {
            self.since = now.max(1);
        }
        self.long >= Pauses::HABIT
    }

    /// Something is to be done again.
    #[inline]
    pub fn end(&mut self, now: u64) {
        if self.since != 0 {
            let was_long = now.saturating_sub(self.since) >= Pauses::LONG;
            self.long = if was_long { self.long.saturating_add(1) } else { 0 };
            self.since = 0;
        }
    }
}

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// What is expected of each of such pauses.
    fn expected(lengths: &[u64]) -> Vec<bool> {
        let (mut pauses, mut now) = (Pauses::new(), 0);
        let mut expect = |length: &u64| {
            let expected = pauses.begin(now);
            now += length;
            pauses.end(now);
            now += MS;
            expected
        };
        lengths.iter().map(&mut expect).collect()
    }

    #[test]
    fn who_answers_requests_is_away_for_long() {
        assert_eq!(expected(&[17 * MS; 6]), [false, false, false, false, true, true]);
    }

    #[test]
    fn who_comes_back_soon_will_again() {
        assert_eq!(
            expected(&[17 * MS, 17 * MS, 17 * MS, 17 * MS, MS / 100, 17 * MS]),
            [false, false, false, false, true, false]
        );
        // Three waits for each request.
        let one = [MS / 100, MS / 100, 17 * MS];
        assert!(expected(&one.repeat(5)).iter().all(|long| !long));
    }

    #[test]
    fn a_pause_is_one_however_often_it_is_said_to_begin() {
        let mut pauses = Pauses::new();
        for pause in 0..4 {
            let now = pause * 20 * MS;
            assert!(!pauses.begin(now) && !pauses.begin(now + 5 * MS));
            pauses.end(now + 5 * MS + 1);
            pauses.end(now + 5 * MS + 2);
        }
        assert!(pauses.begin(80 * MS));
    }
}
