//! Memory that crosses processes, seen from the inside.

use super::{Someone, account, assert_sound, region};
use crate::layout::{CONTAINERS, PROCESSES};
use crate::ledger::in_figure;
use crate::sync::SeqCst;

#[test]
fn what_is_lent_is_counted_until_it_is_not_lent() {
    let region = region();
    let table = region.table();
    let (a, b) = (Someone::new(1), Someone::new(2));
    let (mine, other) = (a.join(table, "box", Some(10)).expect("room"), b.join(table, "box", None).expect("room"));
    account(table, &mine).reserve(6, 0).expect("room");
    account(table, &mine).lend(6, 6);
    assert_eq!((account(table, &other).used(), table.processes[mine.process].held.load(SeqCst)), (6, 0));
    assert!(account(table, &other).reserve(5, 0).is_err());
    let slot = (mine.process, mine.generation);
    table.lower_lent(slot, 5, 0);
    assert_eq!(account(table, &other).used(), 6, "it was seen to have lent something else");
    table.lower_lent((mine.process, mine.generation + 1), 6, 0);
    assert_eq!(account(table, &other).used(), 6, "another's slot by now");
    table.lower_lent(slot, 6, 4);
    assert_eq!(account(table, &other).used(), 4);
    table.lower_lent(slot, 4, 9);
    assert_eq!(account(table, &other).used(), 4, "nobody else can make it more");
    account(table, &mine).set_lent(0);
    account(table, &other).reserve(10, 0).expect("room");
}

#[test]
fn what_outlives_a_process_is_counted_and_nothing_else_of_it() {
    let region = region();
    let table = region.table();
    let (a, b) = (Someone::new(1), Someone::new(2));
    let (dead, other) = (a.join(table, "box", Some(10)).expect("room"), b.join(table, "box", None).expect("room"));
    account(table, &dead).reserve(8, 0).expect("room");
    table.outlive(&b, (dead.process, dead.generation), 3).expect("free");
    assert_eq!(account(table, &other).used(), 8, "it is alive");
    a.die();
    table.lower_lent((dead.process, dead.generation), 0, 0);
    assert_eq!(account(table, &other).used(), 8, "it is dead");
    table.outlive(&b, (dead.process, dead.generation), 3).expect("free");
    assert_eq!(account(table, &other).used(), 3);
    account(table, &other).reserve(7, 0).expect("room");
    table.bury(&b, dead.process, dead.generation).expect("free");
    assert_eq!(account(table, &other).used(), 7);
    let again = a.join(table, "box", None).expect("room");
    assert_eq!(account(table, &again).used(), 7, "nothing of it is left in its slot");
    table.outlive(&b, (dead.process, dead.generation), 3).expect("free");
    assert_eq!(account(table, &other).used(), 7, "another's slot by now");
    assert_sound(table, &[&other, &again]);
}

#[test]
fn what_is_found_is_what_a_process_does_not_say() {
    let region = region();
    let table = region.table();
    let (a, b) = (Someone::new(1), Someone::new(2));
    let (mine, other) = (a.join(table, "box", Some(100)).expect("room"), b.join(table, "box", None).expect("room"));
    let slot = &table.processes[other.process];
    account(table, &other).charge(30);
    // Managed memory: held, and in no figure.
    account(table, &other).holds_beside(20);
    assert_eq!(in_figure(slot), 10);
    assert!(!account(table, &mine).find(slot, 10, 10));
    assert_eq!(account(table, &mine).used(), 30);
    assert!(account(table, &mine).find(slot, 25, 10), "fifteen more than it says");
    assert_eq!(account(table, &mine).used(), 45);
    // It gave something back while the driver was asked.
    assert!(!account(table, &mine).find(slot, 25, 12));
    assert_eq!(account(table, &mine).used(), 43);
    // It looks itself; meanwhile somebody has found more.
    let found = slot.found.load(SeqCst);
    account(table, &other).charge(found);
    assert!(account(table, &mine).find(slot, 40, 0));
    account(table, &other).has_seen(found);
    assert_eq!(account(table, &mine).used(), 60, "that stays");
    let found = slot.found.load(SeqCst);
    account(table, &other).charge(found);
    account(table, &other).has_seen(found);
    assert_eq!(account(table, &mine).used(), 60);
    account(table, &other).held_beside(20);
    account(table, &other).refund(60);
    assert_eq!((account(table, &mine).used(), slot.drift.load(SeqCst)), (0, 0));
}

#[test]
fn those_of_whom_something_may_be_left_are_forgotten_last() {
    let region = region();
    let table = region.table();
    let lender = Someone::new(1);
    let place = lender.join(table, "lender", Some(10)).expect("room");
    table.processes[place.process].node[1].store(7, SeqCst);
    account(table, &place).reserve(5, 0).expect("room");
    lender.die();
    let lent = || table.processes[place.process].held.load(SeqCst);
    for number in 0..2 * PROCESSES as u32 {
        let one = Someone::new(number + 2);
        one.join(table, &format!("c{}", number as usize % (2 * CONTAINERS)), None).expect("room");
        one.die();
        assert_eq!(lent(), 5, "after {number}");
    }
    let again = Someone::new(9999);
    let place = again.join(table, "lender", Some(10)).expect("room");
    assert_eq!(account(table, &place).used(), 5);
}
