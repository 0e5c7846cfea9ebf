//! Exact routing: every symbol that the shim stands in front of is reached as itself, by every way that leads to it, on
//! drivers old and new; and whatever it does not stand in front of is found as if it were not there.
//!
//! The drivers are those of `support::driver`, whose functions answer with numbers of their own. A client asks for all
//! of their symbols in all ways and calls what it finds, once with the shim and once without; the two must differ in
//! nothing but that the pointer to a hooked symbol is the shim's export of just that symbol.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

mod support;
use support::driver::{ARGUMENTS, Library, RELEASES, Release, Surface, VERSION, Workshop};
use support::table::{Row, Table, library};

/// Names that are asked for besides the symbols of all releases.
const OTHERS: [&str; 5] = ["cuNothing", "nvmlNothing", "malloc", "routing_arguments", "cuMemAlloc_v2_ptsz"];

/// What comes of calling a hooked symbol that the driver lacks.
fn answer_of_nobody(file: &str, symbol: &str) -> Answer {
    let number = match Library::of(symbol) {
        Library::Cuda => "801 x 0",
        Library::Nvml => "13 x 0",
    };
    Answer { owner: format!("{file}:{symbol}"), number: number.to_owned(), whole: 0, low: 0, said: "-".to_owned() }
}

#[test]
fn every_symbol_is_reached_as_itself() {
    let bench = Bench::new("routing");
    bench.compile_clients();
    let mut failures = String::new();
    let mut report = String::from("release  client   asked    ours  absent\n");
    for release in RELEASES {
        for (client, ways) in [("linked", LINKED), ("local", LOADED), ("global", LOADED)] {
            let bare = Answers::read(&bench.run(release, client, ways, None));
            bench.check_bare(release, client, &bare);
            let backwards: Vec<_> = ways.iter().rev().copied().collect();
            for (run, ways, trace) in [
                ("in order", ways, None),
                ("backwards", &backwards[..], None),
                ("writing each call down", ways, Some(bench.workshop.dir.join("calls"))),
            ] {
                let shim = Answers::read(&bench.run(release, client, ways, Some(trace.as_deref())));
                let wrong = bench.differences(release, &bare, &shim);
                if !wrong.is_empty() {
                    let _ = writeln!(failures, "R{} {client} {run}:", release.name);
                    for (way, lines) in wrong {
                        let _ = writeln!(failures, "  {way}: {} are wrong, of them {}", lines.len(), lines[0]);
                    }
                }
                let ours = shim.0.values().filter(|answer| answer.owner.starts_with("libration.so:")).count();
                assert!(ours > 1500, "R{} {client} {run}: only {ours} answers are the shim's", release.name);
                if run == "in order" {
                    let (asked, absent) = (shim.0.len(), shim.0.values().filter(|answer| answer.owner == "-").count());
                    let _ = writeln!(report, "R{}     {client:<6}  {asked:>6}  {ours:>6}  {absent:>6}", release.name);
                }
            }
        }
    }
    support::report("routing", &report);
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn looking_up_the_look_up_leads_to_the_same() {
    let bench = Bench::new("routing-dlsym");
    bench.workshop.cc(&["-o", "process", &program("process"), "-ldl"]);
    for release in RELEASES {
        let run = |shim| bench.command("process", release, shim).arg("look").output().expect("it was compiled");
        let (bare, shim) = (run(None), run(Some(None)));
        assert!(bare.status.success() && shim.status.success(), "{} {}", bare.status, shim.status);
        let (bare, shim) = (String::from_utf8_lossy(&bare.stdout), String::from_utf8_lossy(&shim.stdout));
        let (ours, theirs) = ("libration.so:cuMemAlloc_v2", "libcuda.so.1:cuMemAlloc_v2");
        assert_eq!(bare.matches(&format!(" {theirs} libcuda.so.1:cuMemHostAlloc\n")).count(), 8, "{bare}");
        // What is not hooked is found by all of them, and what is by those that the program finds as its own would be
        // bound. Whoever asks libc itself for its dlsym has that, and finds the driver's.
        assert_eq!(shim.replace(ours, theirs), bare);
        for line in shim.lines().filter(|line| line.starts_with("default:") || line.starts_with("next:")) {
            assert!(line.contains(ours), "{line}");
        }
    }
}

#[test]
fn ending_without_further_ado_is_just_that() {
    let bench = Bench::new("routing-exit");
    bench.workshop.cc(&["-o", "process", &program("process"), "-ldl"]);
    let release = RELEASES[1];
    for used in ["unused", "used"] {
        for how in ["_exit", "_Exit", "dlsym _exit", "dlsym _Exit", "exit"] {
            let end =
                |shim| bench.command("process", release, shim).args([how, used]).output().expect("it was compiled");
            let (bare, shim) = (end(None), end(Some(None)));
            let said = if how == "exit" { "flushed" } else { "" };
            assert_eq!((bare.status.code(), &bare.stdout[..]), (Some(43), said.as_bytes()), "{how} without the shim");
            assert_eq!((shim.status.code(), &shim.stdout[..]), (Some(43), said.as_bytes()), "{how}, {used}");
        }
    }
}

// ------------------------------------------------------------------------------------------------------- the table

/// A row of the table of hooks.
struct Hook {
    /// Whether the call is handed on with all that came in.
    forwarded: bool,
    words: Words,
}

/// Which of the argument words a prototype names: those of 64 bits, and those of which only the lower half counts.
#[derive(Default, Clone, Copy)]
struct Words {
    whole: u32,
    low: u32,
}

fn hooks() -> BTreeMap<String, Hook> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let headers = read("include/cuda_abi.h") + &read("include/nvml_abi.h");
    let table = Table::read();
    let ours = table.rows.iter().filter(|row| table.classes[row.class].library != "libc");
    let hook = |row: &Row| Hook {
        forwarded: row.done != "by-hand" && !row.done.starts_with("resolver::"),
        words: words_of(&headers, &row.symbol),
    };
    let hooks: BTreeMap<_, _> = ours.map(|row| (row.symbol.clone(), hook(row))).collect();
    assert!(hooks.len() > 100, "src/table/hooks.tsv has only {} rows", hooks.len());
    hooks
}

/// Where a prototype's arguments are, in registers and on the stack.
fn words_of(headers: &str, symbol: &str) -> Words {
    const REGISTERS: usize = if cfg!(target_arch = "x86_64") { 6 } else { 8 };
    let name = symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")).unwrap_or(symbol);
    let declared = headers.split(&format!(" {name}(")).nth(1).unwrap_or_else(|| panic!("include/ has no {name}"));
    let list = declared.split(");").next().expect("split gives one part at least");
    let (mut registers, mut stack) = (0, REGISTERS);
    let mut words = Words::default();
    for argument in list.split(',').map(str::trim).filter(|argument| *argument != "void") {
        let kind = argument.rsplit_once([' ', '*']).map_or("", |(kind, _)| kind.trim_end());
        let pointer = argument.contains('*') || headers.contains(&format!(" *{kind};")) || is_callback(headers, kind);
        let whole = pointer || ["size_t", "unsigned long long", "cuuint64_t", "CUdeviceptr"].contains(&kind);
        if kind == "CUipcMemHandle" && !pointer {
            words.whole |= 0xff << stack; // 64 bytes by value
            stack += 8;
            continue;
        }
        let place = if registers < REGISTERS { &mut registers } else { &mut stack };
        *(if whole { &mut words.whole } else { &mut words.low }) |= 1 << *place;
        *place += 1;
    }
    assert!(stack <= ARGUMENTS, "{name} has more arguments than the clients pass");
    words
}

fn is_callback(headers: &str, kind: &str) -> bool {
    headers.contains(&format!("(*{kind})("))
}

// ------------------------------------------------------------------------------------------------------ the answers

/// What came of one question.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    /// Whose symbol the pointer is: `FILE:SYMBOL`; `-` for none.
    owner: String,
    /// What calling it gave and how often that reached the driver, and the arguments that arrived whole, and in their
    /// lower half.
    number: String,
    whole: u32,
    low: u32,
    /// What `dlerror` says afterwards, or the code and status of `cuGetProcAddress`.
    said: String,
}

/// By way and name; in a look-up by `cuGetProcAddress` the name has a version and flags.
struct Answers(BTreeMap<(String, String), Answer>);

impl Answers {
    fn read(output: &Output) -> Answers {
        let text = String::from_utf8_lossy(&output.stdout);
        let mut answers = BTreeMap::new();
        for line in text.lines() {
            let fields: Vec<_> = line.split('\t').collect();
            let [way, name, owner, number, whole, low, said] = fields[..] else { panic!("the client says {line:?}") };
            let mask = |text: &str| u32::from_str_radix(text, 16).unwrap_or_else(|e| panic!("{line:?}: {e}"));
            let [owner, number, said] = [owner, number, said].map(str::to_owned);
            let answer = Answer { owner, number, whole: mask(whole), low: mask(low), said };
            let again = answers.insert((way.to_owned(), name.to_owned()), answer);
            assert!(again.is_none(), "the client answers {way} {name} twice");
        }
        Answers(answers)
    }
}

/// tests/programs/routing/NAME.c.
fn program(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/programs/routing").join(format!("{name}.c")).display().to_string()
}

/// Surface, hooks, the drivers, the clients.
struct Bench {
    surface: Surface,
    hooks: BTreeMap<String, Hook>,
    workshop: Workshop,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let bench = Bench { surface: Surface::read(), hooks: hooks(), workshop: Workshop::new(name) };
        for symbol in bench.hooks.keys() {
            assert!(bench.surface.symbols.contains_key(symbol), "{symbol} is hooked, and no driver's export");
        }
        bench.workshop.drivers(&bench.surface);
        bench
    }

    fn compile_clients(&self) {
        self.workshop.write("plt.c", &self.plt());
        self.workshop.write("lists.h", &self.lists());
        let client = program("client");
        self.workshop.cc(&["-I.", "-o", "loader", &client, "-ldl"]);
        // Against the newest driver that exists, so that every name is found; bound when first called, so that it
        // starts on one which lacks some.
        let to = ["-Wl,-z,lazy,-rpath,$ORIGIN", "-L615", "-l:libcuda.so.1", "-l:libnvidia-ml.so.1", "-ldl"];
        self.workshop.cc(&[&["-shared", "-fPIC", "-DWEAK", "-o", "links.so", "plt.c"], &to[..]].concat());
        self.workshop
            .cc(&[&["-DLINKED", "-I.", "-o", "linked", &client, "plt.c", "-L.", "-l:links.so"], &to[..]].concat());
    }

    /// Runs a client to its end. `shim`: preloaded, and writing each call down into that file.
    fn run(&self, release: Release, client: &str, ways: &[&str], shim: Option<Option<&Path>>) -> Output {
        let program = if client == "linked" { "linked" } else { "loader" };
        let mut command = self.command(program, release, shim);
        let output = command.arg(client).args(ways).output().expect("the client was compiled");
        assert!(
            output.status.success(),
            "R{} {client} {ways:?}{}: {}\n{}",
            release.name,
            if shim.is_some() { " under the shim" } else { "" },
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }

    fn command(&self, program: &str, release: Release, shim: Option<Option<&Path>>) -> Command {
        let mut command = Command::new(self.workshop.dir.join(program));
        command.env("LD_LIBRARY_PATH", self.workshop.dir.join(release.name.to_string()));
        for name in ["LD_PRELOAD", "LD_BIND_NOW", "RATION_TRACE", "RATION_LOG"] {
            command.env_remove(name);
        }
        if let Some(trace) = shim {
            command.env("LD_PRELOAD", library());
            if let Some(path) = trace {
                command.env("RATION_TRACE", format!("calls:{}", path.display()));
            }
        }
        command
    }

    /// Whether a way of looking up leads to a symbol that the release has.
    fn leads_to(release: Release, client: &str, way: &str, symbol: &str) -> bool {
        // glibc takes no symbol without a version for one with, unless the library has no versions at all, not even of
        // what it wants from libc: then it does. Here that is NVML, which wants nothing of libc.
        let matches = release.versioned && !way.ends_with("another version") || Library::of(symbol) == Library::Nvml;
        if way.starts_with("dlvsym") && !matches {
            return false;
        }
        match way {
            "dlsym libcuda" | "dlvsym libcuda" | "dlvsym libcuda, another version" => {
                Library::of(symbol) == Library::Cuda
            }
            "dlsym libnvidia-ml" | "dlvsym libnvidia-ml" => Library::of(symbol) == Library::Nvml,
            "link" => true,
            "before" => client == "linked",
            _ => client != "local",
        }
    }

    /// The client and the drivers do what the tables say, or there is nothing to compare with.
    fn check_bare(&self, release: Release, client: &str, bare: &Answers) {
        for ((way, name), answer) in &bare.0 {
            let owned = |symbol: &str| format!("{}:{symbol}", Library::of(symbol).file());
            let owner = if OTHERS.contains(&name.as_str()) || way == "edge" {
                continue;
            } else if let Some((name, question)) = name.split_once('@') {
                let (version, flags) = question.split_once('/').expect("a version and flags");
                let (version, flags): (u32, u32) =
                    (version.parse().expect("a number"), flags.parse().expect("a number"));
                let found = self.surface.resolve(release, name, version, flags == 2);
                match found {
                    Ok(export) if version <= release.cuda => owned(export),
                    Err(_) if version <= release.cuda && way.starts_with("cuGetProcAddress_v2") => "-".to_owned(),
                    _ => "untouched".to_owned(),
                }
            } else if way == "plt" {
                format!("plt:{name}")
            } else if self.surface.has(release, name) && Bench::leads_to(release, client, way, name) {
                owned(name)
            } else {
                "-".to_owned()
            };
            assert_eq!(answer.owner, owner, "R{} {client} without the shim: {way} {name}", release.name);
            if let Some(symbol) =
                owner.split_once(':').map(|(_, symbol)| symbol).filter(|symbol| self.is_called(symbol))
            {
                assert_eq!(
                    answer.number,
                    format!("{} x 1", self.surface.number(symbol)),
                    "{way} {name} without the shim"
                );
                assert_eq!((answer.whole, answer.low), (0xffff, 0xffff), "{way} {name} without the shim");
            }
        }
    }

    /// Functions that are not forwarded are not called with arguments that mean nothing.
    fn is_called(&self, symbol: &str) -> bool {
        self.surface.symbols.contains_key(symbol)
            && self.hooks.get(symbol).is_none_or(|hook| hook.forwarded)
            && !symbol.starts_with("cuGetProcAddress")
    }

    /// In what the answers under the shim are not what those without it make them, by way.
    fn differences(&self, release: Release, bare: &Answers, shim: &Answers) -> BTreeMap<String, Vec<String>> {
        let mut wrong: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut note = |way: &String, what: String| wrong.entry(way.clone()).or_default().push(what);
        for (key @ (way, name), answer) in &shim.0 {
            let expected = match bare.0.get(key) {
                // A weak name that the dynamic linker finds in the shim, which tells whoever calls it.
                Some(bare) if way == "link" && bare.owner == "-" => &answer_of_nobody("libration.so", name),
                Some(bare) => bare,
                // Called though the driver has no such thing: without the shim, the end of the program.
                None if way == "plt" && !self.surface.has(release, name) => &answer_of_nobody("plt", name),
                None => {
                    note(way, format!("{name}: {answer:?}, and nothing without the shim"));
                    continue;
                }
            };
            let symbol = expected.owner.split_once(':').map(|(_, symbol)| symbol);
            let hook = symbol.and_then(|symbol| self.hooks.get(symbol));
            let owner = match (symbol, hook) {
                (Some(symbol), Some(_)) if way != "plt" => format!("libration.so:{symbol}"),
                _ => expected.owner.clone(),
            };
            let wants = hook.filter(|_| expected.whole != 0).map_or(Words::default(), |hook| hook.words);
            let arrived = answer.whole & wants.whole == wants.whole && answer.low & wants.low == wants.low;
            if (&answer.owner, &answer.number, &answer.said) != (&owner, &expected.number, &expected.said) || !arrived {
                let Words { whole, low } = wants;
                let should = format!("should be {owner}, {}, whole {whole:x}, low {low:x}", expected.number);
                note(way, format!("{name}: {answer:x?}, {should}, {}", expected.said));
            }
        }
        for (way, name) in bare.0.keys().filter(|key| !shim.0.contains_key(*key)) {
            note(way, format!("{name}: no answer under the shim"));
        }
        wrong
    }
}

// ------------------------------------------------------------------------------------------------------- the client

/// Ways of the client that is linked to the driver, in an order; and of those that load it.
const LINKED: &[&str] = &[
    "plt",
    "link",
    "dlsym libcuda",
    "dlsym libnvidia-ml",
    "dlsym default",
    "dlsym next",
    "dlsym program",
    "dlvsym libcuda",
    "dlvsym libnvidia-ml",
    "dlvsym default",
    "dlvsym libcuda, another version",
    "cuGetProcAddress_v2 plt",
    "cuGetProcAddress plt",
    "cuGetProcAddress_v2 dlsym",
    "cuGetProcAddress dlsym",
    "cuGetProcAddress_v2 itself",
    "edge",
];
const LOADED: &[&str] = &[
    "dlsym libcuda",
    "dlsym libnvidia-ml",
    "dlsym default",
    "dlsym next",
    "dlsym program",
    "dlvsym libcuda",
    "dlvsym libnvidia-ml",
    "dlvsym default",
    "dlvsym libcuda, another version",
    "cuGetProcAddress_v2 dlsym",
    "cuGetProcAddress dlsym",
    "cuGetProcAddress_v2 itself",
    "edge",
];

impl Bench {
    /// The rows that can be called with anything, in the order of their names.
    fn callable(&self) -> impl Iterator<Item = &String> {
        self.hooks.keys().filter(|name| self.is_called(name))
    }

    /// Calls by linking: by name, and by an address that the dynamic linker put into a table. The names are weak in the
    /// latter, or a driver without one of them would keep the library from being loaded.
    fn plt(&self) -> String {
        let values: Vec<_> = (1..=ARGUMENTS).map(|i| format!("V({i})")).collect();
        let values = values.join(", ");
        let mut text = String::from("#define V(i) (((long)(i) << 32) | (i))\n#ifdef WEAK\n");
        let _ = self.callable().try_for_each(|name| writeln!(text, "extern unsigned {name}() __attribute__((weak));"));
        text.push_str("void *const links[] = {\n");
        let _ = self.callable().try_for_each(|name| writeln!(text, "    (void *){name},"));
        text.push_str("};\n#else\n");
        let _ = self.callable().try_for_each(|name| writeln!(text, "extern unsigned {name}();"));
        text.push_str("unsigned call_linked(int row) {\n    switch (row) {\n");
        for (row, name) in self.callable().enumerate() {
            let _ = writeln!(text, "    case {row}: return {name}({values});");
        }
        text.push_str("    }\n    __builtin_trap();\n}\n#endif\n");
        text
    }

    /// What the client asks for.
    fn lists(&self) -> String {
        let values: Vec<_> = (1..=ARGUMENTS).map(|i| format!("V({i})")).collect();
        let longs = vec!["long"; ARGUMENTS].join(", ");
        let mut text = format!("#define VALUES {}\ntypedef unsigned entry({longs});\n", values.join(", "));
        let _ = writeln!(text, "enum {{ ARGUMENTS = {ARGUMENTS} }};\n#define VERSION \"{VERSION}\"");
        text.push_str("static const struct name { const char *name; unsigned number; } names[] = {\n");
        let names: BTreeSet<&str> = self.surface.symbols.keys().map(String::as_str).chain(OTHERS).collect();
        for name in names {
            let number = if self.is_called(name) { self.surface.number(name) } else { 0 };
            let _ = writeln!(text, "    {{\"{name}\", {number}}},");
        }
        text.push_str("};\nstatic const char *const rows[] = {\n");
        let _ = self.callable().try_for_each(|name| writeln!(text, "    \"{name}\","));
        text.push_str("};\nstatic const struct question { const char *name; int version; } questions[] = {\n");
        let mut questions = BTreeSet::new();
        for answer in &self.surface.answers {
            let around = [answer.since - 1, answer.since, answer.since + 1];
            let releases = RELEASES.map(|release| release.cuda);
            questions.extend(around.into_iter().chain(releases).map(|version| (&answer.name, version)));
        }
        for (name, version) in questions {
            let _ = writeln!(text, "    {{\"{name}\", {version}}},");
        }
        text.push_str("};\n");
        text
    }
}
