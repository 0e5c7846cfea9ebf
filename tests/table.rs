//! The hook table: complete for what it means to cover, and printed as `docs/hooks.md`.

mod support;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use support::table::{Row, Table};

/// Families of the driver's functions that allocate, free, work or report, by the start of their names: every export of
/// every driver release that we know must be a row.
const FAMILIES: &[&str] = &[
    "cuArray3DCreate",
    "cuArrayCreate",
    "cuArrayDestroy",
    "cuCtxCreate",
    "cuCtxDestroy",
    "cuCtxSynchronize",
    "cuDevicePrimaryCtxRe",
    "cuDeviceTotalMem",
    "cuGetProcAddress",
    "cuGraphAddMem",
    "cuGraphAddNode",
    "cuGraphInstantiate",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuIpcOpenMem",
    "cuLaunch",
    "cuLibraryLoad",
    "cuMemAlloc",
    "cuMemBatch",
    "cuMemCreate",
    "cuMemDiscard",
    "cuMemFree",
    "cuMemGetInfo",
    "cuMemImport",
    "cuMemMap",
    "cuMemPool",
    "cuMemPrefetch",
    "cuMemRelease",
    "cuMemUnmap",
    "cuMemcpy",
    "cuMemset",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuModuleLoad",
    "cuModuleUnload",
    "cuStreamBeginCapture",
    "cuStreamEndCapture",
    "cuStreamGetCaptureInfo",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamUpdateCapture",
];

/// Members of those families that are no rows, and why.
const LEFT_ALONE: &[(&str, &str)] = &[
    ("cuGraphAddMemcpyNode", "a node costs nothing until its graph is instantiated"),
    ("cuGraphAddMemsetNode", "a node costs nothing until its graph is instantiated"),
    ("cuLaunchHostFunc", "runs on the host"),
    ("cuMemAllocHost", "host memory"),
    ("cuMemFreeHost", "host memory"),
    ("cuMemPoolGetAccess", "takes nothing"),
    ("cuMemPoolGetAttribute", "takes nothing"),
    ("cuMemPoolSetAccess", "takes nothing"),
];

/// Every export of the drivers from R470 to R615.
fn exports() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda-stubs/world/surface/driver.tsv");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let rows = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    rows.filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}

#[test]
fn families_are_whole() {
    let table = Table::read();
    let exports = exports();
    assert!(exports.len() > 700);
    let mut missing = Vec::new();
    for family in FAMILIES {
        let members: Vec<_> = exports.iter().filter(|export| export.starts_with(family)).collect();
        assert!(!members.is_empty(), "no driver exports anything like {family}");
        missing.extend(
            members
                .into_iter()
                .filter(|export| !table.has(export) && !LEFT_ALONE.iter().any(|(alone, _)| export.starts_with(alone))),
        );
    }
    assert!(missing.is_empty(), "exports of the driver that get past us: {missing:?}");
    for (alone, _) in LEFT_ALONE {
        assert!(exports.iter().any(|export| export.starts_with(alone)), "{alone} is no export");
        assert!(!table.rows.iter().any(|row| row.symbol.starts_with(alone)), "{alone} is a row after all");
    }
}

#[test]
fn rows_are_exports_of_some_driver() {
    let exports = exports();
    for row in &Table::read().rows {
        if row.symbol.starts_with("cu") {
            assert!(exports.contains(&row.symbol), "no driver exports {}", row.symbol);
        }
    }
}

#[test]
fn every_stream_mode_is_there() {
    let table = Table::read();
    let exports = exports();
    for export in &exports {
        let plain = export.strip_suffix("_ptsz").or_else(|| export.strip_suffix("_ptds"));
        if let Some(plain) = plain {
            assert_eq!(table.has(export), table.has(plain), "{export} and {plain} must both be rows, or neither");
        }
    }
}

/// What a call takes of a GPU, told by its name: the first of these words that is in it says so. A row with none of them stops the
/// test, so that nobody forgets to think about it.
const TAKES: &[(&str, &[&str])] = &[
    // It gives back, or takes away.
    ("-", &["Free", "Destroy", "Detach", "Release", "Reset", "Unload", "Unmap", "Unbind", "Trim", "Discard", "Close"]),
    // It waits, or asks.
    ("-", &["Synchronize", "Query", "Enumerate", "TotalMem", "GetInfo", "Export"]),
    // It records, and nothing is done yet.
    ("-", &["Capture", "Recapture", "Capturing"]),
    ("memory", &["Alloc", "Create", "Retain", "Open", "Import", "GetMapped", "Prefetch", "SetLimit"]),
    // Of code, or of what may be a kernel, whose code may be loaded for it.
    ("memory", &["Load", "GetFunction", "KernelNode", "ChildGraphNode", "AddNode", "GraphNodeSetParams", "ExecNode"]),
    ("memory", &["Instantiate", "Upload", "ExecUpdate"]),
    ("work", &["cuInit", "Launch", "cuMemcpy", "cuMemset", "Decompress", "MapArray"]),
    // It says how something is done, or with what.
    ("-", &["Get", "Set", "Advise", "Attach", "cuMemMap", "cuMulticast"]),
];

/// Names that are not what they seem, and why.
const NOT_AS_NAMED: &[(&str, &str, &str)] = &[
    ("cuMemRetainAllocationHandle", "-", "a further handle of memory that is held already"),
    ("cuMemDiscardAndPrefetchBatchAsync", "memory", "it gives back, and then takes"),
    ("cuLibraryGetGlobal", "memory", "the first use of a library loads it"),
    ("cuLibraryGetManaged", "memory", "the first use of a library loads it"),
    ("cuLibraryGetModule", "memory", "the first use of a library loads it"),
];

/// What a row takes, by its name.
fn takes(row: &Row) -> Option<&'static str> {
    let plain = row.symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    if let Some((_, takes, _)) = NOT_AS_NAMED.iter().find(|(name, ..)| *name == plain) {
        return Some(takes);
    }
    let told = TAKES.iter().find(|(_, words)| words.iter().any(|word| plain.contains(word)));
    told.map(|(takes, _)| *takes)
}

#[test]
fn what_a_row_takes_is_what_its_name_says() {
    let table = Table::read();
    let mut wrong = Vec::new();
    for row in &table.rows {
        let library = table.classes[row.class].library.as_str();
        // NVML reports, and what stands in front of libc takes nothing of a GPU.
        let told = if library == "libcuda" { takes(row) } else { Some("-") };
        match told {
            None => wrong.push(format!("{}: no rule knows what it takes", row.symbol)),
            Some(told) if told != row.takes => {
                wrong.push(format!("{}: '{}' in the table, '{told}' by its name", row.symbol, row.takes));
            }
            Some(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let rows: BTreeSet<&str> = table.rows.iter().map(|row| row.symbol.as_str()).collect();
    for (name, _, why) in NOT_AS_NAMED {
        assert!(rows.contains(name), "{name} ({why}) is no row");
    }
}

/// A call that makes something, under whichever name, is answered as its other forms are: nobody gets past by asking for another.
#[test]
fn all_forms_of_a_call_take_the_same() {
    let table = Table::read();
    let stem = |row: &Row| {
        let plain = row.symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        plain.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches("_v").to_owned()
    };
    for row in &table.rows {
        for other in table.rows.iter().filter(|other| stem(other) == stem(row)) {
            assert_eq!(row.takes, other.takes, "{} and {}", row.symbol, other.symbol);
        }
    }
}

#[test]
fn docs_say_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/hooks.md");
    let expected = page(&Table::read());
    if std::env::var_os("RATION_WRITE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == expected,
        "docs/hooks.md is not what src/table/hooks.tsv says. To write it anew:\n\
         RATION_WRITE_DOCS=1 cargo test --test table"
    );
}

fn page(table: &Table) -> String {
    let mut page = String::from(
        "# What the shim stands in front of\n\n\
         <!-- Printed from src/table/hooks.tsv by `RATION_WRITE_DOCS=1 cargo test --test table`. Edit that one. -->\n\n\
         Every symbol below is exported by `libration.so` and bound to its own original: `_v2` and `_v3` are other functions \
         than the plain ones, which are the 32-bit forms of CUDA 2; `_ptsz` and `_ptds` are the same for per-thread default \
         streams. A program reaches them by linking, by `dlsym` and `dlvsym` with any handle, and by `cuGetProcAddress` with \
         any version and flags; a symbol that the installed driver lacks is not found, as without the shim.\n\n\
         *forward*: the call is counted and goes to the driver unchanged. A function that the installed driver lacks, called \
         all the same, answers `CUDA_ERROR_NOT_SUPPORTED` (NVML: `NVML_ERROR_FUNCTION_NOT_FOUND`).\n\n\
         *takes*: what a call takes of a GPU, memory or its time; for what counts as memory, see \
         [the library](library.md#a-memory-limit). Such a call answers `CUDA_ERROR_NOT_PERMITTED` while nobody knows \
         what the process may have: settings that cannot be understood, or `RATION_STRICT=1` and no region. What gives back, \
         waits or asks goes on.\n\n",
    );
    let _ = writeln!(page, "{} symbols in {} classes.", table.rows.len(), table.classes.len());
    for (number, class) in table.classes.iter().enumerate() {
        let _ = write!(page, "\n## {}\n\n{} From {}.\n\n", class.name, class.about, class.library);
        let _ = write!(page, "| symbol | since CUDA | takes | what is done |\n|---|---|---|---|\n");
        for row in table.rows.iter().filter(|row| row.class == number) {
            let takes = if row.takes == "-" { "" } else { &row.takes };
            let _ = writeln!(page, "| `{}` | {} | {takes} | {} |", row.symbol, row.since, row.done);
        }
    }
    page
}
