//! Others who are in the middle of something, and do not get on.

use std::time::{Duration, Instant};

use super::{Someone, account, region};
use crate::layout::{PENDING_BITS, Table};
use crate::ledger::Full;
use crate::sync::SeqCst;
use crate::table::Place;

const CAP: u64 = 10;
/// Longer than anybody waits, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(2);

/// Two in a container, the second of which has announced 6 and does not say what becomes of it.
fn scene(table: &Table) -> [Place; 2] {
    let places = [1, 2].map(|number| Someone::new(number).join(table, "box", Some(CAP)).expect("room"));
    table.processes[places[1].process].pending.store(6, SeqCst);
    places
}

/// What is announced in a slot.
fn announced(table: &Table, place: &Place) -> u64 {
    table.processes[place.process].pending.load(SeqCst) << (64 - PENDING_BITS) >> (64 - PENDING_BITS)
}

#[test]
fn what_stays_announced_is_waited_for_and_not_for_ever() {
    let region = region();
    let table = region.table();
    let [a, b] = scene(table);
    let begun = Instant::now();
    assert_eq!(account(table, &a).reserve(6, 0), Err(Full { cap: CAP, used: 0 }));
    let waited = begun.elapsed();
    assert!(waited > Duration::from_millis(90) && waited < LONG, "{waited:?}");
    // Nothing of it is left, and what fits beside is had at once.
    assert_eq!((announced(table, &a), announced(table, &b)), (0, 6));
    assert_eq!(table.containers[a.container].tie.load(SeqCst), 0);
    account(table, &a).reserve(4, 0).expect("there is room for that");
    // There is no room at all: then nobody waits.
    let begun = Instant::now();
    assert_eq!(account(table, &a).reserve(7, 0), Err(Full { cap: CAP, used: 4 }));
    assert!(begun.elapsed() < LONG);
    assert_eq!(account(table, &a).used(), 4);
}

#[test]
fn who_is_late_is_waited_for() {
    let region = region();
    let table = region.table();
    let [a, b] = scene(table);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            table.processes[b.process].pending.store(0, SeqCst);
        });
        account(table, &a).reserve(6, 0).expect("the other one took its announcement back");
    });
}

#[test]
fn a_turn_that_is_not_used_goes_to_the_next() {
    for holder in [0, 1, u64::from(u32::MAX), 77 << 32, u64::MAX] {
        let region = region();
        let table = region.table();
        let [a, b] = scene(table);
        // The other one's, who is alive; or somebody's who is not, or nobody's.
        let ticket = if holder == 0 { (b.process as u64 + 1) << 32 | 5 } else { holder };
        table.containers[a.container].tie.store(ticket, SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                table.processes[b.process].pending.store(0, SeqCst);
            });
            account(table, &a).reserve(6, 0).unwrap_or_else(|full| panic!("with {ticket:x}: {full}"));
        });
        assert_eq!(table.containers[a.container].tie.load(SeqCst), 0);
    }
}

#[test]
fn what_the_dead_had_announced_is_not_waited_for() {
    let region = region();
    let table = region.table();
    let a = Someone::new(1).join(table, "box", Some(CAP)).expect("room");
    let one = Someone::new(2);
    let b = one.join(table, "box", None).expect("room");
    table.processes[b.process].pending.store(6, SeqCst);
    one.die();
    let begun = Instant::now();
    assert_eq!(account(table, &a).reserve(5, 0), Err(Full { cap: CAP, used: 0 }));
    assert!(begun.elapsed() < Duration::from_millis(90), "{:?}", begun.elapsed());
    // Nobody knows how far it got, so it counts until it is buried.
    let generation = table.processes[b.process].generation.load(SeqCst);
    assert_eq!(table.bury(&Someone::new(3), b.process, generation), Ok(0));
    account(table, &a).reserve(10, 0).expect("all of it");
}

#[test]
fn more_than_can_be_announced_is_refused_where_there_is_a_cap() {
    let region = region();
    let table = region.table();
    let a = Someone::new(1).join(table, "box", Some(CAP)).expect("room");
    let most = 1u64 << (PENDING_BITS - 1);
    for bytes in [most - 1, most, most + 1, u64::MAX] {
        assert_eq!(account(table, &a).reserve(bytes, 0), Err(Full { cap: CAP, used: 0 }), "{bytes}");
        assert_eq!(announced(table, &a), 0);
    }
    account(table, &a).reserve(CAP, 0).expect("all of it");
    account(table, &a).refund(CAP);
    // Other threads have announced so much that there is no room to announce anything.
    table.processes[a.process].pending.store(most - 1, SeqCst);
    account(table, &a).set_cap(most / 2);
    let begun = Instant::now();
    assert_eq!(account(table, &a).reserve(1 << 33, 0), Err(Full { cap: most / 2, used: 0 }));
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    table.processes[a.process].pending.store(0, SeqCst);
    // A cap that is no limit to anything is none.
    account(table, &a).set_cap(most);
    account(table, &a).reserve(u64::MAX, 0).expect("no limit");
    assert_eq!((account(table, &a).used(), announced(table, &a)), (u64::MAX, 0));
}
