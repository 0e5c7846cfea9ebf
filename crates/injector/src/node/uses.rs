//! Who uses a file: asked of the kernel, which knows of all containers, and of `/proc`, which has names.
//!
//! A *write lease* is given only for a file that nobody else has open or mapped, in whatever namespace it may be; and while it
//! is held, nobody can open it unnoticed. So to remove a file under a lease is to remove it from under nobody. For a file of
//! another user, the capability `CAP_LEASE` is needed.
//!
//! That a container has a directory mounted, and may open a file in it later, no lease tells. `/proc/*/mountinfo` does, where the
//! host's processes can be seen (`hostPID: true`).

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Nobody else has the file open, and whoever wants to open it is kept waiting (or told to come again) until this is dropped.
#[derive(Debug)]
pub struct Lease {
    file: File,
}

impl Lease {
    /// Whether it is for the file at this path.
    pub fn is_at(&self, path: &Path) -> bool {
        super::disk::is_at(&self.file, path)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: a descriptor that is open, and plain numbers.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

/// Who uses a file.
#[derive(Debug)]
pub enum Use {
    /// Nobody, for as long as the lease is held.
    Nobody(Lease),
    /// Somebody has it open or mapped.
    Somebody,
    /// It cannot be told, for this reason.
    Unknown(String),
}

/// Opens a plain file to look at it: follows no link, waits for nobody.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a plain file")) }
}

/// Asks the kernel whether anybody uses a file that is open here, and nowhere else in this process.
pub fn lease(file: File) -> Use {
    // The kernel says by this signal that somebody would like to open the file; without a word, it would end this process.
    // SAFETY: nothing in this program waits for the signal.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    // SAFETY: a descriptor that is open, and plain numbers.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } == 0 {
        return Use::Nobody(Lease { file });
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Use::Somebody,
        Some(libc::EACCES) => Use::Unknown(
            "the kernel does not say who uses a file of another user; the node part needs the capability LEASE for that".to_owned(),
        ),
        _ => Use::Unknown(format!("the kernel does not say who uses it: {error}")),
    }
}

/// A process that uses something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Process {
    /// Its number, as this one sees it.
    pub pid: u32,
    /// What it calls itself.
    pub name: String,
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// The processes that can be seen.
#[derive(Debug, Clone)]
pub struct Processes {
    proc: PathBuf,
    /// Whether these are all of the host's.
    pub all: bool,
}

/// The inode of the host's own PID namespace, on every Linux.
const HOST_PID_NAMESPACE: u64 = 0xefff_fffc;

impl Processes {
    /// Those under this `/proc`. Whether they are all of the host's is found out unless it is said.
    pub fn new(proc: &Path, all: Option<bool>) -> Processes {
        let is_host = || fs::metadata(proc.join("self/ns/pid")).is_ok_and(|it| it.ino() == HOST_PID_NAMESPACE);
        Processes { proc: proc.to_owned(), all: all.unwrap_or_else(is_host) }
    }

    fn pids(&self) -> Vec<u32> {
        let entries = fs::read_dir(&self.proc).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Whether there is one with this number; `None` where not all can be seen.
    pub fn has(&self, pid: u32) -> Option<bool> {
        self.all.then(|| self.proc.join(pid.to_string()).exists())
    }

    fn those(&self, mut which: impl FnMut(u32) -> io::Result<bool>) -> (Vec<Process>, usize) {
        let (mut found, mut unread) = (Vec::new(), 0);
        for pid in self.pids() {
            match which(pid) {
                Ok(true) => {
                    let name = fs::read_to_string(self.proc.join(format!("{pid}/comm"))).unwrap_or_default();
                    found.push(Process { pid, name: name.trim_end().to_owned() });
                }
                Ok(false) => {}
                // One that has ended meanwhile uses nothing.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
                Err(_) => unread += 1,
            }
        }
        found.sort();
        (found, unread)
    }

    /// Those that map a file, as far as they may be looked at; and how many may not.
    ///
    /// A file is known by its inode and its name: which device it is on, `maps` and `stat` do not agree about on every file system.
    pub fn mapping(&self, file: &Path) -> (Vec<Process>, usize) {
        let Ok(inode) = fs::symlink_metadata(file).map(|it| it.ino().to_string()) else { return (Vec::new(), 0) };
        let Some(name) = file.file_name().and_then(|name| name.to_str()) else { return (Vec::new(), 0) };
        self.those(|pid| {
            let maps = fs::read(self.proc.join(format!("{pid}/maps")))?;
            let maps = String::from_utf8_lossy(&maps);
            Ok(maps.lines().any(|line| {
                let mut fields = line.split_ascii_whitespace().skip(4);
                fields.next() == Some(inode.as_str())
                    && fields.next().and_then(|path| path.rsplit('/').next()) == Some(name)
            }))
        })
    }

    /// Which of these names are those of directories that some process has mounted, or something in them. `None`: it cannot be told,
    /// for not all processes can be looked at.
    pub fn mounted(&self, names: &HashSet<&str>) -> Option<HashSet<String>> {
        let (mut mounted, mut namespaces) = (HashSet::new(), HashSet::new());
        let (_, unread) = self.those(|pid| {
            // Most processes share theirs, which may be long.
            let namespace = fs::metadata(self.proc.join(format!("{pid}/ns/mnt")));
            if namespace.is_ok_and(|it| !namespaces.insert(it.ino())) {
                return Ok(false);
            }
            let mounts = fs::read(self.proc.join(format!("{pid}/mountinfo")))?;
            let mounts = String::from_utf8_lossy(&mounts);
            let roots = mounts.lines().filter_map(|line| line.split(' ').nth(3));
            mounted.extend(roots.flat_map(|root| root.split('/')).filter(|it| names.contains(it)).map(str::to_owned));
            Ok(false)
        });
        (self.all && unread == 0).then_some(mounted)
    }

    /// Those that have a directory of this name mounted, or something in it. The name should be one that nothing else has.
    pub fn mounting(&self, name: &str) -> (Vec<Process>, usize) {
        self.those(|pid| {
            let mounts = fs::read(self.proc.join(format!("{pid}/mountinfo")))?;
            let mounts = String::from_utf8_lossy(&mounts);
            // The fourth field is which directory of its file system is mounted.
            Ok(mounts
                .lines()
                .filter_map(|line| line.split(' ').nth(3))
                .any(|root| root.split('/').any(|it| it == name)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_mapped_is_in_use_and_its_user_is_named() {
        let path = std::env::temp_dir().join(format!("ration-uses-{}.region", std::process::id()));
        fs::write(&path, [1; 8192]).unwrap();
        let free = matches!(lease(open_plain(&path).unwrap()), Use::Nobody(_));
        let other = File::open(&path).unwrap();
        let open = matches!(lease(open_plain(&path).unwrap()), Use::Somebody);
        // SAFETY: a new mapping of a file that is open, read by nobody.
        let place =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, other.as_raw_fd(), 0) };
        assert_ne!(place, libc::MAP_FAILED);
        drop(other);
        let mapped = matches!(lease(open_plain(&path).unwrap()), Use::Somebody);
        let (by, _) = Processes::new(Path::new("/proc"), None).mapping(&path);
        // SAFETY: the mapping from above, which nothing points into.
        unsafe { libc::munmap(place, 4096) };
        let free_again = matches!(lease(open_plain(&path).unwrap()), Use::Nobody(_));
        fs::remove_file(&path).unwrap();
        assert_eq!((free, open, mapped, free_again), (true, true, true, true));
        assert_eq!(by.iter().map(|it| it.pid).collect::<Vec<_>>(), [std::process::id()]);
    }

    #[test]
    fn what_is_no_plain_file_is_not_opened() {
        assert!(open_plain(Path::new("/dev/null")).is_err());
        assert!(open_plain(Path::new("/proc/self/cwd")).is_err(), "a link was followed");
    }
}
