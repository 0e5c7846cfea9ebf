//! Where a container's files are, and where its neighbours'.
//!
//! Each container has a directory of its own, in which only it can write. In it lies its region, and what it tells everybody
//! ([`Public`](crate::layout::Public)). The directories of a node's containers lie side by side, and everybody may look into all of
//! them; that is how they find each other. See [`crate::neighbours`].

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::Gpu;
use crate::error::OpenError;
use crate::file::{about, make_directory, make_own_directory, public_name};

/// Where a container's files are, and where its neighbours'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The directories of all containers lie in this one.
    among: Option<PathBuf>,
    own: Own,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Own {
    /// This one, which others have made, or which anybody may.
    Given(PathBuf),
    /// One of this user's for a container of this name.
    Named(String),
}

/// So many names are tried, where others have taken the first ones.
const NAMES: usize = 10;
/// The longest name of a directory, less what may be added to it.
const LONGEST: usize = 200;

impl Home {
    /// A directory for containers that have no neighbours but each other.
    pub fn alone(own: &Path) -> Home {
        Home { among: None, own: Own::Given(own.to_owned()) }
    }

    /// A directory of the container's own that others have made, and the one with all of them, in which nothing can be made.
    pub fn given(own: &Path, among: &Path) -> Home {
        Home { among: Some(among.to_owned()), own: Own::Given(own.to_owned()) }
    }

    /// A directory that is made for this user's container of this name, beside those of all others.
    pub fn among(among: &Path, container: &str) -> Home {
        Home { among: Some(among.to_owned()), own: Own::Named(container.to_owned()) }
    }

    /// The container's directory, which is made if need be.
    pub(crate) fn ready(&self) -> Result<PathBuf, OpenError> {
        match (&self.own, &self.among) {
            (Own::Given(dir), None) => make_directory(dir).map(|()| dir.clone()),
            (Own::Given(dir), Some(_)) => Ok(dir.clone()),
            (Own::Named(_), None) => Err(OpenError::System { what: "make", path: PathBuf::new(), errno: libc::EINVAL }),
            (Own::Named(_), Some(among)) => {
                make_directory(among)?;
                let is_squatted = |error: &OpenError| matches!(error, OpenError::System { errno: libc::EEXIST, .. });
                let mut tried = Err(OpenError::System { what: "make", path: among.clone(), errno: libc::EEXIST });
                for dir in self.candidates() {
                    tried = make_own_directory(&dir).map(|()| dir);
                    if !tried.as_ref().is_err_and(is_squatted) {
                        break;
                    }
                }
                tried
            }
        }
    }

    /// The container's directory, if there is one.
    pub fn find(&self) -> Option<PathBuf> {
        // SAFETY: takes nothing and always succeeds.
        let user = unsafe { libc::geteuid() };
        let is_own =
            |dir: &PathBuf| about(dir).is_ok_and(|it| it.st_mode & libc::S_IFMT == libc::S_IFDIR && it.st_uid == user);
        match &self.own {
            Own::Given(dir) => Some(dir.clone()),
            Own::Named(_) => self.candidates().find(is_own),
        }
    }

    /// Whether the container's directory may be this one.
    pub fn may_be(&self, dir: &Path) -> bool {
        match &self.own {
            Own::Given(own) => own == dir,
            Own::Named(_) => self.candidates().any(|candidate| candidate == dir),
        }
    }

    /// The file of a GPU in it, if there is a directory.
    pub fn region(&self, gpu: &[u8; 16]) -> Option<PathBuf> {
        Some(self.find()?.join(crate::file::region_name(gpu)))
    }

    fn candidates(&self) -> impl Iterator<Item = PathBuf> {
        let name = match &self.own {
            Own::Named(name) => directory_name(name),
            Own::Given(_) => String::new(),
        };
        let among = self.among.clone().unwrap_or_default();
        (0..NAMES).map(move |at| among.join(if at == 0 { name.clone() } else { format!("{name}~{at}") }))
    }
}

/// What the directory of this user's container is called: the user's number, and the name, of which what a path cannot have is written
/// as numbers.
fn directory_name(container: &str) -> String {
    // SAFETY: takes nothing and always succeeds.
    let mut name = format!("{}-", unsafe { libc::geteuid() });
    for byte in container.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => name.push(byte.into()),
            _ => drop(write!(name, "%{byte:02x}")),
        }
    }
    if name.len() > LONGEST {
        // What is left out is told apart by a sum. Who finds another of this user's that has the same shares with itself.
        let sum = container
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        name.truncate(LONGEST - 20);
        let _ = write!(name, "-{sum:016x}");
    }
    name
}

/// Where a mapped region lies.
pub struct Around {
    /// The directory that it is in.
    pub dir: PathBuf,
    /// That of all containers, if there is one.
    pub among: Option<CString>,
    /// The GPU's UUID.
    pub gpu: [u8; 16],
    /// The name of its public files.
    pub file: CString,
}

impl Around {
    pub(crate) fn of(home: &Home, dir: &Path, gpu: &Gpu) -> Around {
        let text = |path: &PathBuf| CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        Around {
            dir: dir.to_owned(),
            among: home.among.as_ref().map(text),
            gpu: gpu.uuid,
            file: CString::new(public_name(&gpu.uuid)).unwrap_or_default(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_of_containers_make_names_of_directories() {
        // SAFETY: takes nothing and always succeeds.
        let user = unsafe { libc::geteuid() };
        assert_eq!(directory_name("team/web-1/main"), format!("{user}-team%2fweb-1%2fmain"));
        assert_eq!(directory_name(".."), format!("{user}-.."));
        let long = |end: &str| directory_name(&format!("{}{end}", "x/".repeat(120)));
        assert!(long("a").len() <= LONGEST && long("a") != long("b") && !long("a").contains('/'));
    }

    #[test]
    fn a_directory_of_ones_own_is_found_by_who_made_it() {
        let above = std::env::temp_dir().join(format!("ration-homes-{}", std::process::id()));
        let home = Home::among(&above, "box");
        assert_eq!(home.find(), None);
        let made = home.ready().expect("it can be made");
        assert!(home.find().as_deref() == Some(&made) && home.may_be(&made) && !home.may_be(&above));
        assert_eq!(Home::among(&above, "box").ready(), Ok(made.clone()));
        assert_ne!(Home::among(&above, "other").ready(), Ok(made));
        std::fs::remove_dir_all(&above).expect("it was ours");
    }
}
