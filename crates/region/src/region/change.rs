//! What somebody changes who is in none of a region's containers.

use ration_policy::{Priority, Share};

use super::Region;
use crate::compute::Compute;
use crate::layout::NO_CAP;
use crate::sync::SeqCst;
use crate::table::Place;

/// What a container may have from now on. `None`: as it is. It holds where the container's processes have no quota file, which counts
/// before the region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Bytes of memory. What is held beyond them stays held.
    pub cap: Option<u64>,
    /// What it may use of the GPU's time at most.
    pub limit: Option<Share>,
    /// What it is to have of it at least; in there, `None`: nothing.
    pub request: Option<Option<Share>>,
    /// How urgent its work is.
    pub priority: Option<Priority>,
}

impl Region {
    /// Changes what the container of this name may have. Says whether it was anything else before; `None`: there is no such container.
    pub fn change(&self, container: &str, change: &Change, now: u64) -> Option<bool> {
        let mapping = self.mapping.as_ref()?;
        let table = mapping.table();
        let index = table.find(container.as_bytes())?;
        let slot = &table.containers[index];
        // Nobody's place in it: only the container's own words are asked for, never a process's.
        let place = Place { container: index, process: 0, membership: 0, generation: 0 };
        let compute = Compute { mapping, place: &place, entitled: None };
        let mut changed = false;
        if let Some(cap) = change.cap.map(|cap| cap.min(NO_CAP - 1)) {
            changed |= slot.cap.swap(cap, SeqCst) != cap;
        }
        if let Some(limit) = change.limit.filter(|limit| *limit != compute.limit()) {
            compute.set_limit(limit, now);
            changed = true;
        }
        if let Some(request) = change.request.filter(|request| *request != compute.request()) {
            compute.set_request(request);
            changed = true;
        }
        if let Some(priority) = change.priority.filter(|priority| *priority != compute.priority()) {
            compute.set_priority(priority);
            changed = true;
        }
        Some(changed)
    }
}
