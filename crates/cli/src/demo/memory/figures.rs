//! What the containers say about themselves, and what came out in the end.

use serde::{Deserialize, Serialize};

use super::super::wire::Tidings;

/// The parts of a run, as steady lives through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Greedy has not asked for anything yet.
    Before,
    /// Greedy takes memory.
    Taking,
    /// Greedy has been refused, and has all that it could get.
    Full,
}

/// What got done in a part of a run, by the program's own clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// From the end of the last unit before it to the end of the last one in it.
    pub elapsed_ns: u64,
    /// Requests that came, or rounds that were begun.
    pub tried: u64,
    /// Those that were answered, or finished.
    pub done: u64,
}

impl Work {
    /// Units that got done, per second; nothing, where none was tried.
    pub fn rate(&self) -> Option<f64> {
        (self.tried != 0 && self.elapsed_ns != 0).then(|| self.done as f64 * 1e9 / self.elapsed_ns as f64)
    }
}

/// A program's account of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The GPU's memory, as `cuMemGetInfo` gives it inside the container.
    pub total_bytes: u64,
    /// What of that is free, likewise.
    pub free_bytes: u64,
    /// What it has taken and not given back.
    pub held_bytes: u64,
    /// How often it asked for memory.
    pub asked: u64,
    /// For how many bytes, all together.
    pub asked_bytes: u64,
    /// How often it was refused.
    pub refused: u64,
    /// The driver's name for the last refusal.
    pub refused_with: Option<String>,
    /// Whether it has all that it could get; steady wants no more than it has.
    pub full: bool,
    /// Before greedy asks for anything.
    pub before: Work,
    /// While greedy takes memory.
    pub taking: Work,
    /// Once greedy has all that it could get. Greedy itself works only now.
    pub after: Work,
}

impl Account {
    /// What got done in this part.
    pub fn work(&mut self, part: Part) -> &mut Work {
        match part {
            Part::Before => &mut self.before,
            Part::Taking => &mut self.taking,
            Part::Full => &mut self.after,
        }
    }

    /// Over all parts: nanoseconds, and units that got done.
    pub fn progress(&self) -> (u64, u64) {
        let parts = [&self.before, &self.taking, &self.after];
        parts.iter().fold((0, 0), |(ns, done), work| (ns + work.elapsed_ns, done + work.done))
    }
}

/// From a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// It has its context and its kernel, steady also its model, and waits for the order to start.
    Ready(Account),
    /// How far it is.
    Running(Account),
    /// The last of them.
    Finished(Account),
}

impl Tidings for News {
    fn is_last(&self) -> bool {
        matches!(self, News::Finished(_))
    }
}

/// A container in one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ContainerResult {
    /// What it is called.
    pub name: &'static str,
    /// Its process.
    pub pid: u32,
    /// Its limit, if it has one.
    pub limit_bytes: Option<u64>,
    /// What it says about itself.
    pub believes: Account,
    /// What it held at the end, by the GPU's record.
    pub gpu_bytes: u64,
    /// The most that it ever held, by the GPU's record.
    pub gpu_peak_bytes: u64,
    /// That as a part of its limit.
    pub of_limit: Option<f64>,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunResult {
    /// Whether ration was there.
    pub with_ration: bool,
    /// Greedy.
    pub greedy: ContainerResult,
    /// Steady.
    pub steady: ContainerResult,
}

/// The act.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryResults {
    /// The GPU's name.
    pub gpu: String,
    /// Its memory.
    pub gpu_bytes: u64,
    /// As things are without us.
    pub without: RunResult,
    /// As they are with us.
    pub with: RunResult,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_what_got_done() {
        let work = |tried, done| Work { elapsed_ns: 500_000_000, tried, done };
        assert_eq!(work(25, 25).rate(), Some(50.0));
        assert_eq!(work(25, 0).rate(), Some(0.0), "tried and failed is not the same as not tried");
        assert_eq!(work(0, 0).rate(), None);
    }

    #[test]
    fn parts_are_kept_apart_and_add_up() {
        let mut account = Account::default();
        for (part, done) in [(Part::Before, 1), (Part::Taking, 20), (Part::Full, 300)] {
            *account.work(part) = Work { elapsed_ns: done * 1000, tried: done, done };
        }
        assert_eq!((account.before.done, account.taking.done, account.after.done), (1, 20, 300));
        assert_eq!(account.progress(), (321_000, 321));
    }

    #[test]
    fn news_arrive_as_they_were_sent() {
        let account = Account { asked: 3, refused_with: Some("CUDA_ERROR_OUT_OF_MEMORY".into()), ..Account::default() };
        for news in [News::Ready(account.clone()), News::Running(account.clone()), News::Finished(account)] {
            let line = serde_json::to_string(&news).expect("JSON");
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<News>(&line).expect("its own"), news);
        }
    }
}
