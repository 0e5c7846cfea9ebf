//! The driver's types, from include/cuda_abi.h.

#![allow(unused_imports, non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code, missing_docs)]
#![allow(clippy::undocumented_unsafe_blocks, clippy::semicolon_if_nothing_returned, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/abi.rs"));

/// The host, where a device is asked for. The header's macros are casts, which bindgen leaves out.
pub const CU_DEVICE_CPU: CUdevice = -1;
/// No device.
pub const CU_DEVICE_INVALID: CUdevice = -2;
