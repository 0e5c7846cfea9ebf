//! Managed memory: where its pages are, and what they take of a GPU once the GPU has touched them.
//!
//! It is plain memory of the host's that the device uses at the same address. Untouched it takes nothing of a GPU. What a GPU
//! touched lies there until it is prefetched back or freed, and is taken in steps of 128 MiB per process and GPU. A touch never
//! fails: where there is no room the real driver moves other pages out.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sim_world::Path;

use super::address::GRANULE;
use super::blocks::{Block, Heaps};
use super::charge::{charge, refund};
use super::segments::Segments;
use super::space::{self, Kind, Region};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::capture;
use crate::context::{Context, current};
use crate::process::process;

/// What the driver takes of a GPU at a time.
const STEP: u64 = 128 << 20;

static HEAPS: Heaps<()> = Heaps::new();

/// Managed memory's state, in its region.
pub(crate) struct ManagedRegion {
    pub pages: Mutex<Segments<Pages>>,
}

/// What is known of a stretch of pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Pages {
    /// The GPU of the world that they are on; None: on the host, or nowhere yet.
    pub on: Option<usize>,
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
    pub(crate) const HOST: Location = Location { kind: CU_MEM_LOCATION_TYPE_HOST, id: 0 };

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
        (self.kind == CU_MEM_LOCATION_TYPE_DEVICE).then(|| process().ok()?.device(self.id).ok().map(|d| d.gpu)).flatten()
    }
}

impl Default for Location {
    fn default() -> Location {
        Location::NONE
    }
}

/// What managed memory takes of a GPU.
#[derive(Debug, Default, Clone, Copy)]
struct Account {
    touched: u64,
    charged: u64,
}

static ACCOUNTS: Mutex<BTreeMap<usize, Account>> = Mutex::new(BTreeMap::new());

fn allocate(context: &Context, bytes: u64) -> Outcome<u64> {
    let (at, block) = HEAPS.with(context.handle, (), |heap| heap.allocate(bytes, Block::for_host))?;
    let managed = ManagedRegion { pages: Mutex::new(Segments::new(bytes)) };
    space::insert(Region::new(at, bytes, Kind::Managed(managed), block, context));
    Ok(at)
}

/// Takes back what an allocation that is no longer known has, if it is managed.
pub(crate) fn release(region: &Region) {
    if matches!(region.kind, Kind::Managed(_)) {
        move_pages(region, 0..region.len, None);
        HEAPS.with(region.context, (), |heap| heap.release(&region.block, region.base, region.len));
    }
}

/// A context is gone, and with it what was allocated in it.
pub(crate) fn forget_context(context: &Context) {
    for region in space::remove_all(|r| r.context == context.handle && matches!(r.kind, Kind::Managed(_))) {
        move_pages(&region, 0..region.len, None);
    }
    HEAPS.forget(context.handle);
}

/// A kernel touches the allocation that this address is in, if it is managed.
pub(crate) fn touch(address: u64) {
    if let Some(region) = space::find(address) {
        move_pages(&region, 0..region.len, Some(region.device.gpu));
    }
}

/// A GPU touches these bytes; nothing happens unless they are managed.
pub(crate) fn touch_range(gpu: usize, address: u64, len: u64) {
    let Some(region) = space::find(address).filter(|r| matches!(r.kind, Kind::Managed(_))) else { return };
    let (from, to) = (address - region.base, address.saturating_add(len).min(region.end()) - region.base);
    // The GPU's pages are large.
    move_pages(&region, from & !(GRANULE - 1)..to.next_multiple_of(GRANULE).min(region.len), Some(gpu));
}

/// Moves pages to a GPU, or to the host, and says how many bytes were elsewhere.
pub(crate) fn move_pages(region: &Region, range: std::ops::Range<u64>, to: Option<usize>) -> u64 {
    let Kind::Managed(managed) = &region.kind else { return 0 };
    let mut pages = managed.pages.lock();
    let from: Vec<(u64, Option<usize>)> =
        pages.within(range.clone()).filter(|(_, p)| p.on != to).map(|(len, p)| (len, p.on)).collect();
    if from.is_empty() {
        return 0;
    }
    pages.apply(range, |page| page.on = to);
    let mut accounts = ACCOUNTS.lock();
    let mut moved = 0;
    for (len, gpu) in from {
        moved += len;
        if let Some(gpu) = gpu {
            accounts.entry(gpu).or_default().touched -= len;
        }
        if let Some(gpu) = to {
            accounts.entry(gpu).or_default().touched += len;
        }
    }
    for (gpu, account) in accounts.iter_mut() {
        settle(*gpu, account);
    }
    moved
}

/// Takes of the GPU what its pages need, or as much of it as there is.
fn settle(gpu: usize, account: &mut Account) {
    let wanted = account.touched.next_multiple_of(STEP);
    if wanted < account.charged {
        refund(gpu, Path::Managed, account.charged - wanted);
        account.charged = wanted;
    }
    if wanted > account.charged {
        let missing = wanted - account.charged;
        let room = || process().map_or(0, |p| p.world.free_bytes(gpu)) & !(GRANULE - 1);
        for amount in [missing, missing.min(room())] {
            if amount != 0 && charge(gpu, Path::Managed, amount).is_ok() {
                account.charged += amount;
                return;
            }
        }
    }
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
        pointer.required()?;
        capture::forbid_unsafe()?;
        if bytes == 0 || !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        pointer.set(allocate(&context, bytes as u64)?)
    }
}
