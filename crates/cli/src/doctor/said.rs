//! What a process that asks the driver says to the one that started it: a line of JSON each.

use std::io::Write as _;

use serde::{Deserialize, Serialize};

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Said {
    /// It is about to do this. Where nothing follows, this is what did not come back.
    At(String),
    /// The library cannot be loaded, in the loader's words, or lacks something.
    Missing(String),
    /// The driver refused.
    Refused { call: String, code: i32, name: String },
    /// CUDA's version, as the driver numbers it.
    Cuda(i32),
    /// A GPU as CUDA shows it.
    Device { index: i32, name: String, uuid: String, bytes: u64 },
    /// The driver's release.
    Release(String),
    /// A GPU as NVML shows it.
    Card(Card),
    /// The copies of our library that are loaded, by their paths.
    Loaded(Vec<String>),
    /// The memory that the driver says there is, and its answers to being asked for what is over the cap and for what is below it.
    Memory { total: u64, over: i32, under: i32 },
    /// It will work from now on.
    Ready,
    /// So many kernels are done.
    Done(u64),
}

/// What NVML says of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Card {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    /// Bytes, all and taken.
    pub memory: Option<(u64, u64)>,
    pub mig: Option<bool>,
    pub compute_mode: Option<u32>,
    /// Whether this driver can hold cgroups to limits of its own.
    pub has_limits: bool,
    /// The one that is set for this process's cgroup.
    pub limit: Option<u64>,
}

/// Says it, or ends: then nobody wants to know any more.
pub fn say(said: &Said) {
    let Ok(line) = serde_json::to_string(said) else { return };
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}
