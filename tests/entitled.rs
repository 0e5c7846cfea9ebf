//! What a quota file says holds, whatever another tenant writes into the region: cap, limit, request, priority, and how far the
//! container has used up its due. The judge is the simulated driver's record.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[path = "caps/container.rs"]
mod container;
#[path = "compute/scene.rs"]
mod scene;
mod support;

use container::{GIB, MIB, Regions, Session, busy_share, look, with_files, with_module};
use scene::{PATIENCE, Scene, expect, milliseconds};
use support::{Machine, compile, report};

const NAME: &str = "team/web/main";

/// Where a container's words are in a region: docs/region.md.
const CONTAINERS: u64 = 4096;
const CONTAINER: u64 = 1024;
const AT_NAME: u64 = 16;
const CAP: u64 = 448;
const LIMIT: u64 = 512;
const REQUEST: u64 = 520;
const PRIORITY: u64 = 528;
const USED_UNTIL: u64 = 536;

/// Another tenant, which writes words of the container's over and over for as long as this lives.
struct Forger {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Forger {
    fn new(regions: &Regions, words: &[(u64, u64)]) -> Forger {
        let file = region(regions).expect("there is a region");
        let file = std::fs::OpenOptions::new().read(true).write(true).open(file).expect("everybody may write to it");
        let slot = (0..64).map(|index| CONTAINERS + CONTAINER * index).find(|at| {
            let mut name = [0; NAME.len()];
            file.read_exact_at(&mut name, at + AT_NAME).is_ok() && name == NAME.as_bytes()
        });
        let (slot, words) = (slot.expect("the container is in it"), words.to_vec());
        let write = move || {
            for (at, value) in &words {
                file.write_all_at(&value.to_le_bytes(), slot + at).expect("everybody may write to it");
            }
        };
        write();
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                write();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Forger { stop, thread: Some(thread) }
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn region(regions: &Regions) -> Option<PathBuf> {
    regions.files().pop()
}

#[test]
fn cap_of_a_quota_file_holds_whatever_the_region_says() {
    let (machine, regions) = (Machine::new(), Regions::new());
    let files = [("quota", format!("memory = 1GiB\nname = {NAME}\n"))];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let program = container::program("lost");
    let Some((mut command, _)) = with_files(&machine, &regions, &files, &program, &["default"]) else { return };
    let mut session = Session::start(&mut command, PATIENCE);
    session.until("ready").expect("it begins");
    let mut ask = |order: &str| {
        session.tell(order);
        session.line().expect("it answers").expect("it goes on")
    };
    assert_eq!(ask("start"), "0");
    let world = machine.world();
    for (what, cap) in [("more", 4 * GIB), ("all", u64::MAX), ("less", MIB), ("none", 0)] {
        let _forger = Forger::new(&regions, &[(CAP, cap)]);
        assert_eq!(ask("total"), format!("0 {GIB}"), "{what}: what the program is told");
        let filled = ask(&format!("fill {} {}", 16 * MIB, 4 * GIB));
        let held = look(&world).held;
        assert!((GIB - 32 * MIB..=GIB).contains(&held), "{what}: {filled}; {held} bytes are held of {GIB}");
        assert!(ask("empty").starts_with('0'), "{what}");
    }
}

#[test]
fn share_of_a_quota_file_holds_whatever_the_region_says() {
    const WANTED: f64 = 25.0;
    /// A limit is held to a point over seconds; this is looked at for half of one, beside a thread that writes all the time.
    const TOLERANCE: f64 = 3.0;
    let ten_minutes = 600_000_000_000;
    let mut text = String::new();
    for switch in ["channels", "launches"] {
        let scene = Scene::by(switch, &compile("compute_work"));
        let quota = format!("memory = 4GiB\ncompute = 25%\nname = {NAME}\n");
        let (files, arguments) = ([("quota", quota.as_str())], ["queue", "500", "60"]);
        let Some((mut command, _)) = with_files(&scene.machine, &scene.regions, &files, &scene.program, &arguments)
        else {
            return;
        };
        command.env("RATION_SWITCH", switch);
        let mut session = Session::start(&mut with_module(command), PATIENCE);
        session.until("ready").expect("it starts");
        let now = || {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: a place to write the time to.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        let all = 1_000_000;
        for (what, words) in [
            ("nothing", vec![]),
            ("all of the GPU", vec![(LIMIT, all), (REQUEST, all), (PRIORITY, 1), (USED_UNTIL, 0)]),
            ("nothing was used", vec![(USED_UNTIL, 0)]),
            ("a hundredth", vec![(LIMIT, all / 100), (REQUEST, 1), (PRIORITY, 2)]),
            ("a debt of ten minutes", vec![(USED_UNTIL, now() + ten_minutes)]),
        ] {
            let _forger = Forger::new(&scene.regions, &words);
            milliseconds(600);
            expect(&mut text, || {
                let got = busy_share(&scene.world, Duration::from_millis(600));
                (format!("{switch}, forged: {what}; {got:.1}% of {WANTED}%"), (got - WANTED).abs() < TOLERANCE)
            });
        }
    }
    report("entitled-shares", &text);
}
