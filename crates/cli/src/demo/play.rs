//! Plays the phases of the plan, one after the other, and measures them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::crew::{Crew, Job};
use super::figures::{Done, GpuTime, Latency, Measured, Outcome, Played};
use super::library::{inside, link_into, outside};
use super::load::Load;
use super::plan::{AGAIN, Phase};
use super::plot::Curves;
use super::scenario::{Program, Scenario};
use super::scene::Scene;
use super::stage::{Run, Snapshot, Stage};
use super::wire::{News, Order};
use super::{Audience, Trouble};
use crate::library::Library;

/// From one look at the record to the next.
pub const TICK: Duration = Duration::from_millis(100);
/// A container that waits for a CPU for a larger part of the time loses turns by that. Where nothing else runs it is a
/// few hundredths at most.
const BUSY: f64 = 0.05;
/// A worker that takes longer than this to start or to end is stuck.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The act while it runs.
pub struct Play<'a> {
    scenario: &'a Scenario,
    stage: Stage,
    /// Where phases are with ration: the library, and a link to it in the stage's directory, which takes it along.
    library: Option<(&'a Library, PathBuf)>,
    scene: Scene,
    audience: &'a mut dyn Audience,
    /// Set by a signal.
    leaving: &'a AtomicBool,
}

/// What is counted over the measured part of a phase.
struct Tally {
    before: Snapshot,
    last_slot: Option<usize>,
    switches: u64,
}

impl<'a> Play<'a> {
    /// Sets the stage. Phases with ration need its library.
    pub fn new(
        scenario: &'a Scenario,
        plan: Vec<Phase>,
        library: Option<&'a Library>,
        audience: &'a mut dyn Audience,
        leaving: &'a AtomicBool,
    ) -> Result<Play<'a>, Trouble> {
        let stage = Stage::open().map_err(Trouble::World)?;
        let linked = |library: &'a Library| link_into(library, stage.dir()).map(|link| (library, link));
        let library = library.map(linked).transpose().map_err(Trouble::World)?;
        let scene = Scene::new(stage.gpu_name(), scenario, plan);
        Ok(Play { scenario, stage, library, scene, audience, leaving })
    }

    /// All phases.
    pub fn run(mut self) -> Result<Played, Trouble> {
        let (mut together, mut curves) = (Vec::new(), Vec::new());
        for phase in 0..self.scene.plan.len() {
            let (known, title) = (self.scene.history.len(), self.scene.plan[phase].title.clone());
            let outcome = self.tries(phase)?;
            if let [(program, measured)] = &outcome.programs[..] {
                self.scene.programs[*program].alone = Some(measured.clone());
                continue;
            }
            for (program, measured) in &outcome.programs {
                self.scene.programs[*program].before = Some(measured.clone());
            }
            together.push(outcome);
            let (begin, length) = (self.scene.begins(phase), self.scene.plan[phase].length());
            let title = if self.scene.plan[phase].with_ration { title } else { format!("{title}: plain time slicing") };
            curves.push(Curves::of(&title, begin, length, &self.scene.history[known..]));
        }
        let alone = self.scene.programs.into_iter().filter_map(|performer| performer.alone).collect();
        Ok(Played { gpu: self.scene.gpu, alone, together, curves })
    }

    /// A phase, and once more where this machine kept its programs from a CPU: the try in which it did so least is what
    /// counts, whatever its figures are.
    fn tries(&mut self, number: usize) -> Result<Outcome, Trouble> {
        let title = self.scene.plan[number].title.clone();
        let known = self.scene.history.len();
        let mut best = self.phase(number)?;
        for _ in 1..self.scene.plan[number].tries {
            if best.waited().is_none_or(|waited| waited < BUSY) {
                break;
            }
            let seen = self.scene.history.split_off(known);
            self.scene.plan[number].title = format!("{title}{AGAIN}");
            let next = self.phase(number)?;
            if next.waited() < best.waited() {
                best = next;
            } else {
                self.scene.history.truncate(known);
                self.scene.history.extend(seen);
            }
        }
        self.scene.plan[number].title = title;
        Ok(best)
    }

    fn phase(&mut self, number: usize) -> Result<Outcome, Trouble> {
        let phase = self.scene.plan[number].clone();
        self.scene.begin(number);
        let library = self.library.clone().filter(|_| phase.with_ration);
        let linked = library.as_ref().map(|(_, link)| &**link);
        let jobs: Vec<Job> = phase.who.iter().map(|i| job(&self.scenario.programs[*i], linked)).collect();
        let mut crew = Crew::start(&jobs, self.stage.dir())?;
        let names: Vec<String> = phase.who.iter().map(|i| self.scenario.programs[*i].name.clone()).collect();
        self.await_all(&mut crew, &names, "get ready", |news| matches!(news, News::Ready).then_some(()))?;
        let seen = self.stage.look().users;
        if let Some(stranger) = (0..names.len()).find(|i| !seen.contains_key(&crew.pid(*i))) {
            return Err(Trouble::NotSimulated { name: names[stranger].clone() });
        }
        if let Some((library, _)) = library
            && let Some(free) = (0..names.len()).find(|i| !library.is_in(crew.pid(*i)))
        {
            return Err(Trouble::NotLoaded { name: names[free].clone(), words: crew.end(free) });
        }

        crew.order(Order::Start);
        let started = Instant::now();
        self.watch(&mut crew, started, started + phase.warm_up, None)?;
        crew.order(Order::Measure);
        let pids: Vec<u32> = (0..names.len()).map(|i| crew.pid(i)).collect();
        let (load, mut tally) = (Load::now(&pids), Tally { before: self.stage.look(), last_slot: None, switches: 0 });
        self.watch(&mut crew, started, started + phase.length(), Some(&mut tally))?;
        let after = self.stage.look();
        let waited = load.and_then(|then| Some(Load::now(&pids)?.waited_since(&then)));
        tally.count(&self.stage.runs().0);
        crew.order(Order::Finish);
        let done = self.await_all(&mut crew, &names, "finish", |news| match news {
            News::Finished(done) => Some(done),
            _ => None,
        })?;
        crew.dismiss(PATIENCE);
        let who = phase.who.iter().copied().zip(pids).zip(done).map(|((program, pid), done)| (program, pid, done));
        let mut outcome = outcome(&tally, &after, &who.collect::<Vec<_>>());
        for ((_, measured), waited) in outcome.programs.iter_mut().zip(waited.into_iter().flatten()) {
            measured.waited = Some(waited);
        }
        Ok(outcome)
    }

    /// Looks on until then: hears the workers, reads the record, shows it.
    fn watch(
        &mut self,
        crew: &mut Crew<News>,
        started: Instant,
        until: Instant,
        mut tally: Option<&mut Tally>,
    ) -> Result<(), Trouble> {
        let who = self.scene.plan[self.scene.phase].who.clone();
        while Instant::now() < until {
            self.scene.into_phase = started.elapsed();
            self.show(crew, &who, tally.as_deref_mut())?;
            let tick = until.min(Instant::now() + TICK);
            while Instant::now() < tick {
                match crew.next(tick)? {
                    Some((number, News::Warming(done))) => self.scene.heard(who[number], false, &done),
                    Some((number, News::Measuring(done))) => self.scene.heard(who[number], true, &done),
                    Some((_, News::Ready | News::Finished(_))) | None => {}
                }
            }
        }
        Ok(())
    }

    fn show(&mut self, crew: &Crew<News>, who: &[usize], tally: Option<&mut Tally>) -> Result<(), Trouble> {
        let pids: Vec<(usize, u32)> = who.iter().enumerate().map(|(number, i)| (*i, crew.pid(number))).collect();
        let (runs, lasting) = self.stage.runs();
        if let Some(tally) = tally {
            tally.count(&runs);
        }
        self.scene.saw(&self.stage.look(), &pids, runs, lasting);
        let stays = self.audience.watch(&self.scene).map_err(Trouble::Output)?;
        if !stays || self.leaving.load(Ordering::Relaxed) { Err(Trouble::Interrupted) } else { Ok(()) }
    }

    /// Waits until each worker has said what `wanted` looks for.
    fn await_all<T>(
        &mut self,
        crew: &mut Crew<News>,
        names: &[String],
        what: &'static str,
        wanted: impl Fn(News) -> Option<T>,
    ) -> Result<Vec<T>, Trouble> {
        let who = self.scene.plan[self.scene.phase].who.clone();
        let deadline = Instant::now() + PATIENCE;
        let mut heard: Vec<Option<T>> = names.iter().map(|_| None).collect();
        while let Some(missing) = heard.iter().position(Option::is_none) {
            if Instant::now() > deadline {
                return Err(Trouble::Stuck { name: names[missing].clone(), what, patience: PATIENCE });
            }
            match crew.next(Instant::now() + TICK)? {
                Some((number, news)) => heard[number] = wanted(news).or(heard[number].take()),
                None => self.show(crew, &who, None)?,
            }
        }
        Ok(heard.into_iter().flatten().collect())
    }
}

/// A worker that is this program, where ration is: `linked`, and asks it for what the program is to have.
fn job(program: &Program, linked: Option<&Path>) -> Job {
    let request = program.request.map(|percent| ("RATION_COMPUTE_REQUEST", format!("{percent}%")));
    let priority = ("RATION_PRIORITY", program.priority.name().to_owned());
    let settings: Vec<(&str, String)> = request.into_iter().chain([priority]).collect();
    Job {
        name: program.name.clone(),
        arguments: vec!["demo-worker".into(), program.to_string()],
        environment: linked.map_or_else(outside, |linked| inside(&program.name, &settings, linked)),
    }
}

impl Tally {
    /// Counts how often the GPU went from one program to another.
    fn count(&mut self, runs: &[Run]) {
        for run in runs.iter().filter(|run| run.start_ns >= self.before.clock_ns) {
            self.switches += u64::from(self.last_slot.is_some_and(|last| last != run.slot));
            self.last_slot = Some(run.slot);
        }
    }
}

/// What the record and the programs say about a phase. `who`: place in the scenario, process, own account.
fn outcome(tally: &Tally, after: &Snapshot, who: &[(usize, u32, Done)]) -> Outcome {
    let before = &tally.before;
    let time_ns = after.clock_ns.saturating_sub(before.clock_ns).max(1) as f64;
    let part = |ns: u64| ns as f64 / time_ns;
    let mut programs = Vec::new();
    for (program, pid, done) in who {
        let then = before.users.get(pid).copied().unwrap_or_default();
        let now = after.users.get(pid).copied().unwrap_or_default();
        let measured = Measured {
            rate: done.rate(),
            latency_ms: Latency::of(&done.latencies_ns),
            share: part(now.busy_ns.saturating_sub(then.busy_ns)),
            useful: part(now.work_ns.saturating_sub(then.work_ns)),
            memory_bytes: now.memory_bytes,
            waited: None,
        };
        programs.push((*program, measured));
    }
    let useful = programs.iter().map(|(_, m)| m.useful).sum();
    let busy: f64 = programs.iter().map(|(_, m)| m.share).sum();
    let switching = part(after.switching_ns.saturating_sub(before.switching_ns));
    let gpu = GpuTime {
        seconds: time_ns / 1e9,
        useful,
        restoring: busy - useful,
        switching,
        idle: (1.0 - busy - switching).max(0.0),
        switches: tally.switches,
    };
    Outcome { gpu, programs }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::stage::Usage;
    use super::*;

    fn snapshot(clock_ns: u64, switching_ns: u64, busy: [u64; 2]) -> Snapshot {
        let usage = |slot: usize| Usage { slot, busy_ns: busy[slot], work_ns: busy[slot] * 9 / 10, ..Usage::default() };
        let users = HashMap::from([(100, usage(0)), (101, usage(1))]);
        Snapshot { clock_ns, switching_ns, users }
    }

    #[test]
    fn parts_of_the_time_add_up() {
        let tally = Tally { before: snapshot(1000, 50, [100, 200]), last_slot: None, switches: 4 };
        let after = snapshot(2000, 150, [400, 700]);
        let done = Done { elapsed_ns: 500_000_000, units: 10, latencies_ns: vec![2_000_000] };
        let outcome = outcome(&tally, &after, &[(2, 100, done), (0, 101, Done::default())]);
        assert_eq!(outcome.programs[0].0, 2);
        let shares: Vec<f64> = outcome.programs.iter().map(|(_, m)| m.share).collect();
        assert_eq!(shares, [0.3, 0.5]);
        assert_eq!(outcome.programs[0].1.rate, 20.0);
        let gpu = &outcome.gpu;
        assert!((gpu.useful + gpu.restoring + gpu.switching + gpu.idle - 1.0).abs() < 1e-12, "{gpu:?}");
        assert!((gpu.switching - 0.1).abs() < 1e-12 && gpu.switches == 4);
    }

    #[test]
    fn going_from_one_to_another_is_a_switch_and_coming_back_to_oneself_is_not() {
        let mut tally = Tally { before: snapshot(10, 0, [0, 0]), last_slot: None, switches: 0 };
        let run = |slot, start_ns| Run { slot, start_ns, end_ns: start_ns + 1 };
        tally.count(&[run(1, 5), run(0, 10), run(0, 12)]);
        assert_eq!(tally.switches, 0);
        tally.count(&[run(1, 14), run(0, 16), run(0, 18)]);
        assert_eq!(tally.switches, 2);
    }
}
