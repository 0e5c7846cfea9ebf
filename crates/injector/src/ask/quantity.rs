//! Kubernetes quantities, as its API server writes and reads them: `8Gi`, `3k`, `1500m`, `.5Gi`, `8e9`, `+1`.
//!
//! The API server rewrites what users wrote: 3000 of an extended resource arrives as `3k`. Sums are exact; nothing goes
//! through floating point.

/// A quantity, in billionths, which is as fine as Kubernetes counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nano: u128,
}

const NANO: u128 = 1_000_000_000;

/// Suffixes: their factor over their divisor.
const SUFFIXES: [(&str, u128, u128); 16] = [
    ("n", 1, NANO),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("", 1, 1),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", NANO, 1),
    ("T", NANO * 1_000, 1),
    ("P", NANO * 1_000_000, 1),
    ("E", NANO * NANO, 1),
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
];

impl Quantity {
    /// Reads one. `None`: it is none, it is negative, or it is more than can be counted. What is finer than a billionth is
    /// rounded up, as Kubernetes does.
    pub fn parse(text: &str) -> Option<Quantity> {
        let text = text.strip_prefix('+').unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at_checked(end)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && part.is_empty() || part.contains('.') {
            return None;
        }
        // Kubernetes counts in billionths: what is finer makes them one more.
        let (part, finer) = part.split_at_checked(part.len().min(9))?;
        let (factor, divisor) = scale(suffix)?;
        let places = 10_u128.checked_pow(u32::try_from(part.len()).ok()?)?;
        let digits: u128 = format!("{whole}{part}").parse().ok()?;
        let digits = digits.checked_add(u128::from(finer.bytes().any(|digit| digit != b'0')))?;
        let nano = digits.checked_mul(factor)?.checked_mul(NANO)?.div_ceil(divisor.checked_mul(places)?);
        Some(Quantity { nano })
    }

    /// As a whole number, if it is one.
    pub fn whole(self) -> Option<u64> {
        self.nano.is_multiple_of(NANO).then_some(self.nano / NANO).and_then(|whole| u64::try_from(whole).ok())
    }

    /// As a whole number, rounded up, as Kubernetes does with bytes.
    pub fn rounded_up(self) -> Option<u64> {
        u64::try_from(self.nano.div_ceil(NANO)).ok()
    }

    /// Whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }
}

/// What a suffix multiplies by and divides by.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    if let Some((_, factor, divisor)) = SUFFIXES.iter().find(|(name, _, _)| *name == suffix) {
        return Some((*factor, *divisor));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let (down, digits) = match exponent.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, exponent.strip_prefix('+').unwrap_or(exponent)),
    };
    if digits.is_empty() || digits.len() > 2 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let power = 10_u128.checked_pow(digits.parse().ok()?)?;
    Some(if down { (1, power) } else { (power, 1) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, nano) in [
            ("0", 0),
            ("1", NANO),
            ("+1", NANO),
            ("3k", 3000 * NANO),
            ("8Gi", (8 << 30) * NANO),
            (".5Gi", (1 << 29) * NANO),
            ("5.Gi", (5 << 30) * NANO),
            ("1536Mi", (3 << 29) * NANO),
            ("1500m", 3 * NANO / 2),
            ("128974848000m", 128_974_848 * NANO),
            ("100u", 100_000),
            ("7n", 7),
            ("8e9", 8 * NANO * NANO),
            ("8E+9", 8 * NANO * NANO),
            ("8000e-3", 8 * NANO),
            ("1E", NANO * NANO * NANO),
            ("0.0000000001", 1),
            ("1.0000000000", NANO),
        ] {
            assert_eq!(Quantity::parse(text), Some(Quantity { nano }), "{text}");
        }
        assert_eq!(Quantity::parse("1500m").map(|one| (one.whole(), one.rounded_up())), Some((None, Some(2))));
    }

    #[test]
    fn what_is_no_quantity_is_none() {
        for text in
            ["", ".", "+", "-1", "1.2.3", "8GiB", "8g", "8 Gi", "Gi", "e9", "1e", "1e-", "1e999", "1ee3", "0x8", "8%"]
        {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in any::<String>(), near in "[+-]?[0-9.]{0,40}[numkMGTPEi]{0,2}([eE][+-]?[0-9]{0,3})?") {
            for text in [text, near] {
                let _ = Quantity::parse(&text).map(|one| (one.whole(), one.rounded_up()));
            }
        }

        #[test]
        fn whole_numbers_and_their_thousandths_agree(number in 0..u64::MAX / 1000) {
            let whole = Quantity::parse(&number.to_string()).and_then(Quantity::whole);
            let thousandths = Quantity::parse(&format!("{}m", u128::from(number) * 1000)).and_then(Quantity::whole);
            prop_assert_eq!((whole, thousandths), (Some(number), Some(number)));
        }
    }
}
