//! Whether a file is a shared library that this machine can load, as far as its headers tell.

/// The machine that this program was built for, as ELF files name it.
#[cfg(target_arch = "x86_64")]
const MACHINE: (u16, &str) = (62, "x86-64");
#[cfg(target_arch = "aarch64")]
const MACHINE: (u16, &str) = (183, "AArch64");

const SHARED_OBJECT: u16 = 3;
const LOADED: u32 = 1;
const HEADER: usize = 64;
const SEGMENT: usize = 56;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Says why the loader would not take it, if it would not: then every program of every pod would start with a complaint,
/// and without a limit.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    let short = || format!("it is cut short: {} bytes are not all of it", bytes.len());
    if !bytes.starts_with(b"\x7fELF") {
        return Err("it does not begin as an ELF file".to_owned());
    }
    if bytes.len() < HEADER {
        return Err(short());
    }
    if bytes[4] != 2 || bytes[5] != 1 {
        return Err("it is not for a 64-bit little-endian machine".to_owned());
    }
    let half = |at| number(bytes, at).map(u16::from_le_bytes).ok_or_else(short);
    let long = |at| number(bytes, at).map(u64::from_le_bytes).ok_or_else(short);
    let (kind, machine) = (half(16)?, half(18)?);
    if machine != MACHINE.0 {
        return Err(format!(
            "it is for another machine (ELF machine {machine}); this one is {} ({})",
            MACHINE.1, MACHINE.0
        ));
    }
    if kind != SHARED_OBJECT {
        return Err(format!("it is not a shared library (ELF type {kind})"));
    }
    let (segments_at, size, count) = (long(32)?, half(54)?, half(56)?);
    if usize::from(size) != SEGMENT || count == 0 {
        return Err("it has no segments to load".to_owned());
    }
    let mut loaded = 0;
    for index in 0..u64::from(count) {
        let at = segments_at
            .checked_add(index * SEGMENT as u64)
            .and_then(|at| usize::try_from(at).ok())
            .ok_or_else(short)?;
        let kind = number(bytes, at).map(u32::from_le_bytes).ok_or_else(short)?;
        // Far out of the file, the sum is no number.
        let (offset, length) = (long(at.saturating_add(8))?, long(at.saturating_add(32))?);
        if kind == LOADED {
            loaded += 1;
            if offset.checked_add(length).is_none_or(|end| end > bytes.len() as u64) {
                return Err(short());
            }
        }
    }
    if loaded == 0 { Err("it has no segments to load".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::check;

    fn some_library() -> Vec<u8> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps.lines().find_map(|line| line.split_whitespace().nth(5).filter(|it| it.contains("libc.so")));
        std::fs::read(path.expect("this test has a C library")).unwrap()
    }

    #[test]
    fn a_library_of_this_machine_is_taken_and_whatever_is_cut_off_is_not() {
        let library = some_library();
        assert_eq!(check(&library), Ok(()));
        for keep in [0, 3, 4, 63, 64, 100, library.len() / 2] {
            assert!(check(&library[..keep]).is_err(), "{keep} bytes of it are enough");
        }
    }

    #[test]
    fn others_are_refused_for_a_reason() {
        let with = |at: usize, value: u8| {
            let mut library = some_library();
            library[at] = value;
            check(&library).unwrap_err()
        };
        assert!(with(1, b'e').contains("ELF"));
        assert!(with(4, 1).contains("64-bit"));
        assert!(with(5, 2).contains("little-endian"));
        assert!(with(16, 2).contains("shared library"));
        assert!(with(18, 8).contains("another machine"));
        assert!(with(54, 1).contains("segments"));
        assert!(with(39, 0xff).contains("cut short"), "segments that lie nowhere");
    }
}
