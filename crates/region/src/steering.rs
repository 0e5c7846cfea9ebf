//! What containers tell each other so that the GPU's own scheduler serves them fairly ([`ration_policy::steer`]).
//!
//! A container's processes write what is so of them into their slots of its region; whoever does adds all of them up in the container's
//! page, which everybody may read and only they may write ([`crate::layout::Public`]). A liar lies about itself only, and nobody is
//! believed for longer than its words are fresh, by the clock of who reads them ([`Heard`]).
//!
//! **Leases.** A container's lease word says to whom it gave the GPU, and how many leases there had been. The newest word says
//! who holds it now. The holder passes it on by writing its own word, which is what those who wait sleep on. Where the newest names
//! somebody who is gone, silent or wants nothing, the one that is next anyway takes it, by naming itself.

mod words;

use std::time::Duration;

use ration_policy::steer::{self, Peer};
use ration_policy::tuning::{COMING, FRESH, SILENT};
use ration_policy::{Priority, Share};

use crate::compute::{Compute, priority, priority_word, word};
use crate::file;
use crate::layout::{CONTAINERS, PROCESSES, PUBLIC_MAGIC, Page, Process, Public};
use crate::life::is_held;
use crate::sync::{AtomicU64, SeqCst};
use crate::sys;
pub use words::{Heard, Neighbourhood, Present};
pub(crate) use words::{LeaseWord, Said, Told, Word, identity};
use words::{WHO_BITS, heard};

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

pub(crate) const WANTS: u64 = 1;
const FILLS: u64 = 2;
const IS_ON: u64 = 4;
const PENDING: u64 = 8;
const URGENT: u64 = 16;
const BATCHES: u64 = 32;

/// A container's words, besides those of [`word`].
pub(crate) mod of_container {
    /// How often its channels went off or on, and how long that took.
    pub const SWITCHES: usize = 34;
    pub const SWITCHING: usize = 35;
    /// How often it stopped believing others' leases, because they kept it off for too long again and again.
    pub const DISBELIEVED: usize = 40;
    /// See [`ration_policy::steer::virtual_time`]: the page tells it, and may be lost.
    pub const VIRTUAL_TIME: usize = 41;
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

/// The newest lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Whose it is; `None`: nobody's that could use it.
    pub holder: Option<usize>,
    /// How many there had been.
    pub number: u64,
    /// Where the next one will be written, by its address, and what stands there now: the holder writes it, or who takes it for want
    /// of one.
    watch: usize,
    word: u64,
}

/// A process that has said something of late.
struct Speaking<'a> {
    index: usize,
    process: &'a Process,
    said: Said,
}

impl Speaking<'_> {
    fn word(&self, which: usize) -> u64 {
        said(self.process, which).load(SeqCst)
    }
}

/// One of a process's words.
fn said(process: &Process, which: usize) -> &AtomicU64 {
    &process.compute[which]
}

fn flag(is: bool, bit: u64) -> u64 {
    if is { bit } else { 0 }
}

impl Compute<'_> {
    fn own_process(&self) -> &Process {
        &self.mapping.table().processes[self.place.process]
    }

    fn own(&self, which: usize) -> &AtomicU64 {
        &self.mapping.table().containers[self.place.container].compute[which]
    }

    fn public(&self) -> &Public {
        self.mapping.public()
    }

    /// What the container tells everybody. A page that was another container's is begun anew.
    fn page(&self) -> &Page {
        let page = &self.public().pages[self.place.container];
        let container = &self.mapping.table().containers[self.place.container];
        let generation = u64::from(container.generation.load(SeqCst));
        if page.generation.load(SeqCst) != generation {
            page.clear();
            for (to, from) in page.name.iter().zip(&container.name) {
                to.store(from.load(SeqCst), SeqCst);
            }
            page.name_length.store(container.name_length.load(SeqCst).into(), SeqCst);
            page.generation.store(generation, SeqCst);
        }
        page
    }

    fn lease_word(&self) -> &AtomicU64 {
        &self.public().header.lease[self.place.container]
    }

    /// The number by which everybody knows the container.
    pub fn index(&self) -> usize {
        identity(self.mapping.number(), self.place.container)
    }

    /// This process says what is so now.
    pub fn says(&self, heard: &Heard, facts: &Facts, now: u64) {
        self.stays_public(heard, now);
        let own = self.own_process();
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
        self.publish(heard, now);
    }

    /// This process has something under way now.
    pub fn is_at_work(&self, now: u64) {
        said(self.own_process(), of_process::WORKED).store(now, SeqCst);
        self.public().pages[self.place.container].worked.store(now, SeqCst);
    }

    /// It is not there for others from now on.
    pub fn says_nothing(&self, heard: &Heard, now: u64) {
        let own = self.own_process();
        said(own, of_process::FLAGS).store(0, SeqCst);
        // Nobody has to be told again.
        if said(own, of_process::SAID).swap(0, SeqCst) != 0 {
            self.publish(heard, now);
        }
    }

    /// Tells everybody what the container's processes say together.
    fn publish(&self, heard: &Heard, now: u64) {
        let word = &self.public().header.said[self.place.container];
        let Some(all) = self.present(heard, now) else { return word.store(0, SeqCst) };
        let (page, peer) = (self.page(), all.peer);
        let flags = flag(peer.wants, WANTS)
            | flag(peer.fills, FILLS)
            | flag(all.is_on, IS_ON)
            | flag(peer.priority == Priority::Latency, URGENT)
            | flag(peer.batches, BATCHES);
        let asked = |which: usize| self.own(which).load(SeqCst);
        let (request, urgency) = match &self.entitled {
            Some(entitled) => (entitled.request.map_or(0, |it| it.ppm().into()), priority_word(entitled.priority)),
            None => (asked(word::REQUEST), asked(word::PRIORITY)),
        };
        let words = [
            (&page.weight, peer.weight.ppm().into()),
            (&page.request, request),
            (&page.limit, self.limit().ppm().into()),
            (&page.priority, urgency),
            (&page.flags, flags),
            (&page.usage, peer.usage.into()),
            (&page.demand, peer.demand.into()),
            (&page.burst, peer.burst),
            (&page.worked, now.saturating_sub(peer.quiet)),
            (&page.virtual_time, self.own(of_container::VIRTUAL_TIME).load(SeqCst)),
            (&page.processes, self.speaking(heard, now).count() as u64),
        ];
        for (word, value) in words {
            word.store(value, SeqCst);
        }
        word.store(now, SeqCst);
    }

    /// The container's processes that have said something of late.
    fn speaking(&self, by: &Heard, now: u64) -> impl Iterator<Item = Speaking<'_>> {
        self.mapping.table().members_of(self.place.container).filter_map(move |(index, process)| {
            let theirs = said(process, of_process::SAID).load(SeqCst);
            if theirs == 0 {
                return None;
            }
            let ours = heard(&by.processes, (index, PROCESSES), theirs, now);
            let is_there = now.saturating_sub(ours) < FRESH && is_held(&process.life);
            is_there.then_some(Speaking { index, process, said: Said { ours, theirs } })
        })
    }

    /// Whether this process speaks for its container: of those that do, the first.
    pub fn is_leader(&self, heard: &Heard, now: u64) -> bool {
        let mut speaking = self.speaking(heard, now);
        speaking.next().is_none_or(|first| first.index == self.place.process)
    }

    /// What the container weighs, whether it is there for others or not.
    pub fn weight(&self) -> Share {
        if let Some(entitled) = &self.entitled {
            return entitled.weight();
        }
        let read = |which: usize| self.own(which).load(SeqCst);
        let request = u32::try_from(read(word::REQUEST)).unwrap_or(u32::MAX);
        let limit = match read(word::LIMIT) {
            0 => Share::WHOLE,
            ppm => Share::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX)),
        };
        priority(read(word::PRIORITY)).weight(Share::weight(request, limit))
    }

    /// The container itself, as its processes have it; `None`: none of them is there.
    fn present(&self, heard: &Heard, now: u64) -> Option<Present> {
        let mut present: Option<Present> = None;
        for speaking in self.speaking(heard, now) {
            let read = |which: usize| speaking.word(which);
            let it = present.get_or_insert_with(|| Present {
                index: self.index(),
                peer: Peer {
                    weight: self.weight(),
                    priority: Priority::Normal,
                    usage: 0,
                    demand: 0,
                    wants: false,
                    fills: false,
                    burst: 0,
                    quiet: u64::MAX,
                    batches: true,
                },
                virtual_time: self.own(of_container::VIRTUAL_TIME).load(SeqCst),
                is_on: false,
                said: 0,
            });
            let flags = read(of_process::FLAGS);
            let part = |which: usize| u32::try_from(read(which)).unwrap_or(u32::MAX).min(1_000_000);
            it.peer.usage = (it.peer.usage + part(of_process::USAGE)).min(1_000_000);
            it.peer.demand = (it.peer.demand + part(of_process::DEMAND)).min(1_000_000);
            it.peer.wants |= flags & WANTS != 0;
            it.peer.fills |= flags & FILLS != 0;
            it.peer.burst = it.peer.burst.max(read(of_process::BURST));
            it.peer.quiet = it.peer.quiet.min(speaking.said.quiet(read(of_process::WORKED), now));
            it.peer.batches &= flags & BATCHES != 0;
            it.is_on |= flags & IS_ON != 0;
            if flags & URGENT != 0 {
                it.peer.priority = Priority::Latency;
            }
            it.said = it.said.max(speaking.said.ours);
        }
        present
    }

    /// Everybody who is there.
    pub fn neighbourhood(&self, heard: &Heard, now: u64) -> Neighbourhood {
        self.stays_public(heard, now);
        let (number, own) = (self.mapping.number(), self.place.container);
        let (mut all, mut leases) = (Vec::new(), Vec::new());
        all.extend(self.present(heard, now));
        // Those of the same region.
        let public = self.public();
        for slot in (0..CONTAINERS).filter(|slot| *slot != own) {
            let lease = &public.header.lease[slot];
            let word = lease.load(SeqCst);
            if word != 0 {
                let at = std::ptr::from_ref(lease) as usize;
                leases.push(LeaseWord { word, writer: identity(number, slot), at });
            }
            let theirs = public.header.said[slot].load(SeqCst);
            let ours = if theirs == 0 { 0 } else { self::heard(&heard.beside, (slot, CONTAINERS), theirs, now) };
            if ours != 0 && now.saturating_sub(ours) < FRESH {
                let told = Told::of(&public.pages[slot]);
                all.push(Present::read(identity(number, slot), &Said { ours, theirs }, &told, now));
            }
        }
        // And those of others, unless this is called from inside of itself.
        let mut are_strange = false;
        if let (Some(around), Ok(mut neighbours)) = (&self.mapping.around, heard.neighbours.try_borrow_mut())
            && around.among.is_some()
        {
            let (present, words) = neighbours.listen(around, number, now);
            all.extend_from_slice(present);
            leases.extend_from_slice(words);
            are_strange = neighbours.are_strange;
        }
        all.sort_unstable_by_key(|it| it.index);
        let works = |it: &Speaking<'_>| it.word(of_process::FLAGS) & PENDING != 0;
        let processes = self.speaking(heard, now).count() as u32;
        let siblings = self.speaking(heard, now).filter(works).count() as u32;
        let mut among =
            Neighbourhood { all, leases, named_since: now, own: self.index(), processes, siblings, are_strange };
        let newest = self.newest(&among).word;
        let (before, since) = heard.newest.get();
        if newest == before {
            among.named_since = since;
        } else {
            heard.newest.set((newest, now));
        }
        among
    }

    /// Others find what is told, also when somebody has taken the file away, cut it short or put another into its place.
    fn stays_public(&self, heard: &Heard, now: u64) {
        const BETWEEN_LOOKS: u64 = 1_000_000_000;
        let Some(around) = &self.mapping.around else { return };
        if heard.looked.get() != 0 && now.saturating_sub(heard.looked.get()) < BETWEEN_LOOKS {
            return;
        }
        heard.looked.set(now);
        let path = around.dir.join(file::public_name(&around.gpu));
        let is_there = file::about(&path).is_ok_and(|about| about.st_ino == self.mapping.number());
        if !is_there || self.public().header.magic.load(SeqCst) != PUBLIC_MAGIC {
            let _ = file::publish(self.mapping);
        }
    }

    fn newest(&self, among: &Neighbourhood) -> LeaseWord {
        let own = self.lease_word();
        let own = LeaseWord { word: own.load(SeqCst), writer: among.own, at: std::ptr::from_ref(own) as usize };
        // Two of the same number were taken at once, for want of a holder: the one of the lower index counts.
        let order = |one: &&LeaseWord, other: &&LeaseWord| match (one.word == 0, other.word == 0) {
            (false, false) => {
                let ahead = steer::ahead(one.in_order(), other.in_order());
                ahead.cmp(&0).then(other.writer.cmp(&one.writer))
            }
            (one, other) => other.cmp(&one),
        };
        among.leases.iter().chain([&own]).max_by(order).copied().unwrap_or(own)
    }

    /// The newest lease.
    pub fn lease(&self, among: &Neighbourhood, now: u64) -> Lease {
        let newest = self.newest(among);
        // One that is off comes on first, and says nothing meanwhile.
        let comes = |it: &Present| !it.is_on && now.saturating_sub(among.named_since) < COMING;
        let can_use = |it: &Present| {
            it.peer.takes_leases()
                && it.peer.wants
                && (it.index == among.own || now.saturating_sub(it.said) < SILENT || comes(it))
        };
        let holder = newest.named().filter(|index| among.get(*index).is_some_and(can_use));
        let watch = match holder {
            Some(holder) if holder == among.own => None,
            Some(holder) => among.leases.iter().find(|it| it.writer == holder),
            None => Some(&newest),
        };
        let own = self.lease_word();
        let (watch, word) = match watch {
            Some(watch) => (watch.at, watch.word),
            None => (std::ptr::from_ref(own) as usize, own.load(SeqCst)),
        };
        Lease { holder, number: newest.number(), watch, word }
    }

    /// Gives the GPU to a container, after so many leases.
    pub fn pass_lease(&self, to: usize, number: u64) {
        let own = self.lease_word();
        // They go round, and 0 is none.
        let number = (number.wrapping_add(1) << WHO_BITS).max(1 << WHO_BITS);
        own.store(number | to as u64 & ((1 << WHO_BITS) - 1), SeqCst);
        sys::futex_wake_shared(own);
    }

    /// Whether there is a newer lease.
    pub fn is_over(&self, lease: &Lease) -> bool {
        let here = |word: &&AtomicU64| std::ptr::from_ref::<AtomicU64>(word) as usize == lease.watch;
        if let Some(word) = self.public().header.lease.iter().find(here) {
            return word.load(SeqCst) != lease.word;
        }
        let mut word = [0];
        sys::copy_own(&mut word, &[lease.watch], 8) != Ok(8) || word[0] != lease.word
    }

    /// Sleeps until there is a newer lease, somebody rings, or until then.
    pub fn wait_for_lease(&self, lease: &Lease, until: u64, now: u64) {
        let time = Duration::from_nanos(until.saturating_sub(now).min(900_000_000));
        // The low bits of how many leases there were are in the low half of the word, so that it changes with every one.
        if !sys::futex_wait_shared(lease.watch, lease.word as u32, time) {
            // Whoever held it has taken the word away.
            sys::sleep(time.min(Duration::from_millis(1)));
        }
    }

    /// The container has held the GPU so long.
    pub fn held_for(&self, time: u64, weight: Share) {
        self.held_longer(time, weight);
        self.own(of_container::LEASES).fetch_add(1, SeqCst);
    }

    /// And so much longer, until it was off.
    pub fn held_longer(&self, time: u64, weight: Share) {
        let more = steer::virtual_time(time, weight);
        let had = self.own(of_container::VIRTUAL_TIME).fetch_add(more, SeqCst);
        self.page().virtual_time.store(had.wrapping_add(more), SeqCst);
    }

    /// It wants leases, beside others that do: from now on if it `is_new`. See [`steer::joined`].
    pub fn takes_turns(&self, among: &Neighbourhood, is_new: bool) {
        let times = || among.wanting().filter(|it| it.index != among.own).map(|it| it.virtual_time);
        let own = self.own(of_container::VIRTUAL_TIME);
        let had = own.load(SeqCst);
        let weight = among.get(among.own).map_or(Share::UNASKED, |it| it.peer.weight);
        let least = among.wanting().map(|it| it.peer.weight).min().unwrap_or(weight);
        if is_new || steer::is_astray(had, times(), least) {
            let joined = steer::joined(had, times(), weight);
            // Lost where a process of the same container adds to it at once, which does this itself.
            if own.compare_exchange(had, joined, SeqCst, SeqCst).is_ok() {
                self.page().virtual_time.store(joined, SeqCst);
            }
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

    /// Others' leases have kept it off for too long again and again, and do not count for some time.
    pub fn believes_nobody(&self) {
        self.own(of_container::DISBELIEVED).fetch_add(1, SeqCst);
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
