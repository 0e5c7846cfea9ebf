//! The act about memory. Two containers on one simulated GPU, played twice, without ration and with it.
//!
//! `greedy` takes all the memory that it can get; `steady` serves requests, and needs a little memory for each
//! ([`container`]). The two are the same programs both times; the second time, `libration.so` is preloaded into them,
//! and each has a limit ([`play`]). What a program believes is its own account of itself ([`figures`]); what the GPU
//! says is the simulated GPU's own record, which no program can touch.

pub mod container;
mod figures;
mod plain;
mod play;
mod report;
mod scene;

use std::time::Duration;

use clap::ValueEnum;

pub use figures::MemoryResults;
pub use plain::Lines;
pub use play::Play;
pub use report::{report, short};
#[cfg(test)]
pub use scene::staged;
pub use scene::{Actor, Run, Scene};

/// A container, by what its program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Takes all the memory that it can get, and then works with it.
    Greedy,
    /// Serves requests, and needs a little memory for each.
    Steady,
}

impl Role {
    /// Both, in the order in which they are shown.
    pub const ALL: [Role; 2] = [Role::Greedy, Role::Steady];

    /// What it is called: in the view, and as a container.
    pub fn name(self) -> &'static str {
        match self {
            Role::Greedy => "greedy",
            Role::Steady => "steady",
        }
    }

    /// What it gets done.
    pub fn unit(self) -> &'static str {
        match self {
            Role::Greedy => "rounds",
            Role::Steady => "answers",
        }
    }

    /// Its limit, where there are limits. Steady's is a little more than it needs.
    pub fn limit(self) -> u64 {
        match self {
            Role::Greedy => 8 << 30,
            Role::Steady => 6 << 30,
        }
    }
}

/// The GPU that the act needs at least: with less, limits of this size would be no fractions of it.
pub const LEAST_GPU: u64 = 24 << 30;

/// How long the parts of a run take. How long greedy takes to fill up is its own affair.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Steady has the GPU for itself.
    pub before: Duration,
    /// Greedy has all that it could get.
    pub after: Duration,
}

impl Times {
    /// To be looked at.
    pub const FULL: Times = Times { before: Duration::from_millis(700), after: Duration::from_millis(900) };
    /// For tests.
    pub const FAST: Times = Times { before: Duration::from_millis(300), after: Duration::from_millis(400) };

    /// About how long a run takes, for scales that have to be drawn before it is known.
    pub fn run(self) -> Duration {
        self.before + container::FILLING + self.after
    }
}
