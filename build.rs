//! Turns the declarations in `include/` into Rust, and the hook table into exported functions.
//!
//! The declarations are our own wording of the CUDA driver's and NVML's ABI, so no CUDA toolkit is needed to build; bindgen
//! needs libclang, which `ci/setup` provides. A hook's signature is the declaration's: nothing writes it a second time.

#[path = "build/expand.rs"]
mod expand;
#[path = "build/prototypes.rs"]
mod prototypes;
#[path = "build/table.rs"]
mod table;

use std::any::Any;
use std::collections::HashMap;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The headers, and which of their names are part of the ABI.
const HEADERS: [(&str, &str); 2] = [("cuda_abi", "(cu|CU).*"), ("nvml_abi", "(nvml|NVML).*")];

fn main() -> ExitCode {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    // The functions given out stay valid for as long as the process lives, whatever the program closes.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A copy of ourselves, preloaded from another file, is known by this name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libration.so");
    // What we mean by our own functions is ours, also where another library comes first with one of the same name; and
    // the loader has 300 names less to look up in every process.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let mut prototypes = HashMap::new();
    for (name, ours) in HEADERS {
        match translate(name, ours, &out) {
            Ok(bindings) => prototypes.extend(prototypes::read(&bindings)),
            Err(why) => {
                println!("cargo::error=include/{name}.h could not be read: {}", why.trim().replace('\n', " "));
                println!(
                    "cargo::error=bindgen needs libclang and C headers: run ci/setup, then `. .cache/env.sh`, and build again"
                );
                return ExitCode::FAILURE;
            }
        }
    }
    if let Err(why) = hooks(&prototypes, &out) {
        println!("cargo::error={why}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn hooks(prototypes: &HashMap<String, prototypes::Prototype>, out: &Path) -> Result<(), String> {
    println!("cargo::rerun-if-changed={}", table::PATH);
    let text = std::fs::read_to_string(table::PATH).map_err(|error| format!("{}: {error}", table::PATH))?;
    let expanded = expand::expand(&table::Table::parse(&text)?, prototypes)?;
    std::fs::write(out.join("hooks.rs"), expanded).map_err(|error| format!("hooks.rs: {error}"))
}

fn translate(name: &str, ours: &str, out: &Path) -> Result<String, String> {
    let header = format!("include/{name}.h");
    println!("cargo::rerun-if-changed={header}");
    let builder = bindgen::Builder::default()
        .header(&header)
        .allowlist_item(ours)
        // C's enums are integers that the other side may fill with anything, so they stay integers.
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .derive_debug(true)
        .derive_copy(true)
        .layout_tests(true)
        .formatter(bindgen::Formatter::None);
    // Where there is no libclang, bindgen panics. Its words are kept for the error; the backtrace helps nobody.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let generated = panic::catch_unwind(panic::AssertUnwindSafe(|| builder.generate()));
    panic::set_hook(hook);
    let bindings = generated.map_err(|payload| words(&*payload))?.map_err(|error| error.to_string())?;
    let text = bindings.to_string();
    std::fs::write(out.join(format!("{name}.rs")), &text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("bindgen panicked").to_owned()
}
