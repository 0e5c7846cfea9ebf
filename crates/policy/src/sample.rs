//! How much of the GPU's time a program takes of which only some launches are measured.

/// One launch that was measured, among others of its stream that were, one behind another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launched {
    /// When it had been sent, by the host's clock.
    pub sent: u64,
    /// How long after the mark before the first of them the GPU was done with it, by its own clock.
    pub done: u64,
    /// It takes no longer than this, as is known from others like it.
    pub at_most: u64,
}

/// The mark before the first of some launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// When it was recorded, by the host's clock.
    pub at: u64,
    /// Its stream had nothing to do then, so that the GPU passed it at once.
    pub is_idle: bool,
}

impl Begin {
    /// No launch takes less than this.
    const BRIEFEST: u64 = 2_000;

    /// When the GPU passed it, by the host's clock, as far as the launches behind it tell: none of them was done before it had
    /// been sent.
    fn passed(self, launches: impl Iterator<Item = Launched>) -> u64 {
        let least = |launch: Launched| launch.sent.saturating_add(Begin::BRIEFEST).saturating_sub(launch.done);
        if self.is_idle { self.at } else { launches.map(least).fold(self.at, u64::max) }
    }
}

/// How long the GPU worked on launches that followed each other in one stream. One that comes later than the one before it is
/// done begins when it comes. `mark`: what the mark behind each takes by itself. What one took longer than it can have taken, the
/// GPU did for others.
pub fn worked(begin: Begin, mark: u64, launches: impl Iterator<Item = Launched> + Clone) -> u64 {
    let passed = begin.passed(launches.clone());
    let (mut total, mut free) = (0u64, 0u64);
    for (number, launch) in launches.enumerate() {
        // In a stream that was busy, the first had come before the GPU passed the mark.
        let came = if number > 0 || begin.is_idle { launch.sent.saturating_sub(passed) } else { 0 };
        let took = launch.done.saturating_sub(free.max(came).saturating_add(mark));
        total = total.saturating_add(took.min(launch.at_most));
        free = free.max(launch.done);
    }
    total
}

/// What launches take that are not measured, by those that are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate {
    time: u64,
    /// In 256ths.
    launches: u64,
    /// How often anything was measured, of what counts.
    rows: u32,
    /// Launches of before anything was measured.
    owed: u64,
    /// What launches should take that the GPU cannot have done yet.
    queued: u64,
    /// Of those that were measured beside others, since any was learned from: how many, and the quickest, as `time` and `launches`.
    beside: u32,
    quickest: (u64, u64),
    /// The last two, whoever was there, likewise.
    last: [(u64, u64); 2],
}

impl Rate {
    /// The last so many times count: what was measured before them is forgotten by and by. Not the last so many launches: a
    /// program that begins with many short ones and goes on with few long ones would be taken for a lazy one for seconds. And
    /// not many times: programs have phases, and what was measured last is most like what comes next.
    const REMEMBERED: u32 = 4;
    const FINE: u64 = 256;

    /// Of so many that were measured beside others, one was not interrupted.
    const ENOUGH: u32 = 8;

    /// Nothing was measured.
    pub const fn new() -> Rate {
        Rate { time: 0, launches: 0, rows: 0, owed: 0, queued: 0, beside: 0, quickest: (0, 0), last: [(0, 0); 2] }
    }

    /// Whether nothing was measured yet.
    pub fn is_unknown(&self) -> bool {
        self.launches == 0
    }

    /// So many launches were measured, and took so long together. `beside_others`: others used the GPU meanwhile, so what was
    /// measured may have in it what the GPU did for them.
    pub fn learn(&mut self, launches: u64, time: u64, beside_others: bool) {
        self.last = [(time, launches), self.last[0]];
        if beside_others {
            self.add_beside_others(launches, time);
        } else {
            self.add(launches, time);
        }
    }

    fn add(&mut self, launches: u64, time: u64) {
        if self.rows >= Rate::REMEMBERED {
            self.time /= 2;
            self.launches /= 2;
            self.rows /= 2;
        }
        self.rows += 1;
        self.time = self.time.saturating_add(time);
        self.launches = self.launches.saturating_add(launches.saturating_mul(Rate::FINE));
    }

    fn add_beside_others(&mut self, launches: u64, time: u64) {
        self.quickest = if self.beside == 0 { (time, launches) } else { quicker(self.quickest, (time, launches)) };
        self.beside += 1;
        if self.beside >= Rate::ENOUGH {
            let (time, launches) = self.quickest;
            self.beside = 0;
            self.add(launches, time);
        }
    }

    /// How long the GPU takes for so many; nothing, if that is not known.
    pub fn expected(&self, launches: u64) -> Option<u64> {
        let all = u128::from(launches).saturating_mul(u128::from(self.time)).saturating_mul(u128::from(Rate::FINE));
        let all = all / u128::from(self.launches.max(1));
        (!self.is_unknown()).then(|| u64::try_from(all).unwrap_or(u64::MAX))
    }

    /// The same by what was measured last, which may be too much where others use the GPU.
    pub fn lately(&self, launches: u64) -> Option<u64> {
        let (time, of) = self.last.into_iter().filter(|(_, of)| *of > 0).reduce(quicker)?;
        u64::try_from(u128::from(launches) * u128::from(time) / u128::from(of)).ok()
    }

    /// Nothing was launched for a while: what comes next need not be like what was measured last.
    pub fn forget_last(&mut self) {
        self.last = [(0, 0); 2];
    }

    /// How long the GPU worked in so much wall time, where so many more were launched. No more than `deepest` is ever queued.
    pub fn of(&mut self, launches: u64, wall: u64, deepest: u64) -> u64 {
        self.owed = self.owed.saturating_add(launches);
        let Some(more) = self.expected(self.owed) else { return 0 };
        self.owed = 0;
        let all = self.queued.saturating_add(more);
        let done = all.min(wall);
        // Where launches overlap, in several streams, there seems to be more and more.
        self.queued = (all - done).min(deepest);
        done
    }
}

/// Of two times and how many launches each was for, the one that was shorter for each.
fn quicker(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    let is_shorter = u128::from(other.0) * u128::from(one.1) < u128::from(one.0) * u128::from(other.1);
    if is_shorter { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn launched(times: &[(u64, u64)]) -> impl Iterator<Item = Launched> + Clone + '_ {
        times.iter().map(|(sent, done)| Launched { sent: sent * US, done: done * US, at_most: u64::MAX })
    }

    const IDLE: Begin = Begin { at: 100 * US, is_idle: true };
    const BUSY: Begin = Begin { at: 100 * US, is_idle: false };

    #[test]
    fn pauses_are_not_work() {
        // Sent 5, 25 and 30 us after the mark into an idle stream; each takes 10.
        let launches = launched(&[(105, 15), (125, 35), (130, 45)]);
        assert_eq!(worked(IDLE, 0, launches.clone()), 30 * US);
        assert_eq!(worked(IDLE, US, launches.clone()), 27 * US, "nor are our marks");
        assert_eq!(worked(IDLE, 11 * US, launches), 0);
        assert_eq!(worked(IDLE, 0, launched(&[])), 0);
    }

    #[test]
    fn what_the_gpu_did_for_others_is_not_work() {
        // Each takes 10 us, and others have the GPU for 2 ms before the third.
        let launches = || launched(&[(101, 10), (102, 20), (103, 2030), (104, 2040)]);
        let known = |at_most| launches().map(move |launch| Launched { at_most, ..launch });
        assert_eq!(worked(BUSY, 0, launches()), 2040 * US);
        assert_eq!(worked(BUSY, 0, known(11 * US)), 41 * US);
        assert_eq!(worked(IDLE, 0, known(3000 * US)), worked(IDLE, 0, launches()), "long ones may take that long");
    }

    #[test]
    fn a_stream_that_is_busy_may_run_dry_later() {
        // The GPU passes the mark 50 us late. It has enough to do all the time.
        assert_eq!(worked(BUSY, 0, launched(&[(101, 10), (102, 20), (103, 30)])), 30 * US);
        // Two are under way; then they come every 40 us, and each takes 10 of them.
        let rare = launched(&[(101, 10), (102, 20), (190, 50), (230, 90), (270, 130)]);
        assert!((20 * US..50 * US).contains(&worked(BUSY, 0, rare)));
    }

    #[test]
    fn no_time_counts_twice_however_the_marks_lie() {
        for launches in [&[(0, 50), (1, 20), (2, 60)], &[(9, 50), (900, 20), (2, 60)]] {
            assert!(worked(IDLE, 0, launched(launches)) <= 60 * US);
            assert!(worked(BUSY, 0, launched(launches)) <= 60 * US);
        }
        assert!(worked(Begin { at: u64::MAX, is_idle: true }, 0, launched(&[(1, 3)])) <= 3 * US);
    }

    #[test]
    fn what_is_not_measured_is_like_what_is() {
        const SECOND: u64 = 1_000_000 * US;
        let mut rate = Rate::new();
        assert_eq!(rate.of(100, SECOND, 0), 0, "nothing was measured yet");
        rate.learn(10, 200 * US, false);
        assert_eq!(rate.of(50, SECOND, 0), 150 * 20 * US, "and nothing is forgotten");
        for _ in 0..100 {
            rate.learn(16, 16 * 40 * US, false);
        }
        assert!((39 * US..=41 * US).contains(&(rate.of(1000, SECOND, 0) / 1000)), "it follows");
        rate.learn(1, 40 * US, false);
        for _ in 0..20 {
            rate.learn(2, 1000 * US, false);
        }
        assert!(rate.expected(100) > Some(95 * 500 * US), "soon, too, where there are few");
        assert_eq!((Rate::new().of(u64::MAX, 7, 7), Rate::new().expected(1)), (0, None));
        rate.learn(u64::MAX, u64::MAX, false);
        assert_eq!(rate.of(u64::MAX, 7, u64::MAX), 7);
    }

    #[test]
    fn beside_others_the_quickest_counts() {
        let mut rate = Rate::new();
        for time in [900, 20, 40, 900, 900, 900, 10, 900] {
            assert!(rate.is_unknown());
            rate.learn(if time == 40 { 16 } else { 2 }, time * US, true);
        }
        assert_eq!(rate.of(1000, u64::MAX, 0), 1000 * 40 * US / 16);
        assert_eq!(rate.lately(2), Some(10 * US), "of the last two");
        assert_eq!(Rate::new().lately(2), None);
        rate.forget_last();
        assert_eq!(rate.lately(2), None, "after a rest");
        assert_eq!(rate.expected(16), Some(40 * US), "accounts go on");
        rate.learn(u64::MAX, u64::MAX, true);
        rate.learn(u64::MAX, 0, true);
    }

    #[test]
    fn what_is_queued_is_done_later() {
        let mut rate = Rate::new();
        rate.learn(1, 100 * US, false);
        assert_eq!(rate.of(8, 500 * US, 1000 * US), 500 * US, "no more than there was time for");
        assert_eq!(rate.of(1, 500 * US, 1000 * US), 400 * US, "the rest comes after");
        assert_eq!(rate.of(0, 500 * US, 1000 * US), 0);
        rate.of(1000, 500 * US, 1000 * US);
        assert_eq!(rate.of(0, 5000 * US, 1000 * US), 1000 * US, "and there is an end to it");
    }
}
