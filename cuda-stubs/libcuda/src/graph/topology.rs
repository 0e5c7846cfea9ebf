//! Orders of nodes, on bare numbers: which comes before which, and whether the whole has an order at all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An order in which every node comes after those it depends on. Of several that could be next, the one of the smallest
/// `rank` goes first, then the older one. `Err` names a node of a cycle.
pub(crate) fn order(dependencies: &[Vec<usize>], rank: impl Fn(usize) -> u8) -> Result<Vec<usize>, usize> {
    let count = dependencies.len();
    let mut waits: Vec<usize> = dependencies.iter().map(Vec::len).collect();
    let mut dependents = vec![Vec::new(); count];
    for (node, before) in dependencies.iter().enumerate() {
        for other in before {
            dependents[*other].push(node);
        }
    }
    let mut ready: BinaryHeap<Reverse<(u8, usize)>> =
        (0..count).filter(|node| waits[*node] == 0).map(|node| Reverse((rank(node), node))).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse((_, node))) = ready.pop() {
        order.push(node);
        for next in &dependents[node] {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                ready.push(Reverse((rank(*next), *next)));
            }
        }
    }
    match waits.iter().position(|left| *left != 0) {
        None => Ok(order),
        Some(stuck) => Err(on_cycle(dependencies, &waits, stuck)),
    }
}

/// The oldest node of a cycle that `stuck` waits for.
fn on_cycle(dependencies: &[Vec<usize>], waits: &[usize], stuck: usize) -> usize {
    // What waits for ever has a dependency that does: going back along those must come round.
    let back = |node: usize| dependencies[node].iter().copied().find(|d| waits[*d] != 0).unwrap_or(node);
    let mut seen = vec![false; dependencies.len()];
    let mut at = stuck;
    while !std::mem::replace(&mut seen[at], true) {
        at = back(at);
    }
    let (mut oldest, mut walk) = (at, back(at));
    while walk != at {
        oldest = oldest.min(walk);
        walk = back(walk);
    }
    oldest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_first_and_age_decides() {
        let diamond = [vec![], vec![0], vec![0], vec![1, 2]];
        assert_eq!(order(&diamond, |_| 0), Ok(vec![0, 1, 2, 3]));
        let against_age = [vec![2], vec![0], vec![]];
        assert_eq!(order(&against_age, |_| 0), Ok(vec![2, 0, 1]));
        assert_eq!(order(&[], |_| 0), Ok(vec![]));
    }

    #[test]
    fn rank_decides_before_age() {
        let apart = [vec![], vec![], vec![0], vec![1]];
        let rank = |node: usize| u8::from(node == 0);
        assert_eq!(order(&apart, rank), Ok(vec![1, 3, 0, 2]), "what is ranked last waits for the other branch");
    }

    #[test]
    fn a_cycle_is_named_by_its_oldest_node() {
        assert_eq!(order(&[vec![2], vec![0], vec![1]], |_| 0), Err(0));
        let behind = [vec![], vec![0, 3], vec![1], vec![2], vec![3]];
        assert_eq!(order(&behind, |_| 0), Err(1), "not what only waits for the cycle");
        assert_eq!(order(&[vec![0]], |_| 0), Err(0));
    }

    #[test]
    fn a_long_chain_is_no_recursion() {
        let chain: Vec<Vec<usize>> = (0..100_000).map(|n: usize| n.checked_sub(1).into_iter().collect()).collect();
        assert_eq!(order(&chain, |_| 0).map(|o| o.len()), Ok(100_000));
    }
}
