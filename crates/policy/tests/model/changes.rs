//! Neighbours that come and go, and rights that change.

use std::fmt::Write as _;

use ration_policy::turns::Priority;

use crate::container::Setup;
use crate::gpu::{MS, SECOND, US};
use crate::load::Load;
use crate::model::Model;
use crate::outcome::Outcome;
use crate::report;

/// By when a change has to hold.
const SOON: u64 = 200 * MS;

fn run(setups: Vec<Setup>, seconds: u64) -> Outcome {
    Model::new(setups, 1).run(seconds * SECOND)
}

#[test]
fn all_of_the_gpu_until_the_neighbour_comes_and_again_when_it_goes() {
    let mut table =
        String::from("request 25%, limit 100%, and a neighbour of 75% that is there every other two seconds\n");
    for (name, piece) in [("0.05 ms", 50 * US), ("0.5 ms", 500 * US), ("5 ms", 5 * MS)] {
        let there = [(2 * SECOND, 4 * SECOND), (6 * SECOND, 8 * SECOND)];
        let stays = Setup::new(25, Load::endless(&[piece]));
        let comes = Setup::new(75, Load::endless(&[piece]).during(&there));
        let outcome = run(vec![stays, comes], 10);
        for begins in [0, 2, 4, 6, 8].map(|second| second * SECOND) {
            let (from, to) = (if begins == 0 { 0 } else { begins + SOON }, begins + 2 * SECOND);
            let (share, neighbour) = (outcome.between(0, from, to), outcome.between(1, from, to));
            let _ = writeln!(
                table,
                "  {name:7} pieces, second {}: {share:5.1}%, the neighbour {neighbour:4.1}%",
                begins / SECOND
            );
            let fine = match there.iter().any(|(from, _)| *from == begins) {
                true => (share - 25.0).abs() < 1.0 && (neighbour - 75.0).abs() < 1.0,
                false => share > 99.5,
            };
            assert!(fine, "{table}");
        }
    }
    report("turns-neighbour", &table);
}

/// Batch waits all the time, and who comes meanwhile is owed nothing for the time in which only batch did.
#[test]
fn time_next_to_batch_is_time_alone() {
    let endless = || Load::endless(&[500 * US]);
    for arrives in (0..20).map(|number| SECOND + number * 21 * MS) {
        let setups = vec![
            Setup::new(45, endless()),
            Setup::new(10, endless()).priority(Priority::Batch),
            Setup::new(45, endless().during(&[(arrives, 10 * SECOND)])),
        ];
        let outcome = run(setups, 4);
        let (first, then) = (arrives + SOON, arrives + SOON + SECOND);
        let [stays, comes] = [0, 2].map(|index| outcome.between(index, first, then));
        assert!((stays - comes).abs() < 6.0, "from {} ms: {stays} and {comes}", arrives / MS);
    }
}

/// Many containers that want nothing, or wanted something once, cost nothing.
#[test]
fn nothing_is_lost_to_the_idle() {
    let idle = || Setup::new(40, Load::endless(&[500 * US]).during(&[(0, SECOND)]));
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
        Setup::new(5, endless().during(&[(0, 10 * SECOND), (20 * SECOND, 30 * SECOND)])),
        Setup::new(45, endless().during(&[(10 * SECOND, 30 * SECOND)])),
        Setup::new(50, endless().during(&[(22 * SECOND, 30 * SECOND)])),
    ];
    let outcome = run(setups, 30);
    let second = |index: usize, from: u64| outcome.between(index, from * SECOND + SOON, (from + 1) * SECOND + SOON);
    assert!((second(0, 20) - 10.0).abs() < 3.0, "5 of 50: {}", second(0, 20));
    assert!((second(1, 20) - 90.0).abs() < 3.0, "45 of 50: {}", second(1, 20));
    assert!(
        (second(0, 22) - 5.0).abs() < 2.5 && (second(1, 22) - 45.0).abs() < 2.5,
        "{} {}",
        second(0, 22),
        second(1, 22)
    );
    assert!((second(2, 22) - 50.0).abs() < 2.5, "{}", second(2, 22));
}

#[test]
fn a_new_limit_holds_soon() {
    for piece in [50 * US, 500 * US, 5 * MS] {
        for (before, after) in [(50, 10), (90, 25), (5, 90), (10, 100), (100, 10)] {
            let changes = Some((2 * SECOND, after, after, Priority::Normal));
            let outcome = run(vec![Setup { changes, ..Setup::new(before, Load::endless(&[piece])).limit(before) }], 4);
            let (old, new) =
                (outcome.between(0, SECOND, 2 * SECOND), outcome.between(0, 2 * SECOND + SOON, 4 * SECOND));
            assert!((old - f64::from(before)).abs() < 1.0, "{before} then {after}, {piece} ns: {old}");
            assert!((new - f64::from(after)).abs() < 1.0, "{before} then {after}, {piece} ns: {new}");
        }
    }
}

/// What one gives up the other has; and back.
#[test]
fn a_new_request_holds_soon() {
    for piece in [50 * US, 500 * US, 5 * MS] {
        for (before, after) in [(25, 75), (90, 10), (10, 50), (50, 33)] {
            let to = |request: u32| Some((2 * SECOND, request, 100, Priority::Normal));
            let with =
                |before: u32, after: u32| Setup { changes: to(after), ..Setup::new(before, Load::endless(&[piece])) };
            let outcome = run(vec![with(before, after), with(100 - before, 100 - after)], 5);
            for (share, from, to) in [(before, 0, 2 * SECOND), (after, 2 * SECOND + SOON, 5 * SECOND)] {
                let share = f64::from(share);
                let got = outcome.between(0, from, to);
                assert!((got - share).abs() < 1.0, "{before} then {after}, {piece} ns: {got} of {share}");
                let worst = outcome.worst_second(0, share, from, to);
                assert!(worst < 5.0, "{before} then {after}, {piece} ns: {worst} points off in a second");
            }
        }
    }
}

/// From batch to normal and back, and to latency.
#[test]
fn a_new_priority_holds_soon() {
    let endless = || Load::endless(&[500 * US]);
    for (before, after) in [(Priority::Batch, Priority::Normal), (Priority::Normal, Priority::Batch)] {
        let changes = Some((2 * SECOND, 50, 100, after));
        let one = Setup { changes, ..Setup::new(50, endless()).priority(before) };
        let outcome = run(vec![one, Setup::new(50, endless())], 6);
        for (priority, from, to) in [(before, SOON, 2 * SECOND), (after, 2 * SECOND + SOON, 6 * SECOND)] {
            let got = outcome.between(0, from, to);
            let fine = if priority == Priority::Batch { got < 8.0 } else { (got - 50.0).abs() < 1.0 };
            assert!(fine, "{before:?} then {after:?}: {got} as {priority:?}");
        }
    }
    let changes = Some((2 * SECOND, 20, 100, Priority::Latency));
    let asks = Setup { changes, ..Setup::new(20, Load::inference()) };
    let outcome = run(vec![asks, Setup::new(80, endless())], 20);
    // A tenth of all requests came before the change.
    assert!(outcome.percentile(0, 88) < 1.4 * 2.6, "{} ms", outcome.percentile(0, 88));
}

/// What is saved up in idle times is the burst and no more, whether it had to wait for turns before or not.
#[test]
fn idle_times_are_not_saved_up() {
    for neighbour in [(0, 2 * SECOND), (2 * SECOND - 50 * MS, 2 * SECOND), (9 * SECOND, 10 * SECOND)] {
        let limited = Setup::new(25, Load::endless(&[500 * US]).during(&[(0, 2 * SECOND), (5 * SECOND, 8 * SECOND)]));
        let other = Setup::new(75, Load::endless(&[500 * US]).during(&[neighbour]));
        let outcome = run(vec![limited.limit(25), other], 10);
        let (first, next) = (outcome.between(0, 5 * SECOND, 6 * SECOND), outcome.between(0, 6 * SECOND, 8 * SECOND));
        assert!((25.0..26.0).contains(&first), "{neighbour:?}: {first}% in the first second");
        assert!((24.9..25.1).contains(&next), "{neighbour:?}: {next}% afterwards");
    }
}
