//! What there is to see at a moment: the state that the view and the plain lines are drawn from.

use std::collections::VecDeque;
use std::time::Duration;

use super::figures::{Done, Latency, Measured};
use super::plan::Phase;
use super::scenario::{Program, Scenario};
use super::stage::{Run, Snapshot};

/// "Now" is the last second.
const NOW: Duration = Duration::from_secs(1);
/// So much of the runs is kept: more than any strip shows.
const STRIP_NS: u64 = 1_000_000_000;

/// Everything.
pub struct Scene {
    /// The GPU's name.
    pub gpu: String,
    /// In the order of the scenario.
    pub programs: Vec<Performer>,
    /// All phases.
    pub plan: Vec<Phase>,
    /// The one that runs.
    pub phase: usize,
    /// How far it is; zero while its programs start.
    pub into_phase: Duration,
    /// Simulated time of the last look.
    pub clock_ns: u64,
    /// Who was on the GPU lately, oldest first: program and time.
    pub runs: VecDeque<Run>,
    /// Shares over the whole demo.
    pub history: Vec<Sample>,
    looks: VecDeque<Look>,
}

/// A program.
pub struct Performer {
    /// What it does.
    pub program: Program,
    /// Whether it takes part in this phase.
    pub on_stage: bool,
    /// Its slot in the record, once it was seen there.
    pub slot: Option<usize>,
    /// Part of the last second that it was on the GPU.
    pub share: Option<f64>,
    /// Units per second, over the last second.
    pub rate: Option<f64>,
    /// Device memory, bytes.
    pub memory: u64,
    /// Of this phase.
    pub latency: Option<Latency>,
    /// What it was alone, once that is known.
    pub alone: Option<Measured>,
    /// What it was when all ran together before, if they did.
    pub before: Option<Measured>,
    /// Whether what it says counts already.
    measuring: bool,
    latencies_ns: Vec<u64>,
    /// What it said lately, by the clock of its own: elapsed time and units.
    progress: VecDeque<(u64, u64)>,
}

/// The shares of a short while.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Time since the beginning of the plan.
    pub at: Duration,
    /// By program, part of the time on the GPU.
    pub shares: Vec<f64>,
}

struct Look {
    clock_ns: u64,
    busy_ns: Vec<u64>,
}

impl Scene {
    /// Before the curtain.
    pub fn new(gpu: String, scenario: &Scenario, plan: Vec<Phase>) -> Scene {
        let programs = scenario.programs.iter().map(|program| Performer {
            program: program.clone(),
            on_stage: false,
            slot: None,
            share: None,
            rate: None,
            memory: 0,
            latency: None,
            alone: None,
            before: None,
            measuring: false,
            latencies_ns: Vec::new(),
            progress: VecDeque::new(),
        });
        Scene {
            gpu,
            programs: programs.collect(),
            plan,
            phase: 0,
            into_phase: Duration::ZERO,
            clock_ns: 0,
            runs: VecDeque::new(),
            history: Vec::new(),
            looks: VecDeque::new(),
        }
    }

    /// Another phase begins.
    pub fn begin(&mut self, phase: usize) {
        (self.phase, self.into_phase) = (phase, Duration::ZERO);
        self.looks.clear();
        self.runs.clear();
        let who = &self.plan[phase].who;
        for (index, performer) in self.programs.iter_mut().enumerate() {
            performer.on_stage = who.contains(&index);
            (performer.slot, performer.share, performer.rate, performer.memory) = (None, None, None, 0);
            performer.forget();
        }
    }

    /// A program says how far it is, since its start or since it is being measured.
    pub fn heard(&mut self, program: usize, measuring: bool, done: &Done) {
        let performer = &mut self.programs[program];
        if performer.measuring != measuring {
            performer.forget(); // it counts from zero again
            performer.measuring = measuring;
        }
        performer.progress.push_back((done.elapsed_ns, done.units));
        performer.latencies_ns.extend(&done.latencies_ns);
        performer.latency = Latency::of(&performer.latencies_ns);
        let old = |at: u64| u128::from(done.elapsed_ns.saturating_sub(at)) >= NOW.as_nanos();
        while performer.progress.get(1).is_some_and(|(at, _)| old(*at)) {
            performer.progress.pop_front();
        }
        if let Some((elapsed, units)) = performer.progress.front()
            && done.elapsed_ns > *elapsed
        {
            let (time_ns, units) = (done.elapsed_ns - elapsed, done.units.saturating_sub(*units));
            performer.rate = Some(units as f64 * 1e9 / time_ns as f64);
        }
    }

    /// The GPU's record was looked at. `pids` are those of the programs on stage.
    pub fn saw(&mut self, snapshot: &Snapshot, pids: &[(usize, u32)], runs: Vec<Run>, lasting: Option<Run>) {
        self.clock_ns = snapshot.clock_ns;
        let mut busy_ns = vec![0; self.programs.len()];
        for (program, pid) in pids {
            if let Some(usage) = snapshot.users.get(pid) {
                let performer = &mut self.programs[*program];
                (performer.slot, performer.memory) = (Some(usage.slot), usage.memory_bytes);
                busy_ns[*program] = usage.busy_ns;
            }
        }
        self.looks.push_back(Look { clock_ns: snapshot.clock_ns, busy_ns });
        while self
            .looks
            .get(1)
            .is_some_and(|look| u128::from(snapshot.clock_ns.saturating_sub(look.clock_ns)) >= NOW.as_nanos())
        {
            self.looks.pop_front();
        }
        self.runs.pop_back_if(|run| run.end_ns == u64::MAX);
        self.runs.extend(runs);
        // The one that lasts is kept open at the end, and dropped when it is looked at again.
        self.runs.extend(lasting.map(|run| Run { end_ns: u64::MAX, ..run }));
        while self.runs.front().is_some_and(|run| run.end_ns.saturating_add(STRIP_NS) < snapshot.clock_ns) {
            self.runs.pop_front();
        }
        self.update_shares();
    }

    fn update_shares(&mut self) {
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else { return };
        for (index, performer) in self.programs.iter_mut().enumerate().filter(|(_, p)| p.on_stage) {
            performer.share = part(last.busy_ns[index], first.busy_ns[index], last.clock_ns - first.clock_ns);
        }
        let before = self.looks.len().checked_sub(2).and_then(|i| self.looks.get(i));
        let (Some(before), false) = (before, self.into_phase.is_zero()) else { return };
        let time = last.clock_ns - before.clock_ns;
        let shares = last.busy_ns.iter().zip(&before.busy_ns).map(|(now, then)| part(*now, *then, time).unwrap_or(0.0));
        let at = self.begins(self.phase) + self.into_phase;
        self.history.push(Sample { at, shares: shares.collect() });
    }

    /// In a few words, how the GPU is shared.
    pub fn how(&self) -> &'static str {
        match self.plan.iter().any(|phase| phase.with_ration) {
            true => "by plain time slicing, then by shares",
            false => "by plain time slicing",
        }
    }

    /// The program that a slot of the record belongs to.
    pub fn program_at(&self, slot: usize) -> Option<usize> {
        self.programs.iter().position(|performer| performer.slot == Some(slot))
    }

    /// When a phase begins, after the beginning of the plan.
    pub fn begins(&self, phase: usize) -> Duration {
        self.plan[..phase].iter().map(Phase::length).sum()
    }

    /// How long all of it takes.
    pub fn total(&self) -> Duration {
        self.plan.iter().map(Phase::length).sum()
    }

    /// How long the phase still takes, and all of it.
    pub fn left(&self) -> (Duration, Duration) {
        let phase = self.plan[self.phase].length().saturating_sub(self.into_phase);
        (phase, phase + self.plan[self.phase + 1..].iter().map(Phase::length).sum::<Duration>())
    }
}

impl Performer {
    fn forget(&mut self) {
        self.measuring = false;
        self.latencies_ns.clear();
        self.latency = None;
        self.progress.clear();
    }
}

/// The part of a time that a counter of it moved by.
fn part(now: u64, then: u64, time: u64) -> Option<f64> {
    (time != 0).then(|| now.saturating_sub(then) as f64 / time as f64)
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::super::stage::Usage;
    use super::*;

    const MS: u64 = 1_000_000;

    fn scene() -> Scene {
        let scenario = Scenario::built_in();
        let mut scene = Scene::new("GPU".into(), &scenario, plan::sharing(&scenario, Duration::from_secs(6)));
        scene.begin(3);
        scene
    }

    fn at(clock_ns: u64, busy: &[(u32, u64)]) -> Snapshot {
        let users = busy.iter().map(|(pid, busy_ns)| {
            let usage = Usage { slot: *pid as usize * 10, busy_ns: *busy_ns, work_ns: *busy_ns, ..Usage::default() };
            (*pid, usage)
        });
        Snapshot { clock_ns, users: users.collect(), ..Snapshot::default() }
    }

    #[test]
    fn shares_are_those_of_the_last_second() {
        let mut scene = scene();
        for tenth in 0..30 {
            // Nothing in the first two seconds, then half of the time.
            let busy = if tenth < 20 { 0 } else { (tenth - 20) * 50 * MS };
            scene.into_phase = Duration::from_millis(100 * tenth + 1);
            scene.saw(&at(tenth * 100 * MS, &[(1, busy)]), &[(0, 1)], vec![], None);
        }
        assert_eq!(scene.programs[0].slot, Some(10));
        assert_eq!(scene.program_at(10), Some(0));
        let share = scene.programs[0].share.expect("looked often");
        assert!((share - 0.45).abs() < 1e-9, "{share}");
        assert_eq!(scene.history.len(), 29);
        assert!((scene.history[28].shares[0] - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_rate_is_that_of_the_last_second_and_starts_again_when_it_counts() {
        let mut scene = scene();
        for (elapsed, units) in [(100, 5), (1100, 105), (2100, 305)] {
            scene.heard(0, false, &Done { elapsed_ns: elapsed * MS, units, latencies_ns: vec![MS] });
        }
        assert_eq!(scene.programs[0].rate, Some(200.0));
        assert!(scene.programs[0].latency.is_some());
        // Later by the clock than anything before, and all the same from zero.
        scene.heard(0, true, &Done { elapsed_ns: 2200 * MS, units: 1, latencies_ns: vec![] });
        assert!(scene.programs[0].latency.is_none(), "latencies from before it counts are forgotten");
        scene.heard(0, true, &Done { elapsed_ns: 2300 * MS, units: 11, latencies_ns: vec![] });
        assert_eq!(scene.programs[0].rate, Some(100.0));
    }

    #[test]
    fn a_lasting_run_is_kept_once() {
        let mut scene = scene();
        let run = |start_ns, end_ns| Run { slot: 1, start_ns, end_ns };
        scene.saw(&at(5, &[]), &[], vec![run(0, 1)], Some(run(2, 5)));
        scene.saw(&at(9, &[]), &[], vec![run(2, 6)], Some(run(7, 9)));
        assert_eq!(scene.runs, [run(0, 1), run(2, 6), run(7, u64::MAX)]);
        scene.saw(&at(9 + 2 * STRIP_NS, &[]), &[], vec![run(7, 10)], None);
        assert_eq!(scene.runs, []);
    }
}
