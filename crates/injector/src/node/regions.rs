//! The regions on the node, seen from outside: whether the library can join each, who is in it, and what they have used.
//!
//! Each pod has a directory of its own, in the one that all pods can look into. In it lie, for each GPU, the region, in which the
//! pod's processes meet, and what the pod tells everybody.
//!
//! A pod may write to its directory whatever it likes. Nothing that is found there is believed, followed or waited for; how much of it is
//! looked at is bounded.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ration_region::{ContainerView, Gpu, MAJOR, MINOR, OpenError, Region};
use serde::Serialize;

use super::disk;
use super::uses::{Use, lease, open_plain};

/// Of the directory, and so of those that the kubelet makes in it: every user may make a region there, and nobody remove another's.
pub const DIRECTORY_MODE: u32 = 0o1777;
/// Of a region in such a directory, for the same reason.
const FILE_MODE: u32 = 0o666;
const MAGIC: &[u8; 8] = b"rationRG";
/// So many regions are looked at.
pub const MOST_REGIONS: usize = 2048;
/// So many of one directory: of 8 GPUs, each in 7 parts. A pod that makes more does not keep this one from others'.
const MOST_IN_ONE: usize = 64;
/// So many processes in one directory are told of.
const MOST_PROCESSES: usize = 4096;
/// So many names in the directory of all are looked at.
pub const MOST_NAMES: usize = 4096;
/// So many names in one directory.
const MOST_NAMES_IN_ONE: usize = 256;

/// A process in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    /// Its number, as it sees itself.
    pub pid: u32,
    /// Its number as the driver sees it, which is the host's.
    pub host_pid: Option<u32>,
    /// The bytes that it holds.
    pub memory_held: u64,
    /// Whether it lives.
    pub alive: bool,
}

/// A container in a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContainerReport {
    /// Its name: `namespace/pod/container` where the injector gave it.
    pub name: String,
    /// The bytes that it may hold, if there is a limit.
    pub memory_limit: Option<u64>,
    /// The bytes that it holds.
    pub memory_used: u64,
    /// The most that it held.
    pub memory_peak: u64,
    /// How often it was refused memory.
    pub memory_refused: u64,
    /// The part of the GPU's time that it may have, in millionths.
    pub compute_limit_ppm: u32,
    /// The part that it is to have at least, in millionths.
    pub compute_request_ppm: Option<u32>,
    /// How urgent its work is.
    pub priority: String,
    /// How long the GPU has worked for it, in nanoseconds.
    pub gpu_time_ns: u64,
    /// How long its limit has kept it off the GPU.
    pub throttled_ns: u64,
    /// How long it has waited for leases.
    pub waited_ns: u64,
    /// Leases that it has had.
    pub leases: u64,
    /// How often it went off the GPU or on.
    pub switches: u64,
    /// By what: `channels`, `launches` where those cannot be driven, or nothing yet.
    pub switched_by: Option<String>,
    /// Kernels that it has launched.
    pub kernels: u64,
    /// Graphs that it has launched.
    pub graphs: u64,
    /// Its processes, the dead that nobody has buried included.
    pub processes: Vec<ProcessReport>,
}

impl ContainerReport {
    fn of(view: &ContainerView<'_>) -> ContainerReport {
        let compute = view.compute();
        ContainerReport {
            name: view.name.to_string(),
            memory_limit: view.cap,
            memory_used: view.used(),
            memory_peak: view.peak,
            memory_refused: view.refused,
            compute_limit_ppm: compute.limit.ppm(),
            compute_request_ppm: compute.request.map(|share| share.ppm()),
            priority: format!("{:?}", compute.priority).to_lowercase(),
            gpu_time_ns: compute.gpu_time,
            throttled_ns: compute.throttled,
            waited_ns: compute.waited,
            leases: compute.leases,
            switches: compute.switches,
            switched_by: compute.by_channels.map(|it| if it { "channels" } else { "launches" }.to_owned()),
            kernels: compute.kernels,
            graphs: compute.graphs,
            processes: view
                .members()
                .map(|it| ProcessReport { pid: it.pid, host_pid: it.driver_pid, memory_held: it.held, alive: it.alive })
                .collect(),
        }
    }

    /// How many of its processes live.
    pub fn alive(&self) -> usize {
        self.processes.iter().filter(|it| it.alive).count()
    }
}

/// A region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RegionReport {
    /// The file's name, behind that of its directory.
    pub file: String,
    /// The GPU's UUID, as its name has it.
    pub gpu: String,
    /// The version of the file, major and minor, if it begins as a region.
    pub version: Option<String>,
    /// Whether the library of this release can join it.
    pub joinable: bool,
    /// If it cannot: why, and what to do. If it can: what is odd about it.
    pub problem: Option<String>,
    /// Whether somebody uses it; where that cannot be told, nothing.
    pub in_use: Option<bool>,
    /// The GPU's memory in bytes.
    pub memory_total: Option<u64>,
    /// Who is in it.
    pub containers: Vec<ContainerReport>,
}

impl RegionReport {
    /// The name of the directory that it lies in; nothing: the one of all.
    pub fn directory(&self) -> &str {
        self.file.rsplit_once('/').map_or("", |(directory, _)| directory)
    }
}

/// What is in the directories.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// The regions.
    pub regions: Vec<RegionReport>,
    /// Names of regions that somebody has begun and not finished.
    pub drafts: Vec<String>,
    /// Names of other things.
    pub strangers: Vec<String>,
    /// Whether there is more than was looked at.
    pub more: bool,
}

/// Regions are looked at by one thread at a time: whether anybody else uses a file could not be told otherwise.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPU's UUID in the name of a region's file.
pub fn uuid_in(name: &str) -> Option<[u8; 16]> {
    let text = name.strip_prefix("gpu-")?.strip_suffix(".region")?;
    let dashes = [8, 13, 18, 23];
    let is_dashed = text.len() == 36 && dashes.iter().all(|&at| text.as_bytes()[at] == b'-');
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if !is_dashed || digits.len() != 32 || !digits.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

/// What a file is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The region of a GPU.
    Region([u8; 16]),
    /// What is told everybody about that GPU.
    Public,
    /// One of these that somebody has begun.
    Draft,
    /// Something else.
    Other,
}

/// What a name stands for.
pub fn kind_of(name: &str) -> Kind {
    let is_of_gpu = |uuid: &str| uuid_in(&format!("gpu-{uuid}.region")).is_some();
    let draft = |rest: &str| rest.split_once('.').is_some_and(|(uuid, _)| is_of_gpu(uuid));
    if let Some(uuid) = uuid_in(name) {
        Kind::Region(uuid)
    } else if name.strip_prefix("gpu-").and_then(|rest| rest.strip_suffix(".public")).is_some_and(is_of_gpu) {
        Kind::Public
    } else if name.strip_prefix(".gpu-").is_some_and(draft) {
        Kind::Draft
    } else {
        Kind::Other
    }
}

/// The name of what is told everybody, beside a region of this name, or the other way round.
pub fn beside(name: &str) -> String {
    match (name.strip_suffix(".region"), name.strip_suffix(".public")) {
        (Some(gpu), _) => format!("{gpu}.public"),
        (_, Some(gpu)) => format!("{gpu}.region"),
        _ => String::new(),
    }
}

/// A directory with regions: that of all pods, in which there were some before each had its own; or one in it.
#[derive(Debug)]
pub struct Place {
    /// By which it is reached: it leads there whatever has its name by now.
    pub path: PathBuf,
    called: PathBuf,
    /// What names in it are put behind.
    prefix: String,
    /// Held open, for the path goes by it.
    directory: Option<File>,
}

impl Place {
    /// The one of all pods.
    pub fn of_all(dir: &Path) -> Place {
        Place { path: dir.to_owned(), called: dir.to_owned(), prefix: String::new(), directory: None }
    }

    /// One in it, which is no link.
    pub fn within(dir: &Path, name: &str) -> io::Result<Place> {
        let called = dir.join(name);
        let directory = disk::open_directory(&called)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        Ok(Place { path, called, prefix: format!("{name}/"), directory: Some(directory) })
    }

    /// The one in which a file lies that is told of by this name, and the file's name there.
    pub fn of_file<'a>(dir: &Path, file: &'a str) -> io::Result<(Place, &'a str)> {
        match file.rsplit_once('/') {
            Some((name, file)) => Ok((Place::within(dir, name)?, file)),
            None => Ok((Place::of_all(dir), file)),
        }
    }

    /// The name of a file in it, as it is told.
    pub fn name(&self, file: &str) -> String {
        format!("{}{file}", self.prefix)
    }

    /// Where a file in it is, as it is told.
    pub fn called(&self, file: &str) -> PathBuf {
        self.called.join(file)
    }

    /// The names in it, and whether there are more.
    pub fn names(&self) -> (Vec<String>, bool) {
        disk::names_in(&self.path, MOST_NAMES_IN_ONE).unwrap_or_default()
    }

    /// Which directory it is, and when something in it came or went.
    pub fn state(&self) -> Option<(u64, i64, i64)> {
        let about = self.directory.as_ref()?.metadata().ok()?;
        Some((about.ino(), about.mtime(), about.mtime_nsec()))
    }

    /// What went wrong with a file in it, by the name that people know.
    fn said(&self, problem: &impl ToString) -> String {
        let by = self.path.display().to_string();
        problem.to_string().replace(&by, &self.called.display().to_string())
    }

    /// Whether every user may make something in it.
    fn is_for_all(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|about| about.mode() & 0o002 != 0)
    }
}

/// What a region's file begins with.
#[derive(Debug, Clone, Copy)]
struct Begin {
    version: (u16, u16),
    total: u64,
}

fn begin(file: &mut std::fs::File) -> Option<Begin> {
    let mut bytes = [0; 64];
    file.read_exact(&mut bytes).ok()?;
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let total = bytes[56..64].try_into().map(u64::from_le_bytes).ok()?;
    bytes.starts_with(MAGIC).then(|| Begin { version: (half(8), half(10)), total })
}

/// A region that was opened, and what is told of it.
pub struct Opened {
    /// What is told.
    pub report: RegionReport,
    /// The region, if the library can join it.
    pub region: Option<Region>,
}

/// Looks at one region. To be called by one thread at a time: see [`alone`].
pub fn look(place: &Place, name: &str, uuid: [u8; 16]) -> Opened {
    let mut report = RegionReport {
        file: place.name(name),
        gpu: name["gpu-".len()..name.len() - ".region".len()].to_owned(),
        version: None,
        joinable: false,
        problem: None,
        in_use: None,
        memory_total: None,
        containers: Vec::new(),
    };
    let path = place.path.join(name);
    let mut file = match open_plain(&path) {
        Ok(file) => file,
        Err(error) => {
            let advice = "as long as it is there, no process can join the GPU's region here";
            report.problem = Some(format!("cannot look at {}: {error}; {advice}", place.called(name).display()));
            return Opened { report, region: None };
        }
    };
    let length = |file: &std::fs::File| file.metadata().map_or(0, |it| it.len());
    let (begin, long) = (begin(&mut file), length(&file));
    report.version = begin.map(|it| format!("{}.{}", it.version.0, it.version.1));
    let opened = match begin {
        Some(Begin { version, total }) if version.0 == MAJOR && disk::is_at(&file, &path) => {
            Region::look(&place.path, &Gpu { uuid, total })
        }
        Some(Begin { version, .. }) if version.0 != MAJOR => Err(OpenError::Version { path, theirs: version }),
        Some(_) => Err(OpenError::NotARegion { path, why: "it was replaced while it was looked at" }),
        None => Err(OpenError::NotARegion { path, why: "it does not begin as one" }),
    };
    match opened {
        Ok(region) => {
            report.joinable = true;
            report.memory_total = Some(region.total());
            let containers = region.containers().filter(|it| it.members().next().is_some());
            report.containers = containers.map(|it| ContainerReport::of(&it)).collect();
            report.in_use = Some(report.containers.iter().any(|it| it.alive() > 0));
            report.problem = oddity(&file, place.is_for_all(), begin.map(|it| it.version.1));
            if length(&file) < long {
                // What was read of it then are zeros: see [`super::bus`].
                report.problem =
                    Some("somebody cut it short while it was looked at: who is in it cannot be told".to_owned());
                (report.joinable, report.in_use) = (false, None);
                return Opened { report, region: None };
            }
            Opened { report, region: Some(region) }
        }
        Err(problem) => {
            report.problem = Some(place.said(&problem));
            // Nobody can join it, so nobody is disturbed by the question.
            report.in_use = match lease(file) {
                Use::Nobody(_) => Some(false),
                Use::Somebody => Some(true),
                Use::Unknown(_) => None,
            };
            Opened { report, region: None }
        }
    }
}

/// What is odd about a region that the library can join.
fn oddity(file: &std::fs::File, is_for_all: bool, minor: Option<u16>) -> Option<String> {
    let about = file.metadata().ok()?;
    let mode = about.mode() & 0o777;
    if is_for_all && mode & FILE_MODE != FILE_MODE {
        return Some(format!("its mode is {mode:04o}, so not every user can join it; it should be {FILE_MODE:04o}"));
    }
    minor.filter(|theirs| *theirs > MINOR).map(|theirs| {
        format!(
            "a newer library (version {MAJOR}.{theirs}) has been in it; this release's ({MAJOR}.{MINOR}) can join, and leaves \
             alone what it does not know"
        )
    })
}

impl Survey {
    /// Looks at what has these names.
    fn add(&mut self, place: &Place, names: &[String]) {
        let (mut regions, mut processes) = (0, 0);
        for name in names {
            let others = match kind_of(name) {
                Kind::Public => continue,
                Kind::Region(uuid) => {
                    if regions == MOST_IN_ONE || processes > MOST_PROCESSES || self.regions.len() == MOST_REGIONS {
                        self.more = true;
                        continue;
                    }
                    let report = look(place, name, uuid).report;
                    processes += report.containers.iter().map(|it| it.processes.len()).sum::<usize>();
                    regions += 1;
                    self.regions.push(report);
                    continue;
                }
                Kind::Draft => &mut self.drafts,
                Kind::Other => &mut self.strangers,
            };
            if others.len() == MOST_NAMES {
                self.more = true;
            } else {
                others.push(place.name(name));
            }
        }
    }
}

/// Looks at all regions.
pub fn survey(dir: &Path) -> Result<Survey, String> {
    let _alone = alone();
    let (names, more) = disk::names_in(dir, MOST_NAMES)?;
    let mut survey = Survey { more, ..Survey::default() };
    for name in names {
        match Place::within(dir, &name) {
            Ok(place) if kind_of(&name) == Kind::Other => {
                let (inside, more) = place.names();
                survey.more |= more;
                survey.add(&place, &inside);
            }
            _ => survey.add(&Place::of_all(dir), &[name]),
        }
    }
    Ok(survey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_regions_are_told_from_others() {
        let uuid = uuid_in("gpu-01234567-89ab-cdef-2073-6f6d65677075.region").expect("a region's name");
        assert_eq!(&uuid, b"\x01\x23\x45\x67\x89\xab\xcd\xef somegpu");
        for other in [
            "gpu-.region",
            "gpu-01234567-89ab-cdef-2073-6f6d65677075",
            "gpu-01234567-89AB-cdef-2073-6f6d65677075.region",
            "gpu-0123456789abcdef-2073-6f6d65677075----.region",
            "gpu-é1234567-89ab-cdef-2073-6f6d6567707.region",
            "other",
        ] {
            assert_eq!(uuid_in(other), None, "{other}");
        }
        for (name, kind) in [
            ("gpu-01234567-89ab-cdef-2073-6f6d65677075.region", Kind::Region(uuid)),
            ("gpu-01234567-89ab-cdef-2073-6f6d65677075.public", Kind::Public),
            (".gpu-01234567-89ab-cdef-2073-6f6d65677075.12.0.abc.def.7ff", Kind::Draft),
            (".gpu-01234567-89ab-cdef-2073-6f6d65677075", Kind::Other),
            (".gpu-other.1", Kind::Other),
            ("gpu-other.public", Kind::Other),
            (".public", Kind::Other),
            ("705ab4f5-6393-11e8-b7cc-42010a800002", Kind::Other),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
        }
        assert_eq!(beside("gpu-x.region"), "gpu-x.public");
        assert_eq!(beside("gpu-x.public"), "gpu-x.region");
    }
}
