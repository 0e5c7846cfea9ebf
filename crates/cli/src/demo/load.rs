//! Whether this machine had time for our workers. Containers that take turns have to run when it is their turn, and where
//! others have the CPU, they cannot: what is measured then says little about the GPU.

use std::fs::{read_dir, read_to_string};
use std::time::Instant;

/// How long workers have been ready to run and were not let, up to a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    at: Instant,
    /// Of each worker, over its threads.
    waited_ns: Vec<u64>,
}

impl Load {
    /// Until now. Nothing, where the system does not say.
    pub fn now(pids: &[u32]) -> Option<Load> {
        let waited_ns = pids.iter().map(|pid| process(*pid)).collect::<Option<_>>()?;
        Some(Load { at: Instant::now(), waited_ns })
    }

    /// How long each worker waited, for each unit of time since then. Threads wait at the same time, so it may be more than
    /// one.
    pub fn waited_since(&self, then: &Load) -> Vec<f64> {
        let time_ns = (self.at - then.at).as_nanos().max(1) as f64;
        let waits = self.waited_ns.iter().zip(&then.waited_ns).map(|(now, then)| now.saturating_sub(*then));
        waits.map(|wait| wait as f64 / time_ns).collect()
    }
}

fn process(pid: u32) -> Option<u64> {
    let threads = read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    threads.map(|thread| waited(&read_to_string(thread.path().join("schedstat")).ok()?)).sum()
}

/// The second word of a thread's `schedstat`: nanoseconds that it was on a queue for a CPU. The first is what it had of
/// one.
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn waits_are_parts_of_the_time() {
        let at = Instant::now();
        let then = Load { at, waited_ns: vec![5_000_000, 0] };
        let now = Load { at: at + Duration::from_millis(100), waited_ns: vec![30_000_000, 10_000_000] };
        assert_eq!(now.waited_since(&then), [0.25, 0.1]);
        assert_eq!(then.waited_since(&then), [0.0, 0.0]);
    }

    #[test]
    fn what_the_system_says_is_understood() {
        assert_eq!(waited("12345 678 9\n"), Some(678));
        assert_eq!((waited(""), waited("1 x 2")), (None, None));
        assert!(Load::now(&[u32::MAX]).is_none(), "no such process");
    }
}
