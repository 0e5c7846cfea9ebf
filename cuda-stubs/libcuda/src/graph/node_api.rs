//! Entry points that make graphs and nodes, look at what nodes do, and change it.

use std::sync::Arc;

use super::node_params::{self as forms, Described};
use super::store::{Edge, Node, Owner};
use super::{Graph, copying, graph, graph_of, memory, node_type};
use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::current;
use crate::event::Event;
use crate::process::process;
use crate::work::Work;

/// Nodes that a new one comes after, with the edges' data if the caller has a form with it.
pub(crate) fn dependencies(
    nodes: In<CUgraphNode>,
    edges: Option<In<CUgraphEdgeData>>,
    count: usize,
) -> Outcome<Vec<(usize, Edge)>> {
    let nodes = nodes.array(count)?;
    let data = match edges {
        Some(edges) if !edges.is_null() => edges.array(count)?.iter().map(Edge::from_c).collect::<Outcome<Vec<_>>>()?,
        _ => vec![Edge::default(); count],
    };
    Ok(nodes.into_iter().map(|node| node as usize).zip(data).collect())
}

/// Adds a node whose work `make` describes; it is asked last, since it may take something that would have to be given back.
fn add(
    out: Out<CUgraphNode>,
    into: CUgraph,
    dependencies: &[(usize, Edge)],
    make: impl FnOnce(&Arc<Graph>) -> Outcome<Described>,
) -> Outcome {
    let graph = graph(into)?;
    out.required()?;
    {
        let inner = graph.lock();
        dependencies.iter().try_for_each(|(node, _)| inner.place(*node).map(|_| ()))?;
    }
    let (work, context) = make(&graph)?;
    out.set(graph.add(work, context, dependencies)? as CUgraphNode)
}

/// The same without edge data.
fn add_after(
    out: Out<CUgraphNode>,
    into: CUgraph,
    after: In<CUgraphNode>,
    count: usize,
    make: impl FnOnce(&Arc<Graph>) -> Outcome<Described>,
) -> Outcome {
    add(out, into, &dependencies(after, None, count)?, make)
}

/// Looks at a node.
fn look<T>(node: CUgraphNode, f: impl FnOnce(&mut Node) -> Outcome<T>) -> Outcome<T> {
    let graph = graph_of(node)?;
    let mut inner = graph.lock();
    f(inner.node_mut(node as usize)?)
}

/// Gives a node other work of the same kind.
fn change(node: CUgraphNode, (work, context): Described) -> Outcome {
    look(node, |node| {
        if node_type(&node.work) != node_type(&work) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        (node.work, node.context) = (work, context);
        Ok(())
    })
}

fn kernel_params(node: CUgraphNode) -> Outcome<CUDA_KERNEL_NODE_PARAMS> {
    look(node, |node| match &node.work {
        Work::Kernel(launch) => Ok(launch.node_params()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    })
}

fn event_of(node: CUgraphNode, of: impl FnOnce(&Work) -> Option<&Arc<Event>>) -> Outcome<CUevent> {
    look(node, |node| Ok(of(&node.work).ok_or(CUDA_ERROR_INVALID_VALUE)?.handle as CUevent))
}

fn add_any(out: Out<CUgraphNode>, into: CUgraph, after: &[(usize, Edge)], params: Out<CUgraphNodeParams>) -> Outcome {
    let mut form = params.get()?;
    add(out, into, after, |graph| forms::read(graph, &mut form))?;
    params.set(form)
}

fn destroy(handle: CUgraph) -> Outcome {
    let graph = graph(handle)?;
    {
        let inner = graph.lock();
        if !matches!(inner.owner, Owner::Client) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if inner.captured_into {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
    }
    graph.destroy();
    Ok(())
}

api! {
    export fn cuGraphCreate(out: Out<CUgraph>, flags: u32) {
        process()?;
        out.required()?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        out.set(Graph::create(Owner::Client).handle as CUgraph)
    }
    export fn cuGraphDestroy(handle: CUgraph) { destroy(handle) }
    export fn cuGraphDestroyNode(node: CUgraphNode) { graph_of(node)?.lock().remove(node as usize) }
    export fn cuGraphNodeGetType(node: CUgraphNode, out: Out<CUgraphNodeType>) {
        out.set(look(node, |node| Ok(node_type(&node.work)))?)
    }
    export fn cuGraphAddNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, params: Out<CUgraphNodeParams>) {
        add_any(out, into, &dependencies(after, None, count)?, params)
    }
    export fn cuGraphAddNode_v2(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize, params: Out<CUgraphNodeParams>) {
        add_any(out, into, &dependencies(after, Some(edges), count)?, params)
    }
    export fn cuGraphNodeSetParams(node: CUgraphNode, params: In<CUgraphNodeParams>) {
        change(node, forms::read_simple(&params.get()?)?)
    }
    export fn cuGraphAddKernelNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let params = forms::kernel_from_v1(&params.get()?);
        add_after(out, into, after, count, |_| forms::kernel(&params))
    }
    export fn cuGraphAddKernelNode_v2(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_KERNEL_NODE_PARAMS>) {
        let params = params.get()?;
        add_after(out, into, after, count, |_| forms::kernel(&params))
    }
    export fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: Out<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let found = kernel_params(node)?;
        if found.func.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE); // the old form has no place for a library's kernel
        }
        params.set(forms::kernel_to_v1(&found))
    }
    export fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: Out<CUDA_KERNEL_NODE_PARAMS>) { params.set(kernel_params(node)?) }
    export fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS_v1>) {
        change(node, forms::kernel(&forms::kernel_from_v1(&params.get()?))?)
    }
    export fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS>) {
        change(node, forms::kernel(&params.get()?)?)
    }
    export fn cuGraphAddMemcpyNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_MEMCPY3D>, ctx: CUcontext) {
        let params = params.get()?;
        add_after(out, into, after, count, |_| forms::copy(&params, ctx))
    }
    export fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, params: Out<CUDA_MEMCPY3D>) {
        params.set(look(node, |node| match &node.work {
            Work::Copy(copy) => Ok(copy.to_3d()),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        })?)
    }
    export fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: In<CUDA_MEMCPY3D>) {
        change(node, forms::copy(&params.get()?, std::ptr::null_mut())?)
    }
    export fn cuGraphAddMemsetNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_MEMSET_NODE_PARAMS>, ctx: CUcontext) {
        let params = params.get()?;
        add_after(out, into, after, count, |_| forms::set(&params, ctx))
    }
    export fn cuGraphMemsetNodeGetParams(node: CUgraphNode, params: Out<CUDA_MEMSET_NODE_PARAMS>) {
        params.set(look(node, |node| match &node.work {
            Work::Set(set) => {
                let form = set.to_node();
                let CUDA_MEMSET_NODE_PARAMS_v2 { dst, pitch, value, elementSize, width, height, .. } = form;
                Ok(CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize, width, height })
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        })?)
    }
    export fn cuGraphMemsetNodeSetParams(node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS>) {
        change(node, forms::set(&params.get()?, std::ptr::null_mut())?)
    }
    export fn cuGraphAddHostNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_HOST_NODE_PARAMS>) {
        let params = params.get()?;
        add_after(out, into, after, count, |_| forms::host(params.fn_, params.userData))
    }
    export fn cuGraphHostNodeGetParams(node: CUgraphNode, params: Out<CUDA_HOST_NODE_PARAMS>) {
        params.set(look(node, |node| match &node.work {
            Work::Host(call) => Ok(CUDA_HOST_NODE_PARAMS { fn_: Some(call.function), userData: call.data as *mut _ }),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        })?)
    }
    export fn cuGraphHostNodeSetParams(node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS>) {
        let params = params.get()?;
        change(node, forms::host(params.fn_, params.userData)?)
    }
    export fn cuGraphAddChildGraphNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, child: CUgraph) {
        add_after(out, into, after, count, |parent| {
            Ok((copying::adopt(parent, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)?, 0))
        })
    }
    export fn cuGraphAddEmptyNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize) {
        add_after(out, into, after, count, |_| Ok((Work::Nothing, 0)))
    }
    export fn cuGraphAddEventRecordNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, event: CUevent) {
        add_after(out, into, after, count, |_| forms::record(event))
    }
    export fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, out: Out<CUevent>) {
        out.set(event_of(node, |work| if let Work::RecordEvent(event) = work { Some(event) } else { None })?)
    }
    export fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) { change(node, forms::record(event)?) }
    export fn cuGraphAddEventWaitNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, event: CUevent) {
        add_after(out, into, after, count, |_| forms::wait(event))
    }
    export fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, out: Out<CUevent>) {
        out.set(event_of(node, |work| if let Work::WaitEvent(event) = work { Some(event) } else { None })?)
    }
    export fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) { change(node, forms::wait(event)?) }
    export fn cuGraphAddBatchMemOpNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>) {
        let params = params.get()?;
        add_after(out, into, after, count, |_| forms::values(&params))
    }
    export fn cuGraphBatchMemOpNodeGetParams(node: CUgraphNode, params: Out<CUDA_BATCH_MEM_OP_NODE_PARAMS>) {
        params.set(look(node, |node| {
            let Work::Values(operations) = &node.work else { return Err(CUDA_ERROR_INVALID_VALUE) };
            // The client is given a pointer: the answer stays with the node until it is asked again.
            node.shown = operations.iter().map(|operation| operation.to_params()).collect();
            Ok(CUDA_BATCH_MEM_OP_NODE_PARAMS {
                ctx: node.context as CUcontext,
                count: node.shown.len() as u32,
                paramArray: node.shown.as_mut_ptr(),
                flags: 0,
            })
        })?)
    }
    export fn cuGraphBatchMemOpNodeSetParams(node: CUgraphNode, params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>) {
        change(node, forms::values(&params.get()?)?)
    }
    export fn cuGraphAddMemAllocNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v2>) {
        current()?;
        let mut form = params.get()?;
        add_after(out, into, after, count, |_| Ok((memory::from_params(&mut form)?, 0)))?;
        params.set(form)
    }
    export fn cuGraphAddMemFreeNode(out: Out<CUgraphNode>, into: CUgraph, after: In<CUgraphNode>, count: usize, address: CUdeviceptr) {
        add_after(out, into, after, count, |graph| Ok((memory::free_node(&graph.lock(), address)?, 0)))
    }
}
