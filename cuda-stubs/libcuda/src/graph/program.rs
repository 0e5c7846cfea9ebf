//! What a launch of a graph comes to: a list of steps, made once.
//!
//! Child graphs are opened, so that their nodes take part in the order like any other. Of what could come next, kernels are
//! taken first and waits last: kernels that follow each other become one run, whose length is what they take side by side
//! where the edges allow it, and nothing waits for something that only a later step of the same graph does.

use std::collections::HashMap;

use super::conditional::Deciding;
use super::exec::State;
use super::makespan::{self, Job};
use super::{GraphAllocation, GraphWork, topology};
use crate::launch::KernelLaunch;
use crate::memory::values::ValueOp;
use crate::work::Work;

/// A loop that goes round more often than this is taken for one that never ends.
pub(crate) const ENDLESS: u64 = 1_000_000;

/// A graph, ready to be launched.
#[derive(Default)]
pub(crate) struct Program {
    pub steps: Vec<Step>,
    /// Kernels that want something made ready before they run, each function once.
    pub kernels: Vec<KernelLaunch>,
    pub allocations: Vec<GraphAllocation>,
    /// Addresses that it frees, its own allocations' included.
    pub frees: Vec<u64>,
}

/// A step of a launch.
pub(crate) enum Step {
    Kernels(Run),
    Work(Work),
    /// Bodies of which a condition's value decides.
    Decide {
        condition: usize,
        kind: Deciding,
        bodies: Vec<Vec<Step>>,
    },
}

/// Kernels that follow each other, as one piece of the timeline.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    pub duration: u64,
    pub width: u16,
    pub kernels: u32,
    /// The highest of its nodes' priorities, as CUDA counts: more negative goes first.
    pub priority: i32,
    /// Conditions that its kernels set, by number, in their order; -1 counts down.
    pub sets: Vec<(usize, i64)>,
}

/// What a launch puts onto the timeline, in order.
pub(crate) enum Output<'a> {
    Kernels(Run),
    Work(&'a Work),
}

/// Makes the steps. `Err`: the place of a node in a cycle.
pub(crate) fn compile(state: &State) -> Result<Program, usize> {
    let mut program = Program::default();
    program.steps = compile_level(state, 0, &mut program)?;
    Ok(program)
}

/// A level with its child graphs opened: nodes by place, and what each comes after.
#[derive(Default)]
struct Flat {
    nodes: Vec<usize>,
    dependencies: Vec<Vec<usize>>,
}

impl Flat {
    /// Opens a level behind `before`. Returns what comes after it has to wait for.
    fn open(&mut self, state: &State, level: usize, before: &[usize]) -> Result<Vec<usize>, usize> {
        let places = &state.levels[level];
        let first = places.first().copied().unwrap_or(0);
        let local: Vec<Vec<usize>> = places
            .iter()
            .map(|place| state.nodes[*place].dependencies.iter().map(|other| other - first).collect())
            .collect();
        let order = topology::order(&local, |_| 0).map_err(|node| places[node])?;
        let mut ends: Vec<Vec<usize>> = vec![Vec::new(); places.len()];
        let mut last = vec![true; places.len()];
        for node in order {
            let place = places[node];
            let mut waits: Vec<usize> = local[node].iter().flat_map(|other| ends[*other].iter().copied()).collect();
            waits.sort_unstable();
            waits.dedup();
            local[node].iter().for_each(|other| last[*other] = false);
            if local[node].is_empty() {
                waits = before.to_vec();
            }
            ends[node] = match &state.nodes[place].work {
                Work::Graph(GraphWork::Child(_)) => self.open(state, state.nodes[place].inside[0], &waits)?,
                _ => {
                    self.nodes.push(place);
                    self.dependencies.push(waits);
                    vec![self.nodes.len() - 1]
                }
            };
        }
        if places.is_empty() {
            return Ok(before.to_vec());
        }
        let mut all: Vec<usize> =
            ends.iter().zip(&last).filter(|(_, last)| **last).flat_map(|(end, _)| end.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

fn compile_level(state: &State, level: usize, program: &mut Program) -> Result<Vec<Step>, usize> {
    let mut flat = Flat::default();
    flat.open(state, level, &[])?;
    let does = |index: usize| {
        let node = &state.nodes[flat.nodes[index]];
        if node.enabled { &node.work } else { &Work::Nothing }
    };
    let rank = |index: usize| match does(index) {
        Work::Kernel(_) | Work::Nothing => 0,
        Work::Values(operations) if operations.iter().any(|op| matches!(op, ValueOp::Wait { .. })) => 2,
        Work::WaitEvent(_) => 2,
        _ => 1,
    };
    let order = topology::order(&flat.dependencies, rank).map_err(|index| flat.nodes[index])?;
    let mut steps = Vec::new();
    let mut run = OpenRun::default();
    for index in order {
        let node = &state.nodes[flat.nodes[index]];
        match does(index) {
            Work::Kernel(launch) => {
                program.want(launch);
                run.add(index, launch, node.attributes.priority(), &flat.dependencies[index]);
            }
            Work::Nothing => run.pass(index, &flat.dependencies[index]),
            other => {
                run.close(&mut steps);
                steps.push(match other {
                    Work::Graph(GraphWork::Conditional(conditional)) => Step::Decide {
                        condition: (conditional.handle as usize).wrapping_sub(1),
                        kind: conditional.kind,
                        bodies: node
                            .inside
                            .iter()
                            .map(|body| compile_level(state, *body, program))
                            .collect::<Result<_, _>>()?,
                    },
                    work => {
                        program.note(work);
                        Step::Work(work.clone())
                    }
                });
            }
        }
    }
    run.close(&mut steps);
    Ok(steps)
}

impl Program {
    /// Notes a kernel whose function has not been noted, or that touches memory by its own parameters.
    fn want(&mut self, launch: &KernelLaunch) {
        if launch.function.kernel.touch
            || !self.kernels.iter().any(|other| other.function.handle == launch.function.handle)
        {
            self.kernels.push(launch.clone());
        }
    }

    fn note(&mut self, work: &Work) {
        match work {
            Work::Graph(GraphWork::Allocate(allocation)) => self.allocations.push(allocation.clone()),
            Work::Graph(GraphWork::Free(address)) => self.frees.push(*address),
            _ => {}
        }
    }

    /// What a launch puts onto the timeline, with the conditions' values followed through. None: a loop without end.
    pub(crate) fn follow(&self, values: &mut [u64]) -> Option<Vec<Output<'_>>> {
        let mut out = Vec::new();
        let mut rounds = 0;
        follow(&self.steps, values, &mut rounds, &mut out)?;
        Some(out)
    }
}

fn follow<'a>(steps: &'a [Step], values: &mut [u64], rounds: &mut u64, out: &mut Vec<Output<'a>>) -> Option<()> {
    for step in steps {
        match step {
            Step::Work(work) => out.push(Output::Work(work)),
            Step::Kernels(run) => {
                for (condition, value) in &run.sets {
                    if let Some(held) = values.get_mut(*condition) {
                        *held = if *value == -1 { held.wrapping_sub(1) } else { *value as u64 };
                    }
                }
                // Runs that meet, as those of a loop's rounds do, are one: a launch stays short however often it goes round.
                match out.last_mut() {
                    Some(Output::Kernels(last)) => last.join(run),
                    _ => out.push(Output::Kernels(Run { sets: Vec::new(), ..run.clone() })),
                }
            }
            Step::Decide { condition, kind, bodies } => {
                let value = |values: &[u64]| values.get(*condition).copied().unwrap_or(0);
                let chosen = match kind {
                    Deciding::If => usize::from(value(values) == 0),
                    Deciding::Switch => usize::try_from(value(values)).unwrap_or(usize::MAX),
                    Deciding::While => {
                        while value(values) != 0 {
                            *rounds += 1;
                            if *rounds > ENDLESS {
                                return None;
                            }
                            follow(bodies.first()?, values, rounds, out)?;
                        }
                        continue;
                    }
                };
                if let Some(body) = bodies.get(chosen) {
                    follow(body, values, rounds, out)?;
                }
            }
        }
    }
    Some(())
}

impl Run {
    fn join(&mut self, next: &Run) {
        self.duration = self.duration.saturating_add(next.duration);
        self.width = self.width.max(next.width);
        self.kernels = self.kernels.saturating_add(next.kernels);
        self.priority = self.priority.min(next.priority);
    }
}

/// A run that is being put together.
#[derive(Default)]
struct OpenRun {
    jobs: Vec<Job>,
    /// What each node seen so far comes to in this run: the jobs that stand for it.
    jobs_of: HashMap<usize, Vec<usize>>,
    priority: i32,
    sets: Vec<(usize, i64)>,
}

impl OpenRun {
    /// Jobs of this run that a node waits for; what came before the run is through.
    fn waits(&self, dependencies: &[usize]) -> Vec<usize> {
        let mut waits: Vec<usize> =
            dependencies.iter().filter_map(|d| self.jobs_of.get(d)).flatten().copied().collect();
        waits.sort_unstable();
        waits.dedup();
        waits
    }

    fn add(&mut self, node: usize, launch: &KernelLaunch, priority: i32, dependencies: &[usize]) {
        let after = self.waits(dependencies);
        self.jobs_of.insert(node, vec![self.jobs.len()]);
        self.jobs.push(Job { duration: launch.duration_ns(), width: launch.width(), after });
        self.priority = self.priority.min(priority);
        let sets = launch.conditional_sets().into_iter();
        self.sets.extend(sets.map(|(handle, value)| ((handle as usize).wrapping_sub(1), value)));
    }

    /// A node that does nothing hands on what it waits for.
    fn pass(&mut self, node: usize, dependencies: &[usize]) {
        let waits = self.waits(dependencies);
        self.jobs_of.insert(node, waits);
    }

    fn close(&mut self, steps: &mut Vec<Step>) {
        let done = std::mem::take(self);
        if !done.jobs.is_empty() {
            let span = makespan::span(&done.jobs);
            let kernels = u32::try_from(done.jobs.len()).unwrap_or(u32::MAX);
            steps.push(Step::Kernels(Run {
                duration: span.duration,
                width: span.width,
                kernels,
                priority: done.priority,
                sets: done.sets,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels(duration: u64, sets: &[(usize, i64)]) -> Step {
        Step::Kernels(Run { duration, width: 100, kernels: 1, priority: 0, sets: sets.to_vec() })
    }

    fn total(program: &Program, values: &mut [u64]) -> Option<(usize, u64, u32)> {
        let out = program.follow(values)?;
        let runs = out.iter().filter_map(|o| if let Output::Kernels(run) = o { Some(run) } else { None });
        let (time, count) = runs.fold((0, 0), |(time, count), run| (time + run.duration, count + run.kernels));
        Some((out.len(), time, count))
    }

    #[test]
    fn a_loop_counts_down_and_stays_one_piece() {
        let body = vec![kernels(7, &[(0, -1)])];
        let decide = Step::Decide { condition: 0, kind: Deciding::While, bodies: vec![body] };
        let program = Program { steps: vec![kernels(1, &[(0, 1000)]), decide], ..Program::default() };
        assert_eq!(total(&program, &mut [0]), Some((1, 7001, 1001)));
    }

    #[test]
    fn a_loop_without_end_is_found() {
        let decide = Step::Decide { condition: 0, kind: Deciding::While, bodies: vec![vec![kernels(7, &[])]] };
        let program = Program { steps: vec![decide], ..Program::default() };
        assert_eq!(total(&program, &mut [1]), None);
        assert_eq!(total(&program, &mut [0]), Some((0, 0, 0)));
    }

    #[test]
    fn values_choose_bodies() {
        let choose = |kind, bodies: u64| {
            let bodies = (0..bodies).map(|n| vec![kernels(10 + n, &[])]).collect();
            Program { steps: vec![Step::Decide { condition: 0, kind, bodies }], ..Program::default() }
        };
        let time = |program: &Program, value| total(program, &mut [value]).map(|t| t.1);
        let if_else = choose(Deciding::If, 2);
        assert_eq!((time(&if_else, 5), time(&if_else, 0)), (Some(10), Some(11)));
        assert_eq!(time(&choose(Deciding::If, 1), 0), Some(0));
        let switch = choose(Deciding::Switch, 3);
        assert_eq!((time(&switch, 2), time(&switch, 3)), (Some(12), Some(0)));
    }
}
