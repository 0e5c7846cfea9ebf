//! A process is killed before each single access that it makes to the region, and everything goes on without it.

use super::{Someone, account, assert_sound, bury_all, region};
use crate::layout::{CONTAINERS, PROCESSES, Table};
use crate::ledger::Full;
use crate::life::DIED;
use crate::sync::SeqCst;
use crate::sync::mortal::kill_after;
use crate::table::Place;

const CAP: u64 = 100;

/// The region in which the deed is done: `survivor` holds 10 in "box", `dead` held 5 there, and `victim`, if it is in already,
/// holds 7.
struct Scene<'a> {
    table: &'a Table,
    victim: &'a Someone,
    place: Option<&'a Place>,
    dead: (usize, u64),
}

/// Does a deed over and over again, killing whoever does it one access later each time. Returns how many accesses it has.
fn kill_everywhere(joined: bool, crowd: fn(&Table), deed: fn(&Scene<'_>)) -> u64 {
    kill_at(0.., joined, crowd, deed)
}

fn kill_at(points: impl Iterator<Item = u64>, joined: bool, crowd: fn(&Table), deed: fn(&Scene<'_>)) -> u64 {
    for accesses in points {
        let region = region();
        let table = region.table();
        let (survivor, dead, victim) = (Someone::new(1), Someone::new(2), Someone::new(3));
        let place = survivor.join(table, "box", Some(CAP)).expect("room");
        account(table, &place).charge(10);
        let grave = dead.join(table, "box", None).expect("room");
        account(table, &grave).charge(5);
        dead.die();
        let victims = joined.then(|| victim.join(table, "box", None).expect("room"));
        if let Some(place) = &victims {
            account(table, place).charge(7);
        }
        crowd(table);
        let scene = Scene { table, victim: &victim, place: victims.as_ref(), dead: (grave.process, grave.generation) };
        let survived = kill_after(accesses, || deed(&scene)).is_some();
        victim.die();

        // What the dead hold is counted, no more and no less. (A deed never takes more than there is room for.)
        let counted = |index: usize| table.processes[index].held.load(SeqCst);
        let of_the_dead: u64 = table.members_of(place.container).map(|(index, _)| counted(index)).sum();
        assert_eq!(account(table, &place).used(), of_the_dead);
        assert!((10..=CAP).contains(&of_the_dead), "{of_the_dead} after {accesses} accesses");

        // Others come, and find room.
        let (friend, stranger) = (Someone::new(4), Someone::new(5));
        let friends = friend.join(table, "box", None).expect("room in the box");
        assert_eq!(friends.container, place.container, "there is one container of a name");
        assert_eq!(account(table, &friends).cap(), CAP);
        assert_eq!(account(table, &friends).used(), of_the_dead, "a newcomer holds nothing");
        let strangers = stranger.join(table, "elsewhere", Some(1)).expect("room elsewhere");
        assert_ne!(strangers.container, place.container);

        // When the driver has let go of what the dead held, all of it can be had.
        assert_eq!(bury_all(table, &survivor, place.container), of_the_dead - 10);
        assert_eq!(account(table, &place).used(), 10);
        account(table, &friends).reserve(CAP - 10, 0).expect("all of it");
        assert_eq!(account(table, &place).reserve(1, 0), Err(Full { cap: CAP, used: CAP }));

        // And nothing is stuck: all slots but those of the living can be taken.
        assert_sound(table, &[&place, &friends, &strangers]);
        if accesses % 16 == 0 || survived {
            for number in 3..PROCESSES as u32 {
                Someone::new(100 + number).join(table, "box", None).expect("a slot for everybody");
            }
        }
        if survived {
            return accesses;
        }
    }
    unreachable!("a deed ends")
}

fn nobody(_: &Table) {}

/// Containers of which nothing is left but the dead, as many as there is room for.
fn ruins(table: &Table) {
    for number in 0..CONTAINERS as u32 - 1 {
        let one = Someone::new(1000 + number);
        let place = one.join(table, &format!("ruin{number}"), None).expect("room");
        account(table, &place).charge(1);
        if number % 2 == 0 { one.die() } else { table.leave(&one, &place).expect("free") }
    }
}

/// Slots of the dead, as many as there is room for, all in one container.
fn graveyard(table: &Table) {
    let first = Someone::new(1000);
    let place = first.join(table, "graveyard", None).expect("room");
    first.die();
    for (index, process) in table.processes.iter().enumerate().filter(|(_, it)| it.life.load(SeqCst) == 0) {
        process.member.store(place.membership, SeqCst);
        process.held.store(1, SeqCst);
        table.containers[place.container].set_member(index, true);
        process.life.store(DIED, SeqCst);
    }
}

fn join(scene: &Scene<'_>) {
    scene.victim.join(scene.table, "box", None).expect("room");
}

fn join_anew(scene: &Scene<'_>) {
    scene.victim.join(scene.table, "new", Some(5)).expect("room");
}

#[test]
fn while_it_joins() {
    let accesses = kill_everywhere(false, nobody, join);
    assert!(accesses > 100, "{accesses}");
}

#[test]
fn while_it_makes_a_container() {
    let accesses = kill_everywhere(false, nobody, join_anew);
    assert!(accesses > 200, "{accesses}");
}

#[test]
fn while_it_makes_a_container_where_another_was() {
    kill_everywhere(false, ruins, join_anew);
}

#[test]
fn while_it_takes_a_slot_of_the_dead() {
    // It takes many accesses, the same ones for each of the dead; the stride is a prime, so that all of them have their turn.
    let accesses = kill_at((0..).step_by(97), false, graveyard, join);
    assert!(accesses > 10_000, "{accesses}");
}

#[test]
fn while_it_leaves() {
    kill_everywhere(true, nobody, |scene| {
        scene.table.leave(scene.victim, scene.place.expect("joined")).expect("free");
    });
}

#[test]
fn while_it_buries_another() {
    kill_everywhere(true, nobody, |scene| {
        assert_eq!(scene.table.bury(scene.victim, scene.dead.0, scene.dead.1), Ok(5));
    });
}

#[test]
fn while_it_reserves() {
    let accesses = kill_everywhere(true, nobody, |scene| {
        account(scene.table, scene.place.expect("joined")).reserve(CAP - 22, 0).expect("there is room");
    });
    assert!(accesses > 10, "{accesses}");
}

#[test]
fn while_it_is_refused() {
    kill_everywhere(true, nobody, |scene| {
        let refused = account(scene.table, scene.place.expect("joined")).reserve(CAP - 21, 0);
        assert_eq!(refused, Err(Full { cap: CAP, used: 22 }));
    });
}

#[test]
fn while_it_gives_back() {
    kill_everywhere(true, nobody, |scene| {
        let account = account(scene.table, scene.place.expect("joined"));
        account.refund(3);
        account.refund(5);
        account.charge(1);
    });
}
