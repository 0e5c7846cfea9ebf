//! What `ration run` notes for `ration set`, while its program runs: a directory for each container that was started so.
//!
//! ```text
//! $XDG_RUNTIME_DIR/ration/     of this user alone; else /dev/shm/ration-runs-<user>
//! ├── lock                     held while any of this is changed
//! └── 4711/
//!     ├── began                what it was started with, as a quota file
//!     ├── quota                what holds now: `ration set` replaces it
//!     ├── present              locked, shared, by each `ration run` of the container
//!     └── libration.so         a link, where its path could not be named
//! ```
//!
//! The library follows a quota file at one place only, /etc/ration/quota, which is for whoever runs the machine. So a program is
//! started with its limits in the environment, where the region's words hold, and a change of `quota` is written into those
//! (docs/region.md): at once by `ration set`, and by `ration run`, which looks at the file, for a GPU that the program begins to use
//! later, and where a later process or a new region says again what the program was started with.
//!
//! Locks end with whoever holds them, so what a killed `ration run` left is known to be nobody's, and goes with the next one.

use std::fs::{DirBuilder, DirEntry, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ration_contract::Settings;
use ration_region::{Strange, look_at};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::library::NAME as LIBRARY;
use crate::places;

/// All containers of this user that were started by `ration run`, for as long as nobody else changes that.
pub struct Runs {
    dir: PathBuf,
    _lock: File,
}

impl Drop for Runs {
    /// The last one leaves nothing behind.
    fn drop(&mut self) {
        let is_last = std::fs::read_dir(&self.dir).is_ok_and(|mut entries| entries.all(|it| is_the_lock(&it)));
        if is_last {
            let _ = std::fs::remove_file(self.dir.join("lock"));
            let _ = std::fs::remove_dir(&self.dir);
        }
    }
}

fn is_the_lock(entry: &io::Result<DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|entry| entry.file_name() == "lock")
}

/// So often somebody else may have been the last one at the wrong moment.
const TRIES: u32 = 100;

/// One of them.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its directory.
    pub dir: PathBuf,
    /// Its name.
    pub name: String,
    /// What it was started with, and what holds now.
    pub began: Settings,
    /// As above.
    pub now: Settings,
}

/// Longer than any note is.
const LONGEST_NOTE: u64 = 1 << 16;

/// A note's text: whatever lies there, nobody waits for it.
fn note(path: &Path) -> io::Result<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let is_note = file.metadata().is_ok_and(|it| it.is_file() && it.len() <= LONGEST_NOTE);
    let mut text = String::new();
    match is_note {
        true => file.take(LONGEST_NOTE).read_to_string(&mut text).map(|_| text),
        false => Err(io::Error::other("no note")),
    }
}

/// A program that runs in one of them.
pub struct Presence {
    /// The container.
    pub run: Run,
    /// Others had started it before.
    pub is_joined: bool,
    file: File,
}

impl Runs {
    /// Waits for its turn, and clears away what nobody needs any more.
    pub fn open() -> Result<Runs, String> {
        let runs = Runs::locked()?;
        runs.abandoned().iter().for_each(|run| runs.clear(run));
        Ok(runs)
    }

    /// Waits for its turn.
    pub fn locked() -> Result<Runs, String> {
        for _ in 0..TRIES {
            let dir = root()?;
            let path = dir.join("lock");
            let locked = private_file(&path).and_then(|lock| lock.lock().map(|()| lock));
            match locked {
                // Whoever was last has removed it meanwhile: then it keeps nobody out.
                Ok(lock) if !is_at_its_place(&lock, &path) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{}: {error}", path.display())),
                Ok(lock) => return Ok(Runs { dir, _lock: lock }),
            }
        }
        Err("others keep removing what is noted about runs; try again".into())
    }

    /// They.
    pub fn all(&self) -> Vec<Run> {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut all: Vec<Run> = entries.filter_map(|entry| Run::read(entry.path())).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Those in which nobody is any more.
    pub fn abandoned(&self) -> Vec<Run> {
        let mut all = self.all();
        all.retain(|run| run.is_abandoned());
        all
    }

    /// The one of this name.
    pub fn find(&self, name: &str) -> Option<Run> {
        self.all().into_iter().find(|run| run.name == name)
    }

    /// A program begins, in the container of this name, which may be there.
    pub fn begin(&self, name: &str, settings: &Settings) -> io::Result<Presence> {
        let found = self.find(name);
        let is_joined = found.is_some();
        let run = match found {
            Some(run) => run,
            None => self.make(name, settings)?,
        };
        let file = private_file(&run.dir.join("present"))?;
        file.lock_shared()?;
        Ok(Presence { run, is_joined, file })
    }

    fn make(&self, name: &str, settings: &Settings) -> io::Result<Run> {
        let settings = Settings { name: Some(name.to_owned()), ..settings.clone() };
        let dir = (0..).map(|at| self.dir.join(format!("{}-{at}", std::process::id())));
        for dir in dir.take(100) {
            match DirBuilder::new().mode(0o700).create(&dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let run = Run { dir, name: name.to_owned(), began: settings.clone(), now: settings };
                    run.write("began", &run.began)?;
                    run.write("quota", &run.now)?;
                    return Ok(run);
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// A program has ended.
    pub fn end(&self, presence: Presence) {
        drop(presence.file);
        self.clear(&presence.run);
    }

    /// Removes what was made for a container, if nobody is in it any more.
    pub fn clear(&self, run: &Run) {
        if !run.is_abandoned() {
            return;
        }
        // One that was given was made by somebody else.
        if run.now.own_dir.is_none() {
            run.homes().iter().for_each(|dir| remove_home(dir));
        }
        for file in ["began", "quota", "quota.new", "began.new", "present", LIBRARY] {
            let _ = std::fs::remove_file(run.dir.join(file));
        }
        let _ = std::fs::remove_dir(&run.dir);
        if run.now.dir.is_none() && self.all().is_empty() {
            // It is empty only if this user has no other container.
            let _ = std::fs::remove_dir(places::of_user(places::user()));
        }
    }
}

impl Run {
    fn read(dir: PathBuf) -> Option<Run> {
        let settings = |file: &str| {
            let text = note(&dir.join(file)).ok()?;
            Settings::read(&|_| None, Some(&text)).ok()
        };
        let (began, now) = (settings("began")?, settings("quota")?);
        let name = began.name.clone()?;
        Some(Run { dir, name, began, now })
    }

    /// Reads again what holds now; what makes no sense changes nothing.
    pub fn look_again(&mut self) {
        let text = note(&self.dir.join("quota")).ok();
        if let Some(now) = text.and_then(|text| Settings::read(&|_| None, Some(&text)).ok()) {
            self.now = now;
        }
    }

    /// From now on this holds.
    pub fn change(&mut self, settings: &Settings) -> io::Result<()> {
        self.now = Settings { name: Some(self.name.clone()), ..settings.clone() };
        self.write("quota", &self.now)
    }

    /// Whoever reads it meanwhile has the one text or the other.
    fn write(&self, file: &str, settings: &Settings) -> io::Result<()> {
        let draft = self.dir.join(format!("{file}.new"));
        std::fs::write(&draft, settings.quota_file())?;
        std::fs::rename(draft, self.dir.join(file))
    }

    /// The directories in which the container's regions are.
    pub fn homes(&self) -> Vec<PathBuf> {
        places::of_container(&self.now, &self.name)
    }

    /// Whether all of its programs have ended. Who would begin one waits for its turn.
    fn is_abandoned(&self) -> bool {
        let present = private_file(&self.dir.join("present"));
        present.is_ok_and(|it| it.try_lock().is_ok()) && !self.is_lived_in()
    }

    /// Whether there are processes in it, or memory of theirs that outlived them.
    pub fn is_lived_in(&self) -> bool {
        let seen = self.homes().into_iter().flat_map(|dir| look_at(&dir, &mut Vec::<Strange>::new()));
        let copies = seen.filter_map(|seen| seen.region?.ok());
        copies.into_iter().any(|copy| {
            let mut members = copy.containers().flat_map(|it| it.members().collect::<Vec<_>>());
            members.any(|it| it.alive || it.lent != 0)
        })
    }
}

/// The user whose container's directory it is, by its name.
pub fn user_of_home(dir: &Path) -> Option<u32> {
    dir.file_name()?.to_str()?.split_once('-')?.0.parse().ok()
}

/// Removes the directory of a container that the library made; and only what it puts there. Root does so for others, who may put something
/// else under this name at any time: so the directory is opened once, and is the one that its name says.
pub fn remove_home(dir: &Path) {
    let how = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open(dir, how, Mode::empty()) else { return };
    if rustix::fs::fstat(&directory).ok().map(|about| about.st_uid) != user_of_home(dir) {
        return;
    }
    for seen in look_at(dir, &mut Vec::new()) {
        for path in [seen.region_path(), seen.public_path()] {
            if let Some(name) = path.file_name() {
                let _ = rustix::fs::unlinkat(&directory, name, AtFlags::empty());
            }
        }
    }
    // It stays if somebody else put something there.
    let _ = std::fs::remove_dir(dir);
}

/// A directory of this user's alone.
fn root() -> Result<PathBuf, String> {
    let user = places::user();
    let is_ours = |dir: &Path| {
        dir.symlink_metadata().is_ok_and(|about| about.is_dir() && about.uid() == user && about.mode() & 0o022 == 0)
    };
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let dir = match session.filter(|dir| dir.is_absolute() && is_ours(dir)) {
        Some(session) => session.join("ration"),
        None => PathBuf::from(format!("/dev/shm/ration-runs-{user}")),
    };
    let made = DirBuilder::new().mode(0o700).create(&dir);
    if is_ours(&dir) {
        return Ok(dir);
    }
    let why = made.err().map_or_else(String::new, |error| format!(" ({error})"));
    Err(format!(
        "{} is not a directory of yours alone{why}: it is where is noted what runs; let XDG_RUNTIME_DIR name a directory of \
         your own, of mode 0700",
        dir.display()
    ))
}

/// Whether a path leads to this file.
fn is_at_its_place(file: &File, path: &Path) -> bool {
    let about = file.metadata().and_then(|it| path.symlink_metadata().map(|there| (it, there)));
    about.is_ok_and(|(it, there)| (it.dev(), it.ino()) == (there.dev(), there.ino()))
}

fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who cleans up after others is led nowhere else by them.
    #[test]
    fn a_container_is_removed_where_its_name_says_whose_it_is_and_not_behind_a_link() {
        let (top, user) = (std::env::temp_dir().join(format!("ration-homes-{}", std::process::id())), places::user());
        let (own, others) = (top.join(format!("{user}-own")), top.join(format!("{}-others", user + 1)));
        let file = |dir: &Path| dir.join("gpu-00000000-0000-0000-0000-000000000001.region");
        for dir in [&own, &others] {
            std::fs::create_dir_all(dir).expect("temporary files can be made");
            std::fs::write(file(dir), "").expect("there is room");
        }
        let link = top.join(format!("{user}-link"));
        std::os::unix::fs::symlink(&own, &link).expect("a link can be made");
        remove_home(&link);
        remove_home(&others);
        assert!(file(&own).exists() && file(&others).exists());
        remove_home(&own);
        assert!(!own.exists());
        std::fs::remove_dir_all(&top).expect("it is ours");
    }
}
