//! What is exported and not modelled: see `build.rs`, which writes the stubs, and `answers.tsv`.

#![allow(non_snake_case)]

use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering};

use sim_world::surface::{COUNTERS, nvml_index};

use crate::abi::*;
use crate::api::{Handle, Out, enter};
use crate::library;

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

/// A call that the H200 answers with one and the same code, unless its struct has a version that it does not know.
fn fixed(
    name: &str,
    index: usize,
    device: Handle,
    version: Out<c_uint>,
    versions: &[c_uint],
    code: nvmlReturn_t,
) -> nvmlReturn_t {
    enter(index, || {
        let lib = library::current()?;
        // These four name a GPU by its PCI address, the rest of the family by its handle.
        let by_address =
            ["Discover", "Modify", "Query", "Remove"].iter().any(|verb| name["nvml".len()..].contains(verb));
        if name.starts_with("nvmlDevice") && !by_address {
            lib.gpu(device)?;
        }
        if !versions.is_empty() && !versions.contains(&version.get()?) {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        Err(code)
    })
}

/// A call that this library has no model of. Says so once per symbol.
fn not_modelled(name: &str, index: usize) -> nvmlReturn_t {
    static SAID: [AtomicBool; COUNTERS] = [const { AtomicBool::new(false) }; COUNTERS];
    enter(index, || {
        library::current()?;
        if !SAID[index].swap(true, Ordering::Relaxed) {
            eprintln!("ration-sim: {name} is not modelled by the simulated GPU: NVML_ERROR_NOT_SUPPORTED");
        }
        Err(NVML_ERROR_NOT_SUPPORTED)
    })
}
