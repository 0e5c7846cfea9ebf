//! How much of the GPU's time a program takes of which only some launches are measured.

/// One launch that was measured, among others of its stream that were, one behind another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launched {
    /// When it had been sent, by the host's clock.
    pub sent: u64,
    /// How long after the mark before the first of them the GPU was done with it, by its own clock.
    pub done: u64,
}

/// How long the GPU worked on launches that followed each other in one stream. `idle_at`: that stream had nothing to do when
/// the mark before the first of them was recorded, and that was then, by the host's clock.
///
/// The GPU passes such a mark at once, so the two clocks are known to be together there; and a launch that comes later than
/// the one before it is done begins when it comes. In a stream that is busy, one begins when the other is done.
pub fn worked(idle_at: Option<u64>, launches: impl IntoIterator<Item = Launched>) -> u64 {
    let (mut total, mut free) = (0u64, 0u64);
    for launch in launches {
        let came = idle_at.map_or(0, |idle_at| launch.sent.saturating_sub(idle_at));
        total = total.saturating_add(launch.done.saturating_sub(free.max(came)));
        free = free.max(launch.done);
    }
    total
}

/// What launches take that are not measured, by those that are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate {
    time: u64,
    launches: u64,
    /// Launches of before anything was measured.
    owed: u64,
    /// What launches should take that the GPU cannot have done yet.
    queued: u64,
    /// Of those that were measured beside others, since any was learned from: how many, and the quickest, as `time` and `launches`.
    beside: u32,
    quickest: (u64, u64),
}

impl Rate {
    /// So many launches count: what was measured before them is forgotten by and by.
    const REMEMBERED: u64 = 256;

    /// Of so many that were measured beside others, one was not interrupted.
    const ENOUGH: u32 = 8;

    /// Nothing was measured.
    pub const fn new() -> Rate {
        Rate { time: 0, launches: 0, owed: 0, queued: 0, beside: 0, quickest: (0, 0) }
    }

    /// Whether nothing was measured yet.
    pub fn is_unknown(&self) -> bool {
        self.launches == 0
    }

    /// So many launches were measured, and took so long together.
    pub fn learn(&mut self, launches: u64, time: u64) {
        if self.launches >= Rate::REMEMBERED {
            self.time /= 2;
            self.launches /= 2;
        }
        self.time = self.time.saturating_add(time);
        self.launches = self.launches.saturating_add(launches);
    }

    /// The same where others used the GPU meanwhile: what was measured may have in it what the GPU did for them.
    pub fn learn_beside_others(&mut self, launches: u64, time: u64) {
        let (least, of) = self.quickest;
        if self.beside == 0 || u128::from(time) * u128::from(of) < u128::from(least) * u128::from(launches) {
            self.quickest = (time, launches);
        }
        self.beside += 1;
        if self.beside >= Rate::ENOUGH {
            let (time, launches) = self.quickest;
            self.beside = 0;
            self.learn(launches, time);
        }
    }

    /// How long the GPU worked in so much wall time, where so many more were launched. No more than `deepest` is ever queued.
    pub fn of(&mut self, launches: u64, wall: u64, deepest: u64) -> u64 {
        self.owed = self.owed.saturating_add(launches);
        if self.launches == 0 {
            return 0;
        }
        let more = u128::from(std::mem::take(&mut self.owed)) * u128::from(self.time) / u128::from(self.launches);
        let all = self.queued.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        let done = all.min(wall);
        // Where launches overlap, in several streams, there seems to be more and more.
        self.queued = (all - done).min(deepest);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn launched(times: &[(u64, u64)]) -> Vec<Launched> {
        times.iter().map(|(sent, done)| Launched { sent: sent * US, done: done * US }).collect()
    }

    #[test]
    fn pauses_are_not_work() {
        // Sent 5, 25 and 30 us after the mark into an idle stream; each takes 10.
        let launches = launched(&[(105, 15), (125, 35), (130, 45)]);
        assert_eq!(worked(Some(100 * US), launches.clone()), 30 * US);
        // In a busy stream the clocks tell nothing of each other, and there are no pauses.
        assert_eq!(worked(None, launches), 45 * US);
        assert_eq!(worked(Some(100 * US), []), 0);
    }

    #[test]
    fn no_time_counts_twice_however_the_marks_lie() {
        for launches in [launched(&[(0, 50), (1, 20), (2, 60)]), launched(&[(9, 50), (900, 20), (2, 60)])] {
            assert!(worked(Some(0), launches.clone()) <= 60 * US);
            assert!(worked(None, launches) <= 60 * US);
        }
        assert!(worked(Some(u64::MAX), launched(&[(1, 3)])) <= 3 * US);
    }

    #[test]
    fn what_is_not_measured_is_like_what_is() {
        const SECOND: u64 = 1_000_000 * US;
        let mut rate = Rate::new();
        assert_eq!(rate.of(100, SECOND, 0), 0, "nothing was measured yet");
        rate.learn(10, 200 * US);
        assert_eq!(rate.of(50, SECOND, 0), 150 * 20 * US, "and nothing is forgotten");
        for _ in 0..100 {
            rate.learn(16, 16 * 40 * US);
        }
        assert!((39 * US..=40 * US).contains(&(rate.of(1000, SECOND, 0) / 1000)), "it follows");
        assert_eq!(Rate::new().of(u64::MAX, 7, 7), 0);
        rate.learn(u64::MAX, u64::MAX);
        assert_eq!(rate.of(u64::MAX, 7, u64::MAX), 7);
    }

    #[test]
    fn beside_others_the_quickest_counts() {
        let mut rate = Rate::new();
        for time in [900, 20, 40, 900, 900, 900, 10, 900] {
            assert!(rate.is_unknown());
            rate.learn_beside_others(if time == 40 { 16 } else { 2 }, time * US);
        }
        assert_eq!(rate.of(1000, u64::MAX, 0), 1000 * 40 * US / 16);
        rate.learn_beside_others(u64::MAX, u64::MAX);
        rate.learn_beside_others(u64::MAX, 0);
    }

    #[test]
    fn what_is_queued_is_done_later() {
        let mut rate = Rate::new();
        rate.learn(1, 100 * US);
        assert_eq!(rate.of(8, 500 * US, 1000 * US), 500 * US, "no more than there was time for");
        assert_eq!(rate.of(1, 500 * US, 1000 * US), 400 * US, "the rest comes after");
        assert_eq!(rate.of(0, 500 * US, 1000 * US), 0);
        rate.of(1000, 500 * US, 1000 * US);
        assert_eq!(rate.of(0, 5000 * US, 1000 * US), 1000 * US, "and there is an end to it");
    }
}
