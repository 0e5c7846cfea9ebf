//! Amounts of memory and shares of time, in exact arithmetic.

use std::fmt;
use std::str::FromStr;

use crate::MEMORY_MIN;
use crate::error::{Problem, quoted};

/// A part of a whole, from 0% to 100%, in steps of 0.0001%.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent {
    /// Millionths of the whole.
    ppm: u32,
}

/// A share of a GPU's time.
pub type Share = Percent;

impl Percent {
    /// 0%.
    pub const NONE: Percent = Percent { ppm: 0 };
    /// 100%.
    pub const WHOLE: Percent = Percent { ppm: 1_000_000 };

    /// From millionths of the whole; `None` above the whole.
    pub fn from_ppm(ppm: u32) -> Option<Percent> {
        (ppm <= Percent::WHOLE.ppm).then_some(Percent { ppm })
    }

    /// Millionths of the whole.
    pub fn ppm(self) -> u32 {
        self.ppm
    }

    /// This part of `total`, rounded down.
    pub fn of(self, total: u64) -> u64 {
        let part = u128::from(total).saturating_mul(u128::from(self.ppm)) / 1_000_000;
        u64::try_from(part).unwrap_or(total)
    }

    /// `text` is what stands before the `%`; 0 is refused.
    fn parse(text: &str) -> Result<Percent, Problem> {
        let ten_thousandths = decimal(text.trim_end(), 10_000, 4).map_err(|why| {
            Problem::new(
                format!("{} is no percentage{why}", quoted(&format!("{text}%"), 30)),
                "write a number from 0.0001% to 100%, such as 25% or 12.5%",
            )
        })?;
        let percent = u32::try_from(ten_thousandths).ok().and_then(Percent::from_ppm).ok_or_else(|| {
            Problem::new(
                format!("{} is more than the whole GPU", quoted(&format!("{text}%"), 30)),
                "write at most 100%",
            )
        })?;
        if percent == Percent::NONE {
            return Err(Problem::new(
                "nothing of a GPU is no slice",
                "write more than 0%, or leave it out for no limit",
            ));
        }
        Ok(percent)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.ppm / 10_000, self.ppm % 10_000);
        if part == 0 {
            return write!(f, "{whole}%");
        }
        let digits = format!("{part:04}");
        write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
    }
}

/// Reads the limit of a share: `30%`, more than nothing.
pub fn limit(text: &str) -> Result<Share, Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Err(empty());
    }
    let Some(number) = text.strip_suffix('%') else {
        return Err(Problem::new(
            format!("{} has no % sign", quoted(text, 30)),
            "write a share as per cent of the GPU's time, such as 30%",
        ));
    };
    Percent::parse(number)
}

/// Reads the request for a share: `30%`, or `0%` for no guarantee.
pub fn request(text: &str) -> Result<Share, Problem> {
    match text.trim().strip_suffix('%').map(|number| decimal(number.trim_end(), 10_000, 4)) {
        Some(Ok(0)) => Ok(Percent::NONE),
        _ => limit(text),
    }
}

/// An amount of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// So much on any GPU.
    Bytes(u64),
    /// A part of what the GPU has.
    Percent(Percent),
}

impl Amount {
    /// On a GPU with `total` bytes; never more than it has.
    pub fn bytes(&self, total: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => total.min(*bytes),
            Amount::Percent(percent) => percent.of(total),
        }
    }

    /// A number of bytes that somebody wrote, if it can be meant.
    pub(crate) fn meant(bytes: u64) -> Result<Amount, Problem> {
        match bytes {
            0 => Err(Problem::new("no memory at all is no slice", "write how much, or leave it out for no cap")),
            1..MEMORY_MIN => Err(Problem::new(
                format!("{bytes} bytes are less than 1MiB, which no program can use"),
                "write the unit too, such as 8GiB or 512MiB",
            )),
            _ => Ok(Amount::Bytes(bytes)),
        }
    }
}

/// Units of memory: what may be written, bytes. Those with an `i` may be written in either case, the others only so,
/// because `m` is a thousandth to Kubernetes and 2^20 to others.
pub const UNITS: [(&[&str], u64); 13] = [
    (&["B", ""], 1),
    (&["k", "K", "kB", "KB"], 1_000),
    (&["M", "MB"], 1_000_000),
    (&["G", "GB"], 1_000_000_000),
    (&["T", "TB"], 1_000_000_000_000),
    (&["P", "PB"], 1_000_000_000_000_000),
    (&["E", "EB"], 1_000_000_000_000_000_000),
    (&["Ki", "KiB"], 1 << 10),
    (&["Mi", "MiB"], 1 << 20),
    (&["Gi", "GiB"], 1 << 30),
    (&["Ti", "TiB"], 1 << 40),
    (&["Pi", "PiB"], 1 << 50),
    (&["Ei", "EiB"], 1 << 60),
];

/// Bytes in a unit, or in the power of ten of a Kubernetes quantity such as `8e9`.
fn unit(text: &str) -> Option<u64> {
    let binary = text.contains(['i', 'I']);
    let same = |name: &&str| *name == text || binary && name.eq_ignore_ascii_case(text);
    let named = UNITS.iter().find(|(names, _)| names.iter().any(same));
    named.map(|(_, bytes)| *bytes).or_else(|| {
        let exponent = text.strip_prefix(['e', 'E']).filter(|digits| only_digits(digits))?;
        10_u64.checked_pow(exponent.parse().ok()?)
    })
}

impl FromStr for Amount {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Amount, Problem> {
        let text = text.trim();
        if text.is_empty() {
            return Err(empty());
        }
        if let Some(number) = text.strip_suffix('%') {
            return Percent::parse(number).map(Amount::Percent);
        }
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, name) = text.split_at_checked(end).unwrap_or((text, ""));
        let name = name.trim_start();
        if number.is_empty() {
            return Err(Problem::new(
                format!("{} does not begin with a number", quoted(text, 30)),
                "write a number and a unit, such as 8GiB, or a percentage, such as 25%",
            ));
        }
        let Some(unit) = unit(name) else { return Err(no_unit(number, name)) };
        let bytes = decimal(number, unit, 9).map_err(|why| {
            Problem::new(format!("{} is no amount{why}", quoted(text, 30)), "write a number and a unit, such as 8GiB")
        })?;
        let bytes = u64::try_from(bytes).map_err(|_| {
            Problem::new(
                format!("{} is more than can be counted", quoted(text, 30)),
                "write an amount that a GPU can have",
            )
        })?;
        Amount::meant(bytes)
    }
}

/// Says what was probably meant by a unit in the wrong case.
fn no_unit(number: &str, name: &str) -> Problem {
    let number = if number.len() > 12 { "8" } else { number };
    let what = format!("{} is no unit", quoted(name, 20));
    let upper = name.to_ascii_uppercase();
    match UNITS.iter().find_map(|(names, _)| names.iter().find(|known| **known == upper)) {
        Some(known) => {
            let letter = known.trim_end_matches('B');
            let advice = format!("write {number}{letter}iB (powers of 1024) or {number}{letter} (powers of 1000)");
            Problem::new(format!("{what}: capital and small letters differ"), advice)
        }
        None => Problem::new(what, format!("write {number}GiB, or {number}MiB, or {number}% of the GPU's memory")),
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Percent(percent) => percent.fmt(f),
            Amount::Bytes(bytes) => {
                for (name, shift) in [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
                    if *bytes != 0 && bytes.trailing_zeros() >= shift {
                        return write!(f, "{}{name}", bytes >> shift);
                    }
                }
                write!(f, "{bytes}")
            }
        }
    }
}

/// A setting was set to nothing, which is not the same as not set.
pub(crate) fn empty() -> Problem {
    Problem::new("it is empty", "write a value, or unset it to have the default")
}

pub(crate) fn only_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A decimal number times `unit`, rounded down, without going through floating point; else why it is none, to be
/// appended to a sentence. More than fits is the largest number.
pub(crate) fn decimal(text: &str, unit: u64, decimals: usize) -> Result<u128, String> {
    let (whole, part) = text.split_once('.').map_or((text, None), |(whole, part)| (whole, Some(part)));
    if !only_digits(whole) || part.is_some_and(|part| !only_digits(part)) {
        return Err(String::new());
    }
    let part = part.unwrap_or("");
    if part.len() > decimals {
        return Err(format!(": it has more than {decimals} decimals"));
    }
    // Only too many digits make a row of digits no number.
    let whole: u128 = whole.parse().unwrap_or(u128::MAX);
    let scale = u32::try_from(part.len()).ok().and_then(|len| 10_u64.checked_pow(len)).unwrap_or(u64::MAX);
    let part: u128 = if part.is_empty() { 0 } else { part.parse().unwrap_or(0) };
    let fraction = part.saturating_mul(u128::from(unit)).checked_div(u128::from(scale)).unwrap_or(0);
    Ok(whole.saturating_mul(u128::from(unit)).saturating_add(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn amount(text: &str) -> Result<Amount, String> {
        text.parse().map_err(|problem: Problem| problem.to_string())
    }

    #[test]
    fn amounts_are_read_as_kubernetes_and_iec_write_them() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("8Gi", 8 << 30),
            ("8gib", 8 << 30),
            (" 8 GiB ", 8 << 30),
            ("4096MiB", 4 << 30),
            ("1.5GiB", 3 << 29),
            ("1048576Ki", 1 << 30),
            ("8G", 8_000_000_000),
            ("8GB", 8_000_000_000),
            ("500M", 500_000_000),
            ("2000k", 2_000_000),
            ("2000K", 2_000_000),
            ("8e9", 8_000_000_000),
            ("8E9", 8_000_000_000),
            ("8589934592", 8 << 30),
            ("8589934592B", 8 << 30),
            ("1.000000001GiB", (1 << 30) + 1),
            ("1E", 1_000_000_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(amount(text), Ok(Amount::Bytes(bytes)), "{text}");
        }
        assert_eq!(amount("25%"), Ok(Amount::Percent(Percent { ppm: 250_000 })));
        assert_eq!(amount("33.3333 %"), Ok(Amount::Percent(Percent { ppm: 333_333 })));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in [
            "",
            " ",
            "0",
            "0GiB",
            "0.0G",
            "0%",
            "-8GiB",
            "+8GiB",
            "8",
            "1048575",
            ".5GiB",
            "8.",
            "8.GiB",
            "1.2.3G",
            "8,5G",
            "101%",
            "100.0001%",
            "1.00001%",
            "%",
            "-1%",
            "8g",
            "8m",
            "8gb",
            "8Gb",
            "8iB",
            "8GiBs",
            "8 parsecs",
            "GiB",
            "∞",
            "8e",
            "8e+9",
            "8e99",
            "8e9G",
            "16EiB",
            "18446744073709551616",
            "١GiB",
            "1_000G",
            "0x1000000",
            "1.0000000001GiB",
            "99999999999999999999999999999999999999999999999999",
            "unlimited",
            "none",
        ] {
            assert!(amount(text).is_err(), "{text:?} is {:?}", amount(text));
        }
    }

    #[test]
    fn a_unit_in_the_wrong_case_is_shown_in_the_right_one() {
        assert_eq!(
            amount("8g"),
            Err("\"g\" is no unit: capital and small letters differ; write 8GiB (powers of 1024) or 8G (powers of 1000)".into())
        );
    }

    #[test]
    fn shares_are_percentages() {
        assert_eq!(limit("30%").map(Percent::ppm), Ok(300_000));
        assert_eq!(limit(" 12.5 % ").map(Percent::ppm), Ok(125_000));
        assert_eq!(request("0%"), Ok(Percent::NONE));
        assert_eq!(request("0.00 %"), Ok(Percent::NONE));
        assert_eq!(request("100%"), Ok(Percent::WHOLE));
        for text in ["0%", "30", "0.3", "", "%", "-30%", "101%", "30%%", "8GiB"] {
            assert!(limit(text).is_err(), "{text:?}");
        }
        for text in ["0", "", "%", "-0%", "0.00001%", "0.5", "101%"] {
            assert!(request(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_amount_never_exceeds_the_gpu() {
        assert_eq!(Amount::Bytes(8 << 30).bytes(4 << 30), 4 << 30);
        assert_eq!(Amount::Percent(Percent::WHOLE).bytes(u64::MAX), u64::MAX);
        assert_eq!(Amount::Percent(Percent { ppm: 250_000 }).bytes(150_109_880_320), 37_527_470_080);
    }

    proptest! {
        #[test]
        fn amounts_survive_printing(bytes in MEMORY_MIN.., shift in 0..64_u32) {
            let bytes = (bytes << shift).max(MEMORY_MIN);
            prop_assert_eq!(amount(&Amount::Bytes(bytes).to_string()), Ok(Amount::Bytes(bytes)));
        }

        #[test]
        fn percentages_survive_printing(ppm in 0..=1_000_000_u32) {
            let percent = Percent::from_ppm(ppm).unwrap();
            prop_assert_eq!(request(&percent.to_string()), Ok(percent));
            if ppm > 0 {
                prop_assert_eq!(limit(&percent.to_string()), Ok(percent));
                prop_assert_eq!(amount(&percent.to_string()), Ok(Amount::Percent(percent)));
            }
        }

        #[test]
        fn a_part_is_no_more_than_the_whole_and_grows_with_it(ppm in 0..=1_000_000_u32, total: u64) {
            let percent = Percent::from_ppm(ppm).unwrap();
            prop_assert!(percent.of(total) <= total);
            prop_assert!(percent.of(total / 2) <= percent.of(total));
        }

        #[test]
        fn no_text_is_too_strange(text in "\\PC*", near in "[0-9]{0,40}[.%]?[0-9]{0,12} ?[a-zA-Z%]{0,4}") {
            for text in [text, near] {
                let _ = (amount(&text), limit(&text), request(&text));
            }
        }

        #[test]
        fn bytes_of_a_decimal_are_rounded_down(whole in 0..1000_u64, tenths in 0..10_u64) {
            prop_assume!(whole > 0);
            let expected = ((whole * 10 + tenths) << 30) / 10;
            prop_assert_eq!(amount(&format!("{whole}.{tenths}GiB")), Ok(Amount::Bytes(expected)));
        }
    }
}
