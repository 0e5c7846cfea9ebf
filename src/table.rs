//! The one table of hooked symbols, as the rest of the shim sees it.
//!
//! `src/table/hooks.tsv` is what people edit. `build.rs` expands it into [`ROWS`] and into the exported functions, whose
//! signatures are those of `include/`.

use std::ffi::CStr;

/// Which library has a row's original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// `libcuda.so.1`
    Driver,
    /// `libnvidia-ml.so.1`
    Nvml,
}

/// What a call takes of a GPU. What gives back, waits, asks or destroys takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Nothing that anybody is held to.
    Nothing,
    /// Memory, or the driver may take some for it.
    Memory,
    /// Its time: kernels, graphs, copies, fills. Also `cuInit`, with which all of it begins.
    Work,
}

/// A hooked symbol. Its place in [`ROWS`] is its number everywhere: in counters, in originals, in the trace.
pub struct Row {
    /// As the driver exports it.
    pub symbol: &'static CStr,
    /// Who has the original.
    pub library: Library,
    /// What is refused while nobody knows what the process may have.
    pub takes: Takes,
    /// The exported function, which hands on to whoever comes behind us.
    pub export: Door,
    /// The function that is given out instead where another library has a say in what comes behind us.
    pub handed: Door,
}

/// The address of one of our functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Door(pub *const ());

// SAFETY: an address of code, which is the same for all threads and never written through.
unsafe impl Sync for Door {}

pub use generated::{COUNT, ROWS};

/// The number of the row for a symbol. Cheap for names that cannot be in the table, because every `dlsym` of a process
/// comes by here.
pub fn find(symbol: &CStr) -> Option<usize> {
    let name = symbol.to_bytes();
    if !(name.starts_with(b"cu") || name.starts_with(b"nvml")) {
        return None;
    }
    ROWS.binary_search_by(|row| row.symbol.to_bytes().cmp(name)).ok()
}

#[allow(
    missing_docs,
    non_snake_case,
    non_camel_case_types,
    unused_imports,
    improper_ctypes_definitions,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    unsafe_op_in_unsafe_fn,
    reason = "generated. Each `unsafe` in it does one thing: call the original with the arguments that the caller gave, as \
              the type that include/ declares for it"
)]
mod generated {
    /// What every generated function needs.
    mod prelude {
        pub use std::mem::transmute;
        pub use std::ptr::null_mut;

        pub(super) use crate::driver::Stream;
        pub(super) use crate::entry::{self, Door};
        pub(super) use crate::ops;
        pub(super) use crate::trace::{Arg, Shown};
    }

    use super::{Door, Library, Row, Takes};

    include!(concat!(env!("OUT_DIR"), "/hooks.rs"));
}

#[cfg(test)]
mod tests {
    use super::{Library, ROWS, find};

    #[test]
    fn rows_are_found_by_their_whole_name_only() {
        let at = find(c"cuMemAlloc_v2").expect("a row");
        assert_eq!(ROWS[at].symbol, c"cuMemAlloc_v2");
        assert_ne!(find(c"cuMemAlloc"), Some(at));
        for absent in [c"", c"c", c"cu", c"cuMemAlloc_v", c"cuMemAlloc_v22", c"nvml", c"dlsym", c"cudaMalloc"] {
            assert_eq!(find(absent), None, "{absent:?}");
        }
    }

    #[test]
    fn every_row_finds_itself() {
        for (number, row) in ROWS.iter().enumerate() {
            assert_eq!(
                find(row.symbol),
                Some(number),
                "{:?}: the rows are not in the order of their names",
                row.symbol
            );
            assert_eq!(row.library == Library::Nvml, row.symbol.to_bytes().starts_with(b"nvml"));
        }
    }
}
