//! Ranges of this process's address space that nobody may touch: what device pointers point into. A host program that follows
//! one crashes, as it does on a real GPU.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::CUDA_ERROR_OUT_OF_MEMORY;
use crate::api::Outcome;

/// What every reservation is aligned to, and the unit in which a GPU's memory is handed out.
pub(crate) const GRANULE: u64 = 2 << 20;

/// Where addresses for the 32-bit entry points are looked for.
const LOW: std::ops::Range<u64> = 1 << 28..1 << 32;

/// A reserved range, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    base: u64,
    len: u64,
}

/// The newest reservation's base: the next one is put below it, so that the kernel sees one long mapping.
static NEWEST: AtomicU64 = AtomicU64::new(0);

impl Reservation {
    /// Anywhere.
    pub(crate) fn new(len: u64) -> Outcome<Reservation> {
        Reservation::aligned(len, GRANULE)
    }

    /// Anywhere, aligned to a power of two.
    pub(crate) fn aligned(len: u64, align: u64) -> Outcome<Reservation> {
        let align = align.max(GRANULE);
        let below = NEWEST.load(Ordering::Relaxed).saturating_sub(len) & !(align - 1);
        let found = if below > LOW.end { exactly(below, len) } else { None };
        let found = found.or_else(|| somewhere(len, align)).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        NEWEST.store(found, Ordering::Relaxed);
        Ok(Reservation { base: found, len })
    }

    /// At `wanted` if that is free, else anywhere.
    pub(crate) fn at_or_near(wanted: u64, len: u64, align: u64) -> Outcome<Reservation> {
        let aligned = wanted != 0 && wanted.is_multiple_of(align.max(GRANULE));
        match aligned.then(|| exactly(wanted, len)).flatten() {
            Some(base) => Ok(Reservation { base, len }),
            None => Reservation::aligned(len, align),
        }
    }

    /// Below 4 GiB.
    pub(crate) fn low(len: u64) -> Outcome<Reservation> {
        let mut at = LOW.start;
        while at.saturating_add(len) <= LOW.end {
            if let Some(base) = exactly(at, len) {
                return Ok(Reservation { base, len });
            }
            at += GRANULE;
        }
        Err(CUDA_ERROR_OUT_OF_MEMORY)
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        unmap(self.base, self.len);
        // The next one can have the same place, so that a program that allocates and frees for ever stays where it is.
        let _ = NEWEST.compare_exchange(self.base, self.base + self.len, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn reserve(at: u64, len: u64, flags: i32) -> Option<u64> {
    let len = usize::try_from(len).ok()?;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping without access; without MAP_FIXED the kernel never puts it over an existing one.
    let got = unsafe { libc::mmap(at as *mut libc::c_void, len, libc::PROT_NONE, flags, -1, 0) };
    (got != libc::MAP_FAILED).then_some(got as u64)
}

/// A range at this address, if nothing is there.
fn exactly(at: u64, len: u64) -> Option<u64> {
    let got = reserve(at, len, libc::MAP_FIXED_NOREPLACE)?;
    if got != at {
        unmap(got, len); // a kernel that does not know the flag takes the address as a hint
        return None;
    }
    Some(at)
}

/// An aligned range: a larger one, trimmed.
fn somewhere(len: u64, align: u64) -> Option<u64> {
    let raw = reserve(0, len.checked_add(align)?, 0)?;
    let base = raw.next_multiple_of(align);
    unmap(raw, base - raw);
    unmap(base + len, raw + align - base);
    Some(base)
}

fn unmap(at: u64, len: u64) {
    if len != 0 {
        // SAFETY: only called with (parts of) ranges that `reserve` made and that nothing else was mapped over.
        unsafe { libc::munmap(at as *mut libc::c_void, len as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_aligned_apart_and_reusable() {
        let all: Vec<_> = (1..20).map(|i| Reservation::new(i * GRANULE).expect("room")).collect();
        for (i, a) in all.iter().enumerate() {
            assert!(a.base().is_multiple_of(GRANULE));
            for b in &all[i + 1..] {
                assert!(a.base() + a.len() <= b.base() || b.base() + b.len() <= a.base());
            }
        }
        let far = Reservation::aligned(GRANULE, 1 << 30).expect("room");
        assert!(far.base().is_multiple_of(1 << 30));
        let low = Reservation::low(GRANULE).expect("room");
        assert!(low.base() + low.len() <= 1 << 32);
        let base = low.base();
        drop(low);
        assert_eq!(Reservation::at_or_near(base, GRANULE, 0).expect("room").base(), base);
    }
}
