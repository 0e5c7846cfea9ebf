//! Limits and shares by the GPU's own scheduler (its channels): programs on the simulated GPU with the stand-in for
//! the kernel module, judged by the simulated GPU's own record of the time in which their kernels got on, over its own clock.

use std::fmt::Write as _;

#[path = "caps/container.rs"]
mod container;
#[path = "channels/steered.rs"]
mod steered;
mod support;

use container::Session;
use steered::{Did, Steered, milliseconds};
use support::tries::until_good;
use support::{Machine, compile, report};

/// What it takes until costs are known and leases go round.
const WARM: u64 = 500;
const WINDOW: u64 = 1500;

fn per_cent(share: f64) -> String {
    format!("{share}%")
}

// ------------------------------------------------------------------------------------------------ limits

/// A program of a shape, alone in a container with a limit.
fn limited(shape: &str, kernel_us: &str, limit: f64) -> Did {
    // On the H200 channels are off 0.2 ms into the call, which lasts for 0.5; here they are at its end.
    let steered = Steered::on(Machine::with(&[("RATION_SIM_OFF_US", "200")]), compile("compute_work"));
    let session =
        steered.start("tests/limited", &[("RATION_COMPUTE_LIMIT", &per_cent(limit))], &[shape, kernel_us, "30"]);
    milliseconds(WARM);
    steered.over(&[&session], WINDOW)
}

/// How far from its limit a container may be, in points.
const NEAR: f64 = 1.5;

fn limit_holds(shape: &str, limits: &[f64]) {
    let mut text = String::new();
    for limit in limits {
        let is_good = |did: &Did| (did.shares[0] - limit).abs() <= NEAR;
        let Some(did) = until_good(|| limited(shape, "500", *limit), is_good) else { continue };
        let _ = writeln!(text, "{shape:<6} limit {limit}%: {:.2}%, {} switches", did.shares[0], did.switches[0]);
        assert!(is_good(&did), "{text}");
        assert!(did.switches[0] > 0, "it was held by something else: {text}");
    }
    report(&format!("channels-limit-{shape}"), &text);
}

#[test]
fn limit_holds_for_deep_queue() {
    limit_holds("queue", &[25.0, 90.0]);
}

/// Twenty kernels of 10 ms at once, and then nothing for longer than it takes until a container is not there any more.
#[test]
fn limit_holds_for_bursts() {
    let is_good = |did: &Did| (24.0..=30.0 + 2.0 * NEAR).contains(&did.shares[0]);
    let attempt = || {
        let steered = Steered::on(Machine::with(&[("RATION_SIM_OFF_US", "200")]), compile("compute_work"));
        let session = steered.start("tests/bursts", &[("RATION_COMPUTE_LIMIT", "30%")], &["bursts", "10000", "60"]);
        milliseconds(2 * WARM);
        steered.over(&[&session], 3 * WINDOW)
    };
    let Some(did) = until_good(attempt, is_good) else { return };
    let text = format!("bursts limit 30%: {:.2}%, {} switches\n", did.shares[0], did.switches[0]);
    report("channels-limit-bursts", &text);
    assert!(is_good(&did), "{text}");
}

#[test]
fn limit_holds_for_sync_each() {
    limit_holds("sync", &[25.0, 50.0]);
}

/// Kernels of 10 us, 30 us of the host's time between two: a quarter to a third of the GPU. A limit of a half is none to it.
/// Two that fill the GPU and together may have less than all of it.
#[test]
fn limits_hold_beside_each_other() {
    let limits = [20.0, 70.0];
    let attempt = || {
        let steered = Steered::new(compile("compute_work"));
        let start = |limit: f64| {
            steered.start(
                &format!("tests/at-{limit}"),
                &[("RATION_COMPUTE", &per_cent(limit))],
                &["queue", "500", "60"],
            )
        };
        let sessions = limits.map(start);
        milliseconds(2 * WARM);
        steered.over(&sessions.each_ref(), 2 * WINDOW)
    };
    let is_good = |did: &Did| did.shares.iter().zip(limits).all(|(got, limit)| (got - limit).abs() <= 1.5 * NEAR);
    let Some(did) = until_good(attempt, is_good) else { return };
    let text = format!("limits of {limits:.0?}%: {:.1?}\n", did.shares);
    report("channels-limits", &text);
    assert!(is_good(&did), "{text}");
}

/// Who is kept off again and again in the middle of each of its kernels is held to its limit all the same: beside a server that
/// answers for 27 ms and then pauses for 20, a kernel of 24 ms is never seen to begin and end in one time on the GPU.
#[test]
fn limit_holds_where_every_kernel_is_interrupted() {
    let mut text = String::new();
    // Kernels that are measured once only, beside somebody, seem longer than they are.
    for (shape, least) in [("twenty", 24.0), ("unlike", 17.0)] {
        let attempt = || {
            let steered = Steered::on(Machine::with(&[("RATION_SIM_OFF_US", "200")]), compile("compute_work"));
            let settings = [("RATION_COMPUTE", "60%"), ("RATION_PRIORITY", "latency")];
            let serves = steered.start("tests/serves", &settings, &["serve", "2700", "60"]);
            milliseconds(WARM);
            let long = steered.start("tests/long", &[("RATION_COMPUTE", "30%")], &[shape, "24000", "60"]);
            milliseconds(6 * WARM);
            steered.over(&[&long, &serves], 2 * WINDOW)
        };
        let is_good = |did: &Did| (least..=30.0 + 2.0 * NEAR).contains(&did.shares[0]) && did.shares[1] > 45.0;
        let Some(did) = until_good(attempt, is_good) else { continue };
        let _ = writeln!(text, "{shape}: {:.1}% of a limit of 30%, beside {:.1}%", did.shares[0], did.shares[1]);
        assert!(is_good(&did), "{text}");
    }
    report("channels-interrupted", &text);
}

#[test]
fn light_program_below_its_limit_is_not_slowed() {
    let attempt = || {
        let steered = Steered::new(compile("compute_work"));
        let bare = {
            let session = steered.bare(&["slow", "10", "30"]);
            milliseconds(200);
            steered.over(&[&session], WINDOW)
        };
        (bare, limited("slow", "10", 50.0))
    };
    let is_good = |(bare, did): &(Did, Did)| did.kernels[0] > 0.96 * bare.kernels[0] && did.switches[0] == 0;
    let Some((bare, did)) = until_good(attempt, is_good) else { return };
    let text = format!(
        "{:.0} kernels a second bare ({:.1}% of the GPU), {:.0} with a limit of 50%, {} switches\n",
        bare.kernels[0], bare.shares[0], did.kernels[0], did.switches[0]
    );
    report("channels-light", &text);
    assert!(is_good(&(bare, did)), "{text}");
}

// ------------------------------------------------------------------------------------------------ shares

/// Two containers, each with its request and what runs in it.
fn two(steered: &Steered, both: [(f64, &str); 2]) -> [Session; 2] {
    let mut number = 0;
    both.map(|(request, shape)| {
        number += 1;
        let settings = [("RATION_COMPUTE_REQUEST", per_cent(request))];
        let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
        steered.start(&format!("tests/shared-{number}"), &settings, &[shape, "500", "60"])
    })
}

fn are_near(shares: &[f64], wanted: &[f64]) -> bool {
    shares.iter().zip(wanted).all(|(got, wanted)| (got - wanted).abs() <= 3.0) && shares.iter().sum::<f64>() >= 95.0
}

fn shares_hold(name: &str, both: [(f64, &str); 2]) {
    let wanted = both.map(|(request, _)| request);
    let attempt = || {
        let steered = Steered::new(compile("compute_work"));
        let sessions = two(&steered, both);
        milliseconds(WARM);
        let mut shares = steered.shares(&sessions.each_ref(), WINDOW);
        drop(sessions);
        // Who waits for every kernel leaves pauses, alone too; how long they are depends on the machine.
        if let Some(at) = both.iter().position(|(_, shape)| *shape == "sync") {
            let alone = steered.bare(&["sync", "500", "30"]);
            milliseconds(100);
            shares[at] *= 100.0 / steered.shares(&[&alone], WINDOW / 3)[0];
        }
        shares
    };
    let Some(got) = until_good(attempt, |got| are_near(got, &wanted)) else { return };
    let text = format!("{name}: {got:.1?}, asked for {wanted:?}\n");
    report(&format!("channels-{name}"), &text);
    assert!(are_near(&got, &wanted), "{text}");
}

#[test]
fn deep_queues_share_by_request() {
    shares_hold("deep-25-75", [(25.0, "queue"), (75.0, "queue")]);
}

#[test]
fn sync_each_has_its_half_beside_a_deep_queue() {
    shares_hold("sync-deep", [(50.0, "sync"), (50.0, "queue")]);
}

/// What a light program (kernels of 10 us, 30 us of the host's time between two) and a deep queue have beside each other.
fn light_beside_deep(light: impl Fn(&Steered) -> Session, deep: impl Fn(&Steered) -> Session) -> Did {
    let steered = Steered::new(compile("compute_work"));
    let (light, deep) = (light(&steered), deep(&steered));
    milliseconds(2 * WARM);
    steered.over(&[&light, &deep], WINDOW)
}

/// A light program takes the GPU whenever it launches something, and each time costs its neighbour a change and back. Its launches
/// go together: it loses nothing, and the neighbour has more.
#[test]
fn launches_of_a_light_program_go_together_beside_a_deep_queue() {
    let (light, deep, request) = (["slow", "10", "60"], ["queue", "500", "60"], [("RATION_COMPUTE_REQUEST", "50%")]);
    let attempt = || {
        let plain = light_beside_deep(|it| it.bare(&light), |it| it.bare(&deep));
        let ours = light_beside_deep(
            |it| it.start("tests/light", &request, &light),
            |it| it.start("tests/deep", &request, &deep),
        );
        (plain, ours)
    };
    // How much a light program launches is its host's: what both have together is ours.
    let lost = |did: &Did| 100.0 - did.shares.iter().sum::<f64>();
    let is_good =
        |(plain, ours): &(Did, Did)| ours.kernels[0] > 0.85 * plain.kernels[0] && lost(ours) < 0.7 * lost(plain);
    let Some((plain, ours)) = until_good(attempt, is_good) else { return };
    let text = format!(
        "light and deep: {:.0} kernels a second and {:.1}%, {:.1}% lost; plain {:.0} and {:.1}%, {:.1}% lost\n",
        ours.kernels[0],
        ours.shares[1],
        lost(&ours),
        plain.kernels[0],
        plain.shares[1],
        lost(&plain)
    );
    report("channels-together", &text);
    assert!(is_good(&(plain, ours)), "{text}");
}

/// What is kept back goes when the program asks for it, in whichever way: it is not slower than without the library.
#[test]
fn launches_that_are_kept_back_go_when_they_are_waited_for() {
    let (deep, request) = (["queue", "500", "60"], [("RATION_COMPUTE_REQUEST", "50%")]);
    let mut text = String::new();
    for (shape, blocking) in [("poll", "0"), ("eager", "0"), ("slow", "1")] {
        let light = [shape, "10", "60"];
        let start = |it: &Steered| {
            let mut command = it.command("tests/light", &request, &light);
            let mut session = Session::start(command.env("CUDA_LAUNCH_BLOCKING", blocking), steered::PATIENCE);
            session.until("ready").expect("it starts");
            session
        };
        let bare = |it: &Steered| {
            let mut command = it.machine.command(&it.program);
            command.env("LD_PRELOAD", support::sim_dir().join("libsim-kernel.so"));
            let command = command.args(light).env("CUDA_LAUNCH_BLOCKING", blocking);
            let mut session = Session::start(command, steered::PATIENCE);
            session.until("ready").expect("it starts");
            session
        };
        let attempt = || {
            let plain = light_beside_deep(bare, |it| it.bare(&deep));
            (plain, light_beside_deep(start, |it| it.start("tests/deep", &request, &deep)))
        };
        let is_good = |(plain, ours): &(Did, Did)| ours.kernels[0] > 0.9 * plain.kernels[0];
        let Some((plain, ours)) = until_good(attempt, is_good) else { continue };
        let _ = writeln!(text, "{shape:<6} {:.0} kernels a second, plain {:.0}", ours.kernels[0], plain.kernels[0]);
        assert!(is_good(&(plain, ours)), "{text}");
    }
    report("channels-awaited", &text);
}

#[test]
fn neighbour_that_comes_has_its_share_and_leaves_all_of_it() {
    let attempt = || {
        let steered = Steered::new(compile("compute_work"));
        let request = |request| [("RATION_COMPUTE_REQUEST", request)];
        let stays = steered.start("tests/stays", &request("25%"), &["queue", "500", "60"]);
        milliseconds(WARM);
        let alone = steered.over(&[&stays], 400);
        let comes = steered.start("tests/comes", &request("75%"), &["queue", "500", "60"]);
        milliseconds(WARM);
        let together = steered.shares(&[&stays, &comes], WINDOW);
        drop(comes);
        milliseconds(300);
        (alone, together, steered.over(&[&stays], 400))
    };
    let is_good = |(alone, together, after): &(Did, Vec<f64>, Did)| {
        let is_free = |did: &Did| did.shares[0] > 98.0 && did.switches[0] == 0;
        is_free(alone) && are_near(together, &[25.0, 75.0]) && is_free(after)
    };
    let Some(got) = until_good(attempt, is_good) else { return };
    let text = format!("alone {:?}, together {:?}, afterwards {:?}\n", got.0, got.1, got.2);
    report("channels-comes-and-goes", &text);
    assert!(is_good(&got), "{text}");
}

// ------------------------------------------------------------------------------------------------ latency

fn requests(beside: bool) -> (f64, f64) {
    Steered::new(compile("compute_work")).requests(beside, WARM, Steered::start)
}

#[test]
fn requests_of_a_latency_container_are_answered_as_if_alone() {
    let attempt = || (requests(false), requests(true));
    let is_good = |((alone, _), (beside, had)): &((f64, f64), (f64, f64))| *beside <= 1.25 * alone && *had > 60.0;
    let Some(got) = until_good(attempt, is_good) else { return };
    let ((alone, _), (beside, had)) = got;
    let text = format!("requests of {alone:.0} us alone take {beside:.0} us beside one that has {had:.1}%\n");
    report("channels-latency", &text);
    assert!(is_good(&got), "{text}");
}
