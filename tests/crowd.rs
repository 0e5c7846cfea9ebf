//! A crowd: processes come one after the other into four containers, many of them at once, each takes memory and launches work, and ends
//! or is killed at any moment. Afterwards nothing of them is left: no bytes in the driver's record, none in the ledgers, no slot, no
//! debt, no file, no descriptor.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

#[path = "caps/container.rs"]
mod container;
#[path = "channels/steered.rs"]
mod steered;
mod support;

use container::{GIB, MIB};
use ration_region::Gpu;
use steered::{PATIENCE, Steered};
use support::random::Random;
use support::report;

const CONTAINERS: [&str; 4] = ["tests/a", "tests/b", "tests/c", "tests/d"];
/// Of each container.
const CAP: u64 = 30 * GIB;
/// How long any of them may take to end by itself.
const LONGEST: Duration = Duration::from_secs(60);

struct Crowd {
    steered: Steered,
    random: Random,
    alive: Vec<(Child, Instant, Duration)>,
    begun: u64,
    killed: u64,
    most: usize,
}

impl Crowd {
    /// One more, in one of the containers. It is killed after a time that may be longer than it takes.
    fn begin(&mut self) {
        let which = self.random.below(4) as usize;
        let (limit, memory) = (["25%", "50%", "100%", "100%"][which], format!("{CAP}"));
        let request = ["10%", "20%", "30%", "40%"][which];
        let settings = [
            ("RATION_MEMORY", memory.as_str()),
            ("RATION_COMPUTE_LIMIT", limit),
            ("RATION_COMPUTE_REQUEST", request),
            ("RATION_LOG", "off"),
        ];
        let mut command = self.steered.command(CONTAINERS[which], &settings, &["default"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("there is room for a process");
        let mut orders = String::from("start\n");
        for _ in 0..1 + self.random.below(4) {
            let _ = writeln!(orders, "fill {} {}", 4 * MIB, (1 + self.random.below(40)) * 4 * MIB);
            (0..self.random.below(30)).for_each(|_| orders.push_str("kernel\n"));
            orders.push_str("empty\n");
        }
        orders.push_str("quit\n");
        // It may be gone before it has read all of it.
        let _ = child.stdin.take().expect("a pipe").write_all(orders.as_bytes());
        let lives = Duration::from_millis(self.random.below(4) * self.random.below(1_500));
        self.alive.push((child, Instant::now(), lives));
        self.begun += 1;
        self.most = self.most.max(self.alive.len());
    }

    /// Kills those whose time has come, and lets go of those that have ended.
    fn thin(&mut self, wrong: &mut Vec<String>) {
        let killed = &mut self.killed;
        self.alive.retain_mut(|(child, begun, lives)| match child.try_wait() {
            Ok(Some(status)) => {
                if !status.success() {
                    wrong.push(format!("one ended with {status}"));
                }
                false
            }
            _ if begun.elapsed() > LONGEST => {
                wrong.push("one hung".to_owned());
                let _ = child.kill().and_then(|()| child.wait());
                false
            }
            _ if !lives.is_zero() && begun.elapsed() > *lives => {
                let _ = child.kill().and_then(|()| child.wait());
                *killed += 1;
                false
            }
            _ => true,
        });
    }
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// `RATION_TEST_CROWD` says how many come, and how many are there at once at most: `10000,200`.
#[test]
fn crowd_leaves_nothing_behind() {
    let text = std::env::var("RATION_TEST_CROWD").unwrap_or_else(|_| "300,40".to_owned());
    let (count, most) = text.split_once(',').expect("two numbers");
    let (count, most): (u64, usize) = (count.parse().expect("a number"), most.parse().expect("a number"));
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let steered = Steered::new(container::program("lost"));
    let gpu = steered.world.settings().gpu[0];
    let gpu = Gpu { uuid: gpu.uuid, total: gpu.memory };
    let before = descriptors();
    let mut wrong = Vec::new();
    let mut crowd = Crowd { steered, random: Random(seed | 1), alive: Vec::new(), begun: 0, killed: 0, most: 0 };
    let began = Instant::now();
    while crowd.begun < count {
        if crowd.alive.len() < most && crowd.random.below(8) != 0 {
            crowd.begin();
        } else {
            std::thread::sleep(Duration::from_millis(2));
        }
        crowd.thin(&mut wrong);
    }
    while !crowd.alive.is_empty() {
        std::thread::sleep(Duration::from_millis(5));
        crowd.thin(&mut wrong);
    }
    let took = began.elapsed();
    if let Err(left) = container::left_behind(&crowd.steered.world) {
        wrong.push(format!("in the driver's record: {left}"));
    }
    let mut launched = 0;
    for name in CONTAINERS {
        // Who comes now has all of the container's memory, and owes nothing.
        let settings = [("RATION_MEMORY", format!("{CAP}"))];
        let (machine, regions) = (&crowd.steered.machine, &crowd.steered.regions);
        let mut command = container::inside(machine, regions, name, &settings, &crowd.steered.program);
        let mut session = container::Session::start(command.arg("default"), PATIENCE);
        session.until("ready").expect("it starts");
        session.tell("start");
        session.line().expect("an answer");
        session.tell(&format!("fill {} {}", 16 * MIB, 2 * CAP));
        let line = session.line().expect("an answer").unwrap_or_default();
        let got: u64 = line.split(' ').nth(1).and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        if got < CAP - 700 * MIB {
            wrong.push(format!("{name}: only {} of {} MiB can be had", got / MIB, CAP / MIB));
        }
        let region = regions.of(name, &gpu);
        launched += region.containers().map(|it| it.compute().kernels).sum::<u64>();
        let members: Vec<_> = region.containers().flat_map(|it| it.members()).collect();
        if members.iter().filter(|it| it.alive).count() != 1 || members.iter().any(|it| !it.alive && it.held > 0) {
            wrong.push(format!("{name}: {} slots are taken, and one process lives: {members:?}", members.len()));
        }
        drop(session);
        let member = region.join(name, None).expect("there is room");
        member.reap(&mut |_| true);
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a place to write the time to.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let owed = member.compute().used_until().saturating_sub(now) / 1_000_000;
        if member.used() != 0 || member.drift() != 0 || owed > 500 {
            wrong.push(format!(
                "{name}: {} bytes are counted, {} drifted, {owed} ms are owed",
                member.used(),
                member.drift()
            ));
        }
    }
    let files: Vec<_> = std::fs::read_dir(&crowd.steered.regions.0)
        .expect("it is there")
        .flatten()
        .flat_map(|dir| std::fs::read_dir(dir.path()).into_iter().flatten().flatten())
        .map(|file| file.path())
        .collect();
    if files.len() != 2 * CONTAINERS.len() {
        wrong.push(format!("files are left: {files:?}"));
    }
    // Threads that read what a session says end a moment after it.
    let deadline = Instant::now() + Duration::from_secs(5);
    while descriptors() != before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    if descriptors() != before {
        wrong.push(format!("{} descriptors, and {before} before", descriptors()));
    }
    let said = format!(
        "seed {seed}: {} processes, up to {} at once, {} of them killed, {launched} kernels, in {} s; {} things were wrong\n",
        crowd.begun,
        crowd.most,
        crowd.killed,
        took.as_secs(),
        wrong.len()
    );
    report("chaos-crowd", &said);
    wrong.truncate(20);
    assert!(launched > count, "they did next to nothing: {said}");
    assert!(wrong.is_empty(), "{said}{}", wrong.join("\n"));
}
