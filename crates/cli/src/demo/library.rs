//! `libration.so`, as acts put it into containers.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::library::Library;

/// The simulated kernel module's name.
const MODULE: &str = "libsim-kernel.so";

/// Variables with their value, or without any.
pub type Environment = Vec<(OsString, Option<OsString>)>;

/// Puts links to the library and to what stands for the kernel module into `dir`.
pub fn link_into(library: &Library, dir: &Path) -> io::Result<PathBuf> {
    let link = library.link_into(dir)?;
    if let Some(module) = module() {
        symlink(module, dir.join(MODULE))?;
    }
    Ok(link)
}

/// The stand-in for the kernel module, beside the simulated driver. Without it, channels cannot be driven, and launches wait in
/// their calls.
fn module() -> Option<PathBuf> {
    let path = std::env::var_os("LD_LIBRARY_PATH")?;
    let mut found = std::env::split_paths(&path).filter_map(|dir| dir.join(MODULE).canonicalize().ok());
    found.find(|file| file.is_file())
}

/// The environment that makes a process part of a container of this name with these settings. `linked`: the library, in
/// a directory where containers meet.
pub fn inside(name: &str, settings: &[(&str, String)], linked: &Path) -> Environment {
    let set = |name: &str, value: OsString| (OsString::from(name), Some(value));
    let mut environment = outside();
    environment.extend([
        set("LD_PRELOAD", preloaded(linked)),
        set("RATION_DIR", linked.with_file_name("regions").into()),
        set("RATION_NAME", name.into()),
    ]);
    environment.extend(settings.iter().map(|(setting, value)| set(setting, value.into())));
    environment
}

/// The library, and the module behind it, where there is one.
fn preloaded(linked: &Path) -> OsString {
    let mut all = OsString::from(linked);
    let module = linked.with_file_name(MODULE);
    if module.exists() {
        all.push(":");
        all.push(module);
    }
    all
}

/// The environment of a process that is in no container, whatever is set around the demo: without any limit, and
/// without any library that would hold it to one.
pub fn outside() -> Environment {
    without_limits(std::env::vars_os().map(|(name, _)| name))
}

fn without_limits(variables: impl Iterator<Item = OsString>) -> Environment {
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
    use crate::demo::Trouble;

    #[test]
    fn limits_from_around_the_demo_do_not_get_into_it() {
        let around = ["PATH", "RATION_MEMORY", "RATION_LOG", "CUDA_DEVICE_MEMORY_LIMIT_0", "LD_PRELOAD"];
        let others = ["RATION_SIM_GPUS", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH"];
        let around = around.into_iter().chain(others).map(OsString::from);
        let removed: Vec<OsString> = without_limits(around).into_iter().map(|(name, _)| name).collect();
        assert_eq!(removed, ["RATION_MEMORY", "CUDA_DEVICE_MEMORY_LIMIT_0", "LD_PRELOAD"]);
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_what_to_do() {
        for path in ["/nowhere/libration.so", "/"] {
            let missing = Library::find(Some(Path::new(path))).expect_err(path);
            let trouble = Trouble::from(missing).to_string();
            assert!(trouble.starts_with(&format!("{path}: ")) && trouble.contains("Run ci/demo"), "{trouble}");
        }
    }
}
