//! What kernels, graphs and copies are expected to take of the GPU's time, by what they are and how large.

use std::sync::atomic::{AtomicU64, Ordering};

use ration_policy::Cost;

/// Which piece of work: a number that is the same for launches that should take about the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work(u64);

impl Work {
    /// A kernel over so many blocks of so many threads.
    pub fn kernel(function: usize, grid: [u32; 3], block: [u32; 3]) -> Work {
        let size = |dimensions: [u32; 3]| dimensions.iter().fold(1u64, |all, one| all.wrapping_mul(u64::from(*one)));
        Work::mixed(function as u64, size(grid).wrapping_mul(0x9e37_79b9).wrapping_add(size(block)))
    }

    /// The number; never 0.
    pub fn number(self) -> u64 {
        self.0
    }

    /// A graph.
    pub fn graph(exec: usize) -> Work {
        Work::mixed(exec as u64, 1)
    }

    /// A copy or a fill of about so many bytes; which ways it goes makes the difference that is learned.
    pub fn copy(kind: u64, bytes: u64) -> Work {
        // Sizes that differ by less than a quarter are one.
        let octave = u64::from(bytes.max(1).ilog2());
        let quarter = if octave >= 2 { bytes >> (octave - 2) & 3 } else { 0 };
        Work::mixed(kind, octave << 2 | quarter)
    }

    fn mixed(a: u64, b: u64) -> Work {
        let mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Work((mixed ^ mixed >> 29).max(1))
    }
}

const SIZE: usize = 1 << 12;
/// How far from its place an entry may lie.
const REACH: usize = 8;

struct Entry {
    work: AtomicU64,
    cost: AtomicU64,
}

static TABLE: [Entry; SIZE] = [const { Entry { work: AtomicU64::new(0), cost: AtomicU64::new(0) } }; SIZE];

/// Where a piece of work may stand.
fn places(work: Work) -> impl Iterator<Item = &'static Entry> {
    let start = work.0 as usize;
    (start..start + REACH).map(|place| &TABLE[place % SIZE])
}

/// Where it stands from now on.
fn entry(work: Work) -> &'static Entry {
    for entry in places(work) {
        match entry.work.load(Ordering::Relaxed) {
            there if there == work.0 => return entry,
            0 => match entry.work.compare_exchange(0, work.0, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return entry,
                Err(there) if there == work.0 => return entry,
                Err(_) => {}
            },
            _ => {}
        }
    }
    // Full around here: whoever was here first gives way.
    let oldest = &TABLE[work.0 as usize % SIZE];
    oldest.work.store(work.0, Ordering::Relaxed);
    oldest.cost.store(0, Ordering::Relaxed);
    oldest
}

/// What it is expected to take.
pub fn of(work: Work) -> Cost {
    let there = places(work).find(|entry| entry.work.load(Ordering::Relaxed) == work.0);
    there.map_or(Cost::UNKNOWN, |entry| Cost(entry.cost.load(Ordering::Relaxed)))
}

/// From now on.
pub fn set(work: Work, cost: Cost) {
    entry(work).cost.store(cost.0, Ordering::Relaxed);
}
