//! HAMi's variables, so that its users can swap the library: `CUDA_DEVICE_MEMORY_LIMIT` and `CUDA_DEVICE_SM_LIMIT`, for
//! all GPUs, or with `_0`, `_1`, … for one, which counts before the one for all.
//!
//! They mean what they mean there, with two exceptions: what HAMi would take for no limit because it does not understand
//! it is refused, and a number that begins with a 0 is too (HAMi would read it as octal or hexadecimal).

use crate::error::{Error, Given, Problem, quoted};
use crate::gpu::{Key, PerGpu};
use crate::quantity::{Amount, Percent, Share, only_digits};
use crate::table::{ALIAS_GPUS, Alias, HAMI_COMPUTE, HAMI_MEMORY};

/// What an alias's variables say together.
pub(crate) struct Aliased<T> {
    /// The first of the variables.
    pub given: Given,
    /// What they say.
    pub value: Result<PerGpu<T>, Vec<Error>>,
}

/// The memory cap.
pub(crate) fn memory(get: &dyn Fn(&str) -> Option<String>) -> Option<Aliased<Amount>> {
    read(get, &HAMI_MEMORY, |text| amount(text).map(Some))
}

/// The compute limit.
pub(crate) fn compute(get: &dyn Fn(&str) -> Option<String>) -> Option<Aliased<Share>> {
    read(get, &HAMI_COMPUTE, share)
}

/// `value` answers `None` for what is as if it had not been said. So is an empty variable, to HAMi.
fn read<T>(
    get: &dyn Fn(&str) -> Option<String>,
    alias: &Alias,
    value: impl Fn(&str) -> Result<Option<T>, Problem>,
) -> Option<Aliased<T>> {
    let mut list = PerGpu::default();
    let mut first = None;
    let mut errors = Vec::new();
    let names = (0..ALIAS_GPUS).map(|index| (format!("{}_{index}", alias.name), Some(Key::Index(index))));
    for (name, key) in std::iter::once((alias.name.to_owned(), None)).chain(names) {
        let Some(text) = get(&name).filter(|text| !text.trim().is_empty()) else { continue };
        let given = Given::variable(name, text.clone());
        match (value(text.trim()), key) {
            (Ok(None), _) => continue,
            (Ok(Some(value)), None) => list.all = Some(value),
            (Ok(Some(value)), Some(key)) => list.each.push((key, value)),
            (Err(problem), _) => errors.push(Error::new(given.clone(), problem, alias.form)),
        }
        first.get_or_insert(given);
    }
    first.map(|given| Aliased { given, value: if errors.is_empty() { Ok(list) } else { Err(errors) } })
}

const MEMORY_ADVICE: &str = "write it as 4096m or 8g, or set RATION_MEMORY, which takes GiB, % and more";

fn amount(text: &str) -> Result<Amount, Problem> {
    let (digits, unit) = match text.strip_suffix(|c: char| c.is_ascii_alphabetic()) {
        None => (text, 1),
        Some(digits) => match text.chars().next_back().map(|c| c.to_ascii_lowercase()) {
            Some('k') => (digits, 1 << 10),
            Some('m') => (digits, 1 << 20),
            Some('g') => (digits, 1 << 30),
            _ => (text, 1),
        },
    };
    let number = number(digits, MEMORY_ADVICE)?;
    let bytes = number.checked_mul(unit).ok_or_else(|| {
        Problem::new(format!("{} is more than can be counted", quoted(text, 30)), "write an amount that a GPU can have")
    })?;
    Amount::meant(bytes)
}

fn share(text: &str) -> Result<Option<Share>, Problem> {
    const ADVICE: &str = "write a number from 0 to 100, or set RATION_COMPUTE, which takes 12.5% and more";
    let number = number(text.strip_suffix('%').unwrap_or(text), ADVICE)?;
    let ppm = u32::try_from(number).ok().and_then(|percent| percent.checked_mul(10_000));
    match ppm.and_then(Percent::from_ppm) {
        Some(Percent::NONE) => Ok(None),
        Some(percent) => Ok(Some(percent)),
        None => Err(Problem::new(format!("{} is more than the whole GPU", quoted(text, 30)), ADVICE)),
    }
}

fn number(digits: &str, advice: &str) -> Result<u64, Problem> {
    if !only_digits(digits) {
        return Err(Problem::new(format!("{} is no whole number", quoted(digits, 30)), advice));
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return Err(Problem::new("HAMi reads a number that begins with 0 as octal", "write it without the 0"));
    }
    digits.parse().map_err(|_| Problem::new(format!("{} is more than can be counted", quoted(digits, 30)), advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn suffixes_are_powers_of_1024_in_either_case() {
        for (text, bytes) in [
            ("8g", 8 << 30),
            ("8G", 8 << 30),
            ("4096m", 4 << 30),
            ("4096M", 4 << 30),
            ("1048576k", 1 << 30),
            ("1048576K", 1 << 30),
            ("1073741824", 1 << 30),
        ] {
            assert_eq!(amount(text), Ok(Amount::Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_hami_would_take_for_no_limit_or_another_one_is_refused() {
        for text in [
            "0",
            "0g",
            "8GiB",
            "8 g",
            "g",
            "-8g",
            "1.5g",
            "0x8g",
            "010g",
            "8t",
            "4096",
            "17179869184g",
            "25%",
            "8€",
            "€",
        ] {
            assert!(amount(text).is_err(), "{text}");
        }
        for text in ["101", "-1", "abc", "12.5", "050", "50m", "99999999999999999999"] {
            assert!(share(text).is_err(), "{text}");
        }
        assert_eq!(share("0"), Ok(None));
        assert_eq!(share("50"), Ok(Percent::from_ppm(500_000)));
        assert_eq!(share("50%"), Ok(Percent::from_ppm(500_000)));
        assert_eq!(share("100"), Ok(Some(Percent::WHOLE)));
    }

    #[test]
    fn one_gpu_counts_before_all() {
        let get = |name: &str| match name {
            "CUDA_DEVICE_MEMORY_LIMIT" => Some("8g".to_owned()),
            "CUDA_DEVICE_MEMORY_LIMIT_1" => Some("4096m".to_owned()),
            "CUDA_DEVICE_MEMORY_LIMIT_2" => Some(String::new()),
            "CUDA_DEVICE_SM_LIMIT" => Some("0".to_owned()),
            _ => None,
        };
        let found = memory(&get).expect("given").value.expect("good");
        assert_eq!(found.to_string(), "8GiB,1=4GiB");
        assert!(compute(&get).is_none(), "0 is as if it had not been said");
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in any::<String>(), near in "[0-9]{0,30}[kKmMgG%€]?") {
            for text in [text, near] {
                let _ = (amount(&text), share(&text));
            }
        }
    }
}
