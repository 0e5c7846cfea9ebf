//! Keeps the house in order: what ARCHITECTURE.md and CONTRIBUTING.md promise about the tree, checked on the tree.
//!
//! Each test names what it found and what to do about it. None of them needs a GPU, simulated or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

#[path = "tidy/bans.rs"]
mod bans;
#[path = "tidy/graph.rs"]
mod graph;
#[path = "tidy/licence.rs"]
mod licence;

use graph::Graph;
use licence::Licence;

/// Rust files may have this many lines; beyond, they are listed in [`LONG`] with the reason.
const LONGEST: usize = 600;

/// Files that are long for a good reason: path, reason.
const LONG: &[(&str, &str)] = &[];

/// What these rooms may depend on (crates by name, rooms by place), if they exist yet. Tests may use more.
const ROOMS: &[(&str, &[&str])] = &[
    ("crates/policy", &[]),
    ("crates/contract", &[]),
    ("crates/region", &["libc", "crates/policy"]),
    ("crates/steer", &["crates/policy", "crates/region"]),
];

/// What a library that lives in strangers' processes never pulls in; a name covers its family (`tokio`, `tokio-util`).
const TOO_HEAVY_FOR_THE_SHIM: &[&str] = &["tokio", "kube", "clap", "hyper", "reqwest", "async-std"];

/// Words that no file of the tree has. They are written in two halves so that this file has none either.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "do it, or say in prose what is missing"),
    (concat!("FIX", "ME"), "fix it, or say in prose what is wrong"),
    (concat!("XX", "X"), "say in prose what is wrong"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/Us", "ers/"), "a path of one machine"),
    (concat!("../sha", "red"), "the tree reads nothing outside of it"),
    (concat!("crates", ".io"), "package managers know their registries"),
    (concat!("pypi", ".org"), "package managers know their registries"),
    (concat!("python", "hosted"), "package managers know their registries"),
    (concat!("debian", ".org"), "package managers know their registries"),
    (concat!("npm", "js"), "package managers know their registries"),
];

/// Files that other people's tools or lawyers wrote.
const NOT_OUR_WORDS: &[&str] = &["Cargo.lock", "LICENSE"];

// ---------------------------------------------------------------------------------------------- dependencies

#[test]
fn shim_stays_light() {
    let graph = Graph::read();
    let shim = graph.member(".");
    let heavy: Vec<_> = graph
        .reach(shim, &["normal"])
        .into_iter()
        .map(|id| graph.packages[id].name.as_str())
        .filter(|name| TOO_HEAVY_FOR_THE_SHIM.iter().any(|family| in_family(name, family)))
        .collect();
    assert!(heavy.is_empty(), "the shim runs in strangers' processes and must not bring in {heavy:?}");
}

#[test]
fn simulated_gpu_is_an_independent_witness() {
    let graph = Graph::read();
    let mut wrong = String::new();
    for (id, package) in &graph.packages {
        let Some(dir) = &package.dir else { continue };
        for (other, kinds) in &package.deps {
            let Some(to) = &graph.packages[other].dir else { continue };
            let dev_only = kinds.iter().all(|kind| kind == "dev");
            let fine = match (dir.starts_with("cuda-stubs"), to.starts_with("cuda-stubs")) {
                (true, stays_inside) => stays_inside,
                (false, false) => true,
                (false, true) if to == "cuda-stubs/scheduler" => dev_only,
                (false, true) => to == "cuda-stubs/world" && (dev_only || dir == "crates/cli"),
            };
            if !fine {
                let _ = writeln!(
                    wrong,
                    "  {} depends on {} ({kinds:?})",
                    graph.packages[id].name, graph.packages[other].name
                );
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "the simulated GPU shares no code with what it is a witness of. Only tests and the demo (crates/cli) look at it, \
         and only through cuda-stubs/world; unit tests also run on cuda-stubs/scheduler:\n{wrong}"
    );
}

#[test]
fn pure_rooms_depend_on_nothing() {
    let graph = Graph::read();
    let mut wrong = String::new();
    for package in graph.packages.values() {
        let Some((_, allowed)) = ROOMS.iter().find(|(dir, _)| package.dir.as_deref() == Some(dir)) else { continue };
        for (other, kinds) in &package.deps {
            let other = &graph.packages[other];
            let known_as = other.dir.as_ref().unwrap_or(&other.name);
            if kinds.iter().any(|kind| kind != "dev") && !allowed.contains(&known_as.as_str()) {
                let _ = writeln!(wrong, "  {} depends on {known_as}; it may on {allowed:?}", package.name);
            }
        }
    }
    assert!(wrong.is_empty(), "a room reaches further than ARCHITECTURE.md lets it:\n{wrong}");
}

#[test]
fn dependencies_come_with_accepted_licences_from_one_registry() {
    let allowed = licence::accepted();
    let graph = Graph::read();
    let mut wrong = String::new();
    let mut registries = BTreeSet::new();
    for package in graph.packages.values() {
        let licence = package.licence.as_deref().unwrap_or("none");
        if !Licence::parse(licence).is_satisfied_by(&allowed) {
            let _ = writeln!(wrong, "  {}: licence {licence:?} (deny.toml accepts {allowed:?})", package.name);
        }
        match (&package.source, &package.dir) {
            (Some(source), _) if source.starts_with("registry+") => drop(registries.insert(source.clone())),
            (None, Some(_)) => {}
            (source, _) => drop(writeln!(wrong, "  {}: comes from {source:?}, not from a registry", package.name)),
        }
    }
    assert!(registries.len() <= 1, "dependencies come from more than one registry: {registries:?}");
    assert!(wrong.is_empty(), "dependencies that cannot be had:\n{wrong}");
}

#[test]
fn includes_stay_inside_their_package() {
    let graph = Graph::read();
    let packages: Vec<PathBuf> = graph.packages.values().filter_map(|p| p.dir.as_ref()).map(PathBuf::from).collect();
    let package_of = |path: &Path| {
        let holders = packages.iter().filter(|dir| path.starts_with(dir) || dir.as_os_str() == ".");
        holders.max_by_key(|dir| dir.components().count()).expect("the root package holds everything else").clone()
    };
    let mut wrong = String::new();
    for (path, text) in sources("rs") {
        for line in text.lines() {
            let reads =
                ["include!(", "include_str!(", "include_bytes!(", "#[path"].iter().any(|how| line.contains(how));
            for literal in line.split('"').skip(1).step_by(2).filter(|l| reads && l.contains("..")) {
                let target = normal(&Path::new(&path).with_file_name("").join(literal));
                if package_of(&target) != package_of(Path::new(&path)) && !target.starts_with("include") {
                    let _ = writeln!(wrong, "  {path}: {}", line.trim());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "code is shared by depending on a crate, where a test can see it:\n{wrong}");
}

#[test]
fn members_take_the_workspace_lints() {
    let graph = Graph::read();
    for dir in graph.packages.values().filter_map(|p| p.dir.as_ref()) {
        let manifest = read(&format!("{dir}/Cargo.toml"));
        let lints = manifest.split("[lints]").nth(1).unwrap_or("");
        let section = lints.split("\n[").next().unwrap_or("");
        assert!(section.contains("workspace = true"), "{dir}/Cargo.toml: add `[lints]` with `workspace = true`");
    }
    let table = read("Cargo.toml");
    for lint in
        ["undocumented_unsafe_blocks = \"deny\"", "unsafe_op_in_unsafe_fn = \"deny\"", "missing_docs = \"warn\""]
    {
        assert!(table.contains(lint), "Cargo.toml: the lint table lost `{lint}`, on which CONTRIBUTING.md relies");
    }
}

// --------------------------------------------------------------------------------------------------- files

#[test]
fn files_stay_short() {
    let mut wrong = String::new();
    let lengths: BTreeMap<String, usize> = sources("rs").map(|(path, text)| (path, text.lines().count())).collect();
    for (path, lines) in &lengths {
        if *lines > LONGEST && !LONG.iter().any(|(long, _)| long == path) {
            let _ = writeln!(wrong, "  {path} has {lines} lines: split it, or list it in LONG with the reason");
        }
    }
    for (path, reason) in LONG {
        assert!(!reason.is_empty(), "{path} is listed in LONG without a reason");
        if lengths.get(*path).is_none_or(|lines| *lines <= LONGEST) {
            let _ = writeln!(wrong, "  {path} is listed in LONG, and need not be");
        }
    }
    assert!(
        wrong.is_empty(),
        "a file is read as a whole, so it should be of a size to be read (at most {LONGEST} lines):\n{wrong}"
    );
}

/// Whoever hands a call on for want of something says of what: `Unheld` in `src/ledger.rs`.
#[test]
fn no_op_hands_a_call_on_without_a_reason() {
    let mut wrong = String::new();
    for (path, text) in sources("rs").filter(|(path, _)| path.starts_with("src/ops")) {
        for (number, line) in text.lines().enumerate() {
            let is_so = ["else { return Outcome::Done(call.driver()) }", "_ => Outcome::Done(call.driver())"];
            if is_so.iter().any(|code| line.contains(code)) {
                let _ = writeln!(wrong, "  {path}:{}: {}", number + 1, line.trim());
            }
        }
    }
    assert!(wrong.is_empty(), "calls that are handed on, and nobody knows why: ask by `Unheld`:\n{wrong}");
}

#[test]
fn words_that_do_not_belong_are_absent() {
    let mut wrong = String::new();
    for (path, text) in tree()
        .into_iter()
        .filter(|path| !NOT_OUR_WORDS.iter().any(|name| path.rsplit('/').next() == Some(name)))
        .filter_map(text_of)
    {
        for (number, line) in text.lines().enumerate() {
            for (word, instead) in FORBIDDEN.iter().filter(|(word, _)| contains_word(line, word)) {
                let _ = writeln!(wrong, "  {path}:{}: {word:?}: {instead}", number + 1);
            }
        }
    }
    assert!(wrong.is_empty(), "words that this tree does without:\n{wrong}");
}

#[test]
fn scripts_can_be_run_and_say_how() {
    let mut seen = 0;
    for path in tree() {
        let file = Path::new(&path);
        let dir = file.parent().and_then(Path::to_str).unwrap_or("");
        if !["ci", "ci/test.d", ".ci"].contains(&dir) || file.extension().is_some() {
            continue;
        }
        seen += 1;
        let mode = root().join(&path).metadata().expect("it was listed").permissions().mode();
        assert!(mode & 0o111 == 0o111, "{path} is not executable: chmod +x {path}");
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        let usage = match (dir, name.split_once('-')) {
            ("ci/test.d", Some((number, name))) if number.bytes().all(|b| b.is_ascii_digit()) => {
                format!("# usage: ci/test {name}\n# ")
            }
            ("ci/test.d", _) => panic!("{path}: a check is called NN-name; the number is its place in the order"),
            _ => format!("# usage: {path}"),
        };
        assert!(
            read(&path).contains(&usage),
            "{path}: the comment at its top should have {usage:?}, then what it does"
        );
    }
    assert!(seen > 5, "the scripts of ci/ were not found");
}

// ------------------------------------------------------------------------------------------------- documents

#[test]
fn architecture_mentions_every_crate() {
    let architecture = read("ARCHITECTURE.md");
    for dir in Graph::read().packages.values().filter_map(|p| p.dir.as_ref()) {
        let named = if dir == "." { "`src/`".to_owned() } else { format!("`{dir}`") };
        assert!(architecture.contains(&named), "ARCHITECTURE.md does not say what {named} is");
    }
}

#[test]
fn architecture_names_tests_that_exist() {
    let (architecture, here) = (read("ARCHITECTURE.md"), read("tests/tidy.rs"));
    let named: BTreeSet<&str> = after_each(&architecture, "tidy::").collect();
    assert!(!named.is_empty(), "ARCHITECTURE.md no longer says which test keeps which invariant");
    for name in named {
        assert!(
            here.contains(&format!("#[test]\nfn {name}()")),
            "ARCHITECTURE.md trusts tidy::{name}, which is not a test"
        );
    }
}

#[test]
fn documents_are_linked_and_links_lead_somewhere() {
    let entrances = read("README.md") + &read("ARCHITECTURE.md");
    let mut wrong = String::new();
    for (path, text) in sources("md") {
        if path.starts_with("docs/") && !entrances.contains(&format!("({path}")) {
            let _ = writeln!(wrong, "  {path}: neither README.md nor ARCHITECTURE.md links to it");
        }
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let elsewhere = target.is_empty() || target.contains("://");
            if !elsewhere && !root().join(Path::new(&path).with_file_name("").join(target)).exists() {
                let _ = writeln!(wrong, "  {path}: links to {target}, which does not exist");
            }
        }
    }
    assert!(wrong.is_empty(), "documents out of reach:\n{wrong}");
}

#[test]
fn settings_of_the_simulated_gpu_are_those_documented() {
    let prefix = concat!("RATION_", "SIM_");
    let names = |text: &str| -> BTreeSet<String> {
        let rests = after_each(text, prefix).filter(|rest| !rest.is_empty() && !rest.ends_with('_'));
        rests
            .filter(|rest| rest.bytes().all(|b| !b.is_ascii_lowercase()))
            .map(|rest| format!("{prefix}{rest}"))
            .collect()
    };
    let documented = names(&read("docs/simulated-gpu.md"));
    let mut implemented = BTreeSet::new();
    let mut used = BTreeMap::new();
    for (path, text) in tree().into_iter().filter(|path| !path.ends_with(".md")).filter_map(text_of) {
        for name in names(&text) {
            if path.starts_with("cuda-stubs/") {
                implemented.insert(name.clone());
            }
            used.entry(name).or_insert(path.clone());
        }
    }
    for (name, path) in &used {
        assert!(documented.contains(name), "{name} (in {path}) is not in docs/simulated-gpu.md");
    }
    for name in &documented {
        assert!(
            implemented.contains(name),
            "docs/simulated-gpu.md documents {name}, which nothing in cuda-stubs/ reads"
        );
    }
    assert!(!implemented.is_empty(), "no settings were found in cuda-stubs/");
}

#[test]
fn settings_of_the_shim_are_those_documented() {
    let documented = read("docs/library.md");
    let mut read_by_the_shim = BTreeSet::new();
    for (path, text) in tree().into_iter().filter(|path| path.starts_with("src/")).filter_map(text_of) {
        for rest in after_each(&text, "c\"RATION_") {
            let name: String = rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            assert!(
                documented.contains(&format!("`RATION_{name}=")),
                "RATION_{name} ({path}) is not in docs/library.md"
            );
            read_by_the_shim.insert(name);
        }
    }
    assert!(!read_by_the_shim.is_empty(), "no settings were found in src/");
    for rest in after_each(&documented, "| `RATION_") {
        let name: String = rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
        assert!(
            read_by_the_shim.contains(&name),
            "docs/library.md documents RATION_{name}, which nothing in src/ reads"
        );
    }
}

/// What must not be used inside of somebody else's process, and why.
const NOT_IN_THE_SHIM: [(&str, &str); 8] = [
    ("thread_local!", "asks the loader for an address at every access, and runs destructors: see src/thread.rs"),
    (
        "std::env",
        "reads the environment under a lock of Rust's own, and trusts setuid programs' users: see sys::setting",
    ),
    ("std::fs", "keeps descriptors that the program may close and reuse: see src/sys.rs"),
    ("std::thread", "the library starts no thread"),
    ("Mutex", "a fork while it is held leaves it held for ever in the child: see thread::ShortLock"),
    ("OnceLock", "a fork while it is being set leaves it so for ever in the child: see process::begin"),
    ("println!", "standard output is the program's"),
    ("std::process::exit", "the shim never ends a program"),
];

#[test]
fn shim_keeps_off_what_is_unsafe_in_a_strangers_process() {
    let mut files = 0;
    for (path, text) in tree().into_iter().filter(|path| path.starts_with("src/")).filter_map(text_of) {
        files += 1;
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for (number, line) in code.enumerate() {
            for (word, why) in NOT_IN_THE_SHIM {
                assert!(!line.contains(word), "{path}: line of code {}: {word}: {why}", number + 1);
            }
        }
    }
    assert!(files > 10, "src/ was not read");
}

// ---------------------------------------------------------------------------------------------- how it looks

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The files that belong to the tree: what git tracks or would track, or, where git cannot say, all but caches.
fn tree() -> Vec<String> {
    let git = Command::new("git").args(["ls-files", "-z", "-co", "--exclude-standard"]).current_dir(root()).output();
    let mut files: Vec<String> = match git {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => {
            let names = String::from_utf8(output.stdout).expect("file names are UTF-8");
            names.split('\0').filter(|name| root().join(name).is_file()).map(str::to_owned).collect()
        }
        _ => walk(root()),
    };
    files.sort();
    files.dedup();
    assert!(files.iter().any(|file| file == "tests/tidy.rs"), "the tree was not found");
    files
}

fn walk(dir: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory of the tree").map(|entry| entry.expect("an entry").path()) {
        let name = entry.strip_prefix(root()).expect("under the root").display().to_string();
        if entry.is_dir() && !["target", ".cache", ".git"].contains(&name.as_str()) {
            files.extend(walk(&entry));
        } else if entry.is_file() {
            files.push(name);
        }
    }
    files
}

/// The files of the tree with this extension, and what is in them.
fn sources(extension: &str) -> impl Iterator<Item = (String, String)> {
    let suffix = format!(".{extension}");
    tree().into_iter().filter(move |path| path.ends_with(&suffix)).filter_map(text_of)
}

/// `None` for what is not text.
fn text_of(path: String) -> Option<(String, String)> {
    let text = String::from_utf8(std::fs::read(root().join(&path)).ok()?).ok()?;
    Some((path, text))
}

/// Whether a word occurs, and not merely as a part of a longer one. (A path may begin or end anywhere.)
fn contains_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        let cut_left = before.is_none_or(|c| !part(c)) || !word.starts_with(part);
        let cut_right = after.is_none_or(|c| !part(c)) || !word.ends_with(part);
        cut_left && cut_right
    })
}

/// The identifiers that follow a mark in a text.
fn after_each<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(mark)
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or(""))
}

fn in_family(name: &str, family: &str) -> bool {
    name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
}

/// A path without its `..`, which need not exist.
fn normal(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}
