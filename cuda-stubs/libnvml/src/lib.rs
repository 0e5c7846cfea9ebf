//! The simulated GPU's `libnvidia-ml.so.1`.
//!
//! It looks at the world that the simulated `libcuda.so.1` of other processes (or of this one) lives in, and answers as
//! the NVML of driver R580 answered on the H200 that `docs/simulated-gpu.md` describes. Entry points are made by the
//! [`nvml!`](api) macro, one room per subject. Calls that on that machine had nothing to say but an error code have it
//! from `answers.tsv`; what is left has a stub that says once that it is not modelled and returns
//! `NVML_ERROR_NOT_SUPPORTED`.
//!
//! Nothing here changes what clients hold or do: the process takes part as an observer. Settings that real NVML lets
//! root change (clocks, power limits, modes) are not modelled.

// The library has no Rust interface: whoever reads these pages reads the private ones too.
#![allow(rustdoc::private_intra_doc_links)]

#[macro_use]
mod api;
mod abi;
mod clocks;
mod device;
mod events;
mod fields;
mod gpu;
mod health;
mod internal;
mod library;
mod limits;
mod links;
mod memory;
mod modes;
mod pids;
mod power;
mod processes;
mod stubs;
mod system;
mod utilization;
