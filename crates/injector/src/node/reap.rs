//! Removes what dead pods left in the regions, and regions that nobody uses. Nothing that anybody has open is touched.
//!
//! A process that has died is known by its life word, which the kernel itself marks; what its container held is given back by
//! the container's living processes, who can ask the driver whether the memory is free. Only where none of them lives for some
//! time, this does. A file is removed under a lease ([`super::uses`]), so nobody can be left in one that has lost its name, while
//! others meet in a new one.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use ration_region::Region;
use tracing::warn;

use super::disk;
use super::regions::{self, Opened, RegionReport};
use super::uses::{Processes, Use, lease, open_plain};

/// Something that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reaped {
    /// The places of a container's dead processes, and the bytes that had been counted for them.
    Container {
        /// The region's file.
        file: String,
        /// The container.
        name: String,
        /// How many processes.
        processes: usize,
        /// How many bytes.
        bytes: u64,
    },
    /// A region's file, for this reason.
    Region(String, &'static str),
    /// What somebody began and did not finish.
    Draft(String),
}

impl std::fmt::Display for Reaped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reaped::Container { file, name, processes, bytes } => {
                write!(f, "{file}: forgot {processes} dead processes of {name}, which had held {bytes} bytes")
            }
            Reaped::Region(file, why) => write!(f, "removed {file}: {why}"),
            Reaped::Draft(file) => write!(f, "removed {file}, which was left unfinished"),
        }
    }
}

/// Since when what is unused was seen to be.
#[derive(Debug, Default)]
pub struct Memory {
    regions: HashMap<String, Instant>,
    containers: HashMap<(String, String), Instant>,
    /// Files of which it was said that nobody can tell who uses them.
    untold: HashSet<String>,
}

impl Memory {
    /// Removes what nobody uses, and what nobody could.
    fn remove(&mut self, path: &Path, name: &str) -> bool {
        match remove_unused(path) {
            Removal::Removed => true,
            Removal::Left => remove_obstacle(path),
            Removal::Unknown(why) => {
                // Once for each file: it will be so the next time, too.
                if self.untold.insert(name.to_owned()) {
                    warn!("{name} seems to be unused, and is left: {why}");
                }
                false
            }
        }
    }
}

/// How long somebody who looked the file's name up before it was removed may take to open it: it is kept from that.
const LOOKED_UP: Duration = Duration::from_millis(20);

/// What became of a file that was to be removed if nobody uses it.
#[derive(Debug)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// Somebody has it open or mapped, or it is no file.
    Left,
    /// It cannot be told who uses it, for this reason.
    Unknown(String),
}

/// Removes a file that nobody has open or mapped.
pub fn remove_unused(path: &Path) -> Removal {
    let Ok(file) = open_plain(path) else { return Removal::Left };
    match lease(file) {
        Use::Nobody(lease) if lease.is_at(path) && fs::remove_file(path).is_ok() => {
            std::thread::sleep(LOOKED_UP);
            Removal::Removed
        }
        Use::Nobody(_) | Use::Somebody => Removal::Left,
        Use::Unknown(why) => Removal::Unknown(why),
    }
}

/// Whether nobody has a file, whatever is written in it.
fn is_abandoned(path: &Path) -> bool {
    matches!(open_plain(path).map(lease), Ok(Use::Nobody(_)))
}

/// What is no plain file keeps everybody from making a region of its name, and nobody can be in it.
pub fn remove_obstacle(path: &Path) -> bool {
    match fs::symlink_metadata(path).map(|it| it.file_type()) {
        Ok(kind) if kind.is_dir() => fs::remove_dir(path).is_ok(),
        Ok(kind) if kind.is_symlink() || kind.is_fifo() || kind.is_socket() => fs::remove_file(path).is_ok(),
        _ => false,
    }
}

/// Forgets the dead of a container in which nobody lives.
fn bury(region: &Region, name: &str, processes: &Processes) -> (usize, u64) {
    // A name that is no text, and reads like another one here, would be a new container.
    if !region.containers().any(|it| it.name.as_bytes() == name.as_bytes()) {
        return (0, 0);
    }
    // With no cap: whoever comes next brings its own.
    let Ok(member) = region.join(name, None) else { return (0, 0) };
    let mut buried = 0;
    let bytes = member.reap(&mut |dead| {
        // One that came meanwhile sees to it itself, and knows better. What was exported may outlive who exported it.
        let is_alone = member.others().next().is_none();
        let exported = dead.node != (0, 0) || dead.lent > 0;
        // A process that is dead to the region may still be on its way out, and hold memory until it is.
        let lingers = dead.driver_pid.and_then(|pid| processes.has(pid)) == Some(true);
        let released = is_alone && !exported && !lingers;
        buried += usize::from(released);
        released
    });
    (buried, bytes)
}

/// Does all of it. What has been unused for less than `grace` is left, except for what nobody could use.
pub fn reap(
    dir: &Path,
    processes: &Processes,
    grace: Duration,
    now: Instant,
    memory: &mut Memory,
) -> Result<Vec<Reaped>, String> {
    let _alone = regions::alone();
    let (names, _) = disk::names_in(dir, 4096)?;
    let mut reaped = Vec::new();
    memory.regions.retain(|file, _| names.contains(file));
    memory.containers.retain(|(file, _), _| names.contains(file));
    memory.untold.retain(|file| names.contains(file));
    for name in &names {
        let path = dir.join(name);
        if regions::is_draft(name) {
            let age = fs::symlink_metadata(&path).and_then(|it| it.modified()).ok().and_then(|it| it.elapsed().ok());
            if age.is_some_and(|age| age >= grace) && memory.remove(&path, name) {
                reaped.push(Reaped::Draft(name.clone()));
            }
            continue;
        }
        let Some(uuid) = regions::uuid_in(name) else { continue };
        let Opened { report, region } = regions::look(dir, name, uuid);
        let Some(region) = region else {
            // Of another version, damaged or no file at all: as long as it is there, nobody can join the GPU's region.
            if memory.remove(&path, name) {
                reaped.push(Reaped::Region(name.clone(), "no process could join it, and none used it"));
            }
            continue;
        };
        reap_containers(&report, &region, processes, grace, now, memory, &mut reaped);
        drop(region);
        // Whoever is alive in it has it mapped, or it is not true. (The question disturbs nobody who is.)
        if report.in_use == Some(true) && !is_abandoned(&path) {
            memory.regions.remove(name);
            continue;
        }
        let since = *memory.regions.entry(name.clone()).or_insert(now);
        if now.duration_since(since) >= grace && memory.remove(&path, name) {
            reaped.push(Reaped::Region(name.clone(), "nobody used it"));
        }
    }
    Ok(reaped)
}

fn reap_containers(
    report: &RegionReport,
    region: &Region,
    processes: &Processes,
    grace: Duration,
    now: Instant,
    memory: &mut Memory,
    reaped: &mut Vec<Reaped>,
) {
    for container in &report.containers {
        let key = (report.file.clone(), container.name.clone());
        if container.alive() > 0 {
            memory.containers.remove(&key);
            continue;
        }
        let since = *memory.containers.entry(key.clone()).or_insert(now);
        if now.duration_since(since) < grace {
            continue;
        }
        let (processes, bytes) = bury(region, &container.name, processes);
        if processes > 0 {
            memory.containers.remove(&key);
            reaped.push(Reaped::Container { file: key.0, name: key.1, processes, bytes });
        }
    }
}
