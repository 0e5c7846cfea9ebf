//! How the simulated GPU shares itself between processes, next to what was measured on a real H200 with no shim of any kind.
//! Judged by the simulated driver's own record and clock, so that a busy machine does not matter.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use sim_world::World;
use sim_world::record::Record;

mod support;
use support::tries::until_good;
use support::{Machine, Running, compile, report};

struct Row {
    what: &'static str,
    real: f64,
    here: f64,
    unit: &'static str,
}

impl Row {
    fn off(&self) -> f64 {
        (self.here - self.real) / self.real
    }
}

/// Kernels that each process finishes per second of GPU time while all run, by PID.
fn rates(world: &World, pids: &[u32], window: Duration) -> Vec<f64> {
    let look = || {
        let record = world.record();
        let done = |pid: &u32| {
            let process = record
                .processes
                .iter()
                .find(|p| p.pid == u64::from(*pid) && p.alive && !p.observer)
                .unwrap_or_else(|| panic!("{pid} does not run: {:#?}", record.processes));
            process.gpus.get(&0).map_or(0, |g| g.kernels)
        };
        (record.clock_ns, pids.iter().map(done).collect::<Vec<_>>())
    };
    let (start, before) = look();
    std::thread::sleep(window);
    let (end, after) = look();
    let seconds = (end - start) as f64 / 1e9;
    before.iter().zip(after).map(|(b, a)| (a - b) as f64 / seconds).collect()
}

/// Waits until these work, and have done so for a while.
fn settle(world: &World, programs: &[&Running]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let works = |program: &&Running| {
        let record = world.record();
        let mut own = record.processes.iter().filter(|process| process.pid == u64::from(program.pid()));
        own.any(|process| process.gpus.get(&0).is_some_and(|gpu| gpu.kernels > 0))
    };
    while !programs.iter().all(works) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(400));
}

/// Mean length of slices, and of the times between two slices of one process, in ms.
fn slices(world: &World, skip: u64) -> (f64, f64) {
    let runs = world.intervals(skip);
    let runs = &runs[runs.len() / 4..runs.len() - 2];
    let on: f64 = runs.iter().map(|r| (r.end_ns - r.start_ns) as f64 / 1e6).sum::<f64>() / runs.len() as f64;
    let slot = runs[0].slot;
    let own: Vec<_> = runs.iter().filter(|r| r.slot == slot).collect();
    let off: f64 =
        own.windows(2).map(|w| (w[1].start_ns - w[0].end_ns) as f64 / 1e6).sum::<f64>() / (own.len() - 1) as f64;
    (on, off)
}

/// Time without progress per slice since `before`, in ms.
fn lost_at_each_change(world: &World, before: &Record) -> f64 {
    let look = |record: &Record| {
        let uses = record.processes.iter().filter_map(|process| process.gpus.get(&0));
        let (work, slices) = uses.fold((0, 0), |(work, slices), held| (work + held.work_ns, slices + held.slices));
        (record.gpus[0].busy_ns + record.gpus[0].switching_ns - work, slices)
    };
    let ((lost, slices), (lost_before, slices_before)) = (look(&world.record()), look(before));
    (lost - lost_before) as f64 / (slices - slices_before) as f64 / 1e6
}

fn percentile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

/// What a program printed, in milliseconds of a machine whose clock runs at this speed.
fn latencies(text: &str, speed: f64) -> Vec<f64> {
    let mut all: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).map(|ms: f64| ms * speed).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// What is measured, and how much longer the slowest of four launch-bound jobs takes than one alone.
fn measured(load: &Path) -> (Vec<Row>, f64) {
    let machine = Machine::new();
    let world = machine.world();
    let window = Duration::from_millis(2500);
    let saturate = || machine.start(load, &["saturate", "500", "60"]);
    let mut rows = Vec::new();
    let mut row = |what, real, here, unit| rows.push(Row { what, real, here, unit });

    let first = saturate();
    settle(&world, &[&first]);
    let solo = rates(&world, &[first.pid()], window)[0];
    let second = saturate();
    settle(&world, &[&second]);
    let skip = world.file().trace_len.get();
    let before = world.record();
    let both = rates(&world, &[first.pid(), second.pid()], window);
    let (on, off) = slices(&world, skip);
    row("slice of a saturating process, beside one", 2.09, on, "ms");
    row("its time off", 2.40, off, "ms");
    // Nothing gets done while one context is saved and the other restored.
    row("lost at each change", 0.2, lost_at_each_change(&world, &before), "ms");
    row("two saturating, sum over solo", 91.4, 100.0 * (both[0] + both[1]) / solo, "%");
    let third = saturate();
    settle(&world, &[&third]);
    let skip = world.file().trace_len.get();
    std::thread::sleep(window);
    let (on, off) = slices(&world, skip);
    row("slice beside two", 2.09, on, "ms");
    row("its time off", 4.64, off, "ms");
    third.kill();
    second.kill();
    first.kill();

    // In slow motion, so that the time a waiting process needs to wake up on a busy machine is short beside a slice.
    let slow = Machine::with(&[("RATION_SIM_SPEED", "0.03")]);
    let slow_world = slow.world();
    let (deep, sync) = (slow.start(load, &["saturate", "500", "60"]), slow.start(load, &["synceach", "500", "60"]));
    settle(&slow_world, &[&deep, &sync]);
    let shares = rates(&slow_world, &[sync.pid(), deep.pid()], 3 * window);
    row("waits for each kernel, beside a deep queue", 17.0, shares[0] * 0.05, "%");
    row("that deep queue", 71.0, shares[1] * 0.05, "%");
    sync.kill();
    deep.kill();

    let quarter = Machine::with(&[("RATION_SIM_SPEED", "0.25")]);
    let neighbour = quarter.start(load, &["saturate", "500", "60"]);
    settle(&quarter.world(), &[&neighbour]);
    let beside = latencies(&quarter.run(load, &["request", "20", "131.5", "80", "120"]), 0.25);
    neighbour.kill();
    let alone = latencies(&quarter.run(load, &["request", "20", "131.5", "80", "20"]), 0.25);
    let middle = percentile(&alone, 0.5);
    row("a request alone, p50", 2.63, middle, "ms");
    row("beside a saturating process, p50 over solo", 2.36, percentile(&beside, 0.5) / middle, "x");
    row("the same, p99 over solo", 2.81, percentile(&beside, 0.99) / middle, "x");

    let seconds = |r: Running| r.finish().trim().parse::<f64>().expect("seconds");
    let bound = || machine.start(load, &["launchbound", "2000"]);
    // The host's clock: what else the machine does can only add to it, so the least of three tries counts.
    let (mut alone, mut slowest) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        alone = alone.min(seconds(bound()));
        let four: Vec<Running> = (0..4).map(|_| bound()).collect();
        slowest = slowest.min(four.into_iter().map(seconds).fold(0.0, f64::max));
    }
    (rows, slowest / alone)
}

#[test]
fn sharing_is_as_measured() {
    let load = compile("load");
    let is_good =
        |(rows, launch_bound): &(Vec<Row>, f64)| rows.iter().all(|row| row.off().abs() <= 0.10) && *launch_bound <= 1.3;
    let Some((rows, launch_bound)) = until_good(|| measured(&load), is_good) else { return };

    let mut table = String::new();
    writeln!(table, "{:<48} {:>9} {:>9} {:>7}", "sharing, no shim", "H200", "here", "off").expect("to a string");
    for row in &rows {
        let (real, here) = (format!("{:.2} {}", row.real, row.unit), format!("{:.2} {}", row.here, row.unit));
        writeln!(table, "{:<48} {real:>9} {here:>9} {:>+6.1}%", row.what, 100.0 * row.off()).expect("to a string");
    }
    writeln!(
        table,
        "{:<48} {:>9} {:>9}",
        "four launch-bound jobs, slowest over solo",
        "1.27 x",
        format!("{launch_bound:.2} x")
    )
    .expect("to a string");
    report("sharing", &table);
    for row in &rows {
        assert!(row.off().abs() <= 0.10, "{}: {:.3} {}, measured {:.3}", row.what, row.here, row.unit, row.real);
    }
    assert!(launch_bound <= 1.3, "four launch-bound jobs: slowest at {launch_bound:.2} of solo");
}

#[test]
fn copies_take_the_time_measured() {
    // In slow motion, so that a pause of the program between two calls does not count.
    let program = compile("copies");
    let attempt = || {
        let machine = Machine::with(&[("RATION_SIM_SPEED", "0.01")]);
        machine.run(&program, &[]).lines().filter_map(|line| line.parse().ok()).collect()
    };
    // Milliseconds for a GiB on the H200, pinned host memory.
    let real =
        [("to the device", 20.11), ("from the device", 19.55), ("inside the device", 0.5085), ("a fill", 0.2365)];
    let is_off = |here: f64, real: f64| (16.0 * here / real - 1.0).abs() >= 0.1;
    let is_good = |here: &Vec<f64>| real.iter().zip(here).all(|((_, real), here)| !is_off(*here, *real));
    let Some(here) = until_good(attempt, is_good) else { return };
    let mut table = format!("{:<24} {:>12} {:>12}\n", "copies, per GiB", "H200", "here");
    for ((what, real), here) in real.iter().zip(&here) {
        let _ = writeln!(table, "{what:<24} {real:>9.4} ms {:>9.4} ms", 16.0 * here);
    }
    report("copies", table.trim_end());
    assert_eq!(here.len(), 4);
    for ((what, real), here) in real.iter().zip(&here) {
        assert!(!is_off(*here, *real), "{what}: {:.4} ms per GiB, measured {real}", 16.0 * here);
    }
}

#[test]
fn a_million_launches_of_a_free_kernel_take_under_two_seconds() {
    let program = compile("launches");
    let machine = Machine::new();
    let attempt = || machine.run(&program, &["1000000"]);
    let Some(best) = until_good(attempt, |line| seconds_of(line) < 2.0) else { return };
    report("launches", &best);
    assert!(seconds_of(&best) < 2.0, "{best}");
    let calls = machine.record().processes.iter().filter_map(|p| p.calls.get("cuLaunchKernel").copied()).max();
    assert_eq!(calls, Some(1_000_000), "the record counts what was called");
}

fn seconds_of(line: &str) -> f64 {
    line.split(" in ").nth(1).and_then(|rest| rest.split(' ').next()).and_then(|s| s.parse().ok()).expect("a time")
}
