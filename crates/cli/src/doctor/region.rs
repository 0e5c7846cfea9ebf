//! Where a container's processes meet each other, and containers their neighbours: whether that can be had, and what lies there.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ration_contract::Settings;
use ration_region::{Gpu, Home, Region, look_at};
use rustix::fs::{statfs, statvfs};

use super::check::Check;
use crate::look::Report;
use crate::{places, text};

/// A GPU that nobody has, whose region is made and removed to see whether that can be done. Nobody who has another GPU looks at it.
const NO_GPU: [u8; 16] = *b"ration-doctor-no";
/// What a container takes for a GPU, and what lets others in besides.
const ROOM: u64 = 64 * 368_640;
/// File systems in memory, by their number: tmpfs and ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
/// So many files are named.
const NAMED: usize = 3;

/// Whether there is a place where a container's processes meet.
pub fn check(settings: &Settings) -> Check {
    let homes = homes(settings);
    let mut findings = Vec::new();
    for (dir, home) in &homes {
        match tried(dir, home) {
            Ok(()) => {
                findings.extend(about(dir, settings));
                return Check::of_all(findings).unwrap_or_else(|| Check::ok("region", dir.display().to_string()));
            }
            Err(why) => findings.push(Check::warning("region", why, usable(dir))),
        }
    }
    // What comes in none of them goes on by itself.
    Check::of_all(findings.into_iter().map(|it| Check { status: super::check::Status::Problem, ..it }).collect())
        .unwrap_or_else(|| Check::problem("region", "there is no place for it", usable(Path::new("/run/ration"))))
}

fn usable(dir: &Path) -> String {
    format!(
        "Without it, each process is held to the whole limit by itself. Make it on a tmpfs, as root: mkdir -p {0}; chmod 1777 {0}; or have \
         RATION_DIR name another",
        dir.display()
    )
}

/// The places that the library tries, in its order.
fn homes(settings: &Settings) -> Vec<(PathBuf, Home)> {
    if let Some(own) = settings.own_dir.as_ref().map(PathBuf::from) {
        let home = match settings.dir.as_ref().map(Path::new) {
            Some(dir) if dir != own => Home::given(&own, dir),
            _ => Home::alone(&own),
        };
        return vec![(own, home)];
    }
    let name = format!("ration-doctor-{}", std::process::id());
    places::among(settings.dir.as_deref())
        .into_iter()
        .map(|dir| {
            let home = Home::among(&dir, &name);
            (dir, home)
        })
        .collect()
}

/// Makes a region there, and takes it away again.
fn tried(dir: &Path, home: &Home) -> Result<(), String> {
    let was_there = dir.exists();
    let made = Region::open_at(home, &Gpu { uuid: NO_GPU, total: 1 << 30 });
    if let Some(own) = home.find() {
        for seen in look_at(&own, &mut Vec::new()).iter().filter(|seen| seen.gpu == NO_GPU) {
            let _ = std::fs::remove_file(seen.region_path());
            let _ = std::fs::remove_file(seen.public_path());
        }
        if own != dir {
            let _ = std::fs::remove_dir(&own);
        }
    }
    if !was_there {
        // It stays if somebody has begun to use it.
        let _ = std::fs::remove_dir(dir);
    }
    made.map(drop).map_err(|error| error.to_string())
}

/// What is to be known about a place that can be used.
fn about(dir: &Path, settings: &Settings) -> Vec<Check> {
    // One that is not there was made to see, and will be: then what it is in counts.
    let is_there = dir.exists();
    let there = if is_there { dir } else { dir.parent().unwrap_or(dir) };
    let shown = dir.display();
    let mut findings = Vec::new();
    let user = places::user();
    let Ok(about) = there.metadata() else { return findings };
    let mode = about.mode() & 0o7777;
    let is_everybodys = mode & 0o002 != 0;
    let kind = statfs(there).ok().map(|it| it.f_type.cast_unsigned());
    let room = statvfs(there).ok().map(|it| it.f_bavail.saturating_mul(it.f_frsize));
    let is_users = dir == places::of_user(user);
    let who = match settings.own_dir {
        Some(_) => "this container's own".to_owned(),
        None if !is_users && (is_everybodys || !is_there) => "programs of all users meet there".to_owned(),
        None => format!("only programs of user {user} meet there"),
    };
    let state = if is_there { format!("mode {mode:04o}") } else { "it will be made".to_owned() };
    let left = room.map_or_else(String::new, |room| format!(", {} left", text::memory(room)));
    findings.push(Check::ok("region", format!("{shown} ({state}{left}): {who}")));
    if is_there && is_everybodys && mode & 0o1000 == 0 && settings.own_dir.is_none() {
        findings.push(Check::warning(
            "region",
            format!("{shown} has mode {mode:04o}: everybody may remove everybody's files there"),
            format!("chmod 1777 {shown}"),
        ));
    }
    if is_there && about.uid() != 0 && about.uid() != user {
        findings.push(Check::warning(
            "region",
            format!("{shown} is user {}'s, who may remove everybody's files there", about.uid()),
            format!("Have it made by root: chown root {shown}"),
        ));
    }
    if kind.is_some_and(|kind| !IN_MEMORY.contains(&kind)) {
        findings.push(Check::warning(
            "region",
            format!("{shown} is on a disk, not in memory: what processes tell each other is written out to it, over and over"),
            "Use a directory on a tmpfs, such as /run/ration or one in /dev/shm",
        ));
    }
    if room.is_some_and(|room| room < ROOM) {
        findings.push(Check::warning(
            "region",
            format!("there is little room in {shown}{left}"),
            "A container takes 368,640 bytes for each GPU: make the file system larger, or clear it",
        ));
    }
    findings
}

/// Whether what lies where containers meet is what belongs there.
pub fn files(settings: &Settings) -> Check {
    let report = Report::now(settings.dir.as_deref(), settings.own_dir.as_deref());
    let mut containers: Vec<&str> =
        report.gpus.iter().flat_map(|gpu| &gpu.containers).map(|it| it.directory.as_str()).collect();
    containers.sort_unstable();
    containers.dedup();
    if report.problems.is_empty() {
        let found = match containers.len() {
            0 => "no other container uses a GPU here".to_owned(),
            number => format!("{} here, and nothing strange", text::count(number as u64, "container")),
        };
        return Check::ok("region-files", found);
    }
    let named: Vec<String> = report
        .problems
        .iter()
        .take(NAMED)
        .map(|it| match it.why.contains(&it.path) {
            true => text::safe(&it.why, 300),
            false => format!("{}: {}", text::safe(&it.path, 200), text::safe(&it.why, 200)),
        })
        .collect();
    let more = match report.problems.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; and {more} more, which `ration status` names"),
    };
    Check::warning(
        "region-files",
        format!("{}{more}", named.join("; ")),
        "It is in nobody's way but its owner's. Remove it when no program uses it. Where libraries of two major versions meet on a GPU, use \
         one everywhere",
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::check::Status;
    use super::*;

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let base = Path::new("/dev/shm");
            let base = if base.is_dir() { base.to_owned() } else { std::env::temp_dir() };
            Place(base.join(format!("ration-doctor-region-{name}-{}", std::process::id())))
        }

        fn check(&self) -> Check {
            check(&Settings { dir: Some(self.0.display().to_string()), ..Settings::default() })
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_place_is_tried_and_left_as_it_was() {
        let place = Place::new("tried");
        let check = place.check();
        assert!(check.found.contains("it will be made"), "{check:?}");
        assert!(!place.0.exists(), "it is left behind");
        std::fs::create_dir(&place.0).expect("shared memory is writable");
        let mode = |mode| std::fs::set_permissions(&place.0, std::fs::Permissions::from_mode(mode)).expect("ours");
        mode(0o1777);
        let check = place.check();
        assert!(check.found.contains("mode 1777") && check.found.contains("all users meet"), "{check:?}");
        mode(0o777);
        let check = place.check();
        assert!(check.status == Status::Warning && check.found.contains("everybody's files"), "{check:?}");
        mode(0o700);
        assert!(place.check().found.contains(&format!("only programs of user {}", places::user())));
        assert_eq!(std::fs::read_dir(&place.0).expect("ours").count(), 0, "something is left behind");
    }

    #[test]
    fn no_place_is_a_problem() {
        let place = Place::new("none");
        std::fs::write(&place.0, "a file").expect("shared memory is writable");
        let check = place.check();
        let _ = std::fs::remove_file(&place.0);
        assert_eq!(check.status, Status::Problem, "{check:?}");
        let own = Settings { own_dir: Some("/nowhere/at-all".into()), ..Settings::default() };
        assert_eq!(super::check(&own).status, Status::Problem);
    }
}
