//! Programs that make processes and threads in ways that a preloaded library may not survive: storms of forks, first calls
//! from everywhere at once, every way to end. The judge is the simulated driver's own record.

use std::collections::BTreeMap;

mod support;
use support::preload::{Bench, Calls, Run, Trace, Trial, differences, parse, rows, rows_of_each_call, totals};

/// What the program says that it called itself, where the driver keeps no record.
fn tally(path: &std::path::Path) -> Calls {
    let rows = rows();
    let mut calls = parse(&std::fs::read_to_string(path).unwrap_or_default());
    calls.values_mut().for_each(|of| of.retain(|symbol, _| rows.contains(symbol)));
    calls
}

// ------------------------------------------------------------------------------------------------------ forks

fn forks(args: &[&str]) -> (Run, Calls) {
    let bench = Bench::new();
    let program = bench.program("forks", &["-lcuda"]);
    let said = bench.fresh("tally");
    let trial = Trial::new(&bench, program).args(args).env("HOSTILE_TALLY", &said);
    let bare = trial.bare();
    bare.succeeded();
    let _ = std::fs::remove_file(&said);
    let run = trial.shimmed();
    run.succeeded().looks_like(&bare).says_nothing();
    let calls = tally(&said);
    (run, calls)
}

#[test]
fn children_of_a_process_without_cuda_are_counted_each() {
    let (run, _) = forks(&["before", "300", "12345"]);
    run.trace_is_the_record();
    assert!(run.traced().len() > 100, "{}", run.trace);
}

#[test]
fn children_forked_amid_calls_of_other_threads_neither_hang_nor_count_their_parents_calls() {
    let (run, unrecorded) = forks(&["after", "600", "777"]);
    assert!(unrecorded.len() > 100, "{unrecorded:?}");
    run.trace_is_the_record_and(&unrecorded);
}

#[test]
fn children_of_a_process_that_called_but_did_not_start_the_driver_begin_at_zero() {
    let (run, _) = forks(&["touched", "50"]);
    run.trace_is_the_record();
}

#[test]
fn children_forked_while_threads_make_their_first_calls_do_not_hang() {
    for _ in 0..2 {
        let (run, _) = forks(&["first", "40"]);
        run.trace_is_the_record();
    }
}

#[test]
fn children_of_a_process_whose_threads_are_inside_the_loader_can_end() {
    let (run, _) = forks(&["loading", "400"]);
    assert_eq!(run.trace, "");
}

#[test]
fn grandchildren_are_counted_each() {
    let (run, _) = forks(&["nested", "12"]);
    run.trace_is_the_record();
    assert_eq!(run.traced().len(), 13, "{}", run.trace);
}

// -------------------------------------------------------------------------------------------------- first use

/// So many processes in one world, four at a time, all tracing into one file.
fn many(trial: &Trial<'_>, count: usize) -> Run {
    let runs = trial.clone().args([count.to_string(), "4".to_owned()]);
    runs.shimmed()
}

#[test]
fn two_hundred_processes_of_64_threads_race_through_first_use() {
    let bench = Bench::new();
    let crowd = bench.program("crowd", &[]);
    let linked = bench.compile("first", "first-linked", &["-DLINKED", "-lcuda"]);
    let loading = bench.compile("first", "first-loading", &[]);
    for program in [linked, loading] {
        // Each process takes two places in the world, as a client of the driver and of NVML; it remembers 256.
        let trial = Trial::new(&bench, &crowd).args([&program]);
        let run = many(&trial, 100);
        run.succeeded().says_nothing().trace_is_the_record();
        let traced = run.traced();
        assert_eq!(traced.len(), 100, "{}", run.said());
        assert!(traced.values().all(|calls| calls.get("cuInit") == Some(&64)), "{}", run.trace);
    }
}

// ------------------------------------------------------------------------------------------------------- ends

fn ends(args: &[&str]) -> (Run, Run) {
    let bench = Bench::new();
    let program = bench.program("ends", &["-lcuda"]);
    Trial::new(&bench, program).args(args).limit(20).twice()
}

#[test]
fn every_way_to_end_leaves_the_trace_and_the_status() {
    let bench = Bench::new();
    let program = bench.program("ends", &["-lcuda"]);
    let mut wrong = String::new();
    for way in [
        "return",
        "exit",
        "_exit",
        "_Exit",
        "quick_exit",
        "abort",
        "segv",
        "trap",
        "term",
        "int",
        "pthread_exit",
        "exit-in-handler",
        "raise-in-thread",
    ] {
        let trial = Trial::new(&bench, &program).args([way]).limit(20);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (bare, run) = trial.twice();
            run.says_nothing().trace_is_the_record().calls_are_those_of(&bare);
            assert_eq!(run.traced().len(), 1, "{}", run.trace);
        }));
        if checked.is_err() {
            wrong += &format!("  {way}\n");
        }
    }
    assert!(wrong.is_empty(), "ways to end that are not as they should be:\n{wrong}");
}

#[test]
fn what_cannot_be_traced_is_lost_and_does_no_harm() {
    // SIGKILL, another program in the process's place, and the system call made by hand: nobody in the process can know.
    for way in [&["kill"][..], &["exec", "/bin/true"], &["syscall"]] {
        let (bare, run) = ends(way);
        run.says_nothing().nothing_is_left().calls_are_those_of(&bare);
        assert_eq!(run.trace, "", "{}", run.said());
    }
}

#[test]
fn ends_in_the_middle_of_other_threads_launches_lose_no_more_than_the_last_moment() {
    for way in ["exit", "_exit", "return", "quick_exit", "abort", "term"] {
        let (_, run) = ends(&["racing", way]);
        run.nothing_is_left();
        let (recorded, traced) = (totals(&run.recorded()), totals(&run.traced()));
        let launches = |calls: &BTreeMap<String, u64>| calls["cuLaunchKernel"];
        let (there, here) = (launches(&recorded), launches(&traced));
        // Three threads go on launching while the section is written and until the process is gone: those calls are lost.
        // A thread may be stopped between the shim and the driver: one call each that only the shim knows.
        assert!(here <= there + 3, "{way}: {there} launches, {here} in the trace\n{}", run.said());
        assert!(here * 2 > there, "{way}: {there} launches, {here} in the trace\n{}", run.said());
        for (symbol, count) in traced.iter().filter(|(symbol, _)| *symbol != "cuLaunchKernel") {
            assert_eq!(Some(count), recorded.get(symbol), "{way}: {symbol}\n{}", run.said());
        }
    }
}

// ------------------------------------------------------------------------------------------------- line by line

/// A line of `RATION_TRACE=calls:`, taken apart: process, thread, symbol, result.
fn call(line: &str) -> Option<(u64, u64, String, String)> {
    let mut words = line.splitn(4, ' ');
    let (pid, tid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next()?.parse::<f64>().ok()?;
    let (call, result) = words.next()?.rsplit_once(" = ")?;
    let (symbol, arguments) = call.split_once('(')?;
    let plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (arguments.ends_with(')') && plain(symbol) && !arguments.contains('\n'))
        .then(|| (pid, tid, symbol.to_owned(), result.to_owned()))
}

#[test]
fn each_call_is_one_whole_line_whoever_else_writes() {
    let bench = Bench::new();
    let crowd = bench.program("crowd", &[]);
    let lines = bench.program("lines", &["-lcuda"]);
    let trial = Trial::new(&bench, &crowd).args([&lines]).trace(Trace::EachCall);
    let run = many(&trial, 12);
    run.succeeded().says_nothing();
    let mut seen = Calls::new();
    let mut threads: BTreeMap<u64, std::collections::BTreeSet<u64>> = BTreeMap::new();
    for line in run.trace.lines().filter(|line| !line.starts_with('#')) {
        let (pid, tid, symbol, result) = call(line).unwrap_or_else(|| panic!("not a line of a trace: {line:?}"));
        assert!(result == "0" || result.starts_with("0 ["), "{line}");
        *seen.entry(pid).or_default().entry(symbol).or_default() += 1;
        threads.entry(pid).or_default().insert(tid);
    }
    let wrong = differences(&run.recorded(), &seen, &rows_of_each_call());
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(seen.len(), 12);
    assert!(threads.values().all(|tids| tids.len() == 9), "{threads:?}");
    run.nothing_is_left();
}
