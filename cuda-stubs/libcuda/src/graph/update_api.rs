//! Taking over another graph's work as a whole.

use std::sync::Arc;

use super::exec::{Exec, ExecNode, State};
use super::store::{self, Inner};
use super::update::{Difference, Shape, allowed, pair};
use super::user_object::Held;
use super::{Attributes, Graph, GraphWork, exec, graph, node_type};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::work::Work;

/// What stands in the way of an update.
#[derive(Debug, Clone, Copy)]
pub(super) struct Obstacle {
    pub result: CUgraphExecUpdateResult,
    /// The node of the new graph that is to blame, if one is.
    pub node: usize,
}

/// What one node becomes.
struct Change {
    place: usize,
    work: Work,
    attributes: Attributes,
}

fn shape_of(graph: &Inner) -> Shape {
    let places =
        |edges: &[(usize, store::Edge)]| edges.iter().filter_map(|(node, _)| graph.place(*node).ok()).collect();
    Shape {
        kinds: graph.nodes().iter().map(|node| node_type(&node.work)).collect(),
        before: graph.nodes().iter().map(|node| node.dependencies.len()).collect(),
        after: graph.nodes().iter().map(|node| places(&node.dependents)).collect(),
    }
}

fn shape_of_level(state: &State, level: usize) -> Shape {
    let nodes = || state.levels[level].iter().map(|place| &state.nodes[*place]);
    let first = state.levels[level].first().copied().unwrap_or(0);
    Shape {
        kinds: nodes().map(|node| node_type(&node.work)).collect(),
        before: nodes().map(|node| node.dependencies.len()).collect(),
        after: nodes().map(|node| node.dependents.iter().map(|other| other - first).collect()).collect(),
    }
}

/// Collects what a level's nodes become, those inside of them included. Changes nothing yet.
fn collect(state: &State, level: usize, graph: &Inner, changes: &mut Vec<Change>) -> Result<(), Obstacle> {
    let handle = |node: Option<usize>| node.map_or(0, |node| graph.nodes()[node].handle);
    let pairs = pair(&shape_of_level(state, level), &shape_of(graph)).map_err(|difference| match difference {
        Difference::Topology(node) => {
            Obstacle { result: CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node: handle(node) }
        }
        Difference::Kind(node) => {
            Obstacle { result: CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, node: handle(Some(node)) }
        }
    })?;
    for (place, twin) in state.levels[level].iter().zip(pairs) {
        let (old, new) = (&state.nodes[*place], &graph.nodes()[twin]);
        let blame = |result| Obstacle { result, node: new.handle };
        allowed(old, &new.work, &new.attributes).map_err(blame)?;
        for (inside, graph) in old.inside.iter().zip(new.nested()) {
            collect(state, *inside, &graph.lock(), changes)?;
        }
        changes.push(Change { place: *place, work: new.work.clone(), attributes: new.attributes.clone() });
    }
    Ok(())
}

fn apply(nodes: &mut [ExecNode], changes: Vec<Change>) {
    for change in changes {
        let node = &mut nodes[change.place];
        (node.work, node.attributes) = (change.work, change.attributes);
    }
}

fn update(exec: &Exec, graph: &Arc<Graph>) -> Result<(), Obstacle> {
    let new = graph.lock();
    let mut state = exec.state.lock();
    let mut changes = Vec::new();
    collect(&state, 0, &new, &mut changes)?;
    apply(&mut state.nodes, changes);
    state.conditions = new.conditions.clone();
    state.values.resize(new.conditions.len(), 0);
    let more = Held::again(&new.objects);
    state.objects.extend(more);
    state.recompile();
    Ok(())
}

/// Gives a child node another graph of the same shape.
pub(super) fn replace_child(exec: &Exec, node: CUgraphNode, child: &Arc<Graph>) -> Outcome {
    let new = child.lock();
    let mut state = exec.state.lock();
    let inside = match state.node_mut(node)? {
        ExecNode { work: Work::Graph(GraphWork::Child(_)), inside, .. } => inside[0],
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let mut changes = Vec::new();
    collect(&state, inside, &new, &mut changes).map_err(|_| CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)?;
    apply(&mut state.nodes, changes);
    state.recompile();
    Ok(())
}

fn finish(done: Result<(), Obstacle>) -> Outcome {
    done.map_err(|_| CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
}

api! {
    export fn cuGraphExecUpdate(handle: CUgraphExec, graph_handle: CUgraph, node: Out<CUgraphNode>, result: Out<CUgraphExecUpdateResult>) {
        let done = update(&*exec(handle)?, &graph(graph_handle)?);
        node.maybe(done.err().map_or(0, |obstacle| obstacle.node) as CUgraphNode);
        result.maybe(done.err().map_or(CU_GRAPH_EXEC_UPDATE_SUCCESS, |obstacle| obstacle.result));
        finish(done)
    }
    export fn cuGraphExecUpdate_v2(handle: CUgraphExec, graph_handle: CUgraph, info: Out<CUgraphExecUpdateResultInfo>) {
        let done = update(&*exec(handle)?, &graph(graph_handle)?);
        info.maybe(CUgraphExecUpdateResultInfo {
            result: done.err().map_or(CU_GRAPH_EXEC_UPDATE_SUCCESS, |obstacle| obstacle.result),
            errorNode: done.err().map_or(0, |obstacle| obstacle.node) as CUgraphNode,
            errorFromNode: std::ptr::null_mut(),
        });
        finish(done)
    }
}
