//! Shares of the GPU's time when things go wrong: whose turn it is dies, stands still, hangs or forks; programs wait for
//! each other while they are held up; processes end while they are; and what was asked for changes meanwhile. Judged by the
//! simulated GPU's own record of how long it worked for whom, over its own clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{GIB, Regions, Session, busy_share, inside, with_files};
use ration_policy::Share;
use ration_policy::turns::Priority;
use ration_region::{Gpu, Member, Region};
use sim_world::World;
use support::tries::until_good;
use support::{Machine, compile, report};

const PATIENCE: Duration = Duration::from_secs(20);

/// A machine with containers that share its GPU.
struct Scene {
    machine: Machine,
    regions: Regions,
    world: World,
    region: Region,
    program: PathBuf,
    /// Which container each process was in that was ever seen: the region forgets the dead.
    containers: RefCell<BTreeMap<u64, String>>,
}

/// What a container has had of the GPU's time: by the record, and by its account in the region.
#[derive(Debug, Clone, Copy, Default)]
struct Had {
    record: u64,
    /// The part of it in which kernels got on.
    work: u64,
    account: u64,
}

/// How much everybody has had by some time, by the container's name.
struct Moment {
    clock: u64,
    had: BTreeMap<String, Had>,
}

fn milliseconds(length: u64) {
    std::thread::sleep(Duration::from_millis(length));
}

fn per_cent(share: u32) -> Share {
    Share::from_ppm(share * 10_000)
}

impl Scene {
    fn new(program: &Path) -> Scene {
        let (machine, regions) = (Machine::new(), Regions::new());
        let world = machine.world();
        let gpu = world.settings().gpu[0];
        let gpu = Gpu { uuid: gpu.uuid, total: gpu.memory };
        let region = Region::open(&regions.0, &gpu).expect("a region can be made");
        Scene { machine, regions, world, region, program: program.to_owned(), containers: RefCell::default() }
    }

    fn command(&self, container: &str, settings: &[(&str, &str)], args: &[&str]) -> Command {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let mut command = inside(&self.machine, &self.regions, container, &settings, &self.program);
        command.args(args);
        command
    }

    /// A program that keeps the GPU busy until it is told otherwise, in a container that asks for so much.
    fn serve(&self, container: &str, request: &str, kernel_us: &str) -> Session {
        let settings = [("RATION_COMPUTE_REQUEST", request)];
        let mut session = Session::start(&mut self.command(container, &settings, &["serve", kernel_us]), PATIENCE);
        session.until("ready").expect("it starts");
        session
    }

    fn member(&self, container: &str) -> Member {
        self.region.join(container, None).expect("there is room in the region")
    }

    /// What the containers have had.
    fn moment(&self) -> Moment {
        let record = self.world.record();
        let mut containers = self.containers.borrow_mut();
        let mut had: BTreeMap<String, Had> = BTreeMap::new();
        for container in self.region.containers() {
            let name = container.name.to_string();
            containers.extend(container.members().map(|process| (u64::from(process.pid), name.clone())));
            had.entry(name).or_default().account = container.compute().gpu_time;
        }
        for process in &record.processes {
            let busy: u64 = process.gpus.values().map(|gpu| gpu.busy_ns).sum();
            if let Some(had) = containers.get(&process.pid).and_then(|name| had.get_mut(name)) {
                had.record += busy;
                had.work += process.gpus.values().map(|gpu| gpu.work_ns).sum::<u64>();
            }
        }
        Moment { clock: record.clock_ns, had }
    }

    /// What a container has had, at a time at which it has nothing under way and all that it had is accounted for.
    fn between_turns(&self, container: &str) -> Had {
        let mut had = Vec::new();
        for _ in 0..1000 {
            had.push(self.moment().had[container]);
            if let [.., first, second, last] = had[..]
                && first.record == last.record
                && second.account == last.account
            {
                return last;
            }
            milliseconds(2);
        }
        panic!("{container} has work under way all the time");
    }
}

impl Moment {
    /// What a container has had since another time, in per cent of the GPU's time.
    fn share_since(&self, before: &Moment, container: &str) -> f64 {
        let had = |moment: &Moment| moment.had.get(container).map_or(0, |had| had.record);
        100.0 * had(self).saturating_sub(had(before)) as f64 / (self.clock - before.clock) as f64
    }

    /// How much more of that is in the account than in the record, in per cent of the record.
    fn drift_since(&self, before: &Moment, container: &str) -> f64 {
        let had = |moment: &Moment| moment.had.get(container).copied().unwrap_or_default();
        let (now, then) = (had(self), had(before));
        let (record, account) = ((now.record - then.record) as f64, (now.account - then.account) as f64);
        100.0 * (account - record) / record
    }
}

/// Says what was seen, if it is as it should be.
fn expect(text: &mut String, mut attempt: impl FnMut() -> (String, bool)) {
    let mut seen = Vec::new();
    let judged = until_good(
        || {
            let last = attempt();
            seen.push(last.0.clone());
            last
        },
        |(_, is_right)| *is_right,
    );
    let Some((line, is_right)) = judged else {
        let _ = writeln!(text, "not judged: {}", seen.join("\n"));
        return;
    };
    assert!(is_right, "{text}{}", seen.join("\n"));
    let _ = writeln!(text, "{line}");
}

// ------------------------------------------------------------------------------------------------ whose turn it is

/// Something that happens to the container whose turn it is.
struct Fault {
    told: &'static str,
    /// What the two others have together in the time from 100 to 300 ms after it, at least, in per cent.
    others: f64,
    /// What is done after that, so that all is as before.
    then: Then,
}

enum Then {
    Nothing,
    /// The process is gone, or of no more use: another takes its place.
    Another,
    /// It goes on, after a SIGCONT.
    Continue,
    /// It goes on after so many milliseconds.
    Wait(u64),
}

const FAULTS: &[Fault] = &[
    Fault { told: "kill", others: 85.0, then: Then::Another },
    Fault { told: "stop", others: 85.0, then: Then::Continue },
    // The hardware gives the kernel every other time slice, and the others, of whom little is in flight, less than a whole one.
    Fault { told: "hang 1000", others: 23.0, then: Then::Wait(1500) },
    Fault { told: "fork", others: 50.0, then: Then::Nothing },
    Fault { told: "orphan", others: 85.0, then: Then::Another },
    Fault { told: "become", others: 85.0, then: Then::Another },
    Fault { told: "spawn", others: 50.0, then: Then::Nothing },
];

/// The containers: the first is the one that things happen to.
const REQUESTS: [(&str, &str, f64); 3] =
    [("tests/faulty", "40%", 40.0), ("tests/one", "35%", 35.0), ("tests/two", "25%", 25.0)];
/// How far from its request each may be afterwards, in points.
const TOLERANCE: f64 = 3.0;
/// How far the accounts may be from what the GPU did for each, after all of that, in per cent. Who is killed takes up to a
/// turn's work with it that nobody has accounted for, and what two do at the same time is shared out as well as can be.
const DRIFT_OF_FAULTS: f64 = 3.0;

#[test]
fn whatever_happens_to_the_one_whose_turn_it_is_the_others_go_on() {
    let scene = Scene::new(&compile("compute_faults"));
    let mut sessions: Vec<Session> =
        REQUESTS.iter().map(|(name, request, _)| scene.serve(name, request, "500")).collect();
    milliseconds(500);
    let began = scene.moment();
    let (mut text, mut tries) = (String::new(), 0);
    for fault in FAULTS {
        expect(&mut text, || {
            tries += 1;
            let at_first = scene.moment();
            sessions[0].tell(fault.told);
            sessions[0].until("now").expect("it is told what to do");
            milliseconds(100);
            let before = scene.moment();
            milliseconds(200);
            let after = scene.moment();
            let others: f64 = REQUESTS[1..].iter().map(|(name, ..)| after.share_since(&before, name)).sum();
            match fault.then {
                Then::Nothing => {}
                Then::Another => sessions[0] = scene.serve(REQUESTS[0].0, REQUESTS[0].1, "500"),
                Then::Continue => sessions[0].signal(libc::SIGCONT),
                Then::Wait(length) => milliseconds(length),
            }
            milliseconds(400);
            let before = scene.moment();
            milliseconds(1000);
            let after = scene.moment();
            let shares = REQUESTS.map(|(name, ..)| after.share_since(&before, name));
            let drifts = REQUESTS.map(|(name, ..)| after.drift_since(&at_first, name));
            let are_right = REQUESTS.iter().zip(shares).all(|((.., wanted), got)| (got - wanted).abs() < TOLERANCE);
            let line = format!(
                "{:<12}the others have {others:.1}%, then it is {:.1} + {:.1} + {:.1}; accounts off by {:.1} {:.1} {:.1}%",
                fault.told, shares[0], shares[1], shares[2], drifts[0], drifts[1], drifts[2]
            );
            let is_right = others >= fault.others && are_right;
            if !is_right {
                // What it has spawned goes with it.
                sessions[0] = scene.serve(REQUESTS[0].0, REQUESTS[0].1, "500");
            }
            (line, is_right)
        });
    }
    let ended = scene.moment();
    let drifts = REQUESTS.map(|(name, ..)| ended.drift_since(&began, name));
    let _ = writeln!(text, "all in all  accounts off by {drifts:.2?}%");
    report("compute-faults-turns", &text);
    // A machine that stood still says as little about the accounts as about the shares.
    assert!(tries > FAULTS.len() || drifts.iter().all(|drift| drift.abs() < DRIFT_OF_FAULTS), "{text}");
}

// ------------------------------------------------------------------------------------------------ in whatever order

const SHAPES: &[&str] = &["synchronise", "copy", "events", "later", "host", "threads", "per-thread", "capture"];
/// Longer than this is taken to be for ever.
const BOUNDED: Duration = Duration::from_secs(10);

#[test]
fn programs_that_are_held_up_do_not_wait_for_each_other_for_ever() {
    let program = compile("compute_faults");
    let mut text = String::new();
    for (how, settings) in [("limit", ("RATION_COMPUTE_LIMIT", "30%")), ("turns", ("RATION_COMPUTE_REQUEST", "30%"))] {
        let scene = Scene::new(&program);
        let neighbour = (how == "turns").then(|| scene.serve("tests/neighbour", "70%", "500"));
        for shape in SHAPES {
            let name = format!("tests/{shape}");
            let began = Instant::now();
            let mut session = Session::start(&mut scene.command(&name, &[settings], &[shape]), BOUNDED);
            let done = session.until("done").and_then(|_| session.finish());
            let took = began.elapsed();
            let _ = writeln!(text, "{how} {shape:<12} {} ms", took.as_millis());
            assert!(done.is_ok() && took < BOUNDED, "{text}{done:?}");
        }
        drop(neighbour);
    }
    report("compute-faults-orders", &text);
}

// ------------------------------------------------------------------------------------------------ the end

/// A process is gone so soon, whoever of its threads is held up.
const PROMPT: Duration = Duration::from_millis(200);

#[test]
fn processes_that_are_held_up_end_at_once() {
    let program = compile("compute_faults");
    let mut text = String::new();
    for (how, settings) in [("limit", ("RATION_COMPUTE_LIMIT", "5%")), ("turns", ("RATION_COMPUTE_REQUEST", "5%"))] {
        let scene = Scene::new(&program);
        let neighbour = (how == "turns").then(|| scene.serve("tests/neighbour", "95%", "500"));
        for end in ["exit", "_exit", "return", "wait"] {
            expect(&mut text, || {
                let mut session =
                    Session::start(&mut scene.command("tests/end", &[settings], &["exit", end]), PATIENCE);
                session.until("now").expect("it starts");
                let began = Instant::now();
                if end == "wait" {
                    session.signal(libc::SIGTERM);
                }
                let status = session.child.wait().expect("it ends");
                let took = began.elapsed();
                let line = format!("{how}, {end:<8} {:>4} ms, {status}", took.as_millis());
                (line, took < PROMPT && (end == "wait" || status.success()))
            });
        }
        drop(neighbour);
    }
    report("compute-faults-end", &text);
}

// ------------------------------------------------------------------------------------------------ what is not known yet

#[test]
fn a_program_that_pauses_after_its_first_launch_is_held_to_its_limit_like_any_other() {
    let program = compile("compute_faults");
    let mut text = String::new();
    for kernel_us in ["500", "5000"] {
        expect(&mut text, || {
            let scene = Scene::new(&program);
            let settings = [("RATION_COMPUTE_LIMIT", "20%")];
            let mut command = scene.command("tests/pause", &settings, &["pause", kernel_us]);
            let mut session = Session::start(&mut command, PATIENCE);
            session.until("ready").expect("it starts");
            milliseconds(300);
            let before = scene.moment();
            milliseconds(700);
            let got = scene.moment().share_since(&before, "tests/pause");
            (format!("kernels of {kernel_us} us, limit 20%: {got:.1}%"), (got - 20.0).abs() < TOLERANCE)
        });
    }
    report("compute-faults-pause", &text);
}

// ------------------------------------------------------------------------------------------------ changes

/// The region's clock.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A change holds after so many milliseconds; it is looked at for some more.
const HOLDS_AFTER: u64 = 200;
const LOOKED_AT: u64 = 600;

#[test]
fn a_limit_that_changes_holds_at_once() {
    let scene = Scene::new(&compile("compute_faults"));
    let settings = [("RATION_COMPUTE_LIMIT", "25%")];
    let mut session = Session::start(&mut scene.command("tests/limited", &settings, &["serve", "500"]), PATIENCE);
    session.until("ready").expect("it starts");
    let member = scene.member("tests/limited");
    milliseconds(500);
    let mut text = String::new();
    for limit in [75, 25, 100, 10] {
        expect(&mut text, || {
            member.compute().set_limit(per_cent(limit), now());
            milliseconds(HOLDS_AFTER);
            let before = scene.moment();
            milliseconds(LOOKED_AT);
            let got = scene.moment().share_since(&before, "tests/limited");
            (format!("limit {limit}%: {got:.1}%"), (got - f64::from(limit)).abs() < TOLERANCE)
        });
    }
    report("compute-faults-limits", &text);
}

#[test]
fn a_request_or_a_priority_that_changes_holds_at_once() {
    let scene = Scene::new(&compile("compute_faults"));
    let names = ["tests/first", "tests/second"];
    let _sessions = [scene.serve(names[0], "25%", "500"), scene.serve(names[1], "75%", "500")];
    let members = names.map(|name| scene.member(name));
    milliseconds(500);
    let shares = || {
        milliseconds(HOLDS_AFTER);
        let before = scene.moment();
        milliseconds(LOOKED_AT);
        let after = scene.moment();
        names.map(|name| after.share_since(&before, name))
    };
    let mut text = String::new();
    for (first, second) in [(25, 75), (75, 25), (50, 50), (10, 90)] {
        expect(&mut text, || {
            members[0].compute().set_request(Some(per_cent(first)), now());
            members[1].compute().set_request(Some(per_cent(second)), now());
            let [one, other] = shares();
            let are_right = (one - f64::from(first)).abs() < TOLERANCE && (other - f64::from(second)).abs() < TOLERANCE;
            (format!("requests {first}% and {second}%: {one:.1}% and {other:.1}%"), are_right)
        });
    }
    members.iter().for_each(|member| member.compute().set_request(Some(per_cent(50)), now()));
    for (priority, at_least, at_most) in [(Priority::Batch, 0.0, 20.0), (Priority::Normal, 47.0, 53.0)] {
        expect(&mut text, || {
            members[0].compute().set_priority(priority, now());
            let [got, _] = shares();
            (format!("50% as {priority:?}: {got:.1}%"), (at_least..=at_most).contains(&got))
        });
    }
    report("compute-faults-changes", &text);
}

/// A change of the quota file is seen within a second.
const SEEN_AFTER: u64 = 1200;

#[test]
fn a_quota_file_that_changes_holds_from_then_on() {
    let scene = Scene::new(&compile("compute_work"));
    let files = [("quota", "memory = 4GiB\ncompute = 25%\nname = team/{pod}/main\n"), ("pod", "web-x7k2p\n")];
    let arguments = ["queue", "500", "60"];
    let Some((mut command, dir)) = with_files(&scene.machine, &scene.regions, &files, &scene.program, &arguments)
    else {
        return;
    };
    let mut session = Session::start(command.env("RATION_LOG", "warn"), PATIENCE);
    session.until("ready").expect("it starts");
    milliseconds(500);
    let mut text = String::new();
    // One that makes no sense changes nothing.
    for (said, limit, memory) in [
        ("memory = 4GiB\ncompute = 25%\n", 25.0, 4 * GIB),
        ("memory = 6GiB\ncompute = 60%\n", 60.0, 6 * GIB),
        ("memory = much\ncompute = 25%\n", 60.0, 6 * GIB),
        ("memory = 2GiB\ncompute = 10%\n", 10.0, 2 * GIB),
    ] {
        // As the kubelet does it: at once.
        std::fs::write(dir.join("new"), format!("{said}name = team/{{pod}}/main\n")).expect("it can be written");
        std::fs::rename(dir.join("new"), dir.join("quota")).expect("it can be replaced");
        milliseconds(SEEN_AFTER);
        let wanted = format!("{}: {limit}% and {} GiB", said.trim().replace('\n', ", "), memory / GIB);
        expect(&mut text, || {
            let got = busy_share(&scene.world, Duration::from_millis(LOOKED_AT));
            let cap =
                scene.region.containers().find(|it| it.name.as_bytes() == b"team/web-x7k2p/main").map(|it| it.cap);
            (format!("{wanted}; {got:.1}% and {cap:?}"), (got - limit).abs() < TOLERANCE && cap == Some(Some(memory)))
        });
    }
    report("compute-faults-quota", &text);
}

// ------------------------------------------------------------------------------------------------ accounts

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
    report("compute-faults-accounts", &text);
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
    report("compute-faults-stopped", &text);
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

#[test]
fn the_time_of_those_that_nobody_holds_up_is_known_too() {
    let program = compile("compute_work");
    let mut text = String::new();
    for (shape, kernel_us, tolerance) in FREE {
        expect(&mut text, || {
            let scene = Scene::new(&program);
            let settings = [("RATION_MEMORY", "8GiB")];
            let mut command = scene.command("tests/free", &settings, &[shape, kernel_us, "2"]);
            Session::start(&mut command, PATIENCE).finish().expect("it ends well");
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
    report("compute-faults-free", &text);
}
