//! Processes that ask the driver in our stead: a driver can crash whoever calls it, or keep it for ever, and that shall be a finding.
//!
//! Each is a process group of its own, so that what the driver starts in it ends with it.

use std::fmt;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::said::Said;

/// Between two looks at what may have happened meanwhile.
const LOOK: Duration = Duration::from_millis(10);
/// A process that the kernel does not let go of is not waited for longer.
const BURIAL: Duration = Duration::from_secs(2);
/// What was written to a pipe before its writer ended is there by then.
const LATE: Duration = Duration::from_millis(200);
/// So much of what it writes to standard error is kept.
const MOST: u64 = 16 << 10;

/// Somebody wants us to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

/// Signals that ask us to end, noted.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn catch() -> Interrupt {
        let is = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Where it cannot be caught it ends us as ever, and files stay that are small and in memory.
            let _ = signal_hook::flag::register(signal, Arc::clone(&is));
        }
        Interrupt(is)
    }

    fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By itself.
    Ended(i32),
    /// By a signal.
    Signalled(i32),
    /// It was killed, after so long.
    TimedOut(Duration),
    /// The same, and the kernel does not let go of it.
    Stuck(Duration),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Ended(code) => write!(f, "ended with status {code}"),
            How::Signalled(signal) => {
                let named = Signal::from_named_raw(*signal).map(|it| format!("{it:?}")).unwrap_or_default();
                // Such as `"Signal::SEGV"`, as that crate has it.
                let name: String = named.rsplit(':').next().unwrap_or_default().replace('"', "");
                match name.is_empty() {
                    true => write!(f, "crashed with signal {signal}"),
                    false => write!(f, "crashed with signal {signal} (SIG{name})"),
                }
            }
            How::TimedOut(limit) => write!(f, "did not answer within {} s", limit.as_secs_f64()),
            How::Stuck(limit) => {
                write!(f, "did not answer within {} s, and cannot even be killed", limit.as_secs_f64())
            }
        }
    }
}

/// The next thing that a process does.
#[derive(Debug)]
pub enum Event {
    Said(Said),
    Over(How),
}

/// One of these processes.
pub struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
    interrupt: Interrupt,
    patience: Duration,
    deadline: Instant,
    over: Option<How>,
    /// What it said that it is about to do.
    pub at: String,
}

/// All that a process said, and how it ended.
pub struct Answer {
    pub said: Vec<Said>,
    pub how: How,
    /// What it was at when it ended.
    pub at: String,
    /// What is on its standard error.
    pub errors: String,
}

impl Child {
    /// Starts one, which has so long.
    pub fn start(command: &mut Command, patience: Duration, interrupt: &Interrupt) -> Result<Child, std::io::Error> {
        let mut process =
            command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (sender, lines) = channel();
        if let Some(output) = process.stdout.take() {
            std::thread::spawn(move || {
                // Nobody has to hear it out.
                let _ = BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
            });
        }
        let (sender, errors) = channel();
        if let Some(mut output) = process.stderr.take() {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = output.by_ref().take(MOST).read_to_end(&mut text);
                let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
                // Whoever writes more than that is not to wait for a reader.
                let _ = std::io::copy(&mut output, &mut std::io::sink());
            });
        }
        let deadline = Instant::now() + patience;
        let (interrupt, at) = (interrupt.clone(), "starting".into());
        Ok(Child { process, lines, errors, interrupt, patience, deadline, over: None, at })
    }

    /// What it says next, or how it ended.
    pub fn next(&mut self) -> Result<Event, Interrupted> {
        loop {
            if let Some(how) = self.over {
                return Ok(Event::Over(how));
            }
            self.interrupt.check()?;
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => {
                    if let Some(event) = self.heard(&line) {
                        return Ok(event);
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) if self.has_ended() => {
                    while let Ok(line) = self.lines.recv_timeout(LATE) {
                        if let Some(event) = self.heard(&line) {
                            return Ok(event);
                        }
                    }
                    self.over = Some(self.bury());
                }
                Err(_) if Instant::now() >= self.deadline => {
                    self.kill_group();
                    self.over = Some(match self.bury() {
                        How::Stuck(limit) => How::Stuck(limit),
                        _ => How::TimedOut(self.patience),
                    });
                }
                Err(RecvTimeoutError::Timeout) => {}
                // It has closed its output, and works on.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
        }
    }

    /// Hears it out.
    pub fn finish(mut self) -> Result<Answer, Interrupted> {
        let mut said = Vec::new();
        loop {
            match self.next()? {
                Event::Said(one) => said.push(one),
                Event::Over(how) => {
                    let errors = self.errors();
                    return Ok(Answer { said, how, at: self.at.clone(), errors });
                }
            }
        }
    }

    /// What it wrote to standard error; known when it has ended.
    pub fn errors(&mut self) -> String {
        self.errors.recv_timeout(LATE).unwrap_or_default()
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    fn heard(&mut self, line: &str) -> Option<Event> {
        match serde_json::from_str(line).ok()? {
            Said::At(what) => {
                self.at = what;
                None
            }
            said => Some(Event::Said(said)),
        }
    }

    /// Whether it is over. It is not waited for, so that its number stays its own.
    fn has_ended(&self) -> bool {
        let Some(pid) = Pid::from_raw(self.process.id().cast_signed()) else { return true };
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        !matches!(waitid(WaitId::Pid(pid), how), Ok(None))
    }

    /// Ends what is left of its group. It was not waited for, so the number is its own.
    fn kill_group(&self) {
        if let Some(group) = Pid::from_raw(self.process.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Waits for it, and ends what is left of its group before.
    fn bury(&mut self) -> How {
        let end = Instant::now() + BURIAL;
        while !self.has_ended() {
            if Instant::now() >= end {
                return How::Stuck(self.patience);
            }
            std::thread::sleep(LOOK);
        }
        self.kill_group();
        match self.process.wait() {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => How::Ended(code),
                (None, signal) => How::Signalled(signal.unwrap_or(0)),
            },
            Err(_) => How::Ended(-1),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.over.is_none() {
            self.kill_group();
            self.bury();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str, patience: Duration) -> Child {
        let mut command = Command::new("sh");
        let interrupt = Interrupt(Arc::new(AtomicBool::new(false)));
        Child::start(command.args(["-c", script]), patience, &interrupt).expect("sh runs")
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn what_it_said_and_how_it_ended_is_known() {
        let answer = start(r#"echo '{"At":"one"}'; echo '"Ready"'; echo x >&2; echo noise; exit 3"#, LONG).finish();
        let answer = answer.expect("nobody interrupts");
        assert_eq!((answer.how, answer.at.as_str(), answer.errors.as_str()), (How::Ended(3), "one", "x\n"));
        assert!(matches!(answer.said[..], [Said::Ready]), "{:?}", answer.said);
        let answer = start("kill -SEGV $$", LONG).finish().expect("nobody interrupts");
        assert_eq!(answer.how, How::Signalled(11));
        assert!(answer.how.to_string().ends_with("signal 11 (SIGSEGV)"), "{}", answer.how);
    }

    #[test]
    fn one_that_hangs_ends_with_all_that_it_started() {
        let began = Instant::now();
        let child = start(r#"sleep 100 & echo '{"At":"two"}'; echo $! >&2; wait"#, Duration::from_millis(300));
        let answer = child.finish().expect("nobody interrupts");
        assert!(began.elapsed() < Duration::from_secs(5), "it was waited for");
        assert_eq!((answer.how, answer.at.as_str()), (How::TimedOut(Duration::from_millis(300)), "two"));
        let other: i32 = answer.errors.trim().parse().expect("a number");
        let is_there = || std::fs::read_to_string(format!("/proc/{other}/stat")).is_ok_and(|it| !it.contains(") Z "));
        let end = Instant::now() + LONG;
        while is_there() {
            assert!(Instant::now() < end, "what it started runs on");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn one_that_leaves_something_behind_is_not_waited_for_long() {
        let began = Instant::now();
        let answer = start("sleep 100 & exit 0", LONG).finish().expect("nobody interrupts");
        assert_eq!(answer.how, How::Ended(0));
        assert!(began.elapsed() < Duration::from_secs(5), "the pipe was waited for");
    }

    #[test]
    fn an_interruption_ends_it() {
        let child = start("sleep 100", LONG);
        child.interrupt.0.store(true, Ordering::Relaxed);
        let (id, began) = (child.id(), Instant::now());
        assert!(child.finish().is_err() && began.elapsed() < Duration::from_secs(5));
        assert!(std::fs::metadata(format!("/proc/{id}")).is_err(), "it runs on");
    }
}
