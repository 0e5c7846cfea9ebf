//! Channels that are driven, when things go wrong: the kernel module refuses, or is not there; who holds the GPU dies or stands
//! still; programs end, fork and close descriptors while they are off the GPU. Judged by the simulated GPU's own record.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

#[path = "caps/container.rs"]
mod container;
#[path = "channels/steered.rs"]
mod steered;
mod support;

use container::Session;
use steered::{Did, Steered, milliseconds};
use support::tries::until_good;
use support::{compile, report, sim_dir};

fn limit(share: &str) -> [(&str, &str); 2] {
    [("RATION_COMPUTE_LIMIT", share), ("RATION_LOG", "warn")]
}

// ------------------------------------------------------------------------------------------------ the kernel module

/// A program at a limit whose channels cannot be driven: they are left alone, its launches are held in their calls, and that is
/// said once.
fn falls_back(how: &str, command: impl Fn(&Steered) -> Command, said: &str) {
    let attempt = || {
        let steered = Steered::new(compile("channels_faults"));
        let mut session = Session::start(&mut command(&steered), steered::PATIENCE);
        session.until("ready").expect("it starts");
        milliseconds(800);
        let did = steered.over(&[&session], 1000);
        let is_off = steered.is_off(&session);
        (did, is_off, session.said())
    };
    let is_good = |(did, is_off, _): &(Did, bool, String)| {
        (22.0..28.0).contains(&did.shares[0]) && did.switches[0] == 0 && !is_off
    };
    let Some(got) = until_good(attempt, is_good) else { return };
    let (did, _, text) = &got;
    report(&format!("channels-faults-{how}"), &format!("{how}: {:.1}% at a limit of 25%\n{text}", did.shares[0]));
    assert!(is_good(&got), "{got:?}");
    assert_eq!(text.matches("GPU 0").count(), 1, "said once: {text}");
    assert!(text.contains(said) && text.contains("held in their calls"), "{text}");
}

#[test]
fn limit_holds_where_the_module_refuses() {
    let command = |steered: &Steered| {
        let mut command = steered.command("tests/refused", &limit("25%"), &["fill"]);
        command.env("RATION_SIM_KERNEL", "refuse");
        command
    };
    falls_back("refuse", command, "refuses");
}

#[test]
fn channels_of_an_mps_server_are_never_switched() {
    let command = |steered: &Steered| {
        let mut command = steered.command("tests/mps", &limit("25%"), &["fill"]);
        command.env("RATION_SIM_KERNEL", "mps");
        command
    };
    falls_back("mps", command, "MPS");
}

#[test]
fn limit_holds_for_a_program_that_closes_all_descriptors() {
    falls_back("close", |steered| steered.command("tests/closed", &limit("25%"), &["close"]), "descriptor");
}

#[test]
fn limit_holds_for_a_driver_without_channels() {
    falls_back("without", |steered| steered.without_module("tests/without", &limit("25%"), &["fill"]), "were seen");
}

/// A launch that is measured is held until it is queued. One that waits for the GPU in its call would wait for ever.
#[test]
fn launches_that_wait_for_the_gpu_are_not_held() {
    let attempt = || {
        let steered = Steered::new(compile("channels_faults"));
        let mut command = steered.command("tests/blocking", &limit("50%"), &["fill"]);
        let mut session = Session::start(command.env("CUDA_LAUNCH_BLOCKING", "1"), steered::PATIENCE);
        session.until("ready").expect("it starts");
        milliseconds(500);
        steered.shares(&[&session], 1000)[0]
    };
    let is_good = |share: &f64| (46.0..52.0).contains(share);
    let Some(share) = until_good(attempt, is_good) else { return };
    report("channels-faults-blocking", &format!("limit 50%, launches that wait: {share:.2}%\n"));
    assert!(is_good(&share), "{share}");
}

// ------------------------------------------------------------------------------------------------ who holds the GPU

/// What the neighbour has from 300 to 600 ms after this happened to the one that held the GPU.
fn after_holder(signal: i32) -> f64 {
    let steered = Steered::new(compile("channels_faults"));
    let request = [("RATION_COMPUTE_REQUEST", "50%")];
    let both = ["tests/one", "tests/other"].map(|name| steered.start(name, &request, &["little"]));
    milliseconds(500);
    let began = Instant::now();
    let holder = loop {
        let off = both.each_ref().map(|session| steered.is_off(session));
        if off[0] != off[1] {
            break usize::from(off[0]);
        }
        assert!(began.elapsed() < Duration::from_secs(2), "no lease was seen");
    };
    both[holder].signal(signal);
    milliseconds(300);
    std::thread::scope(|scope| {
        // One that was stopped with the simulated GPU's own lock keeps everybody from looking: it goes on, and the try fails.
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let (stopped, bounded) = (both[holder].child.id() as libc::pid_t, Duration::from_secs(1));
        scope.spawn(move || {
            let _ = is_done.recv_timeout(bounded);
            // SAFETY: kill takes numbers; the child is not waited for before this thread is, so nobody else has its number.
            unsafe { libc::kill(stopped, libc::SIGCONT) };
        });
        let share = steered.shares(&[&both[1 - holder]], 300)[0];
        drop(done);
        share
    })
}

fn neighbour_goes_on(name: &str, signal: i32, at_least: f64) {
    let mut text = String::new();
    for _ in 0..3 {
        let Some(share) = until_good(|| after_holder(signal), |share| *share >= at_least) else { continue };
        let _ = writeln!(text, "{name}: after 300 ms its neighbour has {share:.1}%");
        assert!(share >= at_least, "{text}");
    }
    report(&format!("channels-faults-{name}"), &text);
}

#[test]
fn killed_holder_loses_lease() {
    neighbour_goes_on("killed", libc::SIGKILL, 97.0);
}

/// What it had queued, 10 ms, stays on the GPU beside its neighbour until it is done.
#[test]
fn stopped_holder_loses_lease() {
    neighbour_goes_on("stopped", libc::SIGUSR2, 97.0);
}

// ------------------------------------------------------------------------------------------------ the end

#[test]
fn ends_while_off_do_not_hang() {
    let (mut text, mut off) = (String::new(), 0);
    for how in ["exit", "_exit", "return", "destroy", "reset"] {
        let mut shortest = Duration::MAX;
        for _ in 0..3 {
            let steered = Steered::new(compile("channels_faults"));
            let mut command = steered.command("tests/ends", &limit("5%"), &["end", how]);
            let mut session = Session::start(&mut command, Duration::from_secs(5));
            session.until("ready").expect("it starts");
            session.until("now").expect("it works");
            off += usize::from(steered.is_off(&session));
            let began = Instant::now();
            if ["destroy", "reset"].contains(&how) {
                session.until("done").unwrap_or_else(|error| panic!("{text}{how}: {error}"));
            }
            let took = began.elapsed();
            shortest = shortest.min(took);
            let rest = session.finish();
            let _ = writeln!(text, "{how:<8} {} ms, {} ms", took.as_millis(), began.elapsed().as_millis());
            assert!(rest.is_ok(), "{text}{how}: {rest:?}");
        }
        // 10 ms of work are under way. At the limit that takes 200; a context that goes is on the GPU until it is gone.
        assert!(shortest < Duration::from_millis(60), "{text}");
    }
    report("channels-faults-ends", &text);
    assert!(off > 0, "none was off when it ended");
}

#[test]
fn child_that_exits_leaves_its_parents_channels_off() {
    let attempt = || {
        let steered = Steered::new(compile("channels_faults"));
        let session = steered.start("tests/forks", &limit("5%"), &["fork"]);
        milliseconds(700);
        steered.shares(&[&session], 1500)[0]
    };
    let is_good = |share: &f64| (3.0..8.0).contains(share);
    let Some(share) = until_good(attempt, is_good) else { return };
    report("channels-faults-fork", &format!("limit 5%, with children that exit: {share:.2}%\n"));
    assert!(is_good(&share), "{share}");
}

// ------------------------------------------------------------------------------------------------ ioctl of others

#[test]
fn ioctls_of_the_program_answer_as_without_the_library() {
    let steered = Steered::new(compile("channels_faults"));
    let run = |command: &mut Command| {
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}, signal {:?}", output.status, output.status.signal());
        String::from_utf8(output.stdout).expect("text")
    };
    let bare = run(steered.machine.command(&steered.program).arg("ioctls"));
    assert!(bare.contains("at first: FIONREAD: 0, errno 77") && bare.contains("at first: 5 bytes"), "{bare}");
    assert!(bare.contains("in a child: TIOCGWINSZ: -1, errno 25"), "{bare}");
    for settings in [&[][..], &limit("25%")] {
        let mut with_us = steered.command("tests/ioctls", settings, &["ioctls"]);
        assert_eq!(run(&mut with_us), bare, "{settings:?}");
        assert_eq!(run(&mut steered.without_module("tests/ioctls", settings, &["ioctls"])), bare, "{settings:?}");
    }
    let mut module = steered.machine.command(&steered.program);
    assert_eq!(
        run(module.arg("ioctls").env("LD_PRELOAD", sim_dir().join("libsim-kernel.so"))),
        bare,
        "the module alone"
    );
}
