//! Taking, giving back, dying.

use super::{account, explore, held, scene, seat};
use crate::layout::Table;
use crate::life::DIED;
use crate::sync::SeqCst;
use crate::table::Place;
use loom::sync::Arc;
use loom::thread::spawn;

/// Starts a thread in which a member does something.
fn start<T: 'static>(
    table: &Arc<Table>,
    place: Place,
    deed: impl FnOnce(&Table, &Place) -> T + 'static,
) -> loom::thread::JoinHandle<T> {
    let table = Arc::clone(table);
    spawn(move || deed(&table, &place))
}

#[test]
fn of_two_who_ask_for_the_last_bytes_one_gets_them() {
    explore(3, || {
        let (table, [a, b]) = scene(|table| seat(table, 10, [0, 0]));
        let other = start(&table, b, |table, place| account(table, place).reserve(6, 0).is_ok());
        let mine = account(&table, &a).reserve(6, 0).is_ok();
        let theirs = other.join().expect("it ends");
        assert!(mine != theirs, "{}", if mine { "both got them" } else { "nobody got them" });
        assert_eq!(held(&table), 6);
    });
}

#[test]
fn of_two_threads_of_a_process_one_gets_them() {
    explore(3, || {
        let (table, [a, _]) = scene(|table| seat(table, 10, [0, 4]));
        let other = start(&table, a, |table, place| account(table, place).reserve(4, 0).is_ok());
        let mine = account(&table, &a).reserve(6, 0).is_ok();
        let theirs = other.join().expect("it ends");
        assert!(mine != theirs, "{}", if mine { "both got them" } else { "nobody got them" });
        assert_eq!(held(&table), if mine { 10 } else { 8 });
    });
}

#[test]
fn of_three_who_ask_at_once_those_get_them_for_whom_there_is_room() {
    explore(2, || {
        let (table, [a, b, c]) = scene(|table| seat(table, 10, [0, 0, 0]));
        let others =
            [b, c].map(|place| start(&table, place, |table, place| account(table, place).reserve(5, 0).is_ok()));
        let mine = account(&table, &a).reserve(5, 0).is_ok();
        let got = others.into_iter().map(|it| it.join().expect("it ends")).chain([mine]).filter(|&got| got).count();
        assert_eq!(got, 2);
        assert_eq!(held(&table), 10);
    });
}

#[test]
fn what_is_given_back_can_be_had_and_no_more() {
    explore(3, || {
        let (table, [a, b]) = scene(|table| seat(table, 10, [8, 0]));
        let other = start(&table, b, |table, place| account(table, place).reserve(6, 0).is_ok());
        account(&table, &a).refund(5);
        let theirs = other.join().expect("it ends");
        assert_eq!(held(&table), if theirs { 9 } else { 3 });
        assert!(theirs || account(&table, &b).reserve(6, 0).is_ok(), "now there is room");
    });
}

#[test]
fn what_moves_from_one_member_to_another_does_not_count_twice() {
    for charged in [false, true] {
        explore(3, move || {
            let (table, [a, b, c]) = scene(|table| seat(table, 8, [4, 0, 0]));
            let mover = start(&table, a, move |table, a| {
                account(table, a).refund(4);
                if charged {
                    account(table, &c).charge(4);
                } else {
                    account(table, &c).reserve(4, 0).expect("there is always room for it");
                }
            });
            let look = account(&table, &b).look(0);
            mover.join().expect("it ends");
            assert!(look.held <= 4 || !look.is_certain, "{} bytes are held, of 4", look.held);
            // Nobody is in the way any more.
            assert!(account(&table, &b).look(0).is_certain);
        });
    }
}

#[test]
fn who_is_always_within_the_cap_is_never_refused() {
    explore(3, || {
        let (table, [a, b, c]) = scene(|table| seat(table, 8, [4, 0, 0]));
        let mover = start(&table, a, move |table, a| {
            account(table, a).refund(4);
            account(table, &c).reserve(4, 0).expect("there is always room for it");
            account(table, &c).refund(4);
            account(table, a).reserve(4, 0).expect("there is always room for it");
        });
        account(&table, &b).reserve(4, 0).expect("there is always room for it");
        mover.join().expect("it ends");
        assert_eq!(held(&table), 8);
    });
}

#[test]
fn what_the_driver_has_taken_already_is_seen_by_whoever_asks_later() {
    explore(3, || {
        let (table, [a, b]) = scene(|table| seat(table, 10, [0, 0]));
        let other = start(&table, b, |table, place| account(table, place).charge(6));
        let mine = account(&table, &a).reserve(6, 0).is_ok();
        other.join().expect("it ends");
        assert_eq!(held(&table), if mine { 12 } else { 6 });
        assert!(account(&table, &a).reserve(5, 0).is_err());
    });
}

#[test]
fn a_thread_that_outlives_its_keeper_by_a_moment_takes_no_more_than_there_is() {
    explore(2, || {
        let (table, [a, b]) = scene(|table| seat(table, 10, [0, 0]));
        let kernel = start(&table, b, |table, b| table.processes[b.process].life.store(DIED, SeqCst));
        let dying = start(&table, b, |table, place| account(table, place).reserve(6, 0).is_ok());
        let mine = account(&table, &a).reserve(6, 0).is_ok();
        kernel.join().expect("it ends");
        let theirs = dying.join().expect("it ends");
        assert!(!(mine && theirs), "both got them");
        assert!(held(&table) <= 10);
    });
}

#[test]
fn a_turn_that_somebody_died_with_goes_to_the_next() {
    explore(2, || {
        let (table, [a, b]) = scene(|table| {
            let [a, b, dead] = seat(table, 10, [0, 0, 0]);
            table.processes[dead.process].life.store(DIED, SeqCst);
            table.containers[0].tie.store((dead.process as u64 + 1) << 32 | 7, SeqCst);
            [a, b]
        });
        let other = start(&table, b, |table, place| account(table, place).reserve(6, 0).is_ok());
        let mine = account(&table, &a).reserve(6, 0).is_ok();
        let theirs = other.join().expect("it ends");
        assert!(mine != theirs, "{}", if mine { "both got them" } else { "nobody got them" });
    });
}

#[test]
fn a_cap_that_is_lowered_holds_for_whoever_is_not_done_yet() {
    explore(3, || {
        let (table, [a, b]) = scene(|table| seat(table, 10, [0, 0]));
        let other = start(&table, b, |table, place| account(table, place).reserve(6, 0).is_ok());
        account(&table, &a).set_cap(5);
        let seen = account(&table, &a).look(0).held;
        let theirs = other.join().expect("it ends");
        assert!(!theirs || seen == 6, "something was taken after the cap was lowered");
        assert_eq!(held(&table), if theirs { 6 } else { 0 });
    });
}

/// Memory of one becomes another's while a third one asks for what would only be there if it were nobody's. Whoever adds up comes
/// to the other first, which has nothing yet.
#[test]
fn what_passes_from_one_to_another_is_never_nobodys() {
    explore(2, || {
        let (table, [a, b, c]) = scene(|table| seat(table, 10, [0, 6, 0]));
        let passing = start(&table, b, move |table, place| {
            let account = account(table, place);
            account.find(&table.processes[a.process], 6, 0);
            account.refund(6);
        });
        assert!(account(&table, &c).reserve(5, 0).is_err(), "eleven of ten");
        passing.join().expect("it ends");
        assert_eq!(held(&table), 0);
        assert_eq!(table.processes[a.process].found.load(SeqCst), 6);
    });
}

/// Memory that a member lets go of stays, in descriptors, while another asks for what would only be there if it did not.
#[test]
fn what_descriptors_keep_is_counted_on_its_way() {
    explore(3, || {
        let (table, [a, b]) = scene(|table| seat(table, 10, [6, 0]));
        let lending = start(&table, a, |table, place| account(table, place).lend(6, 6));
        assert!(account(&table, &b).reserve(5, 0).is_err(), "eleven of ten");
        lending.join().expect("it ends");
        assert_eq!((held(&table), table.processes[a.process].lent.load(SeqCst)), (0, 6));
    });
}

/// What others found a member to hold, it takes into what it says itself, while another asks.
#[test]
fn what_was_found_is_counted_while_its_holder_takes_it_over() {
    explore(3, || {
        let (table, [a, b]) = scene(|table| seat(table, 10, [0, 0]));
        table.processes[a.process].found.store(6, SeqCst);
        let looking = start(&table, a, |table, place| {
            account(table, place).charge(6);
            account(table, place).has_seen(6);
        });
        assert!(account(&table, &b).reserve(5, 0).is_err(), "eleven of ten");
        looking.join().expect("it ends");
        assert_eq!((held(&table), table.processes[a.process].found.load(SeqCst)), (6, 0));
    });
}
