//! The act about compute: containers that ask for unequal shares of the GPU's time, without ration and then with it.
//!
//! It is played like the sharing of any programs (see [`super::play`]); here is what came out of it, whether that is what
//! was promised ([`verdict`]), and how it is said ([`report`]).

mod report;
mod verdict;

use serde::Serialize;

use super::figures::{GpuTime, Measured, Outcome, Played};
use super::scenario::{Priority, Program, Scenario, Style};

pub use report::report;
use verdict::{Held, Verdict};

/// A container that waits for a CPU for longer than this part of the time cannot take its turns when they come. On a
/// machine with nothing else to do it is a few hundredths; with two endless loops beside, on two CPUs, two thirds.
const STARVED: f64 = 0.15;

/// A container over the whole act.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct ContainerResult {
    name: String,
    /// The part of the GPU's time that it asks for, if it does.
    request: Option<f64>,
    /// What it is to have at least: what it asks for, as far as it has a use for it.
    due: Option<f64>,
    priority: &'static str,
    /// With the GPU for itself, without ration.
    alone: Measured,
    /// With all the others, by plain time slicing.
    without: Measured,
    /// With all the others and ration.
    with: Measured,
}

/// What a program is to have at least, of which is known what it has alone. One that takes all it can get may pause in
/// its turns as it does when it has the GPU for itself; another wants no more than it has alone.
fn due(program: &Program, alone: &Measured) -> Option<f64> {
    let request = program.requested()?;
    Some(match program.style {
        Style::Queue { .. } | Style::Wait => request * alone.share,
        Style::Requests { .. } => request.min(alone.share),
    })
}

impl ContainerResult {
    /// Whether it is to be let through before the others.
    fn is_hurried(&self) -> bool {
        self.priority == Priority::Latency.name()
    }
}

/// The act.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComputeResults {
    /// The GPU's name.
    gpu: String,
    /// The GPU while all shared it by plain time slicing.
    without: GpuTime,
    /// The GPU while ration was there.
    with: GpuTime,
    /// How long the one that waited longest for a CPU did meanwhile, for each unit of time, if that is known.
    waited: Option<f64>,
    /// In the order of the scenario.
    containers: Vec<ContainerResult>,
    /// What was promised, and whether it held.
    verdicts: Vec<Verdict>,
}

impl ComputeResults {
    /// Of an act in which all of them ran together twice.
    pub fn of(played: Played, scenario: &Scenario) -> Option<ComputeResults> {
        let [without, with]: [Outcome; 2] = played.together.try_into().ok()?;
        let waited = with.waited();
        let measured = played.alone.into_iter().zip(without.programs).zip(with.programs);
        let containers = scenario.programs.iter().zip(measured);
        let containers = containers.map(|(program, ((alone, (_, without)), (_, with)))| ContainerResult {
            name: program.name.clone(),
            request: program.requested(),
            due: due(program, &alone),
            priority: program.priority.name(),
            alone,
            without,
            with,
        });
        let containers = containers.collect();
        Some(ComputeResults::judged(ComputeResults {
            gpu: played.gpu,
            without: without.gpu,
            with: with.gpu,
            waited,
            containers,
            verdicts: Vec::new(),
        }))
    }

    fn judged(mut self) -> ComputeResults {
        self.verdicts = verdict::verdicts(&self);
        self
    }

    /// The most useful work that any container got out of the GPU alone, as a part of the time.
    fn best_alone(&self) -> f64 {
        self.containers.iter().map(|container| container.alone.useful).fold(0.0, f64::max)
    }

    /// The part of the GPU's time that can be lost because a container whose turn it was, or that should have ended its turn,
    /// was kept from a CPU.
    fn lost(&self) -> f64 {
        self.waited.unwrap_or(0.0)
    }

    /// For which part of the time a container was kept from a CPU, if that is so long that the figures say little.
    fn starved(&self) -> Option<f64> {
        self.waited.filter(|waited| *waited > STARVED)
    }

    /// What was far from what was promised, on a machine that can tell.
    pub fn broken(&self) -> Vec<String> {
        let broken = self.verdicts.iter().filter(|verdict| verdict.held == Held::Broken && self.starved().is_none());
        broken.map(|verdict| verdict.said.clone()).collect()
    }
}

/// An act as it should go, for tests of what is made of it.
#[cfg(test)]
fn staged() -> ComputeResults {
    use super::figures::Latency;

    let measured = |share: f64, rate: f64, latency: Option<(f64, f64)>| Measured {
        rate,
        latency_ms: latency.map(|(p50, p99)| Latency { p50, p99 }),
        share,
        useful: share * 0.99,
        memory_bytes: 1 << 30,
        waited: Some(0.001),
    };
    let programs = [
        [measured(1.0, 200.0, None), measured(0.61, 119.0, None), measured(0.53, 104.0, None)],
        [measured(0.93, 1858.0, None), measured(0.15, 284.0, None), measured(0.32, 640.0, None)],
        [
            measured(0.132, 50.0, Some((2.66, 2.71))),
            measured(0.135, 49.9, Some((6.21, 7.42))),
            measured(0.133, 50.0, Some((2.98, 3.51))),
        ],
    ];
    let gpu = |useful, switching| GpuTime { seconds: 6.0, useful, switching, idle: 0.01, ..GpuTime::default() };
    let (mut alone, mut without, mut with) = (Vec::new(), Vec::new(), Vec::new());
    for (index, [one, other, another]) in programs.into_iter().enumerate() {
        alone.push(one);
        without.push((index, other));
        with.push((index, another));
    }
    let together =
        vec![Outcome { gpu: gpu(0.87, 0.1), programs: without }, Outcome { gpu: gpu(0.97, 0.01), programs: with }];
    let played = Played { gpu: "NVIDIA H200".into(), alone, together, curves: Vec::new() };
    ComputeResults::of(played, &Scenario::containers()).expect("two times together")
}
