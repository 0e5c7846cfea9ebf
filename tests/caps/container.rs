//! Containers on a simulated machine: programs under the shim with a cap, and what the driver's record says of them.

#![allow(dead_code)] // each test uses its part

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use sim_world::World;

use ration_region::{Gpu, Home, Region};

use crate::support::{Machine, preload, sim_dir};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Compiles tests/programs/caps/NAME*.c: a program may be in several files.
pub fn program(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let from = root.join("tests/programs/caps");
    let entries = std::fs::read_dir(&from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
    let mut sources: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .filter(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name)))
        .collect();
    sources.sort();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("caps-{name}-{}", std::process::id()));
    let status = Command::new("cc")
        .args(["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&program)
        .args(&sources)
        .arg(format!("-I{}", root.join("include").display()))
        .arg(format!("-I{}", root.join("tests/programs").display()))
        .arg(format!("-L{}", sim_dir().display()))
        .args(["-lcuda", "-ldl"])
        .status()
        .expect("a C compiler: run ci/setup");
    assert!(status.success(), "{sources:?} do not compile");
    program
}

/// This user.
pub fn me() -> u32 {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::geteuid() }
}

/// A directory for regions, removed with its test.
pub struct Regions(pub PathBuf);

impl Regions {
    pub fn new() -> Regions {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = if Path::new("/dev/shm").is_dir() { Path::new("/dev/shm").to_owned() } else { std::env::temp_dir() };
        let dir = base.join(format!("ration-caps-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("shared memory is writable");
        Regions(dir)
    }

    /// The files of all regions in it: each container has a directory of its own.
    pub fn files(&self) -> Vec<PathBuf> {
        let inside = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let all = inside(&self.0).collect::<Vec<_>>();
        let files = all.iter().flat_map(|dir| inside(dir));
        files.filter(|path| path.extension().is_some_and(|it| it == "region")).collect()
    }

    /// All of them for a GPU.
    pub fn all(&self, gpu: &Gpu) -> Vec<Region> {
        let dirs = self.files().into_iter().filter_map(|file| Some(file.parent()?.to_owned()));
        dirs.filter_map(|dir| Region::open(&dir, gpu).ok()).collect()
    }

    /// A container's region, which is made if need be.
    pub fn of(&self, container: &str, gpu: &Gpu) -> Region {
        Region::open_at(&Home::among(&self.0, container), gpu).expect("a region can be made")
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A command in a container: under the shim, with a name and these settings.
pub fn inside(
    machine: &Machine,
    regions: &Regions,
    name: &str,
    settings: &[(&str, String)],
    program: &Path,
) -> Command {
    let mut command = machine.command(program);
    command.env("LD_PRELOAD", preload::shim()).env("RATION_DIR", &regions.0).env("RATION_NAME", name);
    for (name, value) in settings {
        command.env(name, value);
    }
    command
}

/// A command with the stand-in for the kernel module behind the library.
pub fn with_module(mut command: Command) -> Command {
    let mut preload = std::ffi::OsString::from(preload::shim());
    preload.push(" ");
    preload.push(crate::support::sim_dir().join("libsim-kernel.so"));
    command.env("LD_PRELOAD", preload);
    command
}

/// A command like that of [`inside`], for a program and its arguments, with files in /etc/ration, and the directory that they
/// are in as it is seen from outside. `None`: this machine lets nobody mount anything.
pub fn with_files(
    machine: &Machine,
    regions: &Regions,
    files: &[(&str, &str)],
    program: &Path,
    arguments: &[&str],
) -> Option<(Command, PathBuf)> {
    let enter = ["--map-root-user", "--mount"];
    let possible = Command::new("unshare").args(enter).args(["mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        println!("this machine lets nobody mount anything: not looked at /etc/ration");
        return None;
    }
    let etc = regions.0.join("etc");
    // A copy of /etc takes its place, for the program alone. Some of it may not be for us to read.
    let _ = Command::new("cp").arg("-a").arg("/etc").arg(&etc).output();
    let dir = etc.join("ration");
    std::fs::create_dir_all(&dir).expect("a copy can be added to");
    for (name, text) in files {
        std::fs::write(dir.join(name), text).expect("a copy can be written to");
    }
    let script = format!("mount --bind '{}' /etc && exec \"$0\" \"$@\"", etc.display());
    let mut command = inside(machine, regions, "tests/of-the-environment", &[], Path::new("/usr/bin/unshare"));
    command.args(enter).args(["sh", "-c", &script]).arg(program).args(arguments);
    Some((command, dir))
}

/// How much of the first GPU's time is work from now on, for so long, in per cent.
pub fn busy_share(world: &World, window: Duration) -> f64 {
    let before = world.record();
    std::thread::sleep(window);
    let after = world.record();
    let busy = after.gpus[0].busy_ns - before.gpus[0].busy_ns;
    100.0 * busy as f64 / (after.clock_ns - before.clock_ns) as f64
}

/// A program that is talked to line by line. Killed with its test, and with all that it started.
pub struct Session {
    pub child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: PathBuf,
    /// Longer than this without a line is a hang.
    patience: Duration,
}

impl Session {
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes numbers; the child was not waited for, so nobody else has its number.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    pub fn start(command: &mut Command, patience: Duration) -> Session {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("caps-{}-{}.err", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let errors = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut child = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&errors).expect("the target directory is writable"))
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Session { child, input, lines, errors, patience }
    }

    /// The next line; None at its end, an error if it says nothing for too long.
    pub fn line(&mut self) -> Result<Option<String>, String> {
        match self.lines.recv_timeout(self.patience) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(format!("hangs: no line for {:?}; {}", self.patience, self.said())),
        }
    }

    /// The lines before this one, or before its end.
    pub fn until(&mut self, last: &str) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        while let Some(line) = self.line()? {
            if line == last {
                return Ok(lines);
            }
            lines.push(line);
        }
        let how = self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        if lines.iter().any(|line| line.starts_with("skipped ")) {
            return Ok(lines);
        }
        Err(format!("ended before `{last}`: {how}; {}{}", lines.join("; "), self.said()))
    }

    pub fn tell(&mut self, line: &str) {
        // One that has ended does not read; whoever waits for its answer finds out.
        let _ = self.input.as_mut().map(|input| input.write_all(format!("{line}\n").as_bytes()));
    }

    /// It is told nothing any more.
    pub fn close(&mut self) {
        self.input = None;
    }

    /// The rest of its lines; it must succeed.
    pub fn finish(mut self) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        while let Some(line) = self.line()? {
            lines.push(line);
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(lines),
            Ok(status) => Err(format!("{status}; {}{}", lines.join("; "), self.said())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What it wrote to standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // SAFETY: kill takes numbers; the group is the child's own (`process_group(0)`), and the child was not waited for,
            // so nobody else has its number.
            unsafe { libc::kill(-(self.child.id() as libc::pid_t), libc::SIGKILL) };
            let _ = self.child.wait();
        }
        let _ = std::fs::remove_file(&self.errors);
    }
}

/// What the driver's record says of all living clients of a machine, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// NVML's figures added up, and what managed memory takes besides, which is in nobody's figure.
    pub held: u64,
    /// The part of it that is managed memory.
    pub managed: u64,
    /// The highest figure that any one process ever had.
    pub peak: u64,
    /// Processes that hold something.
    pub processes: usize,
}

/// Looks at a machine.
pub fn look(world: &World) -> Look {
    let mut sum = Look::default();
    for process in world.record().processes.iter().filter(|p| p.alive && !p.observer) {
        for held in process.gpus.values() {
            let managed = held.bytes.get("managed").copied().unwrap_or(0);
            sum.held += held.figure_bytes + managed;
            sum.managed += managed;
            sum.peak = sum.peak.max(held.peak_bytes);
            sum.processes += usize::from(held.figure_bytes != 0);
        }
    }
    sum
}

/// Waits until every process is gone, and with them all that they held; what is left otherwise.
pub fn left_behind(world: &World) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let used: u64 = world.record().gpus.iter().map(|gpu| gpu.used_bytes).sum();
        let wrong = world.inconsistencies();
        if used == 0 && wrong.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("{used} bytes are still taken; {wrong:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
