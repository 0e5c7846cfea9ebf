//! A value for each GPU: the same for all, or by the GPU's number or UUID.

use std::fmt;

use crate::error::{Problem, quoted};
use crate::quantity::{empty, only_digits};
use crate::uuid::UuidPrefix;

/// Which GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// Its number as the process counts them, after `CUDA_VISIBLE_DEVICES`.
    Index(u32),
    /// Its UUID, or the beginning of it.
    Uuid(UuidPrefix),
}

impl Key {
    fn same(&self, other: &Key) -> bool {
        match (self, other) {
            (Key::Uuid(one), Key::Uuid(other)) => one.same(other),
            (one, other) => one == other,
        }
    }

    fn parse(text: &str) -> Result<Key, Problem> {
        if only_digits(text) {
            return text.parse().map(Key::Index).map_err(|_| {
                Problem::new(format!("{} is no number of a GPU", quoted(text, 20)), "GPUs are counted from 0")
            });
        }
        let kind = text.get(..4).unwrap_or("");
        if kind.eq_ignore_ascii_case("GPU-") || kind.eq_ignore_ascii_case("MIG-") {
            return text.parse().map(Key::Uuid);
        }
        Err(Problem::new(
            format!("{} names no GPU", quoted(text, 30)),
            "before the = write the GPU's number as the program sees it, or its UUID, GPU-...",
        ))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Index(index) => index.fmt(f),
            Key::Uuid(uuid) => uuid.fmt(f),
        }
    }
}

/// A value for each GPU. Written `8GiB` for all, `0=8GiB,1=25%` for some, `8GiB,1=25%` for all with exceptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerGpu<T> {
    /// For those that are not named.
    pub all: Option<T>,
    /// For those that are; no key occurs twice.
    pub each: Vec<(Key, T)>,
}

impl<T> Default for PerGpu<T> {
    fn default() -> PerGpu<T> {
        PerGpu { all: None, each: Vec::new() }
    }
}

impl<T> PerGpu<T> {
    /// The same for all.
    pub fn all(value: T) -> PerGpu<T> {
        PerGpu { all: Some(value), each: Vec::new() }
    }

    /// Whether nothing is said about any GPU.
    pub fn is_empty(&self) -> bool {
        self.all.is_none() && self.each.is_empty()
    }

    /// What is said about this GPU. Its UUID counts before its number, a longer beginning of it before a shorter one, and
    /// both before what is said of all. `None`: nothing is.
    pub fn for_gpu(&self, index: u32, uuid: &[u8; 16]) -> Option<&T> {
        self.find(Some(index), Some(&UuidPrefix::of(uuid)))
    }

    /// What is known to hold for a key that another setting uses.
    pub(crate) fn at(&self, key: &Key) -> Option<&T> {
        match key {
            Key::Index(index) => self.find(Some(*index), None),
            Key::Uuid(uuid) => self.find(None, Some(uuid)),
        }
    }

    fn find(&self, index: Option<u32>, uuid: Option<&UuidPrefix>) -> Option<&T> {
        let closeness = |key: &Key| match key {
            Key::Uuid(prefix) => uuid.is_some_and(|uuid| prefix.covers(uuid)).then_some(prefix.digits()),
            Key::Index(number) => (index == Some(*number)).then_some(0),
        };
        let named = self.each.iter().filter_map(|(key, value)| Some((closeness(key)?, value)));
        named.max_by_key(|(closeness, _)| *closeness).map(|(_, value)| value).or(self.all.as_ref())
    }

    /// The first beginning of a UUID that more than one of these GPUs has.
    pub(crate) fn ambiguous(&self, gpus: &[[u8; 16]]) -> Option<&UuidPrefix> {
        self.each.iter().find_map(|(key, _)| match key {
            Key::Uuid(prefix) => (gpus.iter().filter(|uuid| prefix.matches(uuid)).count() > 1).then_some(prefix),
            Key::Index(_) => None,
        })
    }

    /// The same with other values.
    pub(crate) fn map<U>(&self, f: impl Fn(&T) -> U) -> PerGpu<U> {
        PerGpu { all: self.all.as_ref().map(&f), each: self.each.iter().map(|(key, value)| (*key, f(value))).collect() }
    }

    /// Reads `VALUE`, or a list of `GPU=VALUE` with at most one `VALUE` for the rest.
    pub fn parse(text: &str, value: impl Fn(&str) -> Result<T, Problem>) -> Result<PerGpu<T>, Problem> {
        if text.trim().is_empty() {
            return Err(empty());
        }
        let mut found = PerGpu::default();
        for entry in text.split(',') {
            if entry.trim().is_empty() {
                return Err(Problem::new(
                    "a comma has nothing on one side",
                    "remove the comma, or write what is missing",
                ));
            }
            match entry.split_once('=') {
                Some((key, text)) => {
                    let key = Key::parse(key.trim())?;
                    if found.each.iter().any(|(other, _)| other.same(&key)) {
                        let shown = quoted(&key.to_string(), 42);
                        return Err(Problem::new(format!("GPU {shown} is named twice"), "name each GPU once"));
                    }
                    found.each.push((key, value(text)?));
                }
                None if found.all.is_some() => {
                    return Err(Problem::new(
                        "two values do not say for which GPU they are",
                        "name the GPUs in the list: 0=...,1=...",
                    ));
                }
                None => found.all = Some(value(entry)?),
            }
        }
        Ok(found)
    }
}

impl<T: fmt::Display> fmt::Display for PerGpu<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        if let Some(value) = &self.all {
            value.fmt(f)?;
            comma = ",";
        }
        for (key, value) in &self.each {
            write!(f, "{comma}{key}={value}")?;
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::quantity::{Amount, Percent, limit};
    use proptest::prelude::*;

    const ONE: [u8; 16] = [0x11; 16];
    const TWO: [u8; 16] = [0x22; 16];

    fn parse(text: &str) -> Result<PerGpu<Amount>, Problem> {
        PerGpu::parse(text, str::parse)
    }

    #[test]
    fn a_gpu_is_found_by_the_closest_name() {
        let caps = parse("1GiB, 0=2GiB, GPU-1=3GiB, GPU-11111111-11=4GiB").expect("good");
        let cap = |index, uuid| caps.for_gpu(index, uuid).map(|amount| amount.bytes(u64::MAX) >> 30);
        assert_eq!(cap(7, &TWO), Some(1), "what is said of all");
        assert_eq!(cap(0, &TWO), Some(2), "its number");
        assert_eq!(cap(7, &ONE), Some(4), "the longer beginning");
        assert_eq!(cap(0, &ONE), Some(4), "the UUID before the number");
        let reversed = PerGpu { all: caps.all, each: caps.each.iter().rev().copied().collect() };
        assert_eq!(reversed.for_gpu(0, &ONE), caps.for_gpu(0, &ONE), "in whatever order they are written");
        assert_eq!(parse("0=8GiB").expect("good").for_gpu(1, &ONE), None);
    }

    #[test]
    fn lists_that_leave_a_doubt_are_refused() {
        for (text, why) in [
            ("8GiB,4GiB", "two values do not say for which GPU"),
            ("0=8GiB,0=8GiB", "named twice"),
            ("GPU-12=8GiB,gpu-12=9GiB", "named twice"),
            ("GPU-12=8GiB,MIG-12=9GiB", "named twice"),
            ("0=8GiB,", "a comma has nothing"),
            (",", "a comma has nothing"),
            ("all=8GiB", "names no GPU"),
            ("-1=8GiB", "names no GPU"),
            ("=8GiB", "names no GPU"),
            ("4294967296=8GiB", "no number of a GPU"),
            ("GPU-=8GiB", "nothing follows"),
            ("GPU-xyz=8GiB", "hexadecimal digits"),
            ("0=", "it is empty"),
            ("0=1=8GiB", "\"=8GiB\" is no unit"),
            ("0=8GiB;1=4GiB", "is no unit"),
            (" ", "it is empty"),
        ] {
            let problem = parse(text).expect_err(text).to_string();
            assert!(problem.contains(why), "{text}: {problem}");
        }
    }

    #[test]
    fn a_beginning_that_two_gpus_have_is_found() {
        let caps = parse("GPU-1=8GiB,GPU-2=4GiB").expect("good");
        let mut other = ONE;
        other[15] = 0;
        assert_eq!(caps.ambiguous(&[ONE, TWO]), None);
        assert_eq!(caps.ambiguous(&[TWO, ONE, other]).map(UuidPrefix::to_string), Some("GPU-1".into()));
    }

    prop_compose! {
        /// A UUID, cut anywhere.
        fn prefix()(uuid: [u8; 16], cut in 5_usize..=40) -> UuidPrefix {
            crate::print_uuid(&uuid)[..cut].parse().unwrap()
        }
    }

    /// Any list of such values, never empty.
    pub(crate) fn lists<T: Strategy>(value: impl Fn() -> T) -> impl Strategy<Value = PerGpu<T::Value>>
    where
        T::Value: Clone,
    {
        let key = prop_oneof![(0..8_u32).prop_map(Key::Index), prefix().prop_map(Key::Uuid)];
        (prop::option::of(value()), prop::collection::vec((key, value()), 0..6)).prop_filter_map(
            "nothing is said of any GPU",
            |(all, named)| {
                let mut list = PerGpu { all, each: Vec::<(Key, T::Value)>::new() };
                for (key, value) in named {
                    if list.each.iter().all(|(other, _)| !other.same(&key)) {
                        list.each.push((key, value));
                    }
                }
                (!list.is_empty()).then_some(list)
            },
        )
    }

    /// Any share above nothing.
    pub(crate) fn shares() -> impl Strategy<Value = Percent> {
        (1..=1_000_000_u32).prop_map(|ppm| Percent::from_ppm(ppm).unwrap())
    }

    /// Any amount that can be meant.
    pub(crate) fn amounts() -> impl Strategy<Value = Amount> {
        prop_oneof![(crate::MEMORY_MIN..).prop_map(Amount::Bytes), shares().prop_map(Amount::Percent)]
    }

    proptest! {
        #[test]
        fn lists_survive_printing(caps in lists(amounts), limits in lists(shares)) {
            prop_assert_eq!(parse(&caps.to_string()), Ok(caps));
            prop_assert_eq!(PerGpu::parse(&limits.to_string(), limit), Ok(limits));
        }

        #[test]
        fn no_list_is_too_strange(text in "\\PC*", near in "([0-9]|GPU-[0-9a-f-]{0,6})?=?[0-9%,=GiB]{0,12}") {
            let _ = (parse(&text), parse(&near));
        }
    }
}
