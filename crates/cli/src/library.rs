//! `libration.so`: where it is, and how it gets into a program.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The library's name.
pub const NAME: &str = "libration.so";

/// Where it may be, as seen from the directory of this program: a build's, or a package's.
const PLACES: [&str; 3] = [".", "../lib", "../lib/ration"];

/// The library, found.
#[derive(Debug, Clone)]
pub struct Library(PathBuf);

/// It is not where it should be.
#[derive(Debug)]
pub struct Missing {
    /// The file that was looked for.
    pub path: PathBuf,
    /// Why it is none.
    pub error: io::Error,
}

impl Library {
    /// The one that was named, or the one beside this program.
    pub fn find(named: Option<&Path>) -> Result<Library, Missing> {
        if let Some(path) = named {
            return Library::at(path);
        }
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from(NAME));
        let place = |place: &str| Library::at(&program.with_file_name(place).join(NAME));
        // If it is nowhere, the first place is what is said.
        let beside = Library::at(&program.with_file_name(NAME));
        beside.or_else(|missing| PLACES.iter().find_map(|it| place(it).ok()).ok_or(missing))
    }

    fn at(path: &Path) -> Result<Library, Missing> {
        let file = path.canonicalize().and_then(|file| match file.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("that is no file")),
        });
        file.map(Library).map_err(|error| Missing { path: path.to_owned(), error })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Which version it is, by the words in it that it would say itself (`RATION_LOG=info`).
    pub fn version(&self) -> Option<String> {
        version_in(&std::fs::read(&self.0).ok()?)
    }

    /// Puts a link to it into `dir`: `LD_PRELOAD` takes spaces and colons for the end of a path, and a checkout's may
    /// have either.
    pub fn link_into(&self, dir: &Path) -> io::Result<PathBuf> {
        let link = dir.join(NAME);
        symlink(&self.0, &link)?;
        Ok(link)
    }

    /// Whether `LD_PRELOAD` can name it as it is.
    pub fn can_be_named(&self) -> bool {
        can_be_named(&self.0)
    }

    /// Whether a process has it loaded.
    pub fn is_in(&self, pid: u32) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let path = self.0.to_string_lossy();
        maps.lines().any(|line| line.ends_with(&*path))
    }

    /// `LD_PRELOAD` with the library under this path behind what is there already; as it is, if the library is among that.
    pub fn behind(&self, path: &Path, before: Option<OsString>) -> OsString {
        let mut all = before.unwrap_or_default();
        let is_it = |entry: &[u8]| {
            Path::new(std::ffi::OsStr::from_bytes(entry)).canonicalize().is_ok_and(|entry| entry == self.0)
        };
        if all.as_bytes().split(|byte| [b':', b' '].contains(byte)).any(|entry| !entry.is_empty() && is_it(entry)) {
            return all;
        }
        if !all.is_empty() {
            all.push(":");
        }
        all.push(path);
        all
    }
}

fn version_in(bytes: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b"this is libration.so ";
    let at = bytes.windows(BEFORE.len()).position(|it| it == BEFORE)? + BEFORE.len();
    let word: Vec<u8> = bytes.get(at..)?.iter().copied().take_while(u8::is_ascii_graphic).take(40).collect();
    String::from_utf8(word).ok().filter(|it| it.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether `LD_PRELOAD` can name a path, and glibc fills nothing into it.
pub fn can_be_named(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || [b':', b'$'].contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_spaces_is_reached_by_a_link() {
        let dir = std::env::temp_dir().join(format!("ration library {}", std::process::id()));
        std::fs::create_dir_all(dir.join("to")).expect("a directory");
        std::fs::write(dir.join(NAME), "").expect("a file");
        let library = Library::find(Some(&dir.join(NAME))).expect("it is there");
        assert!(!library.can_be_named());
        let link = library.link_into(&dir.join("to")).expect("linked");
        assert_eq!(link.canonicalize().ok(), dir.join(NAME).canonicalize().ok());
        assert!(!library.is_in(std::process::id()), "nobody loaded it");
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn a_version_is_among_the_words_in_it() {
        assert_eq!(version_in(b"\0\xffthis is libration.so 1.2.3 of ration\0").as_deref(), Some("1.2.3"));
        for none in [&b"this is libration.so "[..], b"this is libration.so of", b"", b"libration.so 1.2.3"] {
            assert_eq!(version_in(none), None);
        }
    }

    #[test]
    fn what_was_preloaded_stays_and_nothing_is_preloaded_twice() {
        let dir = std::env::temp_dir().join(format!("ration-library-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join(NAME), "").expect("a file");
        let library = Library::find(Some(&dir.join(NAME))).expect("it is there");
        let path = library.path().to_owned();
        let alone = library.behind(&path, None);
        assert_eq!(alone, path.as_os_str());
        assert_eq!(library.behind(&path, Some("".into())), path.as_os_str());
        let with = library.behind(&path, Some("/one.so /two.so".into()));
        assert_eq!(with.to_string_lossy(), format!("/one.so /two.so:{}", path.display()));
        assert_eq!(library.behind(&path, Some(with.clone())), with, "it is there already");
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
