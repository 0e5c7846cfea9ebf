//! Drivers that do nothing but say which of their symbols was called, and with what.
//!
//! There is one for each release: it exports what that release exports, and its `cuGetProcAddress` answers as that
//! release's does, by the tables in `cuda-stubs/world/surface`. Every function has a number of its own, which is what
//! it returns; the one whose number is in `routing_wanted` also keeps its arguments in `routing_arguments` and adds to
//! `routing_calls`. So whoever calls can tell where the call arrived, with what, and how often.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The releases that are made. The last does not exist: it stands for those to come.
pub const RELEASES: [Release; 4] = [
    Release { name: 470, cuda: 11040, versioned: false },
    Release { name: 580, cuda: 13000, versioned: false },
    Release { name: 615, cuda: 13040, versioned: false },
    FUTURE,
];
const FUTURE: Release = Release { name: 999, cuda: 14000, versioned: true };

/// The version of the symbols that have one.
pub const VERSION: &str = "FUTURE";

/// What the last release adds, with the name by which `cuGetProcAddress` knows each from its version on.
const INVENTED: [(&str, &str); 3] = [
    ("cuMemAlloc_v9", "cuMemAlloc"),
    ("cuLaunchKernelFuture", "cuLaunchKernelFuture"),
    ("cuGraphLaunch_v2_ptsz", "cuGraphLaunch"),
];

/// NVML's table has no releases. These are not in all of them; the first release of each is that of the header which
/// first declared it.
const NVML_NOT_ALWAYS: [(&str, u32); 8] = [
    ("nvmlDeviceGetComputeRunningProcesses_v3", 510),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", 510),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", 510),
    ("nvmlDeviceGetMemoryInfo_v2", 510),
    ("nvmlDeviceGetMemoryLimits_v1", 615),
    ("nvmlDeviceGetProcessesUtilizationInfo", 550),
    ("nvmlDeviceGetRunningProcessDetailList", 535),
    ("nvmlDeviceSetMemoryLimits_v1", 615),
];

/// How many arguments every function takes: more than any prototype has.
pub const ARGUMENTS: usize = 16;

/// A release of the driver, and the newest CUDA version that it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    pub name: u32,
    pub cuda: u32,
    /// Whether its symbols have versions, as `dlvsym` means it. No driver's have so far.
    pub versioned: bool,
}

/// One of the two libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    Cuda,
    Nvml,
}

impl Library {
    pub const BOTH: [Library; 2] = [Library::Cuda, Library::Nvml];

    /// The one that has, or would have, a symbol of this name.
    pub fn of(symbol: &str) -> Library {
        if symbol.starts_with("nvml") { Library::Nvml } else { Library::Cuda }
    }

    pub fn file(self) -> &'static str {
        match self {
            Library::Cuda => "libcuda.so.1",
            Library::Nvml => "libnvidia-ml.so.1",
        }
    }
}

/// One answer of `cuGetProcAddress`: from version `since` on, for these kinds of streams, a name means an export.
pub struct Answer {
    pub name: String,
    pub since: u32,
    pub legacy: bool,
    pub per_thread: bool,
    pub export: String,
}

/// All symbols of all releases, and all answers.
pub struct Surface {
    /// The release that a symbol came with, and its number.
    pub symbols: BTreeMap<String, (u32, u32)>,
    pub answers: Vec<Answer>,
}

impl Surface {
    pub fn read() -> Surface {
        let mut releases: BTreeMap<String, u32> = BTreeMap::new();
        for row in rows("driver.tsv") {
            let release = row[1].parse().unwrap_or_else(|e| panic!("driver.tsv: {row:?}: {e}"));
            releases.insert(row[0].clone(), release);
        }
        releases.extend(rows("nvml.tsv").into_iter().map(|row| (row[0].clone(), 470)));
        releases.extend(NVML_NOT_ALWAYS.map(|(name, release)| (name.to_owned(), release)));
        releases.extend(INVENTED.map(|(name, _)| (name.to_owned(), FUTURE.name)));
        let numbered = releases.into_iter().zip(100_000..);
        let symbols = numbered.map(|((name, release), number)| (name, (release, number))).collect();
        let mut answers: Vec<Answer> = Vec::new();
        for row in rows("resolve.tsv") {
            let since = row[1].parse().unwrap_or_else(|e| panic!("resolve.tsv: {row:?}: {e}"));
            let (legacy, per_thread) = (row[2].contains('l'), row[2].contains('p'));
            answers.push(Answer { name: row[0].clone(), since, legacy, per_thread, export: row[3].clone() });
        }
        for (export, name) in INVENTED {
            let legacy = !export.ends_with("_ptsz");
            let (name, export) = (name.to_owned(), export.to_owned());
            answers.push(Answer { name, since: FUTURE.cuda, legacy, per_thread: true, export });
        }
        answers.sort_by(|a, b| (&a.name, a.since).cmp(&(&b.name, b.since)));
        Surface { symbols, answers }
    }

    pub fn number(&self, symbol: &str) -> u32 {
        self.symbols.get(symbol).unwrap_or_else(|| panic!("{symbol} is in no table")).1
    }

    pub fn has(&self, release: Release, symbol: &str) -> bool {
        self.symbols.get(symbol).is_some_and(|(since, _)| *since <= release.name)
    }

    /// What the driver of a release answers: the newest export that is not newer than `version`. `Err` has the status
    /// with which it says that there is none.
    pub fn resolve(&self, release: Release, name: &str, version: u32, per_thread: bool) -> Result<&str, u32> {
        let known = self.answers.iter().filter(|answer| answer.name == name && self.has(release, &answer.export));
        let known: Vec<_> = known.collect();
        let fits =
            |answer: &&&Answer| answer.since <= version && if per_thread { answer.per_thread } else { answer.legacy };
        match known.iter().filter(fits).max_by_key(|answer| answer.since) {
            Some(answer) => Ok(&answer.export),
            None if known.is_empty() => Err(1),
            None => Err(2),
        }
    }

    fn answers_of(&self, release: Release) -> impl Iterator<Item = &Answer> {
        self.answers.iter().filter(move |answer| self.has(release, &answer.export))
    }
}

/// The lines of a table, without comments and the line of headings.
fn rows(file: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda-stubs/world/surface").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

// ------------------------------------------------------------------------------------------------- the libraries

/// A directory in which things are compiled; removed with it, unless the test fails.
pub struct Workshop {
    pub dir: PathBuf,
}

impl Workshop {
    pub fn new(name: &str) -> Workshop {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the target directory is writable");
        Workshop { dir }
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.join(name), text).expect("the target directory is writable");
    }

    /// Runs the C compiler here. No warnings: functions without prototypes are the point.
    pub fn cc(&self, args: &[&str]) {
        let run = Command::new("cc").args(["-std=gnu11", "-w"]).args(args).current_dir(&self.dir).output();
        let run = run.expect("a C compiler: run ci/setup");
        assert!(run.status.success(), "cc {args:?}:\n{}", String::from_utf8_lossy(&run.stderr));
    }

    /// Makes every release's libraries, each in a directory of the release's name.
    pub fn drivers(&self, surface: &Surface) {
        for library in Library::BOTH {
            let source = format!("{library:?}.c");
            self.write(&source, &functions(surface, library));
            self.cc(&["-fPIC", "-c", &source]);
        }
        for release in RELEASES {
            let dir = release.name.to_string();
            std::fs::create_dir_all(self.dir.join(&dir)).expect("the target directory is writable");
            self.write(&format!("{dir}/resolver.c"), &resolver(surface, release));
            self.link(surface, release, Library::Cuda, &["Cuda.o", &format!("{dir}/resolver.c")]);
            self.link(surface, release, Library::Nvml, &["Nvml.o"]);
        }
    }

    /// The objects have the functions of all releases; only those of this one are exported.
    fn link(&self, surface: &Surface, release: Release, library: Library, inputs: &[&str]) {
        let ours = |name: &&String| Library::of(name) == library && surface.has(release, name);
        let exports: BTreeSet<&String> = surface.symbols.keys().filter(ours).collect();
        let list: String = exports.iter().map(|name| format!(" {name};")).collect();
        let script = format!("{}/{library:?}.map", release.name);
        let version = if release.versioned { VERSION } else { "" };
        self.write(&script, &format!("{version} {{ global: routing_*;{list} local: *; }};\n"));
        let output = format!("{}/{}", release.name, library.file());
        let soname = format!("-Wl,-soname,{}", library.file());
        let script = format!("-Wl,--version-script,{script}");
        // The driver's own addresses are its own, whatever stands before it in the process.
        let options = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", &output, &soname, &script];
        self.cc(&[&options, inputs].concat());
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Functions that keep what they were called with, and answer with their number.
fn functions(surface: &Surface, library: Library) -> String {
    let parameters: Vec<_> = (0..ARGUMENTS).map(|i| format!("long a{i}")).collect();
    let names: Vec<_> = (0..ARGUMENTS).map(|i| format!("a{i}")).collect();
    let (parameters, names) = (parameters.join(", "), names.join(", "));
    let mut text = format!(
        "long routing_arguments[{ARGUMENTS}];\nunsigned routing_wanted, routing_calls;\n\
         #define FUNCTION(name, number) unsigned name({parameters}) {{ \\\n    \
             if (routing_wanted == number) {{ \\\n        \
                 long all[] = {{{names}}}; \\\n        \
                 __builtin_memcpy(routing_arguments, all, sizeof all); \\\n        \
                 routing_calls++; \\\n    \
             }} \\\n    \
             return number; \\\n\
         }}\n"
    );
    // Those two are in the resolver.
    let apart = |name: &&String| !name.starts_with("cuGetProcAddress");
    for name in surface.symbols.keys().filter(|name| Library::of(name) == library).filter(apart) {
        let _ = writeln!(text, "FUNCTION({name}, {})", surface.number(name));
    }
    text
}

/// `cuGetProcAddress`, with the manners of the real one: see `cuda-stubs/libcuda/src/resolver.rs`.
fn resolver(surface: &Surface, release: Release) -> String {
    let mut text = String::from(RESOLVER_TYPES);
    let exports: BTreeSet<&str> = surface.answers_of(release).map(|answer| answer.export.as_str()).collect();
    for name in exports.iter().filter(|name| !name.starts_with("cuGetProcAddress")) {
        let _ = writeln!(text, "extern unsigned {name}();");
    }
    text.push_str("static const struct answer answers[] = {\n");
    for answer in surface.answers_of(release) {
        let Answer { name, since, legacy, per_thread, export } = answer;
        let _ = writeln!(text, "    {{\"{name}\", {since}, {legacy:?}, {per_thread:?}, (void *){export}}},");
    }
    let _ = writeln!(text, "}};\nstatic const int newest = {};", release.cuda);
    text.push_str(RESOLVER);
    text
}

const RESOLVER_TYPES: &str = r"
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct answer {
    const char *name;
    int since;
    bool legacy, per_thread;
    void *export;
};

int cuGetProcAddress(const char *name, void **at, int version, unsigned long long flags);
int cuGetProcAddress_v2(const char *name, void **at, int version, unsigned long long flags, int *status);
";

const RESOLVER: &str = r"
enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500 };

static int look_up(const char *name, void **at, int version, unsigned long long flags, void **found, int *status) {
    if (!at || !name || flags & ~3ull) return INVALID_VALUE;
    if (version < 0) version = newest;
    if (version > newest) return INVALID_VALUE;
    /* They are in the order of their names, and of their versions. */
    const struct answer *a = answers, *end = answers + sizeof answers / sizeof *answers;
    for (size_t left = end - a; left > 0;) {
        size_t half = left / 2;
        if (strcmp(a[half].name, name) < 0) a += half + 1, left -= half + 1;
        else left = half;
    }
    *found = NULL;
    *status = 1;
    for (; a < end && strcmp(a->name, name) == 0; a++) {
        if (*status == 1) *status = 2;
        if ((flags == 2 ? a->per_thread : a->legacy) && a->since <= version) {
            *found = a->export;
            *status = 0;
        }
    }
    return SUCCESS;
}

int cuGetProcAddress(const char *name, void **at, int version, unsigned long long flags) {
    void *found;
    int how;
    int code = look_up(name, at, version, flags, &found, &how);
    if (code == SUCCESS && !found) return NOT_FOUND;
    if (code == SUCCESS) *at = found;
    return code;
}

int cuGetProcAddress_v2(const char *name, void **at, int version, unsigned long long flags, int *status) {
    void *found;
    int how;
    int code = look_up(name, at, version, flags, &found, &how);
    if (code != SUCCESS) return code;
    *at = found;
    if (status) *status = how;
    return code;
}
";
