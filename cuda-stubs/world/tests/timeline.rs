//! The timeline on its own, with the clock in the test's hand: shares, slices and orders, exact to the nanosecond.

use proptest::prelude::*;
use sim_world::channel::{Kind, NewOp, Seq, WHOLE};
use sim_world::{Role, World, WorldSettings, timeline};

const MS: u64 = 1_000_000;
/// Far ahead of the real clock of a world, which therefore never interferes.
const START: u64 = 1_000_000 * MS;

struct Bench {
    world: World,
    dir: std::path::PathBuf,
    now: u64,
}

impl Bench {
    fn new(settings: &WorldSettings) -> Bench {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("ration-timeline-{}-{number}", std::process::id()));
        let world = World::join(&dir, settings, Role::Client).expect("a world in a temporary directory");
        let bench = Bench { world, dir, now: START };
        bench.to(START);
        bench
    }

    fn to(&self, time: u64) {
        timeline::advance(&self.world.lock(), time);
    }

    /// At the bench's time, where the world's own functions would bring the timeline up to the real one.
    fn set_off(&self, chan: usize, off: bool) {
        let tx = self.world.lock();
        timeline::advance(&tx, self.now);
        timeline::set_off(&tx, chan, off);
    }

    fn set_slice(&self, chan: usize, slice: u64) {
        let tx = self.world.lock();
        timeline::advance(&tx, self.now);
        timeline::set_slice(&tx, chan, slice);
    }

    fn channel(&self) -> usize {
        self.world.claim_channel(0).expect("a free channel")
    }

    fn kernel(&self, chan: usize, queue: usize, duration: u64, width: u16, after: [Option<Seq>; 2]) -> Seq {
        let op = NewOp { kind: Kind::Kernel, duration, width, priority: 0, kernels: 1, after };
        self.world.push_at(chan, queue, &op, self.now).expect("room")
    }

    fn done(&self, chan: usize) -> u64 {
        self.world.chan(chan).queues.iter().map(|q| q.done.get()).sum()
    }

    fn finished_at(&self, seq: Seq) -> u64 {
        assert!(self.world.is_done(seq), "not finished at {}", self.now);
        self.world.done_at(seq)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Keeps queues full of `kernel`-long kernels and counts what gets finished in `time`.
fn saturate(bench: &mut Bench, chans: &[usize], kernel: u64, time: u64) -> Vec<u64> {
    let before: Vec<u64> = chans.iter().map(|c| bench.done(*c)).collect();
    let end = bench.now + time;
    while bench.now < end {
        for chan in chans {
            let q = &bench.world.chan(*chan).queues[0];
            while q.pushed.get() - q.done.get() < 100 {
                bench.kernel(*chan, 0, kernel, WHOLE, [None; 2]);
            }
        }
        bench.now += 10 * MS;
        bench.to(bench.now);
    }
    chans.iter().zip(before).map(|(c, b)| bench.done(*c) - b).collect()
}

#[test]
fn two_saturating_contexts_lose_what_was_measured() {
    let mut bench = Bench::new(&WorldSettings::h200());
    let (a, b) = (bench.channel(), bench.channel());
    let solo = saturate(&mut bench, &[a], MS / 2, 2000 * MS)[0];
    let both = saturate(&mut bench, &[a, b], MS / 2, 2000 * MS);
    let sum = (both[0] + both[1]) as f64 / solo as f64;
    assert!((0.90..0.93).contains(&sum), "together {sum:.3} of solo, measured 0.914");
    assert!(both[0].abs_diff(both[1]) < 10, "{both:?}");
}

#[test]
fn slices_and_off_times_are_the_measured_ones() {
    // Measured: 2.09 ms on; 2.40 and 4.64 ms off. A run begins with restoring.
    for (contexts, off) in [(2, 2_348_000), (3, 4_596_000)] {
        let mut bench = Bench::new(&WorldSettings::h200());
        let chans: Vec<usize> = (0..contexts).map(|_| bench.channel()).collect();
        saturate(&mut bench, &chans, MS / 2, 200 * MS);
        let runs = bench.world.intervals(0);
        let middle = &runs[4..runs.len() - 4];
        for run in middle {
            assert_eq!(run.end_ns - run.start_ns, 2_148_000);
        }
        for (run, next) in middle.iter().zip(&middle[contexts..]) {
            assert_eq!(next.start_ns - run.end_ns, off, "{contexts} contexts");
        }
    }
}

#[test]
fn one_that_waits_for_each_kernel_gets_a_sixth() {
    let mut bench = Bench::new(&WorldSettings::h200());
    let (deep, sync) = (bench.channel(), bench.channel());
    let (mut done, end) = (0, bench.now + 2000 * MS);
    let mut last = bench.kernel(sync, 0, MS / 2, WHOLE, [None; 2]);
    let deep_before = bench.done(deep);
    while bench.now < end {
        let q = &bench.world.chan(deep).queues[0];
        while q.pushed.get() - q.done.get() < 100 {
            bench.kernel(deep, 0, MS / 2, WHOLE, [None; 2]);
        }
        if bench.world.is_done(last) {
            done += 1;
            last = bench.kernel(sync, 0, MS / 2, WHOLE, [None; 2]);
        }
        bench.now += MS / 100;
        bench.to(bench.now);
    }
    let share = |n: u64| n as f64 * 0.5 / 2000.0;
    let (sync_share, deep_share) = (share(done), share(bench.done(deep) - deep_before));
    assert!((0.16..0.23).contains(&sync_share), "{sync_share:.3}, measured 0.17 and 0.22");
    assert!((0.68..0.74).contains(&deep_share), "{deep_share:.3}, measured 0.71");
}

#[test]
fn an_idle_neighbour_costs_nothing() {
    let mut bench = Bench::new(&WorldSettings::h200());
    let (a, idle) = (bench.channel(), bench.channel());
    bench.kernel(idle, 0, 1000, WHOLE, [None; 2]);
    bench.now += 10 * MS;
    bench.to(bench.now);
    let done = saturate(&mut bench, &[a], MS / 2, 1000 * MS)[0];
    assert!(done >= 1999, "{done}");
}

#[test]
fn narrow_kernels_of_one_context_run_side_by_side() {
    let mut bench = Bench::new(&WorldSettings::h200());
    let chan = bench.channel();
    let all: Vec<Seq> = (0..4).map(|queue| bench.kernel(chan, queue, MS, WHOLE / 4, [None; 2])).collect();
    let fifth = bench.kernel(chan, 4, MS, WHOLE / 4, [None; 2]);
    bench.now += 5 * MS;
    bench.to(bench.now);
    for seq in all {
        assert_eq!(bench.finished_at(seq), START + MS);
    }
    assert_eq!(bench.finished_at(fifth), START + 2 * MS);
    let busy = bench.world.record().gpus[0].busy_ns;
    assert_eq!(busy, 2 * MS, "busy time is the union, not the sum");
}

#[test]
fn order_across_queues_is_kept_and_copies_run_beside_kernels() {
    let mut bench = Bench::new(&WorldSettings::h200());
    let chan = bench.channel();
    let first = bench.kernel(chan, 0, MS, WHOLE, [None; 2]);
    let copy =
        NewOp { kind: Kind::CopyIn, duration: 3 * MS, width: 0, priority: 0, kernels: 0, after: [Some(first), None] };
    let copy = bench.world.push_at(chan, 1, &copy, bench.now).expect("room");
    let beside = bench.kernel(chan, 0, MS, WHOLE, [None; 2]);
    let after_both = bench.kernel(chan, 2, MS, WHOLE, [Some(copy), Some(beside)]);
    bench.now += 10 * MS;
    bench.to(bench.now);
    assert_eq!(bench.finished_at(first), START + MS);
    assert_eq!(bench.finished_at(beside), START + 2 * MS);
    assert_eq!(bench.finished_at(copy), START + 4 * MS);
    assert_eq!(bench.finished_at(after_both), START + 5 * MS);
}

#[test]
fn a_gate_holds_until_the_host_opens_it() {
    let mut bench = Bench::new(&WorldSettings::h200());
    let chan = bench.channel();
    let gate = NewOp { kind: Kind::Gate, duration: 0, width: 0, priority: 0, kernels: 0, after: [None; 2] };
    let gate = bench.world.push_at(chan, 0, &gate, bench.now).expect("room");
    let behind = bench.kernel(chan, 0, MS, WHOLE, [None; 2]);
    bench.now += 10 * MS;
    bench.to(bench.now);
    assert!(bench.world.gate_reached(gate) && !bench.world.is_done(behind));
    bench.world.open_gate(gate);
    bench.now += 10 * MS;
    bench.to(bench.now);
    assert!(bench.world.is_done(behind));
}

#[test]
fn off_stops_a_kernel_in_the_middle_and_copies_go_on() {
    let mut bench = Bench::new(&WorldSettings::h200());
    let (chan, other) = (bench.channel(), bench.channel());
    let kernel = bench.kernel(chan, 0, 10 * MS, WHOLE, [None; 2]);
    let marker = NewOp { kind: Kind::Marker, duration: 0, width: 0, priority: 0, kernels: 0, after: [None; 2] };
    let behind = bench.world.push_at(chan, 0, &marker, bench.now).expect("room");
    bench.now += 4 * MS;
    bench.to(bench.now);
    bench.set_off(chan, true);
    let copy = NewOp { kind: Kind::CopyIn, duration: 3 * MS, ..marker };
    let copy = bench.world.push_at(chan, 1, &copy, bench.now).expect("room");
    let behind_copy = bench.world.push_at(chan, 1, &marker, bench.now).expect("room");
    let event = bench.world.push_at(chan, 2, &marker, bench.now).expect("room");
    let beside = bench.kernel(other, 0, MS, WHOLE, [None; 2]);
    bench.now += 46 * MS;
    bench.to(bench.now);
    assert_eq!(bench.finished_at(copy), START + 7 * MS);
    assert_eq!(bench.finished_at(behind_copy), START + 7 * MS);
    assert_eq!(bench.finished_at(beside), START + 5 * MS + MS / 10, "what was preempted was saved first");
    assert!(!bench.world.is_done(kernel) && !bench.world.is_done(behind) && !bench.world.is_done(event));
    let held = &bench.world.record().processes[0].gpus[&0];
    assert_eq!((held.switches, held.groups[0].on, held.groups[1].on), (1, false, true));
    bench.set_off(chan, false);
    bench.now += 46 * MS;
    bench.to(bench.now);
    assert_eq!(bench.finished_at(event), START + 50 * MS + MS / 10);
    assert_eq!(bench.finished_at(kernel), START + 56 * MS + MS / 10);
    assert_eq!(bench.finished_at(behind), START + 56 * MS + MS / 10);
}

#[test]
fn event_of_a_context_that_is_not_on_the_engine_waits_for_its_slice() {
    let mut bench = Bench::new(&WorldSettings::h200());
    let (busy, idle) = (bench.channel(), bench.channel());
    bench.kernel(busy, 0, 50 * MS, WHOLE, [None; 2]);
    bench.now += MS;
    bench.to(bench.now);
    let marker = NewOp { kind: Kind::Marker, duration: 0, width: 0, priority: 0, kernels: 0, after: [None; 2] };
    let event = bench.world.push_at(idle, 0, &marker, bench.now).expect("room");
    bench.now += 10 * MS;
    bench.to(bench.now);
    assert_eq!(bench.finished_at(event), START + 2_148_000);
}

#[test]
fn slice_that_is_made_shorter_ends_at_once() {
    let mut bench = Bench::new(&WorldSettings::h200());
    let (a, b) = (bench.channel(), bench.channel());
    bench.kernel(a, 0, 50 * MS, WHOLE, [None; 2]);
    let other = bench.kernel(b, 0, MS, WHOLE, [None; 2]);
    bench.now += MS;
    bench.to(bench.now);
    bench.set_slice(a, MS / 2);
    bench.now += 10 * MS;
    bench.to(bench.now);
    assert_eq!(bench.finished_at(other), START + 2 * MS + MS / 10);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is put in, however the clock is stepped: work is neither lost nor invented, and time is never double booked.
    #[test]
    fn work_is_conserved(
        work in prop::collection::vec((0usize..3, 0usize..4, 1u64..4 * MS, 1u16..=WHOLE, 0u64..3 * MS), 1..60),
        steps in prop::collection::vec(1u64..7 * MS, 1..40),
    ) {
        let mut bench = Bench::new(&WorldSettings::h200());
        let chans = [bench.channel(), bench.channel(), bench.channel()];
        let mut longest = 0;
        let mut step = steps.iter().cycle();
        for (chan, queue, duration, width, gap) in &work {
            bench.kernel(chans[*chan], *queue, *duration, *width, [None; 2]);
            longest += duration;
            bench.now += (*gap).min(*step.next().expect("a cycle"));
            bench.to(bench.now);
        }
        for _ in 0..10_000 {
            if chans.iter().map(|c| bench.done(*c)).sum::<u64>() == work.len() as u64 { break; }
            bench.now += *step.next().expect("a cycle");
            bench.to(bench.now);
        }
        prop_assert_eq!(chans.iter().map(|c| bench.done(*c)).sum::<u64>(), work.len() as u64);
        let file = bench.world.file();
        let busy = file.gpus[0].busy.get();
        let worked = file.procs[bench.world.slot()].gpu[0].work.get();
        prop_assert!(worked <= longest && worked <= busy);
        prop_assert!(busy + file.gpus[0].switching.get() <= bench.now - START);
        let mut runs = bench.world.intervals(0);
        runs.sort_by_key(|r| r.start_ns);
        for pair in runs.windows(2) {
            prop_assert!(pair[0].end_ns <= pair[1].start_ns, "two intervals overlap");
        }
    }

    /// The result does not depend on how often somebody looks.
    #[test]
    fn looking_changes_nothing(work in prop::collection::vec((0usize..2, 1u64..4 * MS), 1..40), steps in prop::collection::vec(1u64..3 * MS, 1..30)) {
        let ends = |look: bool| {
            let bench = Bench::new(&WorldSettings::h200());
            let chans = [bench.channel(), bench.channel()];
            let all: Vec<Seq> = work.iter().map(|(c, d)| bench.kernel(chans[*c], 0, *d, WHOLE, [None; 2])).collect();
            if look {
                let mut now = bench.now;
                for step in &steps {
                    now += step;
                    bench.to(now);
                }
            }
            bench.to(START + 1000 * MS);
            all.iter().map(|s| bench.finished_at(*s)).collect::<Vec<_>>()
        };
        prop_assert_eq!(ends(true), ends(false));
    }
}
