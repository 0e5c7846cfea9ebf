//! What can be in the way of a region, said so that somebody can do something about it.

use std::fmt;
use std::path::PathBuf;

use crate::layout::{CONTAINERS, LONGEST_NAME, MAJOR, MINOR, PROCESSES, SIZE};

/// Why there is no region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The system said no.
    System {
        /// What was to be done, such as "open".
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// The error number.
        errno: i32,
    },
    /// A file of that name is not a region.
    NotARegion {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The region was made by a library that lays it out differently.
    Version {
        /// The file.
        path: PathBuf,
        /// Its major and minor version.
        theirs: (u16, u16),
    },
    /// The region is another GPU's.
    OtherGpu {
        /// The file.
        path: PathBuf,
        /// The GPU's UUID.
        uuid: [u8; 16],
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::System { what, path, errno } => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "cannot {what} {}: {error}", path.display())?;
                match *errno {
                    libc::EACCES | libc::EPERM => {
                        f.write_str("; the directory should have mode 1777, and the files in it 0666")
                    }
                    libc::ENOENT => f.write_str("; the directory above must exist"),
                    libc::EROFS => f.write_str("; the directory must be mounted writable"),
                    libc::ENOSPC => write!(f, "; {SIZE} bytes are needed for each GPU"),
                    libc::EFBIG => write!(
                        f,
                        "; the limit on the size of files (ulimit -f) must have room for the {SIZE} bytes of each GPU's"
                    ),
                    libc::ELOOP => f.write_str("; a symbolic link is not followed"),
                    _ => Ok(()),
                }
            }
            OpenError::NotARegion { path, why } => write!(
                f,
                "{} is not a region ({why}); when no process uses it, remove it, and a new one will be made",
                path.display()
            ),
            OpenError::Version { path, theirs: (major, minor) } => write!(
                f,
                "{} is a region of version {major}.{minor}, and this library knows version {MAJOR}.{MINOR}; use libraries of \
                 one version on a node, and remove the file when none of the other kind is running",
                path.display()
            ),
            OpenError::OtherGpu { path, uuid } => {
                write!(f, "{} belongs to GPU {}; was it copied or renamed?", path.display(), crate::file::Dashed(uuid))
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// Why a process could not join a container. It can go on by itself, in a region of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// The container's name is empty, or longer than a name can be.
    Name {
        /// Its length in bytes.
        length: usize,
    },
    /// Others have been changing the table for too long: one of them may have been stopped in the middle.
    Busy,
    /// As many containers as there is room for, all of them with living processes.
    TooManyContainers,
    /// As many processes as there is room for.
    TooManyProcesses,
    /// The thread by which others know that this process is alive could not be started.
    NoKeeper {
        /// The error number.
        errno: i32,
    },
    /// There is no memory for a region.
    NoMemory,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Name { length } => {
                write!(f, "the container's name has {length} bytes; it should have 1 to {LONGEST_NAME}")
            }
            JoinError::Busy => {
                f.write_str("the region's lock is held by a process that does not let go: is one stopped?")
            }
            JoinError::TooManyContainers => {
                write!(f, "{CONTAINERS} containers use this GPU already, and there is no room for more")
            }
            JoinError::TooManyProcesses => {
                write!(f, "{PROCESSES} processes use this GPU already, and there is no room for more")
            }
            JoinError::NoKeeper { errno } => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "cannot start the thread that tells others of this process's end: {error}")
            }
            JoinError::NoMemory => f.write_str("there is no memory for the region"),
        }
    }
}

impl std::error::Error for JoinError {}
