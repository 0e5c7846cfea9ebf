//! What the tests of this crate share.
#![allow(dead_code, reason = "each test uses some of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use ration_region::Gpu;

/// Some GPU.
pub const GPU: Gpu = Gpu { uuid: *b"\x01\x23\x45\x67\x89\xab\xcd\xef somegpu", total: 80 << 30 };

/// A directory that is removed in the end.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one, in the place for shared memory.
    pub fn new(name: &str) -> Scratch {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let above = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let dir = above.join(format!("ration-test-{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).expect("a directory of our own");
        Scratch(dir)
    }

    /// A directory in it, which does not exist yet: a region's.
    pub fn regions(&self) -> PathBuf {
        self.0.join("regions")
    }

    /// Lets processes of other users make something in it.
    pub fn open_to_all(&self) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&self.0, mode).expect("it is ours");
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The file of [`GPU`]'s region in a directory.
pub fn file_in(dir: &Path) -> PathBuf {
    dir.join("gpu-01234567-89ab-cdef-2073-6f6d65677075.region")
}

/// Compiles a C program with every warning an error, and says where it is.
pub fn compile(source: &Path, scratch: &Scratch) -> PathBuf {
    let program = scratch.join("program");
    let status = Command::new("cc")
        .args(["-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include"))
        .arg(source)
        .arg("-o")
        .arg(&program)
        .status()
        .expect("a C compiler: ci/setup installs one");
    assert!(status.success(), "{} does not compile", source.display());
    program
}

/// Leaves a table where `ci/test` prints it.
pub fn report(name: &str, text: &str) {
    let program = std::env::current_exe().expect("this program");
    // target/debug/deps/program
    let target = program.ancestors().nth(3).expect("the target directory");
    std::fs::create_dir_all(target.join("report")).expect("the target directory is writable");
    std::fs::write(target.join(format!("report/{name}.txt")), text).expect("the target directory is writable");
    println!("{text}");
}
