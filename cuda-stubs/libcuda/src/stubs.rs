//! What is exported and not modelled, and the addresses of all exports for the resolver.

#![allow(non_snake_case, clashing_extern_declarations)]

use crate::abi::CUresult;

/// The address of an export.
#[derive(Clone, Copy)]
pub(crate) struct Export(pub *const ());

// SAFETY: the address of a function is the same for every thread and never written through.
unsafe impl Sync for Export {}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
