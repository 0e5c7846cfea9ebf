//! By how much the costs of launches are wrong on the whole, by what backlogs take.
//!
//! A cost is what one launch takes between two events, less what the events take: a constant, which for some kernels is half a
//! microsecond more than for others. Of a kernel of five microseconds that is a tenth. A backlog of many launches between two marks
//! has that error once. So what all of its launches should cost, by their costs, is compared with what it took.

use super::lane::Done;

/// What lies between two launches that run back to back, in nanoseconds: on an H200, 0.9 µs by CUPTI, also under it.
const GAP: u64 = 900;
/// What the two marks around a backlog take of it, less the gap before the first launch.
const MARKS: u64 = 2_000;

/// Times a thousand, and averaged.
pub struct Scale(u32);

/// One.
const ONE: u32 = 1_000;
/// Beyond these it was interrupted, or its costs are not known yet.
const LEAST: u64 = 600;
const MOST: u64 = 1_400;

impl Scale {
    pub const NEW: Scale = Scale(ONE);

    /// A backlog was done.
    pub fn learn(&mut self, done: &Done) {
        let Some(took) = done.took else { return };
        let took = took.saturating_sub(MARKS + GAP * u64::from(done.launches));
        let scale = took * u64::from(ONE) / done.work.max(1);
        if (LEAST..=MOST).contains(&scale) {
            self.0 = (self.0 * 15 + scale as u32) / 16;
        }
    }

    /// What work takes, by its costs.
    pub fn of(&self, work: u64) -> u64 {
        work * u64::from(self.0) / u64::from(ONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backlog(work: u64, launches: u32, took: u64) -> Done {
        Done { device: 0, work, launches, took: Some(took) }
    }

    #[test]
    fn costs_that_are_too_high_are_corrected() {
        let mut scale = Scale::NEW;
        // 40 launches of 5 µs that are taken to cost 5.6, and one in five is interrupted.
        for turn in 0..400 {
            let interrupted = if turn % 5 == 0 { 2_000_000 } else { 0 };
            scale.learn(&backlog(40 * 5_600, 40, 40 * 5_900 + MARKS + interrupted));
        }
        assert!((198_000..203_000).contains(&scale.of(40 * 5_600)), "{}", scale.of(40 * 5_600));
    }

    #[test]
    fn what_was_not_seen_changes_nothing() {
        let mut scale = Scale::NEW;
        scale.learn(&Done { device: 0, work: 1_000, launches: 10, took: None });
        scale.learn(&backlog(1_000_000, 20, 9_000_000));
        assert_eq!(scale.of(1_000_000), 1_000_000);
    }
}
