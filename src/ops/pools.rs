//! Stream-ordered memory and the memory of graphs: what their pools have reserved is what counts.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_ulonglong};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use super::memory::{REFUSED, here};
use super::{Call, Outcome};
use crate::abi::cuda::*;
use crate::driver::{Stream, calls};
use crate::ledger::pools::{self, STEP};
use crate::ledger::{self, Changing, Slice};
use crate::thread::Guarded;

/// Memory from a pool of the slice's: the pool may have to grow for it.
fn from(call: &mut Call<'_>, slice: &'static Slice, pool: CUmemoryPool, bytes: u64, changing: &Changing) -> Outcome {
    let hold = slice.reserve(bytes.next_multiple_of(STEP), changing);
    if hold.is_err() && !pools::has_room(pool, bytes) {
        return REFUSED;
    }
    let result = call.driver();
    pools::settle_pool(pool, slice);
    // Only now: what the pool took of it is charged, the reservation is no more.
    drop(hold);
    Outcome::Done(result)
}

fn alloc_async(call: &mut Call<'_>, bytes: usize, stream: Stream) -> Outcome {
    let changing = ledger::changing();
    let Some((slice, _)) = here(&changing) else { return Outcome::Done(call.driver()) };
    // In a capture it becomes a node of a graph, and takes memory when that is launched.
    if stream.is_capturing() {
        return Outcome::Done(call.driver());
    }
    let mut pool: CUmemoryPool = null_mut();
    // SAFETY: a place to write to.
    if unsafe { calls::cuDeviceGetMemPool(&raw mut pool, slice.device) } != CUDA_SUCCESS {
        return Outcome::Done(call.driver());
    }
    from(call, slice, pool, bytes as u64, &changing)
}

/// `cuMemAllocAsync`
pub unsafe fn alloc(call: &mut Call<'_>, _to: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> Outcome {
    alloc_async(call, bytes, Stream::given(stream, false))
}

/// `cuMemAllocAsync_ptsz`
pub unsafe fn alloc_ptsz(call: &mut Call<'_>, _to: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> Outcome {
    alloc_async(call, bytes, Stream::given(stream, true))
}

fn alloc_from(call: &mut Call<'_>, bytes: usize, pool: CUmemoryPool, stream: Stream) -> Outcome {
    let changing = ledger::changing();
    let Some((slice, _)) = here(&changing) else { return Outcome::Done(call.driver()) };
    if stream.is_capturing() || pool.is_null() || IMPORTED.with(|imported| imported.contains_key(&(pool as usize))) {
        return Outcome::Done(call.driver());
    }
    let slice_of_pool =
        MADE.with(|made| made.get(&(pool as usize)).copied()).and_then(|device| ledger::of(device, &changing));
    let slice = slice_of_pool.unwrap_or(slice);
    from(call, slice, pool, bytes as u64, &changing)
}

/// `cuMemAllocFromPoolAsync`
pub unsafe fn alloc_from_pool(
    call: &mut Call<'_>,
    _to: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Outcome {
    alloc_from(call, bytes, pool, Stream::given(stream, false))
}

/// `cuMemAllocFromPoolAsync_ptsz`
pub unsafe fn alloc_from_pool_ptsz(
    call: &mut Call<'_>,
    _to: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Outcome {
    alloc_from(call, bytes, pool, Stream::given(stream, true))
}

/// The device of each pool that the program made.
static MADE: Guarded<BTreeMap<usize, CUdevice>> = Guarded::new(BTreeMap::new());
/// Pools that are another process's, who pays for them.
static IMPORTED: Guarded<BTreeMap<usize, ()>> = Guarded::new(BTreeMap::new());

/// `cuMemPoolCreate`
pub unsafe fn create(call: &mut Call<'_>, to: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> Outcome {
    let result = call.driver();
    // SAFETY: null, or the caller's description, which the driver has read too.
    let device = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let device = device.filter(|location| location.type_ == CU_MEM_LOCATION_TYPE_DEVICE).map(|location| location.id);
    if result == CUDA_SUCCESS
        && let Some(device) = device
    {
        // SAFETY: the driver has just written the handle there.
        let pool = unsafe { *to } as usize;
        MADE.with(|made| made.insert(pool, device));
    }
    Outcome::Done(result)
}

/// `cuMemPoolImportFromShareableHandle`
pub unsafe fn import(
    call: &mut Call<'_>,
    to: *mut CUmemoryPool,
    _handle: *mut std::ffi::c_void,
    _kind: CUmemAllocationHandleType,
    _flags: c_ulonglong,
) -> Outcome {
    let result = call.driver();
    if result == CUDA_SUCCESS {
        // SAFETY: the driver has just written the handle there.
        let pool = unsafe { *to } as usize;
        IMPORTED.with(|imported| imported.insert(pool, ()));
    }
    Outcome::Done(result)
}

/// `cuMemPoolDestroy`
pub unsafe fn destroy(call: &mut Call<'_>, pool: CUmemoryPool) -> Outcome {
    let _changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS {
        pools::forget(pool);
        MADE.with(|made| made.remove(&(pool as usize)));
        IMPORTED.with(|imported| imported.remove(&(pool as usize)));
        // What still lives in it goes with the last free.
        ledger::all().for_each(Slice::is_to_be_learned);
    }
    Outcome::Done(result)
}

/// `cuMemPoolTrimTo`
pub unsafe fn trim(call: &mut Call<'_>, _pool: CUmemoryPool, _keep: usize) -> Outcome {
    let _changing = ledger::changing();
    refreshed(call)
}

/// Asks the driver for something after which pools may have let go of memory.
fn refreshed(call: &mut Call<'_>) -> Outcome {
    let result = call.driver();
    if pools::any() {
        // Pools may have let go of memory already: whoever learned from NVML meanwhile looks again.
        let _changing = ledger::changing();
        ledger::all().for_each(Slice::is_to_be_learned);
        ledger::all().for_each(pools::refresh);
    }
    Outcome::Done(result)
}

/// `cuCtxSynchronize`
pub unsafe fn synchronize(call: &mut Call<'_>) -> Outcome {
    refreshed(call)
}

/// `cuCtxSynchronize_v2`
pub unsafe fn synchronize_context(call: &mut Call<'_>, _context: CUcontext) -> Outcome {
    refreshed(call)
}

/// `cuStreamSynchronize` and its per-thread form
pub unsafe fn synchronize_stream(call: &mut Call<'_>, _stream: CUstream) -> Outcome {
    refreshed(call)
}

/// `cuEventSynchronize`
pub unsafe fn synchronize_event(call: &mut Call<'_>, _event: CUevent) -> Outcome {
    refreshed(call)
}

// --------------------------------------------------------------------------------------------------------- graphs

/// Executable graphs that take memory when they are launched, and how much at most.
static TAKING: Guarded<BTreeMap<usize, u64>> = Guarded::new(BTreeMap::new());
/// Whether there are any, so that a launch of one without need not look.
static ANY_TAKING: AtomicBool = AtomicBool::new(false);

/// What the allocation nodes of a graph ask for, those of its child graphs included.
fn bytes_of(graph: CUgraph, depth: u32) -> u64 {
    let mut count = 0usize;
    // SAFETY: the caller's graph, which it has just instantiated; first the number of nodes, then as many places.
    let nodes = unsafe {
        if depth > 8 || calls::cuGraphGetNodes(graph, null_mut(), &raw mut count) != CUDA_SUCCESS {
            return 0;
        }
        let mut nodes: Vec<CUgraphNode> = vec![null_mut(); count];
        if calls::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) != CUDA_SUCCESS {
            return 0;
        }
        nodes.truncate(count);
        nodes
    };
    let bytes = nodes.into_iter().map(|node| {
        let mut kind = 0;
        // SAFETY: a node of that graph, and places to write to.
        unsafe {
            if calls::cuGraphNodeGetType(node, &raw mut kind) != CUDA_SUCCESS {
                return 0;
            }
            match kind {
                CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                    let mut params = CUDA_MEM_ALLOC_NODE_PARAMS::default();
                    let told = calls::cuGraphMemAllocNodeGetParams(node, &raw mut params);
                    if told == CUDA_SUCCESS { params.bytesize as u64 } else { 0 }
                }
                CU_GRAPH_NODE_TYPE_GRAPH => {
                    let mut child: CUgraph = null_mut();
                    let told = calls::cuGraphChildGraphNodeGetGraph(node, &raw mut child);
                    if told == CUDA_SUCCESS { bytes_of(child, depth + 1) } else { 0 }
                }
                _ => 0,
            }
        }
    });
    bytes.fold(0, u64::saturating_add)
}

fn instantiated(call: &mut Call<'_>, to: *mut CUgraphExec, graph: CUgraph) -> Outcome {
    let result = call.driver();
    if result == CUDA_SUCCESS {
        let bytes = bytes_of(graph, 0);
        if bytes > 0 {
            // SAFETY: the driver has just written the handle there.
            let exec = unsafe { *to } as usize;
            TAKING.with(|taking| taking.insert(exec, bytes));
            ANY_TAKING.store(true, Ordering::Release);
        }
    }
    Outcome::Done(result)
}

/// `cuGraphInstantiate` and `cuGraphInstantiate_v2`
pub unsafe fn instantiate(
    call: &mut Call<'_>,
    to: *mut CUgraphExec,
    graph: CUgraph,
    _error: *mut CUgraphNode,
    _log: *mut c_char,
    _size: usize,
) -> Outcome {
    instantiated(call, to, graph)
}

/// `cuGraphInstantiateWithFlags`
pub unsafe fn instantiate_with_flags(
    call: &mut Call<'_>,
    to: *mut CUgraphExec,
    graph: CUgraph,
    _flags: c_ulonglong,
) -> Outcome {
    instantiated(call, to, graph)
}

/// `cuGraphInstantiateWithParams` and its per-thread form
pub unsafe fn instantiate_with_params(
    call: &mut Call<'_>,
    to: *mut CUgraphExec,
    graph: CUgraph,
    _params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> Outcome {
    instantiated(call, to, graph)
}

/// `cuGraphExecDestroy`
pub unsafe fn exec_destroy(call: &mut Call<'_>, exec: CUgraphExec) -> Outcome {
    let result = call.driver();
    if ANY_TAKING.load(Ordering::Acquire) {
        TAKING.with(|taking| taking.remove(&(exec as usize)));
    }
    Outcome::Done(result)
}

/// `cuGraphLaunch`, `cuGraphUpload` and their per-thread forms
pub unsafe fn launch(call: &mut Call<'_>, exec: CUgraphExec, _stream: CUstream) -> Outcome {
    if !ANY_TAKING.load(Ordering::Acquire) {
        return Outcome::Done(call.driver());
    }
    let Some(bytes) = TAKING.with(|taking| taking.get(&(exec as usize)).copied()) else {
        return Outcome::Done(call.driver());
    };
    let changing = ledger::changing();
    let Some((slice, _)) = here(&changing) else { return Outcome::Done(call.driver()) };
    let hold = slice.reserve(bytes.next_multiple_of(STEP), &changing);
    if hold.is_err() && !pools::graphs_have_room(slice, bytes) {
        return REFUSED;
    }
    let result = call.driver();
    pools::settle_graphs(slice);
    drop(hold);
    Outcome::Done(result)
}

/// `cuDeviceGraphMemTrim`
pub unsafe fn graph_trim(call: &mut Call<'_>, _device: CUdevice) -> Outcome {
    refreshed(call)
}

/// In a forked child: none.
pub fn forget_the_parent() {
    MADE.renew(BTreeMap::new());
    IMPORTED.renew(BTreeMap::new());
    TAKING.renew(BTreeMap::new());
}
