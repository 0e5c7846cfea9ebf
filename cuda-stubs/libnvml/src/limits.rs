//! Limits of memory for cgroups, as drivers from R615 (CUDA 13.4) on have them.
//!
//! Written from NVIDIA's documentation, not measured. They are kept in a file beside the world, `memory-limits`, with a line
//! `GPU SOFT HARD CGROUP` for each, the last one of a cgroup being the one that counts. They are told, not enforced: the
//! simulated driver gives a cgroup what it asks for.

use std::ffi::{CStr, c_char};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use sim_world::World;

use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::gpu::Gpu;
use crate::processes::running;

/// A limit of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    soft: u64,
    hard: u64,
}

/// No limit.
const NONE: Limit = Limit { soft: 0, hard: u64::MAX };

fn file() -> PathBuf {
    World::default_dir().join("memory-limits")
}

/// The limit of a cgroup for a GPU: its own, or that of the nearest one above.
fn nearest(text: &str, gpu: usize, group: &Path) -> Option<Limit> {
    let of = |group: &Path| {
        text.lines().rev().find_map(|line| {
            let mut words = line.splitn(4, ' ');
            let mut number = || words.next()?.parse::<u64>().ok();
            let (index, limit) = (number()?, Limit { soft: number()?, hard: number()? });
            (index == gpu as u64 && Path::new(words.next()?) == group).then_some(limit)
        })
    };
    group.ancestors().find_map(|group| of(group).filter(|limit| *limit != NONE))
}

/// What the processes in a cgroup hold of a GPU, as far as the caller can see them.
fn used(gpu: Gpu, group: &Path) -> u64 {
    let is_in_it = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
        path.is_some_and(|path| Path::new("/sys/fs/cgroup").join(path).starts_with(group))
    };
    running(gpu).iter().filter(|process| is_in_it(process.pid)).map(|process| process.bytes).sum()
}

/// The path that a caller names a cgroup by.
fn group(name: *const c_char) -> Outcome<PathBuf> {
    if name.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: NVML's contract is a zero-terminated string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?;
    Some(PathBuf::from(name)).filter(|path| path.is_absolute()).ok_or(NVML_ERROR_INVALID_ARGUMENT)
}

nvml! {
    export fn nvmlDeviceGetMemoryLimits_v1(gpu: Gpu; limits: Out<nvmlGetMemoryLimits_v1_t>) {
        let asked = limits.get()?;
        let group = group(asked.nameSpace)?;
        let text = std::fs::read_to_string(file()).unwrap_or_default();
        // Drivers that have no such limits do not have this function either.
        let limit = nearest(&text, gpu.index, &group).ok_or(NVML_ERROR_NOT_SUPPORTED)?;
        let (softLimit, hardLimit, currentUsed) = (limit.soft, limit.hard, used(gpu, &group));
        limits.set(nvmlGetMemoryLimits_v1_t { nameSpace: asked.nameSpace, softLimit, hardLimit, currentUsed })
    }

    export fn nvmlDeviceSetMemoryLimits_v1(gpu: Gpu; limits: Out<nvmlSetMemoryLimits_v1_t>) {
        let asked = limits.get()?;
        let group = group(asked.nameSpace)?;
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return Err(NVML_ERROR_NO_PERMISSION);
        }
        let line = format!("{} {} {} {}\n", gpu.index, asked.softLimit, asked.hardLimit, group.display());
        let written = OpenOptions::new().create(true).append(true).open(file()).and_then(|mut f| f.write_all(line.as_bytes()));
        written.map_err(|_| NVML_ERROR_UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_limit_counts_and_the_last_word_on_it() {
        let text = "0 0 100 /sys/fs/cgroup/a\n0 5 50 /sys/fs/cgroup/a/b\n1 0 7 /sys/fs/cgroup/a/b\nnot a limit\n";
        let at = |text: &str, group: &str| nearest(text, 0, Path::new(group)).map(|limit| (limit.soft, limit.hard));
        assert_eq!(at(text, "/sys/fs/cgroup/a/b/c"), Some((5, 50)));
        assert_eq!(at(text, "/sys/fs/cgroup/a/x"), Some((0, 100)));
        assert_eq!(at(text, "/sys/fs/cgroup"), None);
        let cleared = format!("{text}0 0 {} /sys/fs/cgroup/a/b\n", u64::MAX);
        assert_eq!(at(&cleared, "/sys/fs/cgroup/a/b"), Some((0, 100)), "cleared: the one above is the nearest");
    }
}
