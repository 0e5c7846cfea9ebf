//! Regions of arbitrary bytes, and everything done with them: no crash, no hang, no panic. The example `fuzz` does the same
//! for longer.

#[path = "support/hostile.rs"]
mod hostile;
mod support;

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ration_region::{MAJOR, MINOR, OpenError, Region};
use support::{GPU, Scratch, file_in};

/// How long rounds are run, and how long a child of them may take before it is a hang.
const BUDGET: Duration = Duration::from_secs(6);
const HANG: Duration = Duration::from_secs(90);

/// Not a test by itself: rounds from a seed on, for so many seconds, in a process that may crash.
#[test]
#[ignore = "run by the test below"]
fn child() {
    let setting = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (Some(mut seed), Some(millis)) = (setting("HOSTILE_SEED"), setting("HOSTILE_MILLIS")) else { return };
    let scratch = Scratch::new("hostile");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(millis) {
        eprintln!("seed {seed}");
        hostile::round(seed, &scratch.regions());
        seed += 1;
    }
}

#[test]
fn no_bytes_crash_or_hang_whoever_uses_them() {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let first = clock.as_micros() as u64;
    let scratch = Scratch::new("rounds");
    // Two at a time, so that rounds are also interrupted.
    let children: Vec<_> = [first, first + (1 << 40)]
        .into_iter()
        .enumerate()
        .map(|(number, seed)| {
            let log = scratch.join(&format!("log-{number}"));
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "child", "--ignored", "--nocapture"]);
            command.env("HOSTILE_SEED", seed.to_string()).env("HOSTILE_MILLIS", BUDGET.as_millis().to_string());
            command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).expect("a file"));
            (command.spawn().expect("this program"), log)
        })
        .collect();
    for (mut child, log) in children {
        let begun = Instant::now();
        let status = loop {
            match child.try_wait().expect("a child") {
                Some(status) => break status,
                None if begun.elapsed() > HANG => {
                    let _ = child.kill();
                    break child.wait().expect("a child");
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let said = std::fs::read_to_string(&log).expect("what it said");
        let end: Vec<&str> = said.lines().rev().take(12).collect();
        let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
        let how = match status.signal() {
            Some(libc::SIGKILL) => "hung".to_owned(),
            _ => status.to_string(),
        };
        assert!(
            status.success(),
            "a round {how}. To see it again: cargo run -p ration-region --example fuzz -- --seed N, with the last seed of:\n{end}"
        );
        let rounds = said.lines().filter(|line| line.starts_with("seed ")).count();
        println!("{rounds} rounds from seed {}", said.lines().next().unwrap_or_default());
        assert!(rounds >= 20, "too few rounds to tell anything: {rounds}");
    }
}

#[test]
fn a_file_that_is_no_region_is_refused_and_left_alone() {
    let scratch = Scratch::new("files");
    let dir = scratch.regions();
    drop(Region::open(&dir, &GPU).expect("a region"));
    let good = std::fs::read(file_in(&dir)).expect("the region");
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let cases: [(&str, Vec<u8>, &str); 8] = [
        ("nothing", Vec::new(), "it does not begin as one"),
        ("a text", b"a text that somebody put here".to_vec(), "it does not begin as one"),
        ("another magic", changed(7, b'H'), "it does not begin as one"),
        ("half of one", good[..good.len() / 2].to_vec(), "it is too short"),
        ("one without its last byte", good[..good.len() - 1].to_vec(), "it is too short"),
        ("another size of the header", changed(12, 1), "its slots are not where they should be"),
        ("another number of containers", changed(24, 65), "its slots are not where they should be"),
        ("another size of processes", changed(36, 128), "its slots are not where they should be"),
    ];
    for (case, bytes, expected) in cases {
        std::fs::write(file_in(&dir), &bytes).expect("room");
        match Region::open(&dir, &GPU) {
            Err(OpenError::NotARegion { why, path }) => assert_eq!((why, path), (expected, file_in(&dir)), "{case}"),
            other => panic!("{case}: {other:?}"),
        }
        assert!(std::fs::read(file_in(&dir)).expect("the file") == bytes, "{case} was changed");
    }
    std::fs::write(file_in(&dir), changed(41, b'x')).expect("room");
    assert!(matches!(Region::open(&dir, &GPU), Err(OpenError::OtherGpu { .. })));
    let longer = [good.clone(), vec![7; 5000]].concat();
    std::fs::write(file_in(&dir), &longer).expect("room");
    Region::open(&dir, &GPU).expect("more than is needed is no harm");
}

#[test]
fn versions_are_served_by_the_rule() {
    let scratch = Scratch::new("versions");
    let dir = scratch.regions();
    drop(Region::open(&dir, &GPU).expect("a region"));
    let mut bytes = std::fs::read(file_in(&dir)).expect("the region");
    // A newer minor version: used as it is, and its number and what it has written stay.
    bytes[10] = 9;
    bytes[100] = 77;
    std::fs::write(file_in(&dir), &bytes).expect("room");
    let region = Region::open(&dir, &GPU).expect("a newer minor version is used");
    let member = region.join("box", Some(10)).expect("room");
    member.reserve(3).expect("room");
    let now = std::fs::read(file_in(&dir)).expect("the region");
    assert_eq!((&now[8..12], now[100]), (&[2, 0, 9, 0][..], 77));
    drop((member, region));
    // Another major version: not even looked at, however much the rest looks like ours.
    bytes[8] = 3;
    std::fs::write(file_in(&dir), &bytes).expect("room");
    match Region::open(&dir, &GPU) {
        Err(error @ OpenError::Version { theirs: (3, 9), .. }) => {
            let text = error.to_string();
            assert!(text.contains("version 3.9") && text.contains(&format!("version {MAJOR}.{MINOR}")), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert!(std::fs::read(file_in(&dir)).expect("the file") == bytes, "it was changed");
}
