//! Processes as the caller sees them.
//!
//! The world knows a process by the PID that it has in its own PID namespace. NVML of driver R580 gives PIDs in the
//! caller's namespace and leaves out the processes that have none there. A process in a namespace below the caller's
//! has one; the kernel lists them all, from the outermost visible to the innermost, in the `NSpid:` line of its status.
//!
//! That holds for its lists of processes. Utilization it tells of all processes, by their numbers in the first namespace.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sim_world::procs::own_pid_namespace;

/// A process, as the world knows it.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    /// As it sees itself.
    pub pid: u64,
    /// The inode of its PID namespace; 0 where the process could not tell.
    pub namespace: u64,
    /// Its command's name.
    pub name: String,
}

/// Finds processes' PIDs from the point of view of this one.
pub(crate) struct View {
    namespace: u64,
    proc: PathBuf,
    /// What /proc lists, read when first needed: for most callers all processes are in their own namespace.
    listed: Option<Vec<Listed>>,
}

struct Listed {
    /// In the namespace of this /proc.
    pid: u64,
    /// In the process's own.
    innermost: u64,
    name: String,
}

impl View {
    /// This process's.
    pub(crate) fn own() -> View {
        View { namespace: own_pid_namespace(), proc: "/proc".into(), listed: None }
    }

    /// The PID under which the caller knows the process, if it does.
    pub(crate) fn pid(&mut self, known: &Known) -> Option<u32> {
        let pid = if known.namespace == self.namespace || known.namespace == 0 || self.namespace == 0 {
            known.pid
        } else {
            self.below(known)?
        };
        u32::try_from(pid).ok()
    }

    /// The number by which the driver names the process where it does not translate. Nobody here can know it for a
    /// process that the caller cannot see; what stands for it is one that no process has.
    pub(crate) fn number(&mut self, known: &Known) -> u32 {
        /// Linux numbers processes up to here.
        const HIGHEST: u64 = 1 << 22;
        self.pid(known).unwrap_or((HIGHEST + known.pid % HIGHEST) as u32)
    }

    fn below(&mut self, known: &Known) -> Option<u64> {
        let proc = &self.proc;
        let listed = self.listed.get_or_insert_with(|| list(proc));
        let mut maybe = Vec::new();
        for process in listed.iter().filter(|process| process.innermost == known.pid) {
            match std::fs::metadata(proc.join(process.pid.to_string()).join("ns/pid")) {
                Ok(namespace) if namespace.ino() == known.namespace => return Some(process.pid),
                Ok(_) => {}
                // Another user's: its namespace cannot be read, but its name can.
                Err(_) if known.name == process.name => maybe.push(process.pid),
                Err(_) => {}
            }
        }
        match maybe[..] {
            [pid] => Some(pid),
            _ => None,
        }
    }
}

/// The processes of a /proc that are in a namespace below its own, if its own is the caller's: in a container that has
/// its host's /proc the numbers would be the host's.
fn list(proc: &Path) -> Vec<Listed> {
    let own = std::fs::read_to_string(proc.join("self/status")).unwrap_or_default();
    if line(&own, "NSpid:").is_none_or(|pids| pids.split_whitespace().count() != 1) {
        return Vec::new();
    }
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
    pids.filter_map(|pid| {
        let status = std::fs::read_to_string(proc.join(pid.to_string()).join("status")).ok()?;
        parse(&status)
    })
    .collect()
}

/// What stands behind a label of a status.
fn line<'a>(status: &'a str, label: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(label)).map(str::trim)
}

fn parse(status: &str) -> Option<Listed> {
    let pids: Vec<u64> =
        line(status, "NSpid:")?.split_whitespace().map(|pid| pid.parse().ok()).collect::<Option<_>>()?;
    match pids[..] {
        [pid, .., innermost] => Some(Listed { pid, innermost, name: line(status, "Name:")?.to_owned() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(dir: &Path, pid: &str, name: &str, nspid: &str) {
        let place = dir.join(pid);
        std::fs::create_dir_all(&place).expect("a temporary directory is writable");
        std::fs::write(place.join("status"), format!("Name:\t{name}\nPid:\t{pid}\nNSpid:\t{nspid}\n"))
            .expect("writable");
    }

    fn known(pid: u64, namespace: u64, name: &str) -> Known {
        Known { pid, namespace, name: name.into() }
    }

    #[test]
    fn a_process_below_is_found_and_one_outside_is_not() {
        let dir = std::env::temp_dir().join(format!("sim-libnvml-pids-{}", std::process::id()));
        process(&dir, "self", "caller", "99");
        process(&dir, "100", "python3", "100");
        process(&dir, "101", "python3", "101\t7");
        process(&dir, "102", "trainer", "102\t7");
        process(&dir, "103", "server", "103\t12\t1");
        process(&dir, "104", "twin", "104\t9");
        process(&dir, "105", "twin", "105\t9");
        std::fs::create_dir_all(dir.join("103/ns")).expect("writable");
        std::fs::write(dir.join("103/ns/pid"), "").expect("writable");
        let inner = std::fs::metadata(dir.join("103/ns/pid")).expect("just written").ino();

        let mut view = View { namespace: 1, proc: dir.clone(), listed: None };
        assert_eq!(view.pid(&known(100, 1, "python3")), Some(100), "in the caller's own namespace");
        assert_eq!(view.pid(&known(7, 2, "trainer")), Some(102), "by number and name");
        assert_eq!(view.pid(&known(1, inner, "anything")), Some(103), "by its namespace");
        assert_eq!(view.pid(&known(9, 2, "twin")), None, "two that could be it");
        assert_eq!(view.pid(&known(55, 3, "python3")), None, "not visible from here");
        assert_eq!(view.number(&known(100, 1, "python3")), 100);
        assert!(view.number(&known(55, 3, "python3")) >= 1 << 22, "a number all the same, that is nobody's");
        process(&dir, "self", "caller", "99\t3");
        view.listed = None;
        assert_eq!(view.pid(&known(7, 2, "trainer")), None, "the numbers of this /proc are not the caller's");
        std::fs::remove_dir_all(dir).expect("ours");
    }
}
