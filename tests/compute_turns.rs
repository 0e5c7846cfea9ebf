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
use support::tries::until_good;
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
    Case {
        name: "60/40, one trains a network",
        members: &[member(60.0, "steps", "500"), member(40.0, "queue", "500")],
        // 56, where short and long kernels are expected to take the same, or the GPU runs dry in its turns; 49, and the other 44,
        // where it is taken for one that is not bound by the GPU.
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
    shares_while(world, sessions, || std::thread::sleep(window))
}

/// The same while something goes on.
fn shares_while(world: &World, sessions: &[Session], window: impl FnOnce()) -> Vec<f64> {
    let (before, began) = busy(world);
    window();
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

/// The same without the library.
fn bare(machine: &Machine, program: &Path, it: &Member) -> Session {
    let mut command = machine.command(program);
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
        let Some(last) = until_good(|| got(&program, case), |last| !wrong(case, last)) else { continue };
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

/// Alone, with a neighbour that wants three quarters, alone again: what a container gets.
fn with_a_visitor(program: &Path) -> [f64; 3] {
    let (machine, regions) = (Machine::new(), Regions::new());
    let world = machine.world();
    let stays = [start(&machine, &regions, program, 0, &member(25.0, "queue", "500"), &[])];
    std::thread::sleep(Duration::from_millis(500));
    let before = shares(&world, &stays, Duration::from_millis(700))[0];
    let visitor = start(&machine, &regions, program, 1, &member(75.0, "queue", "500"), &[]);
    // A change is to have come through after 200 ms; the visitor's first launch is not its first line.
    std::thread::sleep(Duration::from_millis(300));
    let beside = shares(&world, &stays, Duration::from_millis(1500))[0];
    drop(visitor);
    std::thread::sleep(Duration::from_millis(200));
    let after = shares(&world, &stays, Duration::from_millis(700))[0];
    [before, beside, after]
}

#[test]
fn time_that_nobody_else_wants_is_had_by_who_can_use_it() {
    let program = compile("compute_work");
    let is_good = |[before, beside, after]: &[f64; 3]| *before > 97.0 && (beside - 25.0).abs() < 3.0 && *after > 97.0;
    let Some(got) = until_good(|| with_a_visitor(&program), is_good) else { return };
    report("compute-visitor", &format!("alone, with a visitor, alone again: {got:.1?}\n"));
    assert!(is_good(&got), "{got:.1?}");
}

/// How long a container goes on without a pause of ten milliseconds beside a visitor that wants three quarters, from the
/// visitor's first kernel but for a few short ones, in milliseconds of the GPU's clock.
fn until_a_turn(program: &Path, shape: &'static str) -> f64 {
    let (machine, regions) = (Machine::new(), Regions::new());
    let world = machine.world();
    let visits = start(&machine, &regions, program, 1, &member(75.0, shape, "500"), &[]);
    std::thread::sleep(Duration::from_millis(100));
    let stays = start(&machine, &regions, program, 0, &member(25.0, "queue", "500"), &[]);
    let mut came = None;
    let (mut last, mut since) = (0, 0);
    for _ in 0..800 {
        let (busy, clock) = busy(&world);
        let had = |session: &Session| busy.get(&u64::from(session.child.id())).copied().unwrap_or(0);
        if came.is_none() && had(&visits) > 1_000_000 {
            came = Some(clock);
        }
        if had(&stays) != last {
            (last, since) = (had(&stays), clock);
        }
        if let Some(came) = came
            && clock - since > 10_000_000
        {
            return since.saturating_sub(came) as f64 / 1e6;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    f64::INFINITY
}

/// A program that sets itself up with short kernels, rests, and then sends long ones is not taken for one that sends short
/// ones: then it would queue hundreds of them before anybody knows better. However few the short ones were: what is measured of
/// them may be known only when the long ones come.
#[test]
fn who_comes_with_long_kernels_after_short_ones_takes_turns_soon() {
    let program = compile("compute_work");
    let is_good = |took: &[f64; 2]| took.iter().all(|took| *took < 120.0);
    let Some(took) = until_good(|| ["visit", "call"].map(|shape| until_a_turn(&program, shape)), is_good) else {
        return;
    };
    report("compute-visitor-comes", &format!("the first turn of one that comes begins after {took:.0?} ms\n"));
    assert!(is_good(&took), "the first turn of one that comes begins after {took:.0?} ms");
}

/// What two have of the GPU's time that want 60 and 40%, where Python trains a network in the first; and how often the GPU goes
/// from one to the other.
fn trained_from_python(program: &Path, shape: &'static str) -> (Vec<f64>, usize) {
    let (machine, regions) = (Machine::new(), Regions::new());
    let world = machine.world();
    let members = [member(60.0, shape, "170"), member(40.0, "queue", "500")];
    let sessions: Vec<Session> =
        members.iter().enumerate().map(|(at, it)| start(&machine, &regions, program, at, it, &[])).collect();
    std::thread::sleep(Duration::from_millis(700));
    let from = world.record().clock_ns;
    let got = shares(&world, &sessions, WINDOW);
    let mut intervals = world.intervals(0);
    intervals.retain(|interval| interval.start_ns >= from);
    (got, intervals.windows(2).filter(|two| two[0].slot != two[1].slot).count())
}

/// For a part of each step it takes the host longer to launch kernels than the GPU to do them. It is bound by the GPU nonetheless,
/// and takes turns: where these begin with that part the GPU waits for it, and that is its own loss.
#[test]
fn who_launches_slowly_for_a_part_of_its_time_takes_turns() {
    let program = compile("compute_work");
    for (shape, least) in [("eager", 48.0), ("drowsy", 45.0)] {
        // By time slices of 2 ms there are 900 changes in this time, and 73 by turns of 22 and 33.
        let is_good =
            |(got, changes): &(Vec<f64>, usize)| got[0] > least && (got[1] - 40.0).abs() < 3.0 && *changes < 200;
        let Some(last) = until_good(|| trained_from_python(&program, shape), is_good) else { return };
        let text = format!("60 and 40% wanted, {:.1?} got, with {} changes in {WINDOW:?}\n", last.0, last.1);
        report(&format!("compute-{shape}"), &text);
        assert!(is_good(&last), "{shape}: {text}");
    }
}

/// What requests took at the median, in microseconds, while they were answered alone or beside one that wants all; and what
/// that one had of the GPU's time.
fn requests(program: &Path, beside: bool) -> (f64, f64) {
    let (machine, regions) = (Machine::new(), Regions::new());
    let world = machine.world();
    let neighbour = beside.then(|| start(&machine, &regions, program, 0, &member(75.0, "queue", "500"), &[]));
    let latency = [("RATION_PRIORITY", "latency".to_owned())];
    let mut asking = start(&machine, &regions, program, 1, &member(25.0, "request", "130"), &latency);
    std::thread::sleep(Duration::from_millis(500));
    let had = neighbour.map_or(0.0, |neighbour| shares(&world, &[neighbour], WINDOW)[0]);
    if !beside {
        std::thread::sleep(WINDOW / 2);
    }
    (took(&mut asking, 50), had)
}

/// What so many of a hundred requests took at most, without the first few.
fn took(asking: &mut Session, percent: usize) -> f64 {
    let mut took: Vec<f64> = Vec::new();
    // What is written already: it is not waited for more.
    while let Ok(Some(line)) = asking.line() {
        took.extend(line.strip_prefix("took ").and_then(|text| text.parse::<f64>().ok()));
        if took.len() >= 60 {
            break;
        }
    }
    let mut settled = took.split_off(took.len().min(15));
    settled.sort_by(f64::total_cmp);
    settled.get(settled.len() * percent / 100).copied().unwrap_or(f64::INFINITY)
}

/// What requests take beside one whose threads have no processor for a quarter of the time, a little at a time.
fn requests_beside_one_that_stands_still(program: &Path) -> f64 {
    let (machine, regions) = (Machine::new(), Regions::new());
    let neighbour = start(&machine, &regions, program, 0, &member(75.0, "queue", "500"), &[]);
    let latency = [("RATION_PRIORITY", "latency".to_owned())];
    let mut asking = start(&machine, &regions, program, 1, &member(25.0, "request", "130"), &latency);
    std::thread::sleep(Duration::from_millis(300));
    for round in 0..70 {
        neighbour.signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(5));
        neighbour.signal(libc::SIGCONT);
        std::thread::sleep(Duration::from_millis(11 + round * 7 % 9));
    }
    took(&mut asking, 85)
}

#[test]
fn who_is_in_a_hurry_does_not_wait_for_one_that_stands_still() {
    let program = compile("compute_work");
    let (alone, _) = requests(&program, false);
    let is_good = |took: &f64| *took < 1.5 * alone;
    let Some(took) = until_good(|| requests_beside_one_that_stands_still(&program), is_good) else { return };
    let text = format!("requests of {alone:.0} us alone: 85 of 100 take less than {took:.0} us\n");
    report("compute-latency-stopped", &text);
    assert!(is_good(&took), "{text}");
}

#[test]
fn who_is_in_a_hurry_waits_least_and_leaves_the_rest() {
    let program = compile("compute_work");
    let (alone, _) = requests(&program, false);
    let is_good = |(took, had): &(f64, f64)| *took < 1.35 * alone && *had > 78.0;
    let Some((took, had)) = until_good(|| requests(&program, true), is_good) else { return };
    let text =
        format!("requests of {alone:.0} us alone take {took:.0} us at the median beside one that has {had:.1}%\n");
    report("compute-latency", &text);
    assert!(is_good(&(took, had)), "{text}");
}

#[test]
fn batch_takes_what_is_left_and_does_not_starve() {
    let program = compile("compute_work");
    let attempt = || {
        let (machine, regions) = (Machine::new(), Regions::new());
        let batch = [("RATION_PRIORITY", "batch".to_owned())];
        let sessions = [
            start(&machine, &regions, &program, 0, &member(50.0, "queue", "500"), &batch),
            start(&machine, &regions, &program, 1, &member(50.0, "queue", "500"), &[]),
        ];
        std::thread::sleep(Duration::from_millis(700));
        shares(&machine.world(), &sessions, WINDOW)
    };
    let is_good = |got: &Vec<f64>| (1.0..12.0).contains(&got[0]) && got.iter().sum::<f64>() > 95.0;
    let Some(got) = until_good(attempt, is_good) else { return };
    assert!(is_good(&got), "batch and normal, half each if they were alike: {got:.1?}");
}

/// What two have that want half of the GPU each, of which the first has no processor for 30 of every 100 ms, as a container that
/// has used up its quota of processor time.
fn beside_one_without_a_processor(program: &Path) -> Vec<f64> {
    let (machine, regions) = (Machine::new(), Regions::new());
    let sessions = [0, 1].map(|number| start(&machine, &regions, program, number, &member(50.0, "queue", "500"), &[]));
    std::thread::sleep(Duration::from_millis(300));
    shares_while(&machine.world(), &sessions, || {
        for _ in 0..WINDOW.as_millis() / 100 {
            sessions[0].signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(30));
            sessions[0].signal(libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(70));
        }
    })
}

/// The other one has the GPU meanwhile, and not only when a turn is over or has become a long one.
#[test]
fn who_has_no_processor_does_not_keep_the_gpu() {
    let program = compile("compute_work");
    let is_good = |got: &Vec<f64>| got[0] > 33.0 && got.iter().sum::<f64>() > 92.0;
    let Some(got) = until_good(|| beside_one_without_a_processor(&program), is_good) else { return };
    let text = format!(
        "half each, the first stopped for 30 of every 100 ms: {got:.1?}, in sum {:.1}\n",
        got.iter().sum::<f64>()
    );
    report("compute-stopped", &text);
    assert!(is_good(&got), "{text}");
}

/// Two programs that launch more slowly than the GPU works, side by side, bare or in slices: what they have of the GPU's time
/// in per cent, and how many marks there are among a hundred launches.
fn side_by_side(program: &Path, in_slices: bool) -> (f64, f64) {
    let slow = member(25.0, "slow", "8");
    let (machine, regions) = (Machine::new(), Regions::new());
    let sessions = [0, 1].map(|number| match in_slices {
        true => start(&machine, &regions, program, number, &slow, &[]),
        false => bare(&machine, program, &slow),
    });
    std::thread::sleep(Duration::from_millis(300));
    let world = machine.world();
    let calls = |symbol: &str| {
        let of = |calls: &BTreeMap<&'static str, u64>| calls.get(symbol).copied().unwrap_or(0);
        world.record().processes.iter().map(|process| of(&process.calls)).sum::<u64>() as f64
    };
    let before = ["cuEventRecord", "cuLaunchKernel"].map(calls);
    let share: f64 = shares(&world, &sessions, Duration::from_millis(1000)).iter().sum();
    let after = ["cuEventRecord", "cuLaunchKernel"].map(calls);
    (share, 100.0 * (after[0] - before[0]) / (after[1] - before[1]))
}

#[test]
fn who_does_not_fill_the_gpu_is_not_held_up() {
    let program = compile("compute_work");
    let attempt = || [false, true].map(|in_slices| side_by_side(&program, in_slices));
    // A launch takes some thirty microseconds, and where each is looked at there is a mark every fifty.
    let is_good = |[(bare, _), (sliced, marks)]: &[(f64, f64); 2]| *sliced > 0.85 * bare && *marks < 30.0;
    let Some(got) = until_good(attempt, is_good) else { return };
    report(
        "compute-slow",
        &format!("per cent of the GPU's time and marks per 100 launches, bare, in slices: {got:.1?}\n"),
    );
    assert!(is_good(&got), "per cent of the GPU's time and marks per 100 launches, bare, in slices: {got:.1?}");
}

/// What a program has whose launches are all of kinds that nobody has seen, beside one that wants all: by plain time slicing, and
/// in slices.
fn with_new_kinds(program: &Path) -> [f64; 2] {
    let members = [member(25.0, "shapes", "8"), member(75.0, "queue", "500")];
    [false, true].map(|in_slices| {
        let (machine, regions) = (Machine::new(), Regions::new());
        let sessions: Vec<Session> = (members.iter().enumerate())
            .map(|(number, it)| match in_slices {
                true => start(&machine, &regions, program, number, it, &[]),
                false => bare(&machine, program, it),
            })
            .collect();
        std::thread::sleep(Duration::from_millis(700));
        shares(&machine.world(), &sessions, WINDOW)[0]
    })
}

/// It is tried out now and then whether it is bound by the GPU, and that does not slow it down.
#[test]
fn who_launches_something_new_all_the_time_is_not_held_up() {
    let program = compile("compute_work");
    let is_good = |[plain, sliced]: &[f64; 2]| *sliced > 0.85 * plain;
    let Some(got) = until_good(|| with_new_kinds(&program), is_good) else { return };
    report("compute-new-kinds", &format!("per cent of the GPU's time, by time slicing and in slices: {got:.1?}\n"));
    assert!(is_good(&got), "per cent of the GPU's time, by time slicing and in slices: {got:.1?}");
}

/// Four programs that send their work more slowly than the GPU does it, with pauses, and want half as much again as it has:
/// what each has of the GPU's time, in per cent.
fn four_side_by_side(program: &Path) -> Vec<f64> {
    let (machine, regions) = (Machine::new(), Regions::new());
    let slow = member(25.0, "products", "18");
    let sessions: Vec<Session> = (0..4).map(|number| start(&machine, &regions, program, number, &slow, &[])).collect();
    std::thread::sleep(Duration::from_millis(500));
    shares(&machine.world(), &sessions, WINDOW)
}

#[test]
fn who_does_not_fill_the_gpu_gets_as_much_as_others_that_do_not() {
    let program = compile("compute_work");
    let attempt = || four_side_by_side(&program);
    // By the hardware's time slices, 23 each. Who takes turns beside others that do not has what those leave: 7, where they have 33.
    let is_good = |got: &Vec<f64>| {
        let (least, most) =
            got.iter().fold((f64::MAX, 0.0f64), |(least, most), &share| (least.min(share), most.max(share)));
        least > 0.7 * most && got.iter().sum::<f64>() > 80.0
    };
    let Some(got) = until_good(attempt, is_good) else { return };
    report("compute-slow-four", &format!("per cent of the GPU's time for each of four: {got:.1?}\n"));
    assert!(is_good(&got), "per cent of the GPU's time for each of four: {got:.1?}");
}
