//! Memory of graphs: what their allocation nodes get.
//!
//! A node's address is known when the node is made ([`reserve_address`]) and stays the same for all launches; the memory comes
//! with the launch ([`back`]). What a launch gave back ([`free`]) is used again by later ones and stays with the process until
//! it is trimmed, so a device holds the most that was ever needed at one time, in steps of 32 MiB.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sim_world::Path;

use super::address::{GRANULE, Reservation};
use super::backing::Backing;
use super::blocks::{ABSURD, Block, STEP};
use super::charge::{charge, refund};
use super::pool::{A_MOMENT, CHUNK};
use super::space::{self, Kind, Region};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::context::{Context, current};
use crate::process::process;

/// A graph allocation's state, in its region.
#[derive(Default)]
pub(crate) struct GraphRegion {
    backed: AtomicBool,
}

impl GraphRegion {
    /// Whether a launch has brought its memory and none has given it back.
    pub(crate) fn is_backed(&self) -> bool {
        self.backed.load(Ordering::Acquire)
    }
}

/// Graph memory of a GPU.
#[derive(Default)]
struct Account {
    /// What allocations that are live now take: bytes by address.
    live: BTreeMap<u64, u64>,
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
}

impl Account {
    /// Gives back what no live allocation needs.
    fn trim(&mut self, gpu: usize) {
        let needed = self.used.next_multiple_of(CHUNK);
        refund(gpu, Path::Graph, self.reserved - needed);
        self.reserved = needed;
    }
}

static ACCOUNTS: Mutex<BTreeMap<usize, Account>> = Mutex::new(BTreeMap::new());

/// An address for an allocation node of so many bytes, in the current context. It takes no device memory yet; copies to and
/// from it can be described, but not done. Given back by [`release_address`] when the node is gone.
pub(crate) fn reserve_address(bytes: u64) -> Outcome<u64> {
    let context = current()?;
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if bytes > ABSURD {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let len = bytes.next_multiple_of(GRANULE);
    let addresses = Reservation::new(len)?;
    let base = addresses.base();
    let block = Block::new(base, len, Arc::new(Backing::new(len)), None, Some(addresses));
    space::insert(Region::new(base, bytes, Kind::Graph(GraphRegion::default()), Arc::new(block), &context));
    Ok(base)
}

/// Brings the memory of an allocation node at its launch, on the GPU of the world that the launch goes to. Fails with
/// `CUDA_ERROR_OUT_OF_MEMORY` and changes nothing if it is not there; with `CUDA_ERROR_INVALID_VALUE` if the allocation is
/// live already or the address is none.
pub(crate) fn back(gpu: usize, address: u64, bytes: u64) -> Outcome {
    let region = space::at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let Kind::Graph(graph) = &region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let mut accounts = ACCOUNTS.lock();
    let account = accounts.entry(gpu).or_default();
    if graph.is_backed() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let size = bytes.next_multiple_of(STEP);
    let needed = (account.used + size).next_multiple_of(CHUNK);
    if needed > account.reserved {
        charge(gpu, Path::Graph, needed - account.reserved)?;
        account.reserved = needed;
        account.reserved_high = account.reserved_high.max(needed);
    }
    account.used += size;
    account.used_high = account.used_high.max(account.used);
    account.live.insert(address, size);
    graph.backed.store(true, Ordering::Release);
    Ok(())
}

/// Gives the memory of a live graph allocation back, for later launches to use: a free node, cuMemFreeAsync or cuMemFree.
pub(crate) fn free(address: u64) -> Outcome {
    let region = space::at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let Kind::Graph(graph) = &region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let mut accounts = ACCOUNTS.lock();
    for account in accounts.values_mut() {
        if let Some(size) = account.live.remove(&address) {
            account.used -= size;
            graph.backed.store(false, Ordering::Release);
            return Ok(());
        }
    }
    Err(CUDA_ERROR_INVALID_VALUE)
}

/// Whether a launch brought the allocation's memory and nothing gave it back yet.
pub(crate) fn is_live(address: u64) -> bool {
    matches!(space::at(address).as_deref(), Some(Region { kind: Kind::Graph(graph), .. }) if graph.is_backed())
}

/// The allocation node is gone, and its address with it. Memory that is still live is given back.
pub(crate) fn release_address(address: u64) {
    let Some(region) = space::at(address).filter(|r| matches!(r.kind, Kind::Graph(_))) else { return };
    let _ = free(address);
    let _ = space::remove(&region);
}

/// Gives a GPU's unused graph memory back.
fn trim(gpu: usize) {
    if let Some(account) = ACCOUNTS.lock().get_mut(&gpu) {
        account.trim(gpu);
    }
}

/// Gives up a GPU's unused graph memory, for allocations that find no room; unless it is a graph's own that asks.
pub(crate) fn make_room(gpu: usize) {
    if let Some(mut accounts) = ACCOUNTS.try_lock_for(A_MOMENT)
        && let Some(account) = accounts.get_mut(&gpu)
    {
        account.trim(gpu);
    }
}

/// A context is gone, and with it the graph memory that was live in it.
pub(crate) fn forget_context(context: &Context) {
    for region in space::remove_all(|r| r.context == context.handle && matches!(r.kind, Kind::Graph(_))) {
        for account in ACCOUNTS.lock().values_mut() {
            if let Some(size) = account.live.remove(&region.base) {
                account.used -= size;
            }
        }
    }
    trim(context.device.gpu);
}

api! {
    export fn cuDeviceGraphMemTrim(dev: CUdevice) {
        trim(process()?.device(dev)?.gpu);
        Ok(())
    }
    export fn cuDeviceGetGraphMemAttribute(dev: CUdevice, attribute: CUgraphMem_attribute, value: Out<u64>) {
        let gpu = process()?.device(dev)?.gpu;
        let accounts = ACCOUNTS.lock();
        let of = |read: fn(&Account) -> u64| accounts.get(&gpu).map_or(0, read);
        value.set(match attribute {
            CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => of(|a| a.used),
            CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => of(|a| a.used_high),
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => of(|a| a.reserved),
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => of(|a| a.reserved_high),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        })
    }
    export fn cuDeviceSetGraphMemAttribute(dev: CUdevice, attribute: CUgraphMem_attribute, value: crate::api::In<u64>) {
        let gpu = process()?.device(dev)?.gpu;
        if value.get()? != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut accounts = ACCOUNTS.lock();
        let account = accounts.entry(gpu).or_default();
        match attribute {
            CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => account.used_high = account.used,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => account.reserved_high = account.reserved,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }
}
