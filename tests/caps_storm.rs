//! A storm: processes of many threads take and give back memory by every path at random, and are killed at random. The driver's
//! record is never above the cap; whenever all of them stand still, the ledger says what the record says; and in the end nothing
//! is left of them. `CAPS_STORM_SECONDS=60` makes it longer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{GIB, MIB, Regions, Session, inside, left_behind};
use ration_region::{Gpu, Region};
use sim_world::World;
use support::random::Random;
use support::{Machine, report};

const NAME: &str = "tests/storm";
const PROCESSES: usize = 8;
const THREADS: &str = "8";
/// The contexts alone take half of it.
const CAP: u64 = 8 * GIB;
/// Between quiet points.
const STRETCH: Duration = Duration::from_millis(2500);

/// The processes, and what they do it on.
struct Storm<'a> {
    machine: &'a Machine,
    regions: &'a Regions,
    program: &'a Path,
    world: &'a World,
    random: Random,
    running: Vec<Session>,
    killed: usize,
    looks: usize,
    highest: u64,
    /// The same by path, to know whose it was.
    highest_by_path: BTreeMap<&'static str, u64>,
}

impl Storm<'_> {
    fn start(&mut self) -> Session {
        let settings = [("RATION_MEMORY", CAP.to_string())];
        let mut command = inside(self.machine, self.regions, NAME, &settings, self.program);
        command.args([THREADS, &self.random.below(1 << 30).to_string()]).arg(self.machine.dir.join("mailbox"));
        Session::start(&mut command, Duration::from_secs(30))
    }

    fn rage(&mut self, until: Instant) {
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5 + self.random.below(30)));
            self.look();
            if self.random.below(4) == 0 {
                let victim = self.random.below(PROCESSES as u64) as usize;
                self.kill(victim);
                self.look();
                self.running[victim] = self.start();
            }
        }
    }

    /// The record at this moment.
    fn look(&mut self) {
        let record = self.world.record();
        let living = record.processes.iter().filter(|p| p.alive && !p.observer).flat_map(|p| p.gpus.values());
        let figures: u64 = living.clone().map(|gpu| gpu.figure_bytes).sum();
        self.looks += 1;
        if figures > self.highest {
            self.highest = figures;
            self.highest_by_path.clear();
            for (path, bytes) in living.flat_map(|gpu| &gpu.bytes) {
                *self.highest_by_path.entry(path).or_default() += bytes / MIB;
            }
        }
    }

    fn kill(&mut self, victim: usize) {
        let child = &mut self.running[victim].child;
        if let Some(status) = child.try_wait().expect("a child can be asked") {
            panic!("a process ended by itself: {status}\n{}", self.running[victim].said());
        }
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
        self.killed += 1;
    }

    /// Has them all stand still. What each says of its managed memory, by its number.
    fn quiet(&mut self) -> BTreeMap<u32, u64> {
        self.running.iter_mut().for_each(|session| session.tell("quiet"));
        let mut managed = BTreeMap::new();
        for session in &mut self.running {
            let answer = session.line().unwrap_or_else(|error| panic!("{error}"));
            let bytes = answer.as_deref().and_then(|line| line.strip_prefix("quiet ")?.parse().ok());
            let bytes = bytes.unwrap_or_else(|| panic!("{answer:?}\n{}", session.said()));
            managed.insert(session.child.id(), bytes);
        }
        managed
    }

    fn go(&mut self) {
        self.running.iter_mut().for_each(|session| session.tell("go"));
    }
}

fn region(regions: &Regions, world: &World) -> Region {
    let gpu = &world.record().gpus[0];
    let digits: String = gpu.uuid.chars().skip("GPU-".len()).filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).expect("a UUID is of 32 digits");
    let gpu = Gpu { uuid: number.to_be_bytes(), total: gpu.memory_bytes };
    regions.of(NAME, &gpu)
}

/// What the ledger says that living processes hold.
fn held(region: &Region) -> BTreeMap<u32, u64> {
    let ours = region.containers().filter(|container| container.name.to_string() == NAME);
    ours.flat_map(|container| container.members()).filter(|p| p.alive).map(|p| (p.pid, p.held)).collect()
}

/// One line for each process whose ledger is not its record. Managed memory is in the ledger in full, in nobody's figure, and
/// in the record as far as the GPU has touched it: so there the process's own word is taken.
fn differences(world: &World, region: &Region, managed: &BTreeMap<u32, u64>) -> String {
    let (record, ledger) = (world.record(), held(region));
    let mut text = String::new();
    for (pid, managed) in managed {
        let figures = record.processes.iter().filter(|p| p.alive && !p.observer && p.pid == u64::from(*pid));
        let figure: u64 = figures.flat_map(|p| p.gpus.values()).map(|gpu| gpu.figure_bytes).sum();
        let (expected, believed) = (figure + managed, ledger.get(pid).copied().unwrap_or(0));
        if expected != believed {
            let off = (believed as f64 - expected as f64) / MIB as f64;
            let _ = writeln!(text, "  {pid}: the record has {expected}, the ledger {believed} ({off:+.1} MiB)");
        }
    }
    for pid in ledger.keys().filter(|pid| !managed.contains_key(pid)) {
        let _ = writeln!(text, "  {pid}: in the ledger, and nobody");
    }
    text
}

#[test]
fn in_a_storm_the_cap_holds_and_the_ledger_is_the_record() {
    let seconds = std::env::var("CAPS_STORM_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let (storm_program, hold_program) = (container::program("storm"), container::program("hold"));
    let (machine, regions) = (Machine::new(), Regions::new());
    let world = machine.world();
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut storm = Storm {
        machine: &machine,
        regions: &regions,
        program: &storm_program,
        world: &world,
        random: Random(seed),
        running: Vec::new(),
        killed: 0,
        looks: 0,
        highest: 0,
        highest_by_path: BTreeMap::new(),
    };
    for _ in 0..PROCESSES {
        let session = storm.start();
        storm.running.push(session);
    }
    let (mut quiet_points, mut drifted, mut wrong) = (0, 0, String::new());
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        storm.rage((Instant::now() + STRETCH).min(end));
        let managed = storm.quiet();
        let different = differences(&world, &region(&regions, &world), &managed);
        quiet_points += 1;
        drifted += usize::from(!different.is_empty());
        if !different.is_empty() {
            let _ = write!(wrong, "quiet point {quiet_points}:\n{different}");
        }
        storm.go();
    }
    let refused: u64 = region(&regions, &world).containers().map(|container| container.refused).sum();
    for session in &mut storm.running {
        session.tell("end");
    }
    for session in storm.running.drain(..) {
        session.finish().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    left_behind(&world).unwrap_or_else(|error| panic!("seed {seed}: {error}"));

    // The memory of all of them, those killed included, is there for the next.
    let settings = [("RATION_MEMORY", CAP.to_string())];
    let mut after =
        Session::start(&mut inside(&machine, &regions, NAME, &settings, &hold_program), Duration::from_secs(30));
    after.until("ready").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    after.tell(&format!("take {}", CAP - CAP / 50 - 640 * MIB));
    let had = after.line().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(had.as_deref(), Some("had"), "seed {seed}: a process that comes after all the others");
    drop(after);

    // And when the dead are buried, the container has nobody in it and holds nothing.
    let last = region(&regions, &world);
    let member = last.join(NAME, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    member.reap(&mut |_| true);
    let others: Vec<_> = member.others().collect();
    let used = member.used();

    let mut text = String::new();
    let _ = writeln!(text, "{PROCESSES} processes x {THREADS} threads, {seconds} s, a cap of {} MiB", CAP / MIB);
    let _ = writeln!(
        text,
        "{} killed; {} looks, the record at most at {} MiB; {refused} reservations refused",
        storm.killed,
        storm.looks,
        storm.highest / MIB
    );
    let _ = writeln!(text, "which was, in MiB: {:?}", storm.highest_by_path);
    let _ = writeln!(text, "{quiet_points} quiet points, at {drifted} of them the ledger was not the record");
    let _ = writeln!(text, "in the end the ledger has {used} bytes of {} processes", others.len());
    report("caps-storm", &text);
    assert!(storm.killed > 2 * seconds as usize, "seed {seed}: hardly anybody was killed");
    assert_eq!((used, others.len()), (0, 0), "seed {seed}: {others:?}");
    let over = storm.highest.saturating_sub(CAP);
    assert!(
        over == 0 && wrong.is_empty(),
        "seed {seed}: {over} bytes over the cap; ledger and record differ:\n{wrong}"
    );
    assert!(storm.highest > CAP / 2, "seed {seed}: the storm was none");
    assert!(refused > 0, "seed {seed}: nothing was ever refused");
}
