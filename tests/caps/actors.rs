//! Programs that do as a test tells them, in containers on a machine with several GPUs; and lists of cases, of which those
//! that are known not to hold yet are told as open.

#![allow(dead_code)] // each test uses its part

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sim_world::World;

use crate::container::{GIB, MIB, Regions, Session, inside, left_behind};
use crate::support::{Machine, report, sim_dir};

/// What a case found wrong.
pub type Wrong = String;
pub type Verdict = Result<(), Wrong>;

/// How far off an order may be; some fill several GPUs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Compiles tests/programs/gpus.
fn program() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let from = root.join("tests/programs/gpus");
    let entries = std::fs::read_dir(&from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
    let sources = entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("actor-{}", std::process::id()));
    let status = Command::new("cc")
        .args(["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&program)
        .args(sources)
        .arg(format!("-I{}", root.join("include").display()))
        .arg(format!("-I{}", root.join("tests/programs").display()))
        .arg(format!("-L{}", sim_dir().display()))
        .args(["-lcuda", "-ldl"])
        .status()
        .expect("a C compiler: run ci/setup");
    assert!(status.success(), "{} does not compile", from.display());
    program
}

/// A machine, a directory of regions, and what runs on them.
pub struct Stage {
    machine: Machine,
    regions: Regions,
    program: PathBuf,
}

impl Stage {
    /// A machine with these settings, on which nothing runs yet.
    fn new(program: &Path, settings: &[(&str, &str)]) -> Stage {
        Stage { machine: Machine::with(settings), regions: Regions::new(), program: program.to_owned() }
    }

    /// A program in a container with these settings.
    pub fn actor(&self, container: &str, settings: &[(&str, &str)]) -> Result<Actor, Wrong> {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Actor::start(&mut inside(&self.machine, &self.regions, container, &settings, &self.program))
    }

    /// The same as the first process of a PID namespace of its own; `None` where this user can make none.
    pub fn actor_apart(&self, container: &str, settings: &[(&str, &str)]) -> Option<Result<Actor, Wrong>> {
        let enter = ["--pid", "--fork", "--mount-proc", "--kill-child"];
        let possible = Command::new("unshare").args(enter).arg("true").output().is_ok_and(|it| it.status.success());
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let mut command = inside(&self.machine, &self.regions, container, &settings, Path::new("unshare"));
        possible.then(|| Actor::start(command.args(enter).arg(&self.program)))
    }

    /// One that the shim knows nothing of.
    pub fn stranger(&self) -> Result<Actor, Wrong> {
        Actor::start(&mut self.machine.command(&self.program))
    }

    /// The driver's own record. Somebody must have used the GPU before: the first client makes the world.
    pub fn world(&self) -> World {
        self.machine.world()
    }

    /// What is taken of each GPU, as the device counts: in whosever figure it is, or in nobody's. Without what the driver
    /// takes for itself, per context.
    pub fn taken(&self) -> Vec<u64> {
        let record = self.world().record();
        let own = |gpu: usize| -> u64 {
            let alive = record.processes.iter().filter(|process| process.alive);
            alive.filter_map(|process| process.gpus.get(&gpu)?.bytes.get("overhead")).sum()
        };
        record.gpus.iter().enumerate().map(|(gpu, held)| held.used_bytes - own(gpu)).collect()
    }

    /// A place in the file system that is this stage's own.
    pub fn place(&self, name: &str) -> String {
        self.regions.0.join(name).display().to_string()
    }

    /// NVML's figure of a process on a GPU.
    pub fn figure(&self, actor: &Actor, gpu: usize) -> u64 {
        let record = self.world().record();
        let mut processes = record.processes.iter().filter(|p| p.alive && p.pid == u64::from(actor.pid()));
        processes.find_map(|process| process.gpus.get(&gpu)).map_or(0, |held| held.figure_bytes)
    }

    /// Waits until the driver holds nothing for a process that was killed.
    pub fn wait_for_the_end_of(&self, pid: u32) {
        let world = self.world();
        let held = |p: &sim_world::record::ProcessRecord| p.alive && p.pid == u64::from(pid) && !p.gpus.is_empty();
        while world.record().processes.iter().any(held) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// A program that does as it is told.
pub struct Actor {
    session: Session,
}

impl Actor {
    fn start(command: &mut Command) -> Result<Actor, Wrong> {
        let mut session = Session::start(command, PATIENCE);
        session.until("ready")?;
        Ok(Actor { session })
    }

    pub fn pid(&self) -> u32 {
        self.session.child.id()
    }

    /// The driver's code, and what else it said.
    pub fn ask(&mut self, order: &str) -> Result<(i64, Vec<String>), Wrong> {
        self.session.tell(order);
        let line = self.session.line()?;
        let line = line.ok_or_else(|| format!("`{order}` ended it: {}", self.session.said()))?;
        let mut words = line.split(' ').map(str::to_owned);
        let code = words.next().and_then(|code| code.parse().ok());
        Ok((code.ok_or_else(|| format!("`{order}`: {line}"))?, words.collect()))
    }

    /// An order that must go well; what it said.
    pub fn must(&mut self, order: &str) -> Result<Vec<String>, Wrong> {
        match self.ask(order)? {
            (0, said) => Ok(said),
            (code, _) => Err(format!("`{order}` -> {code}")),
        }
    }

    /// Several that must.
    pub fn all(&mut self, orders: &[&str]) -> Verdict {
        orders.iter().try_for_each(|order| self.must(order).map(drop))
    }

    /// One that must fail with this code.
    pub fn fails(&mut self, order: &str, code: i64) -> Verdict {
        let (told, _) = self.ask(order)?;
        if told == code { Ok(()) } else { Err(format!("`{order}` -> {told}, not {code}")) }
    }

    /// The numbers that an order that must go well said.
    pub fn numbers(&mut self, order: &str) -> Result<Vec<u64>, Wrong> {
        let said = self.must(order)?;
        said.iter().map(|word| word.parse().map_err(|_| format!("`{order}` said {said:?}"))).collect()
    }

    /// Replaces itself by the same program anew.
    pub fn exec(&mut self) -> Verdict {
        self.session.tell("exec");
        self.session.until("ready").map(drop)
    }

    pub fn kill(mut self) -> u32 {
        let pid = self.pid();
        let _ = self.session.child.kill();
        let _ = self.session.child.wait();
        pid
    }

    /// Lets it end by itself, well.
    pub fn end(mut self) -> Verdict {
        self.session.tell("quit");
        self.session.finish().map(drop)
    }
}

/// `what` must be so.
pub fn check(so: bool, what: impl FnOnce() -> String) -> Verdict {
    if so { Ok(()) } else { Err(what()) }
}

/// Bytes for people.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}

/// A GPU that was asked for more than its cap: full, and not more.
pub fn is_full(what: &str, taken: u64, cap: u64, step: u64) -> Verdict {
    check(taken <= cap, || format!("{what}: {} over the cap of {}", mib(taken.saturating_sub(cap)), mib(cap)))?;
    let least = (cap - cap / 50).min(cap.saturating_sub(step));
    check(taken >= least, || format!("{what}: only {} of {}", mib(taken), mib(cap)))
}

/// The same by the number of the device's that the program was told.
pub fn near(what: &str, told: u64, expected: u64, within: u64) -> Verdict {
    check(told.abs_diff(expected) <= within, || format!("{what}: {}, and not {}", mib(told), mib(expected)))
}

/// Something that must hold, with what it is called in reports.
pub struct Case {
    pub name: &'static str,
    /// The simulated machine's settings.
    pub machine: &'static [(&'static str, &'static str)],
    pub play: fn(&Stage) -> Verdict,
}

/// Two GPUs of 16 GiB, which is more than any case asks for.
pub const TWO: &[(&str, &str)] = &[("RATION_SIM_GPUS", "2"), ("RATION_SIM_MEMORY", "16GiB")];
/// One of them.
pub const ONE: &[(&str, &str)] = &[("RATION_SIM_MEMORY", "16GiB")];
pub const CAP: u64 = 4 * GIB;

/// Plays all cases. One in `open` may fail, and is told; any other that fails, or that leaves memory behind, fails the test.
/// `CAPS_ONLY` names cases, separated by commas; `CAPS_ENFORCE=all` takes the open ones seriously.
pub fn play(name: &str, cases: &[Case], open: &[&str]) {
    let only = std::env::var("CAPS_ONLY").unwrap_or_default();
    let everything = std::env::var("CAPS_ENFORCE").is_ok_and(|value| value == "all");
    let program = program();
    let (mut table, mut failures) = (String::new(), String::new());
    for case in cases.iter().filter(|case| only.is_empty() || only.split(',').any(|name| name == case.name)) {
        let stage = Stage::new(&program, case.machine);
        let began = Instant::now();
        let verdict = (case.play)(&stage).and_then(|()| left_behind(&stage.world()));
        let took = began.elapsed().as_millis();
        let is_open = open.contains(&case.name) && !everything;
        let word = match (&verdict, is_open) {
            (Ok(()), false) => "holds".to_owned(),
            (Ok(()), true) => "holds, and is listed as open".to_owned(),
            (Err(why), true) => format!("open: {why}"),
            (Err(why), false) => format!("WRONG: {why}"),
        };
        let _ = writeln!(table, "{:<58}{took:>6} ms  {}", case.name, word.trim().replace('\n', "; "));
        if let (Err(why), false) = (&verdict, is_open) {
            let _ = writeln!(failures, "{}: {why}", case.name);
        }
    }
    report(name, &table);
    let _ = std::fs::remove_file(&program);
    for name in open {
        assert!(cases.iter().any(|case| case.name == *name), "{name} is open, and is no case");
    }
    assert!(failures.is_empty(), "{failures}");
}
