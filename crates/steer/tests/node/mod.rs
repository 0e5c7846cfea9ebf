//! A node in virtual time: programs on a model of the GPU's scheduler, each with the state that steers it, and a region in which
//! they meet. All of it is what runs on a GPU, but for the driver: what was done and what launches cost is told by the model.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;

use ration_policy::tuning::BATCH;
use ration_policy::{Bucket, Priority, Share, steer};
use ration_region::{Compute, ComputeView, Entitled, Facts, Heard, Lease, Member, Region};
use ration_steer::{Fault, Off, Process, Seen, State, Switch};
use sim_scheduler::programs::{Program, Shape, Together};
use sim_scheduler::{Costs, Gpu, OFF_CALL, ON_CALL, US};

pub use sim_scheduler::MS;

/// How often hosts look at the GPU.
const STEP: u64 = 10 * US;
/// When a call that takes channels off has done so.
const OFF_AFTER: u64 = 200 * US;
/// How late a thread is that is woken.
const AWAKE: u64 = 60 * US;
/// A mark after so much work, or after so many launches; launches that go while off by the limit.
const WORK: u64 = 250 * US;
const LAUNCHES: u64 = 64;

/// A container: its share in per cent, what runs in it, and how it is to be treated.
#[derive(Clone, Copy, Debug)]
pub struct Container {
    pub weight: u32,
    pub limit: u32,
    pub shape: Shape,
    pub priority: Priority,
    /// What its launches are taken to cost, in per cent of what they do.
    pub cost: u64,
}

/// All kinds of programs.
pub const SHAPES: &[(&str, Shape)] = &[
    ("deep", Shape::DEEP),
    ("gemm", Shape::GEMM),
    ("short", Shape::SHORT),
    ("long", Shape::LONG),
    ("sync", Shape::SYNC_EACH),
    ("graph", Shape::GRAPH_DECODE),
    ("decode", Shape::EAGER_DECODE),
    ("mlp", Shape::MLP),
    ("conv", Shape::CONV),
    ("large conv", Shape::LARGE_CONV),
    ("training", Shape::TRAINING),
    ("cupy", Shape::LAUNCH_BOUND),
    ("token", Shape::TOKEN),
    ("loop", Shape::LOOP),
];

impl Container {
    /// What its quota file says.
    fn entitled(&self) -> Entitled {
        let of = |per_cent: u32| Share::from_ppm(10_000 * per_cent);
        let request = (self.weight > 0).then(|| of(self.weight));
        Entitled { limit: of(self.limit), request, priority: self.priority }
    }

    /// How it goes without anybody else, and without us.
    pub fn alone(&self) -> Outcome {
        outcome(&mut Node::new(&[*self], 1), 500 * MS, 3_000 * MS, false)
    }
}

pub const fn container(weight: u32, shape: Shape) -> Container {
    Container { weight, limit: 100, shape, priority: Priority::Normal, cost: 100 }
}

pub const fn latency(weight: u32, shape: Shape) -> Container {
    Container { priority: Priority::Latency, ..container(weight, shape) }
}

pub const fn limited(limit: u32, shape: Shape) -> Container {
    Container { limit, ..container(0, shape) }
}

enum Call {
    On,
    Off,
    Slice(u64),
}

/// What a state drives: calls take time, and effect.
#[derive(Default)]
struct Hand {
    now: Cell<u64>,
    calls: RefCell<Vec<(u64, Call)>>,
    off: Cell<Option<Off>>,
    counts: Cell<bool>,
    awaited: Cell<bool>,
    switches: Cell<u64>,
    together: Cell<Option<steer::Together>>,
}

impl Switch for Hand {
    fn is_usable(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn put(&self, on: bool, _under_way: bool) -> Result<Option<u64>, Fault> {
        let began = self.now.get();
        let (call, takes, at) = if on { (Call::On, ON_CALL, ON_CALL) } else { (Call::Off, OFF_CALL, OFF_AFTER) };
        // What was saved is restored when the call returns: on the H200, limits are held as if it were so.
        let effect = if on { at - Costs::H200.restore } else { at };
        self.calls.borrow_mut().push((began + effect, call));
        self.now.set(began + takes);
        self.switches.set(self.switches.get() + 1);
        Ok(Some(began + at))
    }

    fn set_slice(&self, length: u64) -> Result<(), Fault> {
        self.calls.borrow_mut().push((self.now.get() + ON_CALL, Call::Slice(length)));
        self.now.set(self.now.get() + ON_CALL);
        Ok(())
    }

    fn generation(&self) -> u64 {
        0
    }

    fn is_prompt(&self) -> bool {
        true
    }
}

impl Process for Hand {
    fn now(&self) -> u64 {
        self.now.get()
    }

    fn switch(&self) -> &dyn Switch {
        self
    }

    fn is_by_launches(&self) -> bool {
        false
    }

    fn goes_over(&self, why: &str) {
        panic!("{why}");
    }

    fn is_off(&self, off: Option<Off>) {
        self.off.set(off);
    }

    fn counts(&self, is: bool) {
        self.counts.set(is);
    }

    fn is_awaited(&self, is: bool) {
        self.awaited.set(is);
    }

    fn batches(&self, together: Option<steer::Together>) -> bool {
        self.together.set(together);
        together.is_some()
    }

    fn is_waited_for(&self) -> bool {
        false
    }

    fn is_leaving(&self) -> bool {
        false
    }

    fn has_room(&self, _threads: u32, _is_free: bool, _ends: u64, _now: u64) {}
}

/// A process with its program and its controller.
pub struct Tenant {
    pub is: Container,
    pub program: Program,
    member: Option<Rc<Member>>,
    state: State,
    hand: Hand,
    /// When the controller looks next, or which lease it waits for the end of.
    next: u64,
    lease: Option<Lease>,
    /// Launches whose end was seen, and marks that there were, at the last look.
    seen: u64,
    marked: u64,
    launched: u64,
    was_stuck: bool,
    answers: usize,
    answer: u64,
    held: bool,
    /// It is stopped, or has no processor, until then.
    still_until: u64,
    /// By so much its clock is ahead of the node's.
    pub ahead: u64,
    /// It is not steered, and says that it holds a lease that there was none after.
    pub lies: bool,
    heard: Heard,
    /// Since when it is off, and the longest time for which it was.
    off_since: Option<u64>,
    pub longest_off: u64,
}

/// The node.
pub struct Node {
    pub gpu: Gpu,
    region: Region,
    pub tenants: Vec<Tenant>,
    dice: u64,
    /// Up to so much later than it should a controller wakes, now and then.
    pub late: u64,
    /// Containers have quota files, so that what the region says of their limits does not count.
    pub has_quota_files: bool,
}

/// Marks after how many launches.
fn group(shape: &Shape) -> u64 {
    WORK.div_ceil(shape.kernel.max(1)).clamp(1, LAUNCHES)
}

impl Node {
    pub fn new(containers: &[Container], seed: u64) -> Node {
        let region = Region::private(&ration_region::Gpu { uuid: [1; 16], total: 1 << 37 });
        let mut node =
            Node { gpu: Gpu::default(), region, tenants: Vec::new(), dice: seed, late: 0, has_quota_files: false };
        for (index, is) in containers.iter().enumerate() {
            node.start(*is, &format!("c{index}"));
        }
        node
    }

    /// Another one begins now.
    pub fn start(&mut self, is: Container, name: &str) -> usize {
        let group = self.gpu.add_group();
        let member = self.region.join(name, None).expect("there is room");
        let compute = member.compute();
        compute.begin_with_limit(Share::from_ppm(10_000 * is.limit));
        let request = (is.weight > 0).then(|| Share::from_ppm(10_000 * is.weight));
        compute.begin_with_request(request, is.priority);
        let at = self.gpu.now() + (1 + group as u64) * 137 * US;
        self.tenants.push(Tenant {
            is,
            program: Program::new(is.shape, group, at),
            member: Some(Rc::new(member)),
            state: State::new(),
            hand: Hand::default(),
            next: at + 50 * US,
            lease: None,
            seen: 0,
            marked: 0,
            launched: 0,
            was_stuck: false,
            answers: 0,
            answer: 0,
            held: false,
            still_until: 0,
            ahead: 0,
            lies: false,
            heard: Heard::new(),
            off_since: None,
            longest_off: 0,
        });
        group
    }

    /// Somebody writes into a container's words that it may have so much, and owes so much GPU time.
    pub fn forge(&self, which: usize, limit: Share, owes: u64) {
        let now = self.gpu.now();
        let compute: Compute<'_> = self.tenants[which].member.as_ref().expect("it lives").compute();
        compute.set_limit(limit, now);
        compute.set_request(Some(limit));
        compute.charge(Bucket::new(limit), now, now, owes);
    }

    /// A container says, once, that it has had so much more than it had, and that it passes the GPU on to somebody after so many leases.
    pub fn says_once(&self, which: usize, had: i64, lease: Option<(usize, u64)>) {
        let compute: Compute<'_> = self.tenants[which].member.as_ref().expect("it lives").compute();
        compute.held_longer(had as u64, Share::WHOLE);
        if let Some((to, number)) = lease {
            compute.pass_lease(to, number);
        }
    }

    pub fn random(&mut self) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.dice >> 33
    }

    /// It is killed.
    pub fn kill(&mut self, which: usize) {
        self.tenants[which].member = None;
        self.tenants[which].hand.calls.borrow_mut().clear();
        self.gpu.abandon(which);
    }

    /// It is stopped for so long. What it has queued goes on.
    pub fn stop(&mut self, which: usize, time: u64) {
        let until = self.gpu.now() + time;
        self.tenants[which].still_until = until;
        self.tenants[which].program.stood_still(until);
    }

    /// Lets time pass; steered, or as without us.
    pub fn run(&mut self, time: u64, is_steered: bool) {
        let end = self.gpu.now() + time;
        while self.gpu.now() < end {
            let now = self.gpu.now();
            for which in 0..self.tenants.len() {
                if self.tenants[which].member.is_none() || now < self.tenants[which].still_until {
                    continue;
                }
                if std::mem::take(&mut self.tenants[which].still_until) != 0 {
                    // For how long it was off meanwhile is nobody's fault.
                    self.tenants[which].off_since = None;
                }
                self.effects(which, now);
                let tenant = &mut self.tenants[which];
                let begun = tenant.program.rounds_begun();
                tenant.program.step(&mut self.gpu);
                if tenant.hand.awaited.get() && tenant.program.rounds_begun() > begun {
                    tenant.member.as_ref().expect("it lives").compute().is_at_work(now + tenant.ahead);
                }
                if is_steered {
                    self.control(which, now);
                }
            }
            self.gpu.advance((now + STEP).min(end));
        }
    }

    fn effects(&mut self, which: usize, now: u64) {
        let tenant = &mut self.tenants[which];
        for (_, call) in tenant.hand.calls.borrow_mut().extract_if(.., |(at, _)| *at <= now + tenant.ahead) {
            match call {
                Call::On => self.gpu.on(which),
                Call::Off => self.gpu.off(which),
                Call::Slice(length) => self.gpu.set_slice(which, length),
            }
        }
        match (self.gpu.is_on(which), tenant.off_since) {
            (false, None) => tenant.off_since = Some(now),
            (true, Some(since)) => {
                tenant.longest_off = tenant.longest_off.max(now - since);
                tenant.off_since = None;
            }
            _ => {}
        }
    }

    fn control(&mut self, which: usize, now: u64) {
        let late = if self.late > 0 && self.random().is_multiple_of(50) { self.random() % self.late } else { 0 };
        let tenant = &mut self.tenants[which];
        let member = Rc::clone(tenant.member.as_ref().expect("it lives"));
        if tenant.lies {
            if now >= tenant.next {
                let says = Facts {
                    wants: true,
                    fills: true,
                    is_on: true,
                    pending: true,
                    demand: 1_000_000,
                    ..Facts::default()
                };
                member.compute().says(&tenant.heard, &says, now);
                member.compute().pass_lease(member.compute().index(), 1 << 33);
                tenant.next = now + MS;
            }
            return;
        }
        let entitled = self.has_quota_files.then(|| tenant.is.entitled());
        let compute = member.compute().entitled_to(entitled);
        if tenant.lease.as_ref().is_some_and(|lease| compute.is_over(lease)) {
            (tenant.lease, tenant.next) = (None, tenant.next.min(now + AWAKE + late));
        }
        if now < tenant.next {
            return;
        }
        let own = now + tenant.ahead;
        tenant.hand.now.set(own);
        let seen = tenant.sees(&self.gpu);
        let next = tenant.state.look(&tenant.hand, &compute, &seen, own);
        tenant.next = next.at.max(tenant.hand.now.get()) - tenant.ahead + late;
        tenant.lease = next.lease;
        let together = |it: steer::Together| Together { least: it.apart, most: BATCH, late: it.late, flows: it.flows };
        tenant.program.go_together(tenant.hand.together.get().map(together));
        let holds = matches!(tenant.hand.off.get(), Some(Off::Limit | Off::Due));
        if holds != tenant.held {
            tenant.held = holds;
            tenant.program.hold(holds.then_some(LAUNCHES));
        }
    }

    /// What each container has had, by the GPU, in nanoseconds.
    pub fn busy(&self) -> Vec<u64> {
        (0..self.tenants.len()).map(|which| self.gpu.busy(which)).collect()
    }

    /// What they say of themselves now: usage, whether it wants more, whether it fills the GPU; and its slice, in microseconds.
    pub fn said(&self) -> Vec<(u32, bool, bool, u64)> {
        let now = self.gpu.now();
        let member = self.tenants.iter().find_map(|it| it.member.as_ref()).expect("somebody lives");
        let among = member.compute().neighbourhood(&Heard::new(), now);
        let of = |present: &ration_region::Present| {
            let peer = present.peer;
            (peer.usage / 1000, peer.wants, peer.fills, self.gpu.slice(present.index) / US)
        };
        among.iter().map(of).collect()
    }

    /// What the region says of a container.
    pub fn view(&self, which: usize) -> ComputeView {
        let member = self.tenants[which].member.as_ref().expect("it lives");
        member.container().expect("it is there").compute()
    }
}

impl Tenant {
    /// What its controller sees.
    fn sees(&mut self, gpu: &Gpu) -> Seen {
        let (shape, launched) = (*self.program.shape(), self.program.launched());
        let size = group(&shape);
        let finished = launched - self.program.in_flight(gpu);
        let is_blocked = self.program.is_blocked();
        let last = if is_blocked { launched } else { (launched / size * size).max(self.marked) };
        let done = if finished >= last { last } else { (finished / size * size).max(self.seen) };
        let more = done - self.seen;
        if more > 0 {
            self.state.did(more * shape.kernel * self.is.cost / 100, more as u32);
        }
        if last > done {
            let next = (last - done).min(size) * shape.kernel * self.is.cost / 100;
            self.state.is_pending(self.marked > done, is_blocked, next);
        }
        (self.seen, self.marked) = (done, last);
        for _ in &self.program.rounds()[self.answers..] {
            let (launching, work) = (shape.interval * shape.launches, shape.kernel * shape.launches);
            let took = launching.max(work) + launching.saturating_sub(work);
            self.answer = match self.answer {
                0 => took,
                usual if took < usual => usual - (usual - took) / 2,
                usual => usual + (took - usual).min(usual) / 64,
            };
        }
        self.answers = self.program.rounds().len();
        let launches = launched > std::mem::replace(&mut self.launched, launched);
        Seen { launches, away: is_blocked, answer: self.answer }
    }

    /// The work that was done for it, in nanoseconds.
    pub fn done(&self, gpu: &Gpu) -> u64 {
        (self.program.launched() - self.program.in_flight(gpu)) * self.program.shape().kernel
    }
}

/// What came of a run: work done over the time, per container, and how long requests took, sorted.
pub struct Outcome {
    pub usage: Vec<f64>,
    pub requests: Vec<Vec<u64>>,
}

/// Runs containers for a while, and then for a time of which the outcome tells.
pub fn outcome(node: &mut Node, warm: u64, time: u64, is_steered: bool) -> Outcome {
    node.run(warm, is_steered);
    let before: Vec<(u64, usize)> =
        node.tenants.iter().map(|it| (it.done(&node.gpu), it.program.requests().len())).collect();
    node.run(time, is_steered);
    let since = || node.tenants.iter().zip(&before);
    let usage = since().map(|(it, before)| (it.done(&node.gpu) - before.0) as f64 / time as f64).collect();
    let requests = since().map(|(it, before)| {
        let mut requests = it.program.requests()[before.1..].to_vec();
        requests.sort_unstable();
        requests
    });
    Outcome { usage, requests: requests.collect() }
}

thread_local! {
    static TABLE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Adds a line to the table that a test leaves; each has a thread of its own, and some runners give it a process.
pub fn tell(line: &str) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target directory").join("report");
    let test = std::thread::current().name().unwrap_or("table").to_owned();
    TABLE.with_borrow_mut(|table| {
        let _ = writeln!(table, "{line}");
        std::fs::create_dir_all(&dir).expect("the target directory is writable");
        std::fs::write(dir.join(format!("steering-{test}.txt")), table).expect("the target directory is writable");
    });
    println!("{line}");
}
