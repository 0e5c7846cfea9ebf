//! Where containers are on this machine: the same places as the library's, and in the same order.

use std::path::{Path, PathBuf};

use ration_contract::table::{DIR, OWN_DIR};
use ration_contract::{QUOTA_FILE, Settings, with_pod};
use ration_region::Home;

/// The node's directory, where there is one.
const NODE: &str = "/run/ration";
/// Where the pods' directories are, seen from the node.
const PODS: &str = "/run/ration-pods";

/// Whether whoever runs this machine, or this pod, has said what programs may have. That counts before anything that is said here.
pub fn quota_file() -> Option<&'static Path> {
    let path = Path::new(QUOTA_FILE);
    path.exists().then_some(path)
}

/// This user.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The inode of this process's PID namespace; 0: not known.
pub fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |about| about.ino())
}

/// What this machine's quota file says, or the environment, of where containers are.
pub fn settings() -> Settings {
    let get = |name: &str| {
        // Nothing else is asked about, and what is wrong with it is for the library to say.
        let is_place = [DIR.name, OWN_DIR.name].contains(&name);
        std::env::var(name).ok().filter(|value| is_place && !value.is_empty())
    };
    // Whose pod it is makes no difference here.
    let file = std::fs::read_to_string(QUOTA_FILE).ok().map(|text| with_pod(&text, "pod"));
    let read = Settings::read(&get, file.as_deref()).or_else(|_| Settings::read(&get, None));
    read.unwrap_or_default()
}

/// The directory in which containers of users meet who have no other.
pub fn of_user(user: u32) -> PathBuf {
    PathBuf::from(format!("/dev/shm/ration-{user}"))
}

/// The directories in which the directory of a container with these settings may be.
pub fn among(dir: Option<&str>) -> Vec<PathBuf> {
    if let Some(dir) = dir {
        return vec![dir.into()];
    }
    let node = Some(PathBuf::from(NODE)).filter(|node| node.is_dir());
    node.into_iter().chain([of_user(user())]).collect()
}

/// The directories of a container that are there.
pub fn of_container(settings: &Settings, name: &str) -> Vec<PathBuf> {
    if let Some(own) = &settings.own_dir {
        return vec![own.into()];
    }
    among(settings.dir.as_deref()).iter().filter_map(|dir| Home::among(dir, name).find()).collect()
}

/// The directories in which the directories of slices may be; root looks at other users', too.
pub fn of_slices(dir: Option<&str>) -> Vec<PathBuf> {
    let mut all = all(dir);
    all.retain(|place| place != Path::new(PODS));
    all
}

/// Whether it is a user's own place, and not that of all.
pub fn is_of_a_user(place: &Path) -> bool {
    users_of(place).is_some()
}

/// All directories of containers that there may be; root looks at other users', too.
pub fn all(dir: Option<&str>) -> Vec<PathBuf> {
    let mut all = among(dir);
    if dir.is_none() && user() == 0 {
        all.push(PODS.into());
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        all.extend(entries.map(|entry| entry.path()).filter(|path| users_of(path).is_some_and(|user| user != 0)));
    }
    all
}

/// Whose directory it is, by its name.
fn users_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix("ration-")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_directory_is_told_by_its_name() {
        assert_eq!(users_of(&of_user(1000)), Some(1000));
        for other in ["/dev/shm/ration-sim-0", "/dev/shm/ration-", "/dev/shm/else", "/"] {
            assert_eq!(users_of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn what_is_said_is_the_only_place() {
        assert_eq!(among(Some("/a")), [PathBuf::from("/a")]);
        assert_eq!(all(Some("/a")), [PathBuf::from("/a")]);
        assert_eq!(among(None).last(), Some(&of_user(user())));
    }
}
