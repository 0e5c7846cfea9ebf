//! NVML's types and prototypes, from include/nvml_abi.h.

#![allow(unused_imports, non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code, missing_docs)]
#![allow(clippy::undocumented_unsafe_blocks, clippy::semicolon_if_nothing_returned, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/abi.rs"));
