//! `ration` believes nothing that it reads: what two slices left is damaged at random, again and again, and each command is asked.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[path = "caps/container.rs"]
mod container;
#[path = "cli/desk.rs"]
mod desk;
mod support;

use desk::{Desk, ration};
use support::random::Random;
use support::report;

/// Unless `RATION_TEST_DAMAGE` says how often.
const ROUNDS: usize = 60;

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] }).collect()
}

/// A directory with all that is in it, as it is.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let done = Command::new("cp").args(["-a", "--"]).args([from, to]).status();
    assert!(done.is_ok_and(|it| it.success()), "{} is copied", from.display());
}

/// Something happens to a file.
fn damage(path: &Path, random: &mut Random) -> &'static str {
    let mut bytes = fs::read(path).unwrap_or_default();
    let length = bytes.len() as u64;
    let mut noise = |count: u64| (0..count).map(|_| random.below(256) as u8).collect::<Vec<_>>();
    let told = match noise(1)[0] % 10 {
        0 => {
            bytes.truncate(random.below(length + 1) as usize);
            "cut short"
        }
        1 => {
            bytes.extend(noise(5000));
            "longer"
        }
        2 => {
            bytes = noise(length.min(1 << 16));
            "noise"
        }
        3 => {
            bytes.fill(0xff);
            "ones"
        }
        4 => {
            bytes = vec![0; 64 << 20];
            "large"
        }
        5 | 6 => {
            let _ = fs::remove_file(path);
            let made = match random.below(4) {
                0 => fs::create_dir(path).is_ok(),
                1 => symlink("/dev/zero", path).is_ok(),
                2 => symlink(path, path).is_ok(),
                _ => Command::new("mkfifo").arg(path).status().is_ok_and(|it| it.success()),
            };
            assert!(made, "{}", path.display());
            return "something else";
        }
        _ => {
            for _ in 0..=random.below(200) {
                let (at, value) = (random.below(length.max(1)) as usize, random.below(256) as u8);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            "bytes"
        }
    };
    fs::write(path, bytes).expect("it is ours");
    told
}

/// What an exporter says.
fn scraped(port: u16) -> String {
    let mut said = String::new();
    let deadline = Instant::now() + desk::PATIENCE;
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "it does not listen: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    let asked = stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").and_then(|()| stream.read_to_string(&mut said));
    assert!(asked.is_ok() && said.starts_with("HTTP/1.") && said.contains(" 200 "), "{asked:?} {said}");
    said
}

#[test]
fn whatever_files_say_each_command_answers() {
    let desk = Desk::new();
    let sessions = ["one", "two"].map(|name| desk.hold(&["--name", name, "--memory", "2GiB", "--compute", "30%"]));
    let (regions, notes) = (desk.regions.0.with_extension("whole"), desk.notes.with_extension("whole"));
    copy(&desk.regions.0, &regions);
    copy(&desk.notes, &notes);
    drop(sessions);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    drop(listener);
    let mut exporter = desk.machine.command(ration());
    exporter.args(["export", "--listen", &format!("127.0.0.1:{port}")]);
    exporter.env("RATION_DIR", &desk.regions.0).env("XDG_RUNTIME_DIR", &desk.notes);
    let mut exporter = exporter.spawn().expect("it starts");
    let mut random = Random(20);
    let (mut commands, mut refused) = (0, 0);
    let rounds = std::env::var("RATION_TEST_DAMAGE").map_or(ROUNDS, |text| text.parse().expect("a number"));
    for round in 0..rounds {
        copy(&regions, &desk.regions.0);
        copy(&notes, &desk.notes);
        fs::set_permissions(&desk.notes, fs::Permissions::from_mode(0o700)).expect("it is ours");
        let mut all = files(&desk.regions.0);
        all.extend(files(&desk.notes));
        let mut done = Vec::new();
        for _ in 0..=random.below(3) {
            let path = all.swap_remove(random.below(all.len() as u64) as usize);
            done.push((damage(&path, &mut random), path));
        }
        for (verb, arguments) in [
            ("status", &[][..]),
            ("status", &["--json"]),
            ("top", &["--once"]),
            ("set", &["one", "--memory", "1GiB"]),
            ("reap", &["--dry-run"]),
            ("reap", &[]),
        ] {
            // It watches for a second.
            if verb == "top" && round % 10 != 0 {
                continue;
            }
            let began = Instant::now();
            let answer = desk.answer(verb, arguments);
            let told = || format!("round {round}, {done:?}: ration {verb} {arguments:?}: {answer:?}");
            assert!((0..=2).contains(&answer.status) && !answer.err.contains("panicked"), "{}", told());
            assert!(began.elapsed() < Duration::from_secs(10), "{}", told());
            assert!(answer.status == 0 || !answer.err.is_empty(), "no word of why: {}", told());
            let strange = |text: &str| text.chars().any(|it| it.is_control() && it != '\n');
            assert!(!strange(&answer.out) && !strange(&answer.err), "{}", told());
            if arguments == ["--json"] {
                assert!(serde_json::from_str::<serde_json::Value>(&answer.out).is_ok(), "{}", told());
            }
            (commands, refused) = (commands + 1, refused + usize::from(answer.status != 0));
        }
        if round % 10 == 0 {
            scraped(port);
        }
    }
    let _ = exporter.kill();
    let _ = exporter.wait();
    for dir in [regions, notes] {
        let _ = fs::remove_dir_all(dir);
    }
    report("cli-damage", &format!("{commands} commands beside damaged files; {refused} refused, and said why\n"));
}
