//! Leases and what containers say of themselves, with a clock in the test's hand.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ration_policy::Share;

use super::{Someone, region};
use crate::compute::Compute;
use crate::steering::{Facts, Heard, Lease};

const MS: u64 = 1_000_000;
const NOW: u64 = 1_000 * MS;

/// Fills the GPU and wants it.
const FILLS: Facts = Facts {
    usage: 300_000,
    demand: 900_000,
    wants: true,
    fills: true,
    burst: 0,
    is_on: true,
    pending: true,
    urgent: false,
    batches: false,
};

/// Containers of one process each, all of which have just said that they fill the GPU; and who is in them.
fn containers<const N: usize>(body: impl FnOnce([Compute<'_>; N], &[Someone])) {
    let mapping = region();
    let table = mapping.table();
    let people: Vec<Someone> = (1..=N as u32).map(Someone::new).collect();
    let places: Vec<_> =
        people.iter().map(|who| who.join(table, &format!("c{}", who.number), None).expect("room")).collect();
    let all = std::array::from_fn(|at| Compute { mapping: &mapping, place: &places[at], entitled: None });
    all.iter().for_each(|it: &Compute<'_>| it.says(&Heard::new(), &FILLS, NOW));
    body(all, &people);
}

fn index(it: &Compute<'_>) -> usize {
    it.index()
}

/// The newest lease, as one of them sees it.
fn seen_by(it: &Compute<'_>, now: u64) -> Lease {
    it.lease(&it.neighbourhood(&Heard::new(), now), now)
}

fn holder(it: &Compute<'_>, now: u64) -> Option<usize> {
    seen_by(it, now).holder
}

#[test]
fn lease_goes_to_who_is_named() {
    containers(|[a, b, c], _| {
        assert_eq!(holder(&a, NOW), None, "nobody has had one");
        a.pass_lease(index(&a), 0);
        for it in [&a, &b, &c] {
            assert_eq!((holder(it, NOW), seen_by(it, NOW).number), (Some(index(&a)), 1));
        }
        a.pass_lease(index(&c), 1);
        assert_eq!(holder(&b, NOW), Some(index(&c)));
        c.pass_lease(index(&b), 2);
        assert_eq!((holder(&a, NOW), seen_by(&a, NOW).number), (Some(index(&b)), 3));
    });
}

#[test]
fn silent_holder_loses_lease() {
    containers(|[a, b], _| {
        a.pass_lease(index(&a), 0);
        b.says(&Heard::new(), &FILLS, NOW + 11 * MS);
        assert_eq!(holder(&b, NOW + 11 * MS), Some(index(&a)));
        b.says(&Heard::new(), &FILLS, NOW + 13 * MS);
        assert_eq!(holder(&b, NOW + 13 * MS), None);
        assert_eq!(holder(&a, NOW + 13 * MS), Some(index(&a)), "to itself it is not silent");
        a.says(&Heard::new(), &FILLS, NOW + 14 * MS);
        assert_eq!(holder(&b, NOW + 14 * MS), Some(index(&a)), "it is back, and nobody took it");
        // One that is off comes on first, and says nothing meanwhile.
        a.says(&Heard::new(), &Facts { is_on: false, ..FILLS }, NOW + 14 * MS);
        assert_eq!(holder(&b, NOW + 40 * MS), Some(index(&a)));
    });
}

/// Nobody sees that another's processes are dead: they are silent.
#[test]
fn dead_holder_loses_lease() {
    for is_on in [true, false] {
        containers(|[a, b], people| {
            let heard = Heard::new();
            let holder = |now: u64| {
                b.says(&heard, &FILLS, now);
                b.lease(&b.neighbourhood(&heard, now), now).holder
            };
            a.says(&Heard::new(), &Facts { is_on, ..FILLS }, NOW);
            a.pass_lease(index(&a), 0);
            people[0].die();
            assert_eq!(holder(NOW), Some(index(&a)));
            // One that is off may be coming on.
            let waited = if is_on { 13 * MS } else { 37 * MS };
            assert_eq!(holder(NOW + waited - 2 * MS), Some(index(&a)), "on: {is_on}");
            assert_eq!(holder(NOW + waited), None, "on: {is_on}");
            assert_eq!(b.neighbourhood(&heard, NOW + 150 * MS).others().count(), 0, "it is gone");
        });
    }
}

#[test]
fn holder_that_wants_or_fills_nothing_loses_lease() {
    containers(|[a, b], _| {
        a.pass_lease(index(&a), 0);
        for facts in [Facts { wants: false, ..FILLS }, Facts { fills: false, ..FILLS }] {
            a.says(&Heard::new(), &facts, NOW);
            assert_eq!(holder(&b, NOW), None, "{facts:?}");
        }
        a.says(&Heard::new(), &FILLS, NOW);
        assert_eq!(holder(&b, NOW), Some(index(&a)));
    });
}

#[test]
fn of_leases_of_one_number_the_lower_index_counts() {
    containers(|[a, b, c], _| {
        assert!(index(&a) < index(&b) && index(&b) < index(&c));
        c.pass_lease(index(&c), 7);
        b.pass_lease(index(&b), 7);
        for it in [&a, &b, &c] {
            assert_eq!(holder(it, NOW), Some(index(&b)));
        }
        c.pass_lease(index(&c), 8);
        assert_eq!(holder(&a, NOW), Some(index(&c)), "a newer one counts more");
    });
}

#[test]
fn only_fresh_words_count() {
    containers(|[a, b], _| {
        let late = NOW + 149 * MS;
        a.says(&Heard::new(), &FILLS, late);
        assert_eq!(a.neighbourhood(&Heard::new(), late).len(), 2);
        let later = NOW + 150 * MS;
        let among = a.neighbourhood(&Heard::new(), later);
        assert_eq!((among.len(), among.get(index(&b)), among.others().count()), (1, None, 0));
        b.says(&Heard::new(), &FILLS, later);
        assert_eq!(a.neighbourhood(&Heard::new(), later).len(), 2);
        b.says_nothing(&Heard::new(), later);
        assert_eq!(a.neighbourhood(&Heard::new(), later).len(), 1);
    });
}

/// Containers have time namespaces: another's clock may say anything. What counts is when it was heard, by the listener's own.
#[test]
fn words_by_another_clock_count_for_as_long_as_those_by_ones_own() {
    for theirs in [NOW + 3_600_000 * MS, 1, u64::MAX - 200 * MS] {
        containers(|[a, b], _| {
            let heard = Heard::new();
            let is_there = |now: u64| {
                a.says(&Heard::new(), &FILLS, now);
                a.neighbourhood(&heard, now).get(index(&b)).map(|it| (it.said, it.peer.quiet))
            };
            b.says(&Heard::new(), &FILLS, theirs);
            assert_eq!(is_there(NOW), None, "it may have been dead for long");
            b.says(&Heard::new(), &Facts { pending: false, ..FILLS }, theirs + 7 * MS);
            assert_eq!(is_there(NOW + 10 * MS), Some((NOW + 10 * MS, 7 * MS)));
            b.is_at_work(theirs + 9 * MS);
            assert_eq!(is_there(NOW + 20 * MS), Some((NOW + 10 * MS, 8 * MS)));
            assert!(is_there(NOW + 159 * MS).is_some());
            assert_eq!(is_there(NOW + 160 * MS), None, "it said nothing else");
            b.says(&Heard::new(), &FILLS, theirs + 8 * MS);
            assert!(is_there(NOW + 170 * MS).is_some());
        });
    }
}

#[test]
fn processes_of_a_container_are_added_up() {
    let (mapping, people) = (region(), [Someone::new(1), Someone::new(2), Someone::new(3)]);
    let table = mapping.table();
    let [first, second, other] = [("box", 0), ("box", 1), ("other", 2)]
        .map(|(name, who): (&str, usize)| people[who].join(table, name, None).expect("room"));
    let [first, second, other] =
        [&first, &second, &other].map(|place| Compute { mapping: &mapping, place, entitled: None });
    first.says(&Heard::new(), &Facts { usage: 200_000, burst: 5, ..Facts::default() }, NOW - MS);
    second.says(
        &Heard::new(),
        &Facts {
            usage: 300_000,
            demand: 900_000,
            wants: true,
            fills: true,
            burst: 9,
            is_on: true,
            pending: true,
            urgent: false,
            batches: false,
        },
        NOW,
    );
    let of = |now: u64| *other.neighbourhood(&Heard::new(), now).get(index(&first)).expect("it is there");
    let seen = of(NOW);
    assert_eq!((seen.peer.usage, seen.peer.wants, seen.peer.fills, seen.peer.burst), (500_000, true, true, 9));
    assert_eq!((seen.is_on, seen.said), (true, NOW));
    assert!(first.is_leader(&Heard::new(), NOW) && !second.is_leader(&Heard::new(), NOW));
    // Whoever says more than there is is believed no further than that.
    second.says(&Heard::new(), &Facts { usage: u32::MAX, ..FILLS }, NOW);
    assert_eq!(of(NOW).peer.usage, 1_000_000);
    second.says(&Heard::new(), &FILLS, NOW);
    people[0].die();
    second.says(&Heard::new(), &FILLS, NOW);
    assert_eq!(of(NOW).peer.usage, 300_000, "the dead use nothing");
    assert!(second.is_leader(&Heard::new(), NOW));
}

#[test]
fn lease_goes_to_who_had_least_by_weight() {
    containers(|[a, b, c], _| {
        a.held_for(30 * MS, Share::from_ppm(750_000));
        b.held_for(20 * MS, Share::from_ppm(250_000));
        c.says(&Heard::new(), &Facts { fills: false, ..FILLS }, NOW);
        let among = a.neighbourhood(&Heard::new(), NOW);
        assert_eq!((among.wanting().count(), among.next(usize::MAX)), (2, Some(index(&a))));
        // Who comes anew has had no less than the least of the others.
        c.says(&Heard::new(), &FILLS, NOW);
        c.takes_turns(&c.neighbourhood(&Heard::new(), NOW), true);
        let among = a.neighbourhood(&Heard::new(), NOW);
        let time = |it: &Compute<'_>| among.get(index(it)).expect("it is there").virtual_time;
        assert_eq!((time(&c), time(&a) < time(&b)), (time(&a), true));
    });
}

#[test]
fn pass_wakes_who_waits() {
    containers(|[a, b], _| {
        a.pass_lease(index(&a), 0);
        let lease = seen_by(&b, NOW);
        assert_eq!(lease.holder, Some(index(&a)));
        let is_asleep = AtomicBool::new(false);
        let (mut long, began) = (Duration::ZERO, Instant::now());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                is_asleep.store(true, Ordering::SeqCst);
                b.wait_for_lease(&lease, NOW + 900 * MS, NOW);
                began.elapsed()
            });
            while !is_asleep.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(30));
            a.pass_lease(index(&b), 1);
            long = waits.join().expect("it ends");
        });
        assert!((30..600).contains(&(long.as_millis() as u64)), "{long:?}");
        // A lease that went meanwhile is not waited for.
        let began = Instant::now();
        b.wait_for_lease(&lease, NOW + 900 * MS, NOW);
        assert!(began.elapsed() < Duration::from_millis(600));
        // And nobody waits for longer than it said.
        let began = Instant::now();
        b.wait_for_lease(&seen_by(&b, NOW), NOW + 20 * MS, NOW);
        assert!(began.elapsed() >= Duration::from_millis(20));
    });
}
