//! Conditional nodes: bodies that run if, while, or by which, a value says so; and the handles by which kernels set it.

use std::sync::Arc;

use super::store::Owner;
use super::{Graph, graph};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::process::context;

/// A conditional node.
#[derive(Clone)]
pub(crate) struct Conditional {
    pub handle: u64,
    pub kind: Deciding,
    pub bodies: Vec<Arc<Graph>>,
    /// The bodies' handles, as the client was given a pointer to them.
    pub shown: Arc<[usize]>,
    pub context: usize,
}

/// How the value decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deciding {
    /// Not 0: the first body; 0: the second, if there is one.
    If,
    /// The body, over and over until it is 0.
    While,
    /// The body of that number, if there is one.
    Switch,
}

/// What a handle stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Condition {
    pub default: u32,
    /// Whether every launch begins with the default; else with what the last one left.
    pub assigned: bool,
    /// Some node uses it.
    pub used: bool,
}

impl Conditional {
    /// Makes the node's content, with empty bodies. The handle must be the outermost graph's, and free.
    pub(crate) fn new(inside: &Arc<Graph>, params: &CUDA_CONDITIONAL_NODE_PARAMS) -> Outcome<Conditional> {
        let kind = match (params.type_, params.size) {
            (CU_GRAPH_COND_TYPE_IF, 1 | 2) => Deciding::If,
            (CU_GRAPH_COND_TYPE_WHILE, 1) => Deciding::While,
            (CU_GRAPH_COND_TYPE_SWITCH, 1..) => Deciding::Switch,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let context = context(params.ctx)?.handle;
        let root = inside.root();
        {
            let mut outer = root.lock();
            let condition = condition(&mut outer.conditions, params.handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            if condition.used {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            condition.used = true;
        }
        let bodies: Vec<_> = (0..params.size).map(|_| Graph::create(Owner::Body(Arc::downgrade(inside)))).collect();
        let shown = bodies.iter().map(|body| body.handle).collect();
        Ok(Conditional { handle: params.handle, kind, bodies, shown, context })
    }
}

/// Handles count from 1 in each graph.
fn condition(all: &mut [Condition], handle: u64) -> Option<&mut Condition> {
    usize::try_from(handle).ok()?.checked_sub(1).and_then(|index| all.get_mut(index))
}

api! {
    export fn cuGraphConditionalHandleCreate(handle: Out<CUgraphConditionalHandle>, graph_handle: CUgraph, ctx: CUcontext, default: u32, flags: u32) {
        let root = graph(graph_handle)?.root();
        context(ctx)?;
        handle.required()?;
        if flags & !CU_GRAPH_COND_ASSIGN_DEFAULT != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut inner = root.lock();
        inner.conditions.push(Condition { default, assigned: flags & CU_GRAPH_COND_ASSIGN_DEFAULT != 0, used: false });
        handle.set(inner.conditions.len() as u64)
    }
}
