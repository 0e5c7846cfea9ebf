//! `ration reap`: what is left of slices in which nothing runs any more goes.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use ration_region::{Seen, look_at};

use crate::places;
use crate::runs::{Runs, remove_home, user_of_home};
use crate::text;

/// Clears away what is left of slices in which nothing runs.
///
/// Normally there is nothing: the last program of a slice that `ration run` started takes all of it along. A program that is killed together
/// with its `ration run` leaves a directory of 360 KiB for each GPU, and so does one that was started with the library in
/// `LD_PRELOAD`. Slices in which something runs are left alone, and so is what ration did not put there; root clears away what other users
/// left, too. Pods' directories are the node part's to look after.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ration reap --dry-run\n  sudo ration reap")]
pub struct Arguments {
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    let mut reaped = Reaped::default();
    reaped.runs(arguments.dry_run);
    for place in places::of_slices(places::settings().dir.as_deref()) {
        reaped.place(&place, arguments.dry_run);
    }
    let mut out = io::stdout().lock();
    let verb = if arguments.dry_run { "would be removed" } else { "removed" };
    let mut said = reaped.gone.iter().try_for_each(|path| writeln!(out, "{verb}: {}", text::safe(path, 400)));
    if reaped.gone.is_empty() && reaped.wrong.is_empty() {
        said = said.and_then(|()| writeln!(out, "There is nothing to clear away."));
    }
    for (path, why) in &reaped.wrong {
        let _ = writeln!(io::stderr(), "ration reap: left: {}: {why}", text::safe(path, 400));
    }
    match (said, reaped.wrong.is_empty()) {
        // Whoever reads us has seen enough; what was to be done is done.
        (Err(_), _) => ExitCode::from(141),
        (Ok(()), true) => ExitCode::SUCCESS,
        (Ok(()), false) => ExitCode::FAILURE,
    }
}

/// Who is younger may belong to a process that is just about to be in it.
const YOUNG: Duration = Duration::from_secs(2);

/// What was found.
#[derive(Default)]
struct Reaped {
    /// What is gone.
    gone: Vec<String>,
    /// Directories of containers that go with what was noted about them.
    of_runs: HashSet<PathBuf>,
    /// What is left, though nothing runs in it, and why.
    wrong: Vec<(String, String)>,
}

impl Reaped {
    fn wrong(&mut self, path: &Path, why: impl Into<String>) {
        self.wrong.push((path.display().to_string(), why.into()));
    }

    /// What killed `ration run`s noted.
    fn runs(&mut self, dry_run: bool) {
        match Runs::locked() {
            Ok(runs) => {
                for run in runs.abandoned() {
                    self.of_runs.extend(run.homes());
                    if !dry_run {
                        runs.clear(&run);
                    }
                    self.gone.push(format!("{} ({})", run.dir.display(), run.name));
                }
            }
            Err(why) => self.wrong.push(("what is noted about runs".into(), why)),
        }
    }

    /// A directory in which directories of containers are.
    fn place(&mut self, among: &Path, dry_run: bool) {
        // A user's own place is that user's: under its name may be a way to anywhere.
        if places::is_of_a_user(among) && !among.symlink_metadata().is_ok_and(|about| about.is_dir()) {
            return;
        }
        let entries = match fs::read_dir(among) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.wrong(among, error.to_string()),
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            let Ok(about) = path.symlink_metadata() else { continue };
            if is_ours(&path, &about) && !is_young(&about) && !self.of_runs.contains(&path) {
                self.home(&path, dry_run);
            }
        }
        // What root made for everybody stays; a user's own goes with the last slice.
        if !dry_run && !self.gone.is_empty() && places::is_of_a_user(among) {
            let _ = fs::remove_dir(among);
        }
    }

    /// A container's directory.
    fn home(&mut self, dir: &Path, dry_run: bool) {
        let mut strange = Vec::new();
        for seen in look_at(dir, &mut strange) {
            match is_used(&seen) {
                Ok(false) => {}
                Ok(true) => return,
                Err(why) => return self.wrong(dir, why + "; remove it by hand if nothing runs in it"),
            }
        }
        if let Some(other) = strange.first() {
            return self.wrong(&other.path, format!("{}; it was not put there by ration", other.why));
        }
        if dry_run {
            return self.gone.push(dir.display().to_string());
        }
        remove_home(dir);
        match dir.symlink_metadata() {
            Err(_) => self.gone.push(dir.display().to_string()),
            Ok(_) => self.wrong(dir, "it could not be removed"),
        }
    }
}

/// A container's directory of a user whom we may clean up after. Its name begins with the user's number.
fn is_ours(path: &Path, about: &Metadata) -> bool {
    let user = places::user();
    about.is_dir() && user_of_home(path) == Some(about.uid()) && (user == 0 || user == about.uid())
}

fn is_young(about: &Metadata) -> bool {
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(about.ctime().max(0).unsigned_abs());
    SystemTime::now().duration_since(changed).is_ok_and(|age| age < YOUNG)
}

/// Whether somebody lives in it, or something outlived who did.
fn is_used(seen: &Seen) -> Result<bool, String> {
    match &seen.region {
        None => Ok(false),
        Some(Err(error)) => {
            Err(format!("{}: {error}", PathBuf::from(seen.region_path().file_name().unwrap_or_default()).display()))
        }
        Some(Ok(copy)) => Ok(copy.containers().any(|container| container.members().any(|it| it.alive || it.lent != 0))),
    }
}
