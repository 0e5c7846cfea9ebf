//! Shares of the GPU's time when things go wrong: whose turn it is dies, stands still, hangs or forks; programs wait for
//! each other while they are held up; processes end while they are; and what was asked for changes meanwhile. Judged by the
//! simulated GPU's own record of how long it worked for whom, over its own clock.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

#[path = "caps/container.rs"]
mod container;
#[path = "compute/scene.rs"]
mod scene;
mod support;

use container::{GIB, Session, busy_share, with_files};
use ration_policy::Priority;
use ration_policy::Share;
use scene::{PATIENCE, Scene, expect, milliseconds};
use support::{compile, report};

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
    // What it has queued, half a second of it, stays on the GPU: the others have every other time slice.
    Fault { told: "stop", others: 45.0, then: Then::Continue },
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
/// lease's work with it that nobody has accounted for. One that was stopped is charged for the time in which it had work under
/// way, of which the others had half meanwhile.
const DRIFT_OF_FAULTS: [f64; 3] = [6.0, 3.0, 3.0];

#[test]
fn whatever_happens_to_the_one_whose_turn_it_is_the_others_go_on() {
    let scene = Scene::new(&compile("compute_faults"));
    let mut sessions: Vec<Session> =
        REQUESTS.iter().map(|(name, request, _)| scene.serve(name, request, "500")).collect();
    milliseconds(500);
    let began = scene.moment();
    let (mut text, mut kept_up) = (String::new(), true);
    for fault in FAULTS {
        kept_up &= expect(&mut text, || {
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
    assert!(!kept_up || drifts.iter().zip(DRIFT_OF_FAULTS).all(|(drift, most)| drift.abs() < most), "{text}");
}

// ------------------------------------------------------------------------------------------------ in whatever order

const SHAPES: &[&str] = &["synchronise", "copy", "events", "later", "host", "threads", "per-thread", "capture"];
/// So long at most, on a machine that keeps up: waits for what does not come end by themselves, after a second each.
const BOUNDED: Duration = Duration::from_secs(10);
/// Longer than this is taken to be for ever, on any machine.
const FOR_EVER: Duration = Duration::from_secs(60);

type Setting = (&'static str, &'static str);

/// By either switch: at a limit, and beside a neighbour.
fn ways(limit: Setting, request: Setting) -> [(&'static str, &'static str, Setting); 4] {
    let of = |switch| [(switch, "limit", limit), (switch, "leases", request)];
    let ([a, b], [c, d]) = (of("channels"), of("launches"));
    [a, b, c, d]
}

#[test]
fn programs_that_are_held_up_do_not_wait_for_each_other_for_ever() {
    let program = compile("compute_faults");
    let mut text = String::new();
    let (limit, request) = (("RATION_COMPUTE_LIMIT", "30%"), ("RATION_COMPUTE_REQUEST", "30%"));
    for (switch, how, settings) in ways(limit, request) {
        let scene = Scene::by(switch, &program);
        let neighbour = (how == "leases").then(|| scene.serve("tests/neighbour", "70%", "500"));
        for shape in SHAPES {
            let name = format!("tests/{shape}");
            let before = text.clone();
            expect(&mut text, || {
                let began = Instant::now();
                let mut session = Session::start(&mut scene.command(&name, &[settings], &[shape]), FOR_EVER);
                let done = session.until("done").and_then(|_| session.finish());
                let took = began.elapsed();
                let line = format!("{switch}, {how} {shape:<12} {} ms", took.as_millis());
                assert!(done.is_ok(), "{before}{line}: {done:?}");
                (line, took < BOUNDED)
            });
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
    for (switch, how, settings) in ways(("RATION_COMPUTE_LIMIT", "5%"), ("RATION_COMPUTE_REQUEST", "5%")) {
        let scene = Scene::by(switch, &program);
        let neighbour = (how == "leases").then(|| scene.serve("tests/neighbour", "95%", "500"));
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
                let line = format!("{switch}, {how}, {end:<8} {:>4} ms, {status}", took.as_millis());
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

fn per_cent(share: u32) -> Share {
    Share::from_ppm(share * 10_000)
}

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
            members[0].compute().set_request(Some(per_cent(first)));
            members[1].compute().set_request(Some(per_cent(second)));
            let [one, other] = shares();
            let are_right = (one - f64::from(first)).abs() < TOLERANCE && (other - f64::from(second)).abs() < TOLERANCE;
            (format!("requests {first}% and {second}%: {one:.1}% and {other:.1}%"), are_right)
        });
    }
    members.iter().for_each(|member| member.compute().set_request(Some(per_cent(50))));
    for (priority, at_least, at_most) in [(Priority::Batch, 0.0, 20.0), (Priority::Normal, 47.0, 53.0)] {
        expect(&mut text, || {
            members[0].compute().set_priority(priority);
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
            let cap = scene
                .region("team/web-x7k2p/main")
                .containers()
                .find(|it| it.name.as_bytes() == b"team/web-x7k2p/main")
                .map(|it| it.cap);
            (format!("{wanted}; {got:.1}% and {cap:?}"), (got - limit).abs() < TOLERANCE && cap == Some(Some(memory)))
        });
    }
    report("compute-faults-quota", &text);
}
