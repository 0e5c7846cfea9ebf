//! Signals that come to `ration run` and are meant for the program.
//!
//! What is typed at a terminal goes to the program as well as to this one, because they are in one process group; so only what somebody
//! sent is handed on. Stopping is done by both.

use std::io;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process, waitid};
use signal_hook::SigId;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH};

const HANDED_ON: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT];

/// What handlers know.
#[derive(Default)]
struct Known {
    /// The program; 0: it has not begun, or has ended.
    child: AtomicI32,
    /// Signals that came before it began, a bit each.
    early: AtomicU64,
}

impl Known {
    /// By a handler: a load and a system call.
    fn hand_on(&self, signal: i32) {
        let child = Pid::from_raw(self.child.load(Ordering::SeqCst));
        match (child, Signal::from_named_raw(signal)) {
            (Some(child), Some(signal)) => drop(kill_process(child, signal)),
            _ => drop(self.early.fetch_or(1 << signal, Ordering::SeqCst)),
        }
    }
}

/// Signals are caught while this is there.
pub struct Signals {
    known: Arc<Known>,
    registered: Vec<SigId>,
}

impl Signals {
    /// From now on.
    pub fn catch() -> io::Result<Signals> {
        let mut signals = Signals { known: Arc::default(), registered: Vec::new() };
        let ignored = ignored();
        for signal in HANDED_ON.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0) {
            let known = Arc::clone(&signals.known);
            signals.register(signal, move |was_sent| {
                if was_sent {
                    known.hand_on(signal);
                }
            })?;
        }
        if is_under_a_shell() {
            let known = Arc::clone(&signals.known);
            signals.register(SIGTSTP, move |was_sent| {
                if was_sent {
                    known.hand_on(SIGTSTP);
                }
                let _ = signal_hook::low_level::raise(SIGSTOP);
            })?;
        }
        Ok(signals)
    }

    fn register(&mut self, signal: i32, handler: impl Fn(bool) + Send + Sync + 'static) -> io::Result<()> {
        // More than 0: the kernel's own doing, as for what is typed.
        let handler = move |about: &libc::siginfo_t| handler(about.si_code <= 0);
        // SAFETY: the handlers above load a word, change one, and make system calls, all of which handlers may do.
        self.registered.push(unsafe { signal_hook_registry::register_sigaction(signal, handler) }?);
        Ok(())
    }

    /// The program has begun.
    pub fn hand_on_to(&self, child: &Child) {
        self.known.child.store(child.id().cast_signed(), Ordering::SeqCst);
        let early = self.known.early.swap(0, Ordering::SeqCst);
        (1..64).filter(|signal| early >> signal & 1 != 0).for_each(|signal| self.known.hand_on(signal));
    }

    /// Waits for its end. Until it is waited for, nobody else has its number; so that is done once nothing is handed on any more.
    pub fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
            while let Err(error) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                if error != rustix::io::Errno::INTR {
                    return Err(error.into());
                }
            }
        }
        self.known.child.store(0, Ordering::SeqCst);
        child.wait()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Whether a shell looks after this program, which takes it on again when it has stopped.
///
/// A parent outside of our PID namespace, as in a container, is none. A session's leader may be outside too: its number is 0 then, which
/// rustix takes for one that cannot be.
fn is_under_a_shell() -> bool {
    // SAFETY: nothing of ours is read or written.
    let session = |process: i32| unsafe { libc::getsid(process) };
    let ours = session(0);
    getppid().is_some_and(|parent| ours >= 0 && session(parent.as_raw_pid()) == ours)
}

/// Signals that this program was told to ignore, as `nohup` does: then so is the program that it runs.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}
