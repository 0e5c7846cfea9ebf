//! How late threads are woken.

/// For how long a thread that is needed at a certain time has to be awake before it. On a machine with little to do it is woken
/// some 60 µs after the time that it asked for; on one that shares its processors with other machines, now and then by much
/// more. What is spent awake is a processor's time, and what is not is the GPU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waking {
    awake: u64,
}

impl Waking {
    /// Whatever was seen.
    pub const LEAST: u64 = 70_000;
    const MOST: u64 = 1_000_000;

    /// Nothing was seen yet.
    pub const USUAL: Waking = Waking { awake: Waking::LEAST };

    /// As it was kept in a word.
    pub fn from_word(word: u64) -> Waking {
        Waking { awake: word.clamp(Waking::LEAST, Waking::MOST) }
    }

    /// So long before it is needed it asks to be woken.
    pub fn awake(self) -> u64 {
        self.awake
    }

    /// It was woken so long after the time that it had asked for, or 0, where it did not sleep at all: one in two hundred may be
    /// later than it should.
    #[must_use]
    pub fn woken(self, late: u64) -> Waking {
        let more = if late > self.awake { self.awake / 2 } else { 0 };
        let less = if late > self.awake { 0 } else { (self.awake - Waking::LEAST) / 512 };
        Waking::from_word(self.awake + more - less)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_time;

    fn after(mut waking: Waking, wakes: impl Iterator<Item = u64>) -> u64 {
        wakes.for_each(|late| waking = waking.woken(late));
        waking.awake()
    }

    #[test]
    fn those_who_are_woken_late_ask_to_be_woken_earlier() {
        let now_and_then = |each: u64| (0..10_000).map(move |it| if it % each == 0 { 200_000 } else { 60_000 });
        assert_eq!(after(Waking::USUAL, (0..10_000).map(|_| 60_000)), Waking::LEAST);
        assert!(after(Waking::USUAL, now_and_then(1000)) < 100_000, "hardly for one in a thousand");
        let often = after(Waking::USUAL, now_and_then(20));
        assert!((190_000..=310_000).contains(&often), "{often}");
        assert!(after(Waking::from_word(often), (0..10_000).map(|_| 60_000)) < 80_000, "until that is over");
    }

    proptest! {
        #[test]
        fn nobody_stays_awake_for_long(word in any_time(), wakes in prop::collection::vec(any_time(), 0..50)) {
            let awake = after(Waking::from_word(word), wakes.into_iter());
            prop_assert!((Waking::LEAST..=Waking::MOST).contains(&awake));
        }
    }
}
