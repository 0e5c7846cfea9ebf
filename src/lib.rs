//! `libration.so`: preloaded into a container's processes, it stands between them and the GPU's driver.
//!
//! At this stage it sees every call and changes none. A call passes through these rooms:
//!
//! - `table`: the one table of hooked symbols, from which the exported functions, the resolver and the counters are made;
//! - `resolve`: answers `dlsym` and `cuGetProcAddress`, so that every way to the driver leads through us;
//! - `entry`: the C edge, which counts a call and hands it on;
//! - `ops`: what is done about the calls that are not simply handed on;
//! - `driver`: the real driver's functions, and the only place that calls them for the shim's own ends.
//!
//! Around them: `thread` (what is kept per thread), `left` (calls that a program leaves without returning), `process` (first call, forks, the end), `trace` (`RATION_TRACE`),
//! `log` (`RATION_LOG`), `sys` (writing from inside of somebody else's process) and [`abi`] (the driver's types).
//!
//! The library has no constructor, starts no thread and opens no file: a process that never calls the driver pays for its
//! loading and for nothing else.

#![cfg_attr(
    test,
    allow(dead_code, reason = "in a test program nothing is exported, so what only exports use is unused")
)]

pub mod abi;
mod channels;
mod driver;
mod entry;
mod image;
mod ledger;
mod left;
mod log;
mod ops;
mod process;
mod resolve;
mod steer;
mod sys;
mod table;
mod thread;
mod trace;
