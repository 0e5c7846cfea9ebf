//! Whether a program would fill the GPU if it had it for itself.
//!
//! Beside others that cannot be seen from what it uses, nor from whether something of it is under way: a program that decodes
//! token by token is kept waiting by its neighbours most of the time, too. It is seen from what its host does for that. While its
//! threads neither wait for the GPU nor are in a launch, the program computes for itself, and it will need that time in any case.
//! Who sends as much work as it takes time to send it fills the GPU; who sends a third of that does not, whoever else is there.

use ration_policy::tuning::{DEMAND, DOES_NOT_FILL, FILLS};

/// What was seen.
pub struct Demand {
    work: f64,
    host: f64,
    seen: u64,
    /// For how long nothing was done, although something was under way all the time.
    waited: u64,
}

impl Demand {
    pub const NEW: Demand = Demand { work: 0.0, host: 0.0, seen: 0, waited: 0 };

    /// So much time passed, in which so much was done, of so many launches; `away`: its threads wait for the GPU, or launch.
    pub fn look(&mut self, time: u64, used: u64, launches: u32, away: bool) {
        self.waited = if away && launches == 0 { self.waited + time } else { 0 };
        let part = (time as f64 / DEMAND as f64).min(1.0);
        self.work += part * (used as f64 / time.max(1) as f64 - self.work);
        self.host += part * (if away { 0.0 } else { 1.0 } - self.host);
        self.seen = (self.seen + time).min(DEMAND);
    }

    /// What it would use of the GPU's time, in millionths: its work in as much time as its host needs for it.
    pub fn ppm(&self) -> u32 {
        (1e6 * self.work / self.host.max(self.work).max(f64::MIN_POSITIVE)) as u32
    }

    /// Whether it fills the GPU; `None`: that cannot be told yet, or it is neither.
    pub fn fills(&self) -> Option<bool> {
        if self.waited > DEMAND / 4 {
            // What it does not know the cost of is longer than all others' slices: a queue of before it was counted, for example.
            Some(true)
        } else if self.seen < DEMAND / 2 {
            None
        } else if self.work >= FILLS * self.host {
            Some(true)
        } else {
            (self.work < DOES_NOT_FILL * self.host).then_some(false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Cycles of so much host time and so much work, in microseconds, of which a part of the GPU's time is had.
    fn seen(host: u64, work: u64, part: f64) -> Option<bool> {
        let mut demand = Demand::NEW;
        let cycle = host as f64 + work as f64 / part;
        for look in 0..400u32 {
            let at = (f64::from(look) * 1_370.0) % cycle;
            let used = MS as f64 * work as f64 / cycle;
            demand.look(MS, used as u64, 1, at >= host as f64);
        }
        demand.fills()
    }

    #[test]
    fn who_waits_for_each_kernel_fills_the_gpu_whatever_it_has_of_it() {
        for part in [1.0, 0.5, 0.125] {
            assert_eq!(seen(20, 500, part), Some(true), "{part}");
            assert_eq!(seen(200, 2_500, part), Some(true), "{part}");
        }
    }

    #[test]
    fn who_computes_for_most_of_the_time_does_not() {
        for part in [1.0, 0.5, 0.125, 0.05] {
            assert_eq!(seen(3_750, 600, part), Some(false), "{part}");
            assert_eq!(seen(5_000, 1_900, part), Some(false), "{part}");
        }
    }

    #[test]
    fn a_queue_that_nothing_comes_out_of_fills_the_gpu() {
        let mut demand = Demand::NEW;
        (0..60).for_each(|_| demand.look(MS, 0, 0, true));
        assert_eq!(demand.fills(), Some(true));
        demand.look(MS, 1_000, 1, false);
        assert_eq!(demand.fills(), None);
    }

    #[test]
    fn nothing_is_said_too_early() {
        let mut demand = Demand::NEW;
        demand.look(20 * MS, 20 * MS, 1, true);
        assert_eq!(demand.fills(), None);
    }
}
