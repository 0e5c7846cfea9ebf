//! Limits and shares of the GPU's time for programs of every shape, judged by the simulated GPU's own record of the time in which
//! their kernels got on, over its own clock. `channels.rs` has the plainest ones, `launches.rs` those where channels cannot be
//! driven, and crates/steer/tests what is a matter of arithmetic, in virtual time.

use std::fmt::Write as _;

#[path = "caps/container.rs"]
mod container;
#[path = "channels/steered.rs"]
mod steered;
mod support;

use container::Session;
use steered::{Steered, milliseconds};
use support::tries::until_good;
use support::{Machine, compile, report};

/// What it takes until costs are known and leases go round.
const WARM: u64 = 700;
const WINDOW: u64 = 1500;

/// A machine whose calls take channels off as soon as on the H200: 0.2 ms into them.
fn machine() -> Steered {
    Steered::on(Machine::with(&[("RATION_SIM_OFF_US", "200")]), compile("compute_work"))
}

/// A program in a container with a limit, in per cent.
struct Limited {
    shape: &'static str,
    kernel_us: &'static str,
    limit: f64,
    /// How many such programs are in the container.
    processes: usize,
}

const fn limited(shape: &'static str, kernel_us: &'static str, limit: f64) -> Limited {
    Limited { shape, kernel_us, limit, processes: 1 }
}

const LIMITED: &[Limited] = &[
    limited("queue", "50", 25.0),
    limited("queue", "5000", 10.0),
    limited("steps", "400", 75.0),
    limited("streams", "500", 50.0),
    limited("threads", "500", 50.0),
    limited("graph", "100", 25.0),
    limited("capture", "500", 50.0),
    Limited { processes: 3, ..limited("queue", "500", 50.0) },
];

impl Limited {
    /// How far from its limit a container may be, in points. Where several processes work in turns of 2 ms, the switches between
    /// them, 0.2 ms each, are time that it has and in which nothing gets on.
    fn is_kept(&self, got: f64) -> bool {
        let below = if self.processes > 1 { 4.0 } else { 1.5 };
        (self.limit - below..=self.limit + 1.5).contains(&got)
    }
}

#[test]
fn limit_holds_for_every_shape() {
    let (mut table, mut wrong) = (String::new(), String::new());
    for it in LIMITED {
        let attempt = || {
            let steered = machine();
            let limit = format!("{}%", it.limit);
            let settings = [("RATION_COMPUTE_LIMIT", limit.as_str())];
            let start = |_| steered.start("tests/limited", &settings, &[it.shape, it.kernel_us, "30"]);
            let sessions: Vec<Session> = (0..it.processes).map(start).collect();
            milliseconds(WARM);
            steered.shares(&sessions.iter().collect::<Vec<_>>(), WINDOW).iter().sum::<f64>()
        };
        let Some(got) = until_good(attempt, |got: &f64| it.is_kept(*got)) else { continue };
        let line = format!("{} x{} {} us, limit {}%: {got:.2}%", it.shape, it.processes, it.kernel_us, it.limit);
        let _ = writeln!(table, "{line}");
        if !it.is_kept(got) {
            let _ = writeln!(wrong, "{line}");
        }
    }
    report("compute-limits", &table);
    assert!(wrong.is_empty(), "{wrong}");
}

/// A container: its settings, and what runs in it.
type Container<'a> = (&'a [(&'a str, &'a str)], [&'a str; 2]);

/// What each of them had, in per cent.
fn shares(containers: &[Container<'_>]) -> Vec<f64> {
    let steered = Steered::new(compile("compute_work"));
    let start = |(number, (settings, [shape, kernel_us])): (usize, &Container<'_>)| {
        steered.start(&format!("tests/shares-{number}"), settings, &[shape, kernel_us, "60"])
    };
    let sessions: Vec<Session> = containers.iter().enumerate().map(start).collect();
    milliseconds(WARM);
    steered.shares(&sessions.iter().collect::<Vec<_>>(), WINDOW)
}

fn asks(share: &'static str) -> [(&'static str, &'static str); 1] {
    [("RATION_COMPUTE_REQUEST", share)]
}

fn judged(name: &str, attempt: impl FnMut() -> Vec<f64>, is_good: impl Fn(&[f64]) -> bool) {
    let Some(got) = until_good(attempt, |got| is_good(got)) else { return };
    let text = format!("{name}: {got:.1?}, in sum {:.1}\n", got.iter().sum::<f64>());
    report(&format!("compute-{}", name.replace(['/', ' '], "-")), &text);
    assert!(is_good(&got), "{text}");
}

fn are_near(got: &[f64], wanted: &[f64], points: f64) -> bool {
    got.iter().zip(wanted).all(|(got, wanted)| (got - wanted).abs() <= points)
}

#[test]
fn three_deep_queues_share_by_request() {
    let attempt = || {
        shares(&[(&asks("20%"), ["queue", "50"]), (&asks("30%"), ["queue", "500"]), (&asks("50%"), ["queue", "5000"])])
    };
    judged("20/30/50", attempt, |got| are_near(got, &[20.0, 30.0, 50.0], 2.0) && got.iter().sum::<f64>() > 96.0);
}

#[test]
fn training_has_its_share_beside_a_deep_queue() {
    let attempt = || shares(&[(&asks("60%"), ["steps", "500"]), (&asks("40%"), ["queue", "500"])]);
    judged("60/40 training", attempt, |got| are_near(got, &[60.0, 40.0], 3.0) && got.iter().sum::<f64>() > 94.0);
}

#[test]
fn batch_takes_what_is_left_and_does_not_starve() {
    let batch = [("RATION_COMPUTE_REQUEST", "50%"), ("RATION_PRIORITY", "batch")];
    let attempt = || shares(&[(&batch, ["queue", "500"]), (&asks("50%"), ["queue", "500"])]);
    judged("batch", attempt, |got| (1.0..12.0).contains(&got[0]) && got.iter().sum::<f64>() > 95.0);
}

/// They want half as much again as the GPU has. By the hardware's time slices alone it is 23 each.
#[test]
fn four_that_do_not_fill_the_gpu_have_as_much_as_each_other() {
    let all: Vec<Container<'_>> = vec![(&[("RATION_COMPUTE_REQUEST", "25%")], ["products", "18"]); 4];
    let is_good = |got: &[f64]| {
        let (least, most) = got.iter().fold((f64::MAX, 0.0f64), |(least, most), it| (least.min(*it), most.max(*it)));
        least > 0.7 * most && got.iter().sum::<f64>() > 80.0
    };
    judged("four light", || shares(&all), is_good);
}

/// The first has no processor for 30 of every 100 ms, as a container that has used up its quota of processor time.
#[test]
fn stopped_now_and_then_leaves_the_rest_to_its_neighbour() {
    let attempt = || {
        let steered = Steered::new(compile("compute_work"));
        let both =
            ["tests/stops", "tests/goes-on"].map(|name| steered.start(name, &asks("50%"), &["queue", "500", "60"]));
        milliseconds(WARM);
        steered.shares_while(&both.each_ref(), || {
            for _ in 0..WINDOW / 100 {
                both[0].signal(libc::SIGSTOP);
                milliseconds(30);
                both[0].signal(libc::SIGCONT);
                milliseconds(70);
            }
        })
    };
    judged("stopped now and then", attempt, |got| got[0] > 33.0 && got.iter().sum::<f64>() > 92.0);
}

#[test]
fn sibling_that_is_stopped_or_killed_holds_up_nobody() {
    let steered = machine();
    let start =
        |seconds: &str| steered.start("tests/siblings", &[("RATION_COMPUTE_LIMIT", "50%")], &["queue", "500", seconds]);
    let steady = start("90");
    let mut text = String::new();
    for (what, signal) in [("stopped", libc::SIGSTOP), ("killed", libc::SIGKILL)] {
        let attempt = || {
            let other = start("30");
            milliseconds(150);
            other.signal(signal);
            // What it had queued is done first, half a second of it, and is charged to the container.
            milliseconds(1500);
            let got = steered.shares(&[&steady], 1000)[0];
            other.signal(libc::SIGKILL);
            got
        };
        let is_good = |got: &f64| (got - 50.0).abs() < 5.0;
        let Some(got) = until_good(attempt, is_good) else { continue };
        let _ = writeln!(text, "{what}: the container goes on at {got:.1}% of 50%");
        assert!(is_good(&got), "{text}");
    }
    report("compute-siblings", &text);
}
