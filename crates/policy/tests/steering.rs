//! Steering in virtual time: the policy drives the scheduler of a simulated GPU on which measured programs run. What the
//! library adds to it (events, costs, threads) is left out: usage is the GPU's own, and calls take as long as they were measured
//! to take.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::Path;

use ration_policy::Priority;
use ration_policy::Share;
use ration_policy::steer::{self, Peer, Slice, TUNING};
use sim_scheduler::programs::{self, Outcome, Program, Shape, percentile};
use sim_scheduler::{Gpu, MS, OFF_CALL, ON_CALL, US};

/// How often a controller looks.
const LOOK: u64 = MS;
/// In so many looks usage is told.
const LOOKS: usize = (TUNING.window / LOOK) as usize;

/// A container: its share in per cent, what runs in it, and whether it is `latency`.
#[derive(Clone, Copy)]
struct Container {
    weight: u32,
    shape: Shape,
    priority: Priority,
}

const fn container(weight: u32, shape: Shape) -> Container {
    Container { weight, shape, priority: Priority::Normal }
}

const fn latency(weight: u32, shape: Shape) -> Container {
    Container { weight, shape, priority: Priority::Latency }
}

/// What the controller of one container remembers.
struct Controller {
    weight: Share,
    priority: Priority,
    /// Of the last looks: what the GPU had done, whether anything was under way, and whether the host was blocked.
    looks: VecDeque<(u64, bool, bool)>,
    fills: bool,
    /// When it is asked again whether it fills the GPU, and how long it rests next time.
    asked_again: u64,
    rest: u64,
    virtual_time: u64,
    slice: Slice,
    written: u64,
    /// Whether it is to be on.
    is_on: bool,
}

impl Controller {
    fn new(it: &Container) -> Controller {
        Controller {
            weight: Share::from_ppm(10_000 * it.weight),
            priority: it.priority,
            looks: VecDeque::new(),
            fills: false,
            asked_again: 0,
            rest: 1_000 * MS,
            virtual_time: 0,
            slice: Slice::NEW,
            written: TUNING.default_slice,
            is_on: true,
        }
    }

    fn part(&self, of: impl Fn(&(u64, bool, bool)) -> bool) -> f64 {
        self.looks.iter().filter(|look| of(look)).count() as f64 / LOOKS as f64
    }

    fn look(&mut self, busy: u64, program: &Program, gpu: &Gpu, now: u64) {
        self.looks.push_back((busy, gpu.in_flight(program.group()) > 0, program.is_blocked()));
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        let pending = self.part(|look| look.1);
        if pending > 0.9 && now >= self.asked_again && self.looks.len() == LOOKS {
            self.fills = true;
        } else if pending < 0.3 {
            self.fills = false;
        }
    }

    fn peer(&self) -> Peer {
        let (first, last) = (self.looks.front().map_or(0, |it| it.0), self.looks.back().map_or(0, |it| it.0));
        let waits = if self.fills { self.part(|look| look.1) } else { self.part(|look| look.2) };
        Peer {
            weight: self.weight,
            priority: self.priority,
            usage: ((last - first) as f64 / TUNING.window as f64 * 1e6) as u32,
            wants: waits > 0.3,
            fills: self.fills,
            is_busy: true,
            burst: if self.priority == Priority::Latency { 2_630 * US } else { 0 },
        }
    }
}

/// A lease: who has it, until when, and what it had done when it began.
struct Held {
    who: usize,
    since: u64,
    until: u64,
    busy: u64,
}

/// What is done when a call is over.
enum Call {
    Switch(usize, bool),
    Slice(usize, u64),
}

struct Steering {
    all: Vec<Controller>,
    held: Option<Held>,
    calls: Vec<(u64, Call)>,
    looked: u64,
}

impl Steering {
    fn new(containers: &[Container]) -> Steering {
        Steering { all: containers.iter().map(Controller::new).collect(), held: None, calls: Vec::new(), looked: 0 }
    }

    fn step(&mut self, gpu: &mut Gpu, programs: &[Program]) {
        let now = gpu.now();
        for (_, call) in self.calls.extract_if(.., |(at, _)| *at <= now) {
            match call {
                Call::Switch(group, true) => gpu.on(group),
                Call::Switch(group, false) => gpu.off(group),
                Call::Slice(group, length) => gpu.set_slice(group, length),
            }
        }
        if now < self.looked + LOOK {
            return;
        }
        self.looked = now;
        for (controller, program) in self.all.iter_mut().zip(programs) {
            controller.look(gpu.busy(program.group()), program, gpu, now);
        }
        self.lease(gpu, now);
        let peers: Vec<Peer> = self.all.iter().map(Controller::peer).collect();
        for (own, it) in self.all.iter_mut().enumerate() {
            let length = it.slice.next(own, &peers, now);
            let little = if it.fills { 10 } else { 4 };
            if length.abs_diff(it.written) * little > it.written {
                it.written = length;
                self.calls.push((now + ON_CALL, Call::Slice(own, length)));
            }
        }
    }

    /// The lease goes on when it is over; its holder is on, and the others that take leases are off.
    fn lease(&mut self, gpu: &Gpu, now: u64) {
        let wants = |it: &Controller| it.peer().takes_leases() && it.peer().wants;
        if let Some(held) = &self.held {
            let (who, time) = (held.who, now - held.since);
            // Beside light ones, a holder has what they leave.
            let lights: u32 =
                self.all.iter().map(Controller::peer).filter(|it| !it.takes_leases()).map(|it| it.usage).sum();
            let usable = time * u64::from(1_000_000 - lights.min(900_000)) / 1_000_000;
            let used = gpu.busy(who) - held.busy;
            let it = &mut self.all[who];
            if usable >= 2 * TUNING.least_lease && used * 100 < usable * 60 {
                it.fills = false;
                it.asked_again = now + it.rest;
                it.rest = (2 * it.rest).min(16_000 * MS);
            }
            if now >= held.until || !wants(it) {
                it.virtual_time += steer::virtual_time(time, it.weight);
                self.held = None;
            }
        }
        let wanting: Vec<usize> = (0..self.all.len()).filter(|at| wants(&self.all[*at])).collect();
        if wanting.len() > 1 && self.held.is_none() {
            let last = self.all.iter().position(|it| it.is_on).unwrap_or(0);
            let times = wanting.iter().map(|at| (*at, self.all[*at].virtual_time));
            let who = steer::next(times, last).expect("some want it");
            let weights = wanting.iter().map(|at| u64::from(self.all[*at].weight.ppm())).sum();
            let until = now + steer::lease(self.all[who].weight, weights);
            self.held = Some(Held { who, since: now, until, busy: gpu.busy(who) });
        }
        let holder = self.held.as_ref().filter(|_| wanting.len() > 1).map(|held| held.who);
        let mut on_at = now;
        for own in (0..self.all.len()).filter(|own| holder.is_none_or(|who| who == *own) || !wanting.contains(own)) {
            if !std::mem::replace(&mut self.all[own].is_on, true) {
                on_at = now + ON_CALL;
                self.calls.push((on_at, Call::Switch(own, true)));
            }
        }
        // On before off.
        for own in wanting.into_iter().filter(|own| holder.is_some_and(|who| who != *own)) {
            if std::mem::replace(&mut self.all[own].is_on, false) {
                self.calls.push((on_at + OFF_CALL, Call::Switch(own, false)));
            }
        }
    }
}

const WARM: u64 = 1_500 * MS;
const TIME: u64 = 6_000 * MS;

fn run(containers: &[Container], is_steered: bool) -> Outcome {
    let mut gpu = Gpu::default();
    for _ in containers {
        gpu.add_group();
    }
    let shapes: Vec<Shape> = containers.iter().map(|it| it.shape).collect();
    let mut steering = Steering::new(containers);
    programs::run(&mut gpu, &shapes, WARM, TIME, |gpu, programs| {
        if is_steered {
            steering.step(gpu, programs);
        }
    })
}

/// How fast each runs, in per cent of alone.
fn speeds(containers: &[Container], outcome: &Outcome) -> Vec<f64> {
    let alone = |it: &Container| run(std::slice::from_ref(it), false).usage[0];
    containers.iter().zip(&outcome.usage).map(|(it, usage)| 100.0 * usage / alone(it)).collect()
}

thread_local! {
    static TABLE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Adds a line to the table that a test leaves; each has a thread of its own, and some runners give it a process.
fn tell(line: &str) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target directory").join("report");
    let test = std::thread::current().name().unwrap_or("table").to_owned();
    TABLE.with_borrow_mut(|table| {
        let _ = writeln!(table, "{line}");
        std::fs::create_dir_all(&dir).expect("the target directory is writable");
        std::fs::write(dir.join(format!("steering-{test}.txt")), table).expect("the target directory is writable");
    });
    println!("{line}");
}

/// Runs containers that all want more than they have; what each has of the GPU's time, in per cent.
fn shares(what: &str, containers: &[Container]) -> Vec<f64> {
    let outcome = run(containers, true);
    let got: Vec<f64> = outcome.usage.iter().map(|usage| 100.0 * usage).collect();
    tell(&format!("{what:<36} {got:>5.1?}  of alone {:>5.1?}", speeds(containers, &outcome)));
    got
}

fn shares_hold(what: &str, containers: &[Container], tolerance: f64, sum: f64) {
    let got = shares(what, containers);
    let is_near = |(it, got): (&Container, &f64)| (got - f64::from(it.weight)).abs() <= tolerance;
    assert!(containers.iter().zip(&got).all(is_near), "{what}: {got:.1?}");
    assert!(got.iter().sum::<f64>() >= sum, "{what}: {got:.1?}");
}

const DEEP: Shape = Shape::DEEP;

#[test]
fn deep_queues_share_by_weight() {
    shares_hold("25/75", &[container(25, DEEP), container(75, DEEP)], 1.5, 97.0);
    shares_hold("10/90", &[container(10, DEEP), container(90, DEEP)], 1.5, 97.0);
    shares_hold("20/30/50", &[container(20, DEEP), container(30, DEEP), container(50, DEEP)], 1.5, 97.0);
}

#[test]
fn eight_equal_deep_queues_have_an_eighth_each() {
    let got = shares("eight equal", &[container(12, DEEP); 8]);
    assert!(got.iter().all(|got| (got - 12.5).abs() < 1.0), "{got:.1?}");
}

#[test]
fn sync_each_has_its_half_beside_a_deep_queue() {
    let both = [container(50, Shape::SYNC_EACH), container(50, DEEP)];
    let speeds = speeds(&both, &run(&both, true));
    tell(&format!("sync each / deep 50/50               of alone {speeds:.1?}"));
    assert!(speeds.iter().all(|speed| *speed >= 48.0), "{speeds:.1?}");
}

#[test]
fn graph_per_token_has_its_half_beside_a_deep_queue() {
    let both = [container(50, Shape::GRAPH_DECODE), container(50, DEEP)];
    let speeds = speeds(&both, &run(&both, true));
    tell(&format!("graph per token / deep 50/50         of alone {speeds:.1?}"));
    assert!(speeds.iter().all(|speed| *speed >= 47.0), "{speeds:.1?}");
}

/// Requests beside so many that fill the GPU: their median and 99th percentile over the median alone.
fn requests_beside(count: usize) -> [f64; 2] {
    let mut all = vec![latency(30, Shape::REQUESTS)];
    all.resize(1 + count, container(20, DEEP));
    let outcome = run(&all, true);
    let alone = percentile(&run(&all[..1], false).rounds[0], 0.5) as f64;
    let times = [0.5, 0.99].map(|part| percentile(&outcome.rounds[0], part) as f64 / alone);
    let others: f64 = 100.0 * outcome.usage[1..].iter().sum::<f64>();
    tell(&format!(
        "requests beside {count}                    p50 {:.2}, p99 {:.2} of alone; others {others:.1}",
        times[0], times[1]
    ));
    assert!(others > 70.0, "{others:.1}");
    times
}

#[test]
fn requests_are_answered_beside_one_and_beside_three() {
    for count in [1, 3] {
        let [p50, p99] = requests_beside(count);
        assert!(p50 <= 1.25 && p99 <= 1.5, "beside {count}: {p50:.2}, {p99:.2}");
    }
}

#[test]
fn eager_decode_is_no_slower_than_without_us() {
    let both = [container(50, Shape::EAGER_DECODE), container(50, DEEP)];
    let [plain, steered] = [false, true].map(|is_steered| speeds(&both, &run(&both, is_steered)));
    tell(&format!("eager decode / deep                  of alone {steered:.1?}, plain {plain:.1?}"));
    assert!(steered[0] >= plain[0] - 3.0 && steered[1] >= 40.0, "{steered:.1?}, plain {plain:.1?}");
}
