//! This process's place in its container's slice of one GPU.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use ration_contract::Settings;
use ration_region::{Gpu, Member, Region};

use super::{Changing, pools, truth};
use crate::abi::cuda::{self, CUcontext, CUdevice, CUuuid};
use crate::driver::calls;
use crate::thread::Guarded;
use crate::{log, sys};

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
    /// What the container may have of it.
    pub cap: u64,
    member: Member,
    /// What is known of by its call: the parts of what NVML says this process holds.
    counted: AtomicU64,
    /// What is not: contexts, code, local memory. Learned from NVML, as the rest of what it says.
    uncounted: AtomicI64,
    /// The driver may have taken something that no call tells of.
    stale: AtomicU32,
    /// Reservations that stand for it until that is learned.
    unlearned: AtomicU64,
    /// When that was last looked into, in milliseconds.
    looked: AtomicU64,
    /// Bytes of local memory that the driver has made room for, for every thread that the GPU can hold: by context.
    local: Guarded<BTreeMap<usize, u64>>,
    /// How many threads that is.
    threads: u64,
    /// What is charged for a heap that was asked for and is not there yet.
    pub heap: AtomicU64,
    /// What a context was seen to take.
    context: AtomicU64,
}

/// What a context takes at most, where none has been seen yet. On an H200 it is 518 MiB.
const CONTEXT: u64 = 640 << 20;
/// Local memory that every context comes with.
const LOCAL: u64 = 1024;
/// The heap that every context comes with, and what a larger one takes besides its size: 142 MiB on an H200.
const HEAP: u64 = 8 << 20;
const HEAP_BESIDES: u64 = 144 << 20;

/// There is no more to be had.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Slice {
    /// `None`: the driver does not say enough about the device, try again later. `Some(None)`: it has no limit.
    pub fn make(device: CUdevice, settings: &Settings, changing: &Changing) -> Option<Option<Slice>> {
        let mut uuid = CUuuid::default();
        let mut total = 0usize;
        // SAFETY: places to write to.
        let answers = unsafe {
            let told = calls::cuDeviceGetUuid_v2(&raw mut uuid, device);
            let told = if told == 0 { told } else { calls::cuDeviceGetUuid(&raw mut uuid, device) };
            [told, calls::cuDeviceTotalMem_v2(&raw mut total, device)]
        };
        if answers != [cuda::CUDA_SUCCESS; 2] {
            return None;
        }
        let uuid = uuid.bytes.map(|byte| byte as u8);
        let index = u32::try_from(device).ok()?;
        let Some(amount) = settings.memory.for_gpu(index, &uuid) else { return Some(None) };
        let total = total as u64;
        let cap = amount.bytes(total);
        let gpu = Gpu { uuid, total };
        let slice = Slice {
            device,
            uuid,
            total,
            cap,
            member: join(&gpu, settings, cap)?,
            counted: AtomicU64::new(0),
            uncounted: AtomicI64::new(0),
            stale: AtomicU32::new(1),
            unlearned: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            local: Guarded::new(BTreeMap::new()),
            threads: threads(device),
            heap: AtomicU64::new(0),
            context: AtomicU64::new(CONTEXT),
        };
        slice.learn(changing);
        Some(Some(slice))
    }

    /// Takes bytes out of what is left, or says that there are none, after all that can be done about it.
    pub fn reserve(&'static self, bytes: u64, changing: &Changing) -> Result<Hold, Full> {
        self.look_again(changing);
        if self.try_reserve(bytes) {
            return Ok(Hold { slice: self, bytes });
        }
        self.relieve(changing);
        if self.try_reserve(bytes) { Ok(Hold { slice: self, bytes }) } else { Err(Full) }
    }

    fn try_reserve(&self, bytes: u64) -> bool {
        // The last little is for small pieces, so that a program which has filled its slice can still do something.
        let keep_free = if bytes <= BLOCK { 0 } else { (self.cap / 128).min(32 << 20) };
        self.member.reserve_within(bytes, keep_free).is_ok()
    }

    /// Makes room: what dead processes held, what pools keep without using it, what was believed to be held and is not.
    fn relieve(&'static self, changing: &Changing) {
        self.reap();
        pools::trim(self);
        // SAFETY: asks the driver to give back what graphs keep without using it.
        calls::without_breaking_captures(|| unsafe { calls::cuDeviceGraphMemTrim(self.device) });
        pools::refresh(self);
        self.learn(changing);
    }

    /// Gives back what dead processes held, once the driver has let go of it.
    fn reap(&self) {
        // SAFETY: takes nothing and always succeeds.
        let me = unsafe { libc::getpid() } as u32;
        self.member.reap(&mut |dead| {
            // A process that replaced itself (exec) is dead and alive under one number. The driver let go of the old one's
            // memory before the new one could begin.
            let replaced = dead.pid == me
                || self.member.others().any(|other| other.pid == dead.pid && other.namespace == dead.namespace);
            replaced || truth::has_let_go(self, dead.pid)
        });
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

    /// What is charged for a heap of so many bytes, until it is there.
    pub fn heap_charge(&self, bytes: u64) -> u64 {
        if bytes > HEAP { in_blocks(bytes).saturating_add(HEAP_BESIDES) } else { 0 }
    }

    /// Brings what is believed up to date, whatever that takes: the program is about to be told.
    pub fn look_closely(&self, changing: &Changing) {
        if self.stale.load(Ordering::Relaxed) != 0 {
            self.learn(changing);
        }
    }

    /// Brings what is believed up to date, if there is reason to think that it is not; but not over and over, where other
    /// threads are always in the middle of something.
    pub fn look_again(&self, changing: &Changing) {
        const PAUSE_MS: u64 = 2;
        if self.stale.load(Ordering::Relaxed) == 0 {
            return;
        }
        let now = (sys::now() * 1e3) as u64;
        if now.saturating_sub(self.looked.swap(now, Ordering::Relaxed)) >= PAUSE_MS {
            self.learn(changing);
        }
    }

    /// The driver has it already: it is counted whether it fits or not.
    pub fn charge(&self, bytes: u64) {
        self.member.charge(bytes);
        self.counted.fetch_add(bytes, Ordering::AcqRel);
    }

    /// The driver has it back.
    pub fn refund(&self, bytes: u64) {
        self.counted.fetch_sub(bytes.min(self.counted.load(Ordering::Acquire)), Ordering::AcqRel);
        self.member.refund(bytes);
    }

    /// The same for what NVML does not count as this process's: managed memory.
    pub fn refund_beside(&self, bytes: u64) {
        self.member.refund(bytes);
    }

    /// What the container holds.
    pub fn used(&self) -> u64 {
        self.member.used()
    }

    /// The driver may have taken something by itself: look before the next reservation.
    pub fn is_to_be_learned(&self) {
        self.stale.store(1, Ordering::Release);
    }

    /// Learns from NVML what no call tells: whatever the calls do not account for. Where other threads are in the middle of
    /// something, nobody knows what the figure means, and nothing is learned this time.
    pub fn learn(&self, changing: &Changing) {
        for _ in 0..3 {
            let Some((truth, counted)) =
                changing.alone(|| Some((truth::of_this_process(self)?, self.counted.load(Ordering::Acquire))))
            else {
                continue;
            };
            self.stale.store(0, Ordering::Release);
            let uncounted = truth as i64 - counted as i64;
            let change = uncounted - self.uncounted.swap(uncounted, Ordering::AcqRel);
            if change > 0 {
                self.member.charge(change as u64);
                // So large a step is the heap, which is charged already.
                let heap = self.heap.load(Ordering::Acquire);
                if heap > 0 && change as u64 >= heap - HEAP_BESIDES {
                    self.heap.store(0, Ordering::Release);
                    self.member.refund(heap);
                }
            } else {
                self.member.refund(change.unsigned_abs());
            }
            self.member.refund(self.unlearned.swap(0, Ordering::AcqRel));
            return;
        }
    }
}

/// How many threads a device can hold at a time.
fn threads(device: CUdevice) -> u64 {
    let get = |attribute| {
        let mut value = 0;
        // SAFETY: a place to write to.
        unsafe { calls::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        value.max(0) as u64
    };
    get(cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) * get(cuda::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)
}

/// What the container is called.
pub fn name(settings: &Settings) -> String {
    settings.name.clone().unwrap_or_else(derived_name)
}

fn join(gpu: &Gpu, settings: &Settings, cap: u64) -> Option<Member> {
    let name = name(settings);
    for dir in super::directory(settings) {
        match Region::open(Path::new(&dir), gpu) {
            Ok(region) => match Box::leak(Box::new(region)).join(&name, Some(cap)) {
                Ok(member) => return Some(member),
                Err(why) => log::warn!("{dir}: {why}. This process is held to the whole limit by itself"),
            },
            Err(why) => log::warn!("{dir}: {why}. This process is held to the whole limit by itself"),
        }
    }
    Box::leak(Box::new(Region::private(gpu))).join(&name, Some(cap)).ok()
}

/// The same for all processes of a container: what they see of the file system is one and the same thing.
fn derived_name() -> String {
    let mut target = [0u8; 64];
    // SAFETY: a path that ends in NUL, and room for what it leads to.
    let length = unsafe { libc::readlink(c"/proc/self/ns/mnt".as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    let target = &target[..usize::try_from(length).unwrap_or(0)];
    String::from_utf8_lossy(if target.is_empty() { b"unnamed" } else { target }).into_owned()
}

/// Bytes that are reserved, until the driver has answered.
#[must_use]
pub struct Hold {
    slice: &'static Slice,
    bytes: u64,
}

impl Hold {
    /// The driver took so many of them; the rest goes back. What it took more than was foreseen is counted too.
    pub fn keep(self, bytes: u64) {
        if bytes > self.bytes {
            self.slice.member.charge(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.slice.member.refund(self.bytes - bytes);
        }
        self.slice.counted.fetch_add(bytes, Ordering::AcqRel);
        std::mem::forget(self);
    }

    /// The same for what NVML does not count as this process's.
    pub fn keep_beside(self, bytes: u64) {
        if bytes < self.bytes {
            self.slice.member.refund(self.bytes - bytes);
        }
        std::mem::forget(self);
    }

    /// Learns what the driver took for something that no call tells the size of, and gives the rest back. Until that can be
    /// learned, the reservation stands for it.
    pub fn learn(self, changing: &Changing) {
        self.slice.is_to_be_learned();
        for _ in 0..100 {
            self.slice.learn(changing);
            if self.slice.stale.load(Ordering::Acquire) == 0 {
                // Dropped: the whole reservation goes back, now that what was taken is counted.
                return;
            }
            // SAFETY: gives the processor to another thread; no arguments.
            unsafe { libc::sched_yield() };
        }
        self.slice.unlearned.fetch_add(self.bytes, Ordering::AcqRel);
        std::mem::forget(self);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.slice.member.refund(self.bytes);
    }
}
