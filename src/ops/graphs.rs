//! Graphs: their allocations take memory when they are launched, and their kernels as if they were launched alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_ulonglong};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use super::launches::{self, Need};
use super::memory::{REFUSED, here};
use super::pools::refreshed;
use super::{Call, Outcome, code};
use crate::abi::cuda::*;
use crate::driver::{Stream, calls};
use crate::ledger::pools::{self, STEP};
use crate::ledger::{self, Slice, Unheld};
use crate::steer::{self, Work};
use crate::thread::Guarded;

/// What a graph takes that nothing has taken before it.
#[derive(Clone, Default)]
struct Takes {
    /// What its allocation nodes ask for, by the device whose memory it is.
    bytes: BTreeMap<CUdevice, u64>,
    /// Kernels that were never launched.
    kernels: BTreeSet<usize>,
}

/// Executable graphs that take memory when they are launched.
static TAKING: Guarded<BTreeMap<usize, Takes>> = Guarded::new(BTreeMap::new());
/// Whether there are any, so that a launch of one without need not look.
static ANY_TAKING: AtomicBool = AtomicBool::new(false);

/// In a forked child: none.
pub fn forget_the_parent() {
    TAKING.renew(BTreeMap::new());
}

/// Child graphs are looked into as deep as this.
const DEEPEST: u32 = 8;

impl Takes {
    /// What a graph takes, and its child graphs.
    fn of(graph: CUgraph) -> Takes {
        let mut takes = Takes::default();
        takes.add(graph, 0);
        takes
    }

    fn is_nothing(&self) -> bool {
        self.bytes.is_empty() && self.kernels.is_empty()
    }

    fn add(&mut self, graph: CUgraph, depth: u32) {
        let mut count = 0usize;
        // SAFETY: the caller's graph; first the number of nodes, then as many places.
        let nodes = unsafe {
            if depth > DEEPEST || calls::cuGraphGetNodes(graph, null_mut(), &raw mut count) != CUDA_SUCCESS {
                return;
            }
            let mut nodes: Vec<CUgraphNode> = vec![null_mut(); count];
            if calls::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) != CUDA_SUCCESS {
                return;
            }
            nodes.truncate(count);
            nodes
        };
        for node in nodes {
            let mut kind = 0;
            // SAFETY: a node of that graph, and places to write to.
            unsafe {
                if calls::cuGraphNodeGetType(node, &raw mut kind) != CUDA_SUCCESS {
                    continue;
                }
                match kind {
                    CU_GRAPH_NODE_TYPE_KERNEL => self.add_kernel(node),
                    CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                        let mut params = CUDA_MEM_ALLOC_NODE_PARAMS::default();
                        if calls::cuGraphMemAllocNodeGetParams(node, &raw mut params) == CUDA_SUCCESS {
                            let bytes = self.bytes.entry(params.poolProps.location.id).or_default();
                            *bytes = bytes.saturating_add(params.bytesize as u64);
                        }
                    }
                    CU_GRAPH_NODE_TYPE_GRAPH => {
                        let mut child: CUgraph = null_mut();
                        if calls::cuGraphChildGraphNodeGetGraph(node, &raw mut child) == CUDA_SUCCESS {
                            self.add(child, depth + 1);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// # Safety
    /// A kernel node.
    unsafe fn add_kernel(&mut self, node: CUgraphNode) {
        // SAFETY: zeros are a value of these: numbers and null pointers.
        let (mut params, mut old): (CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: the node that the caller speaks of, and places to write to.
        let kernel = unsafe {
            if calls::cuGraphKernelNodeGetParams_v2(node, &raw mut params) == CUDA_SUCCESS {
                if params.func.is_null() { params.kern.cast() } else { params.func }
            } else if calls::cuGraphKernelNodeGetParams(node, &raw mut old) == CUDA_SUCCESS {
                old.func
            } else {
                null_mut()
            }
        };
        if !kernel.is_null() && !launches::was_launched(kernel) {
            self.kernels.insert(kernel as usize);
        }
    }

    fn need(&self, slice: &'static Slice, context: CUcontext) -> Need {
        let kernels: Vec<CUfunction> = self.kernels.iter().map(|kernel| *kernel as CUfunction).collect();
        Need::of(&kernels, slice, context)
    }
}

/// An executable graph gets nodes that take so much. What the driver takes for the kernels already now is foreseen; what it
/// takes later is remembered.
fn given(call: &mut Call<'_>, takes: Takes, exec: impl FnOnce() -> CUgraphExec) -> Outcome {
    if takes.is_nothing() {
        return Outcome::Done(call.driver());
    }
    let changing = ledger::changing();
    let outcome = match here(&changing) {
        Ok((slice, context)) => takes.need(slice, context).provide(call, false, &changing),
        // What it takes when it is launched is remembered all the same.
        Err(unheld) => unheld.ask(call),
    };
    if call.result() == Some(CUDA_SUCCESS) {
        TAKING.with(|taking| {
            let known = taking.entry(exec() as usize).or_default();
            for (device, bytes) in takes.bytes {
                let most = known.bytes.entry(device).or_default();
                *most = bytes.max(*most);
            }
            known.kernels.extend(takes.kernels);
            ANY_TAKING.store(true, Ordering::Release);
        });
    }
    outcome
}

fn instantiated(call: &mut Call<'_>, to: *mut CUgraphExec, graph: CUgraph) -> Outcome {
    // SAFETY: the driver has just written the handle there.
    given(call, Takes::of(graph), || unsafe { *to })
}

/// The kernel of a node: a function, or a kernel of a library.
///
/// # Safety
/// Null, or the caller's description of a kernel node.
unsafe fn kernel_of(params: *const CUDA_KERNEL_NODE_PARAMS) -> Option<CUfunction> {
    // SAFETY: the caller's word.
    let params = unsafe { params.as_ref() }?;
    let kernel = if params.func.is_null() { params.kern.cast() } else { params.func };
    (!kernel.is_null()).then_some(kernel)
}

/// `cuGraphAddKernelNode_v2` and `cuGraphKernelNodeSetParams_v2`: a kernel's library is loaded when a node is made of it.
pub unsafe fn kernel_node(call: &mut Call<'_>, params: *const CUDA_KERNEL_NODE_PARAMS) -> Outcome {
    // SAFETY: the caller's description, which the driver reads too.
    match unsafe { kernel_of(params) } {
        Some(kernel) => code::use_kernel(call, kernel),
        None => Outcome::Done(call.driver()),
    }
}

/// `cuGraphAddNode`, `cuGraphNodeSetParams` and their like
pub unsafe fn any_node(call: &mut Call<'_>, params: *mut CUgraphNodeParams) -> Outcome {
    // SAFETY: the caller's description, which the driver reads too. Its type says which of the union's members it has.
    let kernel = unsafe {
        params.as_ref().filter(|params| params.type_ == CU_GRAPH_NODE_TYPE_KERNEL).map(|params| {
            let kernel = &params.__bindgen_anon_1.kernel;
            if kernel.func.is_null() { kernel.kern.cast() } else { kernel.func }
        })
    };
    match kernel {
        Some(kernel) => code::use_kernel(call, kernel),
        None => Outcome::Done(call.driver()),
    }
}

/// `cuGraphExecKernelNodeSetParams_v2`: an executable graph gets another kernel.
pub unsafe fn exec_kernel_node(
    call: &mut Call<'_>,
    exec: CUgraphExec,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> Outcome {
    // SAFETY: the caller's description, which the driver reads too.
    let kernel = unsafe { kernel_of(params) }.filter(|kernel| !launches::was_launched(*kernel));
    match kernel {
        Some(kernel) => {
            let takes = Takes { bytes: BTreeMap::new(), kernels: BTreeSet::from([kernel as usize]) };
            given(call, takes, || exec)
        }
        None => Outcome::Done(call.driver()),
    }
}

/// `cuGraphExecUpdate` and `cuGraphExecUpdate_v2`: an executable graph gets the nodes of another.
pub unsafe fn exec_update(call: &mut Call<'_>, exec: CUgraphExec, graph: CUgraph) -> Outcome {
    given(call, Takes::of(graph), || exec)
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
        TAKING.with(|taking| {
            taking.remove(&(exec as usize));
            ANY_TAKING.store(!taking.is_empty(), Ordering::Release);
        });
    }
    Outcome::Done(result)
}

/// Whether there is nothing to do about launches of graphs: none takes memory, and nobody holds launches up.
#[inline(always)]
pub fn passes() -> bool {
    !steer::is_any_counted() && !ANY_TAKING.load(Ordering::Acquire)
}

/// `cuGraphLaunch`
pub unsafe fn launch(call: &mut Call<'_>, exec: CUgraphExec, stream: CUstream) -> Outcome {
    launched(call, exec, Stream::given(stream, false))
}

/// `cuGraphLaunch_ptsz`
pub unsafe fn launch_ptsz(call: &mut Call<'_>, exec: CUgraphExec, stream: CUstream) -> Outcome {
    launched(call, exec, Stream::given(stream, true))
}

fn launched(call: &mut Call<'_>, exec: CUgraphExec, stream: Stream) -> Outcome {
    if !steer::is_any_counted() {
        return with_room(call, exec);
    }
    launches::paced(call, stream, || Work::graph(exec as usize), |call| with_room(call, exec))
}

/// `cuGraphUpload` and its per-thread form
pub unsafe fn upload(call: &mut Call<'_>, exec: CUgraphExec) -> Outcome {
    with_room(call, exec)
}

/// The first launch takes memory, and where a graph allocates, every one.
fn with_room(call: &mut Call<'_>, exec: CUgraphExec) -> Outcome {
    if !ANY_TAKING.load(Ordering::Acquire) {
        return Outcome::Done(call.driver());
    }
    let Some(takes) = TAKING.with(|taking| taking.get(&(exec as usize)).cloned()) else {
        return Outcome::Done(call.driver());
    };
    let changing = ledger::changing();
    let need = here(&changing).map(|(slice, context)| takes.need(slice, context));
    // Its nodes say whose memory they take; that need not be the current context's GPU.
    let (mut holds, mut limited, mut unheld) = (Vec::new(), Vec::new(), Unheld::NoLimit);
    for (device, bytes) in &takes.bytes {
        match ledger::of(*device, &changing) {
            Ok(slice) => limited.push((slice, *bytes)),
            Err(Unheld::NoLimit) => {}
            Err(why) => unheld = why,
        }
    }
    for (slice, bytes) in &limited {
        match slice.reserve(bytes.next_multiple_of(STEP), &changing) {
            Ok(hold) => holds.push(hold),
            Err(_) if pools::graphs_have_room(slice, *bytes) => {}
            Err(_) => return REFUSED,
        }
    }
    let outcome = unheld.end(call, |call| match need {
        Ok(need) => need.provide(call, true, &changing),
        // Kernels are of a context; memory nodes are not.
        Err(_) if takes.kernels.is_empty() => Outcome::Done(call.driver()),
        Err(unheld) => unheld.ask(call),
    });
    limited.iter().for_each(|(slice, _)| pools::settle_graphs(slice));
    drop(holds);
    if call.result() == Some(CUDA_SUCCESS) && !takes.kernels.is_empty() {
        // They have run now, so that later launches take nothing for them.
        TAKING.with(|taking| {
            match taking.get_mut(&(exec as usize)) {
                Some(known) if !known.bytes.is_empty() => known.kernels.clear(),
                _ => drop(taking.remove(&(exec as usize))),
            }
            ANY_TAKING.store(!taking.is_empty(), Ordering::Release);
        });
    }
    outcome
}

/// `cuDeviceGraphMemTrim`
pub unsafe fn trim(call: &mut Call<'_>, _device: CUdevice) -> Outcome {
    refreshed(call)
}
