//! Changes on the node's disk that are there whole or not at all, with the modes that they should have whatever the umask is.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What everything that is not finished begins with.
pub const UNFINISHED: &str = ".tmp-";

/// What went wrong with a path, in words.
pub fn cannot(what: &str, path: &Path, error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EROFS) => "; the host's directory must be mounted writable",
        Some(libc::EACCES | libc::EPERM) => {
            "; the node part has to run as root, with the host's directory mounted writable"
        }
        Some(libc::ENOENT) => "; the directory above must exist",
        _ => "",
    };
    format!("cannot {what} {}: {error}{advice}", path.display())
}

/// The user that this process acts as. What it makes belongs to that one, and what it finds should.
pub fn this_user() -> u32 {
    // SAFETY: takes nothing and always succeeds.
    unsafe { libc::geteuid() }
}

/// A directory of ours.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// It was there, and as it should be.
    AsItShouldBe,
    /// There was none.
    Made,
    /// It had this mode.
    Mode(u32),
}

/// Opens a directory, which is then known to be one and no link.
pub fn open_directory(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC).open(path)
}

/// What is wrong with what is at a path, where a directory of ours should be; `None`: nothing, or nothing is there.
fn is_in_the_way(path: &Path) -> Option<String> {
    let found = fs::symlink_metadata(path).ok()?;
    let place = path.display();
    if found.is_symlink() {
        let to = fs::read_link(path).unwrap_or_default();
        let to = to.display();
        return Some(format!(
            "{place} is a symbolic link (to {to}), and should be a directory; a link is not followed, for whoever made it \
             could lead this program anywhere: remove it, and the directory will be made"
        ));
    }
    if !found.is_dir() {
        return Some(format!("{place} is no directory; move it away, and the directory will be made"));
    }
    (found.uid() != this_user()).then(|| {
        format!(
            "{place} belongs to user {}, who could replace what is in it; it should belong to user {}: `chown {2} {place}`, \
             or remove it, and it will be made",
            found.uid(),
            this_user(),
            this_user()
        )
    })
}

/// Makes sure that there is a directory of ours, with this mode. Whatever else is at its place is left alone, and is an error.
pub fn ensure_directory(path: &Path, mode: u32) -> Result<Found, String> {
    let mut made = false;
    if fs::symlink_metadata(path).is_err() {
        match DirBuilder::new().mode(mode).create(path) {
            Ok(()) => made = true,
            // Somebody else was faster: a look at what it is follows.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot("make", path, &error)),
        }
    }
    if let Some(problem) = is_in_the_way(path) {
        return Err(problem);
    }
    let directory = open_directory(path).map_err(|error| cannot("open", path, &error))?;
    let about = directory.metadata().map_err(|error| cannot("look at", path, &error))?;
    let had = about.mode() & 0o7777;
    if had != mode {
        directory
            .set_permissions(Permissions::from_mode(mode))
            .map_err(|error| cannot("set the mode of", path, &error))?;
    }
    Ok(match (made, had == mode) {
        (true, _) => Found::Made,
        (false, true) => Found::AsItShouldBe,
        (false, false) => Found::Mode(had),
    })
}

/// The same for a directory that is only looked at: what is wrong with it.
pub fn check_directory(path: &Path, mode: u32) -> Result<(), String> {
    if let Some(problem) = is_in_the_way(path) {
        return Err(problem);
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.mode() & 0o7777 == mode => Ok(()),
        Ok(found) => {
            let had = found.mode() & 0o7777;
            Err(format!("{} has mode {had:04o}, and should have {mode:04o}: `chmod {mode:04o}`", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("{} is not there", path.display())),
        Err(error) => Err(cannot("look at", path, &error)),
    }
}

/// What was done to the entries of a directory survives a loss of power.
pub fn sync_directory(path: &Path) -> Result<(), String> {
    open_directory(path).and_then(|it| it.sync_all()).map_err(|error| cannot("sync", path, &error))
}

/// A name beside the finished ones that nobody else uses. Processes in several PID namespaces may have the same number.
pub fn unfinished(directory: &Path, what: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    directory.join(format!("{UNFINISHED}{what}.{}.{number}.{time:x}", std::process::id()))
}

/// Writes a file that was not there, and waits until the disk has it.
pub fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    };
    write().map_err(|error| cannot("write", path, &error))
}

/// A directory that this process alone may change, among all that ask. It ends with the process, however that ends.
#[derive(Debug)]
pub struct Locked {
    _directory: File,
}

/// How long others may take. An installation takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Locks a directory of ours. The lock is on the directory itself, so that no other file is needed, or left.
pub fn lock(path: &Path) -> Result<Locked, String> {
    let begun = Instant::now();
    loop {
        let directory = open_directory(path).map_err(|error| cannot("open", path, &error))?;
        match directory.try_lock() {
            Ok(()) if is_at(&directory, path) => return Ok(Locked { _directory: directory }),
            // It was removed while this one waited, and perhaps made again.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(cannot("lock", path, &error)),
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!(
                "{} is being changed by another process, and has been for {} s; is one stopped? (`ration-injector node` \
                 holds a lock on the directory)",
                path.display(),
                PATIENCE.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether an open file is the one at this path.
pub fn is_at(file: &File, path: &Path) -> bool {
    let there = fs::symlink_metadata(path).map(|it| (it.dev(), it.ino()));
    let open = file.metadata().map(|it| (it.dev(), it.ino()));
    matches!((there, open), (Ok(there), Ok(open)) if there == open)
}

/// Removes something with all that is in it, or nothing if it is not there.
pub fn remove(path: &Path) -> Result<(), String> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot("remove", path, &error)),
        _ => Ok(()),
    }
}

/// The names in a directory, sorted; none if there is no such directory. No more than `most`, and whether there were more.
pub fn names_in(path: &Path, most: usize) -> Result<(Vec<String>, bool), String> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), false)),
        Err(error) => return Err(cannot("read", path, &error)),
    };
    let mut names: Vec<String> = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| cannot("read", path, &error))?;
        if names.len() == most {
            names.sort();
            return Ok((names, true));
        }
        // A name that is no text is none of ours.
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok((names, false))
}
