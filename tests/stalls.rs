//! How long a container's GPU work stands still when something happens to a neighbour that fills the GPU, too: beyond what it stands still
//! beside one to which nothing happens. By the simulated GPU's own record, looked at every 2 ms: where the host kept from that who looks,
//! nobody can tell, and it is tried again.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[path = "caps/container.rs"]
mod container;
#[path = "channels/steered.rs"]
mod steered;
mod support;

use container::Session;
use steered::{Steered, milliseconds};
use support::{compile, report};

/// No neighbour stands still for longer than so, of a hundred tries in all but one.
const MOST: Duration = Duration::from_millis(100);

/// Who looks so late has not seen what stood still in between, and neither had the others the processor when they needed it.
const LATE: Duration = Duration::from_millis(25);
/// So many tries in a row may be void for that; then what was seen counts.
const VOID: usize = 20;

/// Something that happens to the neighbour, whose files are given.
type Deed = fn(libc::pid_t, &[PathBuf]);

fn send(process: libc::pid_t, signal: i32) {
    // SAFETY: plain numbers; the process was not waited for, so nobody else has its number.
    unsafe { libc::kill(process, signal) };
}

fn public(files: &[PathBuf]) -> &Path {
    files.iter().find(|path| path.extension().is_some_and(|it| it == "public")).expect("it has a page")
}

fn region(files: &[PathBuf]) -> &Path {
    files.iter().find(|path| path.extension().is_some_and(|it| it == "region")).expect("it has a region")
}

fn cut(path: &Path) {
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0)).expect("it can be cut");
}

const DEEDS: &[(&str, Deed)] = &[
    ("nothing", |_, _| {}),
    ("kill -9", |it, _| send(it, libc::SIGKILL)),
    ("SIGTERM", |it, _| send(it, libc::SIGTERM)),
    ("SIGSTOP", |it, _| send(it, libc::SIGSTOP)),
    ("SIGSTOP for 50 ms", |it, _| {
        send(it, libc::SIGSTOP);
        milliseconds(50);
        send(it, libc::SIGCONT);
    }),
    ("its region is cut short", |_, files| cut(region(files))),
    ("its region is removed", |_, files| std::fs::remove_file(region(files)).expect("it can be removed")),
    ("its page is cut short", |_, files| cut(public(files))),
    ("its page is removed", |_, files| std::fs::remove_file(public(files)).expect("it can be removed")),
    ("its page is written over", |_, files| {
        std::fs::write(public(files), vec![0xff; 36_864]).expect("it can be written to");
    }),
];

struct Stage {
    steered: Steered,
    steady: Session,
}

impl Stage {
    fn new() -> Stage {
        let steered = Steered::new(compile("compute_work"));
        let steady = steered.start("tests/steady", &[("RATION_COMPUTE_REQUEST", "50%")], &["queue", "500", "7200"]);
        Stage { steered, steady }
    }

    /// For how long the steady one stood still at most, within so long from now on; and how long it was not looked at.
    fn longest(&self, window: Duration) -> (Duration, Duration) {
        let begun = Instant::now();
        let work = || self.steered.worked(&self.steady);
        let (mut last, mut since, mut longest) = (work(), begun, Duration::ZERO);
        let (mut looked, mut latest) = (Instant::now(), Duration::ZERO);
        while begun.elapsed() < window {
            milliseconds(2);
            let (now, at) = (work(), Instant::now());
            longest = longest.max(at - since);
            latest = latest.max(at - looked);
            looked = at;
            if now != last {
                (last, since) = (now, at);
            }
        }
        (longest, latest)
    }

    /// How much longer it stood still for that; and whether anybody can tell.
    fn stall(&self, number: usize, deed: Deed) -> (Duration, bool) {
        let name = format!("tests/neighbour-{number}");
        let settings = [("RATION_COMPUTE_REQUEST", "50%"), ("RATION_LOG", "off")];
        let neighbour = self.steered.start(&name, &settings, &["queue", "500", "60"]);
        milliseconds(250);
        let (before, late) = self.longest(Duration::from_millis(200));
        let inside = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let ends = format!("neighbour-{number}");
        let dirs = inside(self.steered.regions.0.clone()).filter(|dir| dir.to_string_lossy().ends_with(&ends));
        let files: Vec<PathBuf> = dirs.flat_map(inside).collect();
        let (after, later) = std::thread::scope(|scope| {
            let (process, files) = (neighbour.child.id() as libc::pid_t, &files);
            scope.spawn(move || deed(process, files));
            self.longest(Duration::from_millis(450))
        });
        (after.saturating_sub(before), late.max(later) < LATE)
    }
}

/// `RATION_TEST_STALLS` says how often each is tried.
#[test]
fn neighbours_go_on_whatever_happens_to_one() {
    let tries = std::env::var("RATION_TEST_STALLS").map_or(2, |text| text.parse::<usize>().expect("a number"));
    let (stage, mut text, mut wrong) = (Stage::new(), String::new(), Vec::new());
    let mut number = 0;
    for (what, deed) in DEEDS {
        let mut stalls: Vec<Duration> = Vec::new();
        let (mut void, mut in_a_row) = (0, 0);
        // All but one of a hundred are short: where one of fewer is long, a hundred are tried.
        while stalls.len() < tries || stalls.len() < 100 && stalls.iter().any(|it| *it > MOST) {
            number += 1;
            let (stall, is_known) = stage.stall(number, *deed);
            if !is_known && in_a_row < VOID {
                (void, in_a_row) = (void + 1, in_a_row + 1);
                continue;
            }
            in_a_row = 0;
            stalls.push(stall);
        }
        stalls.sort_unstable();
        let at = |part: usize| stalls[(stalls.len() * part).div_ceil(100).clamp(1, stalls.len()) - 1];
        let line = format!(
            "{what:<26} {:>4} tries: median {:>3} ms, p99 {:>3} ms, longest {:>3} ms; {void} void",
            stalls.len(),
            at(50).as_millis(),
            at(99).as_millis(),
            stalls.last().map_or(0, Duration::as_millis)
        );
        let _ = writeln!(text, "{line}");
        if at(99) > MOST {
            wrong.push(line);
        }
    }
    report("chaos-stalls", &text);
    assert!(wrong.is_empty(), "{}\n\n{text}", wrong.join("\n"));
}
