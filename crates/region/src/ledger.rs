//! How much is held, and whether there is room for more.
//!
//! **The ledger is the sum of what the members hold.** There is no total that could disagree with it. Whoever wants more
//! first announces it in its own slot (`pending`), then adds up what all members hold and have announced. If that is within
//! the cap, the announcement becomes a holding; if not, it is taken back.
//!
//! *Nobody is ever over the cap.* Take the reservations that are held at some moment, and the one among them that was
//! announced last. It added up after all others had been announced, and none of them had been given back, so its sum had
//! them all; and it was within the cap. The order meant here is that of sequential consistency. A sum looks at `pending`
//! before `held` in each slot, and a reservation enters `held` before it leaves `pending`, so that it is never missed on
//! its way from one to the other; at worst it is counted twice.
//!
//! *A process that is killed at any point leaves a ledger that is right*: its slot is counted as a whole until it is freed as
//! a whole. What it had only announced is not counted once it is dead: it never got to ask the driver.
//!
//! A sum that is too large because others announce at the same moment is looked at again ([`Account::rival`]): of two that
//! ask for the last bytes, one gets them.

use crate::layout::{Bits, NO_CAP, Process, Table};
use crate::life::is_over;
use crate::sync::{AtomicU64, SeqCst, in_order, let_others_go};
use crate::table::Place;

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// The bytes that all members together may hold.
    pub cap: u64,
    /// The bytes that they hold.
    pub used: u64,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes are in use", self.used, self.cap)
    }
}

impl std::error::Error for Full {}

/// A member's way to its container's ledger.
#[derive(Clone, Copy)]
pub struct Account<'a> {
    /// The region.
    pub table: &'a Table,
    /// The member.
    pub place: &'a Place,
}

/// What all members hold, and what they are asking for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sum {
    held: u64,
    pending: u64,
}

/// How often a reservation that does not fit looks again while somebody else's is in the way.
const PATIENCE: u32 = 200;
/// How many looks a rival has that goes first; after that it is taken for one that was stopped.
const TURN: u32 = 50;

impl<'a> Account<'a> {
    fn own(&self) -> &'a Process {
        &self.table.processes[self.place.process]
    }

    /// The container's cap; [`NO_CAP`]: none.
    pub fn cap(&self) -> u64 {
        self.table.containers[self.place.container].cap.load(SeqCst)
    }

    /// What the members hold.
    pub fn used(&self) -> u64 {
        self.sum().held
    }

    /// Adds it all up. The own slot is counted whatever the container's set says.
    #[inline]
    fn sum(&self) -> Sum {
        let mut sum = Sum { held: 0, pending: 0 };
        for (word, bits) in self.table.containers[self.place.container].members.iter().enumerate() {
            for bit in Bits(bits.load(SeqCst)) {
                let index = 64 * word + bit;
                let Some(process) = self.table.processes.get(index) else { continue };
                if index != self.place.process && process.member.load(SeqCst) == self.place.membership {
                    sum.add(process);
                }
            }
        }
        sum.add(self.own());
        sum
    }

    /// Takes `bytes`, if with them the members hold no more than the cap less `keep_free`.
    pub fn reserve(&self, bytes: u64, keep_free: u64) -> Result<(), Full> {
        let cap = self.cap();
        if cap == NO_CAP {
            add(&self.own().held, bytes);
            return Ok(());
        }
        let limit = cap.saturating_sub(keep_free);
        let seen = match self.attempt(bytes, limit) {
            Ok(()) => return Ok(()),
            Err(seen) => seen,
        };
        self.rival(bytes, limit, seen).map_err(|sum| {
            self.table.containers[self.place.container].refused.fetch_add(1, SeqCst);
            Full { cap, used: sum.held }
        })
    }

    /// Announces, adds up, and takes or takes back.
    #[inline]
    fn attempt(&self, bytes: u64, limit: u64) -> Result<(), Sum> {
        add(&self.own().pending, bytes);
        self.decide(bytes, limit).inspect_err(|_| self.take_back(bytes))
    }

    /// What was announced becomes a holding, if there is room.
    #[inline]
    fn decide(&self, bytes: u64, limit: u64) -> Result<(), Sum> {
        in_order();
        let sum = self.sum();
        if sum.held.saturating_add(sum.pending) > limit {
            return Err(sum);
        }
        add(&self.own().held, bytes);
        self.take_back(bytes);
        Ok(())
    }

    fn take_back(&self, bytes: u64) {
        subtract(&self.own().pending, bytes);
    }

    /// It did not fit. That is certain if two looks in a row find the same bytes held, and they leave no room. (One look is
    /// not enough: it may have counted what one member gave back and another took since.) Otherwise somebody else's
    /// announcement is in the way, which may come to nothing: one of those who find themselves here goes first and lets
    /// its announcement stand until the others have taken theirs back; the others wait for it.
    #[cold]
    fn rival(&self, bytes: u64, limit: u64, mut before: Sum) -> Result<(), Sum> {
        let tie = &self.table.containers[self.place.container].tie;
        let me = ticket(self.place);
        let (mut goes_first, mut waited_for) = (0, 0);
        for look in 0..PATIENCE {
            let sum = self.sum();
            let full = sum.held.saturating_add(bytes) > limit;
            if full && sum.held == before.held {
                before = sum;
                break;
            }
            before = sum;
            let first = tie.load(SeqCst);
            // Nobody has the turn, or somebody who does not use it: killed in between, perhaps, or stopped.
            if !full && (first == 0 || waited_for > TURN) && tie.compare_exchange(first, me, SeqCst, SeqCst).is_ok() {
                let outcome = self.stand(bytes, limit);
                let _ = tie.compare_exchange(me, 0, SeqCst, SeqCst);
                return outcome;
            }
            waited_for = if first == goes_first { waited_for + 1 } else { 0 };
            goes_first = first;
            if first == 0 && self.attempt(bytes, limit).is_ok() {
                return Ok(());
            }
            let_others_go(look);
        }
        Err(before)
    }

    /// Lets the announcement stand until it fits, cannot fit, or the others had time enough to take theirs back.
    fn stand(&self, bytes: u64, limit: u64) -> Result<(), Sum> {
        add(&self.own().pending, bytes);
        let mut last = None;
        for look in 0..TURN {
            let sum = match self.decide(bytes, limit) {
                Ok(()) => return Ok(()),
                Err(sum) => sum,
            };
            if sum.held.saturating_add(bytes) > limit && last == Some(sum.held) {
                break;
            }
            last = Some(sum.held);
            let_others_go(look);
        }
        self.take_back(bytes);
        Err(self.sum())
    }

    /// Counts what the driver has taken already, whether there is room or not.
    pub fn charge(&self, bytes: u64) {
        add(&self.own().held, bytes);
    }

    /// Gives back. More than is held cannot be given back; what is too much is counted as drift.
    pub fn refund(&self, bytes: u64) {
        let missing = bytes - subtract(&self.own().held, bytes);
        if missing > 0 {
            add(&self.own().drift, missing);
        }
    }
}

impl Sum {
    /// `pending` before `held`: see above.
    #[inline]
    fn add(&mut self, process: &Process) {
        let pending = process.pending.load(SeqCst);
        in_order();
        self.held = self.held.saturating_add(process.held.load(SeqCst));
        if pending > 0 && !is_over(&process.life) {
            self.pending = self.pending.saturating_add(pending);
        }
    }
}

/// A word for [`crate::layout::Container::tie`] that is another one for every attempt of this process, and not 0.
fn ticket(place: &Place) -> u64 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    (place.process as u64 + 1) << 32 | u64::from(number)
}

/// Adds, and stays at the largest number rather than begin at zero again.
#[inline]
fn add(word: &AtomicU64, bytes: u64) {
    let mut now = word.load(SeqCst);
    while let Err(other) = word.compare_exchange_weak(now, now.saturating_add(bytes), SeqCst, SeqCst) {
        now = other;
    }
}

/// Subtracts, down to zero; returns what could be subtracted.
#[inline]
fn subtract(word: &AtomicU64, bytes: u64) -> u64 {
    let mut now = word.load(SeqCst);
    loop {
        match word.compare_exchange_weak(now, now.saturating_sub(bytes), SeqCst, SeqCst) {
            Ok(_) => return bytes.min(now),
            Err(other) => now = other,
        }
    }
}
