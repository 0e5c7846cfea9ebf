//! Limits on GPU time: programs of every shape that want more than they may have, judged by the simulated GPU's own record of
//! how long it worked for them, over its own clock.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{Regions, Session, busy_share, inside};
use support::tries::until_good;
use support::{Machine, compile, report};

/// A program in a container with a limit.
struct Case {
    shape: &'static str,
    kernel_us: &'static str,
    limit: f64,
    /// How many such programs are in the container.
    processes: usize,
}

const fn case(shape: &'static str, kernel_us: &'static str, limit: f64) -> Case {
    Case { shape, kernel_us, limit, processes: 1 }
}

const CASES: &[Case] = &[
    case("queue", "50", 25.0),
    case("queue", "500", 5.0),
    case("queue", "500", 25.0),
    case("queue", "500", 50.0),
    case("queue", "500", 90.0),
    case("queue", "5000", 10.0),
    case("queue", "5000", 50.0),
    case("sync", "500", 25.0),
    case("sync", "500", 50.0),
    case("poll", "500", 50.0),
    case("steps", "400", 25.0),
    case("steps", "400", 75.0),
    case("streams", "500", 50.0),
    case("threads", "500", 50.0),
    case("graph", "100", 25.0),
    case("graph", "100", 75.0),
    case("capture", "500", 50.0),
    Case { processes: 3, ..case("queue", "500", 50.0) },
];

/// How far from its limit a container may be. The machine may be busy; the bucket makes up for what it missed, within limits.
const TOLERANCE: f64 = 1.0;
const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_millis(1500);

/// How much of the GPU's time was work, in per cent, once things have settled.
fn share(program: &Path, case: &Case) -> f64 {
    let (machine, regions) = (Machine::new(), Regions::new());
    let world = machine.world();
    let settings = [("RATION_COMPUTE_LIMIT", format!("{}%", case.limit))];
    let mut running: Vec<Session> = (0..case.processes)
        .map(|_| {
            let mut command = inside(&machine, &regions, "tests/compute", &settings, program);
            command.args([case.shape, case.kernel_us, "3.2"]);
            Session::start(&mut command, Duration::from_secs(30))
        })
        .collect();
    for session in &mut running {
        session.until("ready").expect("it starts");
    }
    std::thread::sleep(Duration::from_millis(700));
    let got = busy_share(&world, WINDOW);
    for session in running {
        session.finish().expect("it ends well");
    }
    got
}

#[test]
fn a_limit_is_what_a_container_gets_of_the_gpus_time() {
    let program = compile("compute_work");
    let mut table = format!("{:<10}{:>10}{:>11}{:>9}{:>9}\n", "shape", "kernels", "processes", "limit", "got");
    let mut wrong = String::new();
    for case in CASES {
        let attempt = || share(&program, case);
        let Some(got) = until_good(attempt, |got| (got - case.limit).abs() <= TOLERANCE) else { continue };
        let label = format!("{} {} us x{}", case.shape, case.kernel_us, case.processes);
        let _ = writeln!(
            table,
            "{:<10}{:>7} us{:>11}{:>8.1}%{:>8.2}%",
            case.shape, case.kernel_us, case.processes, case.limit, got
        );
        if (got - case.limit).abs() > TOLERANCE {
            let _ = writeln!(wrong, "{label}: {got:.2}% of {:.1}%", case.limit);
        }
    }
    report("compute-limits", &table);
    assert!(wrong.is_empty(), "{wrong}");
}

/// A program that launches more slowly than the GPU does it, and uses a third of the GPU: a limit of a half is none to it.
#[test]
fn who_uses_less_than_its_limit_is_not_held_up() {
    let program = compile("compute_work");
    let attempt = || [100.0, 50.0].map(|limit| share(&program, &case("slow", "10", limit)));
    let is_good = |[free, limited]: &[f64; 2]| *limited > 0.95 * free;
    let Some(got) = until_good(attempt, is_good) else { return };
    let [free, limited] = got;
    report(
        "compute-below-limit",
        &format!("without a limit it uses {free:.1}% of the GPU, with one of 50% {limited:.1}%"),
    );
    assert!(is_good(&got), "it uses {limited:.1}% instead of {free:.1}%");
}

/// Four streams are filled in turn, each with work for a quarter of the GPU. Where a stretch of work ends in the middle of a
/// round, some of the streams have nothing to do for the last of it, and the time is gone.
#[test]
fn streams_that_are_filled_in_turn_are_held_up_together() {
    const KERNEL: u64 = 500_000;
    let program = compile("compute_work");
    let attempt = || {
        [10.0, 25.0, 75.0].map(|limit| {
            let (machine, regions) = (Machine::new(), Regions::new());
            let world = machine.world();
            let settings = [("RATION_COMPUTE_LIMIT", format!("{limit}%"))];
            let mut command = inside(&machine, &regions, "tests/compute", &settings, &program);
            command.args(["quarters", "500", "3.2"]);
            let mut session = Session::start(&mut command, Duration::from_secs(30));
            session.until("ready").expect("it starts");
            std::thread::sleep(Duration::from_millis(700));
            let done = || {
                let record = world.record();
                let used = record.processes.iter().filter_map(|process| process.gpus.get(&0));
                used.fold([0, 0], |[kernels, busy], used| [kernels + used.kernels, busy + used.busy_ns])
            };
            let before = done();
            std::thread::sleep(WINDOW);
            let [kernels, busy] = [0, 1].map(|what: usize| done()[what] - before[what]);
            session.finish().expect("it ends well");
            100.0 * (kernels * KERNEL / 4) as f64 / busy as f64
        })
    };
    let is_good = |filled: &[f64; 3]| filled.iter().all(|filled| *filled > 99.0);
    let Some(filled) = until_good(attempt, is_good) else { return };
    report(
        "compute-quarters",
        &format!("of the time in which the GPU worked, it was full for {filled:.2?}% (limits 10, 25, 75%)"),
    );
    assert!(is_good(&filled), "the GPU was full for {filled:.2?}% of the time in which it worked");
}

fn signal(session: &Session, what: &str) {
    let status = std::process::Command::new("kill").args([what, &session.child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
}

#[test]
fn a_process_that_is_stopped_or_killed_in_its_turn_holds_up_nobody() {
    let program = compile("compute_work");
    let (machine, regions) = (Machine::new(), Regions::new());
    let world = machine.world();
    let settings = [("RATION_COMPUTE_LIMIT", "50%".to_owned())];
    let start = |seconds: &str| {
        let mut command = inside(&machine, &regions, "tests/compute", &settings, &program);
        command.args(["queue", "500", seconds]);
        let mut session = Session::start(&mut command, Duration::from_secs(60));
        session.until("ready").expect("it starts");
        session
    };
    let steady = start("90");
    let mut text = String::new();
    for (what, signal_name) in [("stopped", "-STOP"), ("killed", "-KILL")] {
        for _ in 0..3 {
            let attempt = || {
                let mut other = start("30");
                std::thread::sleep(Duration::from_millis(150));
                signal(&other, signal_name);
                // Half of a second in which the other is stopped; what it had queued is done first.
                std::thread::sleep(Duration::from_millis(100));
                let got = busy_share(&world, SECOND);
                let _ = other.child.kill();
                let _ = other.child.wait();
                got
            };
            let is_good = |got: &f64| (got - 50.0).abs() < 5.0;
            let Some(got) = until_good(attempt, is_good) else { continue };
            let _ = writeln!(text, "{what}: the container goes on at {got:.1}% of 50%");
            assert!(is_good(&got), "{text}");
        }
    }
    report("compute-faults", &text);
    drop(steady);
}
