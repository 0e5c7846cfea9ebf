//! Reads from when until when a certificate is valid: as much of X.509 (RFC 5280) and DER as that takes.

/// From when until when, in seconds since 1970, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Not before this.
    pub not_before: i64,
    /// Not after this.
    pub not_after: i64,
}

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// `[0]`, constructed: the version, which the oldest kind of certificate leaves out.
const VERSION: u8 = 0xa0;

/// From when until when a certificate in DER is valid.
pub fn validity(certificate: &[u8]) -> Result<Validity, String> {
    read(certificate).ok_or_else(|| "the certificate is damaged: no time of validity where X.509 has it".to_owned())
}

fn read(certificate: &[u8]) -> Option<Validity> {
    let (certificate, _) = of_kind(certificate, SEQUENCE)?;
    let (mut to_be_signed, _) = of_kind(certificate, SEQUENCE)?;
    if to_be_signed.first() == Some(&VERSION) {
        to_be_signed = element(to_be_signed)?.2;
    }
    for _serial_signature_issuer in 0..3 {
        to_be_signed = element(to_be_signed)?.2;
    }
    let (times, _) = of_kind(to_be_signed, SEQUENCE)?;
    let (tag, not_before, times) = element(times)?;
    let not_before = time(tag, not_before)?;
    let (tag, not_after, _) = element(times)?;
    Some(Validity { not_before, not_after: time(tag, not_after)? })
}

/// The contents of the first element, which is of this kind, and what comes after it.
fn of_kind(bytes: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (tag, contents, rest) = element(bytes)?;
    (tag == kind).then_some((contents, rest))
}

/// The first element: its tag, its contents, and what comes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, bytes) = bytes.split_first()?;
    let (&first, mut bytes) = bytes.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let (digits, rest) = bytes.split_at_checked(usize::from(first & 0x7f))?;
        if digits.is_empty() || digits.len() > 4 {
            return None;
        }
        length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
        bytes = rest;
    }
    let (contents, rest) = bytes.split_at_checked(length)?;
    Some((tag, contents, rest))
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`, in seconds since 1970.
fn time(tag: u8, text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.strip_suffix('Z').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let (year, rest) = digits.split_at(2);
            let year: i64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        (GENERALIZED_TIME, 14) => {
            let (year, rest) = digits.split_at(4);
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let two = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day, hour, minute, second) = (two(0)?, two(2)?, two(4)?, two(6)?, two(8)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some(days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, counted in eras of 400 years that begin in March, so that a
/// leap day is the last of its year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// A time as people and logs write it: `2027-01-31T12:00:00Z`.
pub fn written(seconds: i64) -> String {
    let (days, of_day) = (seconds.div_euclid(86_400) + 719_468, seconds.rem_euclid(86_400));
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for (text, expected) in [
            ("19700101000000Z", 0),
            ("20000229235959Z", 951_868_799),
            ("20260704120000Z", 1_783_166_400),
            ("20991231235959Z", 4_102_444_799),
        ] {
            assert_eq!(time(GENERALIZED_TIME, text.as_bytes()), Some(expected), "{text}");
        }
        assert_eq!(time(UTC_TIME, b"260704120000Z"), Some(1_783_166_400));
        assert_eq!(time(UTC_TIME, b"500101000000Z"), Some(-631_152_000));
        for damaged in ["20260704120000", "2026070412000Z", "20261304120000Z", "2026070412x000Z", "+0260704120000Z", ""]
        {
            assert_eq!(time(GENERALIZED_TIME, damaged.as_bytes()), None, "{damaged}");
        }
        assert_eq!(written(1_783_166_400), "2026-07-04T12:00:00Z");
        assert_eq!(written(951_868_799), "2000-02-29T23:59:59Z");
    }

    /// OpenSSL is the witness, where it is installed.
    #[test]
    fn openssl_reads_the_same() {
        let Ok(made) = std::process::Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-keyout",
                "/dev/null",
            ])
            .args(["-subj", "/CN=witness", "-days", "9000", "-outform", "DER"])
            .output()
        else {
            return;
        };
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let found = validity(&made.stdout).expect("OpenSSL makes whole certificates");
        assert_eq!(found.not_after - found.not_before, 9000 * 86_400);
        let now = crate::certs::unix_now();
        assert!((now - found.not_before).abs() < 60, "{found:?} at {now}");
        for cut in 0..made.stdout.len() {
            let _ = validity(&made.stdout[..cut]);
        }
    }

    proptest! {
        #[test]
        fn written_and_read_are_the_same(seconds in 0_i64..253_402_300_799) {
            let digits: String = written(seconds).chars().filter(char::is_ascii_digit).collect();
            prop_assert_eq!(time(GENERALIZED_TIME, format!("{digits}Z").as_bytes()), Some(seconds));
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = validity(&bytes);
        }
    }
}
