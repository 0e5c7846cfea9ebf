//! A container's slice as somebody sees it who need not be in it: `nvidia-smi`, say, which uses no GPU and joins no region.
//!
//! The region is found by name and only looked at. What is read there was written by others, and is believed no further than
//! that a number equals another.

use std::ffi::{CStr, CString, c_int};
use std::path::Path;

use ration_contract::Settings;
use ration_region::{Gpu, ProcessView, Region};

use super::{SETTINGS, all, homes, native, quota, rescue, slice};
use crate::abi::nvml::nvmlDevice_t;
use crate::sys::{self, Errno};

/// The limit of a GPU and what the container uses of it. `total`: what NVML calls the whole.
pub fn limit_and_use(uuid: &[u8; 16], handle: nvmlDevice_t, total: u64) -> Option<(u64, u64)> {
    if let Some(slice) = all().find(|slice| slice.uuid == *uuid) {
        return Some((slice.cap(), slice.used()));
    }
    let settings = settings()?;
    let found = Found::look(settings, uuid).unwrap_or_default();
    let said = settings.memory.for_gpu(u32::MAX, uuid).map(|amount| amount.bytes(total));
    // NVML numbers GPUs in its own way, so for one that is limited by its number only the region knows the limit. It knows
    // best, too, while somebody is held to it: a part of the GPU is then a part of what the driver calls the whole.
    // But what a quota file says is so, whatever is written there.
    let is_known = quota::is_there() && said.is_some();
    if let Some(cap) = found.cap.filter(|_| !is_known && found.members.iter().any(|member| member.alive)) {
        return Some((cap, found.used));
    }
    let cap = said?;
    Some((native::cap(handle).map_or(cap, |native| native.min(cap)), found.used))
}

/// The processes of the container that use a GPU. `None`: nobody knows, because the container has no limit there or the region
/// cannot be read.
pub fn members(uuid: &[u8; 16]) -> Option<Members> {
    let settings = settings()?;
    let found = Found::look(settings, uuid)?;
    let is_limited = found.cap.is_some() || settings.memory.for_gpu(u32::MAX, uuid).is_some();
    let members = Members { processes: found.members, namespace: namespace(c"/proc/self/ns/pid") };
    // A process that could not join is held to the limit by itself, and so may be the others, whom nobody can list then.
    let is_in_it = all().all(|slice| slice.uuid != *uuid || slice.is_shared());
    (is_limited && is_in_it).then_some(members)
}

fn settings() -> Option<&'static Settings> {
    // SAFETY: made by `begin`, before the state said so, and never taken away.
    unsafe { SETTINGS.load(std::sync::atomic::Ordering::Acquire).as_ref() }
}

/// What the files of a GPU say about the container.
#[derive(Default)]
struct Found {
    cap: Option<u64>,
    used: u64,
    members: Vec<ProcessView>,
}

impl Found {
    /// `None`: there is no place where processes could have met.
    fn look(settings: &Settings, uuid: &[u8; 16]) -> Option<Found> {
        let name = slice::name(settings);
        let mut found = Found::default();
        let mut is_known = false;
        rescue::prepare();
        for (dir, home) in homes(settings) {
            // Opening would make one, and there is nothing to be seen in a new one.
            let file = home.region(uuid).and_then(|file| Some(file.to_str()?.to_owned()));
            if !file.is_some_and(|file| may(&file, libc::F_OK)) {
                is_known |= can_be_made_in(&dir);
                continue;
            }
            let Ok(region) = Region::open_at(&home, &Gpu { uuid: *uuid, total: 0 }) else { continue };
            is_known = true;
            for container in region.containers().filter(|container| container.name.as_bytes() == name.as_bytes()) {
                found.cap = found.cap.into_iter().chain(container.cap).min();
                found.used = found.used.saturating_add(container.used());
                found.members.extend(container.members());
            }
        }
        is_known.then_some(found)
    }
}

/// Whether whoever wanted a region in a directory could have made it: if there is none, nobody did.
fn can_be_made_in(dir: &str) -> bool {
    let above = Path::new(dir).parent().and_then(Path::to_str).unwrap_or("/");
    // With a dot behind it, so that a file which is no directory does not count.
    may(&format!("{dir}/."), libc::W_OK) || !may(dir, libc::F_OK) && may(&format!("{above}/."), libc::W_OK)
}

/// The container's processes on one GPU, to be recognised by their numbers.
pub struct Members {
    processes: Vec<ProcessView>,
    /// The PID namespace of this process, in whose numbers NVML lists processes; 0: not known.
    namespace: u64,
}

impl Members {
    /// Whether the process that NVML names by a number is one of them.
    pub fn has(&self, pid: u32) -> bool {
        let alive = || self.processes.iter().filter(|member| member.alive);
        let is_here = |member: &ProcessView| [member.namespace, 0].contains(&self.namespace) || member.namespace == 0;
        let is_called = |member: &ProcessView| match member.driver_pid {
            // A driver that gives everybody the machine's numbers.
            Some(number) => number == pid,
            None => is_here(member) && member.pid == pid,
        };
        alive().any(is_called)
            || alive().any(|member| !is_here(member)) && {
                // One in a namespace below this one, where it has another number.
                let (namespace, innermost) = seen_by_itself(pid);
                alive().any(|member| member.namespace == namespace && Some(member.pid) == innermost)
            }
    }

    /// Whether these numbers, with which the driver names those who were busy, are the numbers that this process knows
    /// processes by.
    ///
    /// Driver R580 translates its lists of processes into the caller's PID namespace, and leaves out those that are not in it;
    /// its utilization names the processes of the whole machine, by their first numbers. A process in the first namespace
    /// knows these; in another one they are believed if they are all in the list, as with a driver that translates both.
    pub fn are_meant_by(&self, busy: &[u32], listed: impl FnOnce() -> Option<Vec<u32>>) -> bool {
        /// The inode of the namespace that every other one is in.
        const FIRST: u64 = 0xefff_fffc;
        self.namespace == FIRST
            || busy.is_empty()
            || listed().is_some_and(|listed| busy.iter().all(|pid| listed.contains(pid)))
    }
}

/// A process's PID namespace, and its number in there.
fn seen_by_itself(pid: u32) -> (u64, Option<u32>) {
    let status = CString::new(format!("/proc/{pid}/status")).ok().and_then(|path| sys::read(&path)).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let innermost = numbers.and_then(|numbers| numbers.split_whitespace().next_back()?.parse().ok());
    (CString::new(format!("/proc/{pid}/ns/pid")).map_or(0, |path| namespace(&path)), innermost)
}

/// The namespace that a file of /proc stands for; 0 where it cannot be had.
fn namespace(path: &CStr) -> u64 {
    let _errno = Errno::kept();
    // SAFETY: numbers, for which zero is a value.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a path that ends in NUL, and a place to write to, in the kernel's form, which is the C library's too.
    let result = unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &raw mut about, 0) };
    if result == 0 { about.st_ino } else { 0 }
}

/// Whether this process may do something with a file.
fn may(path: &str, what: c_int) -> bool {
    let _errno = Errno::kept();
    // SAFETY: a path that ends in NUL.
    CString::new(path).is_ok_and(|path| unsafe { libc::access(path.as_ptr(), what) } == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: u32, namespace: u64, alive: bool) -> ProcessView {
        ProcessView {
            pid,
            driver_pid: None,
            namespace,
            held: 0,
            drift: 0,
            slot: (0, 0),
            found: 0,
            lent: 0,
            node: (0, 0),
            alive,
        }
    }

    #[test]
    fn members_are_known_by_their_numbers_in_this_namespace() {
        let members =
            Members { processes: vec![member(7, 2, true), member(8, 2, false), member(9, 3, true)], namespace: 2 };
        assert!(members.has(7));
        assert!(!members.has(8), "a dead process's number may be another's by now");
        assert!(!members.has(9), "the number of a process in another namespace means nothing here");
        let translated = ProcessView { driver_pid: Some(4711), ..member(7, 2, true) };
        let other = Members { processes: vec![translated], namespace: 2 };
        assert!(other.has(4711) && !other.has(7), "by the driver's number, where that is another");
        let nowhere = Members { namespace: 0, ..members };
        assert!(nowhere.has(9), "without /proc there is one namespace for all we know");
    }

    #[test]
    fn numbers_of_another_namespace_are_not_believed() {
        let members = |namespace| Members { processes: vec![member(7, namespace, true)], namespace };
        let listed = || Some(vec![7, 12]);
        assert!(members(0xefff_fffc).are_meant_by(&[7, 435], || None), "the first namespace has all numbers");
        assert!(members(5).are_meant_by(&[7], listed), "all of them are in the list");
        assert!(!members(5).are_meant_by(&[7, 435], listed), "435 is a number of the whole machine's");
        assert!(!members(5).are_meant_by(&[7], || None), "there is no list");
        assert!(members(5).are_meant_by(&[], || None), "nobody was busy");
    }

    #[test]
    fn this_process_sees_itself_as_everybody_in_its_namespace_does() {
        let me = std::process::id();
        assert_eq!(seen_by_itself(me), (namespace(c"/proc/self/ns/pid"), Some(me)));
        assert_eq!(namespace(c"/proc/self/ns/nothing"), 0);
    }
}
