//! How the node is, for people and for programs.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ration_region::{MAJOR, MINOR};
use serde::Serialize;

use super::regions::{self, ContainerReport, RegionReport, Survey};
use super::store::{self, Store};
use super::uses::Processes;
use super::{disk, old};

/// A library on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LibraryReport {
    /// Its directory's name: version and hash.
    pub name: String,
    /// Whether new pods get it.
    pub current: bool,
    /// What is wrong with it, if anything.
    pub damage: Option<String>,
    /// What keeps it, if it is not current.
    pub kept: Option<String>,
}

/// How the node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The version of this program.
    pub version: String,
    /// The version of the region that its library speaks.
    pub region_version: String,
    /// Whether pods can be started here and are held to their limits.
    pub ready: bool,
    /// What is wrong, and what to do.
    pub problems: Vec<String>,
    /// The directory with the libraries.
    pub libraries_in: String,
    /// The libraries.
    pub libraries: Vec<LibraryReport>,
    /// The directory in which the pods' directories with the regions are.
    pub regions_in: String,
    /// What is in it.
    #[serde(flatten)]
    pub survey: Survey,
    /// Whether all processes of the host could be seen.
    pub host_processes: bool,
}

/// Looks at the node, and changes nothing.
pub fn inspect(store: &Store, region_dir: &Path, processes: &Processes) -> Status {
    let mut problems = Vec::new();
    let mut or_note = |problem: Result<(), String>| problem.map_err(|problem| problems.push(problem)).is_ok();
    for directory in [store.root.clone(), store.lib()] {
        if fs::symlink_metadata(&directory).is_ok() {
            or_note(disk::check_directory(&directory, store::DIRECTORY_MODE));
        }
    }
    let current = match store.current() {
        Ok(Some(current)) => Some(current),
        Ok(None) => {
            or_note(Err(format!(
                "no library is installed in {}: pods that want it wait for it",
                store.lib().display()
            )));
            None
        }
        Err(problem) => {
            or_note(Err(problem));
            None
        }
    };
    let names = store.versions().unwrap_or_else(|problem| {
        or_note(Err(problem));
        Vec::new()
    });
    if let Some(current) = current.as_ref().filter(|it| !names.contains(it)) {
        or_note(Err(format!(
            "`current` leads to {current:?}, which is no library's directory: pods cannot be started"
        )));
    }
    let libraries: Vec<LibraryReport> = names
        .into_iter()
        .map(|name| {
            let is_current = current.as_ref() == Some(&name);
            let damage = store.damage(&name);
            if let Some(damage) = damage.as_ref().filter(|_| is_current) {
                or_note(Err(format!("the library that new pods get, {name}, is damaged: {damage}")));
            }
            let kept =
                (!is_current).then(|| old::user(store, &name, processes).unwrap_or(old::Kept::Young).to_string());
            LibraryReport { current: is_current, damage, kept, name }
        })
        .collect();
    or_note(disk::check_directory(region_dir, regions::DIRECTORY_MODE));
    let survey = regions::survey(region_dir).unwrap_or_else(|problem| {
        or_note(Err(problem));
        Survey::default()
    });
    // A region that cannot be joined is its GPU's trouble, and is said there: the node can start pods all the same.
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        region_version: format!("{MAJOR}.{MINOR}"),
        ready: problems.is_empty(),
        problems,
        libraries_in: store.lib().display().to_string(),
        libraries,
        regions_in: region_dir.display().to_string(),
        survey,
        host_processes: processes.all,
    }
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut size, mut unit) = (count as f64, 0);
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} bytes") } else { format!("{size:.1} {}", UNITS[unit]) }
}

/// A name or a problem may be a tenant's words: what a terminal would obey is not printed.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl Status {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let state = if self.ready { "ready" } else { "NOT ready" };
        writeln!(out, "ration-injector {}, region version {}: the node is {state}", self.version, self.region_version)?;
        for problem in &self.problems {
            writeln!(out, "  problem: {}", plain(problem))?;
        }
        writeln!(out, "libraries in {}", self.libraries_in)?;
        for library in &self.libraries {
            let damage = library.damage.as_deref().map_or("intact".to_owned(), |damage| format!("DAMAGED: {damage}"));
            let role = match &library.kept {
                _ if library.current => "current",
                Some(kept) => kept,
                None => "old",
            };
            writeln!(out, "  {}: {role}; {}", library.name, plain(&damage))?;
        }
        writeln!(out, "regions in {}", self.regions_in)?;
        for region in &self.survey.regions {
            write_region(out, region)?;
        }
        let Survey { drafts, strangers, more, .. } = &self.survey;
        if drafts.len() + strangers.len() > 0 {
            writeln!(out, "  also there: {} unfinished, {} that are not regions", drafts.len(), strangers.len())?;
        }
        if *more {
            writeln!(out, "  and more, which was not looked at")?;
        }
        Ok(())
    }
}

fn write_region(out: &mut String, region: &RegionReport) -> std::fmt::Result {
    let version = region.version.as_deref().unwrap_or("none");
    let joinable = if region.joinable { "can be joined" } else { "CANNOT be joined" };
    let used = match region.in_use {
        Some(true) => "in use",
        Some(false) => "not in use",
        None => "perhaps in use",
    };
    let total = region.memory_total.map(|total| format!(", {}", bytes(total))).unwrap_or_default();
    writeln!(out, "  {}: version {version}, {joinable}, {used}{total}", plain(&region.file))?;
    if let Some(problem) = &region.problem {
        writeln!(out, "    {}", plain(problem))?;
    }
    for container in &region.containers {
        write_container(out, container)?;
    }
    Ok(())
}

fn write_container(out: &mut String, container: &ContainerReport) -> std::fmt::Result {
    let dead = container.processes.len() - container.alive();
    let limit = container.memory_limit.map_or("no limit".to_owned(), bytes);
    let percent = |ppm: u32| format!("{}%", f64::from(ppm) / 10_000.0);
    let request = container.compute_request_ppm.map_or("none".to_owned(), percent);
    let seconds = |ns: u64| ns as f64 / 1e9;
    writeln!(out, "    {}: {} processes alive, {dead} dead", plain(&container.name), container.alive())?;
    let (used, refused) = (bytes(container.memory_used), container.memory_refused);
    writeln!(out, "      memory: {used} of {limit}, refused {refused} times")?;
    writeln!(
        out,
        "      compute: limit {}, request {request}, {}; GPU {:.3} s, throttled {:.3} s, waited {:.3} s, {} leases, {} switches \
         by {}, {} kernels, {} graphs",
        percent(container.compute_limit_ppm),
        container.priority,
        seconds(container.gpu_time_ns),
        seconds(container.throttled_ns),
        seconds(container.waited_ns),
        container.leases,
        container.switches,
        container.switched_by.as_deref().unwrap_or("nothing"),
        container.kernels,
        container.graphs
    )
}

#[cfg(test)]
mod tests {
    use super::{bytes, plain};

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(80 << 30), "80.0 GiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn a_terminal_gets_no_orders() {
        assert_eq!(plain("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
