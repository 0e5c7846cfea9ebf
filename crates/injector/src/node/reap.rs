//! Removes what dead pods left in the regions, and regions that nobody uses. Nothing that anybody has open is touched.
//!
//! A process that has died is known by its life word, which the kernel itself marks; what its container held is given back by
//! the container's living processes, who can ask the driver whether the memory is free. Only where none of them lives for some
//! time, this does. A region is removed under a lease ([`super::uses`]), so nobody can be left in one that has lost its name, while
//! others meet in a new one. What it tells everybody goes with it.
//!
//! **The directories of pods.** The kubelet makes one for each pod, empty, and mounts it into the pod's containers. It can be removed
//! while it is mounted, and a container that has it then can never make a region there: where the quota is strict, it is refused
//! all GPU work from then on, and nothing but a new container helps. So it must not go before its pod, and a pod may well wait for days
//! before it first uses its GPU. Where the host's processes can be seen, so can their mounts, and what nobody has
//! mounted is left for the short time only in which a container may be between two starts (and if it takes longer, the kubelet makes
//! the directory anew). Where they cannot be seen, an empty directory is left for as long as an old library is: it takes next to no memory. Only
//! so many names are looked at by those who search for their neighbours, so where there are very many directories, those that
//! have been idle for longest go after an hour.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ration_region::Region;
use tracing::warn;

use super::disk;
use super::old::Grace;
use super::regions::{self, Kind, Opened, Place, RegionReport};
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
    /// What somebody told everybody, who has no region any more.
    Public(String),
    /// What somebody began and did not finish.
    Draft(String),
    /// A pod's directory.
    Directory(String),
}

impl std::fmt::Display for Reaped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reaped::Container { file, name, processes, bytes } => {
                write!(f, "{file}: forgot {processes} dead processes of {name}, which had held {bytes} bytes")
            }
            Reaped::Region(file, why) => write!(f, "removed {file}: {why}"),
            Reaped::Public(file) => write!(f, "removed {file}: there was no region beside it"),
            Reaped::Draft(file) => write!(f, "removed {file}, which was left unfinished"),
            Reaped::Directory(name) => write!(f, "removed the directory {name}: no pod used it"),
        }
    }
}

/// Since when what is unused was seen to be.
#[derive(Debug, Default)]
pub struct Memory {
    /// Regions, and what is told beside none.
    files: HashMap<String, Instant>,
    containers: HashMap<(String, String), Instant>,
    /// Directories without a region, and how they were then.
    idle: HashMap<String, (State, Instant)>,
    /// Files of which it was said that nobody can tell who uses them.
    untold: HashSet<String>,
}

type State = (u64, i64, i64);

/// No more is removed at a time: each takes a moment, and the node is to be looked after meanwhile.
const MOST_REAPED: usize = 512;
/// With more directories than this, the idle ones of pods that cannot be seen go after this time.
const CROWD: usize = 1024;
const CROWDED: Duration = Duration::from_secs(3600);
/// Of what a pod left in its directory, so much is removed at a time, and so deep.
const MOST_LEFT: usize = 4096;
const DEEPEST: usize = 8;

impl Memory {
    /// Removes what nobody uses, and what nobody could.
    fn remove(&mut self, place: &Place, file: &str) -> bool {
        let (path, name) = (place.path.join(file), &place.name(file));
        let path = path.as_path();
        match remove_unused(path) {
            Removal::Removed => true,
            Removal::Left => remove_obstacle(path),
            Removal::Unknown(why) => {
                // Once for each file: it will be so the next time, too.
                if self.untold.insert(name.clone()) {
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

/// Removes a file that nobody has open or mapped; with a region, what is told beside it.
pub fn remove_unused(path: &Path) -> Removal {
    let Ok(file) = open_plain(path) else { return Removal::Left };
    match lease(file) {
        Use::Nobody(lease) if lease.is_at(path) => {
            // Others may have that one mapped, to listen. Whoever makes a region anew finds none, and makes one, for the region is held
            // until both are gone.
            remove_public(path);
            if fs::remove_file(path).is_err() {
                return Removal::Left;
            }
            std::thread::sleep(LOOKED_UP);
            Removal::Removed
        }
        Use::Nobody(_) | Use::Somebody => Removal::Left,
        Use::Unknown(why) => Removal::Unknown(why),
    }
}

/// Removes what is told beside a region.
pub fn remove_public(region: &Path) -> bool {
    let name = region.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !matches!(regions::kind_of(name), Kind::Region(_)) {
        return false;
    }
    let public = region.with_file_name(regions::beside(name));
    fs::remove_file(&public).is_ok() || remove_obstacle(&public)
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

/// Does all of it. What has been unused for less than the grace is left, except for what nobody could use.
pub fn reap(
    dir: &Path,
    processes: &Processes,
    grace: Grace,
    now: Instant,
    memory: &mut Memory,
) -> Result<Vec<Reaped>, String> {
    let _alone = regions::alone();
    let (names, _) = disk::names_in(dir, regions::MOST_NAMES)?;
    let mut pass = Pass { processes, grace, now, memory, reaped: Vec::new(), seen: HashSet::new(), regions: 0 };
    let mut directories = 0;
    for name in names {
        match Place::within(dir, &name) {
            Ok(place) if regions::kind_of(&name) == Kind::Other => {
                directories += 1;
                pass.place(&place, &place.names().0);
                pass.note_idle(&place, &name);
            }
            _ => pass.place(&Place::of_all(dir), &[name]),
        }
    }
    pass.remove_idle(dir, directories);
    Ok(pass.end())
}

struct Pass<'a> {
    processes: &'a Processes,
    grace: Grace,
    now: Instant,
    memory: &'a mut Memory,
    reaped: Vec<Reaped>,
    /// What there is.
    seen: HashSet<String>,
    regions: usize,
}

impl Pass<'_> {
    fn end(self) -> Vec<Reaped> {
        let Pass { seen, memory, reaped, .. } = self;
        // What was not come to is remembered as it was.
        if reaped.len() < MOST_REAPED {
            memory.files.retain(|file, _| seen.contains(file));
            memory.containers.retain(|(file, _), _| seen.contains(file));
            memory.idle.retain(|name, _| seen.contains(name));
            memory.untold.retain(|file| seen.contains(file));
        }
        reaped
    }

    fn is_full(&self) -> bool {
        self.reaped.len() >= MOST_REAPED || self.regions >= regions::MOST_REGIONS
    }

    /// Whether a file has been unused since so long ago.
    fn is_due(&mut self, name: &str) -> bool {
        let since = *self.memory.files.entry(name.to_owned()).or_insert(self.now);
        self.now.duration_since(since) >= self.grace.seeing
    }

    fn place(&mut self, place: &Place, files: &[String]) {
        for file in files {
            let name = place.name(file);
            self.seen.insert(name.clone());
            if self.is_full() {
                continue;
            }
            match regions::kind_of(file) {
                Kind::Region(uuid) => self.region(place, file, uuid),
                Kind::Draft => {
                    let about = fs::symlink_metadata(place.path.join(file));
                    let age = about.and_then(|it| it.modified()).ok().and_then(|it| it.elapsed().ok());
                    if age.is_some_and(|age| age >= self.grace.seeing) && self.memory.remove(place, file) {
                        self.reaped.push(Reaped::Draft(name));
                    }
                }
                Kind::Public => {
                    // Whoever tells something has a region beside it, or makes one before. Should one be made this very moment, who made
                    // it sees within a second that this is gone.
                    let region = place.path.join(regions::beside(file));
                    if fs::symlink_metadata(&region).is_ok() {
                        self.memory.files.remove(&name);
                    } else if self.is_due(&name) && remove_public(&region) {
                        self.reaped.push(Reaped::Public(name));
                    }
                }
                Kind::Other => {}
            }
        }
    }

    fn region(&mut self, place: &Place, file: &str, uuid: [u8; 16]) {
        self.regions += 1;
        let name = place.name(file);
        let Opened { report, region } = regions::look(place, file, uuid);
        let Some(region) = region else {
            // Of another version, damaged or no file at all: as long as it is there, nobody can join the GPU's region.
            if self.memory.remove(place, file) {
                self.reaped.push(Reaped::Region(name, "no process could join it, and none used it"));
            }
            return;
        };
        self.containers(&report, &region);
        drop(region);
        // Whoever is alive in it has it mapped, or it is not true. (The question disturbs nobody who is.)
        if report.in_use == Some(true) && !is_abandoned(&place.path.join(file)) {
            self.memory.files.remove(&name);
        } else if self.is_due(&name) && self.memory.remove(place, file) {
            self.reaped.push(Reaped::Region(name, "nobody used it"));
        }
    }

    fn containers(&mut self, report: &RegionReport, region: &Region) {
        for container in &report.containers {
            let key = (report.file.clone(), container.name.clone());
            if container.alive() > 0 {
                self.memory.containers.remove(&key);
                continue;
            }
            let since = *self.memory.containers.entry(key.clone()).or_insert(self.now);
            if self.now.duration_since(since) < self.grace.seeing {
                continue;
            }
            let (processes, bytes) = bury(region, &container.name, self.processes);
            if processes > 0 {
                self.memory.containers.remove(&key);
                self.reaped.push(Reaped::Container { file: key.0, name: key.1, processes, bytes });
            }
        }
    }

    /// Remembers since when there has been no region in a directory, and nothing has come or gone there.
    fn note_idle(&mut self, place: &Place, name: &str) {
        self.seen.insert(name.to_owned());
        let state = place.state().filter(|_| is_idle(place, name));
        match (state, self.memory.idle.get(name)) {
            (Some(state), Some((then, _))) if state == *then => {}
            (Some(state), _) => drop(self.memory.idle.insert(name.to_owned(), (state, self.now))),
            (None, _) => drop(self.memory.idle.remove(name)),
        }
    }

    /// Removes directories that no pod has any more, as far as can be told: see above.
    fn remove_idle(&mut self, dir: &Path, mut directories: usize) {
        let shortest = self.grace.seeing.min(self.grace.blind);
        let mut due: Vec<(String, State, Duration)> = Vec::new();
        for (name, (state, since)) in &self.memory.idle {
            let age = self.now.duration_since(*since);
            if age >= shortest && self.seen.contains(name) && is_plain(name) {
                due.push((name.clone(), *state, age));
            }
        }
        if due.is_empty() {
            return;
        }
        due.sort_by_key(|(_, _, age)| std::cmp::Reverse(*age));
        let mounted = self.processes.mounted(&due.iter().map(|(name, _, _)| name.as_str()).collect());
        for (name, state, age) in due {
            let needed = match &mounted {
                Some(mounted) if mounted.contains(&name) => {
                    // It is not asked again at once: the lists of mounts of a whole node are long.
                    self.memory.idle.insert(name, (state, self.now));
                    continue;
                }
                Some(_) => self.grace.seeing,
                None if directories > CROWD => self.grace.blind.min(CROWDED),
                None => self.grace.blind,
            };
            if age < needed || self.is_full() || !remove_directory(dir, &name, state) {
                continue;
            }
            directories -= 1;
            self.memory.idle.remove(&name);
            self.reaped.push(Reaped::Directory(name));
        }
    }
}

/// Whether a name is written in lists of mounts as it is.
fn is_plain(name: &str) -> bool {
    !name.starts_with('.') && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
}

/// Whether a name is one that the kubelet gives the directory of a pod: the pod's UID, or that of one from a file, which is a hash.
fn is_of_a_pod(name: &str) -> bool {
    let digits = name.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes = [8, 13, 18, 23].iter().all(|&at| name.as_bytes().get(at) == Some(&b'-'));
    digits == 32 && (name.len() == 32 || (name.len() == 36 && dashes))
}

/// Whether nothing in a directory is of a GPU: it is empty, or it is a pod's, and whatever else that left there is nobody's without it.
fn is_idle(place: &Place, name: &str) -> bool {
    let (left, more) = place.names();
    let is_empty = left.is_empty() && !more;
    is_empty || (is_of_a_pod(name) && left.iter().all(|file| regions::kind_of(file) == Kind::Other))
}

/// Removes a directory that is still as it was.
fn remove_directory(dir: &Path, name: &str, state: State) -> bool {
    let Ok(place) = Place::within(dir, name) else { return false };
    if place.state() != Some(state) || !is_idle(&place, name) {
        return false;
    }
    if is_of_a_pod(name) {
        clear(&place.path, DEEPEST, &mut { MOST_LEFT });
    }
    // No link is followed, and nothing that came meanwhile is removed with it.
    fs::remove_dir(dir.join(name)).is_ok()
}

/// Removes what is in a directory, as far as it is neither too much nor too deep.
fn clear(path: &Path, depth: usize, most: &mut usize) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if *most == 0 {
            return;
        }
        *most -= 1;
        let path = entry.path();
        if fs::remove_file(&path).is_ok() || depth == 0 {
            continue;
        }
        if let Ok(inner) = disk::open_directory(&path) {
            clear(&PathBuf::from(format!("/proc/self/fd/{}", inner.as_raw_fd())), depth - 1, most);
        }
        let _ = fs::remove_dir(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_directories_are_known_by_their_names() {
        for name in ["705ab4f5-6393-11e8-b7cc-42010a800002", "0123456789abcdef0123456789abcdef"] {
            assert!(is_of_a_pod(name) && is_plain(name), "{name}");
        }
        for name in
            ["", "1000-team%2fpod", "705ab4f5-6393-11e8-b7cc-42010a80000", "705ab4f5-6393-11e8-b7cc-42010a800002~1"]
        {
            assert!(!is_of_a_pod(name), "{name}");
        }
        assert!(
            is_plain("1000-team%2fpod~1") && !is_plain("a b") && !is_plain("a\\b") && !is_plain(".x") && !is_plain("é")
        );
    }

    #[test]
    fn where_pods_cannot_be_seen_directories_go_after_long_or_where_there_are_too_many() {
        let dir = std::env::temp_dir().join(format!("ration-crowd-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let make =
            |number: usize| fs::create_dir(dir.join(format!("{number:08x}-0000-4000-8000-000000000000"))).unwrap();
        let blind = Processes::new(Path::new("/proc"), Some(false));
        let (minute, day) = (Duration::from_secs(60), Duration::from_secs(86_400));
        let grace = Grace { seeing: minute, blind: 7 * day };
        let (begun, mut memory) = (Instant::now(), Memory::default());
        let mut removed = |passed: Duration| -> Vec<Reaped> {
            reap(&dir, &blind, grace, begun + passed, &mut memory).expect("the directory")
        };
        (0..10).for_each(make);
        assert_eq!(removed(Duration::ZERO), []);
        assert_eq!(removed(6 * day), []);
        // The ten are the oldest, and six too many.
        (10..CROWD + 6).for_each(make);
        assert_eq!(
            removed(6 * day + minute).len(),
            6,
            "those that have been idle for an hour, and no more than are too many"
        );
        assert_eq!(removed(6 * day + 30 * minute), []);
        assert_eq!(removed(7 * day).len(), 4);
        // One pass does not do everything.
        assert_eq!(removed(20 * day).len(), MOST_REAPED);
        let rest = CROWD + 6 - 10 - MOST_REAPED;
        assert_eq!(removed(20 * day).len(), rest.min(MOST_REAPED));
        let left = fs::read_dir(&dir).unwrap().count();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(left, rest.saturating_sub(MOST_REAPED));
    }

    #[test]
    fn what_a_pod_left_is_removed_and_nothing_that_it_leads_to() {
        let dir = std::env::temp_dir().join(format!("ration-clear-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let (left, kept) = (dir.join("left"), dir.join("kept"));
        fs::create_dir_all(left.join("a/b/c")).unwrap();
        fs::create_dir_all(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        fs::write(left.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink(&kept, left.join("a/link")).unwrap();
        clear(&left, DEEPEST, &mut 2);
        assert!(left.join("a").exists(), "more was removed than was allowed");
        clear(&left, DEEPEST, &mut 100);
        let is_empty = fs::read_dir(&left).unwrap().next().is_none();
        let is_kept = kept.join("file").exists();
        fs::remove_dir_all(&dir).unwrap();
        assert!(is_empty && is_kept);
    }
}
