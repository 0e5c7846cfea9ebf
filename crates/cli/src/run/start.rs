//! How a program gets the library and its limits.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ration_contract::Settings;
use ration_contract::table::ALIASES;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::asked;
use crate::library::{Library, can_be_named};
use crate::places;

/// The file that will be run, as the system looks for it.
pub fn find(program: &OsStr) -> io::Result<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return may_be_run(Path::new(program)).map(|()| program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut failure = io::Error::from(Errno::NOENT);
    for dir in std::env::split_paths(&path) {
        let file = dir.join(program);
        match may_be_run(&file) {
            Ok(()) => return Ok(file),
            // The next one may be one that can be run.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

fn may_be_run(file: &Path) -> io::Result<()> {
    if file.metadata()?.is_dir() {
        return Err(Errno::ACCESS.into());
    }
    Ok(access(file, Access::EXEC_OK)?)
}

/// A name that no other run has.
pub fn fresh_name(program: &OsStr, is_taken: impl Fn(&str) -> bool) -> String {
    let base = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let base: String =
        base.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    let base = format!("{}-{}{}", base.get(..base.len().min(100)).unwrap_or(&base), std::process::id(), namespace());
    let more = (2..).map(|number| format!("{base}-{number}"));
    std::iter::once(base.clone()).chain(more).find(|name| !is_taken(name)).unwrap_or(base)
}

/// What tells equal process numbers apart on one machine: containers have their own, and may meet in one directory.
fn namespace() -> String {
    /// The first one's, on every machine.
    const FIRST: u64 = 0xefff_fffc;
    let inode = places::pid_namespace();
    if [0, FIRST].contains(&inode) { String::new() } else { format!(".{inode}") }
}

/// What is to be preloaded. A path that `LD_PRELOAD` cannot name is reached by a link in a directory of the run's.
pub fn preload(library: &Library, dir: &Path) -> Result<OsString, String> {
    let before = std::env::var_os("LD_PRELOAD");
    if library.can_be_named() {
        return Ok(library.behind(library.path(), before));
    }
    let link = dir.join(crate::library::NAME);
    match library.link_into(dir) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(format!("{}: {error}", link.display())),
    }
    if !can_be_named(&link) {
        return Err(format!(
            "{} has a space, a colon or a dollar sign in it, which LD_PRELOAD cannot have; put libration.so elsewhere, and name it \
             with --library PATH",
            link.display()
        ));
    }
    Ok(library.behind(&link, before))
}

/// Says in a program's environment what it may have, and leaves nothing there that says something else.
pub fn limit(command: &mut Command, settings: &Settings, gpu: Option<&str>) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_alias(name)) {
        command.env_remove(name);
    }
    for (name, value) in asked::environment(settings) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(gpu) = gpu {
        command.env("CUDA_VISIBLE_DEVICES", gpu);
    }
}

/// Whether this is another project's name for a setting. What it said is among the settings by now.
fn is_alias(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ALIASES
        .iter()
        .any(|alias| name.strip_prefix(alias.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_the_system_finds_them() {
        assert!(find(OsStr::new("sh")).is_ok_and(|path| path.ends_with("sh") && path.is_absolute()));
        let kind = |program: &str| find(OsStr::new(program)).expect_err(program).kind();
        assert_eq!(kind("no-program-has-this-name"), io::ErrorKind::NotFound);
        assert_eq!(kind("/nowhere/at-all"), io::ErrorKind::NotFound);
        assert_eq!(kind("/"), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn each_run_has_a_name_of_its_own() {
        let id = format!("{}{}", std::process::id(), namespace());
        let fresh =
            |program: &str, taken: &[String]| fresh_name(OsStr::new(program), |it| taken.iter().any(|t| t == it));
        assert_eq!(fresh("/usr/bin/python3", &[]), format!("python3-{id}"));
        assert_eq!(fresh("a b#", &[]), format!("a_b_-{id}"));
        assert_eq!(fresh("x", &[format!("x-{id}"), format!("x-{id}-2")]), format!("x-{id}-3"));
    }

    #[test]
    fn aliases_are_known_with_and_without_a_number() {
        for name in ["CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT"] {
            assert!(is_alias(OsStr::new(name)), "{name}");
        }
        assert!(!is_alias(OsStr::new("CUDA_DEVICE_ORDER")));
    }
}
