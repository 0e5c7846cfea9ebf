//! Reads the ABI header, and writes a stub for every export of NVML that no file of src/ models.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sim_world::surface::NVML_EXPORTS;

fn main() {
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // The keeper thread of this process's slot runs code of this library for as long as the process lives.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    translate(&out);

    let modelled = modelled(Path::new("src"));
    let answers = answers("answers.tsv");
    for name in answers.keys() {
        assert!(!modelled.contains(name), "answers.tsv: {name} is modelled in src/, so it needs no fixed answer");
    }
    let mut stubs = String::new();
    for name in NVML_EXPORTS.iter().filter(|name| !modelled.contains(**name)) {
        let body = match answers.get(*name) {
            Some((code, versions)) => format!("fixed({name:?}, INDEX, device, version, &[{versions}], {code})"),
            None => format!("not_modelled({name:?}, INDEX)"),
        };
        write!(
            stubs,
            "#[unsafe(no_mangle)]\nunsafe extern \"C\" fn {name}(device: Handle, version: Out<c_uint>) -> nvmlReturn_t \
             {{\n    const INDEX: usize = nvml_index({name:?});\n    let _ = (device, version);\n    {body}\n}}\n"
        )
        .expect("to a string");
    }
    std::fs::write(out.join("stubs.rs"), stubs).expect("OUT_DIR is writable");
}

fn translate(out: &Path) {
    let header = "../../include/nvml_abi.h";
    println!("cargo::rerun-if-changed={header}");
    bindgen::Builder::default()
        .header(header)
        .allowlist_item("(nvml|NVML).*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(false)
        .generate()
        .unwrap_or_else(|e| panic!("{header}: {e}\nbindgen needs libclang: run ci/setup"))
        .write_to_file(out.join("abi.rs"))
        .expect("OUT_DIR is writable");
}

/// Names that src/ defines: those behind `export fn`, see the `nvml!` macro, and the few that are written out.
fn modelled(dir: &Path) -> BTreeSet<String> {
    println!("cargo::rerun-if-changed={}", dir.display());
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).expect("src is there") {
        let path = entry.expect("src is readable").path();
        if path.is_dir() {
            continue; // bin/
        }
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for part in text.split("export fn ").skip(1).chain(text.split("extern \"C\" fn ").skip(1)) {
            let head = part.split('(').next().unwrap_or_default();
            for name in head.split('|').map(str::trim).filter(|name| name.starts_with("nvml")) {
                known(name, &path.display().to_string());
                assert!(names.insert(name.to_owned()), "{}: {name} is defined twice", path.display());
            }
        }
    }
    names
}

/// What the H200 answers to calls that have nothing more to say: the name of the code, and those of the versions that
/// the struct in the second argument may have, if it has any.
fn answers(file: &str) -> BTreeMap<String, (String, String)> {
    println!("cargo::rerun-if-changed={file}");
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{file}: {e}"));
    let mut answers = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let mut words = line.split('\t').map(str::to_owned);
        let (Some(name), Some(code), versions) = (words.next(), words.next(), words.next()) else {
            panic!("{file}: {line:?} is not a symbol, a tab and an answer");
        };
        known(&name, file);
        let twice = answers.insert(name, (code, versions.unwrap_or_default()));
        assert!(twice.is_none(), "{file}: the symbol of {line:?} was there before");
    }
    answers
}

fn known(name: &str, place: &str) {
    assert!(
        NVML_EXPORTS.binary_search(&name).is_ok(),
        "{place}: {name} is no export of NVML (cuda-stubs/world/surface/nvml.tsv)"
    );
}
