//! When there is no room, or others are in the way.

use std::time::Duration;

use super::{Account, Announced, Full, Wish};
use crate::life::is_held;
use crate::sync::{AtomicU64, Patience, SeqCst};

/// How long somebody is waited for who was stopped in the middle of a reservation; then there is no room. A thread that has lost
/// its processor gets it back sooner, and being told that there is no room is worse for a program than waiting.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long somebody may have the turn and not be done.
const TURN: Duration = Duration::from_millis(10);
/// How many looks in a row that find no room are as good as one that is certain.
const LOOKS: u32 = 64;

impl Account<'_> {
    /// It did not fit. Either there is no room, which a look can tell for certain; or somebody else's announcement was in the
    /// way. Two who ask for the last bytes at once both find the other's, and withdraw; if they just tried again, they could do
    /// so for ever. So one of them has its turn: it lets its announcement stand until it fits, or there is no room for
    /// it. The others announce nothing until it is done.
    #[cold]
    pub(super) fn contend(&self, wish: Wish) -> Result<(), Full> {
        let container = &self.table.containers[self.place.container];
        let mut turn = Turn::new(self, &container.tie);
        let mut patience = Patience::new();
        let mut announced: Option<Announced> = None;
        let mut looks_full = 0;
        let refusal = loop {
            if announced.as_ref().is_some_and(|announced| self.decide(wish, announced)) {
                turn.end();
                return Ok(());
            }
            let cap = self.cap();
            let look = self.look(announced.as_ref().map_or(0, |announced| announced.bytes));
            let full = look.taken.saturating_add(wish.bytes) > wish.limit(cap);
            looks_full = if full { looks_full + 1 } else { 0 };
            if full && look.is_certain || looks_full >= LOOKS || patience.passed() > PATIENCE {
                break Full { cap, used: look.held };
            }
            let begins = !full && announced.is_none() && turn.take(patience.passed());
            if begins {
                announced = self.announce(wish.bytes);
            }
            if !begins || announced.is_none() {
                patience.pause();
            }
        };
        if let Some(announced) = announced {
            self.withdraw(&announced);
        }
        turn.end();
        container.refused.fetch_add(1, SeqCst);
        Err(refusal)
    }
}

/// The right to go first, which one at a time has.
struct Turn<'a> {
    account: &'a Account<'a>,
    word: &'a AtomicU64,
    ticket: u64,
    is_mine: bool,
    /// Who was seen to have it, and since when.
    seen: (u64, Duration),
}

impl<'a> Turn<'a> {
    fn new(account: &'a Account<'a>, word: &'a AtomicU64) -> Turn<'a> {
        Turn { account, word, ticket: ticket(account.place.process), is_mine: false, seen: (0, Duration::ZERO) }
    }

    /// Takes it if nobody has it, or somebody who has died with it or does not end it. True if it was taken, now or before.
    fn take(&mut self, now: Duration) -> bool {
        if self.is_mine {
            return true;
        }
        let holder = self.word.load(SeqCst);
        if holder != self.seen.0 {
            self.seen = (holder, now);
        }
        let free = holder == 0 || !self.is_there(holder) || now.saturating_sub(self.seen.1) > TURN;
        self.is_mine = free && self.word.compare_exchange(holder, self.ticket, SeqCst, SeqCst).is_ok();
        self.is_mine
    }

    /// Whether the process that a ticket is of is there.
    fn is_there(&self, ticket: u64) -> bool {
        let index = (ticket >> 32) as usize;
        let process = index.checked_sub(1).and_then(|index| self.account.table.processes.get(index));
        process.is_some_and(|it| is_held(&it.life) && it.member.load(SeqCst) == self.account.place.membership)
    }

    fn end(&self) {
        if self.is_mine {
            // Somebody else may have taken it over.
            let _ = self.word.compare_exchange(self.ticket, 0, SeqCst, SeqCst);
        }
    }
}

/// A word that is another one for every turn that is taken, and not 0: the process's index plus one, and a number.
fn ticket(process: usize) -> u64 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    (process as u64 + 1) << 32 | u64::from(number)
}
