//! Tries: what a test measures on a machine that may stand still for a while.
//!
//! A machine that others use too stops us for milliseconds at a time, and what is measured meanwhile says nothing. So a
//! thread watches, while something is tried, how late it is woken; and the kernel is asked how much of the processors' time
//! others had, for those that run all the time are stopped more often than one that mostly sleeps. What fails on a machine
//! that kept up counts; what fails on one that did not is tried again, for a while; and where it never did, nothing is judged,
//! and that is said.

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// So many tries may fail on a machine that kept up, and so many altogether.
const COUNTED: usize = 3;
const ALTOGETHER: usize = 10;
/// A machine keeps up if a thread that sleeps for a millisecond at a time is late for less than this part of the time.
const LATE: f64 = 0.02;
/// And others have less than this part of its processors' time.
const STOLEN: f64 = 0.03;
/// A thread is woken a tenth of a millisecond late, or less, on a machine that has nothing else to do.
const USUAL: Duration = Duration::from_micros(200);
/// What disturbs the machine gets so long to be over.
const PAUSE: Duration = Duration::from_secs(2);

/// Watches whether the machine keeps up.
struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<f64>,
    processors: [u64; 2],
}

/// How much of a time a machine did not keep up: for which part of it a thread was late, and which part of the processors' time
/// others had.
struct Lost {
    late: f64,
    stolen: f64,
}

impl Lost {
    fn is_little(&self) -> bool {
        self.late < LATE && self.stolen < STOLEN
    }
}

/// How much of the processors' time others had since the machine runs, and all of it, in the kernel's ticks. A machine of which
/// this cannot be told is nobody else's.
fn processors() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    // Of user, nice, system, idle, waiting, interrupts (two) and stolen; what guests have is part of the first two.
    let ticks = text.lines().next().into_iter().flat_map(str::split_whitespace).skip(1).take(8);
    let ticks: Vec<u64> = ticks.filter_map(|word| word.parse().ok()).collect();
    [ticks.get(7).copied().unwrap_or(0), ticks.iter().sum()]
}

impl Watch {
    fn start() -> Watch {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let (began, mut late) = (Instant::now(), Duration::ZERO);
            while !seen.load(Ordering::Relaxed) {
                let slept = Instant::now();
                std::thread::sleep(Duration::from_millis(1));
                late += slept.elapsed().saturating_sub(Duration::from_millis(1) + USUAL);
            }
            late.as_secs_f64() / began.elapsed().as_secs_f64().max(1e-3)
        });
        Watch { is_over, thread, processors: processors() }
    }

    /// How much it did not.
    fn end(self) -> Lost {
        self.is_over.store(true, Ordering::Relaxed);
        let late = self.thread.join().expect("the watch ends");
        let [stolen, all] = processors();
        let passed = all.saturating_sub(self.processors[1]).max(1);
        Lost { late, stolen: stolen.saturating_sub(self.processors[0]) as f64 / passed as f64 }
    }
}

/// A test does not try again for longer than this in all; nor, where the machine never kept up, once all tests of a run together
/// have done so for longer than that: such a machine has better things to do.
const PATIENCE: Duration = Duration::from_secs(150);
const PATIENCE_OF_ALL: Duration = Duration::from_secs(300);
static TRIED: Mutex<Duration> = Mutex::new(Duration::ZERO);

/// How long this test has tried in vain, with this much more, and how long all tests of the run have. Under nextest each of them is
/// a process of its own, so that is kept in a file.
fn tried(more: Duration) -> (Duration, Duration) {
    let mut mine = TRIED.lock().expect("nobody fails with it");
    *mine += more;
    let Ok(run) = std::env::var("NEXTEST_RUN_ID") else { return (*mine, *mine) };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tried-{run}"));
    let appended = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    // One write each, so that those of others are not in the middle of it.
    let written = appended.and_then(|mut file| file.write_all(format!("{}\n", more.as_millis()).as_bytes()));
    let all = written.and_then(|()| std::fs::read_to_string(&path)).expect("the target directory is writable");
    (*mine, Duration::from_millis(all.lines().filter_map(|line| line.parse::<u64>().ok()).sum()))
}

/// Tries until it is good, or has failed often enough for the failure to count. The last that counts is given back; nothing, if the
/// machine kept up in none of them.
pub fn until_good<T>(mut attempt: impl FnMut() -> T, is_good: impl Fn(&T) -> bool) -> Option<T> {
    let (mut counted, mut last_counted) = (0, None);
    for number in 1.. {
        let (began, watch) = (Instant::now(), Watch::start());
        let last = attempt();
        let lost = watch.end();
        if is_good(&last) {
            return Some(last);
        }
        let (late, stolen) = (100.0 * lost.late, 100.0 * lost.stolen);
        println!(
            "try {number} failed; the machine was late for {late:.1}% of the time, and others had {stolen:.1}% of it"
        );
        if lost.is_little() {
            counted += 1;
            last_counted = Some(last);
        } else {
            std::thread::sleep(PAUSE);
        }
        if counted == COUNTED {
            return last_counted;
        }
        let (mine, all) = tried(began.elapsed());
        if number >= ALTOGETHER || mine > PATIENCE || counted == 0 && all > PATIENCE_OF_ALL {
            if last_counted.is_none() {
                // A test that passes is silent; what is reported is seen all the same.
                let test = std::thread::current().name().unwrap_or("a test").to_owned();
                let text = format!(
                    "NOT JUDGED: {test}. This machine had no time for what it measures, in none of {number} tries\n"
                );
                super::report(&format!("not-judged-{test}-{}", std::process::id()), &text);
            }
            return last_counted;
        }
    }
    unreachable!("the loop ends by itself")
}
