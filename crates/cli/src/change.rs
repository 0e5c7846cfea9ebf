//! A change of what a container may have, written where its processes look.

use ration_contract::{PerGpu, Priority, Settings};
use ration_policy::Share;
use ration_region::{Change, ContainerView, Gpu, Region, RegionCopy, Seen, look_at};

use crate::asked::goes_by_number;
use crate::runs::Run;

/// What has changed since a container was started, for one GPU. What it was started with is not written again: the library knows more
/// about it, such as a limit of the driver's own.
fn since(began: &Settings, now: &Settings, gpu: &[u8; 16], total: u64) -> Change {
    let shares = |list: &PerGpu<ration_contract::Share>| of_gpu(list, gpu).map(|it| it.ppm());
    let (before, after) = (&began.compute_request, &now.compute_request);
    let request =
        (before != after && !goes_by_number(after)).then(|| shares(after).filter(|ppm| *ppm > 0).map(Share::from_ppm));
    let (before, after) = (&began.compute_limit, &now.compute_limit);
    let limit =
        (before != after && !goes_by_number(after)).then(|| shares(after).map_or(Share::WHOLE, Share::from_ppm));
    let (before, after) = (&began.memory, &now.memory);
    let cap = (before != after && !goes_by_number(after))
        .then(|| of_gpu(after, gpu).map_or(total, |amount| amount.bytes(total)));
    let priority = (began.priority != now.priority).then_some(match now.priority {
        Priority::Latency => ration_policy::Priority::Latency,
        Priority::Normal => ration_policy::Priority::Normal,
        Priority::Batch => ration_policy::Priority::Batch,
    });
    Change { cap, limit, request, priority }
}

/// What is said about a GPU by its UUID, or about all.
fn of_gpu<'a, T>(list: &'a PerGpu<T>, gpu: &[u8; 16]) -> Option<&'a T> {
    // No process counts so far.
    list.for_gpu(u32::MAX, gpu)
}

/// Whether a region says something else than it should by a change.
fn differs(view: &ContainerView<'_>, change: &Change) -> bool {
    let compute = view.compute();
    change.cap.is_some_and(|cap| view.cap != Some(cap))
        || change.limit.is_some_and(|limit| limit != compute.limit)
        || change.request.is_some_and(|request| request != compute.request)
        || change.priority.is_some_and(|priority| priority != compute.priority)
}

/// What became of it on a GPU.
pub struct Told {
    /// The GPU's UUID.
    pub gpu: [u8; 16],
    /// The cap from now on.
    pub cap: Option<u64>,
    /// What the container holds.
    pub used: u64,
}

/// The container's place in each region that it has, read just now.
pub fn regions(run: &Run) -> Vec<(Seen, RegionCopy)> {
    let seen = run.homes().into_iter().flat_map(|dir| look_at(&dir, &mut Vec::new()));
    seen.filter_map(|mut seen| {
        let copy = seen.region.take()?.ok()?;
        Some((seen, copy))
    })
    .collect()
}

/// Tells a container's processes what holds now, on each GPU that they use.
pub fn tell(run: &Run, regions: &[(Seen, RegionCopy)]) -> Vec<Told> {
    let mut told = Vec::new();
    for (seen, copy) in regions {
        let Some(view) = copy.containers().find(|it| it.name.as_bytes() == run.name.as_bytes()) else { continue };
        let change = since(&run.began, &run.now, &seen.gpu, copy.total());
        if differs(&view, &change) {
            // Not from before: who is told now reads its own copy of it soon enough.
            let gpu = Gpu { uuid: seen.gpu, total: copy.total() };
            if let Ok(region) = Region::look(&seen.dir, &gpu) {
                let _ = region.change(&run.name, &change, now());
            }
        }
        told.push(Told { gpu: seen.gpu, cap: change.cap.or(view.cap), used: view.used() });
    }
    told
}

/// As containers count time, in nanoseconds.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000) + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// A region of this user's own may be cut short while it is written to. Then it is put right instead of the end of this program.
pub fn survive_cut_files() {
    let rescue = |about: &libc::siginfo_t| {
        // SAFETY: the kernel filled it in for a signal of this kind, which has an address.
        let address = unsafe { about.si_addr() };
        if !ration_region::rescue(address) {
            signal_hook::low_level::abort();
        }
    };
    // SAFETY: `rescue` is made to be called by a handler of this signal, and so is `abort`.
    let _ = unsafe { signal_hook_registry::register_sigaction(signal_hook::consts::SIGBUS, rescue) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: [u8; 16] = [0x11; 16];

    fn settings(text: &str) -> Settings {
        Settings::read(&|_| None, Some(text)).expect(text)
    }

    #[test]
    fn only_what_was_changed_is_told() {
        let began = settings("memory = 2GiB\ncompute = 30%\nname = box\n");
        let since = |now: &str| since(&began, &settings(now), &GPU, 8 << 30);
        assert_eq!(since("memory = 2GiB\ncompute = 30%\n"), Change::default());
        let share = Share::from_ppm;
        let change = since("memory = 50%\ncompute_request = 20%\ncompute_limit = 30%\npriority = batch\n");
        let expected = Change {
            cap: Some(4 << 30),
            limit: None,
            request: Some(Some(share(200_000))),
            priority: Some(ration_policy::Priority::Batch),
        };
        assert_eq!(change, expected);
        let change = since("memory = GPU-11=1GiB,3GiB\ncompute_request = 0%\ncompute_limit = 100%\n");
        assert_eq!((change.cap, change.limit, change.request), (Some(1 << 30), Some(Share::WHOLE), Some(None)));
    }

    #[test]
    fn a_gpu_by_its_number_is_the_programs_to_know() {
        let began = settings("memory = 0=2GiB\n");
        assert_eq!(since(&began, &settings("memory = 0=1GiB\n"), &GPU, 8 << 30).cap, None);
        assert_eq!(since(&began, &settings("memory = 1GiB\n"), &GPU, 8 << 30).cap, Some(1 << 30));
    }
}
