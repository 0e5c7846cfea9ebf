//! Programs that leave the driver's calls without returning from them: threads that are cancelled or end in the middle of one, and
//! handlers of signals that jump out. In a slice, beside a neighbour, by either switch; what they hold is judged by the
//! simulated GPU's own record.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[path = "caps/container.rs"]
mod container;
#[path = "channels/steered.rs"]
mod steered;
mod support;

use container::{GIB, MIB, Session, inside, look, with_module};
use steered::{PATIENCE, Steered};
use support::compile;
use support::preload::{Bench, Trial, parse, totals};

const CAP: u64 = 2 * GIB;
/// So far may what is told be from what is held: a block.
const NEAR: u64 = 2 * MIB;
/// And so much more may be told where one thread resets a context in which others are being given memory: some of what they would have
/// had stays counted. Never less.
const OF_RESETS: u64 = 256 * MIB;

/// Whether what is told is what is held.
fn is_told(told: u64, held: u64, args: &[&str]) -> bool {
    let more = if args == ["resets"] { OF_RESETS } else { NEAR };
    (held.saturating_sub(NEAR)..=held + more).contains(&told)
}

/// A program of a container with a cap and a limit, and another container that wants the GPU too.
struct Both {
    steered: Steered,
    session: Session,
    neighbour: Session,
}

impl Both {
    fn start(bench: &Bench, program: &str, switch: &str, limit: &str, args: &[&str]) -> Both {
        let steered = Steered::new(bench.program(program, &["-lcuda"]));
        let other = compile("compute_work");
        let request = [("RATION_COMPUTE_REQUEST", "50%".to_owned()), ("RATION_MEMORY", "4GiB".to_owned())];
        let mut command = with_module(inside(&steered.machine, &steered.regions, "tests/neighbour", &request, &other));
        let mut neighbour = Session::start(command.args(["queue", "500", "120"]), PATIENCE);
        neighbour.until("ready").expect("it starts");
        let settings = [("RATION_MEMORY", "2GiB"), ("RATION_COMPUTE_LIMIT", limit), ("RATION_SWITCH", switch)];
        let mut command = steered.command("tests/left", &settings, args);
        let session = Session::start(command.env("RATION_SIM_LEAVABLE", "1"), PATIENCE);
        Both { steered, session, neighbour }
    }

    /// What it says it was told after this word, and what it holds and has held at most.
    fn says(&mut self, word: &str) -> Result<(u64, u64, u64), String> {
        let line = self.session.line()?;
        let told = line.as_deref().and_then(|line| line.strip_prefix(word)?.trim().parse().ok());
        let Some(told) = told else { return Err(format!("no `{word}`: {line:?}; {}", self.session.said())) };
        let pid = u64::from(self.session.child.id());
        let record = self.steered.world.record();
        let of = record.processes.iter().filter(|it| it.pid == pid && !it.observer).find_map(|it| it.gpus.get(&0));
        let of = of.ok_or("it is not in the record")?;
        Ok((told, of.figure_bytes, of.peak_bytes))
    }
}

/// The cap holds, all of it can be had, and what is told is what is held: when it is full, and when that was given back.
fn survives(bench: &Bench, program: &str, switch: &str, limit: &str, args: &[&str]) -> Result<(), String> {
    let mut both = Both::start(bench, program, switch, limit, args);
    let (told, held, peak) = both.says("full")?;
    if peak > CAP || told * 100 < CAP * 98 || !is_told(told, held, args) {
        return Err(format!("full: holds {held}, at most {peak}, and is told {told}"));
    }
    both.session.tell("on");
    let (told, held, peak) = both.says("empty")?;
    if peak > CAP || !is_told(told, held, args) {
        return Err(format!("empty: holds {held}, at most {peak}, and is told {told}"));
    }
    both.session.tell("on");
    let (neighbour, pid) = (both.neighbour.child.id(), both.session.child.id());
    both.session.finish()?;
    // The neighbour is not kept waiting by whom nobody sees any more.
    let record = both.steered.world.record();
    let alive = |pid: u32| record.processes.iter().any(|it| it.pid == u64::from(pid) && it.alive && !it.observer);
    if !alive(neighbour) || look(&both.steered.world).processes == 0 {
        return Err(format!("after {pid}, its neighbour {neighbour} is gone"));
    }
    Ok(())
}

/// By both switches; names what fails.
fn all_survive(limit: &str, cases: &[&[&str]]) {
    all_survive_by(&["channels", "launches"], "left", limit, cases);
}

fn all_survive_by(switches: &[&str], program: &str, limit: &str, cases: &[&[&str]]) {
    let bench = Bench::new();
    let mut wrong = String::new();
    for switch in switches {
        for args in cases {
            if let Err(how) = survives(&bench, program, switch, limit, args) {
                let _ = writeln!(wrong, "{switch}, {args:?}: {how}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn threads_that_are_cancelled_in_a_call_leave_nothing_behind() {
    all_survive("50%", &[&["cancel", "deferred"], &["cancel", "anywhere"]]);
}

/// Cancellation is put off from the first one on: the call that it comes into began before that was known.
#[test]
fn the_first_thread_of_a_process_to_be_cancelled_leaves_nothing_behind() {
    all_survive("50%", &[&["first", "deferred"], &["first", "anywhere"]]);
}

#[test]
fn who_jumps_out_of_a_wait_keeps_its_limits() {
    all_survive("50%", &[&["jump", "here"], &["jump", "deep"], &["jump", "aside"], &["jump", "handler"], &["context"]]);
}

#[test]
fn who_jumps_out_again_and_again_keeps_its_limits() {
    all_survive("50%", &[&["often"]]);
}

#[test]
fn who_jumps_out_of_a_launch_at_its_limit_keeps_its_limits() {
    // By channels, what was queued before it is at its limit would be seconds of work.
    all_survive_by(&["launches"], "left", "10%", &[&["held"]]);
}

#[test]
fn handlers_inside_of_a_call_stand_aside() {
    all_survive("50%", &[&["inside", "here"], &["inside", "aside"]]);
    // On either stack they are known for what they are: the calls inside are handed on.
    let bench = Bench::new();
    let program = bench.program("left", &["-lcuda"]);
    for stack in ["here", "aside"] {
        let regions = container::Regions::new();
        let trial = Trial::new(&bench, &program).args(["inside", stack]).env("RATION_DIR", &regions.0);
        let run = trial.env("RATION_MEMORY", "2GiB").shimmed();
        // It reads a line, and there is none.
        assert_eq!(run.status.code(), Some(3), "{}", run.said());
        assert!(run.trace.contains("# bypassed, reentered: 2"), "{stack}: {}", run.trace);
    }
}

#[test]
fn primary_contexts_that_come_and_go_are_charged_while_they_are_there() {
    all_survive_by(&["channels"], "primary", "50%", &[&["frees"], &["leaves"], &["resets"]]);
}

/// A driver in C, as NVIDIA's is: through the simulated one's frames nobody can end a thread.
fn blocked(bench: &Bench) -> PathBuf {
    bench.compile("blocked", "libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"])
}

fn pieces(said: &Path) -> u64 {
    let text = std::fs::read_to_string(said).unwrap_or_default();
    totals(&parse(&text)).get("cuMemAlloc_v2").copied().unwrap_or(0)
}

#[test]
fn threads_that_end_in_a_handler_inside_of_a_call_leave_nothing_behind() {
    let bench = Bench::new();
    blocked(&bench);
    let program = bench.program("left", &["-lcuda", "-Wl,-z,lazy"]);
    let said = bench.fresh("tally");
    let regions = container::Regions::new();
    let trial = Trial::new(&bench, &program).args(["end"]).env("LD_LIBRARY_PATH", &bench.dir).limit(20);
    let trial = trial.env("HOSTILE_TALLY", &said).env("RATION_DIR", &regions.0).env("RATION_COMPUTE_LIMIT", "50%");
    let run = trial.env("RATION_MEMORY", "2GiB").shimmed();
    assert_eq!(run.status.code(), Some(3), "{}", run.said());
    let held = pieces(&said) * 16 * MIB;
    assert!((GIB..=CAP).contains(&held), "{held} bytes\n{}", run.said());
}
