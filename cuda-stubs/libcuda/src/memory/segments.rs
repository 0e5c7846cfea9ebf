//! A value for every byte of a range, kept as stretches of equal ones.

use std::ops::Range;

/// Stretches: where each ends, and its value. Never empty, never two equal ones side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segments<T> {
    ends: Vec<(u64, T)>,
}

impl<T: Clone + PartialEq + Default> Segments<T> {
    pub(crate) fn new(len: u64) -> Segments<T> {
        Segments { ends: vec![(len, T::default())] }
    }

    /// Changes the values of a range.
    pub(crate) fn apply(&mut self, range: Range<u64>, mut f: impl FnMut(&mut T)) {
        let mut made: Vec<(u64, T)> = Vec::with_capacity(self.ends.len() + 2);
        let mut start = 0;
        for (end, value) in &self.ends {
            let cuts = [range.start.clamp(start, *end), range.end.clamp(start, *end), *end];
            for (index, cut) in cuts.into_iter().enumerate() {
                if cut <= start {
                    continue;
                }
                let mut value = value.clone();
                if index == 1 {
                    f(&mut value);
                }
                match made.last_mut() {
                    Some(last) if last.1 == value => last.0 = cut,
                    _ => made.push((cut, value)),
                }
                start = cut;
            }
        }
        self.ends = made;
    }

    /// The stretches of a range: length and value.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &T)> {
        let mut start = 0;
        self.ends.iter().filter_map(move |(end, value)| {
            let (from, to) = (range.start.max(start), range.end.min(*end));
            start = *end;
            (from < to).then(|| (to - from, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn it_is_what_an_array_would_be(steps in prop::collection::vec((0u64..40, 0u64..40, 0u8..3), 0..30)) {
            let mut plain = [0u8; 32];
            let mut segments = Segments::<u8>::new(32);
            for (from, to, value) in steps {
                segments.apply(from..to, |v| *v = value);
                for at in from..to.min(32) {
                    plain[at as usize] = value;
                }
                let flat: Vec<u8> = segments.within(0..32).flat_map(|(len, v)| vec![*v; len as usize]).collect();
                prop_assert_eq!(&flat[..], &plain[..]);
                prop_assert!(segments.ends.windows(2).all(|pair| pair[0].1 != pair[1].1 && pair[0].0 < pair[1].0));
                let part: u64 = segments.within(5..20).map(|(len, _)| len).sum();
                prop_assert_eq!(part, 15);
            }
        }
    }
}
