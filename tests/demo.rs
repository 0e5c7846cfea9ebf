//! `ration demo`, as somebody at a prompt runs it: what it says, what it leaves behind, and how it ends when it has to.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

mod support;
use support::{report, sim_dir};

/// The built program. This test's own binary is in `deps/` beside it.
fn ration() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    let program = here.parent().and_then(Path::parent).expect("a test is in deps/").join("ration");
    assert!(program.exists(), "{} is not there: run ci/build first", program.display());
    program
}

/// A short demo on the simulated GPU.
fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(ration());
    command.arg("demo").args(arguments).env("LD_LIBRARY_PATH", sim_dir());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn both(output: &Output) -> String {
    format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// The processes that a process started, and its simulated GPU.
fn workers(pid: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("a system with /proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|worker| {
        let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split_whitespace().nth(1) == Some(&pid.to_string())
    })
    .collect()
}

fn world_of(pid: u32) -> Option<PathBuf> {
    let prefix = format!("ration-demo-{pid}-");
    let bases = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let entries = bases.iter().filter_map(|base| std::fs::read_dir(base).ok()).flatten().flatten();
    entries.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains(&prefix))
}

/// Waits until a demo has workers on its simulated GPU.
fn await_workers(demo: &Child) -> Vec<u32> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let found = workers(demo.id());
        if !found.is_empty() && world_of(demo.id()).is_some() {
            return found;
        }
        assert!(Instant::now() < deadline, "the demo started nobody");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: kill has no memory preconditions; the process is one that this test started, or a child of it, and lives.
    let rc = unsafe { libc::kill(pid as i32, signal) };
    assert_eq!(rc, 0, "no process {pid}");
}

/// Whether a process has ended, waited for by its parent or not.
fn gone(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    matches!(stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next(), None | Some('Z' | 'X'))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn figures_make_sense() {
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("demo-{}.json", std::process::id()));
    let child = demo(&["--fast", "--json", json.to_str().expect("a plain path")]).spawn().expect("it starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", both(&output));
    assert!(world_of(pid).is_none(), "the simulated GPU was left behind");

    let said = text(&output.stdout);
    let (live, end) = said.split_once("\nprogram ").unwrap_or_else(|| panic!("no table in {said}"));
    assert!(!said.contains('\x1b'), "escape sequences for a pipe: {said}");
    assert!(live.contains("trainer alone") && live.contains("all together"), "{live}");
    assert!(end.contains("Together they got") && end.contains("notebook wants all of the GPU"), "{end}");
    report("demo", &format!("program {end}"));

    let results: Value = serde_json::from_slice(&std::fs::read(&json).expect("--json writes")).expect("JSON");
    let _ = std::fs::remove_file(&json);
    let programs = results["programs"].as_array().expect("a list");
    let program = |name: &str| programs.iter().find(|p| p["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    let (trainer, notebook, inference) = (program("trainer"), program("notebook"), program("inference"));
    let shares: f64 = programs.iter().map(|p| number(&p["together"]["share"])).sum();
    let together = &results["together"];
    let all = shares + number(&together["switching"]) + number(&together["idle"]);
    assert!((all - 1.0).abs() < 0.01, "shares, switches and idle time are {all:.3} of the time: {results:#}");
    assert!(shares > 0.7 && number(&together["switching"]) > 0.02, "{results:#}");
    assert!(number(&trainer["alone"]["share"]) > 0.8, "{trainer:#}");
    assert!(number(&trainer["of_solo"]) < 0.9, "{trainer:#}");
    assert!(number(&notebook["of_solo"]) < number(&trainer["of_solo"]), "who waits gets less: {results:#}");
    let p50 = |phase: &str| number(&inference[phase]["latency_ms"]["p50"]);
    assert!(p50("together") > p50("alone"), "{inference:#}");
    assert!(p50("alone") > 2.6, "a request is 2.63 ms of GPU time: {inference:#}");
    for program in programs {
        assert!(number(&program["together"]["memory_bytes"]) > 6e9, "{program:#}");
    }
}

#[test]
fn without_the_simulated_driver_it_says_what_to_do() {
    let output = demo(&["--fast"]).env("LD_LIBRARY_PATH", "").output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    let complaint = text(&output.stderr);
    assert!(complaint.contains("libcuda.so.1") || complaint.contains("answered"), "{complaint}");
    assert!(complaint.contains("Run ci/demo"), "{complaint}");
}

#[test]
fn a_worker_that_dies_is_named_with_its_end() {
    let demo = demo(&["--plain"]).spawn().expect("it starts");
    let pid = demo.id();
    for worker in await_workers(&demo) {
        signal(worker, libc::SIGKILL);
    }
    let output = demo.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    let complaint = text(&output.stderr);
    assert!(complaint.contains("trainer was ended by signal 9"), "{complaint}");
    assert!(world_of(pid).is_none(), "the simulated GPU was left behind");
}

#[test]
fn an_interrupted_demo_takes_its_workers_along() {
    for how in [libc::SIGINT, libc::SIGTERM] {
        let demo = demo(&["--plain"]).spawn().expect("it starts");
        let pid = demo.id();
        let workers = await_workers(&demo);
        signal(pid, how);
        let output = demo.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{}", both(&output));
        assert!(workers.iter().all(|worker| gone(*worker)), "workers run on");
        assert!(world_of(pid).is_none(), "the simulated GPU was left behind");
    }
}

#[test]
fn workers_of_a_killed_demo_do_not_run_on() {
    let mut demo = demo(&["--plain"]).spawn().expect("it starts");
    let workers = await_workers(&demo);
    let world = world_of(demo.id());
    demo.kill().expect("it can be killed");
    demo.wait().expect("it ends");
    let deadline = Instant::now() + Duration::from_secs(10);
    while !workers.iter().all(|worker| gone(*worker)) {
        assert!(Instant::now() < deadline, "workers run on: {workers:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = world.map(std::fs::remove_dir_all); // nobody is left who could
}

#[test]
fn arguments_and_scenarios_that_make_no_sense_are_refused_with_the_reason() {
    let scenario = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("scenario-{}", std::process::id()));
    std::fs::write(&scenario, "a kernel=1ms memory=1GiB wait\nb kernel=soon memory=1GiB wait\n").expect("written");
    let path = scenario.to_str().expect("a plain path");
    for (arguments, code, reason) in [
        (&["--seconds", "0"][..], 2, "from 0.3 to 3600"),
        (&["--fast", "--seconds", "3"], 2, "cannot be used with"),
        (&["--scenario", "/nowhere/at-all"], 1, "/nowhere/at-all: No such file"),
        (&["--scenario", path], 1, "line 2: \"kernel=soon\""),
    ] {
        let output = demo(arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(code), "{}", both(&output));
        assert!(text(&output.stderr).contains(reason), "{}", both(&output));
    }
    let _ = std::fs::remove_file(&scenario);
}
