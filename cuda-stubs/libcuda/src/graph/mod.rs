//! Graphs: work kept with its order, launched as a whole.
//!
//! A [`store::Graph`] is what clients build, node by node or by capturing a stream; its nodes hold the same
//! [`Work`] that streams do. Instantiating one copies it into an [`exec::Exec`], which [`program`] turns
//! into a short list of steps once, so that a launch only walks that list: kernels that follow each other, also on branches
//! that run side by side, are one piece of the timeline; everything else is done in its order in the launching stream.

mod attributes;
mod conditional;
mod copying;
mod dot;
mod edges;
pub(crate) mod exec;
mod exec_params;
mod instantiate;
mod launch;
mod makespan;
mod memory;
mod node_api;
mod node_params;
mod program;
pub(crate) mod store;
mod topology;
mod update;
mod update_api;
mod user_object;

use std::sync::Arc;

use crate::abi::*;
use crate::api::Outcome;
use crate::handles::{Registry, Tag};
use crate::stream::Stream;
use crate::work::Work;

pub(crate) use attributes::Attributes;
pub(crate) use conditional::Conditional;
pub(crate) use memory::{GraphAllocation, allocate, free_node};
pub(crate) use node_api::dependencies;
pub(crate) use store::{Edge, Graph};

/// Every graph, those inside of others included.
pub(crate) static GRAPHS: Registry<Graph> = Registry::new(Tag::Graph);
/// Every node, by the graph that it is in.
pub(crate) static NODES: Registry<store::NodeAt> = Registry::new(Tag::GraphNode);
/// Every executable graph.
pub(crate) static EXECS: Registry<exec::Exec> = Registry::new(Tag::GraphExec);

/// Work that only graphs have.
#[derive(Clone)]
pub(crate) enum GraphWork {
    /// Another graph, as one node.
    Child(Arc<Graph>),
    /// Graphs of which a value decides.
    Conditional(Conditional),
    /// Memory that the graph brings.
    Allocate(GraphAllocation),
    /// Memory that a graph brought, given back.
    Free(u64),
}

impl GraphWork {
    /// Does what can be done by itself; a launch takes graphs within the graph apart before it comes here.
    pub(crate) fn execute(&self, _stream: &Arc<Stream>) -> Outcome {
        match self {
            GraphWork::Child(_) | GraphWork::Conditional(_) => Err(CUDA_ERROR_NOT_SUPPORTED),
            GraphWork::Allocate(allocation) => allocation.bring(),
            GraphWork::Free(address) => crate::memory::graphpool::free(*address),
        }
    }
}

/// What kind of node some work is.
pub(crate) fn node_type(work: &Work) -> CUgraphNodeType {
    match work {
        Work::Kernel(_) => CU_GRAPH_NODE_TYPE_KERNEL,
        Work::Copy(_) => CU_GRAPH_NODE_TYPE_MEMCPY,
        Work::Set(_) => CU_GRAPH_NODE_TYPE_MEMSET,
        Work::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
        Work::Values(_) => CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        Work::RecordEvent(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        Work::WaitEvent(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        Work::Nothing => CU_GRAPH_NODE_TYPE_EMPTY,
        Work::Graph(GraphWork::Child(_)) => CU_GRAPH_NODE_TYPE_GRAPH,
        Work::Graph(GraphWork::Conditional(_)) => CU_GRAPH_NODE_TYPE_CONDITIONAL,
        Work::Graph(GraphWork::Allocate(_)) => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        Work::Graph(GraphWork::Free(_)) => CU_GRAPH_NODE_TYPE_MEM_FREE,
    }
}

/// The graph that a handle names. Stale ones are `CUDA_ERROR_INVALID_VALUE`, as the driver has it for all of graphs' handles.
pub(crate) fn graph(handle: CUgraph) -> Outcome<Arc<Graph>> {
    crate::process::process()?;
    GRAPHS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// The graph that a node is in.
pub(crate) fn graph_of(node: CUgraphNode) -> Outcome<Arc<Graph>> {
    crate::process::process()?;
    NODES.get(node as usize).and_then(|at| at.graph.upgrade()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// The executable graph that a handle names.
pub(crate) fn exec(handle: CUgraphExec) -> Outcome<Arc<exec::Exec>> {
    crate::process::process()?;
    EXECS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_VALUE)
}
