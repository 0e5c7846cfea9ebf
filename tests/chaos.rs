//! A driver that fails: each function in turn, at its first call or later, once or from then on, beside a neighbour, with both ways to
//! take a program off the GPU. The program in the slice ends as it would without us, its container never has more than its cap, its
//! neighbour has its share, and nothing is left behind. The judge is the simulated driver's record.
//!
//! `RATION_TEST_CHAOS=all` tries every function that the program or the library calls, with every code; otherwise as many as it says,
//! drawn by `RATION_TEST_SEED`. `ci/chaos` runs it so.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

#[path = "caps/container.rs"]
mod container;
#[path = "compute/scene.rs"]
mod scene;
mod support;

use container::{GIB, MIB, Session, inside, with_module};
use scene::Scene;
use support::{compile, report};

/// What a program may take longer than it was told to. Longer is a hang.
const PATIENCE: Duration = Duration::from_secs(60);
const CAP: u64 = 2 * GIB;
const VICTIM: &str = "tests/victim";
/// How long each runs, in milliseconds.
const TIME: &str = "150";
/// Lines that the library may say about it.
const LINES: usize = 12;

/// Out of memory; a context that is broken; an error that nobody knows; no permission.
const CODES: &[u32] = &[2, 700, 999, 800];
/// At the first call, at the third, from the second on, and from the first on.
const WHEN: &[&str] = &["1", "3", "2+", "1+"];

struct Chaos {
    scene: Scene,
    neighbour: Session,
    switch: &'static str,
}

/// What a victim's end was.
struct End {
    problems: Vec<String>,
    /// What it called, by the driver's record.
    calls: BTreeMap<&'static str, u64>,
}

impl Chaos {
    fn new(switch: &'static str) -> Chaos {
        let scene = Scene::by(switch, &compile("chaos"));
        let settings = [("RATION_COMPUTE_REQUEST", "50%".to_owned())];
        let work = compile("compute_work");
        let mut command = inside(&scene.machine, &scene.regions, "tests/neighbour", &settings, &work);
        command.args(["queue", "500", "3600"]).env("RATION_SWITCH", switch);
        let mut neighbour = Session::start(&mut with_module(command), PATIENCE);
        neighbour.until("ready").expect("it starts");
        Chaos { scene, neighbour, switch }
    }

    /// Runs the program in its slice, with calls that fail.
    fn run(&mut self, fault: &str) -> End {
        let settings = [
            ("RATION_MEMORY", "2GiB"),
            ("RATION_COMPUTE_REQUEST", "40%"),
            ("RATION_COMPUTE_LIMIT", "60%"),
            ("RATION_SIM_FAIL", fault),
        ];
        let mut problems = Vec::new();
        let (began, before) = (Instant::now(), self.busy());
        let mut command = self.scene.command(VICTIM, &settings, &[TIME]);
        let mut victim = Session::start(&mut command, PATIENCE);
        let pid = u64::from(victim.child.id());
        match victim.line() {
            Ok(Some(line)) if line.starts_with("done ") => {}
            Ok(line) => problems.push(format!("said {line:?}")),
            Err(hang) => problems.push(hang),
        }
        problems.extend(self.is_counted(pid, fault));
        victim.tell("end");
        let said = victim.said();
        let lines = said.lines().filter(|line| line.starts_with("ration: ")).count();
        if lines > LINES || said.contains("inside of the shim") {
            problems.push(format!("{lines} lines: {said}"));
        }
        if let Err(end) = victim.finish() {
            problems.push(end);
        }
        let took = began.elapsed().as_nanos() as f64;
        let had = (self.busy() - before) as f64 / took;
        // It asked for half, and starting takes the other's time alone.
        if had < 0.3 {
            problems.push(format!("its neighbour had {:.0}% of the GPU's time", 100.0 * had));
        }
        let record = self.scene.world.record();
        let process = record.processes.iter().rev().find(|it| it.pid == pid && !it.observer);
        for held in process.iter().flat_map(|it| it.gpus.values()) {
            if held.peak_bytes > CAP {
                problems.push(format!("it held {} bytes of {CAP}", held.peak_bytes));
            }
        }
        End { problems, calls: process.map(|it| it.calls.clone()).unwrap_or_default() }
    }

    /// Whether what the region says that the victim holds is what it holds by the driver's record: no less, and no more.
    fn is_counted(&self, pid: u64, fault: &str) -> Option<String> {
        /// What a context is taken to need where nobody could be asked, and is not given back before somebody can.
        const UNKNOWN: u64 = 700 * MIB;
        const NEAR: u64 = 8 * MIB;
        let record = self.scene.world.record();
        let process = record.processes.iter().find(|it| it.pid == pid && it.alive && !it.observer);
        let held: u64 = process.map_or(0, |it| it.gpus.values().map(|gpu| gpu.figure_bytes).sum());
        let region = self.scene.region(VICTIM);
        let mut containers = region.containers();
        let counted = containers.find(|it| it.name.as_bytes() == VICTIM.as_bytes()).map_or(0, |it| {
            let mut members = it.members().filter(|process| u64::from(process.pid) == pid);
            members.next().map_or(0, |process| process.held)
        });
        // Where NVML does not answer, either, what was freed in vain stays counted.
        let more = match fault {
            _ if fault.starts_with("nvml") => UNKNOWN,
            _ if fault.starts_with('*') => CAP,
            _ => NEAR,
        };
        let is_right = (held.saturating_sub(NEAR)..=held + more).contains(&counted);
        (!is_right).then(|| format!("it holds {} MiB, and {} are counted", held / MIB, counted / MIB))
    }

    /// How long the GPU has worked for the neighbour, in nanoseconds.
    fn busy(&self) -> u64 {
        let record = self.scene.world.record();
        let pid = u64::from(self.neighbour.child.id());
        let neighbour = record.processes.iter().find(|it| it.pid == pid && it.alive);
        neighbour.map_or(0, |it| it.gpus.values().map(|gpu| gpu.busy_ns).sum())
    }

    /// What somebody gets who comes to the container afterwards: all of it, or something was left behind.
    fn is_left_whole(&self) -> Result<(), String> {
        let settings = [("RATION_MEMORY", "2GiB".to_owned())];
        let lost = container::program("lost");
        let mut command = inside(&self.scene.machine, &self.scene.regions, VICTIM, &settings, &lost);
        let mut session = Session::start(command.arg("default"), PATIENCE);
        session.until("ready")?;
        let mut ask = |order: String| {
            session.tell(&order);
            session.line().map(Option::unwrap_or_default)
        };
        ask("start".to_owned())?;
        let filled = ask(format!("fill {} {CAP}", 16 * MIB))?;
        let got: u64 = filled.split(' ').nth(1).and_then(|count| count.parse().ok()).unwrap_or(0);
        // A context, and the last little.
        let least = CAP - 640 * MIB;
        if got * 16 * MIB < least { Err(format!("who came next got {got} times 16 MiB: {filled}")) } else { Ok(()) }
    }
}

/// Not those that every process must get through to be one: without them nothing is held, and nothing runs.
fn can_fail(symbol: &str) -> bool {
    !matches!(symbol, "cuInit" | "cuGetProcAddress_v2" | "cuGetProcAddress" | "cuDriverGetVersion")
}

#[test]
fn program_ends_as_it_would_whatever_the_driver_answers() {
    let wanted = std::env::var("RATION_TEST_CHAOS").unwrap_or_else(|_| "48".to_owned());
    let mut dice: u64 = std::env::var("RATION_TEST_SEED").map_or(1, |text| text.parse().expect("a number"));
    let mut below = |count: usize| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) as usize % count
    };
    let mut text = String::new();
    let mut wrong = Vec::new();
    for switch in ["channels", "launches"] {
        let mut chaos = Chaos::new(switch);
        let undisturbed = chaos.run("");
        assert!(undisturbed.problems.is_empty(), "nothing failed: {:?}", undisturbed.problems);
        let symbols: Vec<&str> = undisturbed.calls.keys().copied().filter(|symbol| can_fail(symbol)).collect();
        assert!(symbols.len() > 60, "{symbols:?}");
        let mut faults: Vec<String> = Vec::new();
        for symbol in &symbols {
            faults.extend(CODES.iter().flat_map(|code| WHEN.iter().map(move |when| format!("{symbol}:{code}@{when}"))));
        }
        faults.extend([1, 5, 20, 60, 150, 400, 1000].map(|call| format!("*:700@{call}+")));
        if wanted != "all" {
            let count: usize = wanted.parse().expect("RATION_TEST_CHAOS is a number, or all");
            faults = (0..count / 2).map(|_| faults[below(faults.len())].clone()).collect();
        }
        let began = Instant::now();
        for fault in &faults {
            let end = chaos.run(fault);
            for problem in end.problems {
                let line = format!("{} with {fault}: {problem}", chaos.switch);
                println!("{line}");
                wrong.push(line);
            }
        }
        if let Err(left) = chaos.is_left_whole() {
            wrong.push(format!("{switch}: {left}"));
        }
        let _ = writeln!(
            text,
            "by {switch}: {} failures of {} functions in {:.0} s; {} of them had consequences",
            faults.len(),
            symbols.len(),
            began.elapsed().as_secs_f64(),
            wrong.len()
        );
    }
    report("chaos-driver", &text);
    assert!(wrong.is_empty(), "{text}{}", wrong.join("\n"));
}

/// What a machine may deny a process, by the shell's `ulimit`: file sizes, descriptors, processes, address space, stacks, locked memory.
const LIMITS: &[&str] = &[
    "-f 0",
    "-f 100",
    "-f 300",
    "-n 4",
    "-n 6",
    "-n 9",
    "-u 1",
    "-v 400000",
    "-v 900000",
    "-s 64",
    "-l 0",
    "-i 0",
    "-t 1",
];

/// Where regions cannot lie, or only so.
const PLACES: &[(&str, &str)] = &[
    ("nowhere", "true"),
    ("a file", "touch \"$RATION_DIR\""),
    ("a directory that may not be written to", "mkdir \"$RATION_DIR\" && chmod 0555 \"$RATION_DIR\""),
    ("a broken link", "ln -s nowhere \"$RATION_DIR\""),
    ("a link to itself", "ln -s \"$RATION_DIR\" \"$RATION_DIR\""),
    ("a full file system", "mkdir \"$RATION_DIR\" && mount -t tmpfs -o size=64k none \"$RATION_DIR\""),
    ("a read-only file system", "mkdir \"$RATION_DIR\" && mount -t tmpfs -o ro none \"$RATION_DIR\""),
    ("a file system without links", "mkdir \"$RATION_DIR\" && mount -t ramfs none \"$RATION_DIR\""),
    ("/proc", "ln -s /proc \"$RATION_DIR\""),
    ("/dev/full", "ln -s /dev/full \"$RATION_DIR\""),
    ("a directory that vanishes", "mkdir \"$RATION_DIR\" && (sleep 0.1; rm -rf \"$RATION_DIR\") &"),
    ("a region that vanishes", "mkdir \"$RATION_DIR\" && (sleep 0.1; rm -f \"$RATION_DIR\"/*) &"),
];

/// Runs a shell's line, and then the program; bare or in a slice. How it ended, and what it said.
fn denied(scene: &Scene, line: &str, in_a_slice: bool, dir: &str) -> (Option<i32>, String) {
    let script = format!("{line}\nexec timeout 20 \"$0\" \"$@\"");
    let mut command = scene.machine.command("unshare");
    command
        .args(["--map-root-user", "--mount", "sh", "-c", &script])
        .arg(&scene.program)
        .arg(TIME)
        .env("RATION_DIR", dir);
    if in_a_slice {
        command.env("RATION_MEMORY", "2GiB").env("RATION_COMPUTE", "60%").env("RATION_NAME", VICTIM);
        command = with_module(command);
    }
    let output = command.output().expect("unshare runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn program_ends_as_it_would_whatever_the_machine_denies() {
    let scene = Scene::by("channels", &compile("chaos"));
    if denied(&scene, "mount -t tmpfs none /mnt", false, "").0 != Some(0) {
        println!("this machine lets nobody mount anything: not looked at what it denies");
        return;
    }
    let mut wrong = Vec::new();
    let limits = LIMITS.iter().map(|limit| (format!("ulimit {limit}"), format!("ulimit {limit}")));
    let places = PLACES.iter().map(|(what, line)| ((*what).to_owned(), (*line).to_owned()));
    let (mut text, mut tried) = (String::new(), 0);
    for (number, (what, line)) in limits.chain(places).enumerate() {
        let dir = |of: &str| scene.regions.0.join(format!("{of}-{number}")).display().to_string();
        // In a directory that is there and good, so that a limit is met with a region to be made.
        let (bare, _) = denied(&scene, &line, false, &dir("bare"));
        let (ours, said) = denied(&scene, &line, true, &dir("ours"));
        if bare != ours {
            wrong.push(format!("{what}: it ended with {ours:?}, and without us with {bare:?}; {said}"));
        }
        if said.lines().filter(|line| line.starts_with("ration: ")).count() > LINES
            || said.contains("inside of the shim")
        {
            wrong.push(format!("{what}: {said}"));
        }
        tried += 1;
    }
    let _ = writeln!(text, "{tried} things that a machine denies; {} of them had consequences", wrong.len());
    report("chaos-machine", &text);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
