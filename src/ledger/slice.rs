//! This process's place in its container's slice of one GPU.

mod device;
mod hold;
mod join;
mod loss;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use ration_contract::Settings;
use ration_region::{Compute, Gpu, Member, ProcessView};

use super::heap::Heaps;
use super::quota::{self, Asked};
use super::{Changing, lent, marks, pools, shared, truth};
use crate::abi::cuda::{self, CUcontext, CUdevice};
use crate::driver::calls;
use crate::steer::Steer;
use crate::sys;
use crate::thread::Guarded;
use device::{sm, threads, uuid, within_the_drivers};
use join::join;
use loss::Seat;

pub use device::{gpus, is_there};
pub use hold::Hold;
pub use join::name;

/// What the driver hands out memory in.
pub const BLOCK: u64 = 2 << 20;

/// Bytes rounded up to whole blocks.
pub fn in_blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// The process's place in a slice.
pub struct Slice {
    /// As the process numbers it.
    pub device: CUdevice,
    /// As everybody names it.
    pub uuid: [u8; 16],
    /// What the GPU has.
    pub total: u64,
    /// The version of its instructions: ten times the major plus the minor number.
    pub sm: u32,
    /// Where they meet: see [`marks`].
    pub home: marks::FileId,
    seat: Seat,
    /// By which others know this process, there: see [`marks`]; and whether there are marks by it. Then it stays, wherever this process
    /// is counted.
    slot: Guarded<((usize, u64), bool)>,
    /// By which number NVML knows this process; 0 until that is known.
    driver_pid: AtomicU32,
    /// What the settings say that the container may have of it.
    asked: AtomicU64,
    /// The same for its time.
    time: Guarded<Asked>,
    /// What is known of by its call: the parts of what NVML says this process holds.
    counted: AtomicU64,
    /// What is not: contexts, code, local memory. Learned from NVML, as the rest of what it says.
    uncounted: AtomicI64,
    /// What is known of by its call, and in no figure of NVML's for this process.
    beside: AtomicU64,
    /// To be held by whoever learns, or goes to be counted elsewhere.
    settling: Guarded<()>,
    /// The driver may have taken something that no call tells of.
    stale: AtomicU32,
    /// Reservations that stand for it until that is learned.
    unlearned: AtomicU64,
    /// When that was last looked into, in milliseconds.
    looked: AtomicU64,
    /// This process has handed something over, and those who have it now may have been in the middle of something when they were
    /// looked at: they are looked at once more.
    look_back: AtomicBool,
    /// Bytes of local memory that the driver has made room for, for every thread that the GPU can hold: by context.
    local: Guarded<BTreeMap<usize, u64>>,
    /// How many threads that is.
    threads: u64,
    /// Heaps of kernels, by context.
    pub heaps: Heaps,
    /// What a context was seen to take.
    context: AtomicU64,
    /// When its launches may go.
    pub steer: Steer,
}

/// What a context takes at most, where none has been seen yet. On an H200 it is 518 MiB.
const CONTEXT: u64 = 640 << 20;
/// Local memory that every context comes with.
const LOCAL: u64 = 1024;

/// There is no more to be had.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Slice {
    /// `None`: the driver does not say enough about the device, try again later. `Some(None)`: it has no limit.
    pub fn make(device: CUdevice, settings: &Settings, changing: &Changing) -> Option<Option<Slice>> {
        let uuid = uuid(device)?;
        let mut total = 0usize;
        // SAFETY: a place to write to.
        if unsafe { calls::cuDeviceTotalMem_v2(&raw mut total, device) } != cuda::CUDA_SUCCESS {
            return None;
        }
        let index = u32::try_from(device).ok()?;
        let total = total as u64;
        let wanted = Asked::of(settings, index, &uuid, total);
        if wanted.is_nothing() {
            return Some(None);
        }
        let cap = within_the_drivers(device, &uuid, wanted.memory.unwrap_or(total));
        let gpu = Gpu { uuid, total };
        let (member, directory) = join(&gpu, settings, cap)?;
        let slice = Slice {
            device,
            uuid,
            total,
            sm: sm(device),
            driver_pid: AtomicU32::new(0),
            asked: AtomicU64::new(cap),
            home: marks::home(directory.as_deref()),
            slot: Guarded::new((member.slot(), false)),
            seat: Seat::new(member, directory),
            time: Guarded::new(wanted),
            counted: AtomicU64::new(0),
            uncounted: AtomicI64::new(0),
            beside: AtomicU64::new(0),
            settling: Guarded::new(()),
            stale: AtomicU32::new(1),
            unlearned: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            look_back: AtomicBool::new(false),
            local: Guarded::new(BTreeMap::new()),
            threads: threads(device),
            heaps: Heaps::new(),
            context: AtomicU64::new(CONTEXT),
            // Under MPS, contexts run side by side and do not take the GPU from each other.
            steer: Steer::new(),
        };
        slice.tells_its_cap(slice.member(), cap);
        slice.begin_time(&slice.compute());
        slice.learn(changing);
        Some(Some(slice))
    }

    /// What the container may have: what the quota file says; else what the region does, where its first process has written it
    /// and others may change it.
    pub fn cap(&self) -> u64 {
        self.ask(Member::cap).flatten().unwrap_or_else(|| self.asked.load(Ordering::Acquire))
    }

    /// Another cap, for all processes of the container.
    pub(super) fn set_cap(&self, cap: u64) {
        let cap = within_the_drivers(self.device, &self.uuid, cap);
        self.asked.store(cap, Ordering::Release);
        self.member().set_cap(Some(cap));
        self.tells_its_cap(self.member(), cap);
    }

    /// A cap from a quota file holds, whatever others write into the region.
    fn tells_its_cap(&self, member: &Member, cap: u64) {
        if quota::is_there() {
            member.is_entitled_to(cap);
        }
    }

    /// Others read there what the container is entitled to: if somebody has written something else, it is put right.
    pub fn tells_others(&self) {
        self.member().tells_others();
    }

    /// The container's account of GPU time.
    #[inline]
    pub fn compute(&self) -> Compute<'_> {
        self.member().compute()
    }

    /// The same, with what the container is entitled to. It is not for launches: it takes a lock.
    pub fn compute_as_entitled(&self) -> Compute<'_> {
        let entitled = quota::is_there().then(|| self.time.with(|asked| asked.entitled()));
        self.compute().entitled_to(entitled)
    }

    /// Takes bytes out of what is left, or says that there are none, after all that can be done about it.
    ///
    /// The last little is for small pieces and for code, so that a program which has filled its slice can still do something.
    pub fn reserve(&'static self, bytes: u64, changing: &Changing) -> Result<Hold, Full> {
        let keep_free = if bytes <= BLOCK { 0 } else { self.keep_free() };
        self.reserve_by(|member| member.reserve_within(bytes, keep_free), bytes, changing)
    }

    /// The same for what may turn out to be less. A little may be the last of the slice; what is large leaves that to others.
    pub fn reserve_at_most(&'static self, bytes: u64, changing: &Changing) -> Result<Hold, Full> {
        const LITTLE: u64 = 16 << 20;
        let keep_free = if bytes <= LITTLE { 0 } else { self.keep_free() };
        self.reserve_by(|member| member.reserve_at_most(bytes, keep_free), bytes, changing)
    }

    fn keep_free(&self) -> u64 {
        (self.cap() / 128).min(32 << 20)
    }

    fn reserve_by(
        &'static self,
        ask: impl Fn(&Member) -> Result<(), ration_region::Full>,
        bytes: u64,
        changing: &Changing,
    ) -> Result<Hold, Full> {
        quota::follow_now();
        self.look_again(changing);
        let hold = || self.take(bytes, &ask).map(|member| Hold::new(self, member, bytes));
        if let Some(hold) = hold() {
            return Ok(hold);
        }
        self.relieve(changing);
        hold().ok_or(Full)
    }

    /// Makes room: what dead processes held, what pools keep without using it, what was believed to be held and is not.
    fn relieve(&'static self, changing: &Changing) {
        self.reap();
        self.look_at_lent();
        pools::trim(self);
        // SAFETY: asks the driver to give back what graphs keep without using it.
        calls::without_breaking_captures(|| unsafe { calls::cuDeviceGraphMemTrim(self.device) });
        pools::refresh(self);
        self.learn(changing);
        self.look_at_others();
    }

    /// Gives back what dead processes held, once the driver has let go of it; but for what outlives them in descriptors.
    fn reap(&self) {
        // SAFETY: takes nothing and always succeeds.
        let me = unsafe { libc::getpid() } as u32;
        let mut looked = false;
        self.member().reap(&mut |dead| {
            // A process that replaced itself (exec) is dead and alive under one number. The driver let go of the old one's
            // memory before the new one could begin.
            let replaced = dead.pid == me
                || self.member().others().any(|other| other.pid == dead.pid && other.namespace == dead.namespace);
            let number = dead.driver_pid.unwrap_or(dead.pid);
            if !replaced && !truth::has_let_go(self, number) {
                return false;
            }
            // What others have open of it has become theirs.
            if !std::mem::replace(&mut looked, true) {
                self.look_at_others();
            }
            // Where that cannot be known, nothing: a slot is never kept for what nobody can see.
            let exported = dead.node != (0, 0);
            let most = exported.then(|| marks::of_process(self, dead.slot, dead.node)).flatten().unwrap_or(0);
            let outlives = most.min(dead.held.saturating_add(dead.lent));
            if outlives > 0 {
                self.member().lends_at_most(dead, outlives);
            }
            outlives == 0
        });
    }

    /// What descriptors keep: of this process's memory, and, as far as it can be seen from outside, of the others'. They may not
    /// look for long.
    fn look_at_lent(&self) {
        lent::settle(self);
        for other in self.member().others().filter(|other| other.lent > 0) {
            // Descriptors beside a handle that the other still has are marked too, so this may be too much, and never too little.
            let most = marks::of_process(self, other.slot, other.node);
            if let Some(most) = most.filter(|most| *most < other.lent) {
                self.look_at_others();
                self.member().lends_at_most(&other, most);
            }
        }
    }

    /// This process is about to give back something that others may have open too. It has become theirs then, and they may not look
    /// for long: so this one does, before it gives it back.
    pub fn hand_over(&self) {
        self.look_at_others();
        self.look_back.store(true, Ordering::Relaxed);
    }

    /// Counts what other processes hold, by the driver's figures, and do not say.
    fn look_at_others(&self) {
        self.member().find(|| {
            let listed = truth::figures(self)?;
            let figure =
                move |number: u32| listed.iter().find(|(pid, _)| *pid == number).map_or(0, |(_, bytes)| *bytes);
            let own_numbers = truth::are_own_numbers().then(|| self.member().namespace());
            // A number means nothing to those who live in another PID namespace, or it means somebody else.
            Some(move |other: &ProcessView| match other.driver_pid {
                Some(number) => Some(figure(number)),
                None => (own_numbers == Some(other.namespace)).then(|| figure(other.pid)),
            })
        });
    }

    /// Bytes of this process's are no longer in its figure, and descriptors keep them; `lent` is all that they keep then.
    pub fn lend(&self, bytes: u64, lent: u64) {
        self.member().lend(bytes, lent);
        self.discount(bytes);
    }

    /// Descriptors keep so much.
    pub fn set_lent(&self, lent: u64) {
        self.member().set_lent(lent);
    }

    /// This process's place in the region, for a mark: see [`marks`].
    pub fn slot_to_mark(&self) -> (usize, u64) {
        self.slot.with(|(slot, is_marked)| {
            *is_marked = true;
            *slot
        })
    }

    /// There may be descriptors of this file with memory of this process's, also when it is gone.
    pub fn exports_as(&self, node: marks::FileId) {
        self.member().exports_as(node);
    }

    /// A context is about to be made: afterwards it is known by which number NVML knows this process.
    pub fn before_context(&self) -> Option<Vec<u32>> {
        truth::before_context(self)
    }

    /// It was made.
    pub fn after_context(&self, before: Option<&[u32]>) {
        if let Some(number) = before.and_then(|before| truth::after_context(self, before)) {
            self.driver_pid.store(number, Ordering::Release);
            self.member().set_driver_pid(number);
        }
    }

    /// What making a context may take.
    pub fn context_at_most(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    /// What the driver holds for this process that no call told of.
    pub fn uncounted(&self) -> i64 {
        self.uncounted.load(Ordering::Acquire)
    }

    /// A context was seen to take so much: the next will take about the same.
    pub fn context_took(&self, bytes: i64) {
        const SMALLEST: i64 = 64 << 20;
        const MARGIN: u64 = 8 << 20;
        if bytes >= SMALLEST {
            self.context.store(in_blocks(bytes as u64) + MARGIN, Ordering::Relaxed);
        }
    }

    /// What the driver will take in order to give every thread of a context so many bytes of local memory.
    pub fn local_growth(&self, context: CUcontext, bytes: u64) -> u64 {
        let now = self.local.with(|local| local.get(&(context as usize)).copied()).unwrap_or(0).max(LOCAL);
        bytes.saturating_sub(now).saturating_mul(self.threads)
    }

    /// It has taken it, or given it back.
    pub fn set_local(&self, context: CUcontext, bytes: u64) {
        self.local.with(|local| local.insert(context as usize, bytes));
    }

    /// The context is gone.
    pub fn forget_local(&self, context: CUcontext) {
        self.local.with(|local| local.remove(&(context as usize)));
    }

    /// Brings what is believed up to date, whatever that takes: the program is about to be told.
    pub fn look_closely(&self, changing: &Changing) {
        quota::follow_now();
        self.has_a_place();
        self.tells_others();
        self.reap();
        self.look_at_lent();
        if self.may_be_wrong() {
            self.learn(changing);
        }
    }

    /// Whether this process may hold something that it does not know of: the driver took it by itself, or what others made has
    /// become its own.
    fn may_be_wrong(&self) -> bool {
        self.stale.load(Ordering::Relaxed) != 0 || shared::has_imports() || self.member().found() != 0
    }

    /// Brings what is believed up to date, if there is reason to think that it is not; but not over and over, where other
    /// threads are always in the middle of something; nor where memory of others is open, which may become this process's at any
    /// moment, if those who let go of it are of another container. For so long it is not noticed.
    pub fn look_again(&self, changing: &Changing) {
        const PAUSE_MS: u64 = 2;
        let (may_be_wrong, look_back) = (self.may_be_wrong(), self.look_back.load(Ordering::Relaxed));
        if !may_be_wrong && !look_back {
            return;
        }
        let now = (sys::now() * 1e3) as u64;
        let last = self.looked.load(Ordering::Relaxed);
        if now.saturating_sub(last) < PAUSE_MS {
            return;
        }
        self.looked.store(now, Ordering::Relaxed);
        if look_back {
            self.look_at_others();
            self.look_back.store(false, Ordering::Relaxed);
        }
        if may_be_wrong {
            self.learn(changing);
        }
    }

    // What is added is first added to what is known here, and what is given back leaves that last: somebody who goes to be counted
    // elsewhere in between (`has_a_place`) may count it twice, and never not at all.

    /// The driver has it already: it is counted whether it fits or not.
    pub fn charge(&self, bytes: u64) {
        self.counted.fetch_add(bytes, Ordering::AcqRel);
        self.member().charge(bytes);
        self.member().remember_most();
    }

    /// The driver has it back.
    pub fn refund(&self, bytes: u64) {
        self.member().refund(bytes);
        self.discount(bytes);
    }

    fn discount(&self, bytes: u64) {
        self.counted.fetch_sub(bytes.min(self.counted.load(Ordering::Acquire)), Ordering::AcqRel);
    }

    /// It has left this process's figure, and the GPU still has it.
    pub fn becomes_beside(&self, bytes: u64) {
        self.beside.fetch_add(bytes, Ordering::AcqRel);
        self.member().holds_beside(bytes);
        self.discount(bytes);
    }

    /// It is about to be given back, or lent, as if it were still in the figure.
    pub fn was_beside(&self, bytes: u64) {
        if bytes > 0 {
            self.counted.fetch_add(bytes, Ordering::AcqRel);
            self.no_longer_beside(bytes);
        }
    }

    /// The driver has back what NVML did not count as this process's: managed memory, and what was kept after it was freed.
    pub fn refund_beside(&self, bytes: u64) {
        self.member().refund(bytes);
        self.no_longer_beside(bytes);
    }

    fn no_longer_beside(&self, bytes: u64) {
        self.member().held_beside(bytes);
        self.beside.fetch_sub(bytes.min(self.beside.load(Ordering::Acquire)), Ordering::AcqRel);
    }

    /// What the container holds.
    pub fn used(&self) -> u64 {
        self.ask(Member::used).unwrap_or_else(|| self.asked.load(Ordering::Acquire))
    }

    /// So much was reserved, and nobody will say what the driver took of it: until that is learned, it stands for that.
    pub fn may_have_taken(&self, bytes: u64) {
        self.unlearned.fetch_add(bytes, Ordering::AcqRel);
        self.is_to_be_learned();
    }

    /// The driver may have taken something by itself: look before the next reservation.
    pub fn is_to_be_learned(&self) {
        self.stale.store(1, Ordering::Release);
    }

    /// Learns from NVML what no call tells: whatever the calls do not account for. Where other threads are in the middle of
    /// something, nobody knows what the figure means, and nothing is learned this time.
    pub fn learn(&self, changing: &Changing) {
        self.learn_within(changing);
        self.member().remember_most();
    }

    /// The same in the middle of a call for which something is reserved, which would be taken for held.
    fn learn_within(&self, changing: &Changing) {
        for _ in 0..3 {
            let found = self.member().found();
            // Before the look: who finds something to be learned after it says so, and that is to stand.
            let was_stale = self.stale.swap(0, Ordering::AcqRel);
            let Some((truth, counted)) = changing.alone(|| {
                let counted = self.counted.load(Ordering::Acquire);
                Some((truth::of_this_process(self, counted > 0)?, counted))
            }) else {
                self.stale.fetch_max(was_stale, Ordering::AcqRel);
                continue;
            };
            self.settling.with(|()| {
                let uncounted = truth as i64 - counted as i64;
                let change = uncounted - self.uncounted.swap(uncounted, Ordering::AcqRel);
                if change > 0 {
                    self.member().charge(change as u64);
                    self.member().refund(self.heaps.came(change as u64));
                } else {
                    self.member().refund(change.unsigned_abs());
                }
                self.member().refund(self.unlearned.swap(0, Ordering::AcqRel));
                self.member().has_seen(found);
            });
            return;
        }
    }

    /// The same, once nobody is in the way any more of who wanted to know.
    pub fn learn_late(&self, changing: &Changing) {
        if self.stale.load(Ordering::Acquire) != 0 {
            self.learn(changing);
        }
    }
}
