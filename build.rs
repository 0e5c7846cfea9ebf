//! Turns the declarations in `include/` into Rust. They are our own wording of the CUDA driver's and NVML's ABI, so no
//! CUDA toolkit is needed to build; bindgen needs libclang, which `ci/setup` provides.

use std::any::Any;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The headers, and which of their names are part of the ABI.
const HEADERS: [(&str, &str); 2] = [("cuda_abi", "(cu|CU).*"), ("nvml_abi", "(nvml|NVML).*")];

fn main() -> ExitCode {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    for (name, ours) in HEADERS {
        if let Err(why) = translate(name, ours, &out) {
            println!("cargo::error=include/{name}.h could not be read: {}", why.trim().replace('\n', " "));
            println!(
                "cargo::error=bindgen needs libclang and C headers: run ci/setup, then `. .cache/env.sh`, and build again"
            );
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn translate(name: &str, ours: &str, out: &Path) -> Result<(), String> {
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
    bindings.write_to_file(out.join(format!("{name}.rs"))).map_err(|error| error.to_string())
}

fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("bindgen panicked").to_owned()
}
