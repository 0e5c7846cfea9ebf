//! Programs and other people's libraries that meet the dynamic linker in every way there is: loaded and unloaded over and
//! over, wrapped by other preload libraries on either side, looked up by name from anywhere. The judge is the simulated
//! driver's own record, and for another preload library what it says it saw.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

mod support;
use support::Machine;
use support::preload::{Bench, Run, Trace, Trial, finish, parse, rows, shim, totals};
use support::sim_dir;

// --------------------------------------------------------------------------------------------------- reloading

#[test]
fn a_thousand_generations_of_the_driver_and_nvml() {
    let bench = Bench::new();
    let program = bench.program("reload", &[]);
    let path = sim_dir().display().to_string();
    for args in [&["1", "1000", "local"][..], &["1", "1000", "global"], &["1", "200", "local", &path]] {
        let (bare, run) = Trial::new(&bench, &program).args(args).twice();
        run.succeeded().says_nothing().trace_is_the_record().calls_are_those_of(&bare);
        let rounds: u64 = args[1].parse().expect("a number");
        assert_eq!(totals(&run.traced())["nvmlDeviceGetMemoryInfo"], rounds, "{}", run.trace);
    }
}

#[test]
fn generations_from_several_threads_at_once() {
    let bench = Bench::new();
    let program = bench.program("reload", &[]);
    for args in [["8", "200", "local"], ["8", "200", "global"]] {
        let (bare, run) = Trial::new(&bench, &program).args(args).twice();
        run.succeeded().says_nothing().trace_is_the_record().calls_are_those_of(&bare);
    }
}

// --------------------------------------------------------------------------------------------- ways to the driver

/// The program with its library and its plugin.
struct Ways {
    bench: Bench,
    program: PathBuf,
    plugin: PathBuf,
}

impl Ways {
    fn new() -> Ways {
        let bench = Bench::new();
        let driver = ["-lcuda", "-lnvidia-ml"];
        bench.library("ways", "via", &[&["-DVIA"], &driver[..]].concat());
        let plugin = bench.library("ways", "plugin", &[&["-DVIA"], &driver[..]].concat());
        let program = bench.program("ways", &[&["-DWITH_VIA", "-lvia"], &driver[..]].concat());
        Ways { bench, program, plugin }
    }

    fn trial(&self, from: &str, way: &str) -> Trial<'_> {
        Trial::new(&self.bench, &self.program).args([from, way]).args([&self.plugin]).limit(20)
    }
}

/// Collects what fails, so that one run names all of it.
fn try_all<T: std::fmt::Debug>(cases: impl IntoIterator<Item = T>, check: impl Fn(&T)) {
    let failed: Vec<T> = cases
        .into_iter()
        .filter(|case| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(case))).is_err())
        .collect();
    assert!(failed.is_empty(), "these failed: {failed:#?}");
}

#[test]
fn every_way_to_the_driver_leads_through_the_shim_once() {
    let ways = Ways::new();
    let mut cases = Vec::new();
    for from in ["main", "linked", "plugin"] {
        for way in ["plt", "handle", "default", "next", "vsym", "procaddress"] {
            cases.push((from, way));
        }
    }
    try_all(cases, |(from, way)| {
        let (bare, run) = ways.trial(from, way).twice();
        run.succeeded().says_nothing().trace_is_the_record().calls_are_those_of(&bare);
        let traced = totals(&run.traced());
        assert_eq!((traced["cuInit"], traced["cuMemAlloc_v2"], traced["cuLaunchKernel"]), (1, 20, 30), "{}", run.trace);
    });
}

// --------------------------------------------------------------------------------------- other preload libraries

/// Where the other libraries stand.
#[derive(Debug, Clone, Copy)]
enum Place {
    Before,
    After,
    Around,
}

/// The calls that other libraries say they saw, by name and symbol, sorted.
fn says(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("the other library says what it saw");
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn with_others(variant: &[&str]) {
    let ways = Ways::new();
    let build = |name: &str| {
        let named = format!("-DNAME=\"{name}\"");
        ways.bench.library("other", name, &[variant, &[named.as_str()]].concat())
    };
    let (one, two) = (build("one"), build("two"));
    let mut cases = Vec::new();
    for place in [Place::Before, Place::After, Place::Around] {
        for from in ["main", "linked", "plugin"] {
            for way in ["plt", "handle", "default", "next"] {
                cases.push((place, from, way));
            }
        }
    }
    try_all(cases, |(place, from, way)| {
        let said = ways.bench.fresh("says");
        let trial = ways.trial(from, way).env("OTHER_SAYS", &said);
        let trial = match place {
            Place::Before => trial.before(&one),
            Place::After => trial.after(&one),
            Place::Around => trial.before(&one).after(&two),
        };
        let bare = trial.bare();
        let seen_bare = says(&said);
        std::fs::remove_file(&said).expect("it was there");
        let run = trial.shimmed();
        run.looks_like(&bare).says_nothing();
        // A bare run that fails (a library that wraps itself, say) need only fail alike.
        if bare.status.success() {
            run.trace_is_the_record().calls_are_those_of(&bare);
            assert_eq!(says(&said), seen_bare, "the other library saw other calls\n{}", run.said());
        }
    });
}

#[test]
fn libraries_that_wrap_by_rtld_next_see_what_they_always_saw() {
    with_others(&["-DBY_NEXT"]);
}

#[test]
fn libraries_that_look_the_driver_up_in_each_call_see_what_they_always_saw() {
    with_others(&["-DBY_HANDLE"]);
}

#[test]
fn libraries_that_wrap_dlsym_see_what_they_always_saw() {
    with_others(&["-DBY_DLSYM"]);
}

#[test]
fn libraries_that_wrap_dlsym_and_are_bound_to_themselves_see_what_they_always_saw() {
    with_others(&["-DBY_DLSYM", "-DBOUND"]);
}

#[test]
fn calls_that_another_library_adds_are_counted_too() {
    let ways = Ways::new();
    let other = ways.bench.library("other", "twice", &["-DBY_NEXT", "-DTWICE"]);
    try_all([Place::Before, Place::After], |place| {
        let trial = ways.trial("main", "plt");
        let trial = if matches!(place, Place::Before) { trial.before(&other) } else { trial.after(&other) };
        let (bare, run) = trial.twice();
        run.succeeded().says_nothing().calls_are_those_of(&bare).trace_is_the_record();
        assert_eq!(totals(&run.recorded())["cuMemAlloc_v2"], 40, "{}", run.said());
    });
}

#[test]
fn two_copies_of_the_shim_are_as_good_as_one() {
    // One from LD_PRELOAD and one from /etc/ld.so.preload, say, under different names.
    let ways = Ways::new();
    let copy = ways.bench.dir.join("libcopy.so");
    std::fs::copy(shim(), &copy).expect("the bench is writable");
    try_all(["plt", "handle", "default", "next", "procaddress"], |way| {
        let bare = ways.trial("main", way).bare();
        let run = ways.trial("main", way).after(&copy).shimmed();
        run.looks_like(&bare).says_nothing().calls_are_those_of(&bare).trace_is_the_record();
    });
}

// --------------------------------------------------------------------------------------------------- lookalikes

#[test]
fn functions_of_the_programs_own_stay_its_own() {
    let bench = Bench::new();
    let driver = ["-lcuda", "-lnvidia-ml"];
    bench.library("ways", "via", &[&["-DVIA"], &driver[..]].concat());
    let program = bench.program("own", &[&["-lvia"], &driver[..]].concat());
    let (bare, run) = Trial::new(&bench, program).twice();
    run.succeeded().says_nothing().trace_is_the_record().calls_are_those_of(&bare);
    assert!(!totals(&run.traced()).contains_key("cuMemAlloc_v2"), "{}", run.trace);
}

#[test]
fn look_ups_where_there_is_no_driver_find_none() {
    let bench = Bench::new();
    let program = bench.program("names", &[]);
    let (_, run) = Trial::new(&bench, program).args(["default"]).twice();
    run.succeeded().says_nothing();
    assert!(!run.stdout.contains(": found") && !run.stdout.contains("no error"), "{}", run.stdout);
    assert_eq!(run.trace, "");
}

#[test]
fn weak_references_of_a_program_without_the_driver_answer_an_error_and_never_crash() {
    let bench = Bench::new();
    let program = bench.program("names", &[]);
    let trial = Trial::new(&bench, program).args(["weak"]);
    // No driver anywhere: the codes that a program without a GPU knows.
    let nowhere = trial.clone().without("LD_LIBRARY_PATH");
    let (bare, run) = nowhere.twice();
    assert!(bare.stderr.contains("cuInit absent"), "{}", bare.said());
    run.succeeded();
    if std::fs::exists("/usr/lib/x86_64-linux-gnu/libcuda.so.1").unwrap_or(false) {
        println!("this machine has a driver: not looked at what happens without one");
    } else {
        for line in ["cuInit there 100", "cuMemAlloc_v2 there 100", "nvmlDeviceGetMemoryInfo there 12"] {
            assert!(run.stderr.contains(line), "no {line:?}\n{}", run.said());
        }
        // What is not hooked is not there either.
        assert!(run.stderr.contains("cuDriverGetVersion absent"), "{}", run.said());
    }
    // One that can be found: it may be loaded, and then answers for itself.
    let (_, run) = trial.twice();
    run.succeeded();
    run.nothing_is_left();
}

#[test]
fn a_function_that_the_driver_lacks_is_not_found_and_answers_not_supported() {
    let bench = Bench::new();
    // A driver with a dozen functions. The program was linked to one that has them all.
    bench.compile("blocked", "libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    let program = bench.program("lacking", &["-lcuda", "-Wl,-z,lazy"]);
    let said = bench.fresh("tally");
    let trial = Trial::new(&bench, program).env("LD_LIBRARY_PATH", &bench.dir).env("HOSTILE_TALLY", &said);
    let (_, run) = trial.clone().args(["look"]).twice();
    run.succeeded();
    let run = trial.args(["call"]).shimmed();
    run.succeeded();
    assert_eq!(run.stdout, "cuMemAllocManaged 801\n", "{}", run.said());
}

#[test]
fn versioned_symbols_are_found_by_version_and_are_ours() {
    let bench = Bench::new();
    let script = bench.dir.join("versions.map");
    std::fs::write(&script, "DRIVER_1 { global: *; };\n").expect("the bench is writable");
    let version = format!("-Wl,--version-script={}", script.display());
    bench.compile("blocked", "libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", &version]);
    let program = bench.program("versions", &[]);
    let said = bench.fresh("tally");
    let trial = Trial::new(&bench, program).env("LD_LIBRARY_PATH", &bench.dir).env("HOSTILE_TALLY", &said);
    let bare = trial.bare();
    bare.succeeded();
    std::fs::remove_file(&said).expect("the driver says what it saw");
    let run = trial.shimmed();
    run.looks_like(&bare);
    agrees_with_tally(&run, &said);
}

/// The trace is what the driver of blocked.c wrote down.
fn agrees_with_tally(run: &Run, said: &Path) {
    let tally = parse(&std::fs::read_to_string(said).unwrap_or_default());
    assert!(!tally.is_empty(), "the driver saw nothing\n{}", run.said());
    let wrong = support::preload::differences(&tally, &run.traced(), &rows());
    assert!(wrong.is_empty(), "{wrong}{}", run.said());
}

#[test]
fn a_call_leaves_nothing_behind_but_its_answer() {
    let bench = Bench::new();
    bench.compile("blocked", "libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    let program = bench.program("manners", &["-lcuda"]);
    let mut cases = Vec::new();
    for way in ["errno", "dlerror", "pointers", "mask"] {
        for trace in [Trace::Off, Trace::Counts, Trace::EachCall, Trace::Value("calls:/nonexistent/trace".into())] {
            cases.push((way, trace));
        }
    }
    try_all(cases, |(way, trace)| {
        let trial = Trial::new(&bench, &program).args([*way]).env("LD_LIBRARY_PATH", &bench.dir).limit(20);
        let (_, run) = trial.trace(trace.clone()).twice();
        run.succeeded();
    });
}

#[test]
fn threads_cancelled_and_jumps_out_of_a_call_pass_through() {
    let bench = Bench::new();
    bench.compile("blocked", "libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    let program = bench.program("signals", &["-lcuda"]);
    // Also with another library behind the shim, which then must remember that it handed a call on.
    let other = bench.library("other", "other", &["-DBY_NEXT"]);
    try_all([("cancel", false), ("jump", false), ("cancel", true), ("jump", true)], |(way, chained)| {
        let said = bench.fresh("tally");
        let trial = Trial::new(&bench, &program).args([*way]).env("LD_LIBRARY_PATH", &bench.dir).limit(20);
        let trial = if *chained { trial.after(&other) } else { trial };
        let trial = trial.env("HOSTILE_TALLY", &said);
        trial.bare().succeeded();
        std::fs::remove_file(&said).expect("the driver says what it saw");
        let run = trial.shimmed();
        run.succeeded();
        agrees_with_tally(&run, &said);
    });
}

// ------------------------------------------------------------------------------------------- programs left alone

#[test]
fn a_process_that_never_calls_the_driver_has_nothing_of_it() {
    let bench = Bench::new();
    let unlinked = bench.compile("quiet", "quiet", &[]);
    let (_, run) = Trial::new(&bench, &unlinked).twice();
    run.succeeded();
    assert_eq!(run.stderr, "shim 1\n", "{}", run.said());
    assert!(run.stdout.starts_with("driver 0, threads 1,"), "{}", run.said());
    assert_eq!(run.trace, "");
    let linked = bench.compile("quiet", "quiet-linked", &["-DLINKED", "-lcuda"]);
    let (_, run) = Trial::new(&bench, linked).twice();
    run.succeeded();
    assert_eq!((run.stderr.as_str(), run.trace.as_str()), ("shim 1\n", ""), "{}", run.said());
}

#[test]
fn a_process_that_never_calls_the_driver_opens_nothing_more() {
    let bench = Bench::new();
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        println!("no strace on this machine: not looked at the system calls");
        return;
    }
    let program = bench.compile("quiet", "quiet", &[]);
    let calls = |under_shim: bool| -> Vec<String> {
        let log = bench.fresh("strace");
        let mut command = Command::new("strace");
        // strace itself must not run under it, so that it gets the variable as an argument.
        command.args(["-f", "-e", "trace=openat,open,clone,clone3,rt_sigaction,write,socket,prctl", "-o"]).arg(&log);
        if under_shim {
            command.arg("-E").arg(format!("LD_PRELOAD={}", shim().display()));
        }
        command.arg("-E").arg("RATION_TRACE=/nonexistent/trace").arg(&program);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let status = finish(&mut command, Duration::from_secs(20), "strace", &[]);
        assert!(status.success(), "strace: {status}");
        let text = std::fs::read_to_string(&log).expect("strace wrote its log");
        // Beginning with the process's number, which differs.
        text.lines().filter_map(|line| line.split_once(' ').map(|(_, call)| call.trim().to_owned())).collect()
    };
    let (bare, shimmed) = (calls(false), calls(true));
    let library = shim().display().to_string();
    // Libraries that the shim itself needs are opened to load it.
    let needed = ["libgcc_s.so.1", "libc.so.6", "libdl.so.2", "libpthread.so.0", "/etc/ld.so.cache", &library];
    let mut more: Vec<_> = shimmed.clone();
    for call in &bare {
        if let Some(at) = more.iter().position(|other| other == call) {
            more.remove(at);
        }
    }
    let said = |call: &&String| call.starts_with("write(2");
    more.retain(|call| !needed.iter().any(|name| call.contains(name)) && !said(&call));
    assert!(more.is_empty(), "under the shim there are besides: {more:#?}");
}

#[test]
fn programs_that_are_no_clients_behave_the_same() {
    let bench = Bench::new();
    let script = bench.dir.join("script");
    std::fs::write(&script, "#!/bin/bash\nset -e\nfor i in 1 2 3; do echo $i | cat; done\n(exit 3) || echo $?\ntrap 'echo bye' EXIT\nkill -0 $$\n")
        .expect("the bench is writable");
    let cases: [(&str, &[&str]); 5] = [
        ("/bin/true", &[]),
        ("/bin/false", &[]),
        ("bash", &[&script.display().to_string()]),
        (
            "python3",
            &[
                "-c",
                "import ctypes, subprocess; print(subprocess.run(['true']).returncode, ctypes.CDLL(None).getpid() > 0)",
            ],
        ),
        ("env", &["sh", "-c", "ls / | head -n 3; echo $?"]),
    ];
    for (program, args) in cases {
        let (_, run) = Trial::new(&bench, program).args(args).twice();
        assert_eq!((run.stderr.as_str(), run.trace.as_str()), ("", ""), "{}", run.said());
    }
    let fixed = bench.compile("own", "static", &["-static", "-DALONE"]);
    let (_, run) = Trial::new(&bench, fixed).twice();
    assert_eq!((run.stderr.as_str(), run.trace.as_str()), ("", ""), "{}", run.said());
}

// ------------------------------------------------------------------------------------------ /etc/ld.so.preload

#[test]
fn ld_so_preload_reaches_a_child_with_a_clean_environment() {
    let bench = Bench::new();
    let program = bench.program("ways", &["-lcuda", "-lnvidia-ml"]);
    let quiet = bench.program("quiet", &[]);
    let machine = Machine::new();
    let (etc, trace) = (bench.dir.join("etc"), bench.fresh("trace"));
    // A copy of /etc takes its place, for this process and its children alone.
    let script = format!(
        "set -e\ncp -a /etc '{etc}' 2>/dev/null || true\necho '{shim}' >'{etc}/ld.so.preload'\nmount --bind '{etc}' /etc || exit 77\n\
         '{quiet}' 2>&1 | grep -q 'shim 1'\nenv -i '{quiet}' 2>&1 | grep -q 'shim 1'\n\
         env -i RATION_SIM_DIR='{world}' LD_LIBRARY_PATH='{sim}' RATION_TRACE='{trace}' '{program}' main handle\n\
         env -i RATION_SIM_DIR='{world}' LD_LIBRARY_PATH='{sim}' RATION_TRACE='{trace}' '{program}' main plt\n",
        etc = etc.display(),
        shim = shim().display(),
        quiet = quiet.display(),
        world = machine.dir.display(),
        sim = sim_dir().display(),
        trace = trace.display(),
        program = program.display(),
    );
    let (out, err) = (bench.fresh("stdout"), bench.fresh("stderr"));
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &script]);
    command.stdout(std::fs::File::create(&out).expect("the bench is writable"));
    command.stderr(std::fs::File::create(&err).expect("the bench is writable"));
    let status = finish(&mut command, Duration::from_secs(30), "unshare", &[&out, &err]);
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let (said, complained) = (read(&out), read(&err));
    if status.code() == Some(77) || complained.contains("unshare failed") || complained.contains("not permitted") {
        println!("this machine lets nobody mount anything: not looked at /etc/ld.so.preload\n{complained}");
        return;
    }
    assert!(status.success(), "{status}\n{said}{complained}");
    assert_eq!(said.lines().count(), 2, "{said}{complained}");
    let traced = parse(&read(&trace));
    let mut recorded = support::preload::Calls::new();
    for process in machine.record().processes.iter().filter(|p| p.pid != u64::from(std::process::id())) {
        let of = recorded.entry(process.pid).or_default();
        process.calls.iter().for_each(|(symbol, count)| *of.entry((*symbol).to_owned()).or_default() += count);
    }
    let wrong = support::preload::differences(&recorded, &traced, &rows());
    assert!(wrong.is_empty() && recorded.len() == 2, "{wrong}{recorded:?}");
}

#[test]
fn without_a_setting_there_is_no_trace_and_no_word() {
    let ways = Ways::new();
    let (bare, run) = ways.trial("main", "plt").trace(Trace::Off).twice();
    run.succeeded().calls_are_those_of(&bare).nothing_is_left();
    assert_eq!(run.stderr, bare.stderr);
    assert_eq!(run.trace, "");
}
