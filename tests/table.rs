//! The hook table: complete for what it means to cover, and printed as `docs/hooks.md`.

mod support;

use std::fmt::Write as _;
use std::path::Path;

use support::table::Table;

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
         all the same, answers `CUDA_ERROR_NOT_SUPPORTED` (NVML: `NVML_ERROR_FUNCTION_NOT_FOUND`).\n\n",
    );
    let _ = writeln!(page, "{} symbols in {} classes.", table.rows.len(), table.classes.len());
    for (number, class) in table.classes.iter().enumerate() {
        let _ = write!(page, "\n## {}\n\n{} From {}.\n\n", class.name, class.about, class.library);
        let _ = write!(page, "| symbol | since CUDA | what is done |\n|---|---|---|\n");
        for row in table.rows.iter().filter(|row| row.class == number) {
            let _ = writeln!(page, "| `{}` | {} | {} |", row.symbol, row.since, row.done);
        }
    }
    page
}
