//! CUDA in places where a library can hardly work: before main and after it, in signal handlers, on small stacks, without
//! descriptors, memory or environment; and settings that make no sense. The judge is the simulated driver's own record.

use std::os::unix::process::CommandExt as _;
use std::path::Path;

mod support;
use support::preload::{Bench, Run, Trace, Trial, differences, parse, rows, rows_of_each_call, shim, totals};

// ---------------------------------------------------------------------------------------- beginnings and ends

#[test]
fn constructors_destructors_and_exit_handlers_are_counted_to_the_last() {
    let bench = Bench::new();
    bench.library("edges", "edge", &["-DLIBRARY", "-lcuda"]);
    let program = bench.program("edges", &["-ledge", "-lcuda"]);
    let mut failed = Vec::new();
    for edges in ["m", "c", "C", "d", "D", "a", "A", "x", "t", "T", "mdD", "aAx", "tT", "cCmaAxtTdD"] {
        let trial = Trial::new(&bench, &program).env("EDGES", edges).limit(20);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (bare, run) = trial.twice();
            assert_eq!(run.status.code(), Some(7), "{}", run.said());
            run.says_nothing().trace_is_the_record().calls_are_those_of(&bare);
        }));
        if checked.is_err() {
            failed.push(edges);
        }
    }
    assert!(failed.is_empty(), "CUDA used in these places (letters of edges.c): {failed:?}");
}

// ------------------------------------------------------------------------------------------------ little room

fn signals(bench: &Bench, args: &[&str]) -> Run {
    let program = bench.program("signals", &["-lcuda"]);
    let trial = Trial::new(bench, program).args(args).limit(20);
    let (_, run) = trial.twice();
    run.succeeded().says_nothing();
    run
}

#[test]
fn a_handler_a_thousand_times_a_second_calls_while_everybody_works() {
    let bench = Bench::new();
    let run = signals(&bench, &["timer", "1.5"]);
    run.trace_is_the_record();
    assert!(totals(&run.traced())["cuInit"] > 1000, "{}", run.trace);
    let program = bench.dir.join("signals");
    let each = Trial::new(&bench, program).args(["timer", "0.5"]).trace(Trace::EachCall).limit(20).shimmed();
    each.succeeded().nothing_is_left();
    let calls = each.trace.lines().filter(|line| line.contains(" cuInit(")).count() as u64;
    assert_eq!(calls, totals(&each.recorded())["cuInit"], "{}", each.said());
}

/// What the first call of a process may take of the stack of a signal handler, beyond what it takes without the shim.
const STACK: u64 = 4096;

#[test]
fn the_first_call_of_a_process_fits_on_a_small_signal_stack() {
    let bench = Bench::new();
    let program = bench.program("signals", &["-lcuda"]);
    let depth = |run: &Run| -> u64 {
        run.succeeded();
        let words = run.stderr.lines().find_map(|line| line.strip_prefix("depth "));
        words.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{}", run.said()))
    };
    let roomy = Trial::new(&bench, &program).args(["altstack", "65536"]).limit(20);
    let (bare, run) = (depth(&roomy.bare()), roomy.shimmed());
    let shimmed = depth(&run);
    run.trace_is_the_record();
    println!("the first call, in a handler, goes {bare} bytes deep, and {shimmed} under the shim");
    assert!(shimmed <= bare + STACK, "{shimmed} bytes deep; {bare} without the shim");
    let tight = (bare + STACK).next_multiple_of(4096).to_string();
    let run = Trial::new(&bench, &program).args(["altstack", &tight]).limit(20).shimmed();
    run.succeeded().trace_is_the_record();
}

#[test]
fn threads_with_the_smallest_stacks_make_their_first_calls() {
    signals(&Bench::new(), &["smallstack"]).trace_is_the_record();
}

// ------------------------------------------------------------------------------------------------ descriptors

/// Runs descriptors.c; `args` after the program's own files' name, if it has any.
fn descriptors(bench: &Bench, args: &[&str], trace: Trace) -> Run {
    let program = bench.program("descriptors", &["-lcuda"]);
    let (bare, run) = Trial::new(bench, program).args(args).trace(trace).limit(20).twice();
    run.succeeded().calls_are_those_of(&bare).nothing_is_left();
    run
}

#[test]
fn a_program_that_closes_every_descriptor_finds_only_its_own_words_in_its_own_files() {
    const FILES: usize = 12;
    let bench = Bench::new();
    let own = bench.dir.join("own").display().to_string();
    let count = FILES.to_string();
    for when in ["before", "after"] {
        // Counts, every call, a trace that cannot be written (a warning), and the shim at its most talkative.
        for (trace, log) in [
            (Trace::Counts, "warn"),
            (Trace::EachCall, "warn"),
            (Trace::Value("/nonexistent/trace".into()), "warn"),
            (Trace::Value("calls:/nonexistent/trace".into()), "warn"),
            (Trace::Counts, "debug"),
            (Trace::Counts, "nonsense"),
        ] {
            let program = bench.program("descriptors", &["-lcuda"]);
            let trial = Trial::new(&bench, program).args([when, &own, &count]).limit(20);
            let run = trial.trace(trace.clone()).env("RATION_LOG", log).shimmed();
            run.succeeded().nothing_is_left();
            for number in 0..FILES {
                let mut text = std::fs::read_to_string(format!("{own}.{number}")).expect("the program made it");
                if (when, number) == ("before", 2) {
                    // Before the first call nobody can know that this was not always its standard error.
                    text = text.lines().filter(|l| !l.starts_with("ration: ")).map(|l| format!("{l}\n")).collect();
                }
                assert_eq!(text, "mine\n", "file {number}, closed {when} the first call, {trace:?}, RATION_LOG={log}");
            }
            match trace {
                Trace::Counts => drop(run.trace_is_the_record()),
                Trace::EachCall => {
                    let wrong = differences(&run.recorded(), &lines(&run.trace), &rows_of_each_call());
                    assert!(wrong.is_empty(), "closed {when} the first call:\n{wrong}");
                }
                Trace::Off | Trace::Value(_) => {}
            }
        }
    }
}

/// Adds a trace of every call up.
fn lines(trace: &str) -> support::preload::Calls {
    let mut counts = support::preload::Calls::new();
    for line in trace.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        let [pid, _, _, call] = words[..] else { panic!("not a line of a trace: {line:?}") };
        let symbol = call.split('(').next().unwrap_or(call).to_owned();
        *counts.entry(pid.parse().expect("a process")).or_default().entry(symbol).or_default() += 1;
    }
    counts
}

#[test]
fn a_program_started_without_standard_streams_is_traced() {
    let bench = Bench::new();
    let program = bench.program("descriptors", &["-lcuda"]);
    let command = format!("'{}' closed <&- >&- 2>&-", program.display());
    for log in ["warn", "debug"] {
        let (bare, run) = Trial::new(&bench, "sh").args(["-c", &command]).env("RATION_LOG", log).limit(20).twice();
        run.succeeded().trace_is_the_record().calls_are_those_of(&bare);
    }
}

#[test]
fn a_program_that_may_open_nothing_more_is_not_disturbed() {
    // With no descriptor left a trace cannot be opened at the end: it may be lost, with a warning, or whole, never half.
    let bench = Bench::new();
    let run = descriptors(&bench, &["limit"], Trace::Counts);
    if run.trace.is_empty() {
        assert_eq!(run.stderr.matches("ration: ").count(), 1, "{}", run.said());
    } else {
        run.trace_is_the_record();
    }
}

#[test]
fn a_program_with_hardly_any_address_space_left_is_not_disturbed() {
    let bench = Bench::new();
    let program = bench.program("descriptors", &["-lcuda"]);
    // As little as it can live with by itself, and a little more.
    let room = |bytes: u64| Trial::new(&bench, &program).args(["room", &bytes.to_string()]).limit(20);
    let least = (0..12).map(|power| 65536 << power).find(|bytes| room(*bytes).bare().status.success());
    let least = least.expect("256 MiB are enough for anybody");
    println!("without the shim it lives with {least} bytes more");
    let run = room(least + (1 << 20)).shimmed();
    run.succeeded().trace_is_the_record();
}

#[test]
fn a_relative_trace_stays_where_the_first_call_was_made() {
    let bench = Bench::new();
    let (here, there) = (bench.dir.join("here"), bench.dir.join("there"));
    std::fs::create_dir_all(&here).expect("the bench is writable");
    std::fs::create_dir_all(&there).expect("the bench is writable");
    let program = bench.program("descriptors", &["-lcuda"]);
    for way in ["elsewhere", "jail"] {
        let command = format!("cd '{}' && exec '{}' {way} '{}'", here.display(), program.display(), there.display());
        let trial = Trial::new(&bench, "sh").args(["-c", &command]).trace(Trace::Value("trace".into())).limit(20);
        let run = trial.shimmed();
        if way == "jail" && run.status.code() == Some(77) {
            println!("this machine lets nobody change the root: not looked at that");
            continue;
        }
        run.succeeded().nothing_is_left();
        assert!(!there.join("trace").exists(), "{way}: the trace is where the program went");
        let trace = std::fs::read_to_string(here.join("trace")).unwrap_or_default();
        if way == "jail" && trace.is_empty() {
            // What lies outside of the root cannot be reached by name any more; then it must be said, once.
            assert_eq!(run.stderr.matches("ration: ").count(), 1, "{}", run.said());
            continue;
        }
        let wrong = differences(&run.recorded(), &parse(&trace), &rows());
        assert!(wrong.is_empty(), "{way}:\n{wrong}");
        std::fs::remove_file(here.join("trace")).expect("it was there");
    }
}

#[test]
fn a_scrubbed_environment_does_no_harm() {
    let run = descriptors(&Bench::new(), &["scrub"], Trace::Counts);
    // Whether the setting is read before or after is nobody's promise; half a trace would be wrong.
    if !run.trace.is_empty() {
        run.trace_is_the_record();
    }
}

#[test]
fn a_program_that_writes_over_its_environment_is_traced() {
    for trace in [Trace::Counts, Trace::EachCall] {
        let run = descriptors(&Bench::new(), &["retitle"], trace.clone());
        let traced = if trace == Trace::Counts { run.traced() } else { lines(&run.trace) };
        let wrong = differences(&run.recorded(), &traced, &rows_of_each_call());
        assert!(wrong.is_empty() && !traced.is_empty(), "{trace:?}:\n{wrong}");
    }
}

#[test]
fn threads_that_come_and_go_leave_nothing_behind() {
    let bench = Bench::new();
    let program = bench.program("churn", &["-lcuda"]);
    for (args, most) in [(&["4000", "16"][..], 1024), (&["1000", "16", "keys"], 8192)] {
        let (bare, run) = Trial::new(&bench, &program).args(args).twice();
        run.succeeded().says_nothing().trace_is_the_record().calls_are_those_of(&bare);
        let grew = run.stderr.lines().find_map(|line| line.strip_prefix("grew ")).and_then(|word| word.parse().ok());
        let grew: i64 = grew.unwrap_or_else(|| panic!("{}", run.said()));
        assert!(grew < most, "{args:?}: {grew} KiB more after so many threads");
    }
}

// --------------------------------------------------------------------------------------------------- settings

fn plain(bench: &Bench) -> Trial<'_> {
    let program = bench.program("descriptors", &["-lcuda"]);
    Trial::new(bench, program).args(["closed"]).limit(20)
}

/// What the shim said, a line each.
fn words(run: &Run) -> Vec<&str> {
    run.stderr.lines().filter(|line| line.starts_with("ration: ")).collect()
}

#[test]
fn a_trace_that_cannot_be_written_is_said_once() {
    let bench = Bench::new();
    let long = format!("/{}", "long/".repeat(1200));
    for value in ["/nonexistent/trace", "calls:/nonexistent/trace", "/", "calls:/proc/self/mem/trace", &long] {
        let (bare, run) = plain(&bench).trace(Trace::Value(value.into())).twice();
        run.succeeded().calls_are_those_of(&bare).nothing_is_left();
        let said = words(&run);
        assert_eq!(said.len(), 1, "RATION_TRACE={value}\n{}", run.said());
        let named = value.strip_prefix("calls:").unwrap_or(value);
        assert!(said[0].contains("RATION_TRACE") && said[0].contains(&named[..named.len().min(100)]), "{said:?}");
    }
}

#[test]
fn a_setting_that_makes_no_sense_is_named_with_what_is_accepted() {
    let bench = Bench::new();
    for (name, value, accepted) in [
        ("RATION_LOG", "loud", &["off", "error", "warn", "info", "debug"][..]),
        ("RATION_LOG", "1", &["off", "error", "warn", "info", "debug"]),
        ("RATION_TRACE", "calls:", &["calls:"]),
    ] {
        let trial = plain(&bench).trace(Trace::Off).env(name, value);
        let (bare, run) = trial.twice();
        run.succeeded().calls_are_those_of(&bare).nothing_is_left();
        let said = words(&run);
        assert_eq!(said.len(), 1, "{name}={value}\n{}", run.said());
        for word in [name, value].iter().chain(accepted) {
            assert!(said[0].contains(word), "{name}={value}: no {word:?} in {said:?}");
        }
    }
}

#[test]
fn words_to_the_log_are_few_however_often_they_are_earned() {
    // Each call has a line that cannot be written.
    let bench = Bench::new();
    let program = bench.program("lines", &["-lcuda"]);
    let trial = Trial::new(&bench, program).trace(Trace::Value("calls:/dev/full".into())).limit(20);
    let (bare, run) = trial.twice();
    run.succeeded().calls_are_those_of(&bare).nothing_is_left();
    assert!((1..=10).contains(&words(&run).len()), "{}", run.said());
}

#[test]
fn a_trace_into_a_pipe_that_nobody_reads_does_not_kill() {
    let bench = Bench::new();
    let program = bench.program("descriptors", &["-lcuda"]);
    // A reader that goes away: the next write would raise SIGPIPE.
    let command = format!("{{ sleep 0.2; exec '{}' closed 3>&1; }} | true", program.display());
    let run = Trial::new(&bench, "bash")
        .args(["-c", &format!("set -o pipefail; {command}")])
        .trace(Trace::Value("calls:/proc/self/fd/3".into()))
        .limit(20);
    run.shimmed().succeeded().nothing_is_left();
}

#[test]
fn a_word_to_a_standard_error_that_nobody_reads_does_not_kill() {
    let bench = Bench::new();
    let program = bench.program("descriptors", &["-lcuda"]);
    // The reader is gone for certain before the first call.
    let command = format!("set -o pipefail; {{ sleep 0.2; exec '{}' closed; }} 2>&1 | true", program.display());
    let run = Trial::new(&bench, "bash").args(["-c", &command]).env("RATION_LOG", "nonsense").limit(20).shimmed();
    run.succeeded().trace_is_the_record();
}

#[test]
fn the_trace_is_made_with_the_programs_umask_and_appended_to() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    let program = bench.program("descriptors", &["-lcuda"]);
    let trace = bench.dir.join("appended");
    let machine = support::Machine::new();
    for round in 1..=2 {
        let mut command = machine.command(&program);
        command.arg("closed").env("LD_PRELOAD", shim()).env("RATION_TRACE", &trace);
        // SAFETY: umask in the child takes a number and touches nothing else.
        unsafe {
            command.pre_exec(|| {
                libc::umask(0o027);
                Ok(())
            })
        };
        assert!(command.status().expect("the program starts").success());
        assert_eq!(parse(&read(&trace)).len(), round, "{}", read(&trace));
    }
    let mode = trace.metadata().expect("the trace is there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o640, "{mode:o}");
    let text = read(&trace);
    let heads: Vec<_> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(heads.len(), 2, "{text}");
    assert!(heads.iter().all(|line| line.starts_with("# ration trace 1: pid ")), "{text}");
    assert!(heads.iter().all(|line| line.ends_with(&program.display().to_string())), "{text}");
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
