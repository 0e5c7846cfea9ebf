//! Neighbours that come and go, limits that change, processes that are stopped.

use std::fmt::Write as _;

use ration_policy::turns::Rules;

use crate::gpu::{MS, Model, SECOND, Setup, US};
use crate::load::Load;
use crate::outcome::Outcome;
use crate::report;

/// By when a change has to hold.
const SOON: u64 = 200 * MS;

fn run(setups: Vec<Setup>, seconds: u64) -> Outcome {
    Model::new(setups, Rules::USUAL, 1).run(seconds * SECOND)
}

#[test]
fn all_of_the_gpu_until_the_neighbour_comes_and_again_when_it_goes() {
    let mut table = String::from("request 25%, limit 100%, and a neighbour of 75% that is there every other two seconds\n");
    for (name, piece) in [("0.05 ms", 50 * US), ("0.5 ms", 500 * US), ("5 ms", 5 * MS)] {
        let there = [2 * SECOND..4 * SECOND, 6 * SECOND..8 * SECOND];
        let stays = Setup::new(25, Load::endless(&[piece]));
        let comes = Setup::new(75, Load::endless(&[piece]).during(&there));
        let outcome = run(vec![stays, comes], 10);
        for begins in [0, 2, 4, 6, 8].map(|second| second * SECOND) {
            let (from, to) = (if begins == 0 { 0 } else { begins + SOON }, begins + 2 * SECOND);
            let (share, neighbour) = (outcome.between(0, from, to), outcome.between(1, from, to));
            let _ = writeln!(table, "  {name:7} pieces, second {}: {share:5.1}%, the neighbour {neighbour:4.1}%", begins / SECOND);
            let fine = match there.iter().any(|there| there.start == begins) {
                true => (share - 25.0).abs() < 1.0 && (neighbour - 75.0).abs() < 1.0,
                false => share > 99.5,
            };
            assert!(fine, "{table}");
        }
    }
    report("turns-neighbour", &table);
}

/// Many containers that want nothing, or wanted something once, cost nothing.
#[test]
fn nothing_is_lost_to_the_idle() {
    let idle = || Setup::new(40, Load::endless(&[500 * US]).during(&[0..SECOND]));
    let mut setups = vec![Setup::new(1, Load::endless(&[500 * US]))];
    setups.extend((0..7).map(|_| idle()));
    let outcome = run(setups, 10);
    assert!(outcome.between(0, SECOND + SOON, 10 * SECOND) > 99.9, "{:?}", outcome.shares());
}

/// An account of what was used long ago, alone or in other company, must not keep anybody waiting now.
#[test]
fn old_accounts_are_closed() {
    // The first is alone for long, then the second, then both want the GPU; and the third only now.
    let endless = || Load::endless(&[500 * US]);
    let setups = vec![
        Setup::new(5, endless().during(&[0..10 * SECOND, 20 * SECOND..30 * SECOND])),
        Setup::new(45, endless().during(&[10 * SECOND..30 * SECOND])),
        Setup::new(50, endless().during(&[22 * SECOND..30 * SECOND])),
    ];
    let outcome = run(setups, 30);
    let second = |index: usize, from: u64| outcome.between(index, from * SECOND + SOON, (from + 1) * SECOND + SOON);
    assert!((second(0, 20) - 10.0).abs() < 3.0, "5 of 50: {}", second(0, 20));
    assert!((second(1, 20) - 90.0).abs() < 3.0, "45 of 50: {}", second(1, 20));
    assert!((second(0, 22) - 5.0).abs() < 2.5 && (second(1, 22) - 45.0).abs() < 2.5, "{} {}", second(0, 22), second(1, 22));
    assert!((second(2, 22) - 50.0).abs() < 2.5, "{}", second(2, 22));
}

#[test]
fn a_new_limit_holds_soon() {
    for piece in [50 * US, 500 * US, 5 * MS] {
        for (before, after) in [(50, 10), (90, 25), (5, 90), (10, 100), (100, 10)] {
            let changes = Some((3 * SECOND, after));
            let outcome = run(vec![Setup { changes, ..Setup::new(before, Load::endless(&[piece])).limit(before) }], 6);
            let (old, new) = (outcome.between(0, SECOND, 3 * SECOND), outcome.between(0, 3 * SECOND + SOON, 6 * SECOND));
            assert!((old - f64::from(before)).abs() < 1.0, "{before} then {after}, {piece} ns: {old}");
            assert!((new - f64::from(after)).abs() < 1.0, "{before} then {after}, {piece} ns: {new}");
        }
    }
}

/// Whatever it was doing at that moment: holding its turn or waiting for it.
#[test]
fn others_go_on_when_one_is_stopped() {
    for request in [50, 90] {
        for at in 0..40 {
            let stops = 2 * SECOND + at * 7 * MS;
            let stopped = Some((stops, 5 * SECOND));
            let endless = || Load::endless(&[500 * US]);
            let setups = vec![Setup { stopped, ..Setup::new(request, endless()) }, Setup::new(100 - request, endless())];
            let outcome = run(setups, 8);
            let pause = outcome.longest_pause(1, stops, 5 * SECOND);
            // Its share of a round may have to pass as well, if it was to wait for that anyway.
            assert!(pause <= 100, "{request}% stopped at {stops}: the other waits for {pause} ms");
            let other = outcome.between(1, stops + SOON, 5 * SECOND);
            assert!(other > 99.0, "{request}% stopped at {stops}: the other then has {other}%");
            let (again, share) = (outcome.between(0, 6 * SECOND, 8 * SECOND), f64::from(request));
            assert!((again - share).abs() < 2.0, "{request}% stopped at {stops}: afterwards it has {again}%");
        }
    }
}
