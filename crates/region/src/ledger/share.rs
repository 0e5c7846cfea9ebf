//! Memory that several processes have: whose it is, and that it is somebody's all the while.

use super::{Account, Announced, TAKEN, add, change, subtract};
use crate::layout::Process;
use crate::sync::SeqCst;

impl Account<'_> {
    /// Does something by which a sum of others may get too large for a moment. They are told by an announcement, of any number:
    /// who adds up meanwhile is not certain of it ([`super::look`]).
    fn told<T>(&self, work: impl FnOnce() -> T) -> T {
        let announced = self.announce(1).unwrap_or(Announced { bytes: 0 });
        let value = work();
        self.settle(&announced, TAKEN);
        value
    }

    /// Of what is held, so many bytes more are not in the driver's figure.
    pub fn holds_beside(&self, bytes: u64) {
        add(&self.own().beside, bytes);
    }

    /// So many less.
    pub fn held_beside(&self, bytes: u64) {
        subtract(&self.own().beside, bytes);
    }

    /// Bytes that are held become lent; `lent` is what is lent then.
    pub fn lend(&self, bytes: u64, lent: u64) {
        self.told(|| {
            self.own().lent.store(lent, SeqCst);
            self.refund(bytes);
        });
    }

    /// So much is lent.
    pub fn set_lent(&self, lent: u64) {
        self.told(|| self.own().lent.store(lent, SeqCst));
    }

    /// What others found is counted as held now; `found` is what they had found before this process looked itself. If they
    /// have found something else since, that stays: it may be what this process has not seen.
    pub fn has_seen(&self, found: u64) {
        let _ = self.own().found.compare_exchange(found, 0, SeqCst, SeqCst);
    }

    /// Another member was found to hold `figure` bytes, as the driver has it in its figure. `seen`: what it said itself before
    /// the driver was asked. Says whether that is more than was known.
    pub fn find(&self, other: &Process, figure: u64, seen: u64) -> bool {
        const TRIES: u32 = 4;
        self.told(|| {
            let mut grew = false;
            for _ in 0..TRIES {
                // It takes before the driver gives, and gives back after the driver has: the more of the two is what it knows of.
                let knows = in_figure(other);
                let found = figure.saturating_sub(knows.max(seen));
                grew |= change(&other.found, |_| found) < found;
                // It may have looked itself meanwhile: then it holds what was found, and has set what is found to zero.
                if in_figure(other) == knows {
                    break;
                }
            }
            if grew {
                // Before whoever had it gives it back: see `super`.
                self.passed().fetch_add(1, SeqCst);
            }
            grew
        })
    }
}

/// The bytes that a process says it holds, as far as they are in the driver's figure for it.
pub fn in_figure(process: &Process) -> u64 {
    process.held.load(SeqCst).saturating_sub(process.beside.load(SeqCst))
}
