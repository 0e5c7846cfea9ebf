//! Priorities: who is not kept waiting, who takes what is left, and that nobody starves.

use std::fmt::Write as _;

use proptest::prelude::*;
use ration_policy::turns::Priority;

use crate::container::Setup;
use crate::gpu::{MS, SECOND, US};
use crate::load::{Load, Pace};
use crate::model::Model;
use crate::outcome::Outcome;
use crate::report;

fn run(setups: &[Setup], seconds: u64, seed: u64) -> Outcome {
    Model::new(setups.to_vec(), seed).run(seconds * SECOND)
}

fn inference(request: u32) -> Setup {
    Setup::new(request, Load::inference()).priority(Priority::Latency)
}

#[test]
fn requests_are_answered_next_to_a_saturating_neighbour() {
    let alone = run(&[inference(20)], 20, 1);
    let solo = [50, 99].map(|percent| alone.percentile(0, percent));
    let mut table = format!(
        "20 kernels, 2.6 ms, every 20 ms, next to a saturating neighbour\n  \
         alone                                       p50 {:.2} ms          p99 {:.2} ms\n",
        solo[0], solo[1]
    );
    let neighbours: [(&str, &[u64]); 3] =
        [("0.05 ms pieces", &[50 * US]), ("0.5 ms pieces", &[500 * US]), ("both", &[50 * US, 500 * US])];
    for (name, pieces) in neighbours {
        for (who, priority) in [("latency", Priority::Latency), ("normal", Priority::Normal)] {
            let setups = [inference(20).priority(priority), Setup::new(80, Load::endless(pieces))];
            let outcome = run(&setups, 20, 1);
            let times = [50, 99].map(|percent| outcome.percentile(0, percent));
            let keeps = 100.0 * outcome.share(1) / (100.0 - outcome.share(0));
            let _ = writeln!(
                table,
                "  as {who:8} next to {name:14}           p50 {:.2} ms, {:.2} x  p99 {:.2} ms, {:.2} x; the neighbour keeps {keeps:.1}% of the rest",
                times[0],
                times[0] / solo[0],
                times[1],
                times[1] / solo[1],
            );
            if priority == Priority::Latency {
                assert!(times[0] <= 1.2 * solo[0] && times[1] <= 1.4 * solo[1] && keeps >= 97.0, "{table}");
            }
        }
    }
    report("turns-latency", &table);
}

/// A neighbour whose threads are not there when a request comes: they are stopped, or no processor is free.
#[test]
fn a_neighbour_that_stands_still_keeps_no_request_waiting() {
    let solo = run(&[inference(20)], 2, 1).percentile(0, 100);
    for stops in (0..40).map(|number| SECOND + number * 500 * US) {
        let neighbour = Setup { stopped: Some((stops, stops + 30 * MS)), ..Setup::new(80, Load::endless(&[500 * US])) };
        let outcome = run(&[inference(20), neighbour], 2, 1);
        let most = outcome.percentile(0, 100);
        assert!(most < solo + 1.2, "stopped at {} µs: {most} ms, alone {solo}", stops / US);
        assert!(outcome.share(1) > 80.0, "stopped at {} µs: {:?}", stops / US, outcome.shares());
    }
}

/// Several, next to several: nobody in a hurry is kept waiting by anybody but its like.
#[test]
fn two_that_are_in_a_hurry() {
    let solo = run(&[inference(20)], 20, 1).percentile(0, 99);
    let busy = || Setup::new(30, Load::endless(&[500 * US]));
    let outcome = run(&[inference(20), inference(20), busy(), busy()], 20, 5);
    for index in [0, 1] {
        let (half, most) = (outcome.percentile(index, 50), outcome.percentile(index, 99));
        assert!(half < 1.3 * solo && most < 2.6 * solo, "p50 {half}, p99 {most}, alone {solo}");
    }
    assert!((outcome.share(2) - outcome.share(3)).abs() < 1.0 && outcome.share(2) > 34.0, "{:?}", outcome.shares());
}

/// Being in a hurry is no way to a larger share.
#[test]
fn beyond_its_due_one_in_a_hurry_waits_like_anybody() {
    for load in [
        Load::endless(&[500 * US]),
        Load::endless(&[50 * US]),
        Load { batch: 20, pace: Pace::Every(4 * MS, MS), ..Load::endless(&[130 * US]) },
    ] {
        let greedy = Setup::new(20, load.clone()).priority(Priority::Latency);
        let outcome = run(&[greedy, Setup::new(80, Load::endless(&[500 * US]))], 10, 1);
        assert!(outcome.share(0) < 20.5 && outcome.share(0) > 15.0, "{load:?}: {:?}", outcome.shares());
        assert!(outcome.share(1) > 75.0, "{load:?}: {:?}", outcome.shares());
    }
}

/// At its ceiling it does not interrupt the others for each piece that becomes due, which would cost a switch each.
#[test]
fn at_its_ceiling_one_in_a_hurry_waits_for_a_turn_that_is_worth_it() {
    for limit in [5, 25, 60] {
        for piece in [50 * US, 500 * US, 5 * MS] {
            // It asks for more of what there is than it may use, so that nothing but its ceiling holds it back.
            let greedy = Setup::new(limit, Load::endless(&[piece])).limit(limit).priority(Priority::Latency);
            let outcome = run(&[greedy, Setup::new(3, Load::endless(&[500 * US]))], 10, 1);
            let off = (outcome.share(0) - f64::from(limit)).abs();
            assert!(off < 1.0 && outcome.sum() > 98.5, "{limit}% in pieces of {piece} ns: {:?}", outcome.shares());
        }
    }
}

/// One with a limit does not lose what is due to it when somebody in a hurry sends it away, again and again.
#[test]
fn who_is_interrupted_still_gets_its_limit() {
    for (limit, other) in [(15, 30), (15, 65), (30, 30), (30, 50), (50, 30)] {
        for piece in [50 * US, 500 * US] {
            let limited = Setup::new(limit, Load::endless(&[piece])).limit(limit);
            let setups = [inference(20), limited, Setup::new(other, Load::endless(&[piece]))];
            let outcome = run(&setups, 10, 1);
            let off = (outcome.share(1) - f64::from(limit)).abs();
            assert!(off < 0.5, "{limit}% next to {other} in pieces of {piece} ns: {:?}", outcome.shares());
        }
    }
}

#[test]
fn batch_takes_what_is_left_and_never_nothing() {
    let endless = || Load::endless(&[500 * US]);
    let batch = |request: u32| Setup::new(request, endless()).priority(Priority::Batch);
    // Next to one that wants everything, whatever the requests: a turn now and then.
    for request in [10, 50, 90] {
        let outcome = run(&[batch(request), Setup::new(10, endless())], 10, 1);
        assert!((3.0..6.0).contains(&outcome.share(0)) && outcome.sum() > 99.0, "{request}: {:?}", outcome.shares());
        assert!(outcome.longest_wait(0) < 450.0, "{}", outcome.longest_wait(0));
    }
    // Of one that wants half of the time, it takes the other half, and hardly keeps it waiting.
    let half = Load { batch: 20, pace: Pace::Every(20 * MS, 0), ..endless() };
    let outcome = run(&[batch(50), Setup::new(50, half)], 10, 1);
    assert!(outcome.share(1) > 49.5 && outcome.share(0) > 45.0, "{:?}", outcome.shares());
    assert!(outcome.percentile(1, 99) < 13.5, "10 ms of work took {}", outcome.percentile(1, 99));
    // Among themselves they share as others do.
    let outcome = run(&[batch(25), batch(75)], 10, 1);
    assert!((outcome.share(0) - 25.0).abs() < 0.5 && (outcome.share(1) - 75.0).abs() < 0.5, "{:?}", outcome.shares());
}

fn any_priority() -> impl Strategy<Value = Priority> {
    prop_oneof![Just(Priority::Batch), Just(Priority::Normal), Just(Priority::Latency)]
}

fn any_load() -> impl Strategy<Value = Load> {
    let piece = || prop_oneof![Just(50 * US), Just(500 * US), Just(5 * MS)];
    prop_oneof![
        piece().prop_map(|piece| Load::endless(&[piece])),
        (piece(), 0..5 * MS).prop_map(|(piece, gap)| Load::syncing(piece, gap)),
        (100 * US..500 * US, 2..20usize, 5 * MS..50 * MS).prop_map(|(piece, batch, every)| Load {
            batch,
            pace: Pace::Every(every, every / 4),
            ..Load::endless(&[piece])
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, max_shrink_iters: 100, ..ProptestConfig::default() })]

    /// Any priorities, any loads: who wants the GPU gets it again and again.
    #[test]
    fn nobody_starves(
        setups in prop::collection::vec((5..=100u32, prop_oneof![Just(100u32), 10..100u32], any_priority(), any_load()), 2..7),
        seed in 1..1000u64,
    ) {
        let setup = |(request, limit, priority, load): &(u32, u32, Priority, Load)| {
            Setup::new(*request, load.clone()).limit(*limit).priority(*priority)
        };
        let outcome = run(&setups.iter().map(setup).collect::<Vec<_>>(), 5, seed);
        for index in 0..setups.len() {
            let pause = outcome.longest_pause(index, 0, 5 * SECOND);
            prop_assert!(pause < 1500, "{index} of {setups:?} had nothing for {pause} ms");
        }
    }
}
