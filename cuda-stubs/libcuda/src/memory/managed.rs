//! Managed memory: where its pages are, and what they take of a GPU once the GPU has touched them.
//!
//! It is plain memory of the host's that the device uses at the same address. Untouched it takes nothing of a GPU. What a GPU
//! touches gets a place there, in stretches of 2 MiB, and keeps it until it is freed, even where the bytes were prefetched
//! back. Places come in batches of 128 MiB; what is freed goes back at once, what is left of a batch is kept for later. A touch
//! never fails: where there is no room, pages stay with the host; and an allocation that finds none moves them there.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sim_world::Path;

use super::address::GRANULE;
use super::blocks::{Block, Heaps};
use super::charge::refund;
use super::segments::Segments;
use super::space::{self, Kind, Region};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::capture;
use crate::context::{Context, current};
use crate::process::process;

/// What the driver takes of a GPU at a time.
const BATCH: u64 = 128 << 20;

static HEAPS: Heaps<()> = Heaps::new();

/// Managed memory's state, in its region.
pub(crate) struct ManagedRegion {
    pub pages: Mutex<Segments<Pages>>,
}

/// What is known of a stretch of pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Pages {
    pub read_mostly: bool,
    pub preferred: Location,
    pub accessed_by: Vec<Location>,
    pub prefetched: Location,
}

/// A place that memory can be told to be at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub kind: u32,
    pub id: i32,
}

impl Location {
    pub(crate) const NONE: Location = Location { kind: CU_MEM_LOCATION_TYPE_INVALID, id: -2 };
    pub(crate) const HOST: Location = Location { kind: CU_MEM_LOCATION_TYPE_HOST, id: CU_DEVICE_CPU };

    /// As the older calls name it: a device's number, or -1 for the host.
    pub(crate) fn of_device(dev: CUdevice) -> Outcome<Location> {
        if dev == CU_DEVICE_CPU {
            return Ok(Location::HOST);
        }
        process()?.device(dev)?;
        Ok(Location { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: dev })
    }

    /// As the newer ones do.
    pub(crate) fn of(form: CUmemLocation) -> Outcome<Location> {
        match form.type_ {
            CU_MEM_LOCATION_TYPE_DEVICE => Location::of_device(form.id.max(0)),
            CU_MEM_LOCATION_TYPE_HOST => Ok(Location::HOST),
            CU_MEM_LOCATION_TYPE_HOST_NUMA | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => {
                Ok(Location { kind: form.type_, id: form.id })
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// The number that the older calls give for it.
    pub(crate) fn device_number(self) -> i32 {
        match self.kind {
            CU_MEM_LOCATION_TYPE_INVALID => -2,
            CU_MEM_LOCATION_TYPE_DEVICE => self.id,
            _ => -1,
        }
    }

    /// The GPU of the world, for a device.
    pub(crate) fn gpu(self) -> Option<usize> {
        (self.kind == CU_MEM_LOCATION_TYPE_DEVICE)
            .then(|| process().ok()?.device(self.id).ok().map(|d| d.gpu))
            .flatten()
    }
}

impl Default for Location {
    fn default() -> Location {
        Location::NONE
    }
}

/// What managed memory takes of a GPU: what it has, and how much of that pages are in.
#[derive(Debug, Default, Clone, Copy)]
struct Account {
    held: u64,
    used: u64,
}

/// Which stretches of [`GRANULE`] bytes have a place on which GPUs (as bits), and what that takes.
struct Residence {
    places: BTreeMap<u64, u32>,
    accounts: BTreeMap<usize, Account>,
}

static RESIDENCE: Mutex<Residence> = Mutex::new(Residence { places: BTreeMap::new(), accounts: BTreeMap::new() });

impl Residence {
    /// Gives a range places on a GPU where it has none; how many bytes of it had none.
    fn settle(&mut self, gpu: usize, from: u64, to: u64) -> u64 {
        let mut new = 0;
        for place in (from & !(GRANULE - 1)..to).step_by(GRANULE as usize) {
            let gpus = self.places.entry(place).or_insert(0);
            if *gpus & 1 << gpu == 0 {
                *gpus |= 1 << gpu;
                new += GRANULE;
            }
        }
        let account = self.accounts.entry(gpu).or_default();
        account.used += new;
        if account.used > account.held {
            account.held += take(gpu, (account.used - account.held).next_multiple_of(BATCH));
        }
        new
    }

    /// Takes the places of a range back. What is left of a batch stays for later.
    fn vacate(&mut self, from: u64, to: u64) {
        let gone: Vec<(u64, u32)> = self.places.range(from..to).map(|(place, gpus)| (*place, *gpus)).collect();
        for (place, gpus) in gone {
            self.places.remove(&place);
            for (gpu, account) in &mut self.accounts {
                if gpus & 1 << gpu != 0 {
                    account.used -= GRANULE;
                    let bytes = GRANULE.min(account.held);
                    account.held -= bytes;
                    refund(*gpu, Path::Managed, bytes);
                }
            }
        }
    }

    /// Gives up to so much of a GPU back: what is left of batches first, then pages, which move to the host.
    fn evict(&mut self, gpu: usize, bytes: u64) {
        let Some(account) = self.accounts.get_mut(&gpu) else { return };
        let bytes = bytes.next_multiple_of(GRANULE).min(account.held);
        refund(gpu, Path::Managed, bytes);
        account.held -= bytes;
        let mut moving = account.used.saturating_sub(account.held) / GRANULE;
        account.used = account.used.min(account.held);
        self.places.retain(|_, gpus| {
            if moving != 0 && *gpus & 1 << gpu != 0 {
                *gpus &= !(1 << gpu);
                moving -= 1;
            }
            *gpus != 0
        });
    }
}

/// Takes so much of a GPU, or as much of it as there is, and says how much.
fn take(gpu: usize, bytes: u64) -> u64 {
    let Ok(process) = process() else { return 0 };
    let room = || process.world.free_bytes(gpu) & !(GRANULE - 1);
    for amount in [bytes, bytes.min(room())] {
        if amount != 0 && process.world.charge(gpu, Path::Managed, amount).is_ok() {
            return amount;
        }
    }
    0
}

/// Makes so much room on a GPU for an allocation that found none, as far as managed memory has it.
pub(crate) fn make_room(gpu: usize, bytes: u64) {
    RESIDENCE.lock().evict(gpu, bytes);
}

fn allocate(context: &Context, bytes: u64) -> Outcome<u64> {
    let (at, block) = HEAPS.with(context.handle, (), |heap| heap.allocate(bytes, Block::for_host))?;
    let managed = ManagedRegion { pages: Mutex::new(Segments::new(bytes)) };
    space::insert(Region::new(at, bytes, Kind::Managed(managed), block, context));
    Ok(at)
}

/// Takes back what an allocation that is no longer known has, if it is managed.
pub(crate) fn release(region: &Region) {
    if matches!(region.kind, Kind::Managed(_)) {
        let block = &region.block;
        if HEAPS.with(region.context, (), |heap| heap.release(block, region.base, region.len)) {
            RESIDENCE.lock().vacate(block.base, block.base + block.len);
        }
    }
}

/// A context is gone, and with it what was allocated in it. What is left of batches stays with the process.
pub(crate) fn forget_context(context: &Context) {
    let mut residence = RESIDENCE.lock();
    for region in space::remove_all(|r| r.context == context.handle && matches!(r.kind, Kind::Managed(_))) {
        residence.vacate(region.block.base, region.block.base + region.block.len);
    }
    HEAPS.forget(context.handle);
}

/// A kernel on a GPU touches the allocation that this address is in, if it is managed.
pub(crate) fn touch(gpu: usize, address: u64) {
    if let Some(region) = space::find(address) {
        touch_range(gpu, region.base, region.len);
    }
}

/// A GPU touches these bytes; nothing happens unless they are managed. Returns how many had to move.
pub(crate) fn touch_range(gpu: usize, address: u64, len: u64) -> u64 {
    let Some(region) = space::find(address).filter(|r| matches!(r.kind, Kind::Managed(_))) else { return 0 };
    let end = address.saturating_add(len).min(region.end());
    RESIDENCE.lock().settle(gpu, address, end).min(end - address)
}

/// The managed allocation that holds these bytes.
pub(crate) fn holding(address: u64, len: u64) -> Outcome<Arc<Region>> {
    let region = space::find(address).filter(|r| matches!(r.kind, Kind::Managed(_))).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let inside = address.checked_add(len).is_some_and(|end| len != 0 && end <= region.end());
    if inside { Ok(region) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

api! {
    export fn cuMemAllocManaged(pointer: Out<CUdeviceptr>, bytes: usize, flags: u32) {
        let context = current()?;
        capture::forbid_unsafe()?;
        pointer.required()?;
        if bytes == 0 || !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        pointer.set(allocate(&context, bytes as u64)?)
    }
}
