//! GPU time: what a container may have of it, and what it has had.
//!
//! The words are in the container's slot. The ceiling is one of them ([`ration_policy::Bucket`]), changed by whoever has used the
//! GPU. Another says which of the container's processes has work under way, so that none is charged for another's: a turn is
//! taken before work is sent and given back when the GPU has done it. A process that dies or is stopped in its turn loses it.

use ration_policy::turns::Priority;
use ration_policy::{Bucket, Share};

use crate::layout::{Process, Table};
use crate::life::is_over;
use crate::sync::{AtomicU64, SeqCst};
use crate::table::Place;
use crate::turns::priority;

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
    /// The process that has work under way: its index plus one, and its generation in the high half. 0: none.
    pub const TURN: usize = 4;
    /// Until when it is not to be disturbed.
    pub const TURN_ENDS: usize = 5;
    /// When it last launched anything, to some milliseconds.
    pub const ACTIVE: usize = 6;
    /// When it was last seen to have work under way that it had lost its turn for.
    pub const LATE: usize = 7;
    /// Nanoseconds that the GPU has worked.
    pub const GPU_TIME: usize = 8;
    /// Nanoseconds that launches have waited.
    pub const THROTTLED: usize = 9;
    /// Stretches of work.
    pub const STRETCHES: usize = 10;
    /// Nanoseconds that it has waited for turns.
    pub const WAITED: usize = 11;
    /// Turns that it has had.
    pub const TURNS: usize = 12;
    /// Turns that were cut short for another.
    pub const PREEMPTED: usize = 13;
    /// Kernels and graphs that its processes have launched, as far as they have told.
    pub const KERNELS: usize = 14;
    pub const GRAPHS: usize = 15;
    /// See [`ration_policy::turns`].
    pub const VIRTUAL_TIME: usize = 16;
    /// Since when it wants the GPU; 0: it does not.
    pub const SINCE: usize = 17;
    /// When its last turn ended.
    pub const SERVED: usize = 18;
    /// When one that waits was last heard of.
    pub const HEARD: usize = 19;
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
    /// How long the GPU has worked for it, while it had a limit or took turns.
    pub gpu_time: u64,
    /// How long its launches were held up, all together.
    pub throttled: u64,
    /// How long it has waited for turns.
    pub waited: u64,
    /// Turns that it has had.
    pub turns: u64,
    /// Turns that were cut short for another.
    pub preempted: u64,
    /// Kernels that it has launched.
    pub kernels: u64,
    /// Graphs that it has launched.
    pub graphs: u64,
    /// What it is thought to have under way.
    pub in_flight: u64,
}

impl ComputeView {
    pub(crate) fn of(table: &Table, container: usize) -> ComputeView {
        let read = |which: usize| table.containers[container].compute[which].load(SeqCst);
        let share = |ppm: u64| Share::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX));
        let living = table.members_of(container).filter(|(_, process)| !is_over(&process.life));
        ComputeView {
            limit: if read(word::LIMIT) == 0 { Share::WHOLE } else { share(read(word::LIMIT)) },
            request: (read(word::REQUEST) != 0).then(|| share(read(word::REQUEST))),
            priority: priority(read(word::PRIORITY)),
            gpu_time: read(word::GPU_TIME),
            throttled: read(word::THROTTLED),
            waited: read(word::WAITED),
            turns: read(word::TURNS),
            preempted: read(word::PREEMPTED),
            kernels: read(word::KERNELS),
            graphs: read(word::GRAPHS),
            in_flight: living
                .flat_map(|(_, process)| process.compute.first())
                .map(|word| word.load(SeqCst))
                .fold(0, u64::saturating_add),
        }
    }
}

/// A member's way to its container's account of time. All times are of the monotonic clock, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Compute<'a> {
    pub(crate) table: &'a Table,
    pub(crate) place: &'a Place,
}

/// The longest that anybody waits before looking again.
const LOOK: u64 = 500_000;

impl Compute<'_> {
    fn word(&self, which: usize) -> &AtomicU64 {
        &self.table.containers[self.place.container].compute[which]
    }

    fn bucket(&self, now: u64) -> Bucket {
        Bucket::new(self.limit()).kept_waiting(self.kept_waiting(now))
    }

    /// What the container may use at most.
    pub fn limit(&self) -> Share {
        match self.word(word::LIMIT).load(SeqCst) {
            0 => Share::WHOLE,
            ppm => Share::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX)),
        }
    }

    /// A limit where nobody has set one yet.
    pub fn begin_with_limit(&self, limit: Share) {
        let _ = self.word(word::LIMIT).compare_exchange(0, limit.ppm().into(), SeqCst, SeqCst);
    }

    /// The GPU has worked so long for the container, at some time between `began` and now.
    pub fn charge(&self, began: u64, now: u64, gpu: u64) {
        let bucket = self.bucket(now);
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
        self.word(word::STRETCHES).fetch_add(1, SeqCst);
    }

    /// How many stretches of work were charged.
    pub fn stretches(&self) -> u64 {
        self.word(word::STRETCHES).load(SeqCst)
    }

    /// The GPU has worked so long for the container, on what nobody held up: it counts against no limit.
    pub fn has_used(&self, gpu: u64) {
        self.word(word::GPU_TIME).fetch_add(gpu, SeqCst);
    }

    /// This process has launched so many more, and has so much under way.
    pub fn launched(&self, kernels: u64, graphs: u64, in_flight: u64) {
        self.word(word::KERNELS).fetch_add(kernels, SeqCst);
        self.word(word::GRAPHS).fetch_add(graphs, SeqCst);
        if let Some(word) = self.table.processes[self.place.process].compute.first() {
            word.store(in_flight, SeqCst);
        }
    }

    /// Whether another process of the container has work under way, as far as it has told.
    pub fn has_company_inside(&self) -> bool {
        let mut others = self.table.members_of(self.place.container).filter(|(index, _)| *index != self.place.process);
        let works = |process: &Process| process.compute.first().is_some_and(|word| word.load(SeqCst) > 0);
        others.any(|(_, process)| works(process) && !is_over(&process.life))
    }

    /// Launches have waited so long.
    pub fn throttled(&self, wall: u64) {
        self.word(word::THROTTLED).fetch_add(wall, SeqCst);
    }

    /// Nanoseconds that the GPU has worked for the container.
    pub fn gpu_time(&self) -> u64 {
        self.word(word::GPU_TIME).load(SeqCst)
    }

    fn own_turn(&self) -> u64 {
        let generation = self.table.processes[self.place.process].generation.load(SeqCst);
        (self.place.process as u64 + 1) | (generation & 0xffff_ffff) << 32
    }

    /// Takes the turn for work that should be done by `ends`. `Err`: not now, and when to ask again.
    pub fn take_turn(&self, now: u64, ends: u64) -> Result<(), u64> {
        let free_at = self.bucket(now).free_at(self.word(word::USED_UNTIL).load(SeqCst), now);
        let (turn, own) = (self.word(word::TURN), self.own_turn());
        let holder = turn.load(SeqCst);
        if free_at > now {
            if holder == 0 {
                self.rests(now);
            }
            return Err(free_at);
        }
        if holder != own && holder != 0 && !self.has_lost_it(holder, now) {
            return Err(now + LOOK);
        }
        if turn.compare_exchange(holder, own, SeqCst, SeqCst).is_err() {
            return Err(now + LOOK / 10);
        }
        self.word(word::TURN_ENDS).store(ends, SeqCst);
        Ok(())
    }

    /// Whether a holder is gone, or has been silent for so long that it is not waited for.
    fn has_lost_it(&self, holder: u64, now: u64) -> bool {
        let ends = self.word(word::TURN_ENDS).load(SeqCst);
        let index = ((holder & 0xffff_ffff) as usize).wrapping_sub(1);
        let gone = self.table.processes.get(index).is_none_or(|process| {
            is_over(&process.life) || process.generation.load(SeqCst) & 0xffff_ffff != holder >> 32
        });
        // A time that is absurdly far away is damage, not a promise.
        gone || now > ends || ends - now > 10_000_000_000
    }

    /// The work goes on: it should be done by `ends`. `false`: the turn is another's by now.
    pub fn keep_turn(&self, ends: u64) -> bool {
        let is_own = self.word(word::TURN).load(SeqCst) == self.own_turn();
        if is_own {
            self.word(word::TURN_ENDS).store(ends, SeqCst);
        }
        is_own
    }

    /// Whether another process of the container has the turn among them, and work under way in it.
    pub fn is_used_inside(&self, now: u64) -> bool {
        let holder = self.word(word::TURN).load(SeqCst);
        holder != 0 && holder != self.own_turn() && !self.has_lost_it(holder, now)
    }

    /// The work is done.
    pub fn give_turn(&self) {
        let _ = self.word(word::TURN).compare_exchange(self.own_turn(), 0, SeqCst, SeqCst);
    }
}
