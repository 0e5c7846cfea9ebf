//! Containers that all want more than there is.

use std::fmt::Write as _;

use crate::container::{Setup, percent};
use crate::gpu::{MS, SECOND, US};
use crate::load::Load;
use crate::model::Model;
use crate::outcome::Outcome;
use crate::report;
use proptest::prelude::*;
use ration_policy::turns::Priority;

const LENGTH: u64 = 10 * SECOND;

/// Pieces of work that programs are made of.
const PIECES: [(&str, &[u64]); 4] =
    [("0.05 ms", &[50 * US]), ("0.5 ms", &[500 * US]), ("5 ms", &[5 * MS]), ("mixed", &[50 * US, 500 * US, 5 * MS])];

fn run(setups: &[Setup], seed: u64) -> Outcome {
    Model::new(setups.to_vec(), seed).run(LENGTH)
}

/// Per mille, because an eighth is 12.5%.
fn saturating(per_mille: &[u32], limited: bool, pieces: &[u64]) -> Vec<Setup> {
    let setup = |request: &u32| {
        let limit = if limited { request * 1000 } else { percent(100) };
        Setup { request: request * 1000, limit, ..Setup::new(0, Load::endless(pieces)) }
    };
    per_mille.iter().map(setup).collect()
}

/// The heart of it. A share as request alone, and as request and limit.
#[test]
fn each_gets_its_share() {
    let mut table = String::from(
        "shares wanted                 pieces    shares got, % of the GPU's time over 10 s           sum   worst second  longest wait\n",
    );
    let mut wrong = String::new();
    let splits: [&[u32]; 5] = [&[250, 750], &[100, 900], &[200, 300, 500], &[500, 500], &[125; 8]];
    for (limited, split, (name, pieces)) in [false, true].into_iter().flat_map(|limited| {
        splits.iter().flat_map(move |split| PIECES.iter().map(move |pieces| (limited, *split, pieces)))
    }) {
        // Only where pieces are mixed is anything left to chance.
        let seeds: &[u64] = if pieces.len() > 1 { &[1, 77] } else { &[1] };
        for &seed in seeds {
            let outcome = run(&saturating(split, limited, pieces), seed);
            let wanted: Vec<f64> = split.iter().map(|share| f64::from(*share) / 10.0).collect();
            let off = |index: usize| (outcome.share(index) - wanted[index]).abs();
            let worst = |index: usize| outcome.worst_second(index, wanted[index], 0, LENGTH);
            let most = |of: &dyn Fn(usize) -> f64| (0..split.len()).map(of).fold(0.0, f64::max);
            let (off, worst, sum) = (most(&off), most(&worst), outcome.sum());
            let wait = most(&|index| outcome.longest_wait(index));
            let list = |shares: &[f64], digits: usize| {
                shares.iter().map(|share| format!("{share:.digits$}")).collect::<Vec<_>>().join(" ")
            };
            let wanted = if split.len() == 8 { "8 x 12.5".to_owned() } else { list(&wanted, 0) };
            let line = format!(
                "{wanted:9} {:18}  {name:8}  {:50}  {sum:4.1}  {worst:4.1} points   {wait:4.0} ms",
                if limited { "request and limit" } else { "request" },
                list(&outcome.shares(), 1)
            );
            // Limits that add up to the whole GPU leave nothing to make up for a switch with.
            let least = if limited { 98.8 } else { 99.0 };
            if off > 0.5 || worst > 4.0 || sum < least {
                let _ = writeln!(wrong, "{line}, off by {off:.2}");
            }
            if seed == 1 {
                let _ = writeln!(table, "{line}");
            }
        }
    }
    report("turns-shares", &table);
    assert!(wrong.is_empty(), "further than half a point off, or 4 in a second, or less than 99% in all:\n{wrong}");
}

#[test]
fn it_does_not_matter_what_the_neighbours_pieces_are() {
    for (mine, theirs) in [(0, 2), (2, 0), (1, 3), (3, 0)] {
        let load = |index: usize| Load::endless(PIECES[index].1);
        let outcome = run(&[Setup::new(25, load(mine)), Setup::new(75, load(theirs))], 1);
        assert!((outcome.share(0) - 25.0).abs() < 0.5, "{:?} of {mine} and {theirs}", outcome.shares());
        assert!((outcome.share(1) - 75.0).abs() < 0.5, "{:?} of {mine} and {theirs}", outcome.shares());
    }
}

/// A program that synchronises leaves gaps, alone too. Half of the time is half of its own speed.
#[test]
fn one_that_waits_for_each_piece_has_half_of_its_own_speed() {
    let mut table = String::from("50/50 next to a deep queue, 0.5 ms pieces: each one's part of its own speed alone\n");
    for gap in [15, 50, 150, 250] {
        let syncing = Setup::new(50, Load::syncing(500 * US, gap * US));
        let deep = Setup::new(50, Load::endless(&[500 * US]));
        let (alone, both) = (run(std::slice::from_ref(&syncing), 1), run(&[syncing, deep], 1));
        let (part, other) = (100.0 * both.share(0) / alone.share(0), both.share(1));
        let _ = writeln!(table, "  a gap of {gap:3} us after each piece: {part:.1}%, the neighbour {other:.1}%");
        assert!((part - 50.0).abs() < 1.0 && (other - 50.0).abs() < 1.0, "{table}");
    }
    report("turns-syncing", &table);
}

/// Pauses that are longer than a hand-over, in which the other one works. Nobody is worse off than its share of its own speed
/// by more than the switches that it causes, and the one that pauses least of all.
#[test]
fn one_that_pauses_keeps_its_claim() {
    for (request, pause) in [(50, 400 * US), (50, 3 * MS), (90, 400 * US), (90, 3 * MS)] {
        let pausing = Setup::new(request, Load { batch: 20, ..Load::syncing(500 * US, pause) });
        let deep = Setup::new(100 - request, Load::endless(&[500 * US]));
        let (alone, both) = (run(std::slice::from_ref(&pausing), 1), run(&[pausing, deep], 1));
        let promised = alone.share(0) * f64::from(request) / 100.0;
        assert!(both.share(0) > promised - 10.0 && both.share(0) > 45.0, "{:?} of {promised}", both.shares());
        assert!(both.share(1) > f64::from(100 - request) - 2.0, "{:?}", both.shares());
        assert!(both.sum() > 94.0, "{:?}", both.shares());
    }
}

#[test]
fn requests_need_not_add_up() {
    let endless = || Load::endless(&[500 * US]);
    // More than the GPU: all are scaled down alike. Less: what is left is shared out in the same proportion.
    for requests in [[50, 100], [20, 40], [1, 2]] {
        let outcome = run(&requests.map(|request| Setup::new(request, endless())), 1);
        let third = 100.0 / 3.0;
        assert!(
            (outcome.share(0) - third).abs() < 0.7 && (outcome.share(1) - 2.0 * third).abs() < 0.7,
            "{requests:?}: {:?}",
            outcome.shares()
        );
    }
    // Without a request: equal among themselves, little next to one that has one, but never nothing.
    let outcome = run(&[Setup::new(0, endless()), Setup::new(0, endless())], 1);
    assert!((outcome.share(0) - outcome.share(1)).abs() < 0.5, "{:?}", outcome.shares());
    let outcome = run(&[Setup::new(0, endless()), Setup::new(100, endless())], 1);
    assert!(outcome.share(0) > 0.8 && outcome.share(1) > 98.5, "{:?}", outcome.shares());
    // What a limit leaves of a GPU goes to whoever asked for nothing.
    let outcome = run(&[Setup::new(0, endless()), Setup::new(25, endless()).limit(25)], 1);
    assert!(outcome.share(0) > 73.8 && outcome.share(1) > 24.5, "{:?}", outcome.shares());
}

#[test]
fn alone_there_is_the_limit_and_nothing_else() {
    for (_, pieces) in PIECES {
        let outcome = run(&[Setup::new(10, Load::endless(pieces))], 1);
        assert!(outcome.sum() > 99.9, "without a limit: {}", outcome.sum());
        for limit in [5, 10, 25, 50, 75, 90] {
            let outcome = run(&[Setup::new(limit, Load::endless(pieces)).limit(limit)], 1);
            let limit = f64::from(limit);
            // The first second has what was saved up before.
            let after = outcome.between(0, SECOND, LENGTH);
            assert!((after - limit).abs() < 0.25, "{limit} of {pieces:?}: {after}");
            assert!(outcome.worst_second(0, limit, 0, LENGTH) < 4.0, "{limit} of {pieces:?}");
        }
    }
}

/// What each gets of so much: in proportion to its weight, up to its limit, and nothing is left that somebody could use.
fn filled(mut left: f64, containers: &[(f64, f64)]) -> Vec<f64> {
    let mut shares = vec![0.0; containers.len()];
    let mut open: Vec<usize> = (0..containers.len()).collect();
    while !open.is_empty() && left > 1e-9 {
        let together: f64 = open.iter().map(|index| containers[*index].0).sum();
        let fits = |index: usize, shares: &[f64]| containers[index].1 - shares[index];
        let level =
            open.iter().map(|index| fits(*index, &shares) / containers[*index].0).fold(left / together, f64::min);
        for index in &open {
            shares[*index] += level * containers[*index].0;
        }
        left -= level * together;
        open.retain(|index| fits(*index, &shares) > 1e-9);
    }
    shares
}

/// Some container: its request and limit, its priority, and what it is made of; `None`: it wants nothing.
type Any = (u32, u32, Priority, Option<usize>);

fn any_container() -> impl Strategy<Value = Any> {
    let limit = prop_oneof![Just(100u32), 5..=100u32];
    let priority = prop_oneof![4 => Just(Priority::Normal), 1 => Just(Priority::Latency), 1 => Just(Priority::Batch)];
    (3..=100u32, limit, priority, prop::option::weighted(0.8, 0..PIECES.len()))
}

fn setup_of((request, limit, priority, pieces): &Any) -> Setup {
    let load = Load::endless(PIECES[pieces.unwrap_or(0)].1);
    let load = if pieces.is_some() { load } else { load.during(&[(2 * LENGTH, 3 * LENGTH)]) };
    Setup::new(*request, load).limit(*limit).priority(*priority)
}

/// What it weighs and what it can use, in per cent.
fn claim_of((request, limit, _, pieces): &Any) -> (f64, f64) {
    (f64::from(*request.min(limit)), if pieces.is_some() { f64::from(*limit) } else { 0.0 })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, max_shrink_iters: 100, ..ProptestConfig::default() })]

    /// Whatever they ask for, may use and are made of: the GPU fills up like a vessel. So nobody with demand has less than
    /// its request where requests add up, nobody more than its limit, and nothing is lost to those that want nothing. Next
    /// to batch, the others have more than that, and never less than their requests.
    #[test]
    fn any_containers_share_like_water(containers in prop::collection::vec(any_container(), 1..6), seed in 1..1000u64) {
        let outcome = run(&containers.iter().map(setup_of).collect::<Vec<_>>(), seed);
        let wanted = filled(100.0, &containers.iter().map(claim_of).collect::<Vec<_>>());
        let could: f64 = wanted.iter().sum();
        // After the first second, which has what was saved up before.
        let got: Vec<f64> = (0..containers.len()).map(|index| outcome.between(index, SECOND, LENGTH)).collect();
        let sum: f64 = got.iter().sum();
        let is_batch = |container: &&Any| container.2 == Priority::Batch && container.3.is_some();
        let in_order = containers.iter().find(is_batch).is_none();
        // What is taken back from batch after a short while costs some more switches.
        let least = if in_order { 0.98 } else { 0.97 };
        prop_assert!(sum >= could * least, "{sum} of {could}: {got:?} of {wanted:?}");
        for (got_one, wanted_one) in got.iter().zip(&wanted).filter(|_| in_order) {
            // Who lives on what the others' limits leave pays for all switches.
            prop_assert!((got_one - wanted_one).abs() < 2.0, "{got:?} of {wanted:?}");
        }
        // Scaled down where they ask for more than there is.
        let asked: f64 = containers.iter().filter(|it| it.3.is_some()).map(|it| claim_of(it).0).sum();
        for (got_one, container) in got.iter().zip(&containers) {
            if container.3.is_none() || is_batch(&container) {
                continue;
            }
            let due = claim_of(container).0 * (100.0 / asked).min(1.0);
            prop_assert!(*got_one > due - 1.0, "{got:?}, of which {due} are due");
        }
    }

    /// The same where somebody interrupts them fifty times a second: that costs some switches, which all pay for alike.
    #[test]
    fn any_containers_share_what_one_in_a_hurry_leaves(containers in prop::collection::vec(any_container(), 1..5)) {
        let hurried = Setup::new(20, Load::inference()).priority(Priority::Latency);
        let others = containers.iter().filter(|it| it.2 == Priority::Normal).copied().collect::<Vec<_>>();
        let setups: Vec<_> = others.iter().map(setup_of).chain([hurried]).collect();
        let outcome = run(&setups, 1);
        let claims: Vec<_> = others.iter().map(claim_of).chain([(20.0, 13.0)]).collect();
        let least = filled(96.5, &claims);
        for (index, least) in least.iter().enumerate().take(others.len()) {
            let got = outcome.between(index, SECOND, LENGTH);
            prop_assert!(got > least - 1.0, "{:?} of at least {least:?}", outcome.shares());
        }
    }
}
