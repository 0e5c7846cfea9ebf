//! Tests of the inside: everything that happens in a region, with owners that can be killed wherever a test likes.

mod kills;
mod laws;
mod sharing;
mod steering;
mod waits;

use std::cell::RefCell;

use crate::layout::{CHANGING, CONTAINERS, LIVE, PROCESSES, Table};
use crate::ledger::Account;
use crate::life::{DIED, Owner, is_held, is_over};
use crate::memory::Mapping;
use crate::sync::{AtomicU32, SeqCst};
use crate::table::{Newcomer, Place, Trouble};

/// A thread that holds words, as far as they are concerned.
struct Someone {
    number: u32,
    words: RefCell<Vec<*const AtomicU32>>,
}

impl Someone {
    fn new(number: u32) -> Someone {
        Someone { number, words: RefCell::default() }
    }

    /// What the kernel does when a thread ends.
    fn die(&self) {
        for word in self.words.take() {
            // SAFETY: a word of a region that the test holds for longer than those who are in it.
            let word = unsafe { &*word };
            if word.load(SeqCst) == self.number {
                word.store(DIED, SeqCst);
            }
        }
    }

    fn join(&self, table: &Table, name: &str, cap: Option<u64>) -> Result<Place, Trouble> {
        table.join(self, &Newcomer { name: name.as_bytes(), cap, pid: self.number, namespace: 0 })
    }
}

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

fn region() -> Mapping {
    Mapping::new(None, None).expect("there is memory")
}

fn account<'a>(table: &'a Table, place: &'a Place) -> Account<'a> {
    Account { table, place, cap: None }
}

/// Frees all the dead of a container; what they had held.
fn bury_all(table: &Table, owner: &Someone, container: usize) -> u64 {
    let dead: Vec<_> = table.members_of(container).filter(|(_, process)| is_over(&process.life)).collect();
    dead.iter().map(|(index, process)| table.bury(owner, *index, process.generation.load(SeqCst)).expect("free")).sum()
}

/// What must be true whenever nobody is in the middle of anything: whoever is alive is where it should be, nothing is counted
/// that nobody holds, and nothing is stuck.
fn assert_sound(table: &Table, alive: &[&Place]) {
    assert_eq!(table.header.lock.load(SeqCst), 0, "the lock is held by nobody");
    for (index, process) in table.processes.iter().enumerate() {
        let place = alive.iter().find(|place| place.process == index);
        assert_eq!(is_held(&process.life), place.is_some(), "slot {index}: {:x}", process.life.load(SeqCst));
        if process.life.load(SeqCst) == 0 {
            assert_eq!(process.member.load(SeqCst), 0, "a free slot is in no container");
        }
        if let Some(place) = place {
            assert_eq!(process.member.load(SeqCst), place.membership);
            assert!(table.containers[place.container].has_member(index));
        }
    }
    for (index, container) in table.containers.iter().enumerate() {
        let state = container.state.load(SeqCst);
        assert_ne!(state, CHANGING, "container {index} was left in the middle of a change");
        for member in container.members() {
            assert!(state == LIVE && table.members_of(index).any(|(it, _)| it == member), "{member} is not in {index}");
        }
    }
}

#[test]
fn a_full_table_says_so_and_takes_nothing() {
    let region = region();
    let table = region.table();
    let people: Vec<Someone> = (1..=PROCESSES as u32).map(Someone::new).collect();
    let places: Vec<Place> =
        people.iter().map(|one| one.join(table, &format!("c{}", one.number % 64), None).expect("room")).collect();
    let late = Someone::new(9999);
    assert_eq!(late.join(table, "c0", None), Err(Trouble::Processes));
    assert_eq!(late.join(table, "another", None), Err(Trouble::Processes));
    table.leave(&people[5], &places[5]).expect("free");
    assert_eq!(late.join(table, "another", None), Err(Trouble::Containers));
    let place = late.join(table, "c1", None).expect("the one that was left");
    assert_eq!(place.process, places[5].process);
    let mut alive: Vec<&Place> = places.iter().filter(|it| it.process != place.process).collect();
    alive.push(&place);
    assert_sound(table, &alive);
}

#[test]
fn abandoned_containers_make_room() {
    let region = region();
    let table = region.table();
    for number in 0..3 * CONTAINERS as u32 {
        let one = Someone::new(number + 1);
        let place = one.join(table, &format!("c{number}"), Some(10)).expect("room");
        account(table, &place).charge(5);
        one.die();
    }
    let last = Someone::new(9999);
    let place = last.join(table, "last", Some(10)).expect("room");
    assert_eq!(account(table, &place).used(), 0);
    // Of those that were not needed, nothing was forgotten.
    let held: u64 = table.processes.iter().map(|process| process.held.load(SeqCst)).sum();
    assert_eq!(held, 5 * (CONTAINERS as u64 - 1));
    assert_sound(table, &[&place]);
}

#[test]
fn a_table_full_of_the_dead_makes_room() {
    let region = region();
    let table = region.table();
    let mut survivors = Vec::new();
    for number in 0..PROCESSES as u32 {
        let one = Someone::new(number + 1);
        let place = one.join(table, if number < 100 { "mixed" } else { "dead" }, None).expect("room");
        account(table, &place).charge(1);
        if number == 50 { survivors.push((one, place)) } else { one.die() }
    }
    let late = Someone::new(9999);
    let place = late.join(table, "new", None).expect("room among the dead of a container in which nobody is left");
    // In the other one somebody is left, who will ask whether the driver has let go.
    assert_eq!(account(table, &survivors[0].1).used(), 100);
    assert_sound(table, &[&place, &survivors[0].1]);
}

#[test]
fn the_first_one_in_sets_the_cap() {
    let region = region();
    let table = region.table();
    let (a, b, c) = (Someone::new(1), Someone::new(2), Someone::new(3));
    let first = a.join(table, "box", None).expect("room");
    assert_eq!(account(table, &first).cap(), u64::MAX);
    let second = b.join(table, "box", Some(100)).expect("room");
    assert_eq!(account(table, &first).cap(), 100, "a cap where there was none");
    c.join(table, "box", Some(1000)).expect("room");
    assert_eq!(account(table, &second).cap(), 100, "nobody raises it by joining");
    for one in [a, b, c] {
        one.die();
    }
    let d = Someone::new(4);
    let place = d.join(table, "box", Some(1000)).expect("room");
    assert_eq!(account(table, &place).cap(), 1000, "begun anew");
}

#[test]
fn a_lock_that_is_not_let_go_of_is_not_waited_for() {
    let region = region();
    let table = region.table();
    table.header.lock.store(12345, SeqCst);
    let one = Someone::new(1);
    assert_eq!(one.join(table, "box", None), Err(Trouble::Busy));
    assert_eq!(table.bury(&one, 0, 0), Err(Trouble::Busy));
    for died in [DIED, DIED | 0x8000_0000, DIED | 77] {
        table.header.lock.store(died, SeqCst);
        let place = one.join(table, "box", None).expect("its holder is dead");
        table.leave(&one, &place).expect("free");
    }
}

#[test]
fn a_slot_rests_before_it_is_used_again() {
    let region = region();
    let table = region.table();
    let one = Someone::new(1);
    for turn in 0..2 * PROCESSES {
        let place = one.join(table, "box", None).expect("room");
        assert_eq!(place.process, turn % PROCESSES);
        table.leave(&one, &place).expect("free");
    }
}
