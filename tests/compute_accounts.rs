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

/// How far an account may be from what the GPU did after some seconds, in per cent. On a quiet machine it is about 0.1 or less;
/// where threads are woken late, gaps between kernels count as work.
const DRIFT: f64 = 0.5;

#[test]
fn accounts_of_mixed_load_are_what_the_gpu_did() {
    let seconds = std::env::var("RATION_TEST_LOAD_SECONDS").unwrap_or_else(|_| "8".to_owned());
    let program = compile("compute_work");
    let mut text = String::new();
    expect(&mut text, || drifts(&program, &seconds, |_| ()));
    report("compute-accounts-mixed", &text);
}

/// The same where now and then one of them stands still: it is stopped, or has no processor.
#[test]
fn accounts_of_processes_that_stand_still_are_what_the_gpu_did() {
    let program = compile("compute_work");
    let stops = |sessions: &[Session]| {
        let mut dice = 1_u64;
        for _ in 0..25 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let one = &sessions[(dice >> 33) as usize % sessions.len()];
            one.signal(libc::SIGSTOP);
            milliseconds(30);
            one.signal(libc::SIGCONT);
            milliseconds(120 + (dice >> 40) % 60);
        }
    };
    let mut text = String::new();
    expect(&mut text, || drifts(&program, "8", stops));
    report("compute-accounts-stopped", &text);
}

/// How far the accounts are off after so many seconds of mixed load, in which something happens to the processes.
fn drifts(program: &Path, seconds: &str, happens: impl Fn(&[Session])) -> (String, bool) {
    let scene = Scene::new(program);
    let start = |load: &Load| {
        let settings = [("RATION_COMPUTE_LIMIT", load.limit)];
        let mut command = scene.command(load.name, &settings, &[load.shape, load.kernel_us, seconds]);
        Session::start(&mut command, Duration::from_secs(7200))
    };
    let each = LOADS.iter().flat_map(|load| std::iter::repeat_n(load, load.processes));
    let sessions: Vec<Session> = each.map(start).collect();
    milliseconds(1500);
    let began: Vec<Had> = LOADS.iter().map(|load| scene.between_turns(load.name)).collect();
    happens(&sessions);
    for session in sessions {
        session.finish().expect("it ends well");
    }
    let end = scene.moment();
    let (mut text, mut are_right) = (String::new(), true);
    for (load, began) in LOADS.iter().zip(began) {
        let had = end.had[load.name];
        // Without the time at the start of a slice in which nothing gets done.
        let (record, account) = (ms(had.work - began.work), ms(had.account - began.account));
        let drift = 100.0 * (account - record) / record;
        let _ = writeln!(text, "{:<16} {record:>8.1} ms, accounted {account:>8.1} ms: {drift:+.3}%", load.name);
        are_right &= drift.abs() <= DRIFT;
    }
    (text, are_right)
}

fn ms(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// Loads that nobody holds up: how far the estimate of each may be off after two seconds, in per cent.
const FREE: &[(&str, &str, f64)] = &[
    ("queue", "2", 10.0),
    ("queue", "500", 5.0),
    ("sync", "20", 10.0),
    ("sync", "500", 5.0),
    ("graph", "100", 5.0),
    ("threads", "500", 5.0),
    ("request", "130", 10.0),
];

/// A machine on which a program launched for two seconds in a container that nobody holds up.
fn after_two_seconds_of(program: &Path, shape: &str, kernel_us: &str) -> Scene {
    let scene = Scene::new(program);
    let mut command = scene.command("tests/free", &[("RATION_MEMORY", "8GiB")], &[shape, kernel_us, "2"]);
    Session::start(&mut command, PATIENCE).finish().expect("it ends well");
    scene
}

#[test]
fn the_time_of_those_that_nobody_holds_up_is_known_too() {
    let program = compile("compute_work");
    let mut text = String::new();
    for (shape, kernel_us, tolerance) in FREE {
        expect(&mut text, || {
            let scene = after_two_seconds_of(&program, shape, kernel_us);
            let had = scene.moment().had["tests/free"];
            let drift = 100.0 * (had.account as f64 - had.work as f64) / had.work as f64;
            let [work, account] = [had.work, had.account].map(ms);
            let line =
                format!("{shape:<8} {kernel_us:>4} us: {work:>7.1} ms, accounted {account:>7.1} ms: {drift:+.1}%");
            // It launches for two seconds, and whoever came then would wait for what is queued.
            let queued = work - 2000.0;
            (line, drift.abs() <= *tolerance && queued < 150.0)
        });
    }
    report("compute-accounts-free", &text);
}

/// Loads that nobody holds up: how many marks of ours are among their launches in a second at most. Where those take the GPU less
/// than the host, it would be about twice as many and more if all of them were looked at every 10 ms; where they take it longer and
/// much is queued, up to four times as many if there were one every 50 us. (One of them has 800 of its own.)
const MARKS: &[(&str, &str, f64)] = &[
    ("batches", "2", 800.0),
    ("queue", "2", 1800.0),
    ("slow", "5", 900.0),
    ("queue", "50", 1800.0),
    ("ahead", "50", 3200.0),
];

/// Whoever is found to be the same again and again is looked at rarely: what it pays for is what it does, not that it is here.
#[test]
fn those_that_nobody_holds_up_are_hardly_looked_at() {
    let program = compile("compute_work");
    let mut text = String::new();
    for (shape, kernel_us, most) in MARKS {
        expect(&mut text, || {
            let scene = after_two_seconds_of(&program, shape, kernel_us);
            let [launches, marks] = launches_and_marks(&scene).map(|all| all / 2.0);
            let line =
                format!("{shape:<8} {kernel_us} us: {launches:>7.0} launches and {marks:>5.0} marks in a second");
            (line, (1.0..=*most).contains(&marks))
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

/// A mark takes the GPU two microseconds: behind each kernel of 50 it would cost four per cent. Where a turn lasts and enough is
/// queued, there is none behind most of them.
#[test]
fn most_kernels_in_a_turn_are_not_marked() {
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
