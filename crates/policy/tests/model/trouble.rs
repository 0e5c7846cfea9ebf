//! One that holds the GPU, or waits for it, is stopped, dies, or hangs in a piece of work that does not end.

use crate::container::Setup;
use crate::gpu::{MS, SECOND, US};
use crate::load::Load;
use crate::model::Model;
use crate::outcome::Outcome;

/// By when the others go on, in milliseconds.
const SOON: u64 = 100;
/// When trouble comes, and when it is over.
const COMES: u64 = SECOND;
const GOES: u64 = 3 * SECOND;

fn endless() -> Load {
    Load::endless(&[500 * US])
}

/// At many moments, so that it may be doing anything: holding its turn, about to lose it, or waiting for it.
fn moments() -> impl Iterator<Item = u64> {
    (0..24).map(|number| COMES + number * 7 * MS)
}

/// One that has trouble, and two others, who share what is left in the proportion of 1 to 2.
fn with_others(troubled: Setup, request: u32) -> Vec<Setup> {
    let others = [1, 2].map(|part| Setup { request: (100 - request) * part * 10_000 / 3, ..Setup::new(0, endless()) });
    [vec![troubled], others.to_vec()].concat()
}

/// That nobody had to wait for the one that had trouble, and that the others then have all of the rest, as they asked for it.
fn others_go_on(outcome: &Outcome, what: &str, from: u64, to: u64, rest: f64) {
    // The smaller one may have had its turn just before, and has it again after the larger one's.
    for (index, soon) in [(1, SOON + 50), (2, SOON)] {
        let pause = outcome.longest_pause(index, from, to);
        assert!(pause <= soon, "{what}: {index} waits for {pause} ms");
    }
    let settled = from + SOON * MS;
    let [small, large] = [1, 2].map(|index| outcome.between(index, settled, to));
    assert!(small + large > rest - 1.0, "{what}: the others then have {small} and {large}");
    assert!((2.0 * small - large).abs() < 4.0, "{what}: the others then have {small} and {large}");
}

#[test]
fn others_go_on_when_one_is_stopped() {
    for (request, stops) in [40, 91].into_iter().flat_map(|request| moments().map(move |at| (request, at))) {
        let setup = Setup { stopped: Some((stops, GOES)), ..Setup::new(request, endless()) };
        let outcome = Model::new(with_others(setup, request), 1).run(GOES + 5 * SECOND);
        let what = format!("{request}% stopped at {} ms", stops / MS);
        others_go_on(&outcome, &what, stops, GOES, 100.0);
        // What it did not want is not owed to it, nor does it owe anything.
        // A round takes 240 ms where one has 91%: there are many in this time.
        let again = outcome.between(0, GOES + SOON * MS, GOES + 5 * SECOND);
        assert!((again - f64::from(request)).abs() < 1.0, "{what}: afterwards it has {again}%");
        for index in 0..3 {
            let (held, charged) = outcome.held(index);
            assert!(held.abs_diff(charged) < held / 1000, "{what}: {index} held for {held} and is charged {charged}");
        }
    }
}

#[test]
fn others_go_on_when_one_dies() {
    for (request, dies) in [40, 91].into_iter().flat_map(|request| moments().map(move |at| (request, at))) {
        let setup = Setup { dies: Some(dies), ..Setup::new(request, endless()) };
        let outcome = Model::new(with_others(setup, request), 1).run(GOES);
        let what = format!("{request}% dead at {} ms", dies / MS);
        others_go_on(&outcome, &what, dies, GOES, 100.0);
        assert_eq!(outcome.worked(0, dies + MS, GOES), 0, "{what}");
    }
}

/// The hardware lets the others in between; they take turns among themselves, and nobody's account is wrong afterwards.
#[test]
fn others_go_on_when_one_hangs_for_ten_seconds() {
    for (request, hangs) in [40, 91].into_iter().flat_map(|request| moments().step_by(6).map(move |at| (request, at))) {
        let setup = Setup { hangs: Some((hangs, 10 * SECOND)), ..Setup::new(request, endless()) };
        let outcome = Model::new(with_others(setup, request), 1).run(28 * SECOND);
        let what = format!("{request}% hangs from {} ms", hangs / MS);
        // The hardware gives half of the time to a piece that does not end; a switch is 7% of its slices; and at each
        // hand-over one of them passes.
        others_go_on(&outcome, &what, hangs, hangs + 10 * SECOND, 36.0);
        let (measured, worked) = (outcome.measured(0), outcome.worked(0, 0, 28 * SECOND));
        assert!(measured.abs_diff(worked) < worked / 10, "{what}: {measured} measured, {worked} worked");
        for (index, share) in [f64::from(request), f64::from(100 - request) / 3.0].into_iter().enumerate() {
            let again = outcome.between(index, 22 * SECOND, 28 * SECOND);
            assert!((again - share).abs() < 1.0, "{what}: afterwards {index} has {again}% of {share}");
        }
    }
}
