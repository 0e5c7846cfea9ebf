//! `ration demo`, as somebody at a prompt runs it: what it says, what it leaves behind, and how it ends when it has to.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sim_world::record::{ProcessRecord, Record};
use sim_world::{Role, World, WorldSettings};

mod support;
use support::tries::until_good;
use support::{preload, report, sim_dir};

const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

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

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Where a demo is to write its result.
fn json_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.json", std::process::id()))
}

fn read_json(path: &Path) -> Value {
    let text = std::fs::read(path).expect("--json writes");
    let _ = std::fs::remove_file(path);
    serde_json::from_slice(&text).expect("JSON")
}

/// A demo's simulated GPU, to look at. It stays in memory when the demo has removed the file.
fn join_world(pid: u32) -> World {
    let settings = WorldSettings::from_env(|_| None).expect("no settings are good settings");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let dir = world_of(pid).filter(|dir| dir.join("world").exists());
        if let Some(world) = dir.and_then(|dir| World::join(&dir, &settings, Role::Observer).ok()) {
            return world;
        }
        assert!(Instant::now() < deadline, "the demo has no simulated GPU");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn act_about_sharing() -> (Output, Value) {
    let json = json_file("demo");
    let mut demo = demo(&["--act", "sharing", "--fast", "--json", json.to_str().expect("a plain path")]);
    let child = demo.spawn().expect("it starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", both(&output));
    assert!(world_of(pid).is_none(), "the simulated GPU was left behind");
    (output, read_json(&json))
}

#[test]
fn figures_make_sense() {
    let share = |program: &Value| number(&program["together"]["share"]);
    let shares_of =
        |results: &Value| results["sharing"]["programs"].as_array().expect("a list").iter().map(share).sum();
    // A machine that has no time for the programs leaves the simulated GPU idle.
    let is_busy = |shares: f64| shares > 0.7;
    let Some((output, results)) = until_good(act_about_sharing, |(_, results)| is_busy(shares_of(results))) else {
        return;
    };

    let said = text(&output.stdout);
    let (live, end) = said.split_once("\nprogram ").unwrap_or_else(|| panic!("no table in {said}"));
    assert!(!said.contains('\x1b'), "escape sequences for a pipe: {said}");
    assert!(live.contains("trainer alone") && live.contains("all together"), "{live}");
    assert!(end.contains("Together they got") && end.contains("notebook wants all of the GPU"), "{end}");
    report("demo", &format!("program {end}"));

    assert!(results["memory"].is_null(), "{results:#}");
    let shares = shares_of(&results);
    let results = &results["sharing"];
    let programs = results["programs"].as_array().expect("a list");
    let program = |name: &str| programs.iter().find(|p| p["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    let (trainer, notebook, inference) = (program("trainer"), program("notebook"), program("inference"));
    let together = &results["together"];
    let all = shares + number(&together["switching"]) + number(&together["idle"]);
    assert!((all - 1.0).abs() < 0.01, "shares, switches and idle time are {all:.3} of the time: {results:#}");
    assert!(is_busy(shares) && number(&together["switching"]) > 0.02, "{results:#}");
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

/// The act about compute, judged by the simulated driver's own record. A machine that has no CPU for the containers says
/// nothing about shares, so it may try again.
#[test]
fn containers_get_the_shares_that_they_asked_for_and_one_goes_first() {
    let (json, shim) = (json_file("demo-compute"), preload::shim());
    let plot = json.with_extension("svg");
    let mut attempts = 0;
    loop {
        attempts += 1;
        let mut demo =
            demo(&["--act", "compute", "--fast", "--json", json.to_str().expect("a plain path"), "--library"]);
        let child = demo.arg(&shim).arg("--plot").arg(&plot).spawn().expect("it starts");
        let pid = child.id();
        let world = join_world(pid);
        let output = child.wait_with_output().expect("it ends");
        assert!(world_of(pid).is_none(), "the simulated GPU and the region were left behind");
        let said = text(&output.stdout);
        let (live, end) = said.split_once("\ncompute ").unwrap_or_else(|| panic!("no table in {}", both(&output)));
        let results = &read_json(&json)["compute"];
        let drawn = std::fs::read_to_string(&plot).expect("--plot writes");
        let _ = std::fs::remove_file(&plot);
        if attempts < 4 && (results["waited"].as_f64().is_some_and(|waited| waited > 0.1) || !output.status.success()) {
            continue;
        }
        assert!(output.status.success(), "{}", both(&output));
        assert!(live.contains("with ration: trainer asks for 50%; notebook asks for 30%"), "{live}");
        report("demo-compute", &format!("compute {end}"));
        if results["waited"].as_f64().is_some_and(|waited| waited > 0.15) {
            eprintln!("this machine has no CPU for the containers, four times in a row: their shares say nothing");
            return;
        }

        let containers = results["containers"].as_array().expect("a list");
        let share = |index: usize, phase: &str| number(&containers[index][phase]["share"]);
        let record = world.record();
        // Those of the last round: who was started first has the lowest number, and need not have come first.
        let mut used: Vec<_> = record.processes.iter().filter(|process| !process.observer).collect();
        used.sort_by_key(|process| process.started_ns);
        let mut last = used.split_off(used.len() - 3);
        last.sort_by_key(|process| process.pid);
        let busy: Vec<f64> = last.iter().map(|process| process.gpus[&0].busy_ns as f64).collect();
        let [trainer, notebook, inference] = busy[..] else { panic!("{busy:?}") };
        let by_record = [trainer, notebook, inference].map(|ns| ns / (trainer + notebook + inference));
        let all: f64 = (0..3).map(|index| share(index, "with")).sum();
        for (index, by_record) in by_record.into_iter().enumerate() {
            let said = share(index, "with") / all;
            assert!(
                (said - by_record).abs() < 0.05,
                "{said:.3} of the work, {by_record:.3} by the record: {results:#}"
            );
        }
        for (index, request) in [0.5, 0.3].into_iter().enumerate() {
            let due = request * share(index, "alone");
            assert!(share(index, "with") > due * 0.75, "{due:.3} is due: {:#}", containers[index]);
        }
        for (panel, phase) in ["without", "with"].into_iter().enumerate() {
            for (index, curve) in curves(&drawn)[panel * 3..][..3].iter().enumerate() {
                assert!(curve.len() >= 8, "a look each tenth of a second: {drawn}");
                // The first of them are of the time in which containers start.
                let (settled, share) = (&curve[curve.len() / 3..], share(index, phase));
                let plotted = settled.iter().sum::<f64>() / settled.len() as f64;
                assert!((plotted - share).abs() < 0.1, "{plotted:.3} plotted, {share:.3} {phase}: {results:#}");
            }
        }
        assert!(share(1, "without") < 0.25, "time slicing asks nobody: {:#}", containers[1]);
        let p50 = |phase: &str| number(&containers[2][phase]["latency_ms"]["p50"]);
        assert!(p50("with") < p50("without"), "{:#}", containers[2]);
        return;
    }
}

/// The shares that a plot shows, by curve: the axis of shares has a line at each quarter, the first of them at 0%.
fn curves(drawn: &str) -> Vec<Vec<f64>> {
    let word = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("no {name} in {line}"));
        rest.split('"').next().unwrap_or_default().to_owned()
    };
    let heights = |class: &str| {
        let lines = drawn.lines().filter(|line| line.starts_with(&format!("<line class=\"{class}\"")));
        lines.map(|line| word(line, "y1").parse::<f64>().expect("a number")).collect::<Vec<_>>()
    };
    let (bottom, top) = (heights("axis")[0], heights("grid")[3]);
    let lines: Vec<&str> = drawn.lines().filter(|line| line.starts_with("<polyline")).collect();
    assert!(lines.len() == 6 && drawn.matches("class=\"asked ").count() == 6, "{drawn}");
    let shares = lines.into_iter().map(|line| {
        let heights = word(line, "points");
        let heights = heights.split(' ').map(|point| point.split_once(',').expect("a point").1.parse::<f64>());
        heights.map(|y| (bottom - y.expect("a number")) / (bottom - top)).collect()
    });
    shares.collect()
}

/// The act about memory: what it said, its results, and the simulated driver's own record.
fn act_about_memory() -> (Output, Value, Record) {
    let (json, shim) = (json_file("demo-memory"), preload::shim());
    let mut demo = demo(&["--act", "memory", "--fast", "--json", json.to_str().expect("a plain path"), "--library"]);
    let child = demo.arg(&shim).spawn().expect("it starts");
    let pid = child.id();
    let world = join_world(pid);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", both(&output));
    assert!(world_of(pid).is_none(), "the simulated GPU and the region were left behind");
    (output, read_json(&json), world.record())
}

/// Judged by the simulated driver's own record, which no program can touch.
#[test]
fn a_greedy_container_is_stopped_at_its_limit_and_its_neighbour_is_not_disturbed() {
    // On a machine that has no time for it, the greedy one does not get as far as to ask for more than it may have, or late.
    let is_starved = |steady: &Value| {
        let after = &steady["believes"]["after"];
        count(&after["done"]) * 2 < count(&after["tried"])
    };
    let has_come_far = |(_, results, _): &(Output, Value, Record)| {
        let greedy = &results["memory"]["with"]["greedy"];
        count(&greedy["believes"]["asked_bytes"]) > count(&greedy["limit_bytes"])
            && is_starved(&results["memory"]["without"]["steady"])
    };
    let Some((output, results, record)) = until_good(act_about_memory, has_come_far) else { return };

    let said = text(&output.stdout);
    let (live, end) = said.split_once("\nmemory ").unwrap_or_else(|| panic!("no table in {said}"));
    assert!(live.contains("without ration: no limits") && live.contains("greedy has a limit of 8.0 GiB"), "{live}");
    report("demo-memory", &format!("memory {end}"));
    assert!(results["sharing"].is_null(), "{results:#}");
    let results = &results["memory"];

    let (greedy, steady) = (&results["with"]["greedy"], &results["with"]["steady"]);
    let limit = count(&greedy["limit_bytes"]);
    assert_eq!((limit, count(&steady["limit_bytes"])), (8 << 30, 6 << 30));
    let nearly = limit * 98 / 100..=limit;
    let (now, most) = (count(&greedy["gpu_bytes"]), judged(&record, greedy));
    assert!(nearly.contains(&now) && nearly.contains(&most), "{now} and {most} of {limit} bytes: {greedy:#}");
    let believes = &greedy["believes"];
    assert_eq!(believes["refused_with"], OUT_OF_MEMORY, "{greedy:#}");
    assert_eq!(count(&believes["total_bytes"]), limit, "{greedy:#}");
    assert!(count(&believes["free_bytes"]) <= limit / 50, "{greedy:#}");
    assert!(count(&believes["asked_bytes"]) > limit && count(&believes["refused"]) > 3, "{greedy:#}");
    assert_works_in(greedy, "after");
    let kernels = user(&record, greedy).gpus[&0].kernels;
    assert!(kernels >= count(&believes["after"]["done"]), "the driver ran {kernels} kernels: {greedy:#}");

    assert_eq!(count(&steady["believes"]["refused"]), 0, "{steady:#}");
    assert_eq!(count(&steady["believes"]["total_bytes"]), 6 << 30, "{steady:#}");
    assert!(judged(&record, steady) <= 6 << 30, "{steady:#}");
    let parts = ["before", "taking", "after"];
    parts.iter().for_each(|part| assert_works_in(steady, part));
    let [before, taking, after] = parts.map(|part| rate(steady, part));
    assert!(taking > before * 0.7 && after > before * 0.7, "{before}, then {taking} and {after} requests a second");

    let (greedy, steady) = (&results["without"]["greedy"], &results["without"]["steady"]);
    let whole = count(&results["gpu_bytes"]);
    assert!(greedy["limit_bytes"].is_null() && steady["limit_bytes"].is_null(), "{results:#}");
    let most = judged(&record, greedy);
    assert!(most > whole / 100 * 95, "without a limit, {most} of {whole} bytes: {greedy:#}");
    assert!(count(&steady["believes"]["total_bytes"]) > whole / 100 * 95, "{steady:#}");
    assert_works_in(steady, "before");
    assert_eq!(steady["believes"]["refused_with"], OUT_OF_MEMORY, "{steady:#}");
    assert!(is_starved(steady), "the neighbour of a program without a limit: {steady:#}");
    assert!(end.contains("greedy took 135") && end.contains("steady was never refused anything"), "{end}");
}

/// A container's process, by the record.
fn user<'a>(record: &'a Record, container: &Value) -> &'a ProcessRecord {
    let pid = count(&container["pid"]);
    let found = record.processes.iter().find(|process| process.pid == pid && !process.observer);
    found.unwrap_or_else(|| panic!("process {pid} is not in the driver's record"))
}

/// The most that a container ever held, by the record; what the demo says of it must be the same.
fn judged(record: &Record, container: &Value) -> u64 {
    let most = user(record, container).gpus[&0].peak_bytes;
    assert_eq!(count(&container["gpu_peak_bytes"]), most, "the driver's record has {most}: {container:#}");
    most
}

fn assert_works_in(container: &Value, part: &str) {
    let work = &container["believes"][part];
    assert!(count(&work["tried"]) > 0 && work["tried"] == work["done"], "{part}: {container:#}");
}

fn rate(container: &Value, part: &str) -> f64 {
    let work = &container["believes"][part];
    number(&work["done"]) * 1e9 / number(&work["elapsed_ns"])
}

#[test]
fn a_library_that_does_not_hold_is_found_out() {
    let nothing = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("no-library-{}.so", std::process::id()));
    std::fs::write(&nothing, "not a library").expect("written");
    for (library, reasons) in [
        (Path::new("/nowhere/libration.so"), &["/nowhere/libration.so: No such file", "Run ci/demo", "--library"][..]),
        (&nothing, &["greedy should be held to 8.0 GiB", "139.8 GiB", "cannot be preloaded"]),
    ] {
        let demo = demo(&["--act", "memory", "--fast", "--library"]).arg(library).spawn().expect("it starts");
        let pid = demo.id();
        let output = demo.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{}", both(&output));
        for reason in reasons {
            assert!(text(&output.stderr).contains(reason), "{reason:?} is not in {}", both(&output));
        }
        assert!(world_of(pid).is_none(), "the simulated GPU was left behind");
    }
    let _ = std::fs::remove_file(&nothing);
}

#[test]
fn limits_around_the_demo_are_not_in_it() {
    let mut demo = demo(&["--act", "memory", "--fast"]);
    demo.env("RATION_MEMORY", "1GiB").env("CUDA_DEVICE_MEMORY_LIMIT_0", "1g").env("LD_PRELOAD", preload::shim());
    let output = demo.output().expect("it starts");
    assert!(output.status.success(), "{}", both(&output));
    assert!(text(&output.stdout).contains("greedy took 135"), "{}", both(&output));
}

#[test]
fn a_gpu_that_is_too_small_is_named_with_what_to_do() {
    let output = demo(&["--act", "memory"]).env("RATION_SIM_MEMORY", "8GiB").output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", both(&output));
    assert!(text(&output.stderr).contains("has 8.0 GiB") && text(&output.stderr).contains("RATION_SIM_MEMORY"));
}

#[test]
fn without_the_simulated_driver_it_says_what_to_do() {
    for act in ["sharing", "compute", "memory"] {
        let output = demo(&["--fast", "--act", act]).env("LD_LIBRARY_PATH", "").output().expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{}", both(&output));
        let complaint = text(&output.stderr);
        assert!(complaint.contains("libcuda.so.1") || complaint.contains("answered"), "{complaint}");
        assert!(complaint.contains("Run ci/demo"), "{complaint}");
    }
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

/// The last moment for it to go wrong: containers are held to limits, in a region of their own.
#[test]
fn an_interrupted_demo_takes_its_containers_and_their_region_along() {
    for how in [libc::SIGINT, libc::SIGTERM] {
        let mut demo = demo(&["--act", "memory"]).spawn().expect("it starts");
        let pid = demo.id();
        let mut lines = BufReader::new(demo.stdout.take().expect("piped")).lines();
        let reached = lines.any(|line| line.is_ok_and(|line| line.contains("goes on with what it has")))
            && lines.any(|line| line.is_ok_and(|line| line.contains("takes all the memory")));
        assert!(reached, "the demo ended before its second run");
        let (containers, dir) = (await_workers(&demo), world_of(pid).expect("it is still there"));
        assert_eq!(std::fs::read_dir(dir.join("regions")).map(Iterator::count).ok(), Some(2), "a directory for each");
        signal(pid, how);
        let output = demo.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{}", both(&output));
        assert!(containers.iter().all(|container| gone(*container)), "containers run on");
        assert!(!dir.exists(), "the simulated GPU and the region were left behind");
    }
}

#[test]
fn workers_of_a_killed_demo_do_not_run_on() {
    for act in ["sharing", "compute", "memory"] {
        let mut demo = demo(&["--plain", "--act", act]).spawn().expect("it starts");
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
}

#[test]
fn arguments_and_scenarios_that_make_no_sense_are_refused_with_the_reason() {
    let scenario = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("scenario-{}", std::process::id()));
    std::fs::write(&scenario, "a kernel=1ms memory=1GiB wait\nb kernel=soon memory=1GiB wait\n").expect("written");
    let path = scenario.to_str().expect("a plain path");
    for (arguments, code, reason) in [
        (&["--seconds", "0"][..], 2, "from 0.3 to 3600"),
        (&["--fast", "--seconds", "3"], 2, "cannot be used with"),
        (&["--act", "hamlet"], 2, "possible values: sharing, compute, memory, all"),
        (&["--act", "memory", "--scenario", path], 2, "--scenario says nothing about memory"),
        (&["--act", "memory", "--plot", path], 2, "--plot says nothing about memory"),
        (&["--plot", "/nowhere/at-all.svg"], 1, "/nowhere/at-all.svg: No such file"),
        (&["--act", "sharing", "--library", path], 2, "--library says nothing about sharing"),
        (&["--scenario", "/nowhere/at-all"], 1, "/nowhere/at-all: No such file"),
        (&["--scenario", path], 1, "line 2: \"kernel=soon\""),
    ] {
        let output = demo(arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(code), "{}", both(&output));
        assert!(text(&output.stderr).contains(reason), "{}", both(&output));
    }
    let _ = std::fs::remove_file(&scenario);
}
