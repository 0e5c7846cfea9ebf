//! A limit is a limit, in whatever window one looks.

use std::fmt::Write as _;

use proptest::prelude::*;
use ration_policy::{Bucket, Flight};

use crate::container::Setup;
use crate::gpu::{MS, SECOND, US};
use crate::load::Load;
use crate::model::Model;
use crate::outcome::Outcome;
use crate::report;

/// By how much more than limit × window a container may have had, in milliseconds: what is due to it in the burst and in the
/// longest time for which it was kept waiting, one piece with which it runs into debt, and what is in flight before that
/// piece and was not charged yet.
fn allowance(limit: f64, piece: u64, flight: Flight, kept_waiting: f64) -> f64 {
    let ms = |time: u64| time as f64 / MS as f64;
    limit / 100.0 * (ms(Bucket::USUAL_BURST) + kept_waiting) + ms(piece + piece.max(flight.most))
}

fn run(setups: Vec<Setup>) -> Outcome {
    Model::new(setups, 1).run(5 * SECOND)
}

#[test]
fn no_window_has_more_than_limit_and_burst() {
    let mut table = String::from(
        "most GPU time above limit x window, in any window of any length, alone (next to what the burst and two pieces allow)\n",
    );
    for (name, piece) in [("0.05 ms", 50 * US), ("0.5 ms", 500 * US), ("5 ms", 5 * MS)] {
        for limit in [5, 25, 50, 90] {
            // Saturating from the start, from after a pause, and with pauses that let it save up again and again.
            let pauses: Vec<_> = (0..25).map(|number| (number * 200 * MS, number * 200 * MS + 120 * MS)).collect();
            let activities: [&[(u64, u64)]; 3] = [&[], &[(SECOND, 5 * SECOND)], &pauses];
            for active in activities {
                let load = Load::endless(&[piece]).during(active);
                let outcome = run(vec![Setup::new(limit, load).limit(limit)]);
                let share = f64::from(limit);
                let (above, most) = (outcome.most_above(0, share), allowance(share, piece, Flight::USUAL, 0.0));
                assert!(above <= most, "{limit}% in pieces of {name}: {above} ms more, and {most} are allowed");
                if active.is_empty() {
                    let _ = writeln!(table, "  {limit:2}% in pieces of {name:7}: {above:5.2} ms of {most:5.2}");
                }
            }
        }
    }
    report("turns-ceiling", &table);
}

/// A piece of ten seconds runs far into debt, and then that is paid back: in the end it is the limit again.
#[test]
fn a_long_piece_is_paid_back() {
    let setup = || Setup { hangs: Some((SECOND, 10 * SECOND)), ..Setup::new(25, Load::endless(&[500 * US])).limit(25) };
    for setups in [vec![setup()], vec![setup(), Setup::new(75, Load::endless(&[500 * US]))]] {
        let alone = setups.len() == 1;
        let outcome = Model::new(setups, 1).run(60 * SECOND);
        let share = outcome.share(0);
        // Next to another it is charged for half of the time in which both have work, in which it works a little less.
        let fine = if alone { (share - 25.0).abs() < 0.1 } else { (23.5..25.1).contains(&share) };
        assert!(fine, "{share}");
        assert_eq!(outcome.worked(0, 24 * SECOND, 40 * SECOND), 0, "it owes more than this");
    }
}

/// Containers with a limit each, as (per cent, which piece, for how long it pauses and works by turns), and one that has none, as
/// (request, until when it works at first): which of them has more than it may, and what.
fn above_next_to_others(limits: &[(u32, usize, u64, u64)], other: (u32, u64)) -> Option<String> {
    let pieces = [50 * US, 500 * US, 5 * MS];
    let limited = |(limit, piece, pause, works): &(u32, usize, u64, u64)| {
        let period = pause + works;
        let active: Vec<_> = (0..3000 / period).map(|n| (n * period * MS, (n * period + works) * MS)).collect();
        Setup::new(*limit, Load::endless(&[pieces[*piece]]).during(&active)).limit(*limit)
    };
    let mut setups: Vec<_> = limits.iter().map(limited).collect();
    let active = [(0, other.1 * MS), (2 * SECOND, 3 * SECOND)];
    setups.push(Setup::new(other.0, Load::endless(&[500 * US]).during(&active)));
    let outcome = Model::new(setups, 1).run(3 * SECOND);
    // In a turn that lasts, more is in flight than where others wait for the end.
    let flight = Flight::USUAL.within(u64::MAX);
    limits.iter().enumerate().find_map(|(index, (limit, piece, ..))| {
        let share = f64::from(*limit);
        let most = allowance(share, pieces[*piece], flight, outcome.longest_wait(index));
        let above = outcome.most_above(index, share);
        (above > most).then(|| format!("{index}: {above} ms more than {share}%, and {most} are allowed"))
    })
}

/// It has all that became due in 0.8 s in one turn.
#[test]
fn who_was_kept_waiting_for_long_has_no_more_either() {
    assert_eq!(above_next_to_others(&[(2, 0, 69, 125)], (1, 100)), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 100, ..ProptestConfig::default() })]

    /// Next to anybody: what it was kept waiting for is all that is added.
    #[test]
    fn no_window_has_more_next_to_others(
        limits in prop::collection::vec((2..100u32, 0..3usize, 0..300u64, 50..300u64), 1..4),
        other in (1..100u32, 100..1000u64),
    ) {
        prop_assert_eq!(above_next_to_others(&limits, other), None);
    }
}
