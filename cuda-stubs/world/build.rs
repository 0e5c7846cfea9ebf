//! Turns the surface tables into Rust: the sorted list of symbols that can be counted, and the resolver's answers.

use std::fmt::Write as _;
use std::path::Path;

/// The driver release whose exports the simulated libcuda.so.1 has.
const RELEASE: u32 = 580;

fn rows(file: &str) -> Vec<Vec<String>> {
    println!("cargo::rerun-if-changed={file}");
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{file}: {e}"));
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .skip(1)
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

fn main() {
    let mut exports: Vec<String> = rows("surface/driver.tsv")
        .into_iter()
        .filter(|row| row[1].parse::<u32>().is_ok_and(|release| release <= RELEASE))
        .map(|row| row[0].clone())
        .collect();
    exports.sort();
    let mut nvml: Vec<String> = rows("surface/nvml.tsv").into_iter().map(|row| row[0].clone()).collect();
    nvml.sort();
    let mut code = String::new();
    for (name, list) in [("DRIVER_EXPORTS", &exports), ("NVML_EXPORTS", &nvml)] {
        writeln!(code, "/// Sorted by name.\npub static {name}: [&str; {}] = {list:?};", list.len())
            .expect("to a string");
    }
    writeln!(code, "pub(crate) const DRIVER_COUNT: usize = {};", exports.len()).expect("to a string");
    writeln!(code, "pub(crate) const NVML_COUNT: usize = {};", nvml.len()).expect("to a string");
    let resolve: Vec<_> =
        rows("surface/resolve.tsv").into_iter().filter(|r| exports.binary_search(&r[3]).is_ok()).collect();
    writeln!(code, "/// Sorted by name, then by version.\npub static RESOLVE: [Answer; {}] = [", resolve.len())
        .expect("to a string");
    for row in &resolve {
        let export = exports.binary_search(&row[3]).expect("filtered above");
        writeln!(
            code,
            "Answer {{ name: {:?}, since: {}, legacy: {}, per_thread: {}, export: {export} }},",
            row[0],
            row[1],
            row[2].contains('l'),
            row[2].contains('p'),
        )
        .expect("to a string");
    }
    code.push_str("];\n");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&out).join("surface.rs"), code).expect("OUT_DIR is writable");
}
