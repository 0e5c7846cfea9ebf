//! When to go off the GPU for a moment, only to learn what launches cost.
//!
//! A program that waits for the GPU rarely is never behind, so that its launches are not measured but bounded, by what the host
//! takes for a launch: three to six times of what a small kernel takes. While its channels are off, its launches queue, and all
//! of them are measured. A few milliseconds of that are enough for most of what a program does, once.

use ration_policy::tuning::{BETWEEN_SOUNDINGS, LONGEST_BETWEEN, LONGEST_SOUNDING, LOOK, UNSURE};

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

    /// Whether it is off for that from now on, or still. `may`: nothing speaks against it. `launched`: in all, and by a bound.
    pub fn is_on(&mut self, may: bool, launched: (u64, u64), blocked: bool, now: u64) -> bool {
        if let Some(since) = self.since {
            if may && now < since + LONGEST_SOUNDING && (!blocked || now < since + LOOK) {
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
        assert!(!sounding.is_on(true, (0, 0), false, MS), "nothing was launched");
        assert!(!sounding.is_on(false, (100, 90), false, 2 * MS), "something speaks against it");
        assert!(sounding.is_on(true, (100, 90), false, 3 * MS));
        assert!(sounding.is_on(true, (150, 130), false, 8 * MS));
        assert!(!sounding.is_on(true, (150, 130), false, 13 * MS), "long enough");
        assert!(!sounding.is_on(true, (250, 230), false, 50 * MS), "it rests");
        assert!(!sounding.is_on(true, (1_000, 140), false, 200 * MS), "it is known now");
        assert!(sounding.is_on(true, (2_000, 1_140), false, 400 * MS), "and is another program now");
    }

    #[test]
    fn ends_when_the_program_waits_and_comes_less_often() {
        let mut sounding = Sounding::NEW;
        let (mut now, mut launched, mut times, mut off) = (MS, 0, 0, 0);
        while now < 60_000 * MS {
            launched += 1_000;
            let was_on = sounding.since.is_some();
            let is_on = sounding.is_on(true, (launched, launched), was_on, now);
            times += u32::from(is_on && !was_on);
            off += u64::from(is_on);
            now += MS;
        }
        assert!((10..=16).contains(&times) && off < 40, "{times} times, for {off} ms");
    }
}
