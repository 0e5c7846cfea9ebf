//! Accounts of GPU time: what they say against what the simulated GPU did, by its own record.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

#[path = "caps/container.rs"]
mod container;
#[path = "compute/scene.rs"]
mod scene;
mod support;

use container::Session;
use scene::{Had, PATIENCE, Scene, expect, milliseconds};
use support::{compile, report};

/// A container with a limit, so that all of its work is accounted for.
struct Load {
    name: &'static str,
    limit: &'static str,
    shape: &'static str,
    kernel_us: &'static str,
    processes: usize,
}

const LOADS: &[Load] = &[
    Load { name: "tests/small", limit: "15%", shape: "queue", kernel_us: "50", processes: 1 },
    Load { name: "tests/waits", limit: "20%", shape: "sync", kernel_us: "500", processes: 1 },
    Load { name: "tests/graphs", limit: "15%", shape: "graph", kernel_us: "100", processes: 1 },
    Load { name: "tests/several", limit: "20%", shape: "streams", kernel_us: "500", processes: 2 },
    Load { name: "tests/rest", limit: "95%", shape: "queue", kernel_us: "500", processes: 1 },
];

/// How far an account may be from what the GPU did, in points of the GPU's time, on a machine that may stand still now and then. In
/// virtual time it is within a thousandth, also where processes stand still: crates/steer/tests/steering.rs.
const NEAR: f64 = 1.0;
#[test]
fn accounts_of_mixed_load_are_what_the_gpu_did() {
    let seconds = std::env::var("RATION_TEST_LOAD_SECONDS").map_or(6, |text| text.parse().expect("seconds"));
    let program = compile("compute_work");
    let mut text = String::new();
    expect(&mut text, || drifts(&program, seconds));
    report("compute-accounts-mixed", &text);
}

/// How far the accounts of mixed load are off after so many seconds.
fn drifts(program: &Path, seconds: u64) -> (String, bool) {
    let scene = Scene::new(program);
    let start = |load: &Load| {
        let settings = [("RATION_COMPUTE_LIMIT", load.limit)];
        let mut command = scene.command(load.name, &settings, &[load.shape, load.kernel_us, "7200"]);
        Session::start(&mut command, Duration::from_secs(7200))
    };
    let each = LOADS.iter().flat_map(|load| std::iter::repeat_n(load, load.processes));
    let sessions: Vec<Session> = each.map(start).collect();
    milliseconds(1500);
    let began: Vec<Had> = LOADS.iter().map(|load| scene.between_turns(load.name)).collect();
    let from = scene.moment().clock;
    milliseconds(1000 * seconds);
    // What is queued when a program ends is done all at once, so it is looked at before.
    let ended: Vec<Had> = LOADS.iter().map(|load| scene.between_turns(load.name)).collect();
    let time = ms(scene.moment().clock - from);
    drop(sessions);
    let (mut text, mut are_right) = (String::new(), true);
    for ((load, began), had) in LOADS.iter().zip(began).zip(ended) {
        // Without the time at the start of a slice in which nothing gets done.
        let (record, account) = (ms(had.work - began.work), ms(had.account - began.account));
        let [drift, points] = [record, time].map(|of| 100.0 * (account - record) / of);
        let _ = writeln!(
            text,
            "{:<16} {record:>8.1} ms, accounted {account:>8.1} ms: {drift:+.2}%, {points:+.2} points",
            load.name
        );
        are_right &= points.abs() <= NEAR;
    }
    (text, are_right)
}

fn ms(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// Alone and without a limit, nobody counts: what a program pays for is what it does, not that it is here.
#[test]
fn who_is_alone_and_has_no_limit_is_not_marked() {
    let program = compile("compute_work");
    let mut text = String::new();
    for (shape, kernel_us) in [("queue", "2"), ("slow", "5")] {
        expect(&mut text, || {
            let scene = Scene::new(&program);
            let mut command = scene.command("tests/free", &[("RATION_MEMORY", "8GiB")], &[shape, kernel_us, "1"]);
            Session::start(&mut command, PATIENCE).finish().expect("it ends well");
            let [launches, marks] = launches_and_marks(&scene);
            // The first ones are counted, until the controller has looked.
            (format!("{shape:<8} {kernel_us} us: {launches:>7.0} launches and {marks:>3.0} marks"), marks < 100.0)
        });
    }
    report("compute-accounts-looks", &text);
}

/// How often all programs have called for a kernel, and for a mark. Most record no events of their own.
fn launches_and_marks(scene: &Scene) -> [f64; 2] {
    let record = scene.world.record();
    let of = |symbol: &str| {
        let calls = record.processes.iter().filter_map(|process| process.calls.get(symbol));
        calls.sum::<u64>() as f64
    };
    [of("cuLaunchKernel"), of("cuEventRecord")]
}

/// A mark takes the GPU two microseconds: behind each kernel of 50 it would cost four per cent.
#[test]
fn most_kernels_are_not_marked() {
    let program = compile("compute_work");
    let mut text = String::new();
    expect(&mut text, || {
        let scene = Scene::new(&program);
        let settings = [("RATION_COMPUTE_REQUEST", "50%")];
        let start = |name: &str| Session::start(&mut scene.command(name, &settings, &["queue", "50", "2"]), PATIENCE);
        for session in ["tests/one", "tests/other"].map(start) {
            session.finish().expect("it ends well");
        }
        let [launches, marks] = launches_and_marks(&scene);
        let line = format!("{launches:.0} kernels of 50 us and {marks:.0} marks: {:.2} each", marks / launches);
        (line, (0.01..0.4).contains(&(marks / launches)))
    });
    report("compute-accounts-marks", &text);
}
