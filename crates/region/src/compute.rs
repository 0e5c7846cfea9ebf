//! GPU time: what a container may have of it, and what it has had.
//!
//! The words are in the container's slot. The ceiling is one of them ([`ration_policy::Bucket`]), changed by whoever has used the
//! GPU. What containers tell each other is in [`crate::steering`].

use ration_policy::{Bucket, Priority, Share};

use crate::layout::Table;
use crate::memory::Mapping;
use crate::steering::of_container;
use crate::sync::{AtomicU64, SeqCst};
use crate::table::Place;

/// What each of the container's words for compute is. Times are nanoseconds of the monotonic clock.
pub(crate) mod word {
    /// In millionths; 0: not set.
    pub const LIMIT: usize = 0;
    /// What it is to have at least where others want the GPU too, in millionths; 0: it asked for nothing.
    pub const REQUEST: usize = 1;
    /// 0: normal, 1: latency, 2: batch.
    pub const PRIORITY: usize = 2;
    /// Until when the container has used up its due.
    pub const USED_UNTIL: usize = 3;
    // 4 to 7, 10, 12, 13 and 16 to 19 had a meaning once, and have none.
    /// Nanoseconds that the GPU has worked.
    pub const GPU_TIME: usize = 8;
    /// Nanoseconds that its limit has kept it off the GPU.
    pub const THROTTLED: usize = 9;
    /// Nanoseconds that others' leases have.
    pub const WAITED: usize = 11;
    /// Kernels and graphs that its processes have launched, as far as they have told.
    pub const KERNELS: usize = 14;
    pub const GRAPHS: usize = 15;
}

/// What a container has had of the GPU's time, for whoever wants to know. Times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeView {
    /// What it may have at most.
    pub limit: Share,
    /// What it is to have at least where others want the GPU too, if it asked for anything.
    pub request: Option<Share>,
    /// How urgent its work is.
    pub priority: Priority,
    /// How long the GPU has worked for it, while it had a limit or neighbours.
    pub gpu_time: u64,
    /// How long its limit has kept it off the GPU.
    pub throttled: u64,
    /// How long it has waited for leases.
    pub waited: u64,
    /// Leases that it has had.
    pub leases: u64,
    /// How often it stopped believing others' leases, because they kept it off for too long again and again.
    pub disbelieved: u64,
    /// How often it went off the GPU or on.
    pub switches: u64,
    /// How long the calls for that took.
    pub switching: u64,
    /// Whether that is by its channels; `None`: it was not tried yet.
    pub by_channels: Option<bool>,
    /// Kernels that it has launched.
    pub kernels: u64,
    /// Graphs that it has launched.
    pub graphs: u64,
}

impl ComputeView {
    pub(crate) fn of(table: &Table, container: usize) -> ComputeView {
        let read = |which: usize| table.containers[container].compute[which].load(SeqCst);
        let share = |ppm: u64| Share::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX));
        ComputeView {
            limit: if read(word::LIMIT) == 0 { Share::WHOLE } else { share(read(word::LIMIT)) },
            request: (read(word::REQUEST) != 0).then(|| share(read(word::REQUEST))),
            priority: priority(read(word::PRIORITY)),
            gpu_time: read(word::GPU_TIME),
            throttled: read(word::THROTTLED),
            waited: read(word::WAITED),
            leases: read(of_container::LEASES),
            disbelieved: read(of_container::DISBELIEVED),
            switches: read(of_container::SWITCHES),
            switching: read(of_container::SWITCHING),
            by_channels: match read(of_container::SWITCH) {
                0 => None,
                switch => Some(switch == 1),
            },
            kernels: read(word::KERNELS),
            graphs: read(word::GRAPHS),
        }
    }
}

/// What a process knows its container to be entitled to, from a file that no program in it can change. Then the region's words are
/// for others to read, and nobody who writes to them changes what holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entitled {
    /// What it may use at most.
    pub limit: Share,
    /// What it is to have at least where others want the GPU too; `None`: it asks for nothing.
    pub request: Option<Share>,
    /// How urgent its work is.
    pub priority: Priority,
}

impl Entitled {
    /// The words of a container that say so, each with what stands there.
    fn words(&self) -> [(usize, u64); 3] {
        let request = self.request.map_or(0, |share| share.ppm().into());
        let priority = priority_word(self.priority);
        [(word::LIMIT, self.limit.ppm().into()), (word::REQUEST, request), (word::PRIORITY, priority)]
    }

    /// What it weighs among others.
    pub(crate) fn weight(&self) -> Share {
        self.priority.weight(Share::weight(self.request.map_or(0, Share::ppm), self.limit))
    }
}

/// A member's way to its container's account of time. All times are of the monotonic clock, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Compute<'a> {
    pub(crate) mapping: &'a Mapping,
    pub(crate) place: &'a Place,
    /// What holds, whatever the region says.
    pub(crate) entitled: Option<Entitled>,
}

impl Compute<'_> {
    fn word(&self, which: usize) -> &AtomicU64 {
        &self.mapping.table().containers[self.place.container].compute[which]
    }

    /// The same way, for a process that knows what its container is entitled to.
    pub fn entitled_to(self, entitled: Option<Entitled>) -> Self {
        Compute { entitled, ..self }
    }

    /// Tells the others what the container is entitled to, where that is known and the region says something else.
    pub(crate) fn tells_others(&self) {
        for (which, value) in self.entitled.iter().flat_map(Entitled::words) {
            let word = self.word(which);
            if word.load(SeqCst) != value {
                word.store(value, SeqCst);
            }
        }
    }

    /// What the container may use at most.
    pub fn limit(&self) -> Share {
        if let Some(entitled) = &self.entitled {
            return entitled.limit;
        }
        match self.word(word::LIMIT).load(SeqCst) {
            0 => Share::WHOLE,
            ppm => Share::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX)),
        }
    }

    /// What the container is to have at least, if it asked for anything, as the region says.
    pub(crate) fn request(&self) -> Option<Share> {
        match self.word(word::REQUEST).load(SeqCst) {
            0 => None,
            ppm => Some(Share::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX))),
        }
    }

    /// A limit where nobody has set one yet.
    pub fn begin_with_limit(&self, limit: Share) {
        let _ = self.word(word::LIMIT).compare_exchange(0, limit.ppm().into(), SeqCst, SeqCst);
    }

    /// The GPU has worked so long for the container, at some time between `began` and now, while this was its ceiling.
    pub fn charge(&self, bucket: Bucket, began: u64, now: u64, gpu: u64) {
        let word = self.word(word::USED_UNTIL);
        let mut seen = word.load(SeqCst);
        // Lost only to somebody else's success, of which there are as many as there are processes.
        for _ in 0..10_000 {
            match word.compare_exchange(seen, bucket.charged_from(seen, began, now, gpu), SeqCst, SeqCst) {
                Ok(_) => break,
                Err(other) => seen = other,
            }
        }
        self.word(word::GPU_TIME).fetch_add(gpu, SeqCst);
    }

    /// This process has launched so many more.
    pub fn launched(&self, kernels: u64, graphs: u64) {
        self.word(word::KERNELS).fetch_add(kernels, SeqCst);
        self.word(word::GRAPHS).fetch_add(graphs, SeqCst);
    }

    /// Nanoseconds that the GPU has worked for the container.
    pub fn gpu_time(&self) -> u64 {
        self.word(word::GPU_TIME).load(SeqCst)
    }

    /// How urgent its work is.
    pub fn priority(&self) -> Priority {
        if let Some(entitled) = &self.entitled {
            return entitled.priority;
        }
        priority(self.word(word::PRIORITY).load(SeqCst))
    }

    /// What the container asks for, and how urgently; where nobody has said so yet.
    pub fn begin_with_request(&self, request: Option<Share>, urgency: Priority) {
        let begin = |which: usize, value: u64| {
            let _ = self.word(which).compare_exchange(0, value, SeqCst, SeqCst);
        };
        if let Some(request) = request {
            begin(word::REQUEST, request.ppm().into());
        }
        begin(word::PRIORITY, priority_word(urgency));
    }

    /// Another limit, for all of the container's processes, at once. What is owed or saved up becomes due at the new rate.
    pub fn set_limit(&self, limit: Share, now: u64) {
        let before = self.limit();
        self.word(word::LIMIT).store(limit.ppm().into(), SeqCst);
        let used_until = self.word(word::USED_UNTIL);
        let old = used_until.load(SeqCst);
        let new = Bucket::new(before).changed(Bucket::new(limit), old, now);
        // Whoever charges something in between has done so at the one rate or the other.
        let _ = used_until.compare_exchange(old, new, SeqCst, SeqCst);
    }

    /// Another request.
    pub fn set_request(&self, request: Option<Share>) {
        self.word(word::REQUEST).store(request.map_or(0, |share| share.ppm().into()), SeqCst);
    }

    /// Another priority.
    pub fn set_priority(&self, urgency: Priority) {
        self.word(word::PRIORITY).store(priority_word(urgency), SeqCst);
    }
}

/// How a priority is written.
pub(crate) fn priority(word: u64) -> Priority {
    match word {
        1 => Priority::Latency,
        2 => Priority::Batch,
        _ => Priority::Normal,
    }
}

pub(crate) fn priority_word(priority: Priority) -> u64 {
    match priority {
        Priority::Normal => 0,
        Priority::Latency => 1,
        Priority::Batch => 2,
    }
}
