//! What whole-system tests share: finding the built libraries, compiling little C programs, a world of their own.

#![allow(dead_code)] // each test uses its part

pub mod driver;
pub mod facts;
pub mod preload;
pub mod random;
pub mod table;
pub mod tries;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use sim_world::record::Record;
use sim_world::{Role, World, WorldSettings};

/// cargo's target directory.
pub fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("CARGO_TARGET_TMPDIR is inside the target directory")
        .to_owned()
}

/// Where `ci/build` put the simulated libcuda.so.1 and libnvidia-ml.so.1.
pub fn sim_dir() -> PathBuf {
    let dir = target_dir().join("sim");
    let lib = dir.join("libcuda.so.1");
    assert!(lib.exists(), "{} is not there: run ci/build first", lib.display());
    dir
}

/// Compiles tests/programs/NAME.c against our headers and the simulated driver; returns the program.
pub fn compile(name: &str) -> PathBuf {
    compile_with(name, &["-lcuda"])
}

/// The same with other libraries.
pub fn compile_with(name: &str, libraries: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    // As with newer compilers: whoever means a call's second version and names its first is told so.
    let flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror=incompatible-pointer-types", "-pthread"];
    let status = Command::new("cc")
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(root.join("tests/programs").join(format!("{name}.c")))
        .arg(format!("-I{}", root.join("include").display()))
        .arg(format!("-L{}", sim_dir().display()))
        .args(libraries)
        .status()
        .expect("a C compiler: run ci/setup");
    assert!(status.success(), "tests/programs/{name}.c does not compile");
    program
}

/// A simulated machine of this test's own, removed with it.
pub struct Machine {
    pub dir: PathBuf,
    settings: Vec<(String, String)>,
}

impl Machine {
    pub fn new() -> Machine {
        Machine::with(&[])
    }

    /// With `RATION_SIM_*` settings.
    pub fn with(settings: &[(&str, &str)]) -> Machine {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = if Path::new("/dev/shm").is_dir() { Path::new("/dev/shm").to_owned() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("ration-test-{}-{number}", std::process::id()));
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Machine { dir, settings }
    }

    /// A command that runs on this machine.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("RATION_SIM_DIR", &self.dir).env("LD_LIBRARY_PATH", sim_dir());
        for (name, value) in &self.settings {
            command.env(name, value);
        }
        command
    }

    /// Runs a program to its end; it must succeed. Returns what it printed.
    pub fn run(&self, program: &Path, args: &[&str]) -> String {
        let output = self.output(program, args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{} {args:?}: {}\n{text}{}",
            program.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    /// Runs a program to its end, however that is.
    pub fn output(&self, program: &Path, args: &[&str]) -> Output {
        self.command(program).args(args).output().unwrap_or_else(|e| panic!("{}: {e}", program.display()))
    }

    /// Starts a program whose output is wanted later.
    pub fn start(&self, program: &Path, args: &[&str]) -> Running {
        let child = self.command(program).args(args).stdout(Stdio::piped()).spawn();
        Running(Some(child.unwrap_or_else(|e| panic!("{}: {e}", program.display()))))
    }

    /// This machine's world, to look at.
    pub fn world(&self) -> World {
        let get = |name: &str| self.settings.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        let settings = WorldSettings::from_env(get).expect("a test's settings are good");
        World::join(&self.dir, &settings, Role::Observer).expect("the world can be joined")
    }

    /// What its driver knows.
    pub fn record(&self) -> Record {
        self.world().record()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A program that runs; killed with the test.
pub struct Running(Option<Child>);

impl Running {
    pub fn of(child: Child) -> Running {
        Running(Some(child))
    }

    pub fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// Waits for its end; it must succeed. Returns what it printed.
    pub fn finish(mut self) -> String {
        let child = self.0.take().expect("finished once");
        let output = child.wait_with_output().expect("a child can be waited for");
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn kill(mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Leaves a table where `ci/test` prints it, and prints it.
pub fn report(name: &str, text: &str) {
    let dir = target_dir().join("report");
    std::fs::create_dir_all(&dir).expect("the target directory is writable");
    std::fs::write(dir.join(format!("{name}.txt")), text).expect("the target directory is writable");
    println!("{text}");
}
