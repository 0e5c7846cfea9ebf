//! What is read, in the form that programs get it in. Fields are added to it; one that is there keeps its name and its meaning, or
//! [`VERSION`] is another one.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use ration_policy::{Priority, Share};
use ration_region::{ContainerView, PageView, ProcessView, RegionCopy, Seen, Strange, look_among, look_at};
use serde::Serialize;

use crate::{change, places, text};

/// Of the form.
pub const VERSION: u32 = 1;
/// Who has said nothing for so long, in nanoseconds, is quiet: those that use a GPU's time say something many times a second.
const QUIET: u64 = 1_000_000_000;
/// So many things that are none of ours are named.
const PROBLEMS: usize = 20;

/// All of it.
#[derive(Debug, Serialize)]
pub struct Report {
    version: u32,
    /// By UUID.
    pub gpus: Vec<Gpu>,
    /// What could not be read, or does not belong where it is.
    pub problems: Vec<Problem>,
}

/// A GPU that somebody uses.
#[derive(Debug, Default, Serialize)]
pub struct Gpu {
    pub uuid: String,
    /// NVML's number for it, and its model; null: nobody asked, or it does not say.
    pub index: Option<u32>,
    pub name: Option<String>,
    /// What it has; null: only others use it, and they do not say.
    pub memory_bytes: Option<u64>,
    /// What is taken of that, by whomever; null: as `index`.
    pub taken_bytes: Option<u64>,
    pub containers: Vec<Container>,
}

/// A container. What is null is not known, or is not this user's to know.
#[derive(Debug, Serialize)]
pub struct Container {
    pub name: String,
    /// Whether its region was read, and not only what it tells everybody.
    pub is_full: bool,
    /// The user whose directory it has.
    pub user: u32,
    pub directory: String,
    /// null in a full one: there is none.
    pub cap_bytes: Option<u64>,
    pub used_bytes: Option<u64>,
    /// The most that it held.
    pub peak_bytes: Option<u64>,
    pub refused: Option<u64>,
    pub request_percent: Option<f64>,
    pub limit_percent: f64,
    pub priority: &'static str,
    pub weight_percent: Option<f64>,
    /// null: it has said nothing of late.
    pub usage_percent: Option<f64>,
    /// What it would use while it has something to do, if it had the GPU for itself; null: as above.
    pub demand_percent: Option<f64>,
    pub wants_more: Option<bool>,
    pub gpu_seconds: Option<f64>,
    pub throttled_seconds: Option<f64>,
    pub waited_seconds: Option<f64>,
    /// Kernels that it has launched, as far as its processes have told, and graphs.
    pub kernels: Option<u64>,
    pub graphs: Option<u64>,
    /// Leases that it has had, and how often it went off the GPU or on.
    pub leases: Option<u64>,
    pub switches: Option<u64>,
    /// "channels" or "launches"; null: it was not tried yet.
    pub switched_by: Option<&'static str>,
    /// How many use the GPU, by what it tells.
    pub process_count: Option<u64>,
    pub processes: Option<Vec<Process>>,
}

/// A process in a container.
#[derive(Debug, Serialize)]
pub struct Process {
    /// As it sees itself.
    pub pid: u32,
    /// As the driver does, if it said.
    pub driver_pid: Option<u32>,
    /// Whether `pid` is its number here, too.
    pub is_in_this_namespace: bool,
    pub held_bytes: u64,
    /// If not, what it held counts until somebody has made sure that the driver has let go of it.
    pub is_alive: bool,
}

impl Process {
    /// As the driver sees it, where that is known and this is another PID namespace than the process's own.
    pub fn number(&self) -> u32 {
        if self.is_in_this_namespace { self.pid } else { self.driver_pid.unwrap_or(self.pid) }
    }
}

/// Something that is not as it should be.
#[derive(Debug, Serialize)]
pub struct Problem {
    pub path: String,
    pub why: String,
}

impl Report {
    /// What there is now. `dir` and `own`: as the library is told.
    pub fn now(dir: Option<&str>, own: Option<&str>) -> Report {
        let (mut strange, mut report) = (Vec::new(), Making::new(change::now()));
        for dir in places::all(dir) {
            look_among(&dir, &mut strange, &mut |seen| report.see(seen));
        }
        let own = own.map(|own| look_at(Path::new(own), &mut strange)).unwrap_or_default();
        let own: Vec<_> = own.into_iter().filter(|seen| !report.dirs.contains(&seen.dir)).collect();
        own.into_iter().for_each(|seen| report.see(seen));
        report.made(strange)
    }

    /// Only the containers of this name, and whether there are any.
    pub fn only(mut self, name: &str) -> (Report, bool) {
        for gpu in &mut self.gpus {
            gpu.containers.retain(|it| it.name == name);
        }
        self.gpus.retain(|gpu| !gpu.containers.is_empty());
        let is_found = !self.gpus.is_empty();
        (self, is_found)
    }
}

/// A report that is being made.
struct Making {
    now: u64,
    gpus: BTreeMap<[u8; 16], Gpu>,
    problems: Vec<Problem>,
    /// Those that have been looked at.
    dirs: HashSet<PathBuf>,
}

impl Making {
    fn new(now: u64) -> Making {
        Making { now, gpus: BTreeMap::new(), problems: Vec::new(), dirs: HashSet::new() }
    }

    fn see(&mut self, mut seen: Seen) {
        self.dirs.insert(seen.dir.clone());
        let (now, problems) = (self.now, &mut self.problems);
        let region = read(seen.region.take(), &seen, &seen.region_path(), problems);
        let pages = read(seen.public.take(), &seen, &seen.public_path(), problems)
            .map(|public| public.pages().collect::<Vec<_>>())
            .unwrap_or_default();
        let containers = match &region {
            Some(region) => in_full(&seen, region, &pages, now),
            None => pages.iter().filter(|page| page.said != 0).map(|page| told(&seen, page, now)).collect(),
        };
        if containers.is_empty() {
            return;
        }
        let uuid = ration_contract::print_uuid(&seen.gpu);
        let gpu = self.gpus.entry(seen.gpu).or_insert_with(|| Gpu { uuid, ..Gpu::default() });
        gpu.memory_bytes = gpu.memory_bytes.or(region.map(|it| it.total()).filter(|total| *total != 0));
        gpu.containers.extend(containers);
    }

    fn made(mut self, strange: Vec<Strange>) -> Report {
        let strange = strange.into_iter().map(|it| Problem { path: it.path.display().to_string(), why: it.why });
        let mut problems: Vec<Problem> = strange.chain(self.problems).collect();
        for gpu in self.gpus.values_mut() {
            gpu.containers.sort_by(|one, other| (&one.name, one.user).cmp(&(&other.name, other.user)));
        }
        if problems.len() > PROBLEMS {
            let more = text::count((problems.len() - PROBLEMS) as u64, "more such file");
            problems.truncate(PROBLEMS);
            problems.push(Problem { path: "and".into(), why: more });
        }
        Report { version: VERSION, gpus: self.gpus.into_values().collect(), problems }
    }
}

/// A file's contents, if it was there to be read.
fn read<T>(
    file: Option<Result<T, ration_region::OpenError>>,
    seen: &Seen,
    path: &Path,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    match file? {
        Ok(it) => Some(it),
        Err(error) => {
            // That others' regions are not to be read is as it should be.
            let is_closed = matches!(&error, ration_region::OpenError::System { errno, .. } if is_denied(*errno));
            if !is_closed || seen.owner == places::user() {
                problems.push(Problem { path: path.display().to_string(), why: why(&error) });
            }
            None
        }
    }
}

fn is_denied(errno: i32) -> bool {
    errno == rustix::io::Errno::ACCESS.raw_os_error() || errno == rustix::io::Errno::PERM.raw_os_error()
}

/// What is wrong, without the path, which is said before it.
fn why(error: &ration_region::OpenError) -> String {
    use ration_region::OpenError;
    match error {
        OpenError::System { errno, .. } if *errno == rustix::io::Errno::LOOP.raw_os_error() => {
            "a link, where a container has a file".into()
        }
        OpenError::System { what, errno, .. } => {
            format!("cannot be used ({what}): {}", std::io::Error::from_raw_os_error(*errno))
        }
        OpenError::NotARegion { why, .. } => format!("no file of a container's: {why}"),
        OpenError::Version { theirs: (major, minor), .. } => {
            format!("made by a library of another version, {major}.{minor}")
        }
        OpenError::OtherGpu { uuid, .. } => format!("it is {}'s", ration_contract::print_uuid(uuid)),
    }
}

/// The containers of a region in which somebody is, or something outlived who was. What stands there for the dead of a container in
/// which nobody is any more is what nobody has cleared away: their memory is the driver's again.
fn in_full(seen: &Seen, region: &RegionCopy, pages: &[PageView], now: u64) -> Vec<Container> {
    let page_of = |view: &ContainerView<'_>| pages.iter().find(|page| page.slot == view.slot());
    let mut all = Vec::new();
    for view in region.containers() {
        let (processes, used) = (view.members().map(|it| process(&it)).collect::<Vec<_>>(), view.used());
        if !view.members().any(|it| it.alive || it.lent != 0) {
            continue;
        }
        let (compute, page) = (view.compute(), page_of(&view).filter(|page| is_fresh(page, now)));
        all.push(Container {
            name: view.name.to_string(),
            is_full: true,
            user: seen.owner,
            directory: seen.dir.display().to_string(),
            cap_bytes: view.cap.filter(|cap| *cap < region.total()),
            used_bytes: Some(used),
            peak_bytes: Some(view.peak),
            refused: Some(view.refused),
            request_percent: compute.request.map(percent),
            limit_percent: percent(compute.limit),
            priority: word(compute.priority),
            weight_percent: page.map(|page| percent(page.weight)),
            usage_percent: page.map(|page| of_ppm(page.usage)),
            demand_percent: page.map(|page| of_ppm(page.demand)),
            wants_more: page.map(|page| page.wants),
            gpu_seconds: Some(seconds(compute.gpu_time)),
            throttled_seconds: Some(seconds(compute.throttled)),
            waited_seconds: Some(seconds(compute.waited)),
            kernels: Some(compute.kernels),
            graphs: Some(compute.graphs),
            leases: Some(compute.leases),
            switches: Some(compute.switches),
            switched_by: compute.by_channels.map(|is| if is { "channels" } else { "launches" }),
            process_count: Some(processes.iter().filter(|it| it.is_alive).count() as u64),
            processes: Some(processes),
        });
    }
    all
}

/// What a container tells everybody.
fn told(seen: &Seen, page: &PageView, now: u64) -> Container {
    let is_fresh = is_fresh(page, now);
    Container {
        name: page.name.to_string(),
        is_full: false,
        user: seen.owner,
        directory: seen.dir.display().to_string(),
        cap_bytes: None,
        used_bytes: None,
        peak_bytes: None,
        refused: None,
        request_percent: page.request.map(percent),
        limit_percent: percent(page.limit),
        priority: word(page.priority),
        weight_percent: Some(percent(page.weight)),
        usage_percent: is_fresh.then(|| of_ppm(page.usage)),
        demand_percent: is_fresh.then(|| of_ppm(page.demand)),
        wants_more: is_fresh.then_some(page.wants),
        gpu_seconds: None,
        throttled_seconds: None,
        waited_seconds: None,
        kernels: None,
        graphs: None,
        leases: None,
        switches: None,
        switched_by: None,
        process_count: is_fresh.then_some(page.processes),
        processes: None,
    }
}

/// Whether a page is from just now. A container in a time namespace has a clock of its own, and is taken for quiet.
fn is_fresh(page: &PageView, now: u64) -> bool {
    page.said != 0 && now.abs_diff(page.said) < QUIET
}

fn process(view: &ProcessView) -> Process {
    Process {
        pid: view.pid,
        driver_pid: view.driver_pid,
        is_in_this_namespace: view.namespace != 0 && view.namespace == places::pid_namespace(),
        held_bytes: view.held,
        is_alive: view.alive,
    }
}

fn percent(share: Share) -> f64 {
    of_ppm(share.ppm().into())
}

/// Of millionths; what cannot be is all.
fn of_ppm(ppm: u64) -> f64 {
    ppm.min(1_000_000) as f64 / 10_000.0
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn word(priority: Priority) -> &'static str {
    match priority {
        Priority::Latency => "latency",
        Priority::Normal => "normal",
        Priority::Batch => "batch",
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A report with two containers: one's own, and another's of which only the page is known.
    pub fn report() -> Report {
        let own = Container {
            name: "team/train".into(),
            is_full: true,
            user: 1000,
            directory: "/run/ration/1000-team%2ftrain".into(),
            cap_bytes: Some(8 << 30),
            used_bytes: Some(3 << 30),
            peak_bytes: Some(4 << 30),
            refused: Some(2),
            request_percent: Some(30.0),
            limit_percent: 30.0,
            priority: "normal",
            weight_percent: Some(30.0),
            usage_percent: Some(28.7),
            demand_percent: Some(97.1),
            wants_more: Some(true),
            gpu_seconds: Some(12.34),
            throttled_seconds: Some(1.5),
            waited_seconds: Some(0.0),
            kernels: Some(120_000),
            graphs: Some(0),
            leases: Some(7),
            switches: Some(14),
            switched_by: Some("channels"),
            process_count: Some(1),
            processes: Some(vec![Process {
                pid: 4711,
                driver_pid: Some(4711),
                is_in_this_namespace: true,
                held_bytes: 3 << 30,
                is_alive: true,
            }]),
        };
        let other = Container {
            name: "serve".into(),
            is_full: false,
            user: 1001,
            directory: "/run/ration/1001-serve".into(),
            cap_bytes: None,
            used_bytes: None,
            peak_bytes: None,
            refused: None,
            request_percent: None,
            limit_percent: 100.0,
            priority: "latency",
            weight_percent: Some(1.0),
            usage_percent: None,
            demand_percent: None,
            wants_more: None,
            gpu_seconds: None,
            throttled_seconds: None,
            waited_seconds: None,
            kernels: None,
            graphs: None,
            leases: None,
            switches: None,
            switched_by: None,
            process_count: None,
            processes: None,
        };
        let gpu = Gpu {
            uuid: "GPU-6f1c2f7a-0000-0000-0000-000000000001".into(),
            index: None,
            name: None,
            memory_bytes: Some(140 << 30),
            taken_bytes: None,
            containers: vec![own, other],
        };
        Report { version: VERSION, gpus: vec![gpu], problems: Vec::new() }
    }

    #[test]
    fn a_name_leaves_only_its_own() {
        let (report, is_found) = report().only("serve");
        assert!(is_found && report.gpus[0].containers.len() == 1);
        let (report, is_found) = report.only("train");
        assert!(!is_found && report.gpus.is_empty());
    }

    #[test]
    fn the_form_is_version_one() {
        let value = serde_json::to_value(report()).expect("it is JSON");
        assert_eq!(value["version"], 1);
        let container = value["gpus"][0]["containers"][0].as_object().expect("an object");
        let keys: Vec<&str> = container.keys().map(String::as_str).collect();
        let mut expected = [
            "name",
            "is_full",
            "user",
            "directory",
            "cap_bytes",
            "used_bytes",
            "peak_bytes",
            "refused",
            "request_percent",
            "limit_percent",
            "priority",
            "weight_percent",
            "usage_percent",
            "demand_percent",
            "wants_more",
            "gpu_seconds",
            "throttled_seconds",
            "waited_seconds",
            "kernels",
            "graphs",
            "leases",
            "switches",
            "switched_by",
            "process_count",
            "processes",
        ];
        expected.sort_unstable();
        let mut keys = keys;
        keys.sort_unstable();
        assert_eq!(keys, expected, "a name that is gone is another version of the form");
    }

    #[test]
    fn there_is_an_end_to_what_is_named() {
        let strange = |at: usize| Strange { path: format!("/{at}").into(), why: "none of ours".into() };
        let report = Making::new(0).made((0..100).map(strange).collect());
        assert_eq!(report.problems.len(), PROBLEMS + 1);
        assert_eq!(report.problems[PROBLEMS].why, "80 more such files");
    }
}
