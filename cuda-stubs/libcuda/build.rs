//! Reads the ABI headers, and writes an honest stub for every export of the driver that no file of src/ models.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // cudart closes the library on some failures and still reads memory of ours at exit; the real driver stays too.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // As NVIDIA's: what it refers to by the name of an export is its own, even when a preloaded library has that name too.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");

    let header = Path::new("../../include/cuda_abi.h");
    println!("cargo::rerun-if-changed={}", header.display());
    bindgen::Builder::default()
        .header(header.display().to_string())
        .allowlist_type("CU.*|cu.*")
        .allowlist_var("CU.*")
        .blocklist_function(".*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(false)
        .generate()
        .unwrap_or_else(|e| panic!("{}: {e}\nbindgen needs libclang: run ci/setup", header.display()))
        .write_to_file(out.join("abi.rs"))
        .expect("OUT_DIR is writable");

    let mut modelled = BTreeSet::new();
    collect(Path::new("src"), &mut modelled);
    let mut stubs = String::new();
    for name in sim_world::surface::DRIVER_EXPORTS.iter().filter(|name| !modelled.contains(**name)) {
        writeln!(
            stubs,
            "#[unsafe(no_mangle)] unsafe extern \"C\" fn {name}() -> CUresult {{ crate::api::not_modelled(crate::api::index(\"{name}\"), \"{name}\") }}"
        )
        .expect("to a string");
    }
    stubs.push_str("/// Every export, in the order of the surface table.\npub(crate) static EXPORTS: [Export; ");
    let all = &sim_world::surface::DRIVER_EXPORTS;
    writeln!(stubs, "{}] = [", all.len()).expect("to a string");
    for name in all {
        writeln!(stubs, "Export({name} as *const ()),").expect("to a string");
    }
    stubs.push_str("];\nunsafe extern \"C\" {");
    for name in all.iter().filter(|name| modelled.contains(**name)) {
        writeln!(stubs, "fn {name}();").expect("to a string");
    }
    stubs.push('}');
    std::fs::write(out.join("stubs.rs"), stubs).expect("OUT_DIR is writable");
}

/// Names that stand behind `export fn` in src/: see the `api!` macro.
fn collect(dir: &Path, names: &mut BTreeSet<String>) {
    println!("cargo::rerun-if-changed={}", dir.display());
    for entry in std::fs::read_dir(dir).expect("src is there") {
        let path = entry.expect("src is readable").path();
        if path.is_dir() {
            collect(&path, names);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for part in text.split("export fn ").skip(1) {
            let head = part.split('(').next().unwrap_or_default();
            for name in head.split('|').map(str::trim).filter(|n| n.starts_with("cu")) {
                assert!(
                    sim_world::surface::DRIVER_EXPORTS.binary_search(&name).is_ok(),
                    "{}: {name} is no export of the driver (cuda-stubs/world/surface/driver.tsv)",
                    path.display()
                );
                assert!(names.insert(name.to_owned()), "{}: {name} is defined twice", path.display());
            }
        }
    }
}
