//! Entry points about the shape of a graph: its nodes, its edges, and changes of those.

use super::node_api::dependencies;
use super::store::Edge;
use super::{graph, graph_of};
use crate::abi::*;
use crate::api::{In, Out, Outcome};

/// Answers with a list. Without a place for it the answer is its length; places that are left over are emptied.
fn tell<T: Copy>(all: &[T], to: Out<T>, count: Out<usize>, empty: T) -> Outcome {
    if to.is_null() {
        return count.set(all.len());
    }
    let room = count.get()?;
    for index in 0..room {
        to.set_at(index, all.get(index).copied().unwrap_or(empty));
    }
    count.set(room.min(all.len()))
}

const NONE: CUgraphNode = std::ptr::null_mut();

fn as_nodes(handles: impl Iterator<Item = usize>) -> Vec<CUgraphNode> {
    handles.map(|handle| handle as CUgraphNode).collect()
}

/// An answer in a form without edge data says nothing of edges that have some.
fn plain(edges: &[(usize, Edge)]) -> Outcome {
    if edges.iter().all(|(_, edge)| edge.is_plain()) { Ok(()) } else { Err(CUDA_ERROR_LOSSY_QUERY) }
}

/// Neighbours of a node, with or without the edges' data.
fn neighbours(
    edges: &[(usize, Edge)],
    nodes: Out<CUgraphNode>,
    data: Option<Out<CUgraphEdgeData>>,
    count: Out<usize>,
) -> Outcome {
    match data {
        _ if nodes.is_null() => return count.set(edges.len()),
        Some(data) if !data.is_null() => {
            for index in 0..count.get()? {
                data.set_at(index, edges.get(index).map_or_else(CUgraphEdgeData::default, |(_, edge)| edge.to_c()));
            }
        }
        _ => plain(edges)?,
    }
    tell(&as_nodes(edges.iter().map(|(node, _)| *node)), nodes, count, NONE)
}

fn all_edges(
    handle: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    data: Option<Out<CUgraphEdgeData>>,
    count: Out<usize>,
) -> Outcome {
    let graph = graph(handle)?;
    let inner = graph.lock();
    let edges: Vec<(usize, usize, Edge)> = inner
        .nodes()
        .iter()
        .flat_map(|node| node.dependents.iter().map(|(to, edge)| (node.handle, *to, *edge)))
        .collect();
    if from.is_null() != to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if from.is_null() {
        return count.set(edges.len());
    }
    let room = count.get()?;
    match data {
        Some(data) if !data.is_null() => {
            for index in 0..room {
                data.set_at(index, edges.get(index).map_or_else(CUgraphEdgeData::default, |(_, _, edge)| edge.to_c()));
            }
        }
        _ if edges.iter().any(|(_, _, edge)| !edge.is_plain()) => return Err(CUDA_ERROR_LOSSY_QUERY),
        _ => {}
    }
    tell(&as_nodes(edges.iter().map(|(from, _, _)| *from)), from, count, NONE)?;
    count.set(room)?;
    tell(&as_nodes(edges.iter().map(|(_, to, _)| *to)), to, count, NONE)
}

/// Adds edges one by one; those before a wrong one stay.
fn connect(
    handle: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    data: Option<In<CUgraphEdgeData>>,
    count: usize,
) -> Outcome {
    let graph = graph(handle)?;
    let (pairs, to) = (dependencies(from, data, count)?, to.array(count)?);
    let mut inner = graph.lock();
    pairs.iter().zip(to).try_for_each(|((from, edge), to)| inner.add_edge(*from, to as usize, *edge))
}

fn disconnect(
    handle: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    data: Option<In<CUgraphEdgeData>>,
    count: usize,
) -> Outcome {
    let graph = graph(handle)?;
    let (pairs, to) = (dependencies(from, data, count)?, to.array(count)?);
    let said = data.is_some_and(|data| !data.is_null());
    let mut inner = graph.lock();
    pairs.iter().zip(to).try_for_each(|((from, edge), to)| inner.remove_edge(*from, to as usize, said.then_some(*edge)))
}

api! {
    export fn cuGraphGetNodes(handle: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) {
        let graph = graph(handle)?;
        let all = as_nodes(graph.lock().nodes().iter().map(|node| node.handle));
        tell(&all, nodes, count, NONE)
    }
    export fn cuGraphGetRootNodes(handle: CUgraph, nodes: Out<CUgraphNode>, count: Out<usize>) {
        let graph = graph(handle)?;
        let roots = as_nodes(graph.lock().nodes().iter().filter(|node| node.dependencies.is_empty()).map(|node| node.handle));
        tell(&roots, nodes, count, NONE)
    }
    export fn cuGraphGetEdges(handle: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, count: Out<usize>) {
        all_edges(handle, from, to, None, count)
    }
    export fn cuGraphGetEdges_v2(handle: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>) {
        all_edges(handle, from, to, Some(data), count)
    }
    export fn cuGraphNodeGetDependencies(node: CUgraphNode, nodes: Out<CUgraphNode>, count: Out<usize>) {
        neighbours(&graph_of(node)?.lock().node(node as usize)?.dependencies, nodes, None, count)
    }
    export fn cuGraphNodeGetDependencies_v2(node: CUgraphNode, nodes: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>) {
        neighbours(&graph_of(node)?.lock().node(node as usize)?.dependencies, nodes, Some(data), count)
    }
    export fn cuGraphNodeGetDependentNodes(node: CUgraphNode, nodes: Out<CUgraphNode>, count: Out<usize>) {
        neighbours(&graph_of(node)?.lock().node(node as usize)?.dependents, nodes, None, count)
    }
    export fn cuGraphNodeGetDependentNodes_v2(node: CUgraphNode, nodes: Out<CUgraphNode>, data: Out<CUgraphEdgeData>, count: Out<usize>) {
        neighbours(&graph_of(node)?.lock().node(node as usize)?.dependents, nodes, Some(data), count)
    }
    export fn cuGraphAddDependencies(handle: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) {
        connect(handle, from, to, None, count)
    }
    export fn cuGraphAddDependencies_v2(handle: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize) {
        connect(handle, from, to, Some(data), count)
    }
    export fn cuGraphRemoveDependencies(handle: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize) {
        disconnect(handle, from, to, None, count)
    }
    export fn cuGraphRemoveDependencies_v2(handle: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize) {
        disconnect(handle, from, to, Some(data), count)
    }
}
