//! Copies of graphs: clones, and the children that other graphs have of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::store::{Edge, Node, NodeAt, Owner};
use super::user_object::Held;
use super::{Graph, GraphWork, NODES, graph, graph_of};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::work::Work;

/// A copy with nodes of its own, and copies of the graphs inside. Not for graphs that bring memory or have conditions.
pub(crate) fn copy(original: &Arc<Graph>, owner: Owner) -> Outcome<Arc<Graph>> {
    let source = original.lock();
    if !source.is_plain() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let new = Graph::create(owner);
    let mut handles: HashMap<usize, usize> = HashMap::new();
    let mut target = new.lock();
    target.clone_of = original.handle;
    target.objects = Held::again(&source.objects);
    for node in source.nodes() {
        let work = match &node.work {
            Work::Graph(GraphWork::Child(inside)) => {
                let owner = Owner::Child { parent: Arc::downgrade(&new), moved: false };
                Work::Graph(GraphWork::Child(copy(inside, owner)?))
            }
            other => other.clone(),
        };
        let handle = NODES.insert(NodeAt { graph: Arc::downgrade(&new) });
        handles.insert(node.handle, handle);
        let mut twin = Node::new(handle, work, node.context);
        twin.attributes = node.attributes.clone();
        twin.twin_of = node.handle;
        target.append(twin, &[]);
    }
    // Edges afterwards: they may lead from younger nodes to older ones, and both ends keep their order.
    let translated = |edges: &[(usize, Edge)]| -> Vec<(usize, Edge)> {
        edges.iter().filter_map(|(node, edge)| Some((*handles.get(node)?, *edge))).collect()
    };
    for node in source.nodes() {
        let Some(handle) = handles.get(&node.handle) else { continue };
        let twin = target.node_mut(*handle)?;
        twin.dependencies = translated(&node.dependencies);
        twin.dependents = translated(&node.dependents);
    }
    drop(target);
    Ok(new)
}

/// Makes a graph a child of another: a copy of it, or the graph itself.
pub(super) fn adopt(parent: &Arc<Graph>, child: CUgraph, ownership: CUgraphChildGraphNodeOwnership) -> Outcome<Work> {
    let child = graph(child)?;
    if Arc::ptr_eq(&child, &parent.root()) || Arc::ptr_eq(&child, parent) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    match ownership {
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => {
            let owner = Owner::Child { parent: Arc::downgrade(parent), moved: false };
            Ok(Work::Graph(GraphWork::Child(copy(&child, owner)?)))
        }
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => {
            let mut inner = child.lock();
            if !matches!(inner.owner, Owner::Client) || inner.captured_into {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            if !inner.conditions.is_empty() {
                return Err(crate::api::unmodelled!("moving a graph with conditional nodes into another"));
            }
            inner.owner = Owner::Child { parent: Arc::downgrade(parent), moved: true };
            drop(inner);
            Ok(Work::Graph(GraphWork::Child(child)))
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

api! {
    export fn cuGraphClone(out: Out<CUgraph>, original: CUgraph) {
        out.required()?;
        out.set(copy(&graph(original)?, Owner::Client)?.handle as CUgraph)
    }
    export fn cuGraphNodeFindInClone(out: Out<CUgraphNode>, original: CUgraphNode, clone: CUgraph) {
        out.set(std::ptr::null_mut())?;
        let (from, clone) = (graph_of(original)?, graph(clone)?);
        let inner = clone.lock();
        let twin = inner.nodes().iter().find(|node| node.twin_of == original as usize).filter(|_| inner.clone_of == from.handle);
        out.set(twin.ok_or(CUDA_ERROR_INVALID_VALUE)?.handle as CUgraphNode)
    }
    export fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, out: Out<CUgraph>) {
        let graph = graph_of(node)?;
        let inner = graph.lock();
        match &inner.node(node as usize)?.work {
            Work::Graph(GraphWork::Child(child)) => out.set(child.handle as CUgraph),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}
