//! Programs of all kinds side by side, in virtual time, judged as on a GPU: against plain time slicing, and against what is fair.
//! One that does not fill the GPU cannot have all that is fair: it has to wait for slices. So for some of the lines there are mixes
//! that plain time slicing does not hold either, and how many of those there may be is written down.

mod node;

use std::collections::HashMap;

use node::{MS, Node, Outcome, SHAPES, container, outcome, tell};

/// What is wrong with a mix.
#[derive(Default, Clone, Copy, PartialEq)]
struct Wrong {
    /// Somebody has less than by plain time slicing, and than is fair, by more than 3 points of its own speed.
    under: usize,
    /// Somebody is short of what is fair, and another has 2 points of the GPU's time more than that.
    over: usize,
    /// All together have less than by plain time slicing, by more than a point.
    sum: usize,
}

/// Max-min: what each should have who wants so much.
fn fair(demands: &[f64], capacity: f64) -> Vec<f64> {
    let mut shares = vec![0.0; demands.len()];
    let mut open: Vec<usize> = (0..demands.len()).collect();
    let mut rest = capacity;
    while !open.is_empty() {
        let each = rest / open.len() as f64;
        let (content, others): (Vec<usize>, Vec<usize>) = open.iter().partition(|which| demands[**which] <= each);
        if content.is_empty() {
            others.iter().for_each(|which| shares[*which] = each);
            break;
        }
        for which in content {
            shares[which] = demands[which];
            rest -= demands[which];
        }
        open = others;
    }
    shares
}

struct Judge {
    alone: HashMap<usize, f64>,
}

impl Judge {
    fn new() -> Judge {
        Judge { alone: HashMap::new() }
    }

    /// Runs a mix with equal requests, plain and steered.
    fn judge(&mut self, mix: &[usize]) -> Wrong {
        let count = mix.len();
        let all: Vec<_> = mix.iter().map(|which| container(100 / count as u32, SHAPES[*which].1)).collect();
        let used: Vec<f64> = mix
            .iter()
            .zip(&all)
            .map(|(which, it)| *self.alone.entry(*which).or_insert_with(|| 100.0 * it.alone().usage[0]))
            .collect();
        let [plain, ours] =
            [false, true].map(|is_steered| outcome(&mut Node::new(&all, 1), 1_500 * MS, 4_000 * MS, is_steered));
        let gpu = |outcome: &Outcome| outcome.usage.iter().map(|usage| 100.0 * usage).collect::<Vec<f64>>();
        let (plain, ours) = (gpu(&plain), gpu(&ours));
        let sums = [&plain, &ours].map(|it| it.iter().sum::<f64>());
        let shares = fair(&used, sums[0].max(sums[1]).min(100.0));
        let speed = |gpu: f64, which: usize| 100.0 * gpu / used[which];
        let due = |which: usize| speed(shares[which], which).min(100.0);
        let is_short = |which: usize| ours[which] < shares[which] - 0.5 && speed(ours[which], which) < due(which) - 1.0;
        let mut wrong = Wrong { sum: usize::from(sums[1] < sums[0] - 1.0), ..Wrong::default() };
        for which in 0..count {
            let bar = speed(plain[which], which).min(due(which)) - 3.0;
            wrong.under += usize::from(speed(ours[which], which) < bar);
            let others_short = (0..count).any(|other| other != which && is_short(other));
            wrong.over += usize::from(others_short && ours[which] > shares[which] + 2.0);
        }
        let names: Vec<&str> = mix.iter().map(|which| SHAPES[*which].0).collect();
        let mark = if wrong == Wrong::default() { "" } else { " *" };
        tell(&format!(
            "{}: {ours:.1?} in sum {:.1}, plain {plain:.1?} {:.1}{mark}",
            names.join(", "),
            sums[1],
            sums[0]
        ));
        wrong
    }

    /// How many of them have something wrong of each kind.
    fn count(&mut self, mixes: &[Vec<usize>]) -> Wrong {
        let all = mixes.iter().map(|mix| self.judge(mix)).fold(Wrong::default(), |sum, wrong| Wrong {
            under: sum.under + wrong.under.min(1),
            over: sum.over + wrong.over.min(1),
            sum: sum.sum + wrong.sum,
        });
        let (under, over, sum) = (all.under, all.over, all.sum);
        tell(&format!("of {}: {under} under, {over} over, {sum} in sum", mixes.len()));
        all
    }
}

/// Drawn by a seed, of so many programs each.
fn drawn(count: usize, size: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut dice = seed;
    let mut draw = || {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 33) as usize % SHAPES.len()
    };
    (0..count).map(|_| (0..size).map(|_| draw()).collect()).collect()
}

#[test]
fn pairs() {
    let pairs: Vec<Vec<usize>> =
        (0..SHAPES.len()).flat_map(|one| (one..SHAPES.len()).map(move |other| vec![one, other])).collect();
    let wrong = Judge::new().count(&pairs);
    // In all of those that are over, one fills the GPU and the other does not: mostly one that waits every millisecond.
    assert!(wrong.under <= 1 && wrong.sum <= 2 && wrong.over <= 23, "see the table");
}

#[test]
fn fours() {
    let wrong = Judge::new().count(&drawn(40, 4, 7));
    assert!(wrong.under <= 5 && wrong.sum == 0 && wrong.over <= 16, "see the table");
}

#[test]
fn eights() {
    let wrong = Judge::new().count(&drawn(16, 8, 8));
    assert!(wrong.under == 0 && wrong.sum == 0 && wrong.over <= 6, "see the table");
}
