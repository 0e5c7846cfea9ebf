//! What can be replaced while the program runs: values that many read and one replaces, and the files they come from.
//!
//! Files are looked at by their contents, about once a second. A mounted ConfigMap or Secret changes by swapping a
//! symbolic link two levels up, which no watch on the file itself would see, and the files are small.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// A file that is longer is none of ours. A ConfigMap or a Secret has at most 1 MiB.
const LONGEST: u64 = 1 << 20;

/// A value that many read and one replaces.
#[derive(Debug)]
pub struct Current<T>(RwLock<Arc<T>>);

impl<T> Current<T> {
    /// Starts with this value.
    pub fn new(value: T) -> Current<T> {
        Current(RwLock::new(Arc::new(value)))
    }

    /// The value that is in force now. It stays as it is for whoever holds it.
    pub fn get(&self) -> Arc<T> {
        // A lock that was poisoned still holds a whole value: replacing one is a single assignment.
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another in its place.
    pub fn set(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}

/// What files hold together, or why they cannot be read.
pub type Contents = Result<Vec<Vec<u8>>, String>;

/// Files that belong together, and what was last found in them.
#[derive(Debug)]
pub struct Files {
    paths: Vec<PathBuf>,
    taken: Option<Contents>,
    seen: Option<Contents>,
}

impl Files {
    /// Nothing is read yet.
    pub fn new<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Files {
        Files { paths: paths.into_iter().map(Into::into).collect(), taken: None, seen: None }
    }

    /// What is in them now, for the start.
    pub fn take(&mut self) -> Contents {
        let contents = self.read();
        self.taken = Some(contents.clone());
        contents
    }

    /// What is in them, where that is new. A change counts once it was found twice, so that a file that is being
    /// written, or a certificate whose key comes a moment later, is not taken for broken.
    pub fn changed(&mut self) -> Option<Contents> {
        let contents = self.read();
        if self.taken.as_ref() == Some(&contents) {
            self.seen = None;
            return None;
        }
        if self.seen.as_ref() != Some(&contents) {
            self.seen = Some(contents);
            return None;
        }
        self.seen = None;
        self.taken = Some(contents.clone());
        Some(contents)
    }

    fn read(&self) -> Contents {
        self.paths.iter().map(|path| read(path)).collect()
    }
}

/// A whole file of a sensible length.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read as _;
    let told = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let mut contents = Vec::new();
    let file = std::fs::File::open(path).map_err(|why| told(&why))?;
    file.take(LONGEST + 1).read_to_end(&mut contents).map_err(|why| told(&why))?;
    if contents.len() as u64 > LONGEST {
        return Err(told(&"longer than 1 MiB"));
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ration-reload-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_change_counts_once_it_was_found_twice() {
        let directory = directory("twice");
        let path = directory.join("config.yaml");
        std::fs::write(&path, "one").unwrap();
        let mut files = Files::new([&path]);
        assert_eq!(files.take(), Ok(vec![b"one".to_vec()]));
        assert_eq!(files.changed(), None);
        std::fs::write(&path, "tw").unwrap();
        assert_eq!(files.changed(), None, "it may be half written");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(files.changed(), None, "and so may this be");
        assert_eq!(files.changed(), Some(Ok(vec![b"two".to_vec()])));
        assert_eq!(files.changed(), None, "it is said once");
    }

    #[test]
    fn a_mount_changes_by_a_link() {
        let directory = directory("link");
        for (version, text) in [("..1", "one"), ("..2", "two")] {
            std::fs::create_dir(directory.join(version)).unwrap();
            std::fs::write(directory.join(version).join("config.yaml"), text).unwrap();
        }
        symlink("..1", directory.join("..data")).unwrap();
        symlink("..data/config.yaml", directory.join("config.yaml")).unwrap();
        let mut files = Files::new([directory.join("config.yaml")]);
        assert_eq!(files.take(), Ok(vec![b"one".to_vec()]));
        symlink("..2", directory.join("..tmp")).unwrap();
        std::fs::rename(directory.join("..tmp"), directory.join("..data")).unwrap();
        assert_eq!(files.changed(), None);
        assert_eq!(files.changed(), Some(Ok(vec![b"two".to_vec()])));
    }

    #[test]
    fn a_file_that_is_gone_is_said_once_and_may_come_back() {
        let directory = directory("gone");
        let path = directory.join("config.yaml");
        std::fs::write(&path, "one").unwrap();
        let mut files = Files::new([&path]);
        assert!(files.take().is_ok());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(files.changed(), None);
        let gone = files.changed().expect("it is said").expect_err("there is no file");
        assert!(gone.contains("config.yaml"), "{gone}");
        assert_eq!(files.changed(), None);
        std::fs::write(&path, "one").unwrap();
        assert_eq!(files.changed(), None);
        assert_eq!(files.changed(), Some(Ok(vec![b"one".to_vec()])));
    }

    #[test]
    fn a_file_of_another_kind_is_not_read_whole() {
        let mut files = Files::new(["/dev/zero"]);
        assert!(files.take().expect_err("it has no end").contains("1 MiB"));
    }
}
