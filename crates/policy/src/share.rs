//! A share of a GPU's time, and what it makes of wall time and GPU time.

/// A share of a GPU's time, in millionths: at least one of them and at most all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u32);

impl Share {
    /// All of it.
    pub const WHOLE: Share = Share(1_000_000);

    /// What a container weighs that asked for no share: it is guaranteed nothing, and others that
    /// asked for everything lose a hundredth to it, so that it does not starve. Among themselves such containers are equal.
    pub const UNASKED: Share = Share(10_000);

    /// So many millionths, at least one and at most all.
    #[inline]
    pub const fn from_ppm(ppm: u32) -> Share {
        match ppm {
            0 => Share(1),
            1..1_000_000 => Share(ppm),
            _ => Share::WHOLE,
        }
    }

    /// In millionths.
    #[inline]
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// Whether it is all of the GPU.
    #[inline]
    pub const fn is_whole(self) -> bool {
        self.0 == Share::WHOLE.0
    }

    /// What a container with this request and this limit, in millionths, weighs; a request of 0 is none.
    /// It cannot use more than its limit, so it weighs no more.
    #[inline]
    pub fn weight(request_ppm: u32, limit: Share) -> Share {
        let asked = if request_ppm == 0 { Share::UNASKED } else { Share::from_ppm(request_ppm) };
        asked.min(limit)
    }

    /// How much wall time it takes until so much GPU time is due: the least for which [`gpu`](Share::gpu) says so, or all
    /// that can be said in a word.
    #[inline]
    pub fn wall(self, gpu: u64) -> u64 {
        scaled(gpu, Share::WHOLE.0, self.0, true)
    }

    /// How much GPU time is due after so much wall time, rounded down.
    #[inline]
    pub fn gpu(self, wall: u64) -> u64 {
        scaled(wall, self.0, Share::WHOLE.0, false)
    }
}

/// `value` × `by` / `over`, rounded up or down, and no more than fits. A launch waits for it, so the wide division, which is
/// a function call, is left to times of more than five hours.
#[inline]
fn scaled(value: u64, by: u32, over: u32, up: bool) -> u64 {
    let (by, over) = (u64::from(by), u64::from(over));
    match value.checked_mul(by) {
        Some(product) if up => product.div_ceil(over),
        Some(product) => product / over,
        None => scaled_wide(value, by, over, up),
    }
}

#[cold]
fn scaled_wide(value: u64, by: u64, over: u64, up: bool) -> u64 {
    let (product, over) = (u128::from(value) * u128::from(by), u128::from(over));
    u64::try_from(if up { product.div_ceil(over) } else { product / over }).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_time;

    fn any_share() -> impl Strategy<Value = Share> {
        (0..=1_000_001u32).prop_map(Share::from_ppm)
    }

    #[test]
    fn a_share_is_between_a_millionth_and_all() {
        assert_eq!(
            [0, 1, 250_000, 1_000_000, u32::MAX].map(|ppm| Share::from_ppm(ppm).ppm()),
            [1, 1, 250_000, 1_000_000, 1_000_000]
        );
        assert!(Share::from_ppm(2_000_000).is_whole() && !Share::from_ppm(999_999).is_whole());
    }

    #[test]
    fn ten_milliseconds_of_wall_time_are_three_of_gpu_time_at_thirty_percent() {
        let share = Share::from_ppm(300_000);
        assert_eq!((share.gpu(10_000_000), share.wall(3_000_000)), (3_000_000, 10_000_000));
        assert_eq!((Share::WHOLE.gpu(u64::MAX), Share::WHOLE.wall(u64::MAX)), (u64::MAX, u64::MAX));
    }

    #[test]
    fn nobody_weighs_more_than_it_may_use_or_nothing_at_all() {
        let limit = Share::from_ppm(250_000);
        assert_eq!(Share::weight(750_000, limit), limit);
        assert_eq!(Share::weight(100_000, limit).ppm(), 100_000);
        assert_eq!(Share::weight(0, limit), Share::UNASKED);
        assert_eq!(Share::weight(0, Share::from_ppm(5)).ppm(), 5);
    }

    proptest! {
        /// Against wide arithmetic, which the short way must never differ from.
        #[test]
        fn both_ways_are_exact(share in any_share(), time in any_time()) {
            let (time_wide, ppm) = (u128::from(time), u128::from(share.ppm()));
            prop_assert_eq!(u128::from(share.gpu(time)), time_wide * ppm / 1_000_000);
            let wall = (time_wide * 1_000_000).div_ceil(ppm);
            prop_assert_eq!(u128::from(share.wall(time)), wall.min(u128::from(u64::MAX)));
        }

        /// After `wall(gpu)` so much is due, and a nanosecond earlier it is not.
        #[test]
        fn wall_time_is_the_least_in_which_so_much_is_due(share in any_share(), gpu in any_time()) {
            let wall = share.wall(gpu);
            prop_assume!(wall < u64::MAX);
            prop_assert!(share.gpu(wall) >= gpu);
            prop_assert!(wall == 0 || share.gpu(wall - 1) < gpu);
        }
    }
}
