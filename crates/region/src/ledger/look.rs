//! A sum that can be relied on.
//!
//! A plain sum reads one slot after the other. What one member gives back after it was read, and another takes before it is
//! read, is in it twice. Such a sum is safe to reserve by, but to refuse by it would be wrong, and so would be telling
//! somebody of it.
//!
//! It takes somebody who takes something to make it too large. So each slot counts how often something was taken, in the
//! word of what is announced, and a look compares the counts before the sum with those after it. A holding grows between
//! its announcement and the end of that, when it is counted; so if nothing is announced when the counts are read again,
//! and they are the same, then nothing was taken meanwhile, and what was read was held all at once, when the look began.

use super::{Account, Sum, each};
use crate::layout::{PENDING_BITS, Table};
use crate::sync::{SeqCst, pause};
use crate::table::Place;

/// What was seen of a container's ledger.
pub struct Look {
    /// The bytes that are held.
    pub held: u64,
    /// With what the dead had announced: the bytes that nobody gets before something is given back.
    pub taken: u64,
    /// Whether so much was held at one moment of the look. Otherwise it may have been less.
    pub is_certain: bool,
}

impl Account<'_> {
    /// Looks closely. `announced` is what this thread has announced itself.
    pub fn look(&self, announced: u64) -> Look {
        let Place { container, process, membership, .. } = *self.place;
        look(self.table, container, membership, Some(process), announced)
    }
}

fn look(table: &Table, container: usize, membership: u64, own: Option<usize>, announced: u64) -> Look {
    let (mut before, mut after) = (Counts::default(), Counts::default());
    let (mut sum, mut again) = (Sum::default(), Sum::default());
    each(table, container, membership, own, |index, process| before.add(index, process.pending.load(SeqCst)));
    each(table, container, membership, own, |_, process| sum.add(process.pending.load(SeqCst), process));
    each(table, container, membership, own, |index, process| {
        let pending = process.pending.load(SeqCst);
        after.add(index, pending);
        again.add(pending, process);
    });
    Look {
        held: sum.held,
        taken: sum.held.saturating_add(sum.stuck),
        is_certain: before == after && again.pending == announced,
    }
}

/// The bytes that are held in a container: never more than were held at some moment, as far as that can be had without waiting
/// for long. `own` is the process that looks, if it is in it.
pub fn used(table: &Table, container: usize, membership: u64, own: Option<usize>) -> u64 {
    const LOOKS: u32 = 20;
    let mut least = u64::MAX;
    for number in 0..LOOKS {
        let look = look(table, container, membership, own, 0);
        least = least.min(look.held);
        if look.is_certain {
            return look.held;
        }
        pause(number);
    }
    least
}

/// Counts of all members in one word, which is another one if any of them is, but for an accident that will not happen.
#[derive(Default, PartialEq, Eq)]
struct Counts(u64);

impl Counts {
    /// Of a process, by its index, with what its word of announcements says.
    fn add(&mut self, index: usize, pending: u64) {
        // Any odd numbers that have nothing to do with each other: what one adds, no other takes away.
        let weight = (2 * index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = self.0.wrapping_add((pending >> PENDING_BITS).wrapping_mul(weight));
    }
}
