//! `ration doctor`: whether programs can be held to limits here, and what to do if not.
//!
//! What may crash or hang, as a driver may, is asked by processes of their own ([`probe`], started by [`child`], which say what they found
//! in [`said`]). From their answers and from what lies around come checks ([`check`]): about the driver and its GPUs ([`driver`]), the place
//! ([`container`], [`surroundings`]), what is asked for ([`asked`]), where containers meet ([`region`]), and a slice that is tried
//! ([`slice`], judged by [`verdict`]). People read them as they come ([`show`]), programs at the end.

mod asked;
mod check;
mod child;
mod container;
mod cuda;
mod driver;
pub mod probe;
mod region;
mod said;
mod show;
mod slice;
mod surroundings;
mod verdict;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::change;
use crate::library::{Library, Missing};

use asked::Asked;
use check::{Check, Diagnosis, Status};
use child::{Answer, Child, How, Interrupt, Interrupted};
use container::{Kind, Root};
use driver::Driver;
use said::Said;
use show::Show;
use slice::{Place, Seen, Trial, Unseen};

/// Says whether programs can be held to limits here, and what to do if not.
///
/// Each line is ok, a warning (programs are held, less well or not as somebody may think) or a problem (they are not), with what to do
/// about it. Nothing is changed. A slice is tried: that takes a few seconds and one context's memory of the GPU.
///
/// The exit status is 0 if there is no problem, 1 if there is one, and 2 if this command was not understood.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ration doctor\n  ration doctor --json | jq '.checks[] | select(.status != \"ok\")'"
)]
pub struct Arguments {
    /// For programs; docs/cli.md describes it
    #[arg(long)]
    json: bool,
    /// The GPU on which a slice is tried, by its number, as programs started from here count
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..256))]
    gpu: i32,
    /// How long the driver may take for anything before that counts as hanging
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// The libration.so to try, instead of the one beside this program
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
}

/// Why there is no diagnosis.
enum End {
    Interrupted,
    /// Nobody reads it.
    Unread,
}

impl From<Interrupted> for End {
    fn from(_: Interrupted) -> End {
        End::Interrupted
    }
}

impl From<std::io::Error> for End {
    fn from(_: std::io::Error) -> End {
        End::Unread
    }
}

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    // A region that is looked at may be cut short by whose it is.
    change::survive_cut_files();
    let visit = Visit {
        patience: Duration::from_secs(arguments.timeout),
        interrupt: Interrupt::catch(),
        show: Show::new(arguments.json),
        checks: Vec::new(),
        not_tried: Vec::new(),
    };
    match visit.all(arguments) {
        Ok(Status::Problem) => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(End::Interrupted) => ExitCode::from(130),
        Err(End::Unread) => ExitCode::from(141),
    }
}

/// The checks, one after the other.
struct Visit {
    patience: Duration,
    interrupt: Interrupt,
    show: Show,
    checks: Vec<Check>,
    not_tried: Vec<&'static str>,
}

impl Visit {
    fn all(mut self, arguments: &Arguments) -> Result<Status, End> {
        let root = Root::real();
        let kind = root.kind(&|name| std::env::var(name).ok());
        let driver = self.driver(&root, kind, arguments.gpu)?;
        let pipes = std::env::var("CUDA_MPS_PIPE_DIRECTORY").ok();
        self.add(surroundings::mps(pipes.as_deref()))?;
        let library = Library::find(arguments.library.as_deref());
        let place = Place::make();
        let (preload, asked) = self.library(library, place.as_ref())?;
        self.add(root.check(kind))?;
        self.add(surroundings::limits())?;
        self.show.doing("watching the clock");
        self.add(surroundings::Clock::watch().check())?;
        let is_there = driver.is_there() && driver.devices.iter().any(|(index, ..)| *index == arguments.gpu);
        // What only the environment says does not reach a slice of ours.
        let can_be_tried = is_there && (asked.settings.is_some() || !asked.has_file);
        match (can_be_tried, preload, &place) {
            (true, Some(preload), Ok(place)) => {
                let (patience, interrupt) = (self.patience, self.interrupt.clone());
                let settings = &asked.settings();
                let trial = Trial { place, preload, settings, gpu: arguments.gpu, patience, interrupt: &interrupt };
                self.slice(&trial, asked.has_file)?;
            }
            _ => self.not_tried.extend(["memory-cap", "compute", "channels"]),
        }
        let diagnosis = Diagnosis::of(self.checks, self.not_tried);
        self.show.end(&diagnosis)?;
        Ok(diagnosis.status)
    }

    fn add(&mut self, check: Check) -> Result<(), End> {
        self.show.check(&check)?;
        self.checks.push(check);
        Ok(())
    }

    fn ask(&self, command: std::io::Result<std::process::Command>) -> Result<Answer, Interrupted> {
        match command.and_then(|mut command| Child::start(&mut command, self.patience, &self.interrupt)) {
            Ok(child) => child.finish(),
            Err(error) => Ok(Answer {
                said: vec![Said::Missing(format!("no process could be started to ask it: {error}"))],
                how: How::Ended(1),
                at: String::new(),
                errors: String::new(),
            }),
        }
    }

    /// The driver and its GPUs.
    fn driver(&mut self, root: &Root, kind: Kind, gpu: i32) -> Result<Driver, End> {
        self.show.doing("asking the driver");
        let cuda = self.ask(slice::bare("cuda"))?;
        self.show.doing("asking NVML");
        let nvml = self.ask(slice::bare("nvml"))?;
        let driver = Driver::of(&cuda, &nvml, kind);
        self.add(driver.check())?;
        if !driver.is_there() || driver.devices.is_empty() {
            self.add(root.devices(kind))?;
        }
        if driver.is_there() {
            self.add(driver.gpus(gpu))?;
        } else {
            self.not_tried.push("gpus");
        }
        for (name, check) in
            [("mig", driver.mig()), ("compute-mode", driver.compute_mode()), ("driver-cap", driver.own_cap())]
        {
            match check {
                Some(check) => self.add(check)?,
                None => self.not_tried.push(name),
            }
        }
        Ok(driver)
    }

    /// The library, and what programs are told to keep to. What to preload in order to try it, if it can be.
    fn library(
        &mut self,
        library: Result<Library, Missing>,
        place: Result<&Place, &std::io::Error>,
    ) -> Result<(Option<std::ffi::OsString>, Asked), End> {
        let before = std::env::var_os("LD_PRELOAD");
        let (check, preload) = match (library, place) {
            (Err(Missing { path, error }), _) => (
                Check::problem(
                    "library",
                    format!("{}: {error}", path.display()),
                    "Put libration.so beside ration, or in ../lib or ../lib/ration from there; or name it with --library PATH",
                ),
                None,
            ),
            (Ok(library), Ok(place)) => self.loads(&library, place, before.as_deref())?,
            (Ok(_), Err(error)) => (
                Check::problem("library", format!("it cannot be tried: {error}"), "Make room in /dev/shm or in /tmp"),
                None,
            ),
        };
        self.add(check)?;
        let now = self.ask(slice::plain("library"))?;
        let loaded = loaded(&now);
        self.add(asked::preloads(&now.errors, &loaded))?;
        let asked = Asked::here();
        self.add(asked.check())?;
        self.add(asked.enforced(&loaded))?;
        self.add(region::check(&asked.settings()))?;
        self.add(region::files(&asked.settings()))?;
        Ok((preload, asked))
    }

    /// Whether the library gets into a program that it is preloaded into.
    fn loads(
        &self,
        library: &Library,
        place: &Place,
        before: Option<&OsStr>,
    ) -> Result<(Check, Option<std::ffi::OsString>), End> {
        let path = library.path().display();
        let preload = match slice::preload(library, place, before) {
            Ok(preload) => preload,
            Err(why) => {
                return Ok((Check::problem("library", why, "Put it elsewhere, and name it with --library PATH"), None));
            }
        };
        let command = slice::bare("library").map(|mut command| {
            command.env("LD_PRELOAD", &preload);
            command
        });
        let answer = self.ask(command)?;
        let copies = loaded(&answer);
        let is_ours = |copy: &String| std::path::Path::new(copy).canonicalize().is_ok_and(|it| it == library.path());
        // Under a link's name it is mapped as the file itself.
        if copies.iter().any(is_ours) {
            return Ok((has_it(library), Some(preload)));
        }
        let found = match copies.first() {
            Some(other) => format!("{path}: a program that it is preloaded into has another one, {other}"),
            None => format!(
                "{path}: a program that it is preloaded into does not have it{}",
                slice::first_words(&answer.errors)
            ),
        };
        let remedy = "Use a build for this machine's processor and C library, which this user may read: ci/package makes one for glibc 2.17 \
                      and later";
        Ok((Check::problem("library", found, remedy), None))
    }

    /// A slice, tried.
    fn slice(&mut self, trial: &Trial<'_>, has_file: bool) -> Result<(), End> {
        let own = trial.settings;
        self.show.doing("trying a memory cap");
        let is_own_cap = !has_file || own.memory.is_empty();
        match verdict::memory(trial.memory(), is_own_cap.then_some(slice::CAP)) {
            Some(check) => self.add(check)?,
            None => return Err(End::Interrupted),
        }
        self.show.doing("trying a limit of GPU time");
        let is_own_limit = !has_file || own.compute_limit.is_empty() && own.compute_request.is_empty();
        let (mut check, mut seen) = limit(trial, is_own_limit)?;
        if check.status > Status::Ok && seen.is_ok() {
            // A second says little on a machine with other things to do: what counts is the better of two.
            let again = limit(trial, is_own_limit)?;
            if again.0.status < check.status {
                (check, seen) = again;
            }
        }
        self.add(check)?;
        match &seen {
            Ok(seen) => self.add(verdict::channels(seen))?,
            Err(_) => self.not_tried.push("channels"),
        }
        Ok(())
    }
}

/// Tries a limit of GPU time, and judges what came of it.
fn limit(trial: &Trial<'_>, is_own: bool) -> Result<(Check, Result<Seen, Unseen>), End> {
    // With a quota file, what is called bare may have a limit, too.
    let bare = match is_own.then(|| trial.bare_speed()) {
        Some(Ok(speed)) => Some(speed),
        Some(Err(Unseen::Interrupted)) => return Err(End::Interrupted),
        Some(Err(_)) | None => None,
    };
    let seen = trial.limited();
    let check = verdict::compute(&seen, bare, is_own).ok_or(End::Interrupted)?;
    Ok((check, seen))
}

/// A program that it is preloaded into has it: which is it?
fn has_it(library: &Library) -> Check {
    const OURS: &str = env!("CARGO_PKG_VERSION");
    let (path, version) = (library.path().display(), library.version());
    let found = match &version {
        Some(version) => format!("{path}, version {version}: programs that it is preloaded into have it"),
        None => format!("{path}: programs that it is preloaded into have it"),
    };
    match version.as_deref() == Some(OURS) {
        true => Check::ok("library", found),
        false => Check::warning(
            "library",
            format!("{found}; ration is version {OURS}"),
            "Use both of one version: they read and write the same files",
        ),
    }
}

/// The copies of the library that are in a process which was asked for them.
fn loaded(answer: &Answer) -> Vec<String> {
    let copies = answer.said.iter().find_map(|said| match said {
        Said::Loaded(copies) => Some(copies.clone()),
        _ => None,
    });
    copies.unwrap_or_default()
}
