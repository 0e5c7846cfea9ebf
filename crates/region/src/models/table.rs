//! Coming, going, and burying the dead.

use super::{Someone, account, explore, held, scene, seat};
use crate::layout::{FREE, LIVE, Table};
use crate::life::DIED;
use crate::sync::SeqCst;
use crate::table::Place;
use loom::sync::Arc;
use loom::thread::spawn;

/// When nobody is doing anything: nothing is locked, whoever is in is counted, and nobody else is.
fn assert_sound(table: &Table, alive: &[Place]) {
    assert_eq!(table.header.lock.load(SeqCst), 0, "the lock is held by nobody");
    for (index, process) in table.processes.iter().enumerate() {
        let place = alive.iter().find(|place| place.process == index);
        assert_eq!(process.life.load(SeqCst) != 0, place.is_some(), "slot {index}");
        assert_eq!(process.member.load(SeqCst), place.map_or(0, |place| place.membership), "slot {index}");
        for (number, container) in table.containers.iter().enumerate() {
            let is_in = place.is_some_and(|place| place.container == number);
            assert_eq!(container.has_member(index), is_in, "slot {index} in container {number}");
        }
    }
    for container in &table.containers {
        assert!([FREE, LIVE].contains(&container.state.load(SeqCst)), "nothing was left half done");
    }
}

#[test]
fn two_who_make_a_container_at_once_make_one() {
    explore(3, || {
        let (table, ()) = scene(|_| ());
        let other = spawn({
            let table = Arc::clone(&table);
            move || Someone::new(2).join(&table, "box", Some(20)).expect("room")
        });
        let mine = Someone::new(1).join(&table, "box", Some(10)).expect("room");
        let theirs = other.join().expect("it ends");
        assert_eq!(mine.container, theirs.container);
        assert_ne!(mine.process, theirs.process);
        let cap = account(&table, &mine).cap();
        assert!([10, 20].contains(&cap), "{cap}");
        assert_sound(&table, &[mine, theirs]);
    });
}

#[test]
fn a_newcomer_and_an_old_member_never_take_more_than_there_is() {
    explore(3, || {
        let (table, [old]) = scene(|table| seat(table, 10, [0]));
        let other = spawn({
            let table = Arc::clone(&table);
            move || {
                let place = Someone::new(2).join(&table, "box", None).expect("room");
                account(&table, &place).reserve(6, 0).is_ok()
            }
        });
        let mine = account(&table, &old).reserve(6, 0).is_ok();
        let theirs = other.join().expect("it ends");
        assert!(mine != theirs, "{}", if mine { "both got them" } else { "nobody got them" });
        assert_eq!(held(&table), 6);
    });
}

#[test]
fn who_leaves_takes_along_what_it_held_and_no_more() {
    explore(3, || {
        let (table, (one, old, leaver)) = scene(|table| {
            let [old] = seat(table, 10, [3]);
            let one = Someone::new(2);
            let leaver = one.join(table, "box", None).expect("room");
            account(table, &leaver).charge(5);
            (one, old, leaver)
        });
        let other = spawn({
            let table = Arc::clone(&table);
            move || table.leave(&one, &leaver).expect("the lock is free")
        });
        let mine = account(&table, &old).reserve(6, 0);
        other.join().expect("it ends");
        assert!(mine.is_ok() || account(&table, &old).reserve(6, 0).is_ok(), "now there is room");
        assert_eq!(held(&table), 9);
        assert_sound(&table, &[old]);
    });
}

/// A member that holds 4, has announced 3, and is dead.
fn with_a_grave(table: &Table) -> [Place; 3] {
    let places = seat(table, 10, [0, 0, 4]);
    let slot = &table.processes[places[2].process];
    slot.pending.store(3, SeqCst);
    slot.life.store(DIED, SeqCst);
    places
}

#[test]
fn the_dead_are_buried_once_and_what_they_held_comes_back_once() {
    explore(3, || {
        let (table, [a, b, dead]) = scene(with_a_grave);
        let other = spawn({
            let table = Arc::clone(&table);
            move || {
                let back = table.bury(&Someone::new(2), dead.process, dead.generation).expect("the lock is free");
                (back, account(&table, &b).reserve(6, 0).is_ok())
            }
        });
        let back = table.bury(&Someone::new(1), dead.process, dead.generation).expect("the lock is free");
        let mine = account(&table, &a).reserve(6, 0).is_ok();
        let (theirs_back, theirs) = other.join().expect("it ends");
        assert_eq!(back + theirs_back, 4, "what the dead held came back once");
        assert!(mine != theirs, "{}", if mine { "both got them" } else { "nobody got them" });
        assert_eq!(held(&table), 6);
        assert_sound(&table, &[a, b]);
    });
}

#[test]
fn nobody_gets_what_the_dead_hold_before_they_are_buried() {
    explore(3, || {
        let (table, [a, b, dead]) = scene(with_a_grave);
        let other = spawn({
            let table = Arc::clone(&table);
            // Fits beside the dead, but not beside what the dead had announced.
            move || account(&table, &b).reserve(6, 0).is_ok()
        });
        let buried = table.bury(&Someone::new(1), dead.process, dead.generation);
        assert_eq!(buried, Ok(4));
        let theirs = other.join().expect("it ends");
        assert!(theirs || account(&table, &b).reserve(6, 0).is_ok(), "now there is room");
        assert_eq!(held(&table), 6);
        assert_sound(&table, &[a, b]);
    });
}

#[test]
fn a_slot_of_the_dead_goes_to_one_newcomer_and_is_empty() {
    explore(3, || {
        let (table, [a, b, dead]) = scene(with_a_grave);
        let other = spawn({
            let table = Arc::clone(&table);
            move || {
                table.bury(&Someone::new(2), dead.process, dead.generation).expect("the lock is free");
                Someone::new(3).join(&table, "box", None).expect("a slot was freed")
            }
        });
        // Late for the burial, perhaps so late that somebody else is in the slot.
        let back = table.bury(&Someone::new(1), dead.process, dead.generation).expect("the lock is free");
        let newcomer = other.join().expect("it ends");
        assert!([0, 4].contains(&back));
        assert_eq!(newcomer.process, dead.process);
        let slot = &table.processes[newcomer.process];
        assert_eq!((slot.held.load(SeqCst), slot.pending.load(SeqCst)), (0, 0), "nothing of the dead is left");
        assert_sound(&table, &[a, b, newcomer]);
    });
}

#[test]
fn a_lock_whose_holder_dies_goes_to_the_next() {
    explore(2, || {
        let (table, victim) = scene(|table| {
            let victim = Someone::new(9);
            assert!(crate::life::Owner::take(&victim, &table.header.lock, 0));
            victim
        });
        let other = spawn({
            let table = Arc::clone(&table);
            move || Someone::new(2).join(&table, "box", Some(1)).expect("room")
        });
        let kernel = spawn({
            let table = Arc::clone(&table);
            move || {
                victim.die();
                drop(table);
            }
        });
        let mine = Someone::new(1).join(&table, "box", Some(1)).expect("room");
        let theirs = other.join().expect("it ends");
        kernel.join().expect("it ends");
        assert_eq!(mine.container, theirs.container);
        assert_sound(&table, &[mine, theirs]);
    });
}
