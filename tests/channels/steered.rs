//! A machine whose containers are steered by their channels, and what the simulated GPU's own record says of each.

#![allow(dead_code)] // each test uses its part

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use sim_world::World;
use sim_world::record::Use;

use crate::container::{Regions, Session, inside, with_module};
use crate::support::{Machine, sim_dir};

pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn milliseconds(length: u64) {
    std::thread::sleep(Duration::from_millis(length));
}

/// A machine with the stand-in for the kernel module.
pub struct Steered {
    pub machine: Machine,
    pub regions: Regions,
    pub world: World,
    pub program: PathBuf,
}

/// What the record says of some processes at some time.
pub struct Moment {
    clock: u64,
    uses: Vec<Use>,
}

impl Steered {
    pub fn new(program: PathBuf) -> Steered {
        Steered::on(Machine::new(), program)
    }

    pub fn on(machine: Machine, program: PathBuf) -> Steered {
        let regions = Regions::new();
        let world = machine.world();
        Steered { machine, regions, world, program }
    }

    /// A command in a container, with the module behind the library.
    pub fn command(&self, name: &str, settings: &[(&str, &str)], args: &[&str]) -> Command {
        with_module(self.without_module(name, settings, args))
    }

    /// The same with launches as what is switched.
    pub fn by_launches(&self, name: &str, settings: &[(&str, &str)], args: &[&str]) -> Session {
        ready(self.command(name, settings, args).env("RATION_SWITCH", "launches"))
    }

    /// The same where there is no such module.
    pub fn without_module(&self, name: &str, settings: &[(&str, &str)], args: &[&str]) -> Command {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let mut command = inside(&self.machine, &self.regions, name, &settings, &self.program);
        command.args(args);
        command
    }

    /// The program without the library, on the same machine.
    pub fn bare(&self, args: &[&str]) -> Session {
        let mut command = self.machine.command(&self.program);
        command.env("LD_PRELOAD", sim_dir().join("libsim-kernel.so")).args(args);
        ready(&mut command)
    }

    /// Starts a program in a container; it has made its context.
    pub fn start(&self, name: &str, settings: &[(&str, &str)], args: &[&str]) -> Session {
        ready(&mut self.command(name, settings, args))
    }

    pub fn moment(&self, sessions: &[&Session]) -> Moment {
        let record = self.world.record();
        let of = |session: &&Session| {
            let pid = u64::from(session.child.id());
            let own = record.processes.iter().filter(|it| it.pid == pid && !it.observer);
            own.filter_map(|it| it.gpus.get(&0)).next_back().cloned().unwrap_or_default()
        };
        Moment { clock: record.clock_ns, uses: sessions.iter().map(of).collect() }
    }

    /// The work that the GPU has done for a program, in nanoseconds.
    pub fn worked(&self, session: &Session) -> u64 {
        self.moment(&[session]).uses[0].work_ns
    }

    /// Whether any channels of a program are off the GPU.
    pub fn is_off(&self, session: &Session) -> bool {
        self.moment(&[session]).uses[0].groups.iter().any(|group| !group.on)
    }

    /// What each had of the GPU's time, in per cent, over so many milliseconds.
    pub fn shares(&self, sessions: &[&Session], window: u64) -> Vec<f64> {
        self.over(sessions, window).shares
    }

    /// The same while something goes on.
    pub fn shares_while(&self, sessions: &[&Session], goes_on: impl FnOnce()) -> Vec<f64> {
        self.did(sessions, goes_on).shares
    }

    /// What each did over so many milliseconds.
    pub fn over(&self, sessions: &[&Session], window: u64) -> Did {
        self.did(sessions, || milliseconds(window))
    }

    /// What half of all requests of a `latency` container take at most, in microseconds, and what its neighbour has of the GPU, if
    /// there is one, after so many milliseconds. `start` starts a program in a container.
    pub fn requests(
        &self,
        beside: bool,
        warm: u64,
        start: impl Fn(&Steered, &str, &[(&str, &str)], &[&str]) -> Session,
    ) -> (f64, f64) {
        let neighbour = [("RATION_COMPUTE_REQUEST", "75%")];
        let neighbour = beside.then(|| start(self, "tests/fills", &neighbour, &["queue", "500", "60"]));
        let settings = [("RATION_COMPUTE_REQUEST", "25%"), ("RATION_PRIORITY", "latency")];
        let mut asking = start(self, "tests/asks", &settings, &["request", "130", "1.9"]);
        milliseconds(warm);
        let had = neighbour.as_ref().map_or(0.0, |neighbour| self.shares(&[neighbour], 1000)[0]);
        let mut took: Vec<f64> = Vec::new();
        while let Ok(Some(line)) = asking.line() {
            took.extend(line.strip_prefix("took ").and_then(|text| text.parse::<f64>().ok()));
        }
        let mut settled = took.split_off(took.len().min(15));
        settled.sort_by(f64::total_cmp);
        (settled.get(settled.len() / 2).copied().unwrap_or(f64::INFINITY), had)
    }

    fn did(&self, sessions: &[&Session], goes_on: impl FnOnce()) -> Did {
        let before = self.moment(sessions);
        goes_on();
        let after = self.moment(sessions);
        let time = (after.clock - before.clock) as f64;
        let all = || after.uses.iter().zip(&before.uses);
        Did {
            shares: all().map(|(now, then)| 100.0 * (now.work_ns - then.work_ns) as f64 / time).collect(),
            kernels: all().map(|(now, then)| (now.kernels - then.kernels) as f64 * 1e9 / time).collect(),
            switches: all().map(|(now, then)| now.switches - then.switches).collect(),
        }
    }
}

/// What programs did over a time.
#[derive(Debug, Clone)]
pub struct Did {
    /// In which part of it their kernels got on, in per cent.
    pub shares: Vec<f64>,
    /// How many kernels were done per second.
    pub kernels: Vec<f64>,
    /// How often channels went off or on.
    pub switches: Vec<u64>,
}

pub fn ready(command: &mut Command) -> Session {
    let mut session = Session::start(command, PATIENCE);
    session.until("ready").expect("it starts");
    session
}
