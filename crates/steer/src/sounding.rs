//! When to ask all others off the GPU for a moment, only to learn what launches cost.
//!
//! What takes longer than a switch may have been interrupted by others, however it was measured. A graph may be each time: where one
//! of its nodes is another engine's, a copy, the GPU goes to whoever else has work. One time without others is enough.

use ration_policy::tuning::{BETWEEN_SOUNDINGS, LONGEST_BETWEEN, LONGEST_SOUNDING, UNSURE};

/// When the last one was, and what was launched since.
pub struct Sounding {
    total: u64,
    unsure: u64,
    next: u64,
    rest: u64,
    since: Option<u64>,
}

impl Sounding {
    pub const NEW: Sounding = Sounding { total: 0, unsure: 0, next: 0, rest: BETWEEN_SOUNDINGS, since: None };

    /// Whether it asks for that from now on, or still. `may`: nothing speaks against it. `launched`: in all, and by a bound.
    pub fn is_on(&mut self, may: bool, launched: (u64, u64), now: u64) -> bool {
        if let Some(since) = self.since {
            if may && now < since + LONGEST_SOUNDING {
                return true;
            }
            self.since = None;
            self.begin_anew(launched);
            return false;
        }
        if !may || now < self.next {
            return false;
        }
        let (total, unsure) = (launched.0.saturating_sub(self.total), launched.1.saturating_sub(self.unsure));
        if total == 0 {
            return false;
        }
        self.begin_anew(launched);
        self.next = now + self.rest;
        if unsure * UNSURE <= total {
            (self.next, self.rest) = (now + BETWEEN_SOUNDINGS, BETWEEN_SOUNDINGS);
            return false;
        }
        self.rest = (2 * self.rest).min(LONGEST_BETWEEN);
        self.since = Some(now);
        true
    }

    fn begin_anew(&mut self, launched: (u64, u64)) {
        (self.total, self.unsure) = launched;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ration_policy::tuning::MS;

    #[test]
    fn only_while_costs_are_not_known() {
        let mut sounding = Sounding::NEW;
        assert!(!sounding.is_on(true, (0, 0), MS), "nothing was launched");
        assert!(!sounding.is_on(false, (100, 90), 2 * MS), "something speaks against it");
        assert!(sounding.is_on(true, (100, 90), 3 * MS));
        assert!(sounding.is_on(true, (150, 130), 5 * MS));
        assert!(!sounding.is_on(true, (150, 130), 3 * MS + LONGEST_SOUNDING), "long enough");
        assert!(!sounding.is_on(true, (250, 230), 50 * MS), "it rests");
        assert!(!sounding.is_on(true, (1_000, 140), 200 * MS), "it is known now");
        assert!(sounding.is_on(true, (2_000, 1_140), 400 * MS), "and is another program now");
    }

    #[test]
    fn comes_less_often_where_it_does_not_help() {
        let mut sounding = Sounding::NEW;
        let (mut launched, mut on) = (0, 0);
        for now in 1..60_000 {
            launched += 1_000;
            on += u32::from(sounding.is_on(true, (launched, launched), now * MS));
        }
        assert!((30..100).contains(&on), "for {on} of 60,000 ms");
    }
}
