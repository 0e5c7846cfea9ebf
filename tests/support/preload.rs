//! Running programs under the shim, and holding its trace against the simulated driver's own record.
//!
//! A [`Trial`] is a program and all that is said to it. It runs twice: bare, and under the shim. The first run says what the
//! program does by itself; the second must look the same from outside, and its trace must be what the driver recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sim_world::record::Record;

use super::{Machine, sim_dir};

/// Calls by process and symbol.
pub type Calls = BTreeMap<u64, BTreeMap<String, u64>>;

/// The shim as cargo built it for this test, whose own binary lies beside it.
pub fn shim() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    let library = here.parent().expect("a test is in a directory").join("libration.so");
    assert!(library.exists(), "{} is not there: run ci/build first", library.display());
    library
}

/// What the shim itself asks the driver for each line of `RATION_TRACE=calls:`, to say in which context it was. Those calls are
/// the shim's own, and in no trace.
pub const ASKED_FOR_EACH_CALL: [&str; 3] = ["cuCtxGetCurrent", "cuCtxGetDevice", "cuStreamIsCapturing"];

/// The rows but for those.
pub fn rows_of_each_call() -> BTreeSet<String> {
    rows().into_iter().filter(|row| !ASKED_FOR_EACH_CALL.contains(&row.as_str())).collect()
}

/// The driver's and NVML's symbols that the shim has a hook for.
pub fn rows() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/table/hooks.tsv");
    let table = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let symbols = table.lines().filter_map(|line| line.split('\t').next());
    let rows: BTreeSet<_> =
        symbols.filter(|name| name.starts_with("cu") || name.starts_with("nvml")).map(str::to_owned).collect();
    assert!(rows.len() > 100, "{} has {} rows", path.display(), rows.len());
    rows
}

/// Where a test compiles and keeps files; removed with it. Not in shared memory, which some machines mount without exec.
pub struct Bench {
    pub dir: PathBuf,
}

impl Bench {
    pub fn new() -> Bench {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).expect("the target directory is writable");
        Bench { dir }
    }

    /// Compiles tests/programs/hostile/NAME.c. `args` are the compiler's, `-lcuda` among them where it is wanted.
    pub fn program(&self, name: &str, args: &[&str]) -> PathBuf {
        self.compile(name, name, args)
    }

    /// The same as a library `libOUTPUT.so` that other programs of this bench can be linked to.
    pub fn library(&self, name: &str, output: &str, args: &[&str]) -> PathBuf {
        let file = format!("lib{output}.so");
        let soname = format!("-Wl,-soname,{file}");
        self.compile(name, &file, &[&["-shared", "-fPIC", &soname], args].concat())
    }

    /// The same under a name of one's own.
    pub fn compile(&self, name: &str, output: &str, args: &[&str]) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = self.dir.join(output);
        // A clean-environment child has no LD_LIBRARY_PATH: the way to the driver is in the program. As DT_RUNPATH it does
        // not hold for dlopen of others; --disable-new-dtags makes it one that does.
        let here = format!("-Wl,--disable-new-dtags,-rpath,{}", self.dir.display());
        let status = Command::new("cc")
            .args(["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-pthread", "-o"])
            .arg(&output)
            .arg(root.join("tests/programs/hostile").join(format!("{name}.c")))
            .arg(format!("-I{}", root.join("include").display()))
            .arg(format!("-I{}", root.join("tests/programs").display()))
            .arg(format!("-L{}", self.dir.display()))
            .arg(format!("-L{}", sim_dir().display()))
            .arg(here)
            .args(args)
            .status()
            .expect("a C compiler: run ci/setup");
        assert!(status.success(), "tests/programs/hostile/{name}.c does not compile");
        output
    }

    /// A path for a file of this bench, which no earlier run has touched.
    pub fn fresh(&self, name: &str) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        self.dir.join(format!("{name}.{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// What the shim is told to trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trace {
    /// `RATION_TRACE` is not set.
    Off,
    /// Counts, into a file of the run's own.
    Counts,
    /// A line per call, likewise.
    EachCall,
    /// This value.
    Value(OsString),
}

/// A program and what is said to it.
#[derive(Clone)]
pub struct Trial<'b> {
    bench: &'b Bench,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    unset: Vec<OsString>,
    settings: Vec<(&'static str, &'static str)>,
    /// Preloaded before the shim, and after it.
    around: (Vec<PathBuf>, Vec<PathBuf>),
    trace: Trace,
    limit: Duration,
    /// Under the shim it is in a slice that is held by this switch.
    switch: Option<&'static str>,
}

/// What a slice has of memory.
pub const SLICE: u64 = 4 << 30;

impl<'b> Trial<'b> {
    pub fn new(bench: &'b Bench, program: impl Into<PathBuf>) -> Trial<'b> {
        Trial {
            bench,
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            unset: Vec::new(),
            settings: Vec::new(),
            around: (Vec::new(), Vec::new()),
            trace: Trace::Counts,
            limit: Duration::from_secs(30),
            switch: None,
        }
    }

    /// Under the shim it runs in a slice with a cap and a limit, held by this switch, and another container wants the GPU too.
    pub fn sliced(mut self, switch: &'static str) -> Self {
        self.switch = Some(switch);
        self
    }

    /// Puts a command into a slice, with the stand-in for the kernel module behind the shim; the neighbour.
    fn in_a_slice(&self, machine: &Machine, command: &mut Command, switch: &str) -> super::Running {
        let module = sim_dir().join("libsim-kernel.so");
        let regions = self.bench.fresh("regions");
        std::fs::create_dir_all(&regions).expect("the bench is writable");
        static PROGRAM: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
        let mut neighbour = machine.command(PROGRAM.get_or_init(|| super::compile("compute_work")));
        let preload = [shim().as_os_str(), module.as_os_str()].join(" ".as_ref());
        neighbour.env("LD_PRELOAD", preload).env("RATION_COMPUTE_REQUEST", "50%").env("RATION_NAME", "tests/neighbour");
        neighbour.args(["queue", "500", "120"]).stdout(Stdio::null()).stderr(Stdio::null());
        neighbour.env("RATION_DIR", &regions).env("LD_LIBRARY_PATH", sim_dir());
        command.env("RATION_MEMORY", SLICE.to_string()).env("RATION_COMPUTE_LIMIT", "50%");
        command.env("RATION_DIR", &regions).env("RATION_NAME", "tests/hostile").env("RATION_SWITCH", switch);
        super::Running::of(neighbour.spawn().expect("the neighbour starts"))
    }

    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Without this variable, which the simulated machine would set.
    pub fn without(mut self, name: &str) -> Self {
        self.unset.push(name.into());
        self
    }

    pub fn settings(mut self, settings: &[(&'static str, &'static str)]) -> Self {
        self.settings.extend(settings);
        self
    }

    /// Another library that is preloaded, before the shim.
    pub fn before(mut self, library: &Path) -> Self {
        self.around.0.push(library.to_owned());
        self
    }

    /// Another library that is preloaded, after the shim.
    pub fn after(mut self, library: &Path) -> Self {
        self.around.1.push(library.to_owned());
        self
    }

    pub fn trace(mut self, trace: Trace) -> Self {
        self.trace = trace;
        self
    }

    /// Longer than this is a hang.
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Runs without the shim, the other preloaded libraries in place.
    pub fn bare(&self) -> Run {
        self.run(false)
    }

    /// Runs under the shim.
    pub fn shimmed(&self) -> Run {
        self.run(true)
    }

    /// Runs both ways, and looks that from outside they are the same. Returns both.
    pub fn twice(&self) -> (Run, Run) {
        let (bare, shimmed) = (self.bare(), self.shimmed());
        shimmed.looks_like(&bare);
        (bare, shimmed)
    }

    fn run(&self, under_shim: bool) -> Run {
        let machine = Machine::with(&self.settings);
        let trace = self.bench.fresh("trace");
        let (out, err) = (self.bench.fresh("stdout"), self.bench.fresh("stderr"));
        let mut command = machine.command(&self.program);
        // A program that crashes may leave a core file where it is.
        command.args(&self.args).process_group(0).stdin(Stdio::null()).current_dir(&self.bench.dir);
        command.stdout(std::fs::File::create(&out).expect("the bench is writable"));
        command.stderr(std::fs::File::create(&err).expect("the bench is writable"));
        let switch = self.switch.filter(|_| under_shim);
        let neighbour = switch.map(|switch| self.in_a_slice(&machine, &mut command, switch));
        let module = switch.map(|_| sim_dir().join("libsim-kernel.so"));
        let shim = under_shim.then(shim);
        let all = self.around.0.iter().chain(&shim).chain(&self.around.1).chain(&module);
        let preload: Vec<_> = all.map(|p| p.as_os_str()).collect();
        if !preload.is_empty() {
            command.env("LD_PRELOAD", preload.join(" ".as_ref()));
        }
        let value = match &self.trace {
            Trace::Off => None,
            Trace::Counts => Some(trace.clone().into_os_string()),
            Trace::EachCall => {
                let mut value = OsString::from("calls:");
                value.push(&trace);
                Some(value)
            }
            Trace::Value(value) => Some(value.clone()),
        };
        let each_call = value.as_ref().is_some_and(|value| value.to_string_lossy().starts_with("calls:"));
        if let Some(value) = value {
            command.env("RATION_TRACE", value);
        }
        for (name, value) in &self.env {
            command.env(name, value);
        }
        for name in &self.unset {
            command.env_remove(name);
        }
        let what = format!("{} {:?}{}", self.program.display(), self.args, if under_shim { "" } else { " (bare)" });
        let status = finish(&mut command, self.limit, &what, &[&out, &err]);
        if let Some(neighbour) = neighbour {
            neighbour.kill();
        }
        let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let (stdout, stderr, trace) = (read(&out), read(&err), read(&trace));
        Run { what, status, stdout, stderr, trace, machine, each_call }
    }
}

/// Runs a command to its end; one that takes too long is killed with all that it started, and the test fails. `limit`: on a machine
/// that has nothing else to do; one that others use too may need some times as long.
pub fn finish(command: &mut Command, limit: Duration, what: &str, output: &[&Path]) -> ExitStatus {
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{what}: {e}"));
    let limit = 4 * limit;
    let end = Instant::now() + limit;
    let mut nap = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait().expect("a child can be asked") {
            return status;
        }
        if Instant::now() > end {
            let stacks = stacks(child.id());
            // SAFETY: kill takes numbers; the group is the child's own (`process_group(0)`), and the child was not waited for.
            unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
            let _ = child.wait();
            let said: String = output.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
            panic!("{what}: hangs (more than {limit:?}); it said:\n{said}\nand stands at:\n{stacks}");
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(5));
    }
}

/// Where the threads of a process stand, and of the children that it waits for, for whoever must find out why they do; empty
/// without gdb.
fn stacks(pid: u32) -> String {
    let mut text = String::new();
    let mut next = Some(pid.to_string());
    while let Some(pid) = next {
        let gdb = Command::new("gdb")
            .args(["--batch", "-p", &pid, "-ex", "thread apply all backtrace 14"])
            .stderr(Stdio::null())
            .output();
        let lines = gdb.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        for line in lines.lines().filter(|line| line.starts_with('#') || line.starts_with("Thread")).take(60) {
            let _ = writeln!(text, "  {pid} {line}");
        }
        // Any of its threads may be the one that waits.
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children: String =
            threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok()).collect();
        next = children.split_whitespace().next().map(str::to_owned);
    }
    text
}

/// How a run ended, and what is left of it.
pub struct Run {
    what: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub trace: String,
    pub machine: Machine,
    each_call: bool,
}

impl Run {
    /// The whole of it, for a failing assertion.
    pub fn said(&self) -> String {
        format!("{}: {}\nstdout:\n{}\nstderr:\n{}", self.what, self.status, self.stdout, self.stderr)
    }

    pub fn succeeded(&self) -> &Run {
        assert!(self.status.success(), "{}", self.said());
        self
    }

    /// Ended by this signal.
    pub fn died_of(&self, signal: i32) -> &Run {
        assert_eq!(self.status.signal(), Some(signal), "{}", self.said());
        self
    }

    /// Exit status and standard output are those of the other run.
    pub fn looks_like(&self, bare: &Run) -> &Run {
        assert_eq!(self.status.into_raw(), bare.status.into_raw(), "{}\n{}", self.said(), bare.said());
        assert_eq!(self.stdout, bare.stdout, "{}\n{}", self.said(), bare.said());
        self
    }

    /// Nothing of the shim's on standard error.
    pub fn says_nothing(&self) -> &Run {
        assert!(!self.stderr.contains("ration: "), "the shim has something to say:\n{}", self.said());
        self
    }

    /// The driver's record, once every process of the run has gone.
    pub fn record(&self) -> Record {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let record = self.machine.record();
            let living: Vec<_> = record.processes.iter().filter(|p| p.alive && p.pid != own_pid()).collect();
            if living.is_empty() {
                return record;
            }
            assert!(Instant::now() < end, "processes outlive the run: {living:?}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// What was called, as the driver knows it, all symbols.
    pub fn recorded(&self) -> Calls {
        let mut calls = Calls::new();
        for process in self.record().processes.iter().filter(|p| p.pid != own_pid()) {
            // The driver and NVML are two guests of the world in one process.
            let of = calls.entry(process.pid).or_default();
            for (symbol, count) in &process.calls {
                *of.entry((*symbol).to_owned()).or_default() += count;
            }
        }
        calls
    }

    /// The same as the shim counted it.
    pub fn traced(&self) -> Calls {
        parse(&self.trace)
    }

    /// The trace is the record; nothing is held any more; the record is in order.
    pub fn trace_is_the_record(&self) -> &Run {
        self.trace_is_the_record_and(&Calls::new())
    }

    /// The same, where besides processes that the driver keeps no record of (children that it refuses because their parent
    /// used it before the fork, processes that never initialised it) made these calls, by their own account.
    pub fn trace_is_the_record_and(&self, unrecorded: &Calls) -> &Run {
        let mut expected = self.recorded();
        for (pid, calls) in unrecorded {
            let known = expected.insert(*pid, calls.clone());
            assert!(known.is_none(), "the driver has a record of {pid}: {known:?}\n{}", self.said());
        }
        let wrong = differences(&expected, &self.traced(), &rows());
        assert!(wrong.is_empty(), "the trace differs from the driver's record:\n{wrong}{}", self.said());
        self.nothing_is_left()
    }

    /// Memory came back and the accounts add up.
    pub fn nothing_is_left(&self) -> &Run {
        let record = self.record();
        assert_eq!(record.gpus[0].used_bytes, 0, "memory is still taken\n{}", self.said());
        let wrong = self.machine.world().inconsistencies();
        assert!(wrong.is_empty(), "{wrong:?}\n{}", self.said());
        self
    }

    /// The driver saw what it sees without the shim: the same number of calls of every symbol, hooked or not.
    pub fn calls_are_those_of(&self, bare: &Run) -> &Run {
        let (mut here, mut there) = (totals(&self.recorded()), totals(&bare.recorded()));
        if self.each_call {
            for calls in [&mut here, &mut there] {
                calls.retain(|symbol, _| !ASKED_FOR_EACH_CALL.contains(&symbol.as_str()));
            }
        }
        assert_eq!(here, there, "{}", self.said());
        self
    }
}

fn own_pid() -> u64 {
    u64::from(std::process::id())
}

/// Calls by symbol, all processes together.
pub fn totals(calls: &Calls) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (symbol, count) in calls.values().flatten() {
        *sums.entry(symbol.clone()).or_default() += count;
    }
    sums
}

/// Reads a trace of counts, as its format says: comments start with #, other lines are `PID SYMBOL COUNT` and add up.
pub fn parse(trace: &str) -> Calls {
    let mut calls = Calls::new();
    for line in trace.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.split(' ').collect();
        let [pid, symbol, count] = words[..] else { panic!("not a line of a trace: {line:?}\n{trace}") };
        let number = |text: &str| text.parse::<u64>().unwrap_or_else(|e| panic!("{line:?}: {text:?}: {e}"));
        *calls.entry(number(pid)).or_default().entry(symbol.to_owned()).or_default() += number(count);
    }
    calls
}

/// One line per process and row whose counts are not the same.
pub fn differences(record: &Calls, trace: &Calls, rows: &BTreeSet<String>) -> String {
    let mut wrong = String::new();
    let none = BTreeMap::new();
    for pid in record.keys().chain(trace.keys()).collect::<BTreeSet<_>>() {
        let (recorded, traced) = (record.get(pid).unwrap_or(&none), trace.get(pid).unwrap_or(&none));
        for symbol in recorded.keys().chain(traced.keys()).collect::<BTreeSet<_>>() {
            let count = |calls: &BTreeMap<String, u64>| calls.get(symbol).copied().unwrap_or(0);
            if !rows.contains(symbol) {
                if count(traced) != 0 {
                    let _ = writeln!(wrong, "  {pid} {symbol}: in the trace, but not in the table of hooks");
                }
            } else if count(recorded) != count(traced) {
                let _ = writeln!(wrong, "  {pid} {symbol}: recorded {}, traced {}", count(recorded), count(traced));
            }
        }
    }
    wrong
}
