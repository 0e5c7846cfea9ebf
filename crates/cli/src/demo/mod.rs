//! `ration demo`: programs share a simulated GPU before your eyes.
//!
//! The demo starts each program of a [`scenario`] as a process of its own ([`worker`]), first alone, then with the
//! others ([`plan`], [`play`]), reads the simulated GPU's own record meanwhile ([`stage`]), shows it ([`view`], or
//! [`plain`] lines where there is no terminal) and says in the end what it means ([`report`]).

mod crew;
mod driver;
mod figures;
mod plain;
mod plan;
mod play;
mod report;
mod scenario;
mod scene;
mod stage;
mod text;
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

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use figures::Results;
use play::Play;
use scenario::{BadScenario, Scenario};
use scene::Scene;

/// Shows three programs sharing the simulated GPU by plain time slicing.
///
/// Each runs alone for a while, then all run together. On a terminal there is a live view (q ends it), otherwise a
/// line every half second; in the end a table says what each program got, compared with what it gets alone.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// How long all of them run together; alone, each runs a third of that
    #[arg(long, value_name = "N", default_value = "6", value_parser = seconds)]
    seconds: Duration,
    /// A short demo with rough figures, for tests
    #[arg(long, conflicts_with = "seconds")]
    fast: bool,
    /// No live view, even on a terminal
    #[arg(long)]
    plain: bool,
    /// Writes the result to a file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Other programs than the built-in ones, one a line: NAME kernel=500us memory=8GiB, then queue=64, wait, or
    /// requests=20 every=20ms
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
}

const FAST: Duration = Duration::from_millis(1500);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s: &f64| (0.3..=3600.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0.3 to 3600".into())
}

/// Who looks on.
trait Audience {
    /// Called ten times a second. Whether they want to see more.
    fn watch(&mut self, scene: &Scene) -> io::Result<bool>;
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
            Trouble::Died { name, how, words } if words.is_empty() => write!(f, "{name} {how}, without a word"),
            Trouble::Died { name, how, words } => write!(f, "{name} {how}; its last words:\n{words}"),
            Trouble::Stuck { name, what, patience } => write!(f, "{name} did not {what} within {patience:?}"),
            Trouble::Nonsense { name, line } => write!(f, "{name} says what only it understands: {line:?}"),
            Trouble::Result { path, error } => write!(f, "{}: {error}", path.display()),
            Trouble::Output(error) => write!(f, "nothing can be shown: {error}"),
            Trouble::Interrupted => write!(f, "ended before its end"),
        }
    }
}

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
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
    let scenario = arguments.scenario.as_deref().map_or_else(|| Ok(Scenario::built_in()), read)?;
    let together = if arguments.fast { FAST } else { arguments.seconds };
    let leaving = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&leaving)).map_err(Trouble::Output)?;
    }
    let mut audience: Box<dyn Audience> = match !arguments.plain && on_a_terminal() {
        true => Box::new(view::View::open().map_err(Trouble::Output)?),
        false => Box::new(plain::Lines::new(io::stdout())),
    };
    let results = Play::new(&scenario, together, audience.as_mut(), &leaving)?.run();
    drop(audience); // the terminal is itself again before anything is said
    let results = results?;
    if let Some(path) = &arguments.json {
        write_json(&results, path).map_err(|error| Trouble::Result { path: path.clone(), error })?;
    }
    let said = report::report(&results, &scenario);
    let mut out = io::stdout().lock();
    write!(out, "\n{said}").and_then(|()| out.flush()).map_err(Trouble::Output)
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

fn write_json(results: &Results, path: &Path) -> io::Result<()> {
    std::fs::write(path, serde_json::to_string_pretty(results)? + "\n")
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
    fn trouble_says_what_to_do() {
        let trouble = Trouble::NoGpu { words: "libcuda.so.1 cannot be loaded: no such file".into() };
        assert!(trouble.to_string().contains("Run ci/demo"));
        let died =
            |words: &str| Trouble::Died { name: "trainer".into(), how: "hung itself".into(), words: words.into() };
        assert_eq!(died("").to_string(), "trainer hung itself, without a word");
        assert_eq!(died("ouch").to_string(), "trainer hung itself; its last words:\nouch");
    }
}
