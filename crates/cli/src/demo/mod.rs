//! `ration demo`: programs share a simulated GPU before your eyes, in acts.
//!
//! Two are about time. They start each program of a [`scenario`] as a process of its own ([`worker`]), first alone, then
//! with the others ([`plan`], [`play`]), read the simulated GPU's own record meanwhile ([`stage`]), show it ([`view`], or
//! [`plain`] lines where there is no terminal) and say in the end what it means: how things are without us ([`report`]),
//! or without us and with us ([`compute`]), as a picture too ([`plot`]). The third is about [`memory`], and
//! goes about it in the same way.

mod compute;
mod crew;
mod driver;
mod figures;
mod library;
mod load;
mod memory;
mod place;
mod plain;
mod plan;
mod play;
mod plot;
mod report;
mod scenario;
mod scene;
mod stage;
mod view;
mod wire;
pub mod worker;

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use compute::ComputeResults;
use figures::{Played, Results};
pub use memory::container;
use memory::{MemoryResults, Times};
use place::Place;
use play::Play;
use scenario::{BadScenario, Scenario};
use scene::Scene;

use crate::library::{Library, Missing};
use crate::text;

/// Shows containers sharing the simulated GPU, its time and its memory, without ration and with it.
///
/// Compute: three containers that ask for unequal shares of the GPU's time, one of them in a hurry. Each runs alone for
/// a while, then all run by plain time slicing, then all with libration.so; a table says what each asked for and what it
/// got. If that is far from what ration promises, the demo fails. Memory: a program that takes all it can get beside one
/// that needs a little, first without limits, then with libration.so holding each to its own; a table says what each
/// believes and what the GPU says. Sharing: plain time slicing only, and what it costs. On a terminal there is a live
/// view (q ends it), otherwise a few lines a second; tables and words come at the end.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// What is shown
    #[arg(long, value_enum, default_value_t = Act::All)]
    act: Act,
    /// Compute, sharing: how long all of them run together (6 unless given); alone, each runs a third of that
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<Duration>,
    /// A short demo with rough figures, for tests
    #[arg(long, conflicts_with = "seconds")]
    fast: bool,
    /// No live view, even on a terminal
    #[arg(long)]
    plain: bool,
    /// Writes the results to a file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Compute, sharing: draws shares against time, while all of them run together, into an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Compute, sharing: other programs than the built-in ones, one a line: NAME kernel=500us memory=8GiB, then queue=64,
    /// wait, or requests=20 every=20ms, then for compute request=50% and priority=latency or batch
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Compute, memory: the libration.so to put into containers, instead of the one beside this program
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Act {
    /// How programs share the GPU's time today
    Sharing,
    /// What shares of the GPU's time do
    Compute,
    /// What a memory limit does
    Memory,
    /// Compute, then memory
    All,
}

impl Arguments {
    /// Why these arguments do not go together, if they do not.
    fn contradiction(&self) -> Option<String> {
        let of_no_use = match self.act {
            Act::Sharing => vec![("--library", self.library.is_some())],
            Act::Memory => vec![
                ("--seconds", self.seconds.is_some()),
                ("--scenario", self.scenario.is_some()),
                ("--plot", self.plot.is_some()),
            ],
            Act::Compute | Act::All => return None,
        };
        let act = self.act.to_possible_value()?;
        let (argument, _) = of_no_use.into_iter().find(|(_, given)| *given)?;
        Some(format!("{argument} says nothing about {}: leave one of them out, or show all", act.get_name()))
    }
}

const TOGETHER: Duration = Duration::from_secs(6);
const FAST: Duration = Duration::from_millis(1500);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s: &f64| (0.3..=3600.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0.3 to 3600".into())
}

/// Who looks on.
trait Audience {
    /// Called ten times a second. Whether they want to see more.
    fn watch(&mut self, scene: &Scene) -> io::Result<bool>;

    /// The same for the act about memory.
    fn watch_memory(&mut self, scene: &memory::Scene) -> io::Result<bool>;
}

/// What came out of the acts that were shown.
#[derive(Default, Serialize)]
struct Outcomes {
    #[serde(skip_serializing_if = "Option::is_none")]
    sharing: Option<Results>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compute: Option<ComputeResults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryResults>,
    /// What there is to plot.
    #[serde(skip)]
    played: Option<Played>,
}

/// What keeps a demo from its end.
#[derive(Debug)]
enum Trouble {
    /// A file that cannot be read.
    Unreadable { path: PathBuf, error: io::Error },
    /// A file that is no scenario.
    Scenario { path: PathBuf, error: BadScenario },
    /// No simulated GPU could be made.
    World(io::Error),
    /// A worker could not be started.
    Start { name: String, error: io::Error },
    /// A worker found no GPU.
    NoGpu { words: String },
    /// A worker found a GPU, and it is not the simulated one.
    NotSimulated { name: String },
    /// The library that holds programs to their limits is not where it should be.
    NoLibrary { path: PathBuf, error: io::Error },
    /// A GPU that is too small for what is to be shown.
    SmallGpu { bytes: u64, least: u64 },
    /// A container is not held to its limit.
    NotHeld { name: String, limit: u64, believes: u64, words: String },
    /// The library is not in a container's process.
    NotLoaded { name: String, words: String },
    /// The figures are far from what ration promises.
    NotKept { promises: Vec<String> },
    /// A worker ended before its time.
    Died { name: String, how: String, words: String },
    /// A worker does not answer.
    Stuck { name: String, what: &'static str, patience: Duration },
    /// A worker says what we do not understand.
    Nonsense { name: String, line: String },
    /// The result could not be written.
    Result { path: PathBuf, error: io::Error },
    /// Nothing can be shown.
    Output(io::Error),
    /// Somebody has seen enough.
    Interrupted,
}

impl From<Missing> for Trouble {
    fn from(Missing { path, error }: Missing) -> Trouble {
        Trouble::NoLibrary { path, error }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const RUN: &str = "Run ci/demo, which builds the simulated driver and puts it on the library path.";
        match self {
            Trouble::Unreadable { path, error } => write!(f, "{}: {error}", path.display()),
            Trouble::Scenario { path, error } => write!(f, "{}, {error}", path.display()),
            Trouble::World(error) => write!(f, "no simulated GPU could be made: {error}"),
            Trouble::Start { name, error } => write!(f, "{name} could not be started: {error}"),
            Trouble::NoGpu { words } => write!(f, "there is no simulated GPU to run on.\n{words}\n{RUN}"),
            Trouble::NotSimulated { name } => {
                write!(f, "{name} runs, but not on the simulated GPU: it loaded another libcuda.so.1.\n{RUN}")
            }
            Trouble::NoLibrary { path, error } => write!(
                f,
                "{}: {error}. The demo shows what this library does.\nRun ci/demo, which builds it beside this program; \
                 name another with --library FILE; or show how things are without it, with --act sharing.",
                path.display()
            ),
            Trouble::SmallGpu { bytes, least } => write!(
                f,
                "the simulated GPU has {}, and the act about memory needs {}.\nUnset RATION_SIM_MEMORY, or leave the \
                 act out with --act compute.",
                text::memory(*bytes),
                text::memory(*least)
            ),
            Trouble::NotHeld { name, limit, believes, words } => {
                write!(
                    f,
                    "{name} should be held to {}, and believes that its GPU has {}: libration.so was not loaded, or \
                     something (/etc/ration/quota?) told it otherwise.",
                    text::memory(*limit),
                    text::memory(*believes)
                )?;
                if words.is_empty() { Ok(()) } else { write!(f, "\nIts last words:\n{words}") }
            }
            Trouble::NotLoaded { name, words } => {
                write!(f, "libration.so was not loaded into {name}, and so nothing can be shown of it.")?;
                if words.is_empty() { Ok(()) } else { write!(f, "\nIts last words:\n{words}") }
            }
            Trouble::NotKept { promises } => {
                write!(f, "this is far from what was to be shown:\n{}", promises.join("\n"))
            }
            Trouble::Died { name, how, words } if words.is_empty() => write!(f, "{name} {how}, without a word"),
            Trouble::Died { name, how, words } => write!(f, "{name} {how}; its last words:\n{words}"),
            Trouble::Stuck { name, what, patience } => write!(f, "{name} did not {what} within {patience:?}"),
            Trouble::Nonsense { name, line } => write!(f, "{name} says what only it understands: {line:?}"),
            Trouble::Result { path, error } => write!(
                f,
                "{}: {error}. Results and plots go into a file in a directory that is there and that you may write to.",
                path.display()
            ),
            Trouble::Output(error) => write!(f, "nothing can be shown: {error}"),
            Trouble::Interrupted => write!(f, "ended before its end"),
        }
    }
}

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    if let Some(contradiction) = arguments.contradiction() {
        eprintln!("ration demo: {contradiction}");
        return ExitCode::from(2);
    }
    match demo(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Trouble::Interrupted) => ExitCode::from(130),
        // Whoever reads us has seen enough, too.
        Err(Trouble::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(141),
        Err(trouble) => {
            let _ = writeln!(io::stderr(), "ration demo: {trouble}"); // unlike eprintln, does not mind a closed terminal
            ExitCode::FAILURE
        }
    }
}

fn demo(arguments: &Arguments) -> Result<(), Trouble> {
    // What an act lacks stops the demo before anything is shown.
    let scenario = match (arguments.act, &arguments.scenario) {
        (Act::Memory, _) => None,
        (_, Some(path)) => Some(read(path)?),
        (Act::Sharing, None) => Some(Scenario::built_in()),
        (Act::Compute | Act::All, None) => Some(Scenario::containers()),
    };
    let library = match arguments.act {
        Act::Sharing => None,
        Act::Compute | Act::Memory | Act::All => Some(Library::find(arguments.library.as_deref())?),
    };
    let place = |path: &Option<PathBuf>| path.as_deref().map(Place::try_out).transpose();
    let (mut json, mut plot) = (place(&arguments.json)?, place(&arguments.plot)?);
    let leaving = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&leaving)).map_err(Trouble::Output)?;
    }
    let mut audience: Box<dyn Audience> = match !arguments.plain && on_a_terminal() {
        true => Box::new(view::View::open().map_err(Trouble::Output)?),
        false => Box::new(plain::Lines::new(io::stdout())),
    };
    let mut outcomes = Outcomes::default();
    let played = acts(arguments, scenario.as_ref(), library.as_ref(), audience.as_mut(), &leaving, &mut outcomes);
    drop(audience); // the terminal is itself again before anything is said
    if let (Ok(()), Some(place)) = (&played, &mut json) {
        place
            .write(&(serde_json::to_string_pretty(&outcomes).map_err(|error| Trouble::Output(error.into()))? + "\n"))?;
    }
    if let (Some(place), Some(scenario), Some(played)) = (&mut plot, &scenario, &outcomes.played) {
        place.write(&plot::svg(scenario, played))?;
    }
    // Of an act that was seen to its end, also if the next was not.
    let sharing = outcomes.sharing.iter().zip(&scenario).map(|(results, scenario)| report::report(results, scenario));
    let mut out = io::stdout().lock();
    let compute = outcomes.compute.iter().map(compute::report);
    for said in sharing.chain(compute).chain(outcomes.memory.iter().map(memory::report)) {
        write!(out, "\n{said}").and_then(|()| out.flush()).map_err(Trouble::Output)?;
    }
    if let Some(path) = plot.as_ref().filter(|_| outcomes.played.is_some()).map(Place::path) {
        writeln!(out, "\nShares against time are drawn in {}.", path.display()).map_err(Trouble::Output)?;
    }
    let promises: Vec<String> = outcomes.compute.iter().flat_map(ComputeResults::broken).collect();
    played.and(if promises.is_empty() { Ok(()) } else { Err(Trouble::NotKept { promises }) })
}

/// The acts for which there is what they need.
fn acts(
    arguments: &Arguments,
    scenario: Option<&Scenario>,
    library: Option<&Library>,
    audience: &mut dyn Audience,
    leaving: &AtomicBool,
    outcomes: &mut Outcomes,
) -> Result<(), Trouble> {
    let together = if arguments.fast { FAST } else { arguments.seconds.unwrap_or(TOGETHER) };
    match (scenario, library) {
        (Some(scenario), None) => {
            let plan = plan::sharing(scenario, together);
            let played = Play::new(scenario, plan, None, audience, leaving)?.run()?;
            outcomes.played = Some(played.clone());
            outcomes.sharing = Results::of(played, scenario);
        }
        (Some(scenario), library) => {
            let plan = plan::compute(scenario, together);
            let played = Play::new(scenario, plan, library, audience, leaving)?.run()?;
            outcomes.played = Some(played.clone());
            outcomes.compute = ComputeResults::of(played, scenario);
        }
        (None, _) => {}
    }
    if let Some(library) = library.filter(|_| arguments.act != Act::Compute) {
        let times = if arguments.fast { Times::FAST } else { Times::FULL };
        outcomes.memory = Some(memory::Play::new(library, times, audience, leaving)?.run()?);
    }
    Ok(())
}

/// Whether there is somebody to see a live view and to press keys, on something that can show it.
fn on_a_terminal() -> bool {
    let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    !dumb && io::stdout().is_terminal() && io::stdin().is_terminal()
}

fn read(path: &Path) -> Result<Scenario, Trouble> {
    let text = std::fs::read_to_string(path).map_err(|error| Trouble::Unreadable { path: path.to_owned(), error })?;
    text.parse().map_err(|error| Trouble::Scenario { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_bounds() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["", "0", "-1", "nan", "inf", "1e9", "3s"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn arguments_that_say_nothing_about_the_act_are_named() {
        let arguments = |act| Arguments {
            act,
            seconds: Some(TOGETHER),
            fast: false,
            plain: false,
            json: None,
            plot: Some("shares.svg".into()),
            scenario: None,
            library: Some("libration.so".into()),
        };
        let contradiction = |act| arguments(act).contradiction();
        assert_eq!((contradiction(Act::All), contradiction(Act::Compute)), (None, None));
        assert!(
            contradiction(Act::Sharing).is_some_and(|said| said.starts_with("--library says nothing about sharing"))
        );
        assert!(contradiction(Act::Memory).is_some_and(|said| said.starts_with("--seconds says nothing about memory")));
        let plot = Arguments { seconds: None, ..arguments(Act::Memory) }.contradiction();
        assert!(plot.is_some_and(|said| said.starts_with("--plot says nothing about memory")));
    }

    #[test]
    fn trouble_says_what_to_do() {
        let trouble = Trouble::NoGpu { words: "libcuda.so.1 cannot be loaded: no such file".into() };
        assert!(trouble.to_string().contains("Run ci/demo"));
        let died =
            |words: &str| Trouble::Died { name: "trainer".into(), how: "hung itself".into(), words: words.into() };
        assert_eq!(died("").to_string(), "trainer hung itself, without a word");
        assert_eq!(died("ouch").to_string(), "trainer hung itself; its last words:\nouch");
        let small = Trouble::SmallGpu { bytes: 8 << 30, least: 24 << 30 }.to_string();
        assert!(small.contains("has 8.0 GiB") && small.contains("--act compute"), "{small}");
        let broken = Trouble::NotKept { promises: vec!["trainer had 7%.".into()] }.to_string();
        assert!(broken.ends_with(":\ntrainer had 7%."), "{broken}");
        let absent = Trouble::NotLoaded { name: "trainer".into(), words: "cannot be preloaded".into() }.to_string();
        assert!(absent.contains("into trainer") && absent.ends_with("cannot be preloaded"), "{absent}");
        let words = "object 'libration.so' cannot be preloaded".to_owned();
        let free = Trouble::NotHeld { name: "greedy".into(), limit: 8 << 30, believes: 140 << 30, words }.to_string();
        assert!(free.contains("held to 8.0 GiB") && free.ends_with("cannot be preloaded"), "{free}");
    }
}
