//! What each kind of launch costs: nanoseconds of GPU time, learned one launch at a time.
//!
//! A launch is measured between two events of ours, one recorded just before it and one just after. Where the GPU had not come
//! to the first when the second was recorded (a *sealed* backlog), the time between them, less what the events themselves take, is
//! what the launch takes. A program that keeps its queue short is not behind: then a [`Latch`](super::latch::Latch) holds the stream
//! until both are recorded. Where that cannot be, the GPU may have waited for the host in between: an upper bound, which counts
//! until there is something better.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ration_policy::tuning::{AGAIN, AGAIN_WORK, BESIDE, EMPTY, ENOUGH};

use super::Work;

/// What one kind of launch costs.
pub struct Entry {
    work: AtomicU64,
    cost: AtomicU64,
    /// How often it was measured sealed, up to [`ENOUGH`].
    sealed: AtomicU32,
    /// Launches since it was last measured.
    since: AtomicU32,
    /// How often it was to be measured.
    asked: AtomicU32,
}

const SIZE: usize = 1 << 12;
/// How far from its place an entry may lie.
const REACH: usize = 8;

static TABLE: [Entry; SIZE] = [const {
    Entry {
        work: AtomicU64::new(0),
        cost: AtomicU64::new(0),
        sealed: AtomicU32::new(0),
        since: AtomicU32::new(0),
        asked: AtomicU32::new(0),
    }
}; SIZE];

/// The entry of a kind of launch. Where the table is full around there, the first one gives way.
pub fn of(work: Work) -> &'static Entry {
    let number = work.number();
    let start = number as usize;
    for place in start..start + REACH {
        let entry = &TABLE[place % SIZE];
        match entry.work.load(Ordering::Relaxed) {
            there if there == number => return entry,
            0 => match entry.work.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return entry,
                Err(there) if there == number => return entry,
                Err(_) => {}
            },
            _ => {}
        }
    }
    let first = &TABLE[start % SIZE];
    first.work.store(number, Ordering::Relaxed);
    first.cost.store(0, Ordering::Relaxed);
    first.sealed.store(0, Ordering::Relaxed);
    first.asked.store(0, Ordering::Relaxed);
    first.since.store(0, Ordering::Relaxed);
    first
}

impl Entry {
    /// What it costs, as far as is known.
    #[inline]
    pub fn cost(&self) -> u64 {
        match self.cost.load(Ordering::Relaxed) {
            0 => EMPTY,
            cost => cost,
        }
    }

    /// The same, as it counts for what may be under way: what is not known is taken to be long.
    #[inline]
    pub fn ahead(&self) -> u64 {
        match self.cost.load(Ordering::Relaxed) {
            0 => ration_policy::tuning::UNKNOWN,
            cost => cost,
        }
    }

    /// Whether it was never launched before.
    #[inline]
    pub fn is_new(&self) -> bool {
        self.asked.load(Ordering::Relaxed) == 0
    }

    /// Whether anything is known of what it costs.
    #[inline]
    pub fn is_known(&self) -> bool {
        self.cost.load(Ordering::Relaxed) != 0
    }

    /// Counts a launch. Whether it should be measured, if it can be: that is enough for a while, although the result comes later.
    #[inline]
    pub fn launched(&self) -> bool {
        let since = self.since.load(Ordering::Relaxed).saturating_add(1);
        // Lost where two threads launch the same at once, which costs a measurement no more than a little delay.
        self.since.store(since, Ordering::Relaxed);
        // Results come late, and a program may queue thousands until then: more and more of them lie in between.
        let asked = self.asked.load(Ordering::Relaxed);
        // Of what is long few are launched, and it is likely to be interrupted.
        let is_long = u64::from(since) * self.cost.load(Ordering::Relaxed) >= AGAIN_WORK;
        if since < (asked * asked / 2).min(AGAIN) && !(is_long && self.sealed.load(Ordering::Relaxed) < ENOUGH) {
            return false;
        }
        self.since.store(0, Ordering::Relaxed);
        self.asked.store((asked + 1).min(AGAIN), Ordering::Relaxed);
        true
    }

    /// It took so long.
    pub fn learn(&self, took: u64, sealed: bool) {
        let took = took.saturating_sub(BESIDE).max(EMPTY);
        let (cost, times) = (self.cost.load(Ordering::Relaxed), self.sealed.load(Ordering::Relaxed));
        let learned = match (sealed, times) {
            (false, 0) if cost == 0 => took,
            (false, 0) => took.min(cost),
            // Whatever lies in between besides, it takes no longer than that.
            (false, _) if took >= cost => return,
            (false, _) => took,
            // Of the first ones the least: what is too long was interrupted. The first replaces what was an upper bound.
            (true, 0) if cost == 0 || took < cost => took,
            (true, ..ENOUGH) => took.min(cost),
            // Then towards the lower ones: others interrupt some, and leave caches cold.
            (true, _) if took < cost => cost - (cost - took) / 4,
            (true, _) => cost + (took - cost).min(cost) / 64,
        };
        self.cost.store(learned, Ordering::Relaxed);
        if sealed {
            self.sealed.store((times + 1).min(ENOUGH), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_measurements_replace_an_upper_bound() {
        let entry = of(Work::kernel(0x1234, [1; 3], [1; 3]));
        assert_eq!(entry.cost(), EMPTY);
        for took in [20_000, 12_000, 15_000] {
            entry.learn(took, false);
        }
        assert_eq!(entry.cost(), 12_000 - BESIDE);
        entry.learn(5_000, true);
        entry.learn(4_000_000, false);
        assert_eq!(entry.cost(), 5_000 - BESIDE);
        entry.learn(4_900, false);
        assert_eq!(entry.cost(), 4_900 - BESIDE, "an upper bound below it");
    }

    #[test]
    fn interruptions_hardly_move_a_cost() {
        let entry = of(Work::kernel(0x5678, [1; 3], [1; 3]));
        for turn in 0..1000 {
            entry.learn(if turn % 4 == 0 { 2_200_000 } else { 100_000 + turn % 7 * 100 }, true);
        }
        assert!((95_000..125_000).contains(&entry.cost()), "{}", entry.cost());
    }

    #[test]
    fn what_is_known_is_measured_now_and_then() {
        let entry = of(Work::kernel(0x9abc, [1; 3], [1; 3]));
        assert!(entry.launched() && entry.launched(), "the first may be the only one");
        (0..ENOUGH).for_each(|_| entry.learn(5_000, true));
        let measured = (0..10_000).filter(|_| entry.launched()).count();
        assert!((30..=45).contains(&measured), "{measured}");
    }
}
