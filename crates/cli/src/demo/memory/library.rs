//! `libration.so`, as the act puts it into containers.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::super::Trouble;
use super::Role;

/// The library's name.
const NAME: &str = "libration.so";

/// The library, found.
#[derive(Debug, Clone)]
pub struct Library(PathBuf);

impl Library {
    /// The one that was named, or the one beside this program.
    pub fn find(named: Option<&Path>) -> Result<Library, Trouble> {
        let beside = || std::env::current_exe().map(|program| program.with_file_name(NAME));
        let path = named.map_or_else(beside, |path| Ok(path.to_owned())).unwrap_or_else(|_| PathBuf::from(NAME));
        let file = path.canonicalize().and_then(|file| match file.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("that is no file")),
        });
        file.map(Library).map_err(|error| Trouble::NoLibrary { path, error })
    }

    /// Puts a link to it into `dir`: `LD_PRELOAD` takes spaces and colons for the end of a path, and a checkout's may
    /// have either.
    pub fn link_into(&self, dir: &Path) -> io::Result<PathBuf> {
        let link = dir.join(NAME);
        symlink(&self.0, &link)?;
        Ok(link)
    }
}

/// The environment that makes a process part of a container with a limit. `linked`: the library; `regions`: where
/// containers meet.
pub fn inside(role: Role, linked: &Path, regions: &Path) -> Vec<(OsString, Option<OsString>)> {
    let set = |name: &str, value: OsString| (OsString::from(name), Some(value));
    let mut environment = outside(std::env::vars_os().map(|(name, _)| name));
    environment.extend([
        set("LD_PRELOAD", linked.into()),
        set("RATION_DIR", regions.into()),
        set("RATION_NAME", role.name().into()),
        set("RATION_MEMORY", role.limit().to_string().into()),
    ]);
    environment
}

/// The environment of a process that is in no container, whatever is set around the demo: without any limit, and
/// without any library that would hold it to one.
pub fn outside(variables: impl Iterator<Item = OsString>) -> Vec<(OsString, Option<OsString>)> {
    let limits = |name: &OsString| {
        let name = name.to_string_lossy();
        let ours = name.starts_with("RATION_") && !name.starts_with("RATION_SIM_");
        let looks_on = ["RATION_LOG", "RATION_TRACE"].contains(&&*name);
        let alias = ["CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"].iter().any(|alias| name.starts_with(alias));
        ours && !looks_on || alias || name == "LD_PRELOAD"
    };
    variables.filter(limits).map(|name| (name, None)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_from_around_the_demo_do_not_get_into_it() {
        let around = ["PATH", "RATION_MEMORY", "RATION_LOG", "CUDA_DEVICE_MEMORY_LIMIT_0", "LD_PRELOAD"];
        let others = ["RATION_SIM_GPUS", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH"];
        let around = around.into_iter().chain(others).map(OsString::from);
        let removed: Vec<OsString> = outside(around).into_iter().map(|(name, _)| name).collect();
        assert_eq!(removed, ["RATION_MEMORY", "CUDA_DEVICE_MEMORY_LIMIT_0", "LD_PRELOAD"]);
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_what_to_do() {
        for path in ["/nowhere/libration.so", "/"] {
            let trouble = Library::find(Some(Path::new(path))).expect_err(path).to_string();
            assert!(trouble.starts_with(&format!("{path}: ")) && trouble.contains("Run ci/demo"), "{trouble}");
        }
    }

    #[test]
    fn a_path_with_spaces_is_reached_by_a_link() {
        let dir = std::env::temp_dir().join(format!("ration demo {}", std::process::id()));
        std::fs::create_dir_all(dir.join("to")).expect("a directory");
        std::fs::write(dir.join(NAME), "").expect("a file");
        let library = Library::find(Some(&dir.join(NAME))).expect("it is there");
        let link = library.link_into(&dir.join("to")).expect("linked");
        assert_eq!(link.canonicalize().ok(), dir.join(NAME).canonicalize().ok());
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
