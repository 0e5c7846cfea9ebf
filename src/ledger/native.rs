//! The cap that the driver itself may hold the container to.
//!
//! From R615 (CUDA 13.4) on, root can give a cgroup (v2) a limit of a GPU's memory, which the driver enforces, or the kernel's
//! `dmem` controller does. Reading it takes no rights.

use std::ffi::{CStr, CString};

use crate::abi::nvml::{NVML_SUCCESS, nvmlDevice_t, nvmlGetMemoryLimits_v1_t};
use crate::driver::calls;
use crate::sys::{self, Errno};

/// Where cgroups are.
const ROOT: &str = "/sys/fs/cgroup";

/// The driver's own limit for this process's cgroup. `None`: there is none, or the driver knows of no such thing.
pub fn cap(handle: nvmlDevice_t) -> Option<u64> {
    let group = own_group(&sys::read(c"/proc/self/cgroup")?, is_there)?;
    // In the driver's own accounting the nearest limit counts, and that is what it tells. The kernel's controller holds a
    // group to the limits of all groups above as well.
    let kernel = is_there(&format!("{group}/dmem.max"));
    let groups = std::iter::successors(Some(group.as_str()), |group| above(group).filter(|_| kernel));
    groups.filter_map(|group| limit(handle, &CString::new(group).ok()?)).min()
}

/// The limit that is set for a group.
fn limit(handle: nvmlDevice_t, group: &CStr) -> Option<u64> {
    let mut limits = nvmlGetMemoryLimits_v1_t { nameSpace: group.as_ptr(), ..Default::default() };
    // SAFETY: a handle of NVML's, and a path that outlives the call.
    let told = unsafe { calls::nvmlDeviceGetMemoryLimits_v1(handle, &raw mut limits) };
    // All ones (NVML_DEVICE_MEMORY_LIMIT_MAX): no limit.
    (told == NVML_SUCCESS && limits.hardLimit != u64::MAX).then_some(limits.hardLimit)
}

/// The directory of the group that /proc/self/cgroup names.
fn own_group(text: &str, is_there: impl Fn(&str) -> bool) -> Option<String> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    // Outside of what this process can see of the tree of groups.
    if path.split('/').any(|part| part == "..") {
        return None;
    }
    let group = format!("{ROOT}{}", path.trim_end_matches('/'));
    // A container may see the machine's name for its group, and the group itself as the root.
    Some(if is_there(&group) { group } else { ROOT.to_owned() })
}

/// The group above, if there is one.
fn above(group: &str) -> Option<&str> {
    group.rsplit_once('/').map(|(above, _)| above).filter(|above| above.len() >= ROOT.len())
}

fn is_there(path: &str) -> bool {
    let _errno = Errno::kept();
    // SAFETY: a path that ends in NUL.
    CString::new(path).is_ok_and(|path| unsafe { libc::access(path.as_ptr(), libc::F_OK) } == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_found_as_the_process_sees_it() {
        let in_tree = |text| own_group(text, |_| true);
        assert_eq!(in_tree("0::/\n").as_deref(), Some("/sys/fs/cgroup"));
        assert_eq!(in_tree("1:cpu:/a\n0::/user.slice/x\n").as_deref(), Some("/sys/fs/cgroup/user.slice/x"));
        assert_eq!(in_tree("0::/../other\n"), None);
        assert_eq!(in_tree("4:memory:/docker/1\n"), None, "the first version has no such limits");
        let elsewhere = own_group("0::/kubepods/pod1\n", |path| path == ROOT);
        assert_eq!(elsewhere.as_deref(), Some("/sys/fs/cgroup"));
    }

    #[test]
    fn groups_end_at_the_root() {
        let all: Vec<_> = std::iter::successors(Some("/sys/fs/cgroup/a/b"), |group| above(group)).collect();
        assert_eq!(all, ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]);
    }
}
