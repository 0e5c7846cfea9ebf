//! Who is in: containers and processes come and go under the region's lock.
//!
//! The lock and the slots' life words are robust: a holder that dies leaves a mark, and the next one to come puts right what
//! was left half done. So the order of the steps matters. At every point between two of them:
//!
//! - a slot whose life word is 0 is free, and nothing counts what is in it;
//! - a process is counted in its container from the moment when its bit is set there to the moment when it is cleared. When
//!   its bit is set it holds nothing yet;
//! - a slot of the dead that no container counts is an *orphan*: anybody may free it;
//! - a container that is [`CHANGING`] while nobody holds the lock was left so by somebody who died: it is nobody's.
//!
//! Only keepers ([`crate::keeper`]) take the lock, and they hold it for some microseconds. One that is stopped in between
//! keeps others waiting, but not for long: they say so and go on alone.

use std::time::Duration;

use crate::layout::{CHANGING, CONTAINERS, Container, FREE, LIVE, MINOR, NO_CAP, PROCESSES, Process, Table};
use crate::life::{DIED, Owner, is_held, is_over};
use crate::sync::{Patience, SeqCst};

/// Who wants to join.
pub struct Newcomer<'a> {
    /// The container's name.
    pub name: &'a [u8],
    /// Its cap, as far as the newcomer knows.
    pub cap: Option<u64>,
    /// The process, as it sees itself.
    pub pid: u32,
    /// Its PID namespace.
    pub namespace: u64,
}

/// Where somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The container's index.
    pub container: usize,
    /// The process's index.
    pub process: usize,
    /// The word that says so in the process's slot.
    pub membership: u64,
    /// The slot's generation.
    pub generation: u64,
}

/// Why somebody could not change the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The lock was held for too long.
    Busy,
    /// There is no room for another container.
    Containers,
    /// There is no room for another process.
    Processes,
}

/// How long somebody who wants to join waits for the lock. It is done once, and much depends on it.
const JOIN: Duration = Duration::from_secs(1);
/// How long others do: they can come back.
const BRIEF: Duration = Duration::from_millis(20);

impl Table {
    /// Joins: a process slot in the container of this name, which is made if there is none.
    pub fn join(&self, owner: &dyn Owner, newcomer: &Newcomer<'_>) -> Result<Place, Trouble> {
        self.locked(owner, JOIN, || {
            self.free_orphans();
            let process = self.claim(owner).ok_or(Trouble::Processes)?;
            let Some(container) = self.find(newcomer.name).or_else(|| self.make(newcomer.name)) else {
                owner.give(&self.processes[process].life);
                return Err(Trouble::Containers);
            };
            Ok(self.enter(container, process, newcomer))
        })?
    }

    /// Leaves. What was held is not counted any more.
    pub fn leave(&self, owner: &dyn Owner, place: &Place) -> Result<(), Trouble> {
        self.locked(owner, BRIEF, || {
            let Some(process) = self.processes.get(place.process) else { return };
            if process.generation.load(SeqCst) == place.generation && is_held(&process.life) {
                self.forget(place.process);
            }
            // Even if the slot says that it is somebody else's: the region may be gone from memory after this.
            owner.give(&process.life);
        })
    }

    /// Frees the slot of a process that has died, unless somebody was faster. Returns what it had held.
    pub fn bury(&self, owner: &dyn Owner, process: usize, generation: u64) -> Result<u64, Trouble> {
        self.locked(owner, BRIEF, || match self.processes.get(process) {
            Some(slot) if slot.generation.load(SeqCst) == generation && is_over(&slot.life) => self.free_dead(process),
            _ => 0,
        })
    }

    /// Frees a slot of which whoever it names says that it is not its own: the file is a copy of another one.
    pub fn disown(&self, owner: &dyn Owner, process: usize, generation: u64) -> Result<(), Trouble> {
        self.locked(owner, BRIEF, || {
            if self.processes.get(process).is_some_and(|slot| slot.generation.load(SeqCst) == generation) {
                self.free_dead(process);
            }
        })
    }

    /// A living process has less in descriptors than it was `seen` to have said. Needs no lock: if it has said something else
    /// since, or is another one, that stands.
    pub fn lower_lent(&self, slot: (usize, u64), seen: u64, bytes: u64) {
        let process = self.processes.get(slot.0).filter(|it| it.generation.load(SeqCst) == slot.1);
        if let Some(process) = process.filter(|it| is_held(&it.life)) {
            let _ = process.lent.compare_exchange(seen, bytes.min(seen), SeqCst, SeqCst);
        }
    }

    /// So much of what a dead process held is kept by descriptors, and nothing else.
    pub fn outlive(&self, owner: &dyn Owner, slot: (usize, u64), bytes: u64) -> Result<(), Trouble> {
        self.locked(owner, BRIEF, || {
            let process = self.processes.get(slot.0).filter(|it| it.generation.load(SeqCst) == slot.1);
            if let Some(process) = process.filter(|it| is_over(&it.life)) {
                process.lent.store(bytes, SeqCst);
                for word in [&process.found, &process.held, &process.beside, &process.pending] {
                    word.store(0, SeqCst);
                }
            }
        })
    }

    /// Does something while nobody else changes who is in.
    fn locked<T>(&self, owner: &dyn Owner, limit: Duration, work: impl FnOnce() -> T) -> Result<T, Trouble> {
        let lock = &self.header.lock;
        let mut patience = Patience::new();
        loop {
            let seen = lock.load(SeqCst);
            if (seen == 0 || seen & DIED != 0) && owner.take(lock, seen) {
                if seen != 0 {
                    self.put_right();
                }
                let value = work();
                owner.give(lock);
                return Ok(value);
            }
            if patience.passed() > limit {
                return Err(Trouble::Busy);
            }
            patience.pause();
        }
    }

    /// After a holder of the lock has died.
    fn put_right(&self) {
        for container in &self.containers {
            if container.state.load(SeqCst) == CHANGING {
                container.state.store(FREE, SeqCst);
            }
        }
        self.free_orphans();
    }

    /// Frees the slots of the dead that no container counts.
    fn free_orphans(&self) {
        for (index, process) in self.processes.iter().enumerate() {
            if is_over(&process.life) && self.container_of(process).is_none_or(|(_, it)| !it.has_member(index)) {
                self.free_dead(index);
            }
        }
    }

    /// The container that a process says it is in, if there is such a one.
    pub fn container_of(&self, process: &Process) -> Option<(usize, &Container)> {
        let membership = process.member.load(SeqCst);
        let index = (membership as u32).checked_sub(1)? as usize;
        let container = self.containers.get(index)?;
        (container.state.load(SeqCst) == LIVE && container.membership(index) == membership)
            .then_some((index, container))
    }

    /// A slot, held by the owner and empty.
    fn claim(&self, owner: &dyn Owner) -> Option<usize> {
        let from = self.header.claim_from.load(SeqCst) as usize % PROCESSES;
        let mut indexes = (from..PROCESSES).chain(0..from);
        let found = indexes.find(|&index| owner.take(&self.processes[index].life, 0)).or_else(|| {
            // All taken: by the dead of containers in which nobody is left to bury them. Those of whom something may be left are
            // forgotten only if there is no other way.
            [false, true].into_iter().find_map(|all| {
                for container in (0..CONTAINERS).filter(|&it| self.has_none_but_dead(it)) {
                    if all || !self.has_exports(container) {
                        self.bury_all(container);
                    }
                }
                (0..PROCESSES).find(|&index| owner.take(&self.processes[index].life, 0))
            })
        })?;
        self.header.claim_from.store((found as u32 + 1) % PROCESSES as u32, SeqCst);
        // Whoever had it before may have written to it a moment after its death was known.
        self.processes[found].clear();
        Some(found)
    }

    fn enter(&self, index: usize, process: usize, newcomer: &Newcomer<'_>) -> Place {
        let (container, slot) = (&self.containers[index], &self.processes[process]);
        // The cap is that of the first one in; nobody who comes later changes it by joining.
        let asked = newcomer.cap.unwrap_or(NO_CAP);
        if self.has_none_but_dead(index) || container.cap.load(SeqCst) == NO_CAP {
            container.cap.store(asked, SeqCst);
        }
        slot.minor.store(u32::from(MINOR), SeqCst);
        slot.pid.store(newcomer.pid, SeqCst);
        slot.pid_namespace.store(newcomer.namespace, SeqCst);
        let membership = container.membership(index);
        slot.member.store(membership, SeqCst);
        container.set_member(process, true);
        Place { container: index, process, membership, generation: slot.generation.load(SeqCst) }
    }

    /// The container of this name.
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        self.containers.iter().position(|it| it.state.load(SeqCst) == LIVE && it.is_called(name))
    }

    fn make(&self, name: &[u8]) -> Option<usize> {
        let place = |wanted: &dyn Fn(usize) -> bool| (0..CONTAINERS).find(|&index| wanted(index));
        let index = place(&|it| self.containers[it].state.load(SeqCst) != LIVE)
            .or_else(|| place(&|it| self.members_of(it).next().is_none()))
            .or_else(|| place(&|it| self.has_none_but_dead(it) && !self.has_exports(it)))
            .or_else(|| place(&|it| self.has_none_but_dead(it)))?;
        self.bury_all(index);
        let container = &self.containers[index];
        container.state.store(CHANGING, SeqCst);
        container.clear();
        container.set_name(name);
        container.cap.store(NO_CAP, SeqCst);
        // Never 0, so that no membership is the word of a slot that is in no container.
        container.generation.store(container.generation.load(SeqCst).wrapping_add(1).max(1), SeqCst);
        container.state.store(LIVE, SeqCst);
        Some(index)
    }

    /// Whether nobody in it is alive.
    fn has_none_but_dead(&self, container: usize) -> bool {
        !self.members_of(container).any(|(_, process)| is_held(&process.life))
    }

    /// Whether anybody in it has exported memory, which may outlive it.
    fn has_exports(&self, container: usize) -> bool {
        self.members_of(container).any(|(_, process)| process.node.iter().any(|word| word.load(SeqCst) != 0))
    }

    fn bury_all(&self, container: usize) {
        for (index, _) in self.members_of(container).filter(|(_, process)| is_over(&process.life)) {
            self.free_dead(index);
        }
    }

    /// The processes that are in a container, by its account and by theirs.
    pub fn members_of(&self, container: usize) -> impl Iterator<Item = (usize, &Process)> {
        let container = self.containers.get(container).map(|it| (it, it.membership(container)));
        let members = container.into_iter().flat_map(|(it, membership)| it.members().map(move |at| (at, membership)));
        members.filter_map(|(at, membership)| {
            let process = self.processes.get(at)?;
            (process.member.load(SeqCst) == membership).then_some((at, process))
        })
    }

    /// Nobody counts a process any more. Its slot is not free yet.
    fn forget(&self, index: usize) -> u64 {
        let process = &self.processes[index];
        let held = process.held.load(SeqCst);
        if let Some((_, container)) = self.container_of(process) {
            container.set_member(index, false);
            let drift = process.drift.swap(0, SeqCst);
            container.drift.store(container.drift.load(SeqCst).saturating_add(drift), SeqCst);
        }
        process.clear();
        process.generation.store(process.generation.load(SeqCst).wrapping_add(1), SeqCst);
        held
    }

    /// Frees the slot of the dead; its life word goes last, so that somebody who dies in the middle leaves it dead.
    fn free_dead(&self, index: usize) -> u64 {
        let held = self.forget(index);
        self.processes[index].life.store(0, SeqCst);
        held
    }
}
