//! Changes of single nodes of an executable graph; the graph that it was made of stays as it is.

use super::node_params::{self as forms, Described};
use super::update::allowed;
use super::update_api::replace_child;
use super::{exec, graph};
use crate::abi::*;
use crate::api::{In, Outcome};

/// Gives a node of an executable graph other work, if it is of a kind that may change so.
fn change(handle: CUgraphExec, node: CUgraphNode, (work, _): Described) -> Outcome {
    let exec = exec(handle)?;
    let mut state = exec.state.lock();
    let node = state.node_mut(node)?;
    allowed(node, &work, &node.attributes).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    node.work = work;
    Ok(())
}

api! {
    export fn cuGraphExecNodeSetParams(handle: CUgraphExec, node: CUgraphNode, params: In<CUgraphNodeParams>) {
        let params = params.get()?;
        if params.type_ == CU_GRAPH_NODE_TYPE_GRAPH {
            let child = forms::child_of(&params)?;
            return replace_child(&*exec(handle)?, node, &graph(child)?);
        }
        change(handle, node, forms::read_simple(&params)?)
    }
    export fn cuGraphExecKernelNodeSetParams(handle: CUgraphExec, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS_v1>) {
        change(handle, node, forms::kernel(&forms::kernel_from_v1(&params.get()?))?)
    }
    export fn cuGraphExecKernelNodeSetParams_v2(handle: CUgraphExec, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS>) {
        change(handle, node, forms::kernel(&params.get()?)?)
    }
    export fn cuGraphExecMemcpyNodeSetParams(handle: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMCPY3D>, ctx: CUcontext) {
        change(handle, node, forms::copy(&params.get()?, ctx)?)
    }
    export fn cuGraphExecMemsetNodeSetParams(handle: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS>, ctx: CUcontext) {
        change(handle, node, forms::set(&params.get()?, ctx)?)
    }
    export fn cuGraphExecHostNodeSetParams(handle: CUgraphExec, node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS>) {
        let params = params.get()?;
        change(handle, node, forms::host(params.fn_, params.userData)?)
    }
    export fn cuGraphExecChildGraphNodeSetParams(handle: CUgraphExec, node: CUgraphNode, child: CUgraph) {
        replace_child(&*exec(handle)?, node, &graph(child)?)
    }
    export fn cuGraphExecEventRecordNodeSetEvent(handle: CUgraphExec, node: CUgraphNode, event: CUevent) {
        change(handle, node, forms::record(event)?)
    }
    export fn cuGraphExecEventWaitNodeSetEvent(handle: CUgraphExec, node: CUgraphNode, event: CUevent) {
        change(handle, node, forms::wait(event)?)
    }
    export fn cuGraphExecBatchMemOpNodeSetParams(handle: CUgraphExec, node: CUgraphNode, params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>) {
        change(handle, node, forms::values(&params.get()?)?)
    }
}
