//! Whose turn it is, where two containers find out at the same moment.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Someone, region};
use crate::compute::Compute;
use crate::turns::Whose;

const MS: u64 = 1_000_000;

/// Two containers that want all of the GPU.
fn two(body: impl FnOnce([Compute<'_>; 2])) {
    let (mapping, people) = (region(), [Someone::new(1), Someone::new(2)]);
    let table = mapping.table();
    let join = |who: &Someone, name: &str| who.join(table, name, None).expect("there is room");
    let places = [join(&people[0], "one"), join(&people[1], "other")];
    body([0, 1].map(|which| Compute { table, place: &places[which] }));
}

#[test]
fn who_rests_and_goes_on_has_its_turn_unless_another_took_it() {
    two(|[one, other]| {
        let mut now = 1000 * MS;
        one.wants(now);
        assert_eq!(one.whose_turn(now), Whose::Mine(u64::MAX), "nobody else wants it");
        assert!(one.works(now + MS) && !other.works(now));
        other.wants(now);
        assert!(matches!(other.whose_turn(now), Whose::Others(_)), "one works");
        assert!(matches!(one.whose_turn(now), Whose::Mine(lasts) if lasts > 10 * MS && lasts < 100 * MS));
        now += MS;
        assert!(one.pauses(now) && !one.pauses(now), "it rests once");
        assert!(matches!(other.whose_turn(now), Whose::Others(_)), "it may go on at once");
        assert!(one.works(now + MS), "and does");
        now += MS;
        one.rests(now);
        now += MS;
        assert!(matches!(other.whose_turn(now), Whose::Mine(_)), "it rested for too long");
        assert!(!one.works(now + MS), "and has to wait");
        assert!(!one.is_holder() && other.is_holder() && one.pauses_until().is_none());
    });
}

#[test]
fn who_is_stopped_in_its_turn_has_no_other_before_it_is_back() {
    two(|[one, other]| {
        let mut now = 1000 * MS;
        one.wants(now);
        assert!(matches!(one.whose_turn(now), Whose::Mine(_)) && one.works(now + 2 * MS));
        for _ in 0..10 {
            now += MS;
            other.wants(now);
            one.still_works(now);
            assert!(
                matches!(other.whose_turn(now), Whose::Others(_)),
                "what it has started takes longer than it should"
            );
        }
        now += 2 * MS;
        other.wants(now);
        assert!(matches!(other.whose_turn(now), Whose::Others(_)), "it may be back at any moment");
        now += 2 * MS;
        assert!(matches!(other.whose_turn(now), Whose::Mine(_)), "it is not there");
        assert!(!one.works(now) && other.works(now + 25 * MS));
        now += 25 * MS;
        one.still_works(now);
        other.hand_over(now);
        assert!(other.is_holder(), "a turn would be lost on it");
        one.wants(now);
        other.hand_over(now);
        assert!(one.is_holder() && one.works(now + MS), "it is next when it is back");
    });
}

#[test]
fn a_machine_that_stands_still_ends_no_turn() {
    two(|[one, other]| {
        let mut now = 1000 * MS;
        one.wants(now);
        other.wants(now);
        assert!(matches!(one.whose_turn(now), Whose::Mine(_)) && one.works(now + MS));
        let Whose::Mine(before) = one.whose_turn(now) else { panic!("it has the turn") };
        // What it has started is done after a millisecond, and nobody is there to see that for 58 more.
        now += 59 * MS;
        one.wants(now);
        let Whose::Mine(lasts) = one.whose_turn(now) else { panic!("nobody has taken it") };
        assert_eq!(
            before - lasts,
            4 * MS,
            "of its turn, what it had started, and the time after which it could be taken"
        );
        one.wants(now);
        assert_eq!(one.whose_turn(now), Whose::Mine(lasts), "once");
        // Where another is there, the turn is its own by then.
        now += 10 * MS;
        other.wants(now);
        assert!(matches!(other.whose_turn(now), Whose::Mine(_)));
        let began = other.turn_began();
        one.wants(now + 50 * MS);
        assert_eq!(other.turn_began(), began, "it is not for one to say how long another's lasts");
    });
}

/// What `here` gives, called by this thread, and `there`, called by another.
fn at_once(here: impl FnOnce() -> bool, there: impl FnOnce() -> bool + Send) -> (bool, bool) {
    std::thread::scope(|scope| {
        let there = scope.spawn(there);
        let here = here();
        (here, there.join().expect("it ends"))
    })
}

/// One goes on at the very moment at which the other takes its turn.
#[test]
fn never_do_both_begin() {
    const ROUNDS: u64 = 20_000;
    two(|both| {
        let (arrived, mut began) = (AtomicUsize::new(0), [0; 2]);
        both[0].wants(MS);
        assert!(matches!(both[0].whose_turn(MS), Whose::Mine(_)));
        assert!(both[0].works(MS));
        for round in 1..=ROUNDS {
            let now = round * 10 * MS;
            let holder = usize::from(both[1].is_holder());
            let [resting, waiting] = [both[holder], both[1 - holder]];
            waiting.wants(now);
            resting.wants(now);
            resting.rests(now);
            let (later, turn) = (now + MS, resting.turn_began());
            arrived.store(0, Ordering::SeqCst);
            let together = || {
                arrived.fetch_add(1, Ordering::SeqCst);
                let mut looked = 0;
                while arrived.load(Ordering::SeqCst) < 2 {
                    looked += 1;
                    if looked % 10_000 == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
                }
            };
            // Each looks at a moment of its own, and each is the thread that was there first in every other round: where the
            // two have one processor between them, it is the other that goes ahead.
            let goes_on = || {
                together();
                (0..round / 2 % 64).for_each(|_| std::hint::spin_loop());
                resting.works(later)
            };
            let takes = || {
                together();
                (0..round / 128 % 64).for_each(|_| std::hint::spin_loop());
                matches!(waiting.whose_turn(later), Whose::Mine(_))
            };
            let (goes_on, takes) = if round % 2 == 0 {
                at_once(goes_on, takes)
            } else {
                let (takes, goes_on) = at_once(takes, goes_on);
                (goes_on, takes)
            };
            assert!(goes_on != takes, "in round {round}: {goes_on}, {takes}");
            // The next round begins with a new turn.
            if goes_on {
                assert_eq!(resting.turn_began(), turn, "in round {round}: it is the same turn");
                resting.hand_over(later);
            }
            assert!(waiting.works(later));
            began[usize::from(takes)] += 1;
        }
        assert!(began.iter().all(|times| *times > 0), "it never was at the same moment: {began:?}");
    });
}
