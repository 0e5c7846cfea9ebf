//! The hostile programs once more, each in a slice with a cap and a limit and beside a neighbour, by both switches: whatever they do, it
//! looks as it does without us, they are held to the cap, and nothing is left. The judge is the simulated driver's own record.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

mod support;
use support::preload::{Bench, Run, SLICE, Trace, Trial};

const SWITCHES: [&str; 2] = ["channels", "launches"];

/// What a slice changes of what a program does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Differs {
    Nothing,
    /// It prints how much memory is used.
    Told,
    /// With no descriptor left, its channels cannot be driven, and that is said.
    Descriptors,
}

/// What every one of them must do.
fn is_well(bare: &Run, run: &Run, differs: Differs) {
    run.nothing_is_left();
    match differs {
        Differs::Nothing => _ = run.looks_like(bare).says_nothing(),
        Differs::Told => _ = run.succeeded().says_nothing(),
        Differs::Descriptors => _ = run.looks_like(bare),
    }
    for process in &run.record().processes {
        for held in process.gpus.values().filter(|_| !process.observer) {
            assert!(held.peak_bytes <= SLICE, "{} bytes\n{}", held.peak_bytes, run.said());
        }
    }
}

/// Runs it without us, and in slices; names what fails.
fn try_all<'b>(cases: impl IntoIterator<Item = (String, Trial<'b>)>) {
    try_all_but(Differs::Nothing, cases);
}

fn try_all_but<'b>(differs: Differs, cases: impl IntoIterator<Item = (String, Trial<'b>)>) {
    let mut failed = String::new();
    for (name, trial) in cases {
        let bare = trial.bare();
        for switch in SWITCHES {
            let sliced = || is_well(&bare, &trial.clone().sliced(switch).shimmed(), differs);
            let checked = catch_unwind(AssertUnwindSafe(sliced));
            if checked.is_err() {
                failed += &format!("  {name}, {switch}\n");
            }
        }
    }
    assert!(failed.is_empty(), "these fail:\n{failed}");
}

fn named<'b>(name: &str, trial: &Trial<'b>, lists: &[&[&str]]) -> Vec<(String, Trial<'b>)> {
    let with = |args: &&[&str]| (format!("{name} {}", args.join(" ")), trial.clone().args(args.iter().copied()));
    lists.iter().map(with).collect()
}

fn trial<'b>(bench: &'b Bench, program: &Path) -> Trial<'b> {
    Trial::new(bench, program).trace(Trace::Off).limit(20)
}

#[test]
fn beginnings_and_ends_in_a_slice() {
    let bench = Bench::new();
    bench.library("edges", "edge", &["-DLIBRARY", "-lcuda"]);
    let edges = trial(&bench, &bench.program("edges", &["-ledge", "-lcuda"]));
    let letters = ["mdD", "aAx", "tT", "cCmaAxtTdD"];
    try_all(letters.map(|letters| (format!("edges {letters}"), edges.clone().env("EDGES", letters))));
    let ends = trial(&bench, &bench.program("ends", &["-lcuda"]));
    let ways: &[&[&str]] = &[
        &["return"],
        &["exit"],
        &["_exit"],
        &["quick_exit"],
        &["abort"],
        &["segv"],
        &["term"],
        &["kill"],
        &["pthread_exit"],
        &["exec", "/bin/true"],
        &["exit-in-handler"],
        &["raise-in-thread"],
        &["syscall"],
    ];
    try_all(named("ends", &ends, ways));
}

#[test]
fn ends_amid_launches_in_a_slice() {
    let bench = Bench::new();
    let ends = trial(&bench, &bench.program("ends", &["-lcuda"]));
    let ways: &[&[&str]] = &[
        &["racing", "exit"],
        &["racing", "_exit"],
        &["racing", "return"],
        &["racing", "quick_exit"],
        &["racing", "abort"],
        &["racing", "term"],
    ];
    try_all(named("ends", &ends, ways));
}

#[test]
fn little_room_in_a_slice() {
    let bench = Bench::new();
    let signals = trial(&bench, &bench.program("signals", &["-lcuda"]));
    try_all(named("signals", &signals, &[&["timer", "0.5"], &["altstack", "65536"], &["smallstack"]]));
    let own = bench.dir.join("own").display().to_string();
    let descriptors = trial(&bench, &bench.program("descriptors", &["-lcuda"]));
    let ways: &[&[&str]] = &[&["before", &own, "12"], &["after", &own, "12"], &["elsewhere", "/"], &["retitle"]];
    try_all(named("descriptors", &descriptors, ways));
    try_all_but(Differs::Descriptors, named("descriptors", &descriptors, &[&["limit"]]));
    let churn = trial(&bench, &bench.program("churn", &["-lcuda"]));
    try_all(named("churn", &churn, &[&["500", "16"], &["200", "16", "keys"]]));
}

#[test]
fn a_call_in_a_slice_leaves_nothing_behind_but_its_answer() {
    let bench = Bench::new();
    bench.compile("blocked", "libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    let program = bench.program("manners", &["-lcuda"]);
    // But for `dlerror`: there is no NVML beside this driver, and looking for it leaves an error.
    for way in ["errno", "pointers", "mask"] {
        let here = trial(&bench, &program).args([way]).env("LD_LIBRARY_PATH", &bench.dir);
        for switch in SWITCHES {
            here.clone().sliced(switch).shimmed().succeeded();
        }
    }
}

#[test]
fn forks_in_a_slice() {
    let bench = Bench::new();
    let forks = trial(&bench, &bench.program("forks", &["-lcuda"]));
    let ways: &[&[&str]] =
        &[&["before", "40", "12345"], &["after", "100", "777"], &["touched", "20"], &["first", "10"], &["nested", "6"]];
    try_all(named("forks", &forks, ways));
}

#[test]
fn crowds_and_generations_in_a_slice() {
    let bench = Bench::new();
    let crowd = trial(&bench, &bench.program("crowd", &[]));
    let linked = bench.compile("first", "first-linked", &["-DLINKED", "-lcuda"]).display().to_string();
    let loading = bench.compile("first", "first-loading", &[]).display().to_string();
    let lines = bench.program("lines", &["-lcuda"]).display().to_string();
    let ways: &[&[&str]] = &[&[&linked, "8", "2"], &[&loading, "8", "2"], &[&lines, "4", "2"]];
    try_all(named("crowd", &crowd, ways));
    let reload = trial(&bench, &bench.program("reload", &[]));
    try_all(named("reload", &reload, &[&["1", "100", "local"], &["8", "50", "global"]]));
}

#[test]
fn every_way_to_the_driver_in_a_slice() {
    let bench = Bench::new();
    let driver = ["-lcuda", "-lnvidia-ml"];
    bench.library("ways", "via", &[&["-DVIA"], &driver[..]].concat());
    let plugin = bench.library("ways", "plugin", &[&["-DVIA"], &driver[..]].concat()).display().to_string();
    let ways = trial(&bench, &bench.program("ways", &[&["-DWITH_VIA", "-lvia"], &driver[..]].concat()));
    let lists: Vec<_> = ["main", "linked", "plugin"]
        .iter()
        .flat_map(|from| ["plt", "handle", "default", "procaddress"].map(|way| [*from, way, plugin.as_str()]))
        .collect();
    let lists: Vec<&[&str]> = lists.iter().map(|list| &list[..]).collect();
    try_all_but(Differs::Told, named("ways", &ways, &lists));
    // Other libraries on both sides.
    for variant in ["-DBY_NEXT", "-DBY_DLSYM"] {
        let other = |name: &str| bench.library("other", name, &[variant, &format!("-DNAME=\"{name}\"")]);
        let around = ways.clone().before(&other("one")).after(&other("two")).env("OTHER_SAYS", bench.fresh("says"));
        try_all_but(Differs::Told, named(variant, &around, &[&["main", "plt", &plugin], &["main", "handle", &plugin]]));
    }
}
