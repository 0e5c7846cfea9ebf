//! A graph as clients build it: nodes with work, edges between them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::conditional::Condition;
use super::user_object::Held;
use super::{Attributes, GRAPHS, GraphWork, NODES, node_type};
use crate::abi::*;
use crate::api::Outcome;
use crate::work::Work;

/// What an edge says besides from where to where: the ports of the two nodes, and what kind of order it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Edge {
    pub from_port: u8,
    pub to_port: u8,
    pub kind: u8,
}

impl Edge {
    pub(crate) fn is_plain(self) -> bool {
        self == Edge::default()
    }

    /// From the C form; its reserved bytes must be 0.
    pub(crate) fn from_c(form: &CUgraphEdgeData) -> Outcome<Edge> {
        if form.reserved != [0; 5] {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Edge { from_port: form.from_port, to_port: form.to_port, kind: form.type_ })
    }

    pub(crate) fn to_c(self) -> CUgraphEdgeData {
        CUgraphEdgeData { from_port: self.from_port, to_port: self.to_port, type_: self.kind, reserved: [0; 5] }
    }

    /// Early starts are between kernels, and only they have ports.
    fn fits(self, from: &Work, to: &Work) -> bool {
        let between_kernels = matches!((from, to), (Work::Kernel(_), Work::Kernel(_)));
        let port = u32::from(self.from_port);
        match u32::from(self.kind) {
            CU_GRAPH_DEPENDENCY_TYPE_DEFAULT => self.is_plain(),
            CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC => {
                let early =
                    [CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER].contains(&port);
                between_kernels && early && self.to_port == 0
            }
            _ => false,
        }
    }
}

/// Where a node is.
pub(crate) struct NodeAt {
    pub graph: Weak<Graph>,
}

/// A node.
pub(crate) struct Node {
    pub handle: usize,
    pub work: Work,
    /// The context that the client named for it; 0 where none was.
    pub context: usize,
    /// Nodes that come before it, in the order in which the edges were made.
    pub dependencies: Vec<(usize, Edge)>,
    /// Nodes that come after it.
    pub dependents: Vec<(usize, Edge)>,
    pub attributes: Attributes,
    /// The node that it is a copy of, in a cloned graph.
    pub twin_of: usize,
    /// Answers to questions about it that the client holds pointers into.
    pub shown: Vec<CUstreamBatchMemOpParams>,
}

pub(crate) struct Graph {
    pub handle: usize,
    inner: Mutex<Inner>,
}

/// Who a graph belongs to.
#[derive(Clone)]
pub(crate) enum Owner {
    /// The client, who destroys it.
    Client,
    /// A node of another graph: a copy, or a graph that was moved there.
    Child { parent: Weak<Graph>, moved: bool },
    /// A conditional node of another graph.
    Body(Weak<Graph>),
}

pub(crate) struct Inner {
    nodes: Vec<Node>,
    /// Places in `nodes`, by handle.
    places: HashMap<usize, usize>,
    pub owner: Owner,
    /// The handles for conditional nodes that were made with this graph.
    pub conditions: Vec<Condition>,
    /// Some stream records into it.
    pub captured_into: bool,
    /// Executable graphs made of it that still live.
    pub instances: usize,
    pub objects: Vec<Held>,
    /// The graph that it is a clone of.
    pub clone_of: usize,
}

impl Graph {
    /// Registers an empty graph.
    pub(crate) fn create(owner: Owner) -> Arc<Graph> {
        GRAPHS.insert_with(|handle| {
            let inner = Inner {
                nodes: Vec::new(),
                places: HashMap::new(),
                owner,
                conditions: Vec::new(),
                captured_into: false,
                instances: 0,
                objects: Vec::new(),
                clone_of: 0,
            };
            Graph { handle, inner: Mutex::new(inner) }
        })
    }

    /// The graph's content. Held for one change or look at a time; of nested graphs the outer one is locked first.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Adds a node that comes after `dependencies`.
    pub(crate) fn add(self: &Arc<Self>, work: Work, context: usize, dependencies: &[(usize, Edge)]) -> Outcome<usize> {
        let mut inner = self.lock();
        inner.check_dependencies(&work, dependencies)?;
        let handle = NODES.insert(NodeAt { graph: Arc::downgrade(self) });
        inner.append(Node::new(handle, work, context), dependencies);
        Ok(handle)
    }

    /// Takes the graph down, with its nodes and the graphs inside of it. What it held of user objects is given back.
    pub(crate) fn destroy(&self) {
        GRAPHS.remove(self.handle);
        let (nodes, objects) = {
            let mut inner = self.lock();
            inner.places.clear();
            (std::mem::take(&mut inner.nodes), std::mem::take(&mut inner.objects))
        };
        for node in nodes {
            NODES.remove(node.handle);
            node.destroy_nested();
        }
        Held::release_all(objects);
    }

    /// The outermost graph that this one is inside of, or itself.
    pub(crate) fn root(self: &Arc<Self>) -> Arc<Graph> {
        let mut at = Arc::clone(self);
        loop {
            let outer = match &at.lock().owner {
                Owner::Client => None,
                Owner::Child { parent, .. } | Owner::Body(parent) => parent.upgrade(),
            };
            match outer {
                Some(outer) => at = outer,
                None => return at,
            }
        }
    }
}

impl Node {
    pub(crate) fn new(handle: usize, work: Work, context: usize) -> Node {
        let attributes = Attributes::of(&work);
        Node {
            handle,
            work,
            context,
            dependencies: Vec::new(),
            dependents: Vec::new(),
            attributes,
            twin_of: 0,
            shown: Vec::new(),
        }
    }

    /// The graphs inside of it.
    pub(crate) fn nested(&self) -> &[Arc<Graph>] {
        nested(&self.work)
    }

    fn destroy_nested(&self) {
        for graph in self.nested() {
            graph.destroy();
        }
    }
}

/// The graphs inside of a piece of work.
pub(crate) fn nested(work: &Work) -> &[Arc<Graph>] {
    match work {
        Work::Graph(GraphWork::Child(graph)) => std::slice::from_ref(graph),
        Work::Graph(GraphWork::Conditional(conditional)) => &conditional.bodies,
        _ => &[],
    }
}

impl Inner {
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn place(&self, handle: usize) -> Outcome<usize> {
        self.places.get(&handle).copied().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub(crate) fn node(&self, handle: usize) -> Outcome<&Node> {
        Ok(&self.nodes[self.place(handle)?])
    }

    pub(crate) fn node_mut(&mut self, handle: usize) -> Outcome<&mut Node> {
        let place = self.place(handle)?;
        Ok(&mut self.nodes[place])
    }

    /// Fails unless these are different nodes of this graph that such an edge can come from.
    fn check_dependencies(&self, work: &Work, dependencies: &[(usize, Edge)]) -> Outcome {
        for (index, (handle, edge)) in dependencies.iter().enumerate() {
            let from = self.node(*handle)?;
            let again = dependencies[..index].iter().any(|(other, _)| other == handle);
            if again || !edge.fits(&from.work, work) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
        }
        Ok(())
    }

    pub(crate) fn append(&mut self, mut node: Node, dependencies: &[(usize, Edge)]) {
        node.dependencies = dependencies.to_vec();
        for (from, edge) in dependencies {
            if let Some(place) = self.places.get(from) {
                self.nodes[*place].dependents.push((node.handle, *edge));
            }
        }
        self.places.insert(node.handle, self.nodes.len());
        self.nodes.push(node);
    }

    pub(crate) fn add_edge(&mut self, from: usize, to: usize, edge: Edge) -> Outcome {
        let (source, target) = (self.node(from)?, self.node(to)?);
        let known = target.dependencies.iter().any(|(node, _)| *node == from);
        if from == to || known || !edge.fits(&source.work, &target.work) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.node_mut(from)?.dependents.push((to, edge));
        self.node_mut(to)?.dependencies.push((from, edge));
        Ok(())
    }

    /// `edge`: the one that it must be, where the caller said it.
    pub(crate) fn remove_edge(&mut self, from: usize, to: usize, edge: Option<Edge>) -> Outcome {
        self.check_removal()?;
        let target = self.node_mut(to)?;
        let is_it = |(node, found): &(usize, Edge)| *node == from && edge.is_none_or(|wanted| wanted == *found);
        let at = target.dependencies.iter().position(is_it).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        target.dependencies.remove(at);
        self.node_mut(from)?.dependents.retain(|(node, _)| *node != to);
        Ok(())
    }

    /// Takes a node out with its edges; what came before it is no longer before what came after it.
    pub(crate) fn remove(&mut self, handle: usize) -> Outcome {
        self.check_removal()?;
        let place = self.place(handle)?;
        let node = self.nodes.remove(place);
        self.places = self.nodes.iter().enumerate().map(|(place, node)| (node.handle, place)).collect();
        for (other, _) in &node.dependencies {
            if let Ok(other) = self.node_mut(*other) {
                other.dependents.retain(|(node, _)| *node != handle);
            }
        }
        for (other, _) in &node.dependents {
            if let Ok(other) = self.node_mut(*other) {
                other.dependencies.retain(|(node, _)| *node != handle);
            }
        }
        NODES.remove(handle);
        node.destroy_nested();
        Ok(())
    }

    /// Graphs that bring memory only ever grow.
    fn check_removal(&self) -> Outcome {
        if self.brings_memory() { Err(CUDA_ERROR_NOT_SUPPORTED) } else { Ok(()) }
    }

    /// Whether it allocates or frees memory.
    pub(crate) fn brings_memory(&self) -> bool {
        self.nodes.iter().any(|n| matches!(n.work, Work::Graph(GraphWork::Allocate(_) | GraphWork::Free(_))))
    }

    /// Whether it can be copied, and instantiated more than once: graphs with memory or conditions cannot.
    pub(crate) fn is_plain(&self) -> bool {
        let here = self.nodes.iter().all(|node| match node_type(&node.work) {
            CU_GRAPH_NODE_TYPE_CONDITIONAL | CU_GRAPH_NODE_TYPE_MEM_ALLOC | CU_GRAPH_NODE_TYPE_MEM_FREE => false,
            _ => node.nested().iter().all(|inside| inside.lock().is_plain()),
        });
        here && self.conditions.is_empty()
    }
}
