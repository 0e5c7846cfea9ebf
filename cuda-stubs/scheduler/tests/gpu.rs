//! The GPU in virtual time: what the scheduler does, exact to the nanosecond.

use sim_scheduler::{Costs, Done, Gpu, MS, SLICE, US};

fn done(group: usize, piece: u64, began: u64, at: u64) -> Done {
    Done { group, piece, began, at }
}

#[test]
fn alone_work_runs_back_to_back() {
    let mut gpu = Gpu::default();
    let group = gpu.add_group();
    for _ in 0..3 {
        gpu.push(group, 5 * MS);
    }
    let all = gpu.advance(20 * MS);
    assert_eq!(all, [5, 10, 15].map(|at| done(group, at / 5, (at - 5) * MS, at * MS)));
    assert_eq!((gpu.busy(group), gpu.switching()), (15 * MS, 0));
}

#[test]
fn two_that_fill_the_gpu_lose_a_save_and_a_restore_each_time() {
    let mut gpu = Gpu::default();
    let (a, b) = (gpu.add_group(), gpu.add_group());
    gpu.push(a, 100 * MS);
    gpu.push(b, 100 * MS);
    // The second one's first slice needs no restoring.
    gpu.advance(2 * SLICE + 100 * US);
    assert_eq!((gpu.busy(a), gpu.busy(b), gpu.switching()), (SLICE, SLICE, 100 * US));
    gpu.advance(4 * SLICE + 500 * US);
    assert_eq!((gpu.busy(a), gpu.busy(b), gpu.switching()), (2 * SLICE, 2 * SLICE, 500 * US));
}

#[test]
fn longer_slice_counts_from_the_next_one_and_shorter_at_once() {
    let mut gpu = Gpu::new(Costs { save: 0, restore: 0, leave: 0 });
    let (a, b) = (gpu.add_group(), gpu.add_group());
    gpu.push(a, 100 * MS);
    gpu.push(b, 100 * MS);
    gpu.advance(MS);
    gpu.set_slice(a, 5 * MS);
    gpu.advance(2 * SLICE);
    assert_eq!((gpu.busy(a), gpu.busy(b)), (SLICE, SLICE), "the running slice stays as it is");
    gpu.advance(2 * SLICE + 3 * MS);
    assert_eq!(gpu.busy(a), SLICE + 3 * MS, "the next one is longer");
    gpu.set_slice(a, MS);
    gpu.advance(2 * SLICE + 4 * MS);
    assert_eq!((gpu.busy(a), gpu.busy(b)), (SLICE + 3 * MS, SLICE + MS), "it ends at once");
}

#[test]
fn off_stops_a_kernel_in_the_middle_and_on_resumes_it() {
    let mut gpu = Gpu::default();
    let (a, b) = (gpu.add_group(), gpu.add_group());
    gpu.push(a, 10 * MS);
    gpu.push(a, 0);
    gpu.advance(4 * MS);
    gpu.off(a);
    assert_eq!(gpu.advance(50 * MS), []);
    assert_eq!((gpu.busy(a), gpu.backlog(a), gpu.in_flight(a)), (4 * MS, 6 * MS, 2));
    gpu.on(a);
    // Nobody came in between: it is still on the engine, and nothing has to be restored.
    assert_eq!(gpu.advance(60 * MS), [done(a, 1, 0, 56 * MS), done(a, 2, 56 * MS, 56 * MS)]);
    // With somebody in between it has to be.
    gpu.push(a, 10 * MS);
    gpu.advance(61 * MS);
    gpu.off(a);
    gpu.push(b, MS);
    assert_eq!(gpu.advance(70 * MS), [done(b, 1, 61 * MS + 100 * US, 62 * MS + 100 * US)]);
    gpu.on(a);
    assert_eq!(gpu.advance(90 * MS), [done(a, 3, 60 * MS, 79 * MS + 100 * US)]);
}

#[test]
fn group_without_work_is_skipped() {
    let mut gpu = Gpu::default();
    let (a, idle) = (gpu.add_group(), gpu.add_group());
    gpu.push(idle, 10 * US);
    gpu.push(a, 100 * MS);
    gpu.advance(200 * MS);
    assert_eq!((gpu.busy(a), gpu.busy(idle)), (100 * MS, 10 * US));
    assert!(gpu.switching() <= 350 * US, "{}", gpu.switching());
}

#[test]
fn abandoned_work_is_gone_at_once() {
    let mut gpu = Gpu::default();
    let (a, b) = (gpu.add_group(), gpu.add_group());
    gpu.push(a, 100 * MS);
    gpu.advance(MS);
    gpu.abandon(a);
    gpu.push(b, MS);
    assert_eq!(gpu.advance(10 * MS), [done(b, 1, MS, 2 * MS)]);
    assert_eq!((gpu.busy(a), gpu.in_flight(a), gpu.finished(a), gpu.switching()), (MS, 0, 0, 0));
}

#[test]
fn events_are_stamped_when_the_group_is_on_the_engine() {
    let mut gpu = Gpu::default();
    let (a, b) = (gpu.add_group(), gpu.add_group());
    gpu.push(a, 10 * MS);
    gpu.advance(MS);
    gpu.push(b, 0);
    gpu.push(b, MS);
    gpu.push(b, 0);
    let stamps: Vec<u64> = gpu.advance(8 * MS).iter().filter(|d| d.group == b).map(|d| d.at).collect();
    assert_eq!(stamps, [SLICE + 100 * US, SLICE + MS + 100 * US, SLICE + MS + 100 * US]);
    // And not at all while it is off.
    gpu.off(b);
    gpu.push(b, 0);
    assert!(gpu.advance(100 * MS).iter().all(|d| d.group == a));
    gpu.on(b);
    assert_eq!(gpu.advance(100 * MS), [done(b, 4, 100 * MS, 100 * MS)]);
}

#[test]
fn looking_changes_nothing() {
    let run = |step: u64| {
        let mut gpu = Gpu::default();
        let groups = [gpu.add_group(), gpu.add_group(), gpu.add_group()];
        for n in 0..60 {
            gpu.push(groups[n % 3], (n as u64 * 7919) % 3000 * US);
        }
        gpu.off(groups[1]);
        let mut all = Vec::new();
        while gpu.now() < 30 * MS {
            let _ = gpu.next_change();
            all.extend(gpu.advance((gpu.now() + step).min(30 * MS)));
        }
        gpu.on(groups[1]);
        all.extend(gpu.advance(1000 * MS));
        (all, gpu.switching())
    };
    assert_eq!(run(30 * MS), run(77_777));
    assert_eq!(run(30 * MS), run(500));
}
