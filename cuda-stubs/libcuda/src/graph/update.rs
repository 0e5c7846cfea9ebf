//! Whether an executable graph can take over another graph's work: the same shape, node by node, and changes of the kinds
//! that an executable graph allows.

use super::conditional::Conditional;
use super::exec::ExecNode;
use super::{Attributes, GraphWork, node_type};
use crate::abi::*;
use crate::memory::copy::{Copy, Memory, Set};
use crate::work::Work;

/// A graph as bare numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct Shape {
    /// Each node's kind.
    pub kinds: Vec<u32>,
    /// How many come before each.
    pub before: Vec<usize>,
    /// Those after each, in the order in which the edges were made.
    pub after: Vec<Vec<usize>>,
}

/// Where two graphs differ, as a node of the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Difference {
    Topology(Option<usize>),
    Kind(usize),
}

impl Shape {
    fn roots(&self) -> Vec<usize> {
        (0..self.kinds.len()).filter(|node| self.before[*node] == 0).collect()
    }

    fn edges(&self) -> usize {
        self.after.iter().map(Vec::len).sum()
    }
}

/// Which node of the new graph each of the old one becomes. Nodes are paired from the roots on along the edges, in the order
/// in which they were made, as the driver does; a graph of the same form that was built in another order is another one.
pub(super) fn pair(old: &Shape, new: &Shape) -> Result<Vec<usize>, Difference> {
    if old.kinds.len() != new.kinds.len() || new.edges() > old.edges() {
        return Err(Difference::Topology(None));
    }
    let mut partner: Vec<Option<usize>> = vec![None; old.kinds.len()];
    let mut taken = vec![false; new.kinds.len()];
    for (root, twin) in old.roots().into_iter().zip(new.roots()) {
        pair_from(old, new, (root, twin), &mut partner, &mut taken)?;
    }
    partner.into_iter().collect::<Option<Vec<usize>>>().ok_or(Difference::Topology(None))
}

/// Depth first; kinds are compared on the way back, so that of several changes the deepest is named.
fn pair_from(
    old: &Shape,
    new: &Shape,
    start: (usize, usize),
    partner: &mut [Option<usize>],
    taken: &mut [bool],
) -> Result<(), Difference> {
    let mut stack = vec![(start.0, start.1, 0)];
    while let Some((node, twin, step)) = stack.pop() {
        if step == 0 {
            match partner[node] {
                Some(known) if known == twin => continue,
                None if !taken[twin] => (partner[node], taken[twin]) = (Some(twin), true),
                _ => return Err(Difference::Topology(Some(twin))),
            }
            if old.after[node].len() != new.after[twin].len() || old.before[node] != new.before[twin] {
                return Err(Difference::Topology(Some(twin)));
            }
        }
        match (old.after[node].get(step), new.after[twin].get(step)) {
            (Some(next), Some(next_twin)) => {
                stack.push((node, twin, step + 1));
                stack.push((*next, *next_twin, 0));
            }
            _ if old.kinds[node] != new.kinds[twin] => return Err(Difference::Kind(twin)),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a node may change like this, else the driver's reason why not. What is inside of it is looked at elsewhere.
pub(super) fn allowed(old: &ExecNode, work: &Work, attributes: &Attributes) -> Result<(), CUgraphExecUpdateResult> {
    if node_type(&old.work) != node_type(work) {
        return Err(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
    }
    let unchanged = |same: bool| if same { Ok(()) } else { Err(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED) };
    match (&old.work, work) {
        (Work::Kernel(old_launch), Work::Kernel(launch)) => {
            if old_launch.function.context != launch.function.context {
                Err(CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE)
            } else if old.attributes.is_cooperative() != attributes.is_cooperative() {
                Err(CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED)
            } else {
                Ok(())
            }
        }
        (Work::Copy(old), Work::Copy(copy)) => unchanged(same_way(old, copy)),
        (Work::Set(old), Work::Set(set)) => unchanged(old == set || (is_row(old) && is_row(set))),
        (Work::Values(old), Work::Values(new)) => unchanged(old.len() == new.len()),
        (Work::Graph(GraphWork::Allocate(old)), Work::Graph(GraphWork::Allocate(new))) => {
            unchanged(old.bytes == new.bytes && old.device == new.device)
        }
        (Work::Graph(GraphWork::Conditional(old)), Work::Graph(GraphWork::Conditional(new))) => {
            unchanged(same_form(old, new))
        }
        _ => Ok(()),
    }
}

fn is_row(set: &Set) -> bool {
    set.height == 1
}

fn same_form(old: &Conditional, new: &Conditional) -> bool {
    old.kind == new.kind && old.bodies.len() == new.bodies.len() && old.context == new.context
}

/// Copies keep the kinds of memory they go between; only plain rows of bytes may become other rows.
fn same_way(old: &Copy, new: &Copy) -> bool {
    let shape = |copy: &Copy| (copy.width, copy.height, copy.depth);
    let is_row = |copy: &Copy| copy.height == 1 && copy.depth == 1;
    let kinds = same_memory(old.source.memory, new.source.memory) && same_memory(old.target.memory, new.target.memory);
    kinds && ((is_row(old) && is_row(new)) || shape(old) == shape(new))
}

fn same_memory(old: Memory, new: Memory) -> bool {
    std::mem::discriminant(&old) == std::mem::discriminant(&new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(kinds: &[u32], edges: &[(usize, usize)]) -> Shape {
        let mut shape =
            Shape { kinds: kinds.to_vec(), before: vec![0; kinds.len()], after: vec![Vec::new(); kinds.len()] };
        for (from, to) in edges {
            shape.after[*from].push(*to);
            shape.before[*to] += 1;
        }
        shape
    }

    fn chain(kinds: &[u32]) -> Shape {
        let edges: Vec<_> = (1..kinds.len()).map(|n| (n - 1, n)).collect();
        shape(kinds, &edges)
    }

    // What the driver answered for the same pairs of graphs: kernels 0, fills 2, host functions 3, empty 5.
    #[test]
    fn differences_are_named_as_the_driver_names_them() {
        assert_eq!(pair(&chain(&[0, 0]), &chain(&[0, 0])), Ok(vec![0, 1]));
        assert_eq!(pair(&chain(&[0, 0]), &chain(&[0, 0, 0])), Err(Difference::Topology(None)));
        assert_eq!(pair(&chain(&[0, 0, 0]), &chain(&[0, 0])), Err(Difference::Topology(None)));
        assert_eq!(pair(&chain(&[0, 0]), &chain(&[0, 3])), Err(Difference::Kind(1)));
        assert_eq!(pair(&chain(&[0, 5]), &chain(&[0, 0])), Err(Difference::Kind(1)));
        assert_eq!(pair(&chain(&[0, 0]), &shape(&[0, 0], &[])), Err(Difference::Topology(Some(0))));
        assert_eq!(pair(&shape(&[0, 0], &[]), &chain(&[0, 0])), Err(Difference::Topology(None)));
        assert_eq!(pair(&chain(&[0, 0, 2]), &chain(&[0, 2, 0])), Err(Difference::Kind(2)));
        assert_eq!(pair(&chain(&[]), &chain(&[0])), Err(Difference::Topology(None)));
        let split = shape(&[0, 0, 0, 0], &[(0, 1), (2, 3)]);
        assert_eq!(pair(&chain(&[0, 0, 0, 0]), &split), Err(Difference::Topology(Some(1))));
        let apart = |kinds: &[u32]| shape(kinds, &[]);
        assert!(matches!(pair(&apart(&[0, 2]), &apart(&[2, 0])), Err(Difference::Kind(_))), "pairs go by age");
    }

    #[test]
    fn nodes_are_paired_along_edges_not_by_number() {
        let old = shape(&[0, 2, 3], &[(0, 1), (0, 2)]);
        let new = shape(&[3, 0, 2], &[(1, 2), (1, 0)]);
        assert_eq!(pair(&old, &new), Ok(vec![1, 2, 0]));
    }

    #[test]
    fn joins_must_join_the_same() {
        let old = shape(&[0; 4], &[(0, 1), (0, 2), (1, 3), (2, 3)]);
        let new = shape(&[0; 4], &[(0, 1), (0, 2), (1, 3), (1, 2)]);
        assert!(pair(&old, &new).is_err());
        assert_eq!(pair(&old, &old), Ok(vec![0, 1, 2, 3]));
    }

    #[test]
    fn long_chains_are_no_recursion() {
        let long = chain(&vec![0; 100_000]);
        assert_eq!(pair(&long, &long).map(|p| p.len()), Ok(100_000));
    }
}
