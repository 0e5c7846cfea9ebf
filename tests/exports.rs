//! What the built `libration.so` offers to, and wants from, the process that it is loaded into.

mod support;

use std::collections::BTreeSet;
use std::process::Command;

use support::table::Table;

/// The dynamic symbols of the library, by `nm`: those it defines, or those it wants.
fn symbols(which: &str) -> BTreeSet<String> {
    let library = support::table::library();
    let output =
        Command::new("nm").args(["--dynamic", which]).arg(&library).output().expect("nm, of the C compiler's binutils");
    assert!(output.status.success(), "nm {}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("symbol names are ASCII");
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    names.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect()
}

#[test]
fn exports_are_the_table() {
    // A symbol too many, in a preloaded library, takes the place of the program's own; one too few is a way round us.
    let exported = symbols("--defined-only");
    let table: BTreeSet<String> = Table::read().rows.into_iter().map(|row| row.symbol).collect();
    let too_many: Vec<_> = exported.difference(&table).collect();
    let missing: Vec<_> = table.difference(&exported).collect();
    assert!(too_many.is_empty(), "libration.so exports what is not in the table: {too_many:?}");
    assert!(missing.is_empty(), "libration.so does not export these rows of the table: {missing:?}");
    assert!(table.len() > 300, "the table has {} rows", table.len());
}

#[test]
fn nothing_is_linked_to_the_driver() {
    // The prototypes of `abi` are there to be typed by, not to be called: the driver is found at run time, or not at all.
    let wanted = symbols("--undefined-only");
    assert!(wanted.contains("dl_iterate_phdr"), "not the library: {wanted:?}");
    let driver: Vec<_> = wanted.iter().filter(|name| name.starts_with("cu") || name.starts_with("nvml")).collect();
    assert!(driver.is_empty(), "libration.so would not load without a driver: it wants {driver:?}");
}

#[test]
fn our_own_names_mean_ourselves() {
    // A reference of ours to an exported function, resolved by name, would find another library's that was loaded first.
    let output = Command::new("readelf").args(["--relocs", "--wide"]).arg(support::table::library()).output();
    let text = String::from_utf8(output.expect("readelf, of the C compiler's binutils").stdout).expect("ASCII");
    assert!(text.contains("R_X86_64_RELATIVE"), "no relocations were read");
    let table = Table::read();
    let by_name: Vec<&str> = text
        .lines()
        .filter(|line| !line.contains("R_X86_64_RELATIVE"))
        .filter_map(|line| line.split_whitespace().nth(4))
        .filter(|name| table.rows.iter().any(|row| name.split('@').next() == Some(&row.symbol)))
        .collect();
    assert!(by_name.is_empty(), "these are looked up by name: {by_name:?}");
}
