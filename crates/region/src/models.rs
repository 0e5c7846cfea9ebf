//! The races, tried in every order by loom: `ci/test loom`.
//!
//! A model is a small region, a few threads that do something in it at once, and what must be true whatever the order. Loom
//! runs it again and again, with another order each time, up to a number of places at which a thread is interrupted
//! ([`explore`]). Also what an older value of a word would do is tried, as far as the memory model lets a thread see one.
//!
//! In a model nobody's patience ends: whoever waits for something that never comes makes loom fail.

mod ledger;
mod table;

use std::cell::RefCell;
use std::sync::Arc;

use crate::layout::{LIVE, PROCESSES, Table};
use crate::ledger::Account;
use crate::life::{DIED, Owner};
use crate::sync::{AtomicU32, SeqCst};
use crate::table::{Newcomer, Place, Trouble};

/// Tries every order in which threads are interrupted up to so many times (what waits of its own accord does not count).
///
/// `LOOM_MAX_PREEMPTIONS` in the environment overrides the number, for a longer look.
fn explore(interruptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(interruptions);
    builder.max_branches = 10_000;
    let tried = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = Arc::clone(&tried);
    builder.check(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    let (tried, bound) = (tried.load(std::sync::atomic::Ordering::Relaxed), builder.preemption_bound);
    let name = std::thread::current().name().unwrap_or("a model").to_owned();
    println!("{name}: {tried} orders, with up to {} interruptions", bound.unwrap_or(usize::MAX));
    assert!(tried > 1, "nothing raced with anything");
}

/// A region in which nobody has seen anything happen yet. What `prepare` does in it is done in one order.
fn scene<T>(prepare: impl FnOnce(&Table) -> T) -> (loom::sync::Arc<Table>, T) {
    loom::stop_exploring();
    let table = loom::sync::Arc::new(Table::new());
    let prepared = prepare(&table);
    loom::explore();
    (table, prepared)
}

/// A container with a cap, and in it the members 0, 1, 2 who hold so much.
fn seat<const N: usize>(table: &Table, cap: u64, held: [u64; N]) -> [Place; N] {
    const { assert!(N <= PROCESSES) };
    let container = &table.containers[0];
    container.generation.store(1, SeqCst);
    container.cap.store(cap, SeqCst);
    container.set_name(b"box");
    container.state.store(LIVE, SeqCst);
    let membership = container.membership(0);
    let mut process = 0;
    held.map(|bytes| {
        let slot = &table.processes[process];
        slot.life.store(process as u32 + 1, SeqCst);
        slot.member.store(membership, SeqCst);
        slot.held.store(bytes, SeqCst);
        container.set_member(process, true);
        process += 1;
        Place { container: 0, process: process - 1, membership, generation: 0 }
    })
}

fn account<'a>(table: &'a Table, place: &'a Place) -> Account<'a> {
    Account { table, place, cap: None }
}

/// What all processes hold, when nobody is doing anything.
fn held(table: &Table) -> u64 {
    table.processes.iter().map(|process| process.held.load(SeqCst)).sum()
}

/// A thread that holds words, as far as they are concerned.
struct Someone {
    number: u32,
    words: RefCell<Vec<*const AtomicU32>>,
}

impl Someone {
    fn new(number: u32) -> Someone {
        Someone { number, words: RefCell::default() }
    }

    fn join(&self, table: &Table, name: &str, cap: Option<u64>) -> Result<Place, Trouble> {
        table.join(self, &Newcomer { name: name.as_bytes(), cap, pid: self.number, namespace: 0 })
    }

    /// What the kernel does when a thread ends.
    fn die(&self) {
        for word in self.words.take() {
            // SAFETY: a word of the model's region, which is there until all its threads have ended.
            let word = unsafe { &*word };
            let _ = word.compare_exchange(self.number, DIED, SeqCst, SeqCst);
        }
    }
}

// SAFETY: the words that it holds are a region's, which any thread may use; it is moved to the thread that uses it.
unsafe impl Send for Someone {}

impl Owner for Someone {
    fn take(&self, word: &AtomicU32, from: u32) -> bool {
        let taken = word.compare_exchange(from, self.number, SeqCst, SeqCst).is_ok();
        if taken {
            self.words.borrow_mut().push(word);
        }
        taken
    }

    fn give(&self, word: &AtomicU32) {
        let _ = word.compare_exchange(self.number, 0, SeqCst, SeqCst);
        self.words.borrow_mut().retain(|&held| !std::ptr::eq(held, word));
    }
}
