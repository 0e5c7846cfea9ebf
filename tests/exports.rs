//! What the built `libration.so` offers to, and wants from, the process that it is loaded into.

use std::path::PathBuf;
use std::process::Command;

/// Every name that the library exports on purpose.
const EXPORTS: &[&str] = &[];

/// The dynamic symbols of the library, by `nm`: those it defines, or those it wants.
fn symbols(which: &str) -> Vec<String> {
    let library = built("libration.so");
    let output =
        Command::new("nm").args(["--dynamic", which]).arg(&library).output().expect("nm, of the C compiler's binutils");
    assert!(output.status.success(), "nm {}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("symbol names are ASCII");
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    names.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect()
}

/// A library in cargo's output directory. This test's own binary is in `deps/` of it.
fn built(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    let deps = here.parent().expect("a test is in a directory");
    deps.join(name)
}

#[test]
fn nothing_is_exported_by_accident() {
    // A symbol too many, in a preloaded library, takes the place of the program's own.
    let mut exported = symbols("--defined-only");
    exported.sort();
    assert_eq!(exported, EXPORTS, "libration.so exports something else than it should");
}

#[test]
fn nothing_is_linked_to_the_driver() {
    // The prototypes of `abi` are there to be typed by, not to be called: the driver is found at run time, or not at all.
    let wanted = symbols("--undefined-only");
    assert!(
        wanted.iter().any(|name| name.starts_with("pthread") || name.starts_with("mem")),
        "not a library: {wanted:?}"
    );
    let driver: Vec<_> = wanted.iter().filter(|name| name.starts_with("cu") || name.starts_with("nvml")).collect();
    assert!(driver.is_empty(), "libration.so would not load without a driver: it wants {driver:?}");
}
