//! The least that pieces of work were seen to take, where others interrupt them.

/// How long the GPU takes for each of some pieces of work, by the quickest of those seen lately.
///
/// Beside others, most of what is measured has their time in it: the hardware gives each container some milliseconds, and a launch
/// of a few microseconds may lie on either side of them. What is measured is never too little, so the least of it counts; and it
/// is kept for each piece of work by itself, for a program that launches short and long ones is not to be taken for one that
/// launches short ones only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quickest {
    places: [Seen; Quickest::PLACES],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// Which piece of work; 0: none.
    work: u64,
    /// The least since it was last counted anew, and in the time before that.
    least: u64,
    before: u64,
    times: u32,
}

impl Seen {
    const NOTHING: Seen = Seen { work: 0, least: u64::MAX, before: u64::MAX, times: 0 };
}

impl Quickest {
    /// Of more pieces of work than this, some are forgotten for others.
    const PLACES: usize = 256;
    /// How far from its place one may be.
    const REACH: usize = 4;
    /// After so many times it is counted anew: what takes longer from now on is found out when it was seen twice as often.
    const TIMES: u32 = 8;

    /// None was seen.
    pub const fn new() -> Quickest {
        Quickest { places: [Seen::NOTHING; Quickest::PLACES] }
    }

    /// This work, which has a number other than 0, took so long, or less.
    pub fn learn(&mut self, work: u64, took: u64) {
        let free = || Quickest::near(work).find(|place| self.places[*place].work == 0);
        // Where all are taken, the first gives way.
        let place = self.place(work).or_else(free).unwrap_or(work as usize % Quickest::PLACES);
        let seen = &mut self.places[place];
        if seen.work != work {
            *seen = Seen { work, ..Seen::NOTHING };
        }
        seen.least = seen.least.min(took);
        seen.times += 1;
        if seen.times >= Quickest::TIMES {
            *seen = Seen { before: seen.least, work, ..Seen::NOTHING };
        }
    }

    /// What it takes, if it was seen.
    pub fn of(&self, work: u64) -> Option<u64> {
        let seen = &self.places[self.place(work)?];
        Some(seen.least.min(seen.before)).filter(|least| *least != u64::MAX)
    }

    fn near(work: u64) -> impl Iterator<Item = usize> {
        (work as usize % Quickest::PLACES..).take(Quickest::REACH).map(|place| place % Quickest::PLACES)
    }

    fn place(&self, work: u64) -> Option<usize> {
        Quickest::near(work).find(|place| self.places[*place].work == work)
    }

    /// What comes next may be anything.
    pub fn forget(&mut self) {
        self.places.fill(Seen::NOTHING);
    }
}

impl Default for Quickest {
    fn default() -> Quickest {
        Quickest::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn one_that_was_not_interrupted_is_enough() {
        let mut quickest = Quickest::new();
        assert_eq!(quickest.of(7), None);
        for took in [6000, 2100, 10, 4300, 6000] {
            quickest.learn(7, took * US);
        }
        assert_eq!(quickest.of(7), Some(10 * US));
        assert_eq!(quickest.of(8), None, "of another nothing is known");
    }

    #[test]
    fn short_ones_do_not_make_long_ones_short() {
        let mut quickest = Quickest::new();
        for _ in 0..100 {
            quickest.learn(1, 10 * US);
            quickest.learn(2, 5000 * US);
        }
        assert_eq!([1, 2].map(|work| quickest.of(work)), [Some(10 * US), Some(5000 * US)]);
    }

    #[test]
    fn what_takes_longer_is_found_out() {
        let mut quickest = Quickest::new();
        (0..100).for_each(|_| quickest.learn(1, 10 * US));
        let until_found = (1..).find(|_| {
            quickest.learn(1, 500 * US);
            quickest.of(1) == Some(500 * US)
        });
        assert!(until_found <= Some(2 * Quickest::TIMES), "{until_found:?}");
        quickest.learn(1, 20 * US);
        assert_eq!(quickest.of(1), Some(20 * US), "and what takes less, at once");
    }

    #[test]
    fn of_many_that_have_the_same_place_the_last_are_known() {
        let mut quickest = Quickest::new();
        let places = Quickest::PLACES as u64;
        let works = [255, 255 + places, 255 + 2 * places, 0];
        works.iter().for_each(|work| quickest.learn(*work + places, *work * US));
        assert_eq!(works.map(|work| quickest.of(work + places)), works.map(|work| Some(work * US)));
        quickest.learn(255, 500 * US);
        assert_eq!([255, 255 + places].map(|work| quickest.of(work)), [Some(500 * US), None], "there is no more room");
        quickest.forget();
        assert_eq!(quickest.of(255), None);
    }
}
