//! An hour of mixed load, to see whether accounts drift.

use std::fmt::Write as _;

use ration_policy::turns::Priority;

use crate::container::Setup;
use crate::gpu::{MS, SECOND};
use crate::load::{Load, Pace};
use crate::model::Model;
use crate::report;

const HOUR: u64 = 3600 * SECOND;

#[test]
fn no_account_drifts_in_an_hour() {
    let comes_and_goes: Vec<_> = (0..360).map(|n| ((10 * n + 3) * SECOND, (10 * n + 6) * SECOND)).collect();
    let requests = Load { batch: 4, pace: Pace::Every(100 * MS, 40 * MS), ..Load::endless(&[2 * MS]) };
    let long = Load::endless(&[2 * MS, 5 * MS, 20 * MS]);
    let setups = [
        ("25%, endless", Setup::new(25, Load::endless(&[5 * MS]))),
        ("15% at most, endless", Setup::new(15, Load::endless(&[5 * MS])).limit(15)),
        ("30%, mixed pieces", Setup::new(30, long)),
        ("20%, comes and goes", Setup::new(20, Load::endless(&[5 * MS]).during(&comes_and_goes))),
        ("10%, in a hurry", Setup::new(10, requests).priority(Priority::Latency)),
        ("batch, pauses", Setup::new(5, Load::syncing(5 * MS, 2 * MS)).priority(Priority::Batch)),
    ];
    let outcome = Model::new(setups.iter().map(|(_, setup)| setup.clone()).collect(), 1).for_long().run(HOUR);
    let mut table = String::from("an hour of mixed load\n");
    let part = |one: u64, other: u64| 100.0 * (one as f64 / other as f64 - 1.0);
    for (index, (name, _)) in setups.iter().enumerate() {
        let worked = outcome.worked(index, 0, HOUR);
        let (held, charged) = outcome.held(index);
        let (metered, billed) = (part(outcome.measured(index), worked), part(charged, held));
        let _ = writeln!(
            table,
            "  {name:22} {:5.2}% of the time; GPU time measured {metered:+.4}%, time of holding charged {billed:+.4}% off",
            outcome.share(index),
        );
        assert!(metered.abs() < 0.1 && billed.abs() < 0.1, "{table}");
    }
    // Two that always want more hold the GPU in proportion to their requests.
    let ratio = outcome.held(2).0 as f64 / outcome.held(0).0 as f64 * 25.0 / 30.0;
    let _ = writeln!(table, "  30% held the GPU for {ratio:.5} of what 25% makes of it; in all {:.2}%", outcome.sum());
    assert!((ratio - 1.0).abs() < 0.001, "{table}");
    assert!((outcome.share(1) / 15.0 - 1.0).abs() < 0.01, "{table}");
    assert!(outcome.sum() > 98.0, "{table}");
    report("turns-hour", &table);
}

/// A ceiling is met to a thousandth, alone, and next to somebody who leaves enough.
#[test]
fn no_ceiling_drifts_in_an_hour() {
    let neighbour = Setup::new(0, Load::syncing(7 * MS, 9 * MS));
    for limit in [3, 20] {
        let limited = || Setup::new(limit, Load::endless(&[3 * MS, 11 * MS])).limit(limit);
        for setups in [vec![limited()], vec![limited(), neighbour.clone()]] {
            let outcome = Model::new(setups, 1).for_long().run(HOUR);
            let share = outcome.share(0);
            assert!((share / f64::from(limit) - 1.0).abs() < 0.001, "{:?} of {limit}", outcome.shares());
        }
    }
}
