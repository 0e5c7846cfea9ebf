//! Turns: containers that together want more than the GPU has, judged by the simulated GPU's own record of how long it worked
//! for each of them, over its own clock.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{Regions, Session, inside};
use sim_world::World;
use support::{Machine, compile, report};

/// A container: what it asks for in per cent, and what runs in it.
#[derive(Clone, Copy)]
struct Member {
    request: f64,
    shape: &'static str,
    kernel_us: &'static str,
}

const fn member(request: f64, shape: &'static str, kernel_us: &'static str) -> Member {
    Member { request, shape, kernel_us }
}

struct Case {
    name: &'static str,
    members: &'static [Member],
    /// How far from its request each may be, in points of the GPU's time, or of what it has of that alone.
    tolerance: f64,
    /// What all of them together are to have of it.
    sum: f64,
}

const CASES: &[Case] = &[
    Case {
        name: "25/75",
        members: &[member(25.0, "queue", "50"), member(75.0, "queue", "500")],
        tolerance: 2.0,
        sum: 96.0,
    },
    Case {
        name: "10/90",
        members: &[member(10.0, "queue", "500"), member(90.0, "queue", "5000")],
        tolerance: 2.0,
        sum: 96.0,
    },
    Case {
        name: "20/30/50",
        members: &[member(20.0, "queue", "50"), member(30.0, "queue", "500"), member(50.0, "queue", "5000")],
        tolerance: 2.0,
        sum: 96.0,
    },
    Case {
        name: "50/50, one waits for every kernel",
        members: &[member(50.0, "sync", "500"), member(50.0, "queue", "500")],
        tolerance: 3.0,
        sum: 94.0,
    },
];

const WINDOW: Duration = Duration::from_millis(2000);

/// How long the GPU has worked for each process, by its number; and its clock.
fn busy(world: &World) -> (BTreeMap<u64, u64>, u64) {
    let record = world.record();
    let mut busy = BTreeMap::new();
    for process in &record.processes {
        *busy.entry(process.pid).or_default() += process.gpus.values().map(|gpu| gpu.busy_ns).sum::<u64>();
    }
    (busy, record.clock_ns)
}

/// What each got of the GPU's time, in per cent.
fn shares(world: &World, sessions: &[Session], window: Duration) -> Vec<f64> {
    let (before, began) = busy(world);
    std::thread::sleep(window);
    let (after, ended) = busy(world);
    let of = |session: &Session| {
        let pid = u64::from(session.child.id());
        let worked = after.get(&pid).copied().unwrap_or(0) - before.get(&pid).copied().unwrap_or(0);
        100.0 * worked as f64 / (ended - began) as f64
    };
    sessions.iter().map(of).collect()
}

fn start(
    machine: &Machine,
    regions: &Regions,
    program: &Path,
    number: usize,
    it: &Member,
    settings: &[(&str, String)],
) -> Session {
    let mut all = vec![("RATION_COMPUTE_REQUEST", format!("{}%", it.request))];
    all.extend(settings.iter().cloned());
    let mut command = inside(machine, regions, &format!("tests/turns-{number}"), &all, program);
    command.args([it.shape, it.kernel_us, "60"]);
    let mut session = Session::start(&mut command, Duration::from_secs(60));
    session.until("ready").expect("it starts");
    session
}

fn got(program: &Path, case: &Case) -> Vec<f64> {
    let (machine, regions) = (Machine::new(), Regions::new());
    let world = machine.world();
    let sessions: Vec<Session> =
        case.members.iter().enumerate().map(|(at, it)| start(&machine, &regions, program, at, it, &[])).collect();
    std::thread::sleep(Duration::from_millis(700));
    let got = shares(&world, &sessions, WINDOW);
    drop(sessions);
    // Who waits for every kernel leaves pauses, alone too; how long they are depends on the machine.
    let of_solo = |(it, got): (&Member, f64)| match it.shape {
        "sync" => 100.0 * got / alone(program, it),
        _ => got,
    };
    case.members.iter().zip(got).map(of_solo).collect()
}

/// What a container has of the GPU's time when there is no other.
fn alone(program: &Path, it: &Member) -> f64 {
    let (machine, regions) = (Machine::new(), Regions::new());
    let sessions = [start(&machine, &regions, program, 0, it, &[])];
    std::thread::sleep(Duration::from_millis(500));
    shares(&machine.world(), &sessions, WINDOW / 2)[0]
}

fn wrong(case: &Case, got: &[f64]) -> bool {
    let off = case.members.iter().zip(got).any(|(it, got)| (it.request - got).abs() > case.tolerance);
    off || got.iter().sum::<f64>() < case.sum
}

#[test]
fn containers_that_want_all_of_the_gpu_get_what_they_asked_for() {
    let program = compile("compute_work");
    let (mut table, mut failed) = (String::new(), String::new());
    for case in CASES {
        // A machine that stands still for a while cannot show what is shown here: three tries.
        let mut last = got(&program, case);
        for _ in 0..2 {
            if wrong(case, &last) {
                last = got(&program, case);
            }
        }
        let list: Vec<String> = last.iter().map(|share| format!("{share:.1}")).collect();
        let line = format!("{:<40}{} = {:.1}", case.name, list.join(" + "), last.iter().sum::<f64>());
        let _ = writeln!(table, "{line}");
        if wrong(case, &last) {
            let _ = writeln!(failed, "{line}");
        }
    }
    report("compute-turns", &table);
    assert!(failed.is_empty(), "{failed}");
}
