//! Memory nodes: allocations that a graph brings when it is launched, and gives back.
//!
//! A node's address is fixed when the node is made. It lives as long as something refers to it: the node, an executable graph
//! made of it, or the memory itself while it is allocated.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::store::Inner;
use super::{GraphWork, graph_of};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::memory::graphpool;
use crate::process::process;
use crate::work::Work;

/// An allocation node.
#[derive(Clone)]
pub(crate) struct GraphAllocation {
    address: Arc<Address>,
    pub bytes: u64,
    /// Ordinal of the device whose memory it is.
    pub device: CUdevice,
    gpu: usize,
}

struct Address(u64);

/// Every address that an allocation node has or had, until it is given back.
static ADDRESSES: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// Addresses that no node and no executable graph has any more, but whose memory was still allocated then.
static ORPHANS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

impl Drop for Address {
    fn drop(&mut self) {
        if graphpool::is_live(self.0) {
            ORPHANS.lock().push(self.0);
        } else {
            give_back(self.0);
        }
    }
}

fn give_back(address: u64) {
    graphpool::release_address(address);
    ADDRESSES.lock().remove(&address);
}

impl GraphAllocation {
    pub(crate) fn at(&self) -> u64 {
        self.address.0
    }

    /// Brings the memory, at a launch.
    pub(crate) fn bring(&self) -> Outcome {
        graphpool::back(self.gpu, self.at(), self.bytes)
    }

    pub(crate) fn is_live(&self) -> bool {
        graphpool::is_live(self.at())
    }
}

/// Makes an allocation for a node.
pub(crate) fn allocate(bytes: u64, device: CUdevice) -> Outcome<GraphAllocation> {
    let gpu = process()?.device(device)?.gpu;
    let orphans = std::mem::take(&mut *ORPHANS.lock());
    let (kept, free): (Vec<u64>, Vec<u64>) = orphans.into_iter().partition(|address| graphpool::is_live(*address));
    ORPHANS.lock().extend(kept);
    free.into_iter().for_each(give_back);
    let address = graphpool::reserve_address(bytes)?;
    ADDRESSES.lock().insert(address);
    Ok(GraphAllocation { address: Arc::new(Address(address)), bytes, device, gpu })
}

/// Makes the work of a free node: of an allocation that some graph brings and this one does not free yet.
pub(crate) fn free_node(inside: &Inner, address: u64) -> Outcome<Work> {
    let is_free = |work: &Work| matches!(work, Work::Graph(GraphWork::Free(other)) if *other == address);
    if !ADDRESSES.lock().contains(&address) || inside.nodes().iter().any(|node| is_free(&node.work)) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(Work::Graph(GraphWork::Free(address)))
}

/// From the C form, which is told the address.
pub(super) fn from_params(params: &mut CUDA_MEM_ALLOC_NODE_PARAMS_v2) -> Outcome<Work> {
    let pool = &params.poolProps;
    if pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || pool.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE {
        return Err(CUDA_ERROR_NOT_SUPPORTED); // graph memory cannot be exported
    }
    let allocation = allocate(params.bytesize as u64, pool.location.id)?;
    params.dptr = allocation.at();
    Ok(Work::Graph(GraphWork::Allocate(allocation)))
}

api! {
    export fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>) {
        let graph = graph_of(node)?;
        let inner = graph.lock();
        let Work::Graph(GraphWork::Allocate(allocation)) = &inner.node(node as usize)?.work else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let mut form = CUDA_MEM_ALLOC_NODE_PARAMS { bytesize: allocation.bytes as usize, dptr: allocation.at(), ..Default::default() };
        form.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        form.poolProps.location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: allocation.device };
        params.set(form)
    }
    export fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, address: Out<CUdeviceptr>) {
        let graph = graph_of(node)?;
        let inner = graph.lock();
        match &inner.node(node as usize)?.work {
            Work::Graph(GraphWork::Free(freed)) => address.set(*freed),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}
