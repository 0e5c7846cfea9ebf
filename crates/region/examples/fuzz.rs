//! Opens regions of arbitrary bytes and does everything with them, for as long as one likes, while others write to them.
//!
//! ```console
//! $ cargo run --release -p ration-region --example fuzz -- [--seconds N] [--seed N]
//! ```
//!
//! Rounds are run by children of this program, a few thousand by each, so that a crash or a hang is noticed and its round
//! known: `--seed N` begins with that one.

#[path = "../tests/support/hostile.rs"]
mod hostile;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a round may take before it is a hang.
const LONGEST_ROUND: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, seed, rounds] = &arguments[..]
        && role == "child"
    {
        child(seed.parse().expect("a seed"), rounds.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(at + 1)?.parse::<u64>().expect("a number"))
    };
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let mut seed = value("--seed").unwrap_or(clock.as_micros() as u64);
    let (begun, limit) = (Instant::now(), Duration::from_secs(value("--seconds").unwrap_or(60)));
    let (mut rounds, mut longest) = (0u64, (0, String::new()));
    println!("from seed {seed} on, for {} seconds", limit.as_secs());
    while begun.elapsed() < limit {
        match supervise(seed, limit.saturating_sub(begun.elapsed()), &mut longest) {
            Ok(done) => (rounds, seed) = (rounds + done, seed + done),
            Err((seed, why)) => {
                println!("seed {seed}: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{rounds} rounds without a crash or a hang; what took longest: {} in {} us", longest.1, longest.0);
    ExitCode::SUCCESS
}

/// Runs rounds in a child; how many, or which one went wrong.
fn supervise(first: u64, limit: Duration, longest: &mut (u64, String)) -> Result<u64, (u64, String)> {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["child", &first.to_string(), "2000"]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("this program");
    let (send, lines) = mpsc::channel();
    let out = BufReader::new(child.stdout.take().expect("a pipe"));
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    let (begun, mut seed) = (Instant::now(), first);
    loop {
        match lines.recv_timeout(LONGEST_ROUND) {
            Ok(line) => {
                let mut words = line.split(' ');
                let took = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                if took > longest.0 {
                    *longest = (took, words.collect::<Vec<_>>().join(" "));
                }
                seed += 1;
                if begun.elapsed() > limit {
                    let _ = child.kill();
                    let _ = child.wait();
                    let _ = std::fs::remove_dir_all(place(child.id()));
                    return Ok(seed - first);
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // SAFETY: a child that nobody has waited for. It leaves a core, where there is a place for one.
                unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGABRT) };
                let _ = child.wait();
                return Err((seed, "it hangs".to_owned()));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = child.wait().expect("it has ended");
                return if status.success() { Ok(seed - first) } else { Err((seed, status.to_string())) };
            }
        }
    }
}

/// A line for each round that is done.
fn child(first: u64, rounds: u64) {
    let dir = place(std::process::id());
    let mut out = std::io::stdout().lock();
    for seed in first..first + rounds {
        let (took, what) = hostile::round(seed, &dir);
        let _ = writeln!(out, "{} {what}", took.as_micros());
    }
}

/// Where the child of this number has its regions.
fn place(child: u32) -> PathBuf {
    let above = PathBuf::from("/dev/shm");
    let above = if above.is_dir() { above } else { std::env::temp_dir() };
    above.join(format!("ration-fuzz-{child}"))
}
