//! The simulated GPU's `libcuda.so.1`.
//!
//! Entry points are made by the [`api!`](api) macro, grouped by subject; what is not modelled has a stub that says so and
//! returns `CUDA_ERROR_NOT_SUPPORTED`. Objects behind handles live in [`handles::Registry`]s of the one
//! [`process::Process`]. Work goes through [`work`], which either puts it on the [`lane`] of a context (and so on the shared
//! timeline of `sim-world`) or, into a capturing stream, makes it a graph node. What work does to memory or asks of the host
//! is done by [`effects`] when the timeline has come to it.

// The library has no Rust interface: whoever reads these pages reads the private ones too.
#![allow(rustdoc::private_intra_doc_links)]
#![recursion_limit = "512"]

#[macro_use]
mod api;
mod abi;
mod capture;
mod channels;
mod context;
mod device;
mod effects;
mod errors;
mod event;
mod function;
mod graph;
mod handles;
mod image;
mod lane;
mod launch;
mod linker;
mod memory;
mod module;
mod process;
mod ptx;
mod resolver;
mod stream;
mod stubs;
mod tables;
mod work;
