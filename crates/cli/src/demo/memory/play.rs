//! Plays the containers, first without ration and then with it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::crew::{Crew, Job};
use super::super::library::{inside, link_into, outside};
use super::super::play::{PATIENCE, TICK};
use super::super::stage::Stage;
use super::super::wire::Order;
use super::super::{Audience, Trouble};
use super::figures::{MemoryResults, News, Part, RunResult};
use super::{LEAST_GPU, Role, Scene, Times};
use crate::library::Library;

/// Their numbers, as in [`Role::ALL`].
const GREEDY: usize = 0;
const STEADY: usize = 1;

/// No part of a run is longer by more than this.
const MOMENT: Duration = Duration::from_millis(20);

/// The act while it runs.
pub struct Play<'a> {
    stage: Stage,
    /// In the stage's directory, which takes it along.
    library: PathBuf,
    scene: Scene,
    audience: &'a mut dyn Audience,
    /// Set by a signal.
    leaving: &'a AtomicBool,
}

impl<'a> Play<'a> {
    /// Sets the stage.
    pub fn new(
        library: &Library,
        times: Times,
        audience: &'a mut dyn Audience,
        leaving: &'a AtomicBool,
    ) -> Result<Play<'a>, Trouble> {
        let stage = Stage::open().map_err(Trouble::World)?;
        let gpu_bytes = stage.gpu_bytes();
        if gpu_bytes < LEAST_GPU {
            return Err(Trouble::SmallGpu { bytes: gpu_bytes, least: LEAST_GPU });
        }
        let library = link_into(library, stage.dir()).map_err(Trouble::World)?;
        let scene = Scene::new(stage.gpu_name(), gpu_bytes, times);
        Ok(Play { stage, library, scene, audience, leaving })
    }

    /// Both runs.
    pub fn run(mut self) -> Result<MemoryResults, Trouble> {
        let without = self.play(0)?;
        let with = self.play(1)?;
        Ok(MemoryResults { gpu: self.scene.gpu, gpu_bytes: self.scene.gpu_bytes, without, with })
    }

    fn play(&mut self, run: usize) -> Result<RunResult, Trouble> {
        self.scene.begin(run);
        let jobs = Role::ALL.map(|role| self.job(role));
        let mut crew = Crew::start(&jobs, self.stage.dir())?;
        self.await_both(&mut crew, "get ready", |news| matches!(news, News::Ready(_)))?;
        self.check(&mut crew)?;

        let times = self.scene.times;
        let started = Instant::now();
        crew.order_one(STEADY, Order::Start);
        self.watch(&mut crew, started, Part::Before, |_| started.elapsed() >= times.before)?;
        crew.order_one(STEADY, Order::Measure);
        crew.order_one(GREEDY, Order::Start);
        self.watch(&mut crew, started, Part::Taking, |scene| scene.run().containers[GREEDY].is_full())?;
        crew.order_one(STEADY, Order::Measure);
        let full = Instant::now();
        self.watch(&mut crew, started, Part::Full, |_| full.elapsed() >= times.after)?;

        // The last look is one at containers that live: the dead hold nothing.
        self.look(&crew);
        let pids = pids(&crew);
        crew.order(Order::Finish);
        self.await_both(&mut crew, "finish", |news| matches!(news, News::Finished(_)))?;
        crew.dismiss(PATIENCE);
        Ok(self.scene.run().result(pids))
    }

    fn job(&self, role: Role) -> Job {
        let environment = match self.scene.run().with_ration {
            true => inside(role.name(), &[("RATION_MEMORY", role.limit().to_string())], &self.library),
            false => outside(),
        };
        Job { name: role.name().into(), arguments: vec!["demo-container".into(), role.name().into()], environment }
    }

    /// That both are where we believe them to be: on the simulated GPU, and inside of their limits where they have any.
    fn check(&mut self, crew: &mut Crew<News>) -> Result<(), Trouble> {
        let seen = self.stage.look().users;
        for (number, role) in Role::ALL.into_iter().enumerate() {
            let name = role.name().to_owned();
            if !seen.contains_key(&crew.pid(number)) {
                return Err(Trouble::NotSimulated { name });
            }
            let actor = self.scene.actor(number);
            let believes = actor.account.as_ref().map_or(0, |account| account.total_bytes);
            if let Some(limit) = actor.limit.filter(|limit| *limit != believes) {
                return Err(Trouble::NotHeld { name, limit, believes, words: crew.end(number) });
            }
        }
        Ok(())
    }

    /// Looks on until enough was seen.
    fn watch(
        &mut self,
        crew: &mut Crew<News>,
        started: Instant,
        part: Part,
        enough: impl Fn(&Scene) -> bool,
    ) -> Result<(), Trouble> {
        self.scene.part = Some(part);
        let deadline = Instant::now() + PATIENCE;
        let mut due = Instant::now();
        while !enough(&self.scene) {
            let now = Instant::now();
            if now > deadline {
                let name = Role::ALL[GREEDY].name().into();
                return Err(Trouble::Stuck { name, what: "get all the memory that there is", patience: PATIENCE });
            }
            if now >= due {
                due = now + TICK;
                self.scene.into_run = started.elapsed();
                self.look(crew);
                self.show()?;
            }
            if let Some((number, news)) = crew.next(due.min(now + MOMENT))? {
                self.heard(number, news);
            }
        }
        Ok(())
    }

    fn look(&mut self, crew: &Crew<News>) {
        self.scene.saw(&self.stage.look(), pids(crew));
    }

    fn show(&mut self) -> Result<(), Trouble> {
        let stays = self.audience.watch_memory(&self.scene).map_err(Trouble::Output)?;
        if !stays || self.leaving.load(Ordering::Relaxed) { Err(Trouble::Interrupted) } else { Ok(()) }
    }

    fn heard(&mut self, number: usize, news: News) {
        let (News::Ready(account) | News::Running(account) | News::Finished(account)) = news;
        self.scene.actor(number).heard(account);
    }

    /// Waits until both have said what is wanted.
    fn await_both(
        &mut self,
        crew: &mut Crew<News>,
        what: &'static str,
        wanted: impl Fn(&News) -> bool,
    ) -> Result<(), Trouble> {
        let deadline = Instant::now() + PATIENCE;
        let mut said = [false; 2];
        while let Some(missing) = said.iter().position(|said| !said) {
            if Instant::now() > deadline {
                let name = Role::ALL[missing].name().into();
                return Err(Trouble::Stuck { name, what, patience: PATIENCE });
            }
            match crew.next(Instant::now() + TICK)? {
                Some((number, news)) => {
                    said[number] |= wanted(&news);
                    self.heard(number, news);
                }
                None => self.show()?,
            }
        }
        Ok(())
    }
}

fn pids(crew: &Crew<News>) -> [u32; 2] {
    [crew.pid(GREEDY), crew.pid(STEADY)]
}
