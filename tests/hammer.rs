//! Many processes of many threads use everything at once and are killed at random: the record stays consistent, nothing
//! leaks, nothing hangs.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

mod support;
use support::random::Random;
use support::{Machine, compile, report};

const PROCESSES: usize = 16;
const THREADS: &str = "4";
/// Unless `RATION_TEST_HAMMER` says how many.
const SECONDS: u64 = 20;

/// For so many seconds. How many were killed, how many calls the last of them made, and what was seen.
fn hammer(program: &Path, seconds: u64) -> (u64, u64, String) {
    // Small enough that running out of memory is part of the exercise.
    let machine = Machine::with(&[("RATION_SIM_MEMORY", "32GiB")]);
    let world = machine.world();
    let mailbox = machine.dir.join("mailbox");
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos() as u64 | 1;
    let mut random = Random(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let start = |random: &mut Random| {
        let seconds = end.saturating_duration_since(Instant::now()).as_secs_f64() + 0.1;
        machine
            .command(program)
            .args([THREADS, &format!("{seconds:.2}"), &random.below(1 << 30).to_string()])
            .arg(&mailbox)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the hammer starts")
    };
    let mut running: Vec<Child> = (0..PROCESSES).map(|_| start(&mut random)).collect();
    let (mut killed, mut looks) = (0, 0);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20 + random.below(60)));
        let victim = random.below(PROCESSES as u64) as usize;
        match running[victim].try_wait().expect("a child can be asked") {
            None => {
                running[victim].kill().expect("a child can be killed");
                running[victim].wait().expect("a child can be waited for");
                killed += 1;
            }
            Some(_) => fail(&mut running[victim], seed),
        }
        running[victim] = start(&mut random);
        if random.below(4) == 0 {
            // The accounts add up at any moment, not only when all is quiet.
            let wrong = world.inconsistencies();
            assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
            looks += 1;
        }
    }
    for child in &mut running {
        let patience = Instant::now() + Duration::from_secs(120);
        while child.try_wait().expect("a child can be asked").is_none() {
            assert!(Instant::now() < patience, "seed {seed}: process {} hangs", child.id());
            std::thread::sleep(Duration::from_millis(10));
        }
        if !child.wait().expect("it ended").success() {
            fail(child, seed);
        }
    }
    let record = world.record();
    let calls: u64 = record.processes.iter().flat_map(|p| p.calls.values()).sum();
    let kernels: u64 = record.processes.iter().flat_map(|p| p.gpus.values()).map(|g| g.kernels).sum();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{PROCESSES} processes x {THREADS} threads, {seconds} s: {killed} killed, {looks} looks at the accounts"
    );
    let _ =
        writeln!(text, "the last {} processes made {calls} calls and ran {kernels} kernels", record.processes.len());
    let _ = writeln!(text, "the lock was taken over from a dead holder {} times", record.takeovers);
    let _ = writeln!(text, "bytes still taken at the end: {}", record.gpus[0].used_bytes);
    assert_eq!(world.inconsistencies(), [] as [String; 0], "seed {seed}");
    assert_eq!(record.gpus[0].used_bytes, 0, "seed {seed}: something leaked");
    let left: Vec<_> = std::fs::read_dir(&machine.dir)
        .expect("the world's directory is there")
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name != "world" && name != "mailbox")
        .collect();
    assert!(left.is_empty(), "seed {seed}: files of dead processes: {left:?}");
    (killed, calls, text)
}

#[test]
fn sixteen_processes_killed_at_random_leave_nothing_behind() {
    let program = compile("hammer");
    let seconds = std::env::var("RATION_TEST_HAMMER").map_or(SECONDS, |text| text.parse().expect("seconds"));
    let mut last = (0, 0);
    // Where others use the machine, too, one time may not be enough.
    let hits_hard = (0..3).any(|_| {
        let (killed, calls, text) = hammer(&program, seconds);
        report("hammer", &text);
        last = (killed, calls);
        killed > 5 * seconds && calls > 100_000
    });
    assert!(hits_hard, "the hammer hardly hit, three times: {} kills, {} calls", last.0, last.1);
}

fn fail(child: &mut Child, seed: u64) -> ! {
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
    }
    panic!("seed {seed}: a process ended by itself: {:?}\n{said}", child.wait());
}
