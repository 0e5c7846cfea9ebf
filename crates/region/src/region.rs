//! A region as a process uses it, and the process's membership in it.

mod change;
mod share;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::around::Home;
use crate::compute::Compute;
use crate::error::{JoinError, OpenError};
use crate::keeper::{Answer, Keeper, Request};
use crate::layout::{CONTAINERS, LONGEST_NAME, NO_CAP};
use crate::ledger::{Account, Full};
use crate::life::{UNKEPT, is_over};
use crate::memory::Mapping;
use crate::sync::{AtomicU64, SeqCst};
use crate::sys::{pid, pid_namespace};
use crate::table::{Newcomer, Place, Trouble};
use crate::view::{ContainerView, Dead, ProcessView};
use crate::{Gpu, file};

pub use change::Change;

/// A GPU's region, mapped.
///
/// The mapping stays for as long as there is a [`Region`] or a [`Member`] of it.
pub struct Region {
    /// `None`: there was no memory for a private one.
    mapping: Option<Arc<Mapping>>,
    private: bool,
}

impl Region {
    /// Opens the GPU's region in a directory, for containers that have no neighbours but each other. Directory and file are made if
    /// need be, open to all users.
    ///
    /// A region of another major version is refused. One of another minor version is used: see docs/region.md.
    pub fn open(dir: &Path, gpu: &Gpu) -> Result<Region, OpenError> {
        Region::open_at(&Home::alone(dir), gpu)
    }

    /// The same in a container's own directory, beside those of others.
    pub fn open_at(home: &Home, gpu: &Gpu) -> Result<Region, OpenError> {
        file::open(home, gpu).map(|mapping| Region { mapping: Some(Arc::new(mapping)), private: false })
    }

    /// Opens a region that is there, for who looks after containers and is none: nothing is made, and whoever joins tells nobody.
    pub fn look(dir: &Path, gpu: &Gpu) -> Result<Region, OpenError> {
        file::look(dir, gpu).map(|mapping| Region { mapping: Some(Arc::new(mapping)), private: false })
    }

    /// As [`Region::open_at`], for the container itself: what is damaged there is replaced.
    pub fn mend_at(home: &Home, gpu: &Gpu) -> Result<Region, OpenError> {
        file::mend(home, gpu).map(|mapping| Region { mapping: Some(Arc::new(mapping)), private: false })
    }

    /// A region that this process has with none but those that it forks: for when there is no directory.
    pub fn private(gpu: &Gpu) -> Region {
        let mapping = Mapping::new(None, None).ok();
        if let Some(mapping) = &mapping {
            mapping.table().header.describe(&gpu.uuid, gpu.total, [0; 2]);
        }
        Region { mapping: mapping.map(Arc::new), private: true }
    }

    /// Joins a container: finds it by its name or makes it, and takes a slot for this process.
    ///
    /// The container's cap is that of the first process in it. One that joins later brings a cap only if there is none yet;
    /// [`Member::cap`] tells what holds.
    pub fn join(&self, container: &str, cap: Option<u64>) -> Result<Member, JoinError> {
        if container.is_empty() || container.len() > LONGEST_NAME {
            return Err(JoinError::Name { length: container.len() });
        }
        let mapping = self.mapping.as_ref().ok_or(JoinError::NoMemory)?;
        let keeper = Keeper::here().ok_or(JoinError::NoMemory)?;
        let kept = match keeper.start() {
            Ok(()) => true,
            Err(_) if self.private => false,
            Err(errno) => return Err(JoinError::NoKeeper { errno }),
        };
        let cap = cap.map(|cap| cap.min(NO_CAP - 1));
        let newcomer = Newcomer { name: container.as_bytes(), cap, pid: pid(), namespace: pid_namespace() };
        match ask(mapping, keeper, kept, Request::join(mapping.table(), &newcomer)) {
            Answer::Joined(place) => {
                let life = if kept { keeper.number() } else { UNKEPT };
                let (mapping, cap) = (Arc::clone(mapping), AtomicU64::new(NO_CAP));
                let is_renounced = AtomicBool::new(false);
                Ok(Member { mapping, place, cap, keeper, epoch: keeper.epoch(), kept, life, is_renounced })
            }
            Answer::Failed(Trouble::Containers) => Err(JoinError::TooManyContainers),
            Answer::Failed(Trouble::Processes) => Err(JoinError::TooManyProcesses),
            Answer::Failed(Trouble::Busy) | Answer::Gone(_) => Err(JoinError::Busy),
        }
    }

    /// The containers in it, also those whose processes have all gone.
    pub fn containers(&self) -> impl Iterator<Item = ContainerView<'_>> {
        let table = self.mapping.as_ref().map(|mapping| mapping.table());
        table.into_iter().flat_map(|table| (0..CONTAINERS).filter_map(|index| ContainerView::of(table, index)))
    }

    /// The GPU's memory, in bytes, as whoever made the region saw it.
    pub fn total(&self) -> u64 {
        self.mapping.as_ref().map_or(0, |mapping| mapping.table().header.total.load(SeqCst))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.containers()).finish()
    }
}

/// Has it done by the keeper, or here if there is none.
fn ask(mapping: &Arc<Mapping>, keeper: &Keeper, kept: bool, request: Request) -> Answer {
    if !kept {
        return request.perform_unkept();
    }
    match keeper.ask(request) {
        Ok(answer) => answer.unwrap_or(Answer::Failed(Trouble::Busy)),
        Err(()) => {
            // The keeper may yet get to it, and write to the region: it must never be unmapped.
            std::mem::forget(Arc::clone(mapping));
            Answer::Failed(Trouble::Busy)
        }
    }
}

/// This process's place in a container. It is left when dropped, and then what was held is not counted any more.
///
/// Not valid in a forked child: there, nothing that changes anything does anything, and [`Member::is_mine`] says so.
pub struct Member {
    mapping: Arc<Mapping>,
    place: Place,
    /// What this process knows the cap to be, whatever the region says; [`NO_CAP`]: it does not.
    cap: AtomicU64,
    keeper: &'static Keeper,
    epoch: u32,
    kept: bool,
    /// What is in the slot's life word.
    life: u32,
    is_renounced: AtomicBool,
}

impl Member {
    #[inline]
    fn account(&self) -> Account<'_> {
        Account { table: self.mapping.table(), place: &self.place, cap: Some(&self.cap) }
    }

    /// Whether this process is the one that joined, and not a child that was forked since.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.keeper.is_of(self.epoch)
    }

    /// Whether the slot no longer says what this process wrote into it, or the container does not know of it: somebody has damaged
    /// the region, or [`crate::rescue`] replaced it. What is counted here is then worth nothing; a process does better by
    /// itself, in [`Region::private`].
    pub fn is_lost(&self) -> bool {
        let (table, place) = (self.mapping.table(), &self.place);
        let slot = &table.processes[place.process];
        let is_there = slot.member.load(SeqCst) == place.membership
            && slot.generation.load(SeqCst) == place.generation
            && slot.life.load(SeqCst) == self.life;
        let is_known = || table.container_of(slot).is_some_and(|(_, container)| container.has_member(place.process));
        !is_there || self.is_renounced() || !is_known()
    }

    /// Whether whoever comes to the container now comes to another region: somebody has removed or replaced the file. It makes a system
    /// call.
    pub fn is_astray(&self) -> bool {
        !file::is_at_its_place(&self.mapping)
    }

    /// Takes `bytes`, if the container then holds no more than its cap. To be called before the driver is.
    ///
    /// In a forked child there is nothing to take from: [`Full`], with a cap of 0.
    pub fn reserve(&self, bytes: u64) -> Result<(), Full> {
        self.reserve_within(bytes, 0)
    }

    /// The same, with the cap smaller by `keep_free`.
    pub fn reserve_within(&self, bytes: u64, keep_free: u64) -> Result<(), Full> {
        if !self.is_mine() {
            return Err(Full { cap: 0, used: 0 });
        }
        self.account().reserve(bytes, keep_free)
    }

    /// The same, for what may turn out to be less: it is not remembered as what was held at most.
    pub fn reserve_at_most(&self, bytes: u64, keep_free: u64) -> Result<(), Full> {
        if !self.is_mine() {
            return Err(Full { cap: 0, used: 0 });
        }
        self.account().reserve_at_most(bytes, keep_free)
    }

    /// Remembers what the container holds now, if that is the most that it has held.
    pub fn remember_most(&self) {
        if self.is_mine() {
            self.account().remember_most();
        }
    }

    /// Counts `bytes` that the driver has taken already, even beyond the cap. Whether that is the most, its caller says.
    pub fn charge(&self, bytes: u64) {
        if self.is_mine() {
            self.account().charge(bytes);
        }
    }

    /// Gives `bytes` back. What is given back beyond what was held is counted as drift, and is otherwise nothing.
    pub fn refund(&self, bytes: u64) {
        if self.is_mine() {
            self.account().refund(bytes);
        }
    }

    /// The bytes that this process holds.
    pub fn held(&self) -> u64 {
        self.mapping.table().processes[self.place.process].held.load(SeqCst)
    }

    /// The bytes that the container holds: all of its processes, the dead that are not buried included.
    pub fn used(&self) -> u64 {
        self.account().used()
    }

    /// The container's cap.
    pub fn cap(&self) -> Option<u64> {
        let cap = self.account().cap();
        (cap != NO_CAP).then_some(cap)
    }

    /// Changes the container's cap, for all of its processes. What is held beyond it stays held.
    pub fn set_cap(&self, cap: Option<u64>) {
        if self.is_mine() {
            let cap = cap.map_or(NO_CAP, |cap| cap.min(NO_CAP - 1));
            self.account().set_cap(cap);
        }
    }

    /// This process knows the container's cap, from a file that no program in the container can change. From now on it holds here,
    /// whatever the region says; that is put right by [`Member::tells_others`].
    pub fn is_entitled_to(&self, cap: u64) {
        self.cap.store(cap.min(NO_CAP - 1), SeqCst);
        self.tells_others();
    }

    /// Tells the others the cap that this process knows of, if the region says something else.
    pub fn tells_others(&self) {
        let cap = self.cap.load(SeqCst);
        let word = &self.mapping.table().containers[self.place.container].cap;
        if cap != NO_CAP && word.load(SeqCst) != cap && self.is_mine() {
            word.store(cap, SeqCst);
        }
    }

    /// The bytes that this process gave back beyond what it held.
    pub fn drift(&self) -> u64 {
        self.mapping.table().processes[self.place.process].drift.load(SeqCst)
    }

    /// Says by which number the driver knows this process, for whoever asks the driver about it when it is dead.
    pub fn set_driver_pid(&self, pid: u32) {
        if self.is_mine() {
            self.mapping.table().processes[self.place.process].driver_pid.store(pid, SeqCst);
        }
    }

    /// Frees the slots of the container's dead, those of which `released` says that the driver has let go of their memory.
    /// Returns the bytes that came back.
    pub fn reap(&self, released: &mut dyn FnMut(&Dead) -> bool) -> u64 {
        let mut back = 0u64;
        if !self.is_mine() {
            return back;
        }
        let table = self.mapping.table();
        for (index, process) in table.members_of(self.place.container) {
            // Before the look at its life: if somebody else frees it meanwhile, the generation is no longer the same.
            let generation = process.generation.load(SeqCst);
            if index != self.place.process && is_over(&process.life) && released(&ProcessView::of(index, process)) {
                let request = Request::bury(table, index, generation);
                let Answer::Gone(bytes) = ask(&self.mapping, self.keeper, self.kept, request) else { break };
                back = back.saturating_add(bytes);
            }
        }
        back
    }

    /// For a process that is in here once: other slots that name it are copies of one that it had in another file. They would count for
    /// as long as it lives.
    pub fn disowns_copies(&self) {
        let table = self.mapping.table();
        let own = &table.processes[self.place.process];
        let words = |process: &crate::layout::Process| {
            (process.life.load(SeqCst), process.pid.load(SeqCst), process.pid_namespace.load(SeqCst))
        };
        for (index, process) in table.members_of(self.place.container) {
            let generation = process.generation.load(SeqCst);
            if index != self.place.process && words(process) == words(own) && self.is_mine() {
                let _ = ask(&self.mapping, self.keeper, self.kept, Request::disown(table, index, generation));
            }
        }
    }

    /// From now on this process's place here counts as lost, whatever stands in it: it has another one.
    pub fn renounce(&self) {
        self.is_renounced.store(true, SeqCst);
    }

    /// Whether it has another place by now, or is about to.
    pub fn is_renounced(&self) -> bool {
        self.is_renounced.load(SeqCst)
    }

    /// The container's other processes that are alive.
    pub fn others(&self) -> impl Iterator<Item = ProcessView> {
        let members = self.mapping.table().members_of(self.place.container);
        let others = members.filter(|(index, _)| *index != self.place.process);
        others.map(|(index, process)| ProcessView::of(index, process)).filter(|process| process.alive)
    }

    /// The container's account of GPU time.
    #[inline]
    pub fn compute(&self) -> Compute<'_> {
        Compute { mapping: &self.mapping, place: &self.place, entitled: None }
    }

    /// The container.
    pub fn container(&self) -> Option<ContainerView<'_>> {
        ContainerView::of(self.mapping.table(), self.place.container)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.is_mine() {
            let request = Request::leave(self.mapping.table(), &self.place);
            if let Answer::Failed(_) = ask(&self.mapping, self.keeper, self.kept, request) {
                // The keeper's list still holds a word of the region, so it must never be unmapped.
                std::mem::forget(Arc::clone(&self.mapping));
            }
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("held", &self.held()).field("container", &self.container()).finish()
    }
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Region>();
    shared::<Member>();
};
