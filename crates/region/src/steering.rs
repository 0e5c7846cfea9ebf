//! What containers tell each other so that the GPU's own scheduler serves them fairly ([`ration_policy::steer`]).
//!
//! Every word is written by its owner alone: a process writes its facts, a container's processes write its lease word and its
//! virtual time. Everybody reads all of them. A liar lies about itself only, and nobody is believed for longer than its words
//! are fresh, by the clock of who reads them ([`Heard`]).
//!
//! **Leases.** A container's lease word says to whom it gave the GPU, and how many leases there had been. The newest word says
//! who holds it now. The holder passes it on by writing its own word, which is what those who wait sleep on. Where the newest names somebody who is gone, silent or wants nothing, the one that is next anyway takes it, by
//! naming itself.

use std::cell::Cell;
use std::time::Duration;

use ration_policy::steer::{self, Peer};
use ration_policy::tuning::{FRESH, LEASE, SILENT};
use ration_policy::{Priority, Share};

use crate::compute::{Compute, priority, word};
use crate::layout::{CONTAINERS, LIVE, PROCESSES, Process};
use crate::life::is_held;
use crate::sync::{AtomicU64, SeqCst};
use crate::sys;

/// A process's words.
mod of_process {
    /// [`super::WANTS`] and its like.
    pub const FLAGS: usize = 1;
    /// What it uses of the GPU's time, in millionths.
    pub const USAGE: usize = 2;
    /// When it last said so.
    pub const SAID: usize = 3;
    /// How long its answers take, in nanoseconds.
    pub const BURST: usize = 4;
    /// When it last had something under way.
    pub const WORKED: usize = 5;
    /// What it would use of the GPU's time if it had the GPU for itself, in millionths.
    pub const DEMAND: usize = 6;
}

const WANTS: u64 = 1;
const FILLS: u64 = 2;
const IS_ON: u64 = 4;
const PENDING: u64 = 8;
const URGENT: u64 = 16;
const BATCHES: u64 = 32;

/// A container's words, besides those of [`word`].
pub(crate) mod of_container {
    /// How many leases there had been in the high bits, and to whom the last of them went, plus one, in the low 16.
    pub const LEASE: usize = 32;
    /// What it has had of leases, over its weight.
    pub const VIRTUAL: usize = 33;
    /// How often its channels went off or on, and how long that took.
    pub const SWITCHES: usize = 34;
    pub const SWITCHING: usize = 35;
    /// Leases that it has had.
    pub const LEASES: usize = 36;
    /// Nanoseconds that it was off the GPU, by its limit and for others' leases.
    pub const OFF_BY_LIMIT: usize = 37;
    pub const OFF_FOR_OTHERS: usize = 38;
    /// 1: its channels are driven; 2: they cannot be, and launches are held in their calls; 0: not tried yet.
    pub const SWITCH: usize = 39;
}

/// What a process says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// Of the GPU's time, in millionths.
    pub usage: u32,
    /// What it would be if it had the GPU for itself.
    pub demand: u32,
    /// It would use more.
    pub wants: bool,
    /// It uses all of the GPU when it has it.
    pub fills: bool,
    /// How long its answers take, in nanoseconds; 0: not known.
    pub burst: u64,
    /// Its channels are on.
    pub is_on: bool,
    /// It has something under way.
    pub pending: bool,
    /// It answers requests, if its container is a `latency` one, and does not work without end.
    pub urgent: bool,
    /// Its launches go in batches.
    pub batches: bool,
}

/// A container that is there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Present {
    /// Which one.
    pub index: usize,
    /// What it says.
    pub peer: Peer,
    /// See [`steer::virtual_time`].
    pub virtual_time: u64,
    /// Any of its processes is on the GPU.
    pub is_on: bool,
    /// When it last said anything, by the caller's clock.
    pub said: u64,
}

/// All containers that are there.
pub struct Neighbourhood {
    all: [Option<Present>; CONTAINERS],
    /// Which of them is the caller's.
    pub own: usize,
    /// How many processes of that one are there.
    pub processes: u32,
    /// How many of those have something under way.
    pub siblings: u32,
}

impl Neighbourhood {
    /// They, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Present> {
        self.all.iter().flatten()
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<&Present> {
        self.all.get(index)?.as_ref()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The others.
    pub fn others(&self) -> impl Iterator<Item = &Present> {
        self.iter().filter(|it| it.index != self.own)
    }

    /// Those that want a lease.
    pub fn wanting(&self) -> impl Iterator<Item = &Present> {
        self.iter().filter(|it| it.peer.takes_leases() && it.peer.wants)
    }

    /// The weights of those, in millionths.
    pub fn weights(&self) -> u64 {
        self.wanting().map(|it| u64::from(it.peer.weight.ppm())).sum()
    }

    /// Who is next to hold the GPU.
    pub fn next(&self, last: usize) -> Option<usize> {
        steer::next(self.wanting().map(|it| (it.index, it.virtual_time)), last)
    }
}

/// When others said what they say, by the clock of who listens.
///
/// Theirs may be another one: containers have time namespaces, and a word may say anything. Where it is the same one, what they wrote
/// is it.
pub struct Heard([Cell<Word>; PROCESSES]);

/// When a process last said something: by its clock, and by the listener's.
#[derive(Clone, Copy)]
struct Word {
    theirs: u64,
    ours: u64,
}

impl Heard {
    /// Nothing yet.
    pub const fn new() -> Heard {
        Heard([const { Cell::new(Word { theirs: 0, ours: 0 }) }; PROCESSES])
    }

    /// When a process spoke that says it last did so at `theirs`.
    fn at(&self, process: usize, theirs: u64, now: u64) -> u64 {
        let Some(word) = self.0.get(process) else { return 0 };
        let before = word.get().theirs;
        if before != theirs {
            let is_near = theirs <= now && now - theirs < FRESH;
            let ours = match before {
                _ if is_near => theirs,
                // It may have been dead for long: it is heard of when it says something else.
                0 => 0,
                _ => now,
            };
            word.set(Word { theirs, ours });
        }
        word.get().ours
    }
}

impl Default for Heard {
    fn default() -> Heard {
        Heard::new()
    }
}

/// The newest lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Whose it is; `None`: nobody's that could use it.
    pub holder: Option<usize>,
    /// How many there had been.
    pub number: u64,
    /// Where the next one will be written, and what stands there now: the holder writes it, or who takes it for want of one.
    watch: usize,
    word: u64,
}

/// A process that has said something of late: when, by the listener's clock and by its own.
struct Speaking<'a> {
    index: usize,
    process: &'a Process,
    at: u64,
    theirs: u64,
}

impl Speaking<'_> {
    fn word(&self, which: usize) -> u64 {
        said(self.process, which).load(SeqCst)
    }

    /// For how long it has had nothing under way.
    fn quiet(&self, now: u64) -> u64 {
        let worked = self.word(of_process::WORKED);
        let (since, before) = (worked.saturating_sub(self.theirs), self.theirs.saturating_sub(worked));
        now.saturating_sub(self.at).saturating_add(before).saturating_sub(since)
    }
}

/// One of a process's words.
fn said(process: &Process, which: usize) -> &AtomicU64 {
    &process.compute[which]
}

impl Compute<'_> {
    fn own_process(&self) -> &Process {
        &self.table.processes[self.place.process]
    }

    fn at(&self, container: usize, which: usize) -> &AtomicU64 {
        &self.table.containers[container].compute[which]
    }

    fn own(&self, which: usize) -> &AtomicU64 {
        self.at(self.place.container, which)
    }

    /// This process says what is so now.
    pub fn says(&self, facts: &Facts, now: u64) {
        let own = self.own_process();
        let flag = |is: bool, bit: u64| if is { bit } else { 0 };
        let flags = flag(facts.wants, WANTS)
            | flag(facts.fills, FILLS)
            | flag(facts.is_on, IS_ON)
            | flag(facts.pending, PENDING)
            | flag(facts.urgent, URGENT)
            | flag(facts.batches, BATCHES);
        self.tells_others();
        said(own, of_process::USAGE).store(facts.usage.into(), SeqCst);
        said(own, of_process::DEMAND).store(facts.demand.into(), SeqCst);
        said(own, of_process::BURST).store(facts.burst, SeqCst);
        if facts.pending {
            self.is_at_work(now);
        }
        said(own, of_process::FLAGS).store(flags, SeqCst);
        said(own, of_process::SAID).store(now, SeqCst);
    }

    /// This process has something under way now.
    pub fn is_at_work(&self, now: u64) {
        said(self.own_process(), of_process::WORKED).store(now, SeqCst);
    }

    /// It is not there for others from now on.
    pub fn says_nothing(&self) {
        let own = self.own_process();
        said(own, of_process::FLAGS).store(0, SeqCst);
        said(own, of_process::SAID).store(0, SeqCst);
    }

    /// The processes of a container that have said something of late, and when.
    fn speaking(&self, container: usize, heard: &Heard, now: u64) -> impl Iterator<Item = Speaking<'_>> {
        self.table.members_of(container).filter_map(move |(index, process)| {
            let theirs = said(process, of_process::SAID).load(SeqCst);
            if theirs == 0 {
                return None;
            }
            let at = heard.at(index, theirs, now);
            let is_there = now.saturating_sub(at) < FRESH && is_held(&process.life);
            is_there.then_some(Speaking { index, process, at, theirs })
        })
    }

    /// Whether this process speaks for its container: of those that do, the first.
    pub fn is_leader(&self, heard: &Heard, now: u64) -> bool {
        let mut speaking = self.speaking(self.place.container, heard, now);
        speaking.next().is_none_or(|first| first.index == self.place.process)
    }

    fn weight_of(&self, container: usize) -> Share {
        if let Some(entitled) = self.entitled.as_ref().filter(|_| container == self.place.container) {
            return entitled.weight();
        }
        let read = |which: usize| self.at(container, which).load(SeqCst);
        let request = u32::try_from(read(word::REQUEST)).unwrap_or(u32::MAX);
        let limit = match read(word::LIMIT) {
            0 => Share::WHOLE,
            ppm => Share::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX)),
        };
        priority(read(word::PRIORITY)).weight(Share::weight(request, limit))
    }

    /// What the container weighs, whether it is there for others or not.
    pub fn weight(&self) -> Share {
        self.weight_of(self.place.container)
    }

    /// Everybody who is there.
    pub fn neighbourhood(&self, heard: &Heard, now: u64) -> Neighbourhood {
        let present = |container: usize| {
            if self.table.containers[container].state.load(SeqCst) != LIVE {
                return None;
            }
            let read = |which: usize| self.at(container, which).load(SeqCst);
            let mut present: Option<Present> = None;
            for speaking in self.speaking(container, heard, now) {
                let read_it = |which: usize| speaking.word(which);
                let it = present.get_or_insert(Present {
                    index: container,
                    peer: Peer {
                        weight: self.weight_of(container),
                        priority: Priority::Normal,
                        usage: 0,
                        demand: 0,
                        wants: false,
                        fills: false,
                        burst: 0,
                        quiet: u64::MAX,
                        batches: true,
                    },
                    virtual_time: read(of_container::VIRTUAL),
                    is_on: false,
                    said: 0,
                });
                let flags = read_it(of_process::FLAGS);
                let part = |which: usize| u32::try_from(read_it(which)).unwrap_or(u32::MAX).min(1_000_000);
                it.peer.usage = (it.peer.usage + part(of_process::USAGE)).min(1_000_000);
                it.peer.demand = (it.peer.demand + part(of_process::DEMAND)).min(1_000_000);
                it.peer.wants |= flags & WANTS != 0;
                it.peer.fills |= flags & FILLS != 0;
                it.peer.burst = it.peer.burst.max(read_it(of_process::BURST));
                it.peer.quiet = it.peer.quiet.min(speaking.quiet(now));
                it.peer.batches &= flags & BATCHES != 0;
                it.is_on |= flags & IS_ON != 0;
                if flags & URGENT != 0 {
                    it.peer.priority = Priority::Latency;
                }
                it.said = it.said.max(speaking.at);
            }
            present
        };
        let own = self.place.container;
        let works = |it: &Speaking<'_>| it.word(of_process::FLAGS) & PENDING != 0;
        let processes = self.speaking(own, heard, now).count() as u32;
        let siblings = self.speaking(own, heard, now).filter(works).count() as u32;
        Neighbourhood { all: std::array::from_fn(present), own, processes, siblings }
    }

    /// The newest lease.
    pub fn lease(&self, among: &Neighbourhood, now: u64) -> Lease {
        let words = (0..CONTAINERS).map(|index| (self.at(index, of_container::LEASE).load(SeqCst), index));
        // Two of the same number were taken at once, for want of a holder: the one of the lower index counts.
        let newest = words.max_by_key(|(word, index)| (word >> 16, CONTAINERS - index));
        let (word, writer) = newest.unwrap_or((0, 0));
        let named = ((word & 0xffff) as usize).checked_sub(1);
        let can_use = |it: &Present| {
            it.peer.takes_leases()
                && it.peer.wants
                && (it.index == self.place.container || now.saturating_sub(it.said) < SILENT || !it.is_on)
        };
        let holder = named.filter(|index| among.get(*index).is_some_and(can_use));
        let watch = holder.unwrap_or(writer);
        Lease { holder, number: word >> 16, watch, word: self.at(watch, of_container::LEASE).load(SeqCst) }
    }

    /// Gives the GPU to a container, after so many leases.
    pub fn pass_lease(&self, to: usize, number: u64) {
        let own = self.own(of_container::LEASE);
        own.store(number.wrapping_add(1) << 16 | (to as u64).wrapping_add(1) & 0xffff, SeqCst);
        sys::futex_wake_shared(own);
    }

    /// Whether there is a newer lease.
    pub fn is_over(&self, lease: &Lease) -> bool {
        self.at(lease.watch, of_container::LEASE).load(SeqCst) != lease.word
    }

    /// Sleeps until there is a newer lease, somebody rings, or until then.
    pub fn wait_for_lease(&self, lease: &Lease, until: u64, now: u64) {
        let time = Duration::from_nanos(until.saturating_sub(now).min(900_000_000));
        // The number of leases is above the low bits, so the low half of the word changes with every one.
        sys::futex_wait_shared(self.at(lease.watch, of_container::LEASE), lease.word as u32, time);
    }

    /// The container has held the GPU so long.
    pub fn held_for(&self, time: u64, weight: Share) {
        self.held_longer(time, weight);
        self.own(of_container::LEASES).fetch_add(1, SeqCst);
    }

    /// And so much longer, until it was off.
    pub fn held_longer(&self, time: u64, weight: Share) {
        self.own(of_container::VIRTUAL).fetch_add(steer::virtual_time(time, weight), SeqCst);
    }

    /// Who comes anew has had no less than the least of those that are there: rest is not saved up. And hardly more than any of
    /// them: what it had while they were not there is not held against it.
    pub fn joins(&self, among: &Neighbourhood) {
        let times = || among.wanting().filter(|it| it.index != among.own).map(|it| it.virtual_time);
        if let (Some(least), Some(most)) = (times().min(), times().max()) {
            let weight = among.get(among.own).map_or(Share::UNASKED, |it| it.peer.weight);
            let most = most.saturating_add(steer::virtual_time(LEASE, weight));
            let own = self.own(of_container::VIRTUAL);
            let had = own.load(SeqCst);
            // Lost where a process of the same container adds to it at once, which joins itself.
            let _ = own.compare_exchange(had, had.clamp(least, most), SeqCst, SeqCst);
        }
    }

    /// Channels went off or on, which took so long.
    pub fn switched(&self, took: u64) {
        self.own(of_container::SWITCHES).fetch_add(1, SeqCst);
        self.own(of_container::SWITCHING).fetch_add(took, SeqCst);
    }

    /// The container was off for so long: by its limit, or for others.
    pub fn was_off(&self, time: u64, by_limit: bool) {
        let which = if by_limit { of_container::OFF_BY_LIMIT } else { of_container::OFF_FOR_OTHERS };
        self.own(which).fetch_add(time, SeqCst);
        self.own(if by_limit { word::THROTTLED } else { word::WAITED }).fetch_add(time, SeqCst);
    }

    /// Whether its channels are driven.
    pub fn is_switched_by_channels(&self, is: bool) {
        self.own(of_container::SWITCH).store(if is { 1 } else { 2 }, SeqCst);
    }

    /// Until when it has used up its due, as far as its processes have written down: see [`ration_policy::Bucket`].
    pub fn used_until(&self) -> u64 {
        self.own(word::USED_UNTIL).load(SeqCst)
    }
}
