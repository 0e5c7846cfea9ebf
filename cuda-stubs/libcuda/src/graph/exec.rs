//! Executable graphs: what instantiation makes of a graph, and what is kept between launches.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sim_world::channel::Seq;

use super::conditional::Condition;
use super::program::{self, Program};
use super::store::{self, Inner};
use super::user_object::Held;
use super::{Attributes, EXECS, Graph, exec};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::capture;
use crate::effects::Effect;
use crate::lane::Mark;
use crate::process::process;
use crate::work::Work;

pub(crate) struct Exec {
    pub handle: usize,
    pub flags: u64,
    pub state: Mutex<State>,
    /// What it was made of.
    source: Weak<Graph>,
}

/// What can change about an executable graph.
pub(crate) struct State {
    /// All nodes, those of inner graphs included.
    pub nodes: Vec<ExecNode>,
    /// Graphs within: each a list of places in `nodes`, in the order of the graph's own. The first is the graph itself.
    pub levels: Vec<Vec<usize>>,
    /// Places in `nodes` by the handle of the node that each was made of.
    pub places: HashMap<usize, usize>,
    pub conditions: Vec<Condition>,
    /// What the conditions' values are between launches.
    pub values: Vec<u64>,
    /// The steps of a launch; None after a change.
    program: Option<Arc<Program>>,
    /// The end of the newest launch.
    pub newest: Option<Newest>,
    pub objects: Vec<Held>,
}

/// The end of a launch. The mark is only made where somebody will need it.
pub(crate) struct Newest {
    pub seq: Seq,
    pub mark: Option<Arc<Mark>>,
}

/// A node of an executable graph.
#[derive(Clone)]
pub(crate) struct ExecNode {
    pub source: usize,
    pub work: Work,
    pub enabled: bool,
    /// Places of the nodes before it, of the same level.
    pub dependencies: Vec<usize>,
    /// Places of the nodes after it.
    pub dependents: Vec<usize>,
    pub attributes: Attributes,
    /// The levels inside of it.
    pub inside: Vec<usize>,
}

impl State {
    /// A copy of a graph, with those inside of it. The graph may be of any shape: a cycle is found when it is ordered.
    pub(crate) fn of(graph: &Inner) -> State {
        let mut state = State {
            nodes: Vec::new(),
            levels: Vec::new(),
            places: HashMap::new(),
            conditions: graph.conditions.clone(),
            values: vec![0; graph.conditions.len()],
            program: None,
            newest: None,
            objects: Held::again(&graph.objects),
        };
        state.add_level(graph);
        state
    }

    fn add_level(&mut self, graph: &Inner) -> usize {
        let level = self.levels.len();
        self.levels.push(Vec::new());
        let first = self.nodes.len();
        for (index, node) in graph.nodes().iter().enumerate() {
            let places = |edges: &[(usize, store::Edge)]| {
                edges.iter().filter_map(|(other, _)| Some(first + graph.place(*other).ok()?)).collect()
            };
            self.nodes.push(ExecNode {
                source: node.handle,
                work: node.work.clone(),
                enabled: true,
                dependencies: places(&node.dependencies),
                dependents: places(&node.dependents),
                attributes: node.attributes.clone(),
                inside: Vec::new(),
            });
            self.places.insert(node.handle, first + index);
        }
        self.levels[level] = (first..self.nodes.len()).collect();
        for (index, node) in graph.nodes().iter().enumerate() {
            let inside = node.nested().iter().map(|graph| self.add_level(&graph.lock())).collect();
            self.nodes[first + index].inside = inside;
        }
        level
    }

    pub(crate) fn node_mut(&mut self, node: CUgraphNode) -> Outcome<&mut ExecNode> {
        let place = *self.places.get(&(node as usize)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.program = None;
        Ok(&mut self.nodes[place])
    }

    /// The steps of a launch, made anew after a change. `Err`: the node that stands in the way of any order.
    pub(crate) fn program(&mut self) -> Result<Arc<Program>, usize> {
        if let Some(program) = &self.program {
            return Ok(Arc::clone(program));
        }
        let program = Arc::new(program::compile(self)?);
        self.program = Some(Arc::clone(&program));
        Ok(program)
    }

    /// Something changed.
    pub(crate) fn recompile(&mut self) {
        self.program = None;
    }
}

impl Exec {
    pub(crate) fn register(flags: u64, state: State, source: &Arc<Graph>) -> Arc<Exec> {
        EXECS.insert_with(|handle| Exec { handle, flags, state: Mutex::new(state), source: Arc::downgrade(source) })
    }

    /// Takes it down. What is in flight goes on; user objects are let go when that is through.
    fn destroy(&self) {
        if let Some(source) = self.source.upgrade() {
            source.lock().instances -= 1;
        }
        let (objects, newest) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.objects), state.newest.take())
        };
        let in_flight = newest.and_then(|newest| newest.mark).filter(|mark| !mark.poll());
        match (in_flight, process()) {
            (Some(mark), Ok(process)) if !objects.is_empty() => {
                process.effects.add(mark, Effect::OnWorker(Box::new(move || Held::release_all(objects))));
            }
            _ => Held::release_all(objects),
        }
    }
}

/// A node's state in an executable graph; only work of the device can be switched off.
fn switchable(state: &mut State, node: CUgraphNode) -> Outcome<&mut ExecNode> {
    let node = state.node_mut(node)?;
    match node.work {
        Work::Kernel(_) | Work::Copy(_) | Work::Set(_) => Ok(node),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

api! {
    export fn cuGraphExecDestroy(handle: CUgraphExec) {
        process()?;
        capture::forbid_unsafe()?;
        EXECS.remove(handle as usize).ok_or(CUDA_ERROR_INVALID_VALUE)?.destroy();
        Ok(())
    }
    export fn cuGraphExecGetFlags(handle: CUgraphExec, flags: Out<u64>) {
        // The driver does not tell about priorities.
        flags.set(exec(handle)?.flags & !u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
    }
    export fn cuGraphNodeSetEnabled(handle: CUgraphExec, node: CUgraphNode, enabled: u32) {
        switchable(&mut exec(handle)?.state.lock(), node)?.enabled = enabled != 0;
        Ok(())
    }
    export fn cuGraphNodeGetEnabled(handle: CUgraphExec, node: CUgraphNode, enabled: Out<u32>) {
        enabled.set(u32::from(switchable(&mut exec(handle)?.state.lock(), node)?.enabled))
    }
}
