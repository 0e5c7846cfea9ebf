//! The libraries on the node: `ROOT/lib/<version>-<12 digits of its SHA-256>/libration.so`, and `ROOT/lib/current`, a link to one
//! of them.
//!
//! A pod mounts `current`; the container runtime follows the link when it does, so a pod keeps the library that it began with.
//! Nothing that has its final name is ever half there: directories and files are made complete under another name, synced
//! and renamed, and so is the link. All who change something hold a lock on `ROOT/lib`, so what is found unfinished there
//! while it is held was left by somebody who was killed.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ring::digest::{SHA256, digest};

use super::disk::{self, Found, Locked, cannot};
use super::{elf, uses};

/// The library's name in each directory.
pub const LIBRARY: &str = "libration.so";
/// The link's name.
pub const CURRENT: &str = "current";
/// Digits of the hash in a directory's name.
const DIGITS: usize = 12;
/// More than any library of ours will ever have: whatever is larger is something else.
const LARGEST: u64 = 256 << 20;
/// For all to read and map, for none to change.
const FILE_MODE: u32 = 0o555;
/// Of all directories: for all to read, for none but us to change.
pub const DIRECTORY_MODE: u32 = 0o755;

fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read_whole(path: &Path) -> io::Result<(Vec<u8>, fs::Metadata)> {
    let file = uses::open_plain(path)?;
    let about = file.metadata()?;
    if about.len() > LARGEST {
        return Err(io::Error::other(format!("it has {} bytes; a library has at most {LARGEST}", about.len())));
    }
    let mut bytes = Vec::with_capacity(about.len() as usize);
    file.take(LARGEST).read_to_end(&mut bytes)?;
    Ok((bytes, about))
}

/// A library to install.
#[derive(Debug)]
pub struct Library {
    bytes: Vec<u8>,
    /// Its directory's name.
    pub name: String,
    /// Its hash, all of it.
    pub sha256: String,
}

impl Library {
    /// Reads and checks it.
    pub fn read(path: &Path, version: &str) -> Result<Library, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
        if version.is_empty() || version.len() > 64 || version.starts_with('.') || !version.chars().all(plain) {
            return Err(format!(
                "{version:?} cannot be a library's version: up to 64 letters, digits and any of `._+-`, a dot not first"
            ));
        }
        // The image may well have it behind a link.
        let real = fs::canonicalize(path).map_err(|error| cannot("find the library", path, &error))?;
        let (bytes, _) = read_whole(&real).map_err(|error| cannot("read the library", path, &error))?;
        elf::check(&bytes).map_err(|why| format!("{} cannot be installed: {why}", path.display()))?;
        let sha256 = sha256(&bytes);
        Ok(Library { name: format!("{version}-{}", &sha256[..DIGITS]), bytes, sha256 })
    }
}

/// The hash's digits in the name of a directory of ours.
fn digits_of(name: &str) -> Option<&str> {
    let (version, digits) = name.rsplit_once('-')?;
    let is_hash = digits.len() == DIGITS && digits.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
    (is_hash && !version.is_empty() && !name.starts_with('.')).then_some(digits)
}

/// Something that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// A directory was made, or its mode put right.
    Directory(PathBuf, String),
    /// A library is new here.
    Installed(String),
    /// One was not as it should be, for this reason, and is now.
    Repaired(String, String),
    /// The link leads to this one, and did not before.
    Current(String, Option<String>),
    /// What was left unfinished by somebody who was killed is gone.
    Cleared(String),
    /// A library that nobody uses any more is gone.
    Removed(String),
}

impl std::fmt::Display for Deed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Deed::Directory(path, what) => write!(f, "{}: {what}", path.display()),
            Deed::Installed(name) => write!(f, "installed {name}"),
            Deed::Repaired(name, why) => write!(f, "repaired {name}: {why}"),
            Deed::Current(name, Some(before)) => write!(f, "new pods get {name} (before: {before})"),
            Deed::Current(name, None) => write!(f, "new pods get {name}"),
            Deed::Cleared(name) => write!(f, "removed {name}, which was left unfinished"),
            Deed::Removed(name) => write!(f, "removed {name}, which nobody uses any more"),
        }
    }
}

/// Makes sure of a directory, and says what was done for it.
pub fn ensure_directory(path: &Path, mode: u32, deeds: &mut Vec<Deed>) -> Result<(), String> {
    let what = match disk::ensure_directory(path, mode)? {
        Found::AsItShouldBe => return Ok(()),
        Found::Made => "made".to_owned(),
        Found::Mode(had) => format!("mode {had:04o} is now {mode:04o}"),
    };
    deeds.push(Deed::Directory(path.to_owned(), what));
    Ok(())
}

/// A node process that runs for as long as this is there, and wants this library to be current. Others see it by the lock
/// on the library's directory, which ends with the process.
#[derive(Debug)]
pub struct Serving {
    directory: File,
}

/// A lock of all of a file, of this kind, that belongs to the open file and not to the process.
fn whole_file(kind: i32) -> libc::flock {
    // SAFETY: numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    // One of three small numbers, which the C library declares wider than it stores them.
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// When to turn the link to a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// In any case: whoever was started last is right.
    Always,
    /// Not from a library that is as it should be and that another running node process has installed since.
    UnlessServed,
}

/// The libraries on the node.
#[derive(Debug, Clone)]
pub struct Store {
    /// What all of it is in.
    pub root: PathBuf,
}

impl Store {
    /// The directory with the libraries.
    pub fn lib(&self) -> PathBuf {
        self.root.join("lib")
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.lib().join(name)
    }

    /// A library's file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory(name).join(LIBRARY)
    }

    /// Nobody else changes anything meanwhile.
    pub fn lock(&self) -> Result<Locked, String> {
        disk::lock(&self.lib())
    }

    /// Where the link leads; `None`: there is none. What is there but is no link is an error.
    pub fn current(&self) -> Result<Option<String>, String> {
        let link = self.lib().join(CURRENT);
        match fs::read_link(&link) {
            Ok(to) => Ok(Some(to.to_string_lossy().into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(format!(
                "{} is no symbolic link, and pods may have it mounted; move it away, and the link will be made",
                link.display()
            )),
            Err(error) => Err(cannot("read", &link, &error)),
        }
    }

    /// The names of the libraries' directories.
    pub fn versions(&self) -> Result<Vec<String>, String> {
        let (names, _) = disk::names_in(&self.lib(), 10_000)?;
        let is_version = |name: &String| digits_of(name).is_some() && !self.directory(name).is_symlink();
        Ok(names.into_iter().filter(is_version).collect())
    }

    /// What is wrong with an installed library; `None`: nothing. Its name tells what its hash should be.
    pub fn damage(&self, name: &str) -> Option<String> {
        let Some(digits) = digits_of(name) else { return Some(format!("{name:?} is no library's directory")) };
        if let Err(problem) = disk::check_directory(&self.directory(name), DIRECTORY_MODE) {
            return Some(problem);
        }
        match read_whole(&self.file(name)) {
            Err(error) => Some(cannot("read", &self.file(name), &error)),
            Ok((bytes, _)) if !sha256(&bytes).starts_with(digits) => {
                Some(format!("the file ({} bytes) does not have the hash that it is named by", bytes.len()))
            }
            Ok((_, about)) if about.mode() & 0o7777 != FILE_MODE => {
                Some(format!("the file has mode {:04o}, not {FILE_MODE:04o}", about.mode() & 0o7777))
            }
            Ok(_) => None,
        }
    }

    /// Whether a process runs that wants this library to be current.
    pub fn is_served(&self, name: &str) -> bool {
        let Ok(directory) = disk::open_directory(&self.directory(name)) else { return false };
        let mut question = whole_file(libc::F_WRLCK);
        // Only asked, not taken: many may ask at once, and none is in another's way.
        // SAFETY: a descriptor that is open, and a question that lives until it is answered.
        let asked = unsafe { libc::fcntl(directory.as_raw_fd(), libc::F_OFD_GETLK, &raw mut question) };
        asked == 0 && i32::from(question.l_type) != libc::F_UNLCK
    }

    /// Says to other node processes that this one wants the library.
    pub fn serve(&self, name: &str) -> Result<Serving, String> {
        let path = self.directory(name);
        let directory = disk::open_directory(&path).map_err(|error| cannot("open", &path, &error))?;
        let shared = whole_file(libc::F_RDLCK);
        // SAFETY: a descriptor that is open, and a description that lives until it is read.
        if unsafe { libc::fcntl(directory.as_raw_fd(), libc::F_OFD_SETLK, &raw const shared) } != 0 {
            return Err(cannot("lock", &path, &io::Error::last_os_error()));
        }
        Ok(Serving { directory })
    }

    /// Whether that is still said of the directory that is there: it may have been removed and made again.
    pub fn is_serving(&self, serving: &Serving, name: &str) -> bool {
        disk::is_at(&serving.directory, &self.directory(name))
    }

    /// Installs a library, if it is not there as it should be, and turns the link to it. Says what was done, of which there may be
    /// something even if it then failed.
    pub fn install(&self, library: &Library, turn: Turn, deeds: &mut Vec<Deed>) -> Result<(), String> {
        let _locked = self.begin(deeds)?;
        self.clear(deeds)?;
        let name = &library.name;
        if fs::symlink_metadata(self.directory(name)).is_err() {
            self.place(library)?;
            deeds.push(Deed::Installed(name.clone()));
        } else if let Some(why) = self.damage(name) {
            self.repair(library)?;
            deeds.push(Deed::Repaired(name.clone(), why));
        }
        let before = self.current()?;
        if before.as_deref() == Some(name) {
            return Ok(());
        }
        let stands = |it: &String| turn == Turn::UnlessServed && self.is_served(it) && self.damage(it).is_none();
        if before.as_ref().is_some_and(stands) {
            return Ok(());
        }
        self.turn(name, before.as_deref())?;
        deeds.push(Deed::Current(name.clone(), before));
        Ok(())
    }

    /// Makes the directories, and locks them.
    fn begin(&self, deeds: &mut Vec<Deed>) -> Result<Locked, String> {
        // Somebody who uninstalls may remove them again before they are locked; not for ever.
        for _ in 0..10 {
            ensure_directory(&self.root, DIRECTORY_MODE, deeds)?;
            match ensure_directory(&self.lib(), DIRECTORY_MODE, deeds).and_then(|()| self.lock()) {
                Err(_) if fs::symlink_metadata(self.lib()).is_err() => {}
                outcome => return outcome,
            }
        }
        ensure_directory(&self.lib(), DIRECTORY_MODE, deeds).and_then(|()| self.lock())
    }

    /// Removes what is unfinished. To be called under the lock.
    pub fn clear(&self, deeds: &mut Vec<Deed>) -> Result<(), String> {
        let (names, _) = disk::names_in(&self.lib(), 10_000)?;
        for name in names.iter().filter(|name| name.starts_with(disk::UNFINISHED)) {
            disk::remove(&self.lib().join(name))?;
            deeds.push(Deed::Cleared(name.clone()));
        }
        Ok(())
    }

    /// A whole new directory.
    fn place(&self, library: &Library) -> Result<(), String> {
        let draft = disk::unfinished(&self.lib(), &library.name);
        disk::ensure_directory(&draft, DIRECTORY_MODE)?;
        disk::write_new(&draft.join(LIBRARY), &library.bytes, FILE_MODE)?;
        disk::sync_directory(&draft)?;
        let place = self.directory(&library.name);
        fs::rename(&draft, &place).map_err(|error| cannot("make", &place, &error))?;
        disk::sync_directory(&self.lib())
    }

    /// A new file in place of one that is damaged. Pods that have the directory mounted get it too.
    fn repair(&self, library: &Library) -> Result<(), String> {
        let place = self.directory(&library.name);
        disk::ensure_directory(&place, DIRECTORY_MODE)?;
        let (draft, file) = (disk::unfinished(&self.lib(), LIBRARY), self.file(&library.name));
        if fs::symlink_metadata(&file).is_ok_and(|it| it.is_dir()) {
            return Err(format!("{} is a directory; move it away, and the library will be put there", file.display()));
        }
        disk::write_new(&draft, &library.bytes, FILE_MODE)?;
        fs::rename(&draft, &file).map_err(|error| cannot("replace", &file, &error))?;
        disk::sync_directory(&place)
    }

    fn turn(&self, name: &str, before: Option<&str>) -> Result<(), String> {
        let (draft, link) = (disk::unfinished(&self.lib(), CURRENT), self.lib().join(CURRENT));
        std::os::unix::fs::symlink(name, &draft).map_err(|error| cannot("make", &draft, &error))?;
        fs::rename(&draft, &link).map_err(|error| cannot("replace", &link, &error))?;
        disk::sync_directory(&self.lib())?;
        // From now on the other one is old.
        if let Some(before) = before.filter(|it| digits_of(it).is_some()) {
            let _ = disk::open_directory(&self.directory(before)).and_then(|it| it.set_modified(SystemTime::now()));
        }
        Ok(())
    }

    /// How long a library has not been current, or been there if it never was.
    pub fn age(&self, name: &str) -> Duration {
        let modified = fs::symlink_metadata(self.directory(name)).and_then(|it| it.modified());
        // A time that is yet to come is no age.
        modified.ok().and_then(|then| then.elapsed().ok()).unwrap_or_default()
    }

    /// Removes a library's directory, at once as far as others can see. To be called under the lock.
    pub fn remove(&self, name: &str) -> Result<(), String> {
        let (place, gone) = (self.directory(name), disk::unfinished(&self.lib(), name));
        fs::rename(&place, &gone).map_err(|error| cannot("remove", &place, &error))?;
        disk::remove(&gone)
    }
}

#[cfg(test)]
mod tests {
    use super::digits_of;

    #[test]
    fn directories_of_ours_are_known_by_their_names() {
        assert_eq!(digits_of("0.1.0-0123456789ab"), Some("0123456789ab"));
        assert_eq!(digits_of("1.0-rc.1-0123456789ab"), Some("0123456789ab"));
        for other in
            ["current", "0.1.0", "0.1.0-0123456789a", "0.1.0-0123456789AB", "-0123456789ab", ".tmp-x-0123456789ab"]
        {
            assert_eq!(digits_of(other), None, "{other}");
        }
    }
}
