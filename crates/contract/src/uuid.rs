//! The identity of a GPU as people write it: `GPU-01234567-89ab-cdef-0123-456789abcdef`, or the beginning of that.

use std::fmt;
use std::str::FromStr;

use crate::error::{Problem, quoted};

/// Hexadecimal digits of a whole one.
const DIGITS: usize = 32;
/// The digits before which a dash stands.
const DASHED: [usize; 4] = [8, 12, 16, 20];

/// Reads a whole UUID: `GPU-…` (`MIG-…` for a part of a GPU), in either case, with its dashes.
pub fn parse_uuid(text: &str) -> Result<[u8; 16], Problem> {
    let prefix: UuidPrefix = text.parse()?;
    prefix.whole().ok_or_else(|| {
        Problem::new(
            format!("{} has {} of {DIGITS} hexadecimal digits", quoted(text, 42), prefix.len),
            "copy it from `nvidia-smi -L`",
        )
    })
}

/// Writes a UUID as NVML does: `GPU-`, lower case, dashes.
pub fn print_uuid(uuid: &[u8; 16]) -> String {
    UuidPrefix::of(uuid).to_string()
}

/// The beginning of a UUID, as `CUDA_VISIBLE_DEVICES` allows, or the whole of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UuidPrefix {
    /// Digits beyond `len` are zero.
    bytes: [u8; 16],
    /// How many hexadecimal digits count: 1 to 32.
    len: u8,
    /// Written `MIG-…`: a part of a GPU has a UUID of its own.
    mig: bool,
}

impl UuidPrefix {
    /// A whole one.
    pub fn of(uuid: &[u8; 16]) -> UuidPrefix {
        UuidPrefix { bytes: *uuid, len: DIGITS as u8, mig: false }
    }

    /// The UUID, if this is a whole one.
    pub fn whole(&self) -> Option<[u8; 16]> {
        (usize::from(self.len) == DIGITS).then_some(self.bytes)
    }

    /// How many hexadecimal digits it has: the more, the closer the match.
    pub fn digits(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether the GPU's UUID begins so.
    pub fn matches(&self, uuid: &[u8; 16]) -> bool {
        nibbles(&self.bytes).zip(nibbles(uuid)).take(self.digits()).all(|(a, b)| a == b)
    }

    /// Whether it stands for the same GPUs, `MIG-` or `GPU-`.
    pub(crate) fn same(&self, other: &UuidPrefix) -> bool {
        self.covers(other) && other.covers(self)
    }

    /// Whether every GPU that `other` matches is matched by this one too.
    pub(crate) fn covers(&self, other: &UuidPrefix) -> bool {
        self.len <= other.len && self.matches(&other.bytes)
    }
}

fn nibbles(bytes: &[u8; 16]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15])
}

impl FromStr for UuidPrefix {
    type Err = Problem;

    fn from_str(text: &str) -> Result<UuidPrefix, Problem> {
        let wrong = |why: &str| {
            Problem::new(
                format!("{} is no UUID of a GPU: {why}", quoted(text, 42)),
                "copy it from `nvidia-smi -L`, or as much of its beginning as is needed",
            )
        };
        let kind = text.get(..4).unwrap_or("");
        let mig = kind.eq_ignore_ascii_case("MIG-");
        if !mig && !kind.eq_ignore_ascii_case("GPU-") {
            return Err(wrong("it does not begin with GPU-"));
        }
        let mut bytes = [0_u8; 16];
        let mut len = 0_usize;
        // Whether the last character was the dash that belongs before the next digit.
        let mut dashed = false;
        for c in text.get(4..).unwrap_or("").chars() {
            let due = DASHED.contains(&len) && !dashed;
            let digit = c.to_digit(16);
            match digit {
                None if c == '-' && due => dashed = true,
                None => return Err(wrong("not all of it are hexadecimal digits, or a dash is out of place")),
                Some(_) if due => return Err(wrong("a dash is missing")),
                Some(digit) => {
                    let Some(byte) = bytes.get_mut(len / 2) else { return Err(wrong("it is too long")) };
                    *byte |= (digit as u8) << if len.is_multiple_of(2) { 4 } else { 0 };
                    len = len.saturating_add(1);
                    dashed = false;
                }
            }
        }
        if len == 0 {
            return Err(wrong("nothing follows"));
        }
        Ok(UuidPrefix { bytes, len: len as u8, mig })
    }
}

impl fmt::Display for UuidPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.mig { "MIG-" } else { "GPU-" })?;
        for (at, nibble) in nibbles(&self.bytes).take(self.digits()).enumerate() {
            if DASHED.contains(&at) {
                f.write_str("-")?;
            }
            write!(f, "{nibble:x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "GPU-01234567-89ab-cdef-0123-456789abcdef";
    const BYTES: [u8; 16] =
        [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];

    #[test]
    fn whole_ones_are_read_and_written_as_nvml_does() {
        assert_eq!(parse_uuid(TEXT), Ok(BYTES));
        assert_eq!(parse_uuid(&TEXT.to_uppercase()), Ok(BYTES));
        assert_eq!(parse_uuid(&TEXT.replace("GPU", "MIG")), Ok(BYTES));
        assert_eq!(print_uuid(&BYTES), TEXT);
    }

    #[test]
    fn what_is_none_is_said_to_be_none() {
        for (text, why) in [
            ("GPU-0123", "has 4 of 32"),
            ("GPU-", "nothing follows"),
            ("", "does not begin with GPU-"),
            ("01234567-89ab-cdef-0123-456789abcdef", "does not begin with GPU-"),
            ("GPU-0123456789abcdef0123456789abcdef", "a dash is missing"),
            ("GPU-01234567--89ab", "dash is out of place"),
            ("GPU-0123-4567", "dash is out of place"),
            ("GPU-g", "hexadecimal digits"),
            ("GPU-٣", "hexadecimal digits"),
            ("GPU-01234567-89ab-cdef-0123-456789abcdef0", "too long"),
            ("ÄÖÜ-01", "does not begin with GPU-"),
        ] {
            let problem = parse_uuid(text).expect_err(text).to_string();
            assert!(problem.contains(why) && problem.contains("nvidia-smi -L"), "{text}: {problem}");
        }
    }

    #[test]
    fn a_beginning_matches_what_begins_so() {
        for (text, matches) in [
            ("GPU-0", true),
            ("GPU-012", true),
            ("gpu-01234567-", true),
            ("GPU-01234567-89AB", true),
            (TEXT, true),
            ("GPU-1", false),
            ("GPU-013", false),
            ("GPU-01234567-89ac", false),
        ] {
            let prefix: UuidPrefix = text.parse().expect(text);
            assert_eq!(prefix.matches(&BYTES), matches, "{text}");
            assert_eq!(prefix.covers(&UuidPrefix::of(&BYTES)), matches, "{text}");
        }
        let (short, long): (UuidPrefix, UuidPrefix) = ("GPU-01".parse().unwrap(), "GPU-010".parse().unwrap());
        assert!(short.covers(&long) && !long.covers(&short) && short.covers(&short));
    }

    proptest! {
        #[test]
        fn uuids_survive_printing(uuid: [u8; 16]) {
            prop_assert_eq!(parse_uuid(&print_uuid(&uuid)), Ok(uuid));
        }

        #[test]
        fn any_cut_of_a_uuid_is_a_prefix_that_matches_it(uuid: [u8; 16], cut in 5_usize..=40) {
            let prefix: UuidPrefix = print_uuid(&uuid)[..cut].parse().unwrap();
            prop_assert!(prefix.matches(&uuid));
            prop_assert_eq!(prefix.to_string().parse(), Ok(prefix));
        }
    }
}
