//! Every way of taking device memory, asked for three times the cap: how much the driver gave by its own record, what the
//! program was told, and whether it could go on. One row per way; the programs are `tests/programs/caps/path*.c`, and run on
//! real GPUs as well (`tests/gpu/memory`).

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{GIB, Look, MIB, Regions, Session, inside, left_behind, look};
use support::{Machine, report};

/// What the driver gives for managed memory comes in batches of this.
const MANAGED_BATCH: u64 = 128 * MIB;

/// What must come out of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The cap is reached and held.
    Held,
    /// All of it is given, and counts for nothing: host memory.
    Free,
    /// Not to be had on the simulated GPU.
    Skipped,
}

/// A path under a cap.
struct Row {
    label: &'static str,
    path: &'static str,
    /// The settings of the container; without `RATION_MEMORY` among them, that is the cap.
    settings: &'static [(&'static str, &'static str)],
    cap: u64,
    outcome: Outcome,
    /// The simulated machine's.
    machine: &'static [(&'static str, &'static str)],
}

const fn row(path: &'static str, cap: u64) -> Row {
    Row { label: path, path, settings: &[], cap, outcome: Outcome::Held, machine: &[] }
}

const fn variant(label: &'static str, cap: u64, settings: &'static [(&'static str, &'static str)]) -> Row {
    Row { label, path: "linear-64m", settings, cap, outcome: Outcome::Held, machine: &[] }
}

const ROWS: &[Row] = &[
    row("linear-4k", 768 * MIB),
    row("linear-1m1", 4 * GIB),
    row("linear-2m", 4 * GIB),
    row("linear-20m1", 4 * GIB),
    row("linear-64m", 4 * GIB),
    // All of them have to be below 4 GiB.
    row("linear-32bit", 2 * GIB),
    Row { outcome: Outcome::Skipped, ..row("runtime", 4 * GIB) },
    row("pitch", 4 * GIB),
    row("managed", 4 * GIB),
    row("async", 4 * GIB),
    row("from-pool", 4 * GIB),
    row("pool-kept", 4 * GIB),
    row("vmm", 4 * GIB),
    row("vmm-mapping", 4 * GIB),
    row("array", 4 * GIB),
    row("array3d", 4 * GIB),
    row("mipmap", 4 * GIB),
    row("graph-node", 4 * GIB),
    row("graph-captured", 4 * GIB),
    row("graph-kept", 4 * GIB),
    row("contexts", 4 * GIB),
    row("module", 4 * GIB),
    row("library-lazy", 4 * GIB),
    row("library-function", 4 * GIB),
    row("library-node", 4 * GIB),
    row("local", 4 * GIB),
    row("graph-local", 4 * GIB),
    row("stack-limit", 4 * GIB),
    row("heap-limit", 4 * GIB),
    row("threads", 4 * GIB),
    // The contexts of eight processes alone are more than 4 GiB.
    row("processes", 8 * GIB),
    row("exec-chain", 4 * GIB),
    row("ipc", 4 * GIB),
    row("ipc-descriptor", 4 * GIB),
    Row { outcome: Outcome::Free, ..row("host", GIB) },
    variant("1 GiB", GIB, &[("RATION_MEMORY", "1GiB")]),
    variant("31 GiB", 31 * GIB, &[("RATION_MEMORY", "31Gi")]),
    variant("bytes", 3_000_000_000, &[("RATION_MEMORY", "3000000000")]),
    // Of 40 GiB. What the driver calls the total is a little less than what NVML does, and may be meant.
    Row { machine: &[("RATION_SIM_MEMORY", "40GiB")], ..variant("10%", 4 * GIB, &[("RATION_MEMORY", "10%")]) },
    // The second of two, which is this process's first.
    Row {
        machine: &[("RATION_SIM_GPUS", "2")],
        ..variant("second GPU", 2 * GIB, &[("RATION_MEMORY", "0=2GiB,1=3GiB"), ("CUDA_VISIBLE_DEVICES", "1")])
    },
    variant("HAMi's name", 2 * GIB, &[("CUDA_DEVICE_MEMORY_LIMIT", "2g"), ("RATION_MEMORY", "")]),
];

/// What a row said and what the driver's record said meanwhile.
#[derive(Default)]
struct Seen {
    skipped: Option<String>,
    step: u64,
    got: u64,
    /// None: never.
    refused: Option<i64>,
    said: Vec<(String, Vec<u64>)>,
    then: Vec<(String, i64)>,
    again: Vec<(u64, i64)>,
    ready: Look,
    full: Look,
    freed: Look,
}

impl Seen {
    fn read(&mut self, lines: &[String]) -> Result<(), String> {
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| -> Result<i64, String> {
                words.get(at).and_then(|w| w.parse().ok()).ok_or_else(|| format!("not understood: {line}"))
            };
            match words[0] {
                "skipped" => self.skipped = Some(words[1..].join(" ")),
                "step" => self.step = number(1)? as u64,
                "got" => self.got += number(1)? as u64,
                "refused" if words.get(1) == Some(&"never") => self.refused = None,
                "refused" => self.refused = Some(number(1)?),
                "then" => self.then.push((words.get(1).copied().unwrap_or_default().to_owned(), number(2)?)),
                "again" => self.again.push((number(1)? as u64, number(2)?)),
                name => {
                    let values: Result<Vec<u64>, _> = (1..words.len()).map(|at| number(at).map(|n| n as u64)).collect();
                    self.said.push((name.to_owned(), values?));
                }
            }
        }
        Ok(())
    }

    /// The figures of a line such as `info`.
    fn figures(&self, name: &str) -> &[u64] {
        self.said.iter().find(|(said, _)| said == name).map_or(&[], |(_, values)| values)
    }

    fn then(&self, what: &str) -> Option<i64> {
        self.then.iter().find(|(name, _)| name == what).map(|(_, code)| *code)
    }
}

/// Runs a path to its end, and looks at the driver's record wherever it waits.
fn run(mut command: std::process::Command, row: &Row, machine: &Machine) -> Result<Seen, String> {
    command.arg(row.path).env("CAP", row.cap.to_string()).env("CAPS_ROUNDS", "2");
    let mut session = Session::start(&mut command, Duration::from_secs(60));
    let mut seen = Seen::default();
    seen.read(&session.until("ready")?)?;
    // The first client makes the world; one that looks earlier would make another.
    let world = machine.world();
    seen.ready = look(&world);
    session.tell("");
    seen.read(&session.until("full")?)?;
    if seen.skipped.is_some() {
        return Ok(seen);
    }
    seen.full = look(&world);
    session.tell("");
    seen.read(&session.until("freed")?)?;
    seen.freed = look(&world);
    session.tell("");
    seen.read(&session.finish()?)?;
    left_behind(&world)?;
    Ok(seen)
}

fn run_row(program: &Path, row: &Row) -> Result<Seen, String> {
    let (machine, regions) = (Machine::with(row.machine), Regions::new());
    let mut settings = vec![("RATION_MEMORY", row.cap.to_string())];
    settings.extend(row.settings.iter().map(|(name, value)| (*name, (*value).to_owned())));
    let mut command = inside(&machine, &regions, "tests/caps", &settings, program);
    for (name, _) in settings.iter().filter(|(_, value)| value.is_empty()) {
        command.env_remove(name);
    }
    run(command, row, &machine)
}

/// What is wrong with a row whose cap must hold. Empty: nothing.
fn judge(row: &Row, seen: &Seen) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    // A percentage is of one of two totals, a per cent apart.
    let cap = if row.settings.iter().any(|(_, value)| value.ends_with('%')) {
        seen.figures("total").first().copied().unwrap_or(0)
    } else {
        row.cap
    };
    must(cap.abs_diff(row.cap) <= row.cap / 100, format!("the cap is {cap}, not about {}", row.cap));
    for (name, at) in [("info", 1), ("total", 0), ("nvml", 0), ("nvml-v2", 0)] {
        let total = seen.figures(name).get(at).copied();
        must(total == Some(cap), format!("`{name}` says that the GPU has {total:?} bytes, not {cap}"));
    }
    // What is left, by the driver and by NVML: to the block, or to the batch.
    let left = cap.saturating_sub(seen.full.held);
    let near = if seen.full.managed == 0 { 2 * MIB } else { MANAGED_BATCH };
    for (name, at) in [("info", 0), ("nvml", 1), ("nvml-v2", 1)] {
        let free = seen.figures(name).get(at).copied();
        let fits = free.is_some_and(|free| free.abs_diff(left) <= near);
        must(fits, format!("`{name}` says that {free:?} bytes are free, and {left} are"));
    }
    // And when all was given back, the rest is free again: nothing drifted. Without a context there is nobody to ask.
    if let Some(free) = seen.figures("left").first() {
        let left = cap.saturating_sub(seen.freed.held);
        let near = if seen.freed.managed == 0 { 2 * MIB } else { MANAGED_BATCH };
        must(
            free.abs_diff(left) <= near,
            format!("when all was freed, {free} bytes were said to be free, and {left} were"),
        );
    }
    let listed = seen.figures("nvml-processes").first().copied().unwrap_or(0);
    must(listed == seen.full.processes as u64, format!("NVML lists {listed} processes of {}", seen.full.processes));
    must(seen.then("small") == Some(0), format!("a small allocation afterwards: {:?}", seen.then("small")));
    must(seen.then("kernel") == Some(0), format!("a kernel afterwards: {:?}", seen.then("kernel")));
    let batch = if seen.freed.managed == 0 { 0 } else { MANAGED_BATCH };
    must(
        seen.freed.held <= seen.ready.held + batch,
        format!("{} at first, {} freed", seen.ready.held, seen.freed.held),
    );
    if row.outcome == Outcome::Free {
        must(seen.refused.is_none(), format!("refused with {:?}", seen.refused));
        must(seen.full.held == seen.ready.held, format!("took {}", seen.full.held - seen.ready.held));
        return wrong;
    }
    must(seen.refused == Some(2), format!("refused with {:?}, not with CUDA_ERROR_OUT_OF_MEMORY (2)", seen.refused));
    let over = if seen.full.managed == 0 { 0 } else { MANAGED_BATCH };
    must(seen.full.held <= cap + over, format!("{} bytes over the cap", seen.full.held.saturating_sub(cap)));
    must(seen.full.peak <= cap, format!("{} bytes over the cap, for a moment", seen.full.peak.saturating_sub(cap)));
    let least = (cap - cap / 50).min(cap.saturating_sub(seen.step));
    must(seen.full.held >= least, format!("only {} bytes of {cap} were to be had", seen.full.held));
    must(seen.then("closed").is_none_or(|code| code == 2), "closing an import gave memory back".to_owned());
    for (bytes, code) in &seen.again {
        must(bytes.abs_diff(seen.got) <= seen.step, format!("{bytes} bytes the second time, {} the first", seen.got));
        must(*code == 2, format!("refused with {code} the second time"));
    }
    wrong
}

fn line(row: &Row, seen: &Result<Seen, String>, verdict: &str) -> String {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / MIB as f64);
    let Ok(seen) = seen else { return format!("{:<18}{:>9}  {verdict}\n", row.label, mib(row.cap)) };
    let code = seen.refused.map_or("never".to_owned(), |code| code.to_string());
    let after = seen.then.iter().map(|(_, code)| code.to_string()).collect::<Vec<_>>().join(" ");
    let share = format!("{:.2}%", seen.full.held as f64 / row.cap as f64 * 100.0);
    format!(
        "{:<18}{:>9}{:>11}{:>11}{:>10}{code:>8}{after:>8}  {verdict}\n",
        row.label,
        mib(row.cap),
        mib(seen.got),
        mib(seen.full.held),
        share
    )
}

#[test]
fn no_path_gets_more_than_the_cap_nor_much_less() {
    let program = container::program("path");
    let only = std::env::var("CAPS_ONLY").unwrap_or_default();
    let mut table = format!(
        "{:<18}{:>9}{:>11}{:>11}{:>10}{:>8}{:>8}\n",
        "MiB", "cap", "asked for", "by record", "of cap", "code", "after"
    );
    let mut failures = String::new();
    for row in ROWS.iter().filter(|row| only.is_empty() || only.split(',').any(|name| name == row.label)) {
        let seen = run_row(&program, row);
        let wrong = match &seen {
            Err(error) => vec![error.clone()],
            Ok(Seen { skipped: Some(_), .. }) if row.outcome == Outcome::Skipped => vec![],
            Ok(Seen { skipped: Some(reason), .. }) => vec![format!("skipped: {reason}")],
            Ok(seen) => judge(row, seen),
        };
        let verdict = match &seen {
            Ok(Seen { skipped: Some(reason), .. }) if wrong.is_empty() => format!("skipped: {reason}"),
            Ok(_) if wrong.is_empty() => "holds".to_owned(),
            _ => format!("WRONG: {}", wrong.join("; ")),
        };
        table.push_str(&line(row, &seen, &verdict));
        if !wrong.is_empty() {
            let _ = writeln!(failures, "{}: {}", row.label, wrong.join("; "));
        }
    }
    report("caps", &table);
    assert!(failures.is_empty(), "{failures}");
}

/// The programs themselves: without the shim, on a GPU as large as the cap and what the driver keeps for itself, the driver
/// says no where the shim should.
#[test]
fn without_the_shim_the_paths_fill_the_gpu() {
    let program = container::program("path");
    let mut failures = String::new();
    for row in ROWS.iter().filter(|row| row.settings.is_empty() && row.outcome == Outcome::Held) {
        let memory = format!("{}MiB", row.cap / MIB + 64);
        let machine = Machine::with(&[("RATION_SIM_MEMORY", &memory)]);
        let mut problem = |what: String| failures.push_str(&format!("{}: {what}\n", row.label));
        let seen = match run(machine.command(&program), row, &machine) {
            Ok(seen) => seen,
            Err(error) => {
                problem(error);
                continue;
            }
        };
        // It makes room for what does not fit.
        let refused = if row.path == "managed" { None } else { Some(2) };
        if seen.refused != refused {
            problem(format!("refused with {:?}", seen.refused));
        }
        let free = seen.figures("info").first().copied().unwrap_or(u64::MAX);
        if free > seen.step.max(2 * MIB) + 2 * MIB {
            problem(format!("{free} bytes are free, and a step takes {}", seen.step));
        }
        if seen.then("small") != Some(0) || seen.then("kernel") != Some(0) {
            problem(format!("afterwards: {:?}", seen.then));
        }
        if seen.freed.held > seen.ready.held + if seen.freed.managed == 0 { 0 } else { MANAGED_BATCH } {
            problem(format!("{} bytes at first, {} when all was freed", seen.ready.held, seen.freed.held));
        }
        if seen
            .again
            .iter()
            .any(|(bytes, code)| bytes.abs_diff(seen.got) > seen.step || Some(*code) != refused.or(Some(0)))
        {
            problem(format!("the second time {:?}, the first {}", seen.again, seen.got));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Two containers on one GPU, in one directory of regions: each has its own cap, and neither feels the other's.
#[test]
fn a_full_container_leaves_the_others_theirs() {
    let program = container::program("path");
    let (machine, regions) = (Machine::new(), Regions::new());
    let start = |name: &str, cap: u64| {
        let settings = [("RATION_MEMORY", cap.to_string()), ("CAP", cap.to_string())];
        let mut command = inside(&machine, &regions, name, &settings, &program);
        Session::start(command.arg("linear-64m"), Duration::from_secs(60))
    };
    let mut figures = Vec::new();
    let mut running = Vec::new();
    for (name, cap) in [("tests/one", 2 * GIB), ("tests/two", 3 * GIB), ("tests/three", GIB)] {
        let before = if running.is_empty() { 0 } else { look(&machine.world()).held };
        let mut session = start(name, cap);
        session.until("ready").expect("it starts");
        session.tell("");
        let mut seen = Seen::default();
        seen.read(&session.until("full").expect("it fills")).expect("its lines are understood");
        figures.push((name, cap, look(&machine.world()).held - before, seen.refused));
        running.push(session);
    }
    for mut session in running {
        session.tell("");
        session.until("freed").expect("it goes on");
        session.tell("");
        session.finish().expect("it ends well");
    }
    left_behind(&machine.world()).expect("nothing is left");
    for (name, cap, held, refused) in figures {
        assert!(held <= cap && held + 64 * MIB >= cap, "{name}: {held} of {cap}");
        assert_eq!(refused, Some(2), "{name}");
    }
}
