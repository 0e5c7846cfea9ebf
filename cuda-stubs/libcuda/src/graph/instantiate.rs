//! Instantiation: checking a graph and making it executable.

use std::ffi::c_char;
use std::sync::Arc;

use super::exec::{Exec, State};
use super::store::{Inner, Owner};
use super::{Graph, GraphWork, graph, launch};
use crate::abi::*;
use crate::api::{DefaultStream, Out, Outcome};
use crate::capture;
use crate::stream::resolve;
use crate::work::Work;

const AUTO_FREE: u64 = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH as u64;
const UPLOAD: u64 = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD as u64;
const DEVICE_LAUNCH: u64 = CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH as u64;
const NODE_PRIORITY: u64 = CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY as u64;

/// Why a graph could not be instantiated.
struct Refusal {
    code: CUresult,
    result: CUgraphInstantiateResult,
    /// The node that is to blame, if one is.
    node: usize,
}

impl Refusal {
    fn of(code: CUresult) -> Refusal {
        Refusal { code, result: CUDA_GRAPH_INSTANTIATE_ERROR, node: 0 }
    }

    fn because(result: CUgraphInstantiateResult, node: usize) -> Refusal {
        Refusal { code: CUDA_ERROR_INVALID_VALUE, result, node }
    }
}

fn instantiate(source: &Arc<Graph>, flags: u64) -> Result<Arc<Exec>, Refusal> {
    capture::forbid_unsafe().map_err(Refusal::of)?;
    if flags & !(AUTO_FREE | DEVICE_LAUNCH | NODE_PRIORITY) != 0 {
        return Err(Refusal::of(CUDA_ERROR_INVALID_VALUE));
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(Refusal::of(crate::api::unmodelled!("a graph for launches from the device")));
    }
    let mut inner = source.lock();
    match inner.owner {
        Owner::Client | Owner::Child { moved: false, .. } => {}
        // What is inside of another graph is instantiated with that one.
        Owner::Child { moved: true, .. } | Owner::Body(_) => return Err(Refusal::of(CUDA_ERROR_NOT_SUPPORTED)),
    }
    if inner.instances != 0 && !inner.is_plain() {
        return Err(Refusal::of(CUDA_ERROR_NOT_SUPPORTED));
    }
    check_bodies(&inner, false)?;
    if inner.conditions.iter().any(|condition| !condition.used) {
        return Err(Refusal::because(CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED, 0));
    }
    let mut state = State::of(&inner);
    let program = match state.program() {
        Ok(program) => program,
        Err(place) => {
            return Err(Refusal::because(CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE, state.nodes[place].source));
        }
    };
    if let Ok(context) = crate::context::current() {
        program.kernels.iter().try_for_each(|kernel| kernel.make_room(&context)).map_err(Refusal::of)?;
    }
    inner.instances += 1;
    drop(inner);
    Ok(Exec::register(flags, state, source))
}

/// Bodies of conditional nodes run without the host: they have kernels, copies, fills, and graphs of those.
fn check_bodies(graph: &Inner, in_body: bool) -> Result<(), Refusal> {
    for node in graph.nodes() {
        let (allowed, body) = match &node.work {
            Work::Kernel(_) | Work::Copy(_) | Work::Set(_) | Work::Nothing => (true, in_body),
            Work::Graph(GraphWork::Child(_)) => (true, in_body),
            Work::Graph(GraphWork::Conditional(_)) => (true, true),
            _ => (!in_body, in_body),
        };
        if !allowed {
            return Err(Refusal::because(CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED, node.handle));
        }
        for inside in node.nested() {
            check_bodies(&inside.lock(), body)?;
        }
    }
    Ok(())
}

/// The oldest form, with a place for the node to blame and for a text.
fn with_log(out: Out<CUgraphExec>, handle: CUgraph, node: Out<CUgraphNode>, log: Out<c_char>, len: usize) -> Outcome {
    let graph = graph(handle)?;
    out.required()?;
    let done = instantiate(&graph, 0);
    node.maybe(done.as_ref().err().map_or(0, |refusal| refusal.node) as CUgraphNode);
    if len != 0 {
        log.maybe(0); // there is nothing to say that the code does not
    }
    out.set(done.map_err(|refusal| refusal.code)?.handle as CUgraphExec)
}

fn with_params(
    out: Out<CUgraphExec>,
    handle: CUgraph,
    params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
    default: DefaultStream,
) -> Outcome {
    let graph = graph(handle)?;
    out.required()?;
    let mut form = params.get()?;
    let done = instantiate(&graph, form.flags & !UPLOAD).and_then(|exec| {
        if form.flags & UPLOAD != 0 {
            let upload = || launch::upload(&exec, &resolve(form.hUploadStream, default)?);
            upload().map_err(Refusal::of)?;
        }
        Ok(exec)
    });
    match &done {
        Ok(_) => (form.result_out, form.hErrNode_out) = (CUDA_GRAPH_INSTANTIATE_SUCCESS, std::ptr::null_mut()),
        Err(refusal) => (form.result_out, form.hErrNode_out) = (refusal.result, refusal.node as CUgraphNode),
    }
    params.set(form)?;
    out.set(done.map_err(|refusal| refusal.code)?.handle as CUgraphExec)
}

api! {
    export fn cuGraphInstantiate(out: Out<CUgraphExec>, handle: CUgraph, node: Out<CUgraphNode>, log: Out<c_char>, len: usize) {
        with_log(out, handle, node, log, len)
    }
    export fn cuGraphInstantiate_v2(out: Out<CUgraphExec>, handle: CUgraph, node: Out<CUgraphNode>, log: Out<c_char>, len: usize) {
        with_log(out, handle, node, log, len)
    }
    export fn cuGraphInstantiateWithFlags(out: Out<CUgraphExec>, handle: CUgraph, flags: u64) {
        let graph = graph(handle)?;
        out.required()?;
        out.set(instantiate(&graph, flags).map_err(|refusal| refusal.code)?.handle as CUgraphExec)
    }
    export fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz(default; out: Out<CUgraphExec>, handle: CUgraph, params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>) {
        with_params(out, handle, params, default)
    }
}
