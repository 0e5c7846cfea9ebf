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
//! Memory that processes share is one's until that one lets go of it, and then another's. *It passes from slot to slot*: it enters
//! the other's (`found`), then the container's count of such events grows (`passed`), then it leaves the one's. Whoever adds up
//! meanwhile, and sees the one slot too late and the other too early, sees that the count has changed, and adds up again. Within
//! a slot such bytes go from `found` to `held` and from there to `lent`; they enter the next before they leave the one,
//! and a sum looks at the three in that order.
//!
//! *A process that is killed at any point leaves a ledger that is right*: its slot is counted as a whole, with what it had
//! announced, until it is freed as a whole. (Its threads may live on for a moment after its keeper, whose end others see.)
//!
//! *Nobody is refused for whom there is room*, unless a thread is stopped for long in the middle of a reservation: see
//! [`contend`] and [`look`].

mod contend;
mod look;
mod share;

pub use look::used;
pub use share::in_figure;

use crate::layout::{Bits, NO_CAP, PENDING_BITS, Process, Table};
use crate::life::is_over;
use crate::sync::{AtomicU64, SeqCst};
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
    /// Where this process keeps the cap that it knows of, if it does: [`NO_CAP`] there means that it does not.
    pub cap: Option<&'a AtomicU64>,
}

/// What all members hold, and what they are asking for.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    held: u64,
    /// What the living have announced.
    pending: u64,
    /// What the dead had announced. It stays until they are buried, so it is as good as held.
    stuck: u64,
}

/// The most that can be announced at a time in a slot; half of it is for what is not [`SMALL`].
const MOST: u64 = (1 << PENDING_BITS) - 1;
/// What is announced by adding to whatever there is: 4 GiB. On a word that many threads write to, that takes half as long as
/// looking at it first.
const SMALL: u64 = 1 << 32;
/// What is added to `pending` when something was taken.
const TAKEN: u64 = 1 << PENDING_BITS;

/// What this thread has announced and not settled.
struct Announced {
    bytes: u64,
}

/// A request, as long as it has not been answered.
#[derive(Clone, Copy)]
struct Wish {
    bytes: u64,
    keep_free: u64,
    /// It may turn out to be less.
    is_guess: bool,
}

impl Wish {
    /// What may be held with it in all. A cap beyond what can be announced is none.
    fn limit(self, cap: u64) -> u64 {
        if cap > MOST / 2 { u64::MAX } else { cap.saturating_sub(self.keep_free) }
    }
}

impl<'a> Account<'a> {
    fn own(&self) -> &'a Process {
        &self.table.processes[self.place.process]
    }

    /// The container's cap; [`NO_CAP`]: none. What this process knows counts before what the region says.
    pub fn cap(&self) -> u64 {
        match self.cap.map(|cap| cap.load(SeqCst)) {
            Some(known) if known != NO_CAP => return known,
            _ => {}
        }
        self.table.containers[self.place.container].cap.load(SeqCst)
    }

    /// How often memory passed from one member to another.
    #[inline]
    fn passed(&self) -> &'a AtomicU64 {
        &self.table.containers[self.place.container].passed
    }

    /// Another cap, for all members. A reservation that is on its way sees it or is held by the time that this returns.
    pub fn set_cap(&self, cap: u64) {
        self.table.containers[self.place.container].cap.store(cap, SeqCst);
    }

    /// What the members hold.
    pub fn used(&self) -> u64 {
        used(self.table, self.place.container, self.place.membership, Some(self.place.process))
    }

    /// Adds it all up.
    #[inline]
    fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        let Place { container, process, membership, .. } = *self.place;
        each(self.table, container, membership, Some(process), |_, process| {
            sum.add(process.pending.load(SeqCst), process);
        });
        sum
    }

    /// Takes `bytes`, if with them the members hold no more than the cap less `keep_free`.
    pub fn reserve(&self, bytes: u64, keep_free: u64) -> Result<(), Full> {
        self.grant(Wish { bytes, keep_free, is_guess: false })
    }

    /// The same for what may turn out to be less.
    pub fn reserve_at_most(&self, bytes: u64, keep_free: u64) -> Result<(), Full> {
        self.grant(Wish { bytes, keep_free, is_guess: true })
    }

    #[inline]
    fn grant(&self, wish: Wish) -> Result<(), Full> {
        let bytes = wish.bytes;
        let limit = wish.limit(self.cap());
        // What can never fit is not announced: it would only be in others' way.
        let announced = if bytes <= limit { self.announce(bytes) } else { None };
        match announced {
            Some(announced) if self.decide(wish, &announced) => return Ok(()),
            Some(announced) => self.withdraw(&announced),
            None if limit == u64::MAX => {
                self.charge(bytes);
                self.remember_most();
                return Ok(());
            }
            None => {}
        }
        self.contend(wish)
    }

    /// `None`: it is more than can be announced, with what other threads of this process have announced.
    #[inline]
    fn announce(&self, bytes: u64) -> Option<Announced> {
        let pending = &self.own().pending;
        if bytes < SMALL {
            // There are not enough threads in the world for a sum that has no place.
            pending.fetch_add(bytes, SeqCst);
            return Some(Announced { bytes });
        }
        let fits = |now: u64| bytes <= MOST / 2 && now & MOST <= MOST / 2 - bytes;
        let before = change(pending, |now| if fits(now) { now + bytes } else { now });
        fits(before).then_some(Announced { bytes })
    }

    /// It came to nothing.
    fn withdraw(&self, announced: &Announced) {
        self.settle(announced, 0);
    }

    #[inline]
    fn settle(&self, announced: &Announced, taken: u64) {
        let pending = &self.own().pending;
        let before = pending.fetch_add(taken.wrapping_sub(announced.bytes), SeqCst) & MOST;
        if before < announced.bytes {
            // Somebody has cleared the slot meanwhile. Whoever has it next should not find a number below zero in it.
            pending.fetch_add(announced.bytes - before, SeqCst);
        }
    }

    /// What was announced becomes a holding, if there is room.
    #[inline]
    fn decide(&self, wish: Wish, announced: &Announced) -> bool {
        let (cap, passed, held) = (self.cap(), self.passed().load(SeqCst), &self.own().held);
        let all = self.sum().all();
        if all > wish.limit(cap) || self.passed().load(SeqCst) != passed {
            return false;
        }
        if wish.limit(cap) < u64::MAX {
            held.fetch_add(wish.bytes, SeqCst);
        } else {
            add(held, wish.bytes);
        }
        // The cap may have been lowered since. If so, whoever did it may not have seen this one.
        let now = self.cap();
        if now != cap && all > wish.limit(now) {
            subtract(held, wish.bytes);
            return false;
        }
        self.settle(announced, TAKEN);
        if !wish.is_guess {
            self.was_held(all);
        }
        true
    }

    /// Remembers the most. What others are asking for just now is in it, so it may be that much too large where they get nothing; more
    /// than the cap it never is where that holds. Not in loom's models: it is a word that nobody decides by.
    #[inline]
    fn was_held(&self, all: u64) {
        if cfg!(all(loom, test)) {
            return;
        }
        let peak = &self.table.containers[self.place.container].peak;
        if all > peak.load(SeqCst) {
            peak.fetch_max(all, SeqCst);
        }
    }

    /// Remembers what is held now, if that is the most.
    pub fn remember_most(&self) {
        self.was_held(self.used());
    }

    /// Counts what the driver has taken already, whether there is room or not. Whether that is the most, its caller says.
    pub fn charge(&self, bytes: u64) {
        // Announced although nobody is asked, for those who look closely; any number will do.
        let announced = self.announce(1).unwrap_or(Announced { bytes: 0 });
        add(&self.own().held, bytes);
        self.settle(&announced, TAKEN);
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
    /// `pending` was read before `held` is: see above.
    #[inline]
    fn add(&mut self, pending: u64, process: &Process) {
        let pending = pending & MOST;
        for word in [&process.found, &process.held, &process.lent] {
            self.held = self.held.saturating_add(word.load(SeqCst));
        }
        if pending > 0 {
            let sort = if is_over(&process.life) { &mut self.stuck } else { &mut self.pending };
            *sort = sort.saturating_add(pending);
        }
    }

    fn all(&self) -> u64 {
        self.held.saturating_add(self.pending).saturating_add(self.stuck)
    }
}

/// Visits the processes that a container's ledger counts, with their indexes: those that are in its set and say so themselves,
/// and last the own one, whatever the set says.
#[inline]
fn each(table: &Table, container: usize, membership: u64, own: Option<usize>, mut visit: impl FnMut(usize, &Process)) {
    for (word, bits) in table.containers[container].members.iter().enumerate() {
        for bit in Bits(bits.load(SeqCst)) {
            let index = 64 * word + bit;
            let Some(process) = table.processes.get(index) else { continue };
            if Some(index) != own && process.member.load(SeqCst) == membership {
                visit(index, process);
            }
        }
    }
    if let Some(own) = own {
        visit(own, &table.processes[own]);
    }
}

/// Replaces a word by what is made of it; returns what it was.
#[inline]
fn change(word: &AtomicU64, make: impl Fn(u64) -> u64) -> u64 {
    let mut now = word.load(SeqCst);
    loop {
        match word.compare_exchange_weak(now, make(now), SeqCst, SeqCst) {
            Ok(_) => return now,
            Err(other) => now = other,
        }
    }
}

/// Adds, and stays at the largest number rather than begin at zero again.
#[inline]
fn add(word: &AtomicU64, bytes: u64) {
    change(word, |now| now.saturating_add(bytes));
}

/// Subtracts, down to zero; returns what could be subtracted.
#[inline]
fn subtract(word: &AtomicU64, bytes: u64) -> u64 {
    change(word, |now| now.saturating_sub(bytes)).min(bytes)
}
