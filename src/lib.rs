//! `libration.so`: preloaded into a container's processes, it will hold them to their slice of a GPU.
//!
//! What is here so far is its first room, [`abi`]: the shapes and names through which programs and the driver speak to
//! each other. The library intercepts nothing yet and exports nothing; preloading it changes nothing.
//! The rooms that come next, in the order in which a call passes through them:
//!
//! - `table`: one table of hooked symbols, from which exports, resolver and counters are expanded;
//! - `resolve`: answers `dlsym` and `cuGetProcAddress`;
//! - `entry`: the thin `extern "C"` edge, with its re-entry guard and panic firewall;
//! - `ops`: what is done about a call, in plain Rust;
//! - `ledger` and `driver`: the accounts, and the only place that calls the real driver.

pub mod abi;
