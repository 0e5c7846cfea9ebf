//! What was measured, and the arithmetic on it. Every figure that the demo shows comes through here.

use serde::{Deserialize, Serialize};

use super::plot::Curves;
use super::scenario::Scenario;

/// A program's own account of what it got done, by its own clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// From the first moment that counts to the last.
    pub elapsed_ns: u64,
    /// Kernels or requests finished in that time.
    pub units: u64,
    /// How long requests took, in the order in which they came.
    pub latencies_ns: Vec<u64>,
}

impl Done {
    /// Units per second.
    pub fn rate(&self) -> f64 {
        if self.elapsed_ns == 0 { 0.0 } else { self.units as f64 * 1e9 / self.elapsed_ns as f64 }
    }
}

/// The latency that half of all requests, and that all but one in a hundred, stay within; milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// Half of them.
    pub p50: f64,
    /// All but one in a hundred.
    pub p99: f64,
}

impl Latency {
    /// Nothing, of no requests.
    pub fn of(latencies_ns: &[u64]) -> Option<Latency> {
        let mut sorted = latencies_ns.to_vec();
        sorted.sort_unstable();
        let ms = |ns: u64| ns as f64 / 1e6;
        Some(Latency { p50: ms(percentile(&sorted, 50)?), p99: ms(percentile(&sorted, 99)?) })
    }
}

/// The smallest of `sorted` that at least so many percent of them do not exceed (the nearest rank).
pub fn percentile(sorted: &[u64], percent: u32) -> Option<u64> {
    let rank = (sorted.len() as u64 * u64::from(percent)).div_ceil(100).max(1);
    sorted.get(rank as usize - 1).copied()
}

/// A program in one phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Units per second, by its own clock.
    pub rate: f64,
    /// How long its requests took, by its own clock, where it has requests.
    pub latency_ms: Option<Latency>,
    /// Part of the time that it was on the GPU, by the GPU's record.
    pub share: f64,
    /// Part of the time that its kernels got on, by the GPU's record: without the start of each slice, when it
    /// is restored.
    pub useful: f64,
    /// What it held at the end, by the GPU's record.
    pub memory_bytes: u64,
    /// How long it was ready to run and waited for a CPU, for each unit of time, where the system says.
    pub waited: Option<f64>,
}

/// The GPU in one phase, by its own record.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GpuTime {
    /// Length of the phase.
    pub seconds: f64,
    /// Part of it in which somebody's kernels got on.
    pub useful: f64,
    /// Part of it spent at the start of slices, restoring what was interrupted.
    pub restoring: f64,
    /// Part of it spent going from one program to another.
    pub switching: f64,
    /// Part of it in which nobody wanted anything.
    pub idle: f64,
    /// How often it went from one program to another.
    pub switches: u64,
}

impl GpuTime {
    /// Time per switch, milliseconds.
    pub fn switch_ms(&self) -> Option<f64> {
        (self.switches != 0).then(|| self.switching * self.seconds * 1e3 / self.switches as f64)
    }
}

/// A phase, measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The GPU.
    pub gpu: GpuTime,
    /// Those who took part, by their place in the scenario.
    pub programs: Vec<(usize, Measured)>,
}

impl Outcome {
    /// How long the one that waited longest for a CPU did, for each unit of time, if that is known.
    pub fn waited(&self) -> Option<f64> {
        self.programs.iter().filter_map(|(_, measured)| measured.waited).reduce(f64::max)
    }
}

/// All phases of an act, measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// The GPU's name.
    pub gpu: String,
    /// What each program was alone, in the order of the scenario.
    pub alone: Vec<Measured>,
    /// The phases in which all of them ran.
    pub together: Vec<Outcome>,
    /// What there is to plot of those.
    pub curves: Vec<Curves>,
}

/// A program over the whole act.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProgramResult {
    /// What it is called.
    pub name: String,
    /// What it counts.
    pub unit: &'static str,
    /// With the GPU for itself.
    pub alone: Measured,
    /// With all the others.
    pub together: Measured,
    /// Its rate together as a part of its rate alone.
    pub of_solo: f64,
}

/// The whole act.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Results {
    /// The GPU's name.
    pub gpu: String,
    /// The GPU while all shared it.
    pub together: GpuTime,
    /// In the order of the scenario.
    pub programs: Vec<ProgramResult>,
}

impl Results {
    /// Of an act in which all of them ran together once.
    pub fn of(played: Played, scenario: &Scenario) -> Option<Results> {
        let together = played.together.into_iter().next()?;
        let programs = scenario.programs.iter().zip(played.alone).zip(together.programs);
        let programs = programs.map(|((program, alone), (_, together))| ProgramResult {
            name: program.name.clone(),
            unit: program.style.unit(),
            of_solo: if alone.rate > 0.0 { together.rate / alone.rate } else { 0.0 },
            alone,
            together,
        });
        Some(Results { gpu: played.gpu, programs: programs.collect(), together: together.gpu })
    }

    /// The most useful work that any program got out of the GPU alone, as a part of the time.
    pub fn best_alone(&self) -> f64 {
        self.programs.iter().map(|p| p.alone.useful).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let hundred: Vec<u64> = (1..=100).collect();
        for (percent, expected) in [(0, 1), (1, 1), (50, 50), (99, 99), (100, 100)] {
            assert_eq!(percentile(&hundred, percent), Some(expected), "p{percent}");
        }
        assert_eq!(percentile(&[7, 9, 11], 50), Some(9));
        assert_eq!(percentile(&[7, 9, 11], 99), Some(11));
        assert_eq!(percentile(&[7], 1), Some(7));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn latency_needs_no_order() {
        let latency = Latency::of(&[3_000_000, 1_000_000, 2_000_000]).expect("three of them");
        assert_eq!((latency.p50, latency.p99), (2.0, 3.0));
        assert_eq!(Latency::of(&[]), None);
    }

    #[test]
    fn rates_come_from_the_programs_clock() {
        assert_eq!(Done { elapsed_ns: 2_000_000_000, units: 100, latencies_ns: vec![] }.rate(), 50.0);
        assert_eq!(Done::default().rate(), 0.0);
    }

    #[test]
    fn a_switch_costs_what_was_spent_on_switches() {
        let gpu = GpuTime { seconds: 2.0, switching: 0.1, switches: 1000, ..GpuTime::default() };
        assert!((gpu.switch_ms().expect("some") - 0.2).abs() < 1e-12);
        assert_eq!(GpuTime::default().switch_ms(), None);
    }
}
