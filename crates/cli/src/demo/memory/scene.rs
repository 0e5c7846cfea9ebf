//! What there is to see at a moment of the act about memory.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::scene::Sample;
use super::super::stage::Snapshot;
use super::figures::{Account, ContainerResult, Part, RunResult};
use super::{Role, Times};

/// "Now" is this long.
const NOW_NS: u64 = 500_000_000;

/// Everything.
pub struct Scene {
    /// The GPU's name.
    pub gpu: String,
    /// Its memory.
    pub gpu_bytes: u64,
    /// Without ration, and with it; what was seen of the first stays to be compared.
    pub runs: [Run; 2],
    /// The one that plays.
    pub now: usize,
    /// How far it is: nothing yet, while its containers start.
    pub part: Option<Part>,
    /// Since its beginning.
    pub into_run: Duration,
    /// Parts of the GPU's memory over the whole act, by container.
    pub history: Vec<Sample>,
    /// How long things take.
    pub times: Times,
}

/// The containers on the GPU, once.
pub struct Run {
    /// A few words.
    pub title: &'static str,
    /// Whether ration is there.
    pub with_ration: bool,
    /// In the order of [`Role::ALL`].
    pub containers: [Actor; 2],
}

/// A container.
#[derive(Debug, Clone)]
pub struct Actor {
    /// What it does.
    pub role: Role,
    /// Its limit, if it has one.
    pub limit: Option<u64>,
    /// What it says about itself, once it has.
    pub account: Option<Account>,
    /// What it holds, by the GPU's record.
    pub gpu_bytes: u64,
    /// The most that it held, likewise.
    pub gpu_peak_bytes: u64,
    /// Units that get done per second, now.
    pub rate: Option<f64>,
    progress: VecDeque<(u64, u64)>,
}

impl Scene {
    /// Before the curtain.
    pub fn new(gpu: String, gpu_bytes: u64, times: Times) -> Scene {
        let run = |title, with_ration| Run {
            title,
            with_ration,
            containers: Role::ALL.map(|role| Actor::new(role, with_ration.then(|| role.limit()))),
        };
        Scene {
            gpu,
            gpu_bytes,
            runs: [run("without ration", false), run("with ration", true)],
            now: 0,
            part: None,
            into_run: Duration::ZERO,
            history: Vec::new(),
            times,
        }
    }

    /// Another run begins.
    pub fn begin(&mut self, run: usize) {
        (self.now, self.part, self.into_run) = (run, None, Duration::ZERO);
    }

    /// The run that plays.
    pub fn run(&self) -> &Run {
        &self.runs[self.now]
    }

    /// A container of it.
    pub fn actor(&mut self, number: usize) -> &mut Actor {
        &mut self.runs[self.now].containers[number]
    }

    /// The GPU's record was looked at; `pids` are the containers' processes.
    pub fn saw(&mut self, snapshot: &Snapshot, pids: [u32; 2]) {
        let gpu_bytes = self.gpu_bytes;
        let run = &mut self.runs[self.now];
        for (actor, pid) in run.containers.iter_mut().zip(pids) {
            if let Some(usage) = snapshot.users.get(&pid) {
                (actor.gpu_bytes, actor.gpu_peak_bytes) = (usage.memory_bytes, usage.peak_bytes);
            }
        }
        if self.part.is_some() {
            let length = self.times.run();
            let at = length * self.now as u32 + self.into_run.min(length);
            let shares = run.containers.iter().map(|actor| actor.gpu_bytes as f64 / gpu_bytes.max(1) as f64);
            self.history.push(Sample { at, shares: shares.collect() });
        }
    }

    /// In a few words, what happens.
    pub fn happening(&self) -> &'static str {
        match self.part {
            None => "starting",
            Some(Part::Before) => "steady serves requests; greedy has not asked for anything yet",
            Some(Part::Taking) => "greedy takes all the memory that it can get",
            Some(Part::Full) => "greedy was refused, and goes on with what it has",
        }
    }
}

impl Run {
    /// What came out of it.
    pub fn result(&self, pids: [u32; 2]) -> RunResult {
        let [greedy, steady] = [0, 1].map(|number: usize| self.containers[number].result(pids[number]));
        RunResult { with_ration: self.with_ration, greedy, steady }
    }
}

impl Actor {
    fn new(role: Role, limit: Option<u64>) -> Actor {
        Actor { role, limit, account: None, gpu_bytes: 0, gpu_peak_bytes: 0, rate: None, progress: VecDeque::new() }
    }

    /// It says how far it is.
    pub fn heard(&mut self, account: Account) {
        let (ns, done) = account.progress();
        self.progress.push_back((ns, done));
        while self.progress.get(1).is_some_and(|(then, _)| ns.saturating_sub(*then) >= NOW_NS) {
            self.progress.pop_front();
        }
        if let Some((then, before)) = self.progress.front().filter(|(then, _)| ns > *then) {
            self.rate = Some(done.saturating_sub(*before) as f64 * 1e9 / (ns - then) as f64);
        }
        self.account = Some(account);
    }

    /// Whether it has all that it could get.
    pub fn is_full(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.full)
    }

    fn result(&self, pid: u32) -> ContainerResult {
        ContainerResult {
            name: self.role.name(),
            pid,
            limit_bytes: self.limit,
            believes: self.account.clone().unwrap_or_default(),
            gpu_bytes: self.gpu_bytes,
            gpu_peak_bytes: self.gpu_peak_bytes,
            of_limit: self.limit.map(|limit| self.gpu_peak_bytes as f64 / limit as f64),
        }
    }
}

/// A scene for tests of what is made of it: the second run near its end, with the figures that it should have.
#[cfg(test)]
pub fn staged() -> Scene {
    use super::figures::Work;

    const MIB: u64 = 1 << 20;
    let work = |done| Work { elapsed_ns: 1_000_000_000, tried: 50, done };
    let account = |total_mib: u64, free_mib: u64, held_mib: u64, refused: u64| Account {
        total_bytes: total_mib * MIB,
        free_bytes: free_mib * MIB,
        held_bytes: held_mib * MIB,
        asked: 100,
        asked_bytes: 3 * held_mib * MIB,
        refused,
        refused_with: (refused != 0).then(|| "CUDA_ERROR_OUT_OF_MEMORY".into()),
        full: true,
        ..Account::default()
    };
    let mut scene = Scene::new("NVIDIA H200".into(), 143_771 * MIB, Times::FULL);
    let figures = [
        [(account(143_156, 1, 137_900, 30), 138_418), (account(143_156, 1, 4_096, 40), 4_870)],
        [(account(8_192, 1, 7_672, 25), 8_190), (account(6_144, 1_530, 4_096, 0), 4_870)],
    ];
    for (run, containers) in figures.into_iter().enumerate() {
        scene.begin(run);
        scene.part = Some(Part::Full);
        for (number, (mut account, gpu_mib)) in containers.into_iter().enumerate() {
            let done = |part| if number == 1 && run == 0 && part == Part::Full { 0 } else { 50 };
            for part in [Part::Before, Part::Taking, Part::Full].into_iter().filter(|p| number == 1 || *p == Part::Full)
            {
                *account.work(part) = work(done(part));
            }
            let usage = super::super::stage::Usage {
                memory_bytes: gpu_mib * MIB,
                peak_bytes: gpu_mib * MIB,
                ..Default::default()
            };
            scene.actor(number).heard(Account::default());
            scene.actor(number).heard(account);
            let users = [(number as u32, usage)].into_iter().collect();
            let snapshot = Snapshot { users, ..Snapshot::default() };
            scene.into_run = Duration::from_millis(500);
            scene.saw(&snapshot, [0, 1]);
        }
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::super::figures::Work;
    use super::*;

    #[test]
    fn what_was_seen_of_the_first_run_stays() {
        let scene = staged();
        assert_eq!(scene.runs[0].containers[0].gpu_bytes, 138_418 << 20);
        assert_eq!(scene.runs[1].containers[0].gpu_bytes, 8_190 << 20);
        let result = scene.run().result([7, 8]);
        assert_eq!((result.greedy.pid, result.steady.pid), (7, 8));
        let of_limit = result.greedy.of_limit.expect("there is a limit");
        assert!((of_limit - 8190.0 / 8192.0).abs() < 1e-12);
        assert_eq!(scene.runs[0].result([7, 8]).greedy.of_limit, None);
    }

    #[test]
    fn a_rate_is_that_of_the_last_half_second() {
        let mut actor = Actor::new(Role::Steady, None);
        for (ms, done) in [(100, 5), (600, 30), (1100, 30)] {
            let before = Work { elapsed_ns: ms * 1_000_000, tried: done, done };
            actor.heard(Account { before, ..Account::default() });
        }
        assert_eq!(actor.rate, Some(0.0));
    }

    #[test]
    fn history_goes_on_from_run_to_run() {
        let scene = staged();
        let at: Vec<Duration> = scene.history.iter().map(|sample| sample.at).collect();
        assert!(at.is_sorted() && at[0] < Times::FULL.run() && *at.last().expect("some") > Times::FULL.run());
    }
}
