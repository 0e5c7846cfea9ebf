//! How the hardware shares, next to what was measured on an H200: in virtual time, on the scheduler's own GPU and on the
//! world's timeline, which must agree with each other too.

use std::fmt::Write as _;

use sim_scheduler::programs::{self, Device, Outcome, Shape};
use sim_scheduler::{Gpu, MS, US};
use sim_world::channel::{Kind, NewOp, WHOLE};
use sim_world::{Role, World, WorldSettings, timeline};

/// Far ahead of the real clock of a world, which therefore never interferes.
const START: u64 = 1_000_000 * MS;

/// A world as a [`Device`]: each group is a context.
struct Contexts {
    world: World,
    dir: std::path::PathBuf,
    chans: Vec<usize>,
    now: u64,
}

impl Contexts {
    fn new(count: usize) -> Contexts {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("ration-agreement-{}-{number}", std::process::id()));
        let world = World::join(&dir, &WorldSettings::h200(), Role::Client).expect("a world in a temporary directory");
        timeline::advance(&world.lock(), START);
        let chans = (0..count).map(|_| world.claim_channel(0).expect("a free channel")).collect();
        Contexts { world, dir, chans, now: START }
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Device for Contexts {
    fn now(&self) -> u64 {
        self.now - START
    }

    fn launch(&mut self, group: usize, time: u64) {
        let op = NewOp { kind: Kind::Kernel, duration: time, width: WHOLE, priority: 0, kernels: 1, after: [None; 2] };
        self.world.push_at(self.chans[group], 0, &op, self.now).expect("room");
    }

    fn in_flight(&self, group: usize) -> u64 {
        let q = &self.world.chan(self.chans[group]).queues[0];
        q.pushed.get() - q.done.get()
    }

    fn advance(&mut self, to: u64) {
        self.now = START + to;
        timeline::advance(&self.world.lock(), self.now);
    }
}

const WARM: u64 = 200 * MS;
const TIME: u64 = 4000 * MS;

fn on_scheduler(shapes: &[Shape], slices: &[u64]) -> Outcome {
    let mut gpu = Gpu::default();
    for _ in shapes {
        gpu.add_group();
    }
    slices.iter().enumerate().for_each(|(group, us)| gpu.set_slice(group, us * US));
    programs::run(&mut gpu, shapes, WARM, TIME, |_, _| ())
}

fn on_world(shapes: &[Shape], slices: &[u64]) -> Outcome {
    let mut contexts = Contexts::new(shapes.len());
    for (chan, us) in contexts.chans.iter().zip(slices) {
        contexts.world.set_slice(*chan, us * US);
    }
    programs::run(&mut contexts, shapes, WARM, TIME, |_, _| ())
}

/// What was measured: speed in % of alone, lowest and highest where it was measured more than once.
struct Case {
    what: &'static str,
    shapes: &'static [Shape],
    slices: &'static [u64],
    speeds: &'static [(f64, f64)],
    /// p50 and p99 of the first program's rounds over its p50 alone.
    latency: Option<(f64, f64)>,
}

const DEEP: Shape = Shape::DEEP;
const DEEP_2: &[Shape] = &[DEEP, DEEP];

const fn exactly(speed: f64) -> (f64, f64) {
    (speed, speed)
}

const fn slices(what: &'static str, slices: &'static [u64], speeds: &'static [(f64, f64)]) -> Case {
    Case { what, shapes: DEEP_2, slices, speeds, latency: None }
}

/// Programs of tests/gpu/programs/held_streams.c: what a kernel takes there with the pause behind it is by these rows.
const LAUNCHES_ON: &[Shape] = &[Shape { kernel: 2_800, gap: 15_500, depth: 1000, ..Shape::LAUNCH_BOUND }, DEEP];
const WAITS_FOR_MANY: &[Shape] =
    &[Shape { launches: 150, kernel: 3_100, interval: 25 * US, gap: 25 * US, ..Shape::EAGER_DECODE }, DEEP];

const fn short(
    what: &'static str,
    shapes: &'static [Shape],
    slices: &'static [u64],
    speeds: &'static [(f64, f64)],
) -> Case {
    Case { what, shapes, slices, speeds, latency: None }
}

const CASES: &[Case] = &[
    slices("slices 2048/2048 us", &[], &[exactly(45.6), exactly(45.6)]),
    slices("slices 1000/3000 us", &[1000, 3000], &[exactly(22.4), exactly(68.5)]),
    slices("slices 6000/18000 us", &[6000, 18_000], &[exactly(25.3), exactly(74.0)]),
    slices("slices 200/20000 us", &[200, 20_000], &[exactly(0.8), exactly(97.2)]),
    slices("slices 1/1000000 us", &[1, 1_000_000], &[exactly(0.3), exactly(100.0)]),
    Case {
        what: "waits for each kernel / deep",
        shapes: &[Shape::SYNC_EACH, DEEP],
        slices: &[],
        speeds: &[(17.0, 22.0), exactly(71.0)],
        latency: None,
    },
    Case {
        what: "graph per token / deep",
        shapes: &[Shape::GRAPH_DECODE, DEEP],
        slices: &[],
        speeds: &[exactly(34.0), exactly(58.0)],
        latency: None,
    },
    Case {
        what: "eager decode / deep",
        shapes: &[Shape::EAGER_DECODE, DEEP],
        slices: &[],
        // By host and process: a real decoder.
        speeds: &[(47.7, 114.0), (65.0, 78.0)],
        latency: None,
    },
    short("a launch each 15.5 us / deep, 500 us", LAUNCHES_ON, &[8192, 500], &[exactly(99.5), exactly(47.1)]),
    short("the same, 1000 us", LAUNCHES_ON, &[8192, 1000], &[exactly(99.8), exactly(60.5)]),
    short("the same, 2048 us", LAUNCHES_ON, &[8192, 2048], &[exactly(99.4), exactly(69.1)]),
    short("the same, 4096 us", LAUNCHES_ON, &[8192, 4096], &[exactly(99.7), exactly(74.5)]),
    short("150 launches, waited for / deep, 1000 us", WAITS_FOR_MANY, &[8192, 1000], &[exactly(83.9), exactly(66.9)]),
    short("the same, 2048 us", WAITS_FOR_MANY, &[8192, 2048], &[exactly(70.8), exactly(77.8)]),
    short("the same, 4096 us", WAITS_FOR_MANY, &[8192, 4096], &[exactly(75.0), exactly(83.7)]),
    Case {
        what: "requests / deep",
        shapes: &[Shape::REQUESTS, DEEP],
        slices: &[],
        speeds: &[exactly(100.0), exactly(84.0)],
        latency: Some((2.4, 2.8)),
    },
    Case {
        what: "requests / three deep (sum 79)",
        shapes: &[Shape::REQUESTS, DEEP, DEEP, DEEP],
        slices: &[],
        speeds: &[exactly(100.0), exactly(26.3), exactly(26.3), exactly(26.3)],
        latency: Some((4.9, 6.3)),
    },
];

fn percents(values: &[f64]) -> String {
    values.iter().map(|value| format!("{value:.1}")).collect::<Vec<_>>().join("/")
}

#[test]
fn sharing_agrees_with_the_h200_within_three_points() {
    let run = |shapes: &[Shape], slices: &[u64]| [on_scheduler(shapes, slices), on_world(shapes, slices)];
    let mut table = String::new();
    let mut line = |what: &str, real: &str, here: &[String; 2]| {
        let _ = writeln!(table, "{what:<32} {real:>20} {:>22} {:>22}", here[0], here[1]);
    };
    line("speed in % of alone", "H200", &["scheduler".into(), "world".into()]);
    let mut wrong = Vec::new();
    for case in CASES {
        let alone: Vec<[Outcome; 2]> = case.shapes.iter().map(|shape| run(&[*shape], &[])).collect();
        let together = run(case.shapes, case.slices);
        let speeds = [0, 1].map(|which| -> Vec<f64> {
            let speed = |(at, usage): (usize, &f64)| 100.0 * usage / alone[at][which].usage[0];
            together[which].usage.iter().enumerate().map(speed).collect()
        });
        let real: Vec<String> = case
            .speeds
            .iter()
            .map(|(low, high)| if low == high { format!("{low}") } else { format!("{low}-{high}") })
            .collect();
        line(case.what, &real.join("/"), &speeds.each_ref().map(|all| percents(all)));
        for (at, (low, high)) in case.speeds.iter().enumerate() {
            for speed in speeds.iter().map(|all| all[at]) {
                if speed < low - 3.0 || speed > high + 3.0 {
                    wrong.push(format!("{}: program {at} at {speed:.1}%, measured {low} to {high}", case.what));
                }
            }
        }
        let apart = speeds[0].iter().zip(&speeds[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        if apart > 0.5 {
            wrong.push(format!("{}: the scheduler and the world are {apart:.2} points apart", case.what));
        }
        let Some((p50, p99)) = case.latency else { continue };
        let over = [0, 1].map(|which| {
            let usual = programs::percentile(&alone[0][which].rounds[0], 0.5) as f64;
            [0.5, 0.99].map(|part| programs::percentile(&together[which].rounds[0], part) as f64 / usual)
        });
        let text = over.map(|[p50, p99]| format!("{p50:.2}x/{p99:.2}x"));
        line("  p50/p99 over alone", &format!("{p50}x/{p99}x"), &text);
        for [here50, here99] in over {
            if (here50 / p50 - 1.0).abs() > 0.08 || (here99 / p99 - 1.0).abs() > 0.08 {
                wrong.push(format!("{}: {here50:.2}x/{here99:.2}x, measured {p50}x/{p99}x", case.what));
            }
        }
    }
    println!("{table}");
    let report = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("report");
    std::fs::create_dir_all(&report).expect("the target directory is writable");
    std::fs::write(report.join("agreement.txt"), table).expect("the target directory is writable");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
