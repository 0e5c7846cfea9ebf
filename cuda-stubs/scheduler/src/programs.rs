//! Programs as they were measured on the H200, seen from the GPU: when their hosts launch what, and what they wait for.
//!
//! They run on anything that is a [`Device`]: [`crate::Gpu`], or the simulated GPU with its clock in a test's hand.

use crate::{Gpu, MS, US};

/// Something that runs work in virtual time. Groups are numbered from 0.
pub trait Device {
    /// The time, ns.
    fn now(&self) -> u64;
    /// Queues work of so long for a group.
    fn launch(&mut self, group: usize, time: u64);
    /// Pieces of a group that are not finished.
    fn in_flight(&self, group: usize) -> u64;
    /// Lets time pass.
    fn advance(&mut self, to: u64);
}

impl Device for Gpu {
    fn now(&self) -> u64 {
        Gpu::now(self)
    }

    fn launch(&mut self, group: usize, time: u64) {
        self.push(group, time);
    }

    fn in_flight(&self, group: usize) -> u64 {
        Gpu::in_flight(self, group)
    }

    fn advance(&mut self, to: u64) {
        Gpu::advance(self, to);
    }
}

/// What a program does, round after round. Times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Launches in a round.
    pub launches: u64,
    /// GPU time of each.
    pub kernel: u64,
    /// The host's time between two launches.
    pub interval: u64,
    /// Whether it waits at the end of a round until all is done.
    pub waits: bool,
    /// The host's time between two rounds.
    pub gap: u64,
    /// Requests begin this often at most; 0: as soon as the one before is over.
    pub every: u64,
    /// Rounds in a request.
    pub rounds: u64,
    /// Launches that may be under way before the next one blocks.
    pub depth: u64,
}

impl Shape {
    /// Kernels of 0.5 ms, queued deep: fills the GPU.
    pub const DEEP: Shape = Shape {
        launches: 1,
        kernel: 500 * US,
        interval: 0,
        waits: false,
        gap: 10 * US,
        every: 0,
        rounds: 1,
        depth: 10,
    };
    /// A kernel of 0.5 ms, waited for each time.
    pub const SYNC_EACH: Shape = Shape { waits: true, gap: 20 * US, ..Shape::DEEP };
    /// A graph of 1.15 ms for each token, waited for.
    pub const GRAPH_DECODE: Shape = Shape { kernel: 1150 * US, waits: true, gap: 60 * US, ..Shape::DEEP };
    /// A request of 20 kernels, 2.63 ms together, each 20 ms.
    pub const REQUESTS: Shape = Shape {
        launches: 20,
        kernel: 131_500,
        interval: 3 * US,
        waits: true,
        gap: 20 * US,
        every: 20 * MS,
        rounds: 1,
        depth: 1000,
    };
    /// A token decoded kernel by kernel from Python: the GPU is busy for a quarter of the time.
    pub const EAGER_DECODE: Shape = Shape {
        launches: 200,
        kernel: 6670,
        interval: 23 * US,
        waits: true,
        gap: 250 * US,
        every: 0,
        rounds: 1,
        depth: 1000,
    };
    /// Sixteen tokens of it, four times a second.
    pub const SERVE: Shape = Shape { rounds: 16, every: 250 * MS, ..Shape::EAGER_DECODE };
    /// The same with a graph for each token.
    pub const SERVE_GRAPHS: Shape = Shape { rounds: 16, every: 250 * MS, ..Shape::GRAPH_DECODE };
    /// Large kernels and long ones, queued deep, and many short ones.
    pub const GEMM: Shape = Shape { kernel: 900 * US, ..Shape::DEEP };
    /// As above.
    pub const LONG: Shape = Shape { kernel: 5 * MS, depth: 4, ..Shape::DEEP };
    /// As above.
    pub const SHORT: Shape = Shape { kernel: 50 * US, depth: 1000, ..Shape::DEEP };
    /// A step of training that fills the GPU, waited for once.
    pub const TRAINING: Shape =
        Shape { launches: 300, kernel: 70 * US, interval: 12 * US, gap: MS, ..Shape::EAGER_DECODE };
    /// A network of convolutions: the GPU is busy for 30% of the time.
    pub const CONV: Shape = Shape { launches: 100, kernel: 15_200, interval: 40 * US, gap: MS, ..Shape::EAGER_DECODE };
    /// The same with larger images: for 60%.
    pub const LARGE_CONV: Shape = Shape { launches: 120, kernel: 22 * US, interval: 34 * US, ..Shape::EAGER_DECODE };
    /// A small network, waited for after each step: for 9%.
    pub const MLP: Shape =
        Shape { launches: 30, kernel: 3 * US, interval: 20 * US, gap: 400 * US, ..Shape::EAGER_DECODE };
    /// A smaller decoder: the GPU is busy for a sixth of the time.
    pub const TOKEN: Shape = Shape { launches: 150, kernel: 4_400, interval: 22 * US, ..Shape::EAGER_DECODE };
    /// Kernels of a loop, a few hundred of them ahead of the GPU.
    pub const LOOP: Shape = Shape { kernel: 3_700, gap: 15_500, depth: 800, ..Shape::LAUNCH_BOUND };
    /// Small kernels sent slower than the GPU does them, never waited for.
    pub const LAUNCH_BOUND: Shape =
        Shape { launches: 1, kernel: 9 * US, interval: 0, waits: false, gap: 32 * US, every: 0, rounds: 1, depth: 320 };
}

/// A program: a shape, its group, and how it went so far.
#[derive(Debug, Clone)]
pub struct Program {
    shape: Shape,
    group: usize,
    /// When the host does something next.
    next: u64,
    /// Launches of this round still to come.
    left: u64,
    began: u64,
    /// The rounds and the requests that were begun; when the last request was; how long those took that are over.
    rounds_begun: u64,
    requests_begun: u64,
    asked: u64,
    rounds: Vec<u64>,
    requests: Vec<u64>,
    launched: u64,
    is_blocked: bool,
    /// The most that it may have launched by now.
    most: u64,
    /// Its launches are kept back and go together.
    together: Option<Together>,
    /// Those that are kept back, since when; when the first of the last round went, and which round that was.
    kept: u64,
    kept_since: u64,
    went: u64,
    went_in: u64,
}

/// Launches that are kept back go so that they are done about when the program waits for them. Times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Together {
    /// They go no more often than this.
    pub least: u64,
    /// And after so long at the latest.
    pub most: u64,
    /// They run so long after they went.
    pub late: u64,
    /// Once some went, the others follow as they come, until the program waits.
    pub flows: bool,
}

/// Launches that are kept back at most: half of what a queue holds.
const MOST_KEPT: u64 = 512;

impl Program {
    /// A program whose first round begins at `start`.
    pub fn new(shape: Shape, group: usize, start: u64) -> Program {
        Program {
            shape,
            group,
            next: start,
            left: 0,
            began: 0,
            rounds_begun: 0,
            requests_begun: 0,
            asked: 0,
            rounds: Vec::new(),
            requests: Vec::new(),
            launched: 0,
            is_blocked: false,
            most: u64::MAX,
            together: None,
            kept: 0,
            kept_since: 0,
            went: 0,
            went_in: 0,
        }
    }

    /// Its launches go together from now on; `None`: each as it comes.
    pub fn go_together(&mut self, together: Option<Together>) {
        self.together = together;
    }

    /// What it has launched that is not done.
    pub fn in_flight(&self, device: &impl Device) -> u64 {
        device.in_flight(self.group) + self.kept
    }

    /// What was kept back goes.
    fn open(&mut self, device: &mut impl Device) {
        (0..std::mem::take(&mut self.kept)).for_each(|_| device.launch(self.group, self.shape.kernel));
    }

    /// What it does.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// It may launch so many more, and then waits in its call; `None`: as many as it likes.
    pub fn hold(&mut self, more: Option<u64>) {
        self.most = more.map_or(u64::MAX, |more| self.launched + more);
    }

    /// Its host did nothing until then.
    pub fn stood_still(&mut self, until: u64) {
        self.next = self.next.max(until);
    }

    /// Its group.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Launches so far.
    pub fn launched(&self) -> u64 {
        self.launched
    }

    /// Rounds so far.
    pub fn rounds_begun(&self) -> u64 {
        self.rounds_begun
    }

    /// Whether its host waits for the GPU: for the end of a round, or for room.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// How long each round took from its first launch to the end of its wait, for programs that wait.
    pub fn rounds(&self) -> &[u64] {
        &self.rounds
    }

    /// The same of requests: all of their rounds.
    pub fn requests(&self) -> &[u64] {
        &self.requests
    }

    /// What the host does at the device's present time. To be called often: what happens in between is seen now.
    pub fn step(&mut self, device: &mut impl Device) {
        self.go(device);
        if self.kept == 0 {
            self.kept_since = u64::MAX;
            return;
        }
        let (now, shape) = (device.now(), &self.shape);
        self.kept_since = self.kept_since.min(now);
        let waits_at = if shape.waits { self.began.saturating_add(shape.interval * shape.launches) } else { u64::MAX };
        let is_first = self.went_in != self.rounds_begun;
        let is_due = |it: &Together| {
            let is_awaited =
                self.is_blocked || (is_first || it.flows) && now + self.kept * shape.kernel + it.late >= waits_at;
            let may_go = !is_first || now >= self.went + it.least;
            now >= self.kept_since + it.most || is_awaited && may_go || self.kept >= MOST_KEPT
        };
        if self.together.as_ref().is_none_or(is_due) {
            if is_first {
                (self.went, self.went_in) = (now, self.rounds_begun);
            }
            self.open(device);
        }
    }

    fn go(&mut self, device: &mut impl Device) {
        let now = device.now();
        let mut in_flight = self.in_flight(device);
        self.is_blocked = false;
        while self.next <= now {
            if self.left == 0 {
                if self.rounds_begun > 0 && self.began != u64::MAX {
                    // At the end of a round.
                    if self.shape.waits && in_flight > 0 {
                        self.is_blocked = true;
                        return;
                    }
                    if self.shape.waits {
                        self.rounds.push(now - self.began);
                    }
                    self.began = u64::MAX;
                    let is_over = self.rounds_begun.is_multiple_of(self.shape.rounds);
                    if self.shape.waits && is_over {
                        self.requests.push(now - self.asked);
                    }
                    let due = self.next.max(if self.shape.waits { now } else { 0 }) + self.shape.gap;
                    self.next = if is_over { due.max(self.begins_at()) } else { due };
                    continue;
                }
                self.left = self.shape.launches;
                self.began = now;
                if self.rounds_begun.is_multiple_of(self.shape.rounds) {
                    self.requests_begun += 1;
                    self.asked = now;
                }
                self.rounds_begun += 1;
            }
            if in_flight >= self.shape.depth || self.launched >= self.most {
                self.is_blocked = true;
                self.next = now;
                return;
            }
            if self.together.is_none() {
                device.launch(self.group, self.shape.kernel);
            } else {
                self.kept += 1;
            }
            in_flight += 1;
            self.launched += 1;
            self.left -= 1;
            if self.left > 0 {
                self.next += self.shape.interval;
            }
        }
    }

    fn begins_at(&self) -> u64 {
        // Not in step with anything: the time between two rounds wanders by a fifth, always in the same way.
        let mut mixed = self.requests_begun.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let wander = (mixed >> 40) % 1000 * self.shape.every / 5000;
        if self.shape.every == 0 { 0 } else { self.requests_begun * self.shape.every + wander }
    }
}

/// What came of running some programs side by side.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Work done over the time, per program.
    pub usage: Vec<f64>,
    /// Rounds that began in the time measured, sorted, per program.
    pub rounds: Vec<Vec<u64>>,
}

/// How often hosts look at the GPU.
const STEP: u64 = 10 * US;

/// Runs programs, one per group of the device from 0 on, for `warm` and then `time`, of which the outcome tells. `policy` is
/// asked after each step.
pub fn run<D: Device>(
    device: &mut D,
    shapes: &[Shape],
    warm: u64,
    time: u64,
    mut policy: impl FnMut(&mut D, &[Program]),
) -> Outcome {
    let start = device.now();
    let begin = |(group, shape): (usize, &Shape)| Program::new(*shape, group, start + group as u64 * 137 * US);
    let mut programs: Vec<Program> = shapes.iter().enumerate().map(begin).collect();
    let done = |device: &D, program: &Program| program.launched - program.in_flight(device);
    let mut before = Vec::new();
    let mut rounds_before = Vec::new();
    for step in 0..(warm + time) / STEP {
        if step == warm / STEP {
            before = programs.iter().map(|program| done(device, program)).collect();
            rounds_before = programs.iter().map(|program| program.rounds.len()).collect();
        }
        for program in &mut programs {
            program.step(device);
        }
        policy(device, &programs);
        device.advance(start + (step + 1) * STEP);
    }
    let usage = programs
        .iter()
        .zip(before)
        .map(|(program, before)| (done(device, program) - before) as f64 * program.shape.kernel as f64 / time as f64);
    let rounds = programs.iter().zip(rounds_before).map(|(program, skip)| {
        let mut rounds = program.rounds[skip..].to_vec();
        rounds.sort_unstable();
        rounds
    });
    Outcome { usage: usage.collect(), rounds: rounds.collect() }
}

/// A percentile of sorted figures, `part` from 0 to 1; 0 if there are none.
pub fn percentile(sorted: &[u64], part: f64) -> u64 {
    let at = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(at).copied().unwrap_or(0)
}
