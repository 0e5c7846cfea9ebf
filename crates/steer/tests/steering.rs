//! Steering in virtual time: the states that run in the library drive the scheduler of a simulated GPU on which measured programs
//! run. What the driver adds to it (events, threads) is left out: calls take as long as they were measured to take.

mod node;

use node::{Container, MS, Node, Outcome, container, latency, limited, outcome, tell};
use sim_scheduler::programs::{Shape, percentile};

const WARM: u64 = 1_500 * MS;
const TIME: u64 = 6_000 * MS;

fn run(containers: &[Container], is_steered: bool) -> Outcome {
    outcome(&mut Node::new(containers, 1), WARM, TIME, is_steered)
}

/// How fast each runs, in per cent of alone.
fn speeds(containers: &[Container], outcome: &Outcome) -> Vec<f64> {
    containers.iter().zip(&outcome.usage).map(|(it, usage)| usage / it.alone().usage[0] * 100.0).collect()
}

/// Runs containers that all want more than they have; what each has of the GPU's time, in per cent.
fn shares(what: &str, containers: &[Container]) -> Vec<f64> {
    let got: Vec<f64> = run(containers, true).usage.iter().map(|usage| 100.0 * usage).collect();
    tell(&format!("{what:<24} {got:>5.1?}, in sum {:.1}", got.iter().sum::<f64>()));
    got
}

fn shares_hold(what: &str, containers: &[Container]) {
    let got = shares(what, containers);
    let is_near = |(it, got): (&Container, &f64)| (got - f64::from(it.weight)).abs() <= 1.0;
    assert!(containers.iter().zip(&got).all(is_near), "{what}: {got:.1?}");
    assert!(got.iter().sum::<f64>() >= 98.0, "{what}: {got:.1?}");
}

const DEEP: Shape = Shape::DEEP;

#[test]
fn deep_queues_share_by_weight() {
    shares_hold("25/75", &[container(25, DEEP), container(75, DEEP)]);
    shares_hold("10/90", &[container(10, DEEP), container(90, DEEP)]);
    shares_hold("20/30/50", &[container(20, DEEP), container(30, DEEP), container(50, DEEP)]);
    shares_hold("25/75, 5 ms and 50 us", &[container(25, Shape::LONG), container(75, Shape::SHORT)]);
}

#[test]
fn eight_equal_deep_queues_have_an_eighth_each() {
    let got = shares("eight equal", &[container(12, DEEP); 8]);
    assert!(got.iter().all(|got| (got - 12.5).abs() < 1.0) && got.iter().sum::<f64>() >= 98.0, "{got:.1?}");
}

#[test]
fn one_comes_and_goes() {
    let mut node = Node::new(&[container(25, DEEP)], 1);
    let alone = outcome(&mut node, WARM, 1_000 * MS, true).usage[0];
    let other = node.start(container(75, DEEP), "other");
    let beside = outcome(&mut node, 300 * MS, 3_000 * MS, true).usage[0];
    node.kill(other);
    let after = outcome(&mut node, 100 * MS, 1_000 * MS, true).usage[0];
    let got = [alone, beside, after].map(|part| 100.0 * part);
    tell(&format!("25, beside 75, and again {got:.1?}"));
    assert!(got[0] > 98.0 && (got[1] - 25.0).abs() <= 1.0 && got[2] > 98.0, "{got:.1?}");
}

#[test]
fn programs_that_wait_have_their_half_beside_a_deep_queue() {
    for (what, shape) in [("sync each", Shape::SYNC_EACH), ("graph per token", Shape::GRAPH_DECODE)] {
        let both = [container(50, shape), container(50, DEEP)];
        let speeds = speeds(&both, &run(&both, true));
        tell(&format!("{what} / deep: {speeds:.1?} of alone"));
        assert!(speeds.iter().all(|speed| *speed >= 48.5), "{what}: {speeds:.1?}");
    }
}

/// A `latency` container beside others: its median and 99th percentile over the same alone; and what each of the others has of
/// its own speed, steered and plain.
struct Served {
    times: [f64; 2],
    others: [Vec<f64>; 2],
}

fn served(what: &str, shape: Shape, beside: &[Shape]) -> Served {
    let mut all = vec![latency(30, shape)];
    all.extend(beside.iter().map(|shape| container(70 / beside.len() as u32, *shape)));
    let of = |outcome: &Outcome| [0.5, 0.99].map(|part| percentile(&outcome.requests[0], part) as f64);
    let alone = of(&all[0].alone());
    let [plain, steered] = [false, true].map(|is_steered| outcome(&mut Node::new(&all, 1), WARM, 2 * TIME, is_steered));
    let over = |outcome: &Outcome| [0, 1].map(|which| of(outcome)[which] / alone[which]);
    let others = [&steered, &plain].map(|outcome| speeds(&all, outcome)[1..].to_vec());
    let (times, before) = (over(&steered), over(&plain));
    tell(&format!(
        "{what:<28} {times:.2?} of alone, plain {before:.2?}; others {:.1?}, plain {:.1?}",
        others[0], others[1]
    ));
    Served { times, others }
}

impl Served {
    fn loss(&self) -> f64 {
        self.others[1].iter().sum::<f64>() - self.others[0].iter().sum::<f64>()
    }
}

#[test]
fn requests_are_answered_as_if_alone() {
    let one = served("requests beside one", Shape::REQUESTS, &[DEEP]);
    assert!(one.times[0] <= 1.12 && one.times[1] <= 1.2 && one.others[0][0] > 84.4, "{:?}", one.times);
    let long = served("requests beside 5 ms", Shape::REQUESTS, &[Shape::LONG]);
    assert!(long.times[0] <= 1.12 && long.times[1] <= 1.2 && long.others[0][0] > 84.4, "{:?}", long.times);
    for count in [3, 7] {
        let it = served(&format!("requests beside {count}"), Shape::REQUESTS, &vec![DEEP; count]);
        assert!(it.times[0] <= 1.15 && it.times[1] <= 1.4 && it.loss() < 5.0, "{:?}, {:.1}", it.times, it.loss());
    }
    let mixed = served("requests beside three kinds", Shape::REQUESTS, &[Shape::GEMM, DEEP, Shape::LARGE_CONV]);
    assert!(mixed.times[0] <= 1.2 && mixed.times[1] <= 2.0, "{:?}", mixed.times);
}

/// Each off and on interrupts whoever is on the GPU. On an H200 that was half of the time alone at the 99th percentile.
#[test]
fn leases_are_not_passed_in_the_middle_of_an_answer() {
    let mut node =
        Node::new(&[latency(25, Shape::REQUESTS), container(25, DEEP), container(25, DEEP), container(25, DEEP)], 1);
    node.run(1_000 * MS, true);
    let on = |node: &Node| [1, 2, 3].map(|which| node.gpu.is_on(which));
    let (mut was, mut switches, mut inside) = (on(&node), 0, 0);
    for _ in 0..20 * 4_000 {
        node.run(MS / 20, true);
        let now = on(&node);
        if now != std::mem::replace(&mut was, now) {
            switches += 1;
            inside += usize::from(node.gpu.in_flight(0) > 0);
        }
    }
    tell(&format!("leases beside requests: of {switches} switches {inside} inside of an answer"));
    // A request comes every 20 ms, and a change takes one of them: some begin meanwhile.
    assert!(switches > 100 && inside * 20 <= switches, "of {switches} switches {inside} inside of an answer");
}

#[test]
fn tokens_are_decoded_as_if_alone() {
    for (what, beside) in [
        ("GEMM", vec![Shape::GEMM]),
        ("training", vec![Shape::TRAINING]),
        ("three", vec![DEEP; 3]),
        ("three kinds", vec![Shape::GEMM, DEEP, Shape::CONV]),
        ("conv", vec![Shape::LARGE_CONV]),
    ] {
        let graphs = served(&format!("graphs beside {what}"), Shape::SERVE_GRAPHS, &beside);
        assert!(graphs.times[0] <= 1.1 && graphs.times[1] <= 1.5, "graphs, {what}: {:?}", graphs.times);
        let eager = served(&format!("eager beside {what}"), Shape::SERVE, &beside);
        assert!(eager.times[0] <= 1.3 && eager.times[1] <= 1.4, "eager, {what}: {:?}", eager.times);
        assert!(graphs.loss() < 6.0 && eager.loss() < 6.0, "{what}: {:.1}, {:.1}", graphs.loss(), eager.loss());
    }
}

/// Who calls itself `latency` and works without end has its share.
#[test]
fn latency_container_that_fills_the_gpu_has_its_share() {
    for shape in [DEEP, Shape::GRAPH_DECODE, Shape::TRAINING] {
        let got = shares("latency 30 / deep 70", &[latency(30, shape), container(70, DEEP)]);
        assert!((25.0..33.0).contains(&got[0]) && got[1] > 65.0, "{shape:?}: {got:.1?}");
    }
}

#[test]
fn eager_decode_is_no_slower_than_without_us() {
    let both = [container(50, Shape::EAGER_DECODE), container(50, DEEP)];
    let [plain, steered] = [false, true].map(|is_steered| speeds(&both, &run(&both, is_steered)));
    tell(&format!("eager decode / deep: {steered:.1?} of alone, plain {plain:.1?}"));
    assert!(steered.iter().zip(&plain).all(|(steered, plain)| *steered >= plain - 1.0), "{steered:.1?}, {plain:.1?}");
}

#[test]
fn launch_bound_loops_are_no_slower_than_without_us() {
    let four = [container(25, Shape::LAUNCH_BOUND); 4];
    let [plain, steered] = [false, true].map(|is_steered| speeds(&four, &run(&four, is_steered)));
    tell(&format!("four launch-bound loops: {steered:.1?} of alone, plain {plain:.1?}"));
    assert!(steered.iter().zip(&plain).all(|(steered, plain)| *steered >= 0.98 * plain), "{steered:.1?}, {plain:.1?}");
}

#[test]
fn limits_hold_alone() {
    for (name, shape) in node::SHAPES {
        let alone = 100.0 * container(0, *shape).alone().usage[0];
        let mut line = format!("{name:<12} uses {alone:>5.1}; at 10, 25, 50, 75, 90:");
        for limit in [10, 25, 50, 75, 90] {
            let got = 100.0 * run(&[limited(limit, *shape)], true).usage[0];
            let due = f64::from(limit).min(alone);
            line += &format!(" {got:>5.1}");
            assert!(got <= f64::from(limit) + 1.0 && got >= due - 1.0, "{name} at {limit}%: {got:.1}, due {due:.1}");
        }
        tell(&line);
    }
}

/// Limits hold among containers that take leases from each other, and what they leave is somebody's.
#[test]
fn limits_hold_beside_leases() {
    let frequent = Shape { kernel: 100_000, gap: 5_000, depth: 100, ..DEEP };
    let kinds = [(15, Shape::SHORT), (20, Shape::SYNC_EACH), (15, frequent), (20, DEEP), (95, DEEP)];
    let got = shares("15, 20, 15, 20 and 95%", &kinds.map(|(limit, shape)| limited(limit, shape)));
    assert!(got.iter().zip(kinds).all(|(got, (limit, _))| *got <= f64::from(limit) + 1.0), "{got:.1?}");
    assert!(got.iter().zip(&kinds[..4]).all(|(got, (limit, _))| *got >= f64::from(*limit) - 1.5), "{got:.1?}");
    assert!(got.iter().sum::<f64>() >= 95.0, "{got:.1?}");
}

/// Two that fill the GPU and together may have less than all of it: now both are on, and now one, with a lease and without.
#[test]
fn limits_hold_beside_each_other() {
    for limits in [[20, 70], [30, 50], [45, 45]] {
        let got = shares(&format!("{limits:?}"), &limits.map(|limit| limited(limit, DEEP)));
        assert!(got.iter().zip(limits).all(|(got, limit)| (got - f64::from(limit)).abs() <= 1.0), "{got:.1?}");
    }
}

/// What containers are charged for is what the GPU did for them; also where they stand still now and then.
#[test]
fn accounts_are_what_the_gpu_did() {
    for stands_still in [false, true] {
        let kinds = [
            (15, Shape::SHORT),
            (20, Shape::SYNC_EACH),
            (15, Shape::GRAPH_DECODE),
            (20, Shape::EAGER_DECODE),
            (95, DEEP),
        ];
        let mut node = Node::new(&kinds.map(|(limit, shape)| limited(limit, shape)), 1);
        node.run(WARM, true);
        let account = |node: &Node| (0..kinds.len()).map(|which| node.view(which).gpu_time).collect::<Vec<u64>>();
        let before = (node.busy(), account(&node));
        for _ in 0..400 {
            let which = node.random() as usize % kinds.len();
            if stands_still {
                node.stop(which, 30 * MS);
            }
            node.run(150 * MS, true);
        }
        let after = (node.busy(), account(&node));
        for which in 0..kinds.len() {
            let [did, said] = [(&after.0, &before.0), (&after.1, &before.1)]
                .map(|(after, before)| (after[which] - before[which]) as f64 / (400 * 150 * MS) as f64 * 100.0);
            let drift = 100.0 * (said - did) / did;
            tell(&format!("limit {:>2}: {did:.2}% of the time, accounted {said:.2}: {drift:+.3}%", kinds[which].0));
            assert!(drift.abs() < if stands_still { 2.0 } else { 0.1 }, "{}: {did:.2}, {said:.2}", kinds[which].0);
        }
    }
}
