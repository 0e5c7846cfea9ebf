//! A machine with a prompt, and what is asked there.

#![allow(dead_code)] // each test uses its part

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::container::{Regions, Session, left_behind, look, program};
use crate::support::{Machine, preload};

/// Longer than this without an answer is a hang.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// An ordinary user.
pub const USER: u32 = 65534;

/// The built program. This test's own binary is in `deps/` beside it.
pub fn ration() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    let program = here.parent().and_then(Path::parent).expect("a test is in deps/").join("ration");
    assert!(program.exists(), "{} is not there: run ci/build first", program.display());
    program
}

/// A machine with a prompt.
pub struct Desk {
    pub machine: Machine,
    pub regions: Regions,
    /// Where `ration run` notes what runs.
    pub notes: PathBuf,
    /// Copies of what is needed, for a user who may not look into the target directory.
    pub copies: Option<PathBuf>,
}

impl Desk {
    pub fn new() -> Desk {
        let (machine, regions) = (Machine::new(), Regions::new());
        let notes = regions.0.with_extension("notes");
        fs::create_dir_all(&notes).expect("shared memory is writable");
        fs::set_permissions(&notes, Permissions::from_mode(0o700)).expect("it is ours");
        Desk { machine, regions, notes, copies: None }
    }

    /// A command of `ration`'s.
    pub fn ration(&self, verb: &str, arguments: &[&str]) -> Command {
        // Whatever is asked: it answers.
        let mut command = self.machine.command("timeout");
        command.arg("30").arg(ration()).arg(verb);
        if verb == "run" {
            command = self.machine.command(ration());
            command.arg(verb).arg("--library").arg(preload::shim());
        }
        command.args(arguments).env("RATION_DIR", &self.regions.0).env("XDG_RUNTIME_DIR", &self.notes);
        for name in ["RATION_MEMORY", "RATION_COMPUTE", "RATION_NAME", "RATION_OWN_DIR", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command
    }

    /// What it answers, and how it ends.
    pub fn answer(&self, verb: &str, arguments: &[&str]) -> Answer {
        Answer::of(&self.ration(verb, arguments).output().expect("it runs"))
    }

    /// `hold` in a slice.
    pub fn hold(&self, arguments: &[&str]) -> Session {
        let mut command = self.ration("run", arguments);
        let mut session = Session::start(command.arg("--").arg(program("hold")), PATIENCE);
        assert_eq!(session.line(), Ok(Some("ready".into())), "{}", session.said());
        session
    }

    /// What `ration status --json` says.
    pub fn status(&self) -> Value {
        let answer = self.answer("status", &["--json"]);
        assert_eq!(answer.status, 0, "{answer:?}");
        serde_json::from_str(&answer.out).expect("it is JSON")
    }

    /// What the driver's record says is held.
    pub fn held(&self) -> u64 {
        look(&self.machine.world()).held
    }

    /// Nothing is left of what ran here.
    pub fn is_clean(&self) {
        assert_eq!(left_behind(&self.machine.world()), Ok(()));
        for dir in [&self.regions.0, &self.notes] {
            let left: Vec<_> = fs::read_dir(dir).expect("it is there").flatten().map(|it| it.path()).collect();
            assert!(left.is_empty(), "left behind: {left:?}");
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.notes);
        if let Some(copies) = &self.copies {
            let _ = fs::remove_dir_all(copies);
        }
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Answer {
    pub fn of(output: &Output) -> Answer {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Answer { status: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

pub fn ask(session: &mut Session, words: &str) -> String {
    session.tell(words);
    session.line().expect("it answers").unwrap_or_else(|| panic!("it ended: {}", session.said()))
}

pub fn take(session: &mut Session, bytes: u64) -> String {
    ask(session, &format!("take {bytes}"))
}

/// Lets it end, and says how that was, and what it said on standard error.
pub fn end(mut session: Session) -> (Option<i32>, String) {
    session.close();
    while let Ok(Some(_)) = session.line() {}
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = session.child.try_wait().expect("it can be waited for") {
            return (status.code(), session.said());
        }
        assert!(Instant::now() < deadline, "it does not end: {}", session.said());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The containers in a report.
pub fn containers(report: &Value) -> Vec<&Value> {
    let gpus = report["gpus"].as_array().expect("a list");
    gpus.iter().flat_map(|gpu| gpu["containers"].as_array().expect("a list")).collect()
}

pub fn names(report: &Value) -> Vec<&str> {
    containers(report).iter().map(|it| it["name"].as_str().expect("a name")).collect()
}
