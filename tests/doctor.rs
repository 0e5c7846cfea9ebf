//! `ration doctor`, as somebody at a prompt uses it: on a machine where all is well, and on such where it is not.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "caps/container.rs"]
mod container;
#[path = "cli/desk.rs"]
mod desk;
mod support;

use container::Regions;
use desk::{Answer, Desk, PATIENCE, ration, take};
use support::preload::{Bench, shim};
use support::tries::until_good;
use support::{Machine, sim_dir};

/// All checks, in their order, where nothing keeps one from being made.
const ALL: [&str; 18] = [
    "driver",
    "gpus",
    "mig",
    "compute-mode",
    "driver-cap",
    "mps",
    "library",
    "preload",
    "settings",
    "enforced",
    "region",
    "region-files",
    "container",
    "limits",
    "clock",
    "memory-cap",
    "compute",
    "channels",
];

/// A visit of the doctor's.
struct Visit {
    desk: Desk,
    command: Command,
}

impl Visit {
    /// To a machine with channels, where nothing is asked for.
    fn new() -> Visit {
        let desk = Desk::new();
        let mut command = desk.ration("doctor", &["--library"]);
        command.arg(shim()).env("LD_PRELOAD", sim_dir().join("libsim-kernel.so")).env_remove("NO_COLOR");
        // The machine's own MPS, if it has any, is none of ours.
        command.env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere").env_remove("KUBERNETES_SERVICE_HOST");
        Visit { desk, command }
    }

    fn with(mut self, change: impl FnOnce(&mut Command, &Desk)) -> Visit {
        change(&mut self.command, &self.desk);
        self
    }

    fn arg(mut self, argument: &str) -> Visit {
        self.command.arg(argument);
        self
    }

    fn args(mut self, arguments: &[&str]) -> Visit {
        self.command.args(arguments);
        self
    }

    fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Visit {
        self.command.env(name, value);
        self
    }

    fn env_remove(mut self, name: &str) -> Visit {
        self.command.env_remove(name);
        self
    }

    fn ask(mut self) -> (Answer, Desk) {
        (Answer::of(&self.command.output().expect("it runs")), self.desk)
    }

    /// What it finds, for programs.
    fn finds(self) -> Found {
        let (answer, desk) = self.arg("--json").ask();
        let report = serde_json::from_str(&answer.out).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
        let found = Found { report, status: answer.status };
        let is_problem = found.report["status"] == "problem";
        assert_eq!(found.status, i32::from(is_problem), "{answer:?}");
        desk.is_clean();
        found
    }
}

struct Found {
    report: Value,
    status: i32,
}

impl Found {
    fn checks(&self) -> &Vec<Value> {
        self.report["checks"].as_array().expect("a list")
    }

    fn names(&self) -> Vec<&str> {
        self.checks().iter().map(|it| it["check"].as_str().expect("a name")).collect()
    }

    fn not_tried(&self) -> Vec<&str> {
        self.report["not_tried"].as_array().expect("a list").iter().filter_map(Value::as_str).collect()
    }

    /// A check's status, what was found, and what is to be done.
    fn of(&self, name: &str) -> (&str, &str, &str) {
        let check = self.checks().iter().find(|it| it["check"] == name);
        let check = check.unwrap_or_else(|| panic!("no {name}: {:#}", self.report));
        let text = |key: &str| check[key].as_str().unwrap_or_default();
        (text("status"), text("found"), text("remedy"))
    }

    /// It has this status, and says these words of what was found and of what is to be done.
    fn has(&self, name: &str, status: &str, found: &str, remedy: &str) {
        let is = self.of(name);
        let is_so = is.0 == status && is.1.contains(found) && is.2.contains(remedy);
        assert!(is_so, "{name} should be {status}, {found:?}, {remedy:?}: {is:?}");
    }

    /// But for those that measure time on a machine that others use.
    fn is_well(&self) -> bool {
        self.checks().iter().all(|it| it["status"] == "ok")
    }
}

/// Compiles tests/programs/doctor/NAME.c as a library under a name of its own, in a directory of its own; that directory.
fn stub(bench: &Bench, name: &str, library: &str) -> PathBuf {
    let dir = bench.dir.join(name);
    fs::create_dir_all(&dir).expect("the target directory is writable");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/doctor").join(format!("{name}.c"));
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o"]).arg(dir.join(library));
    assert!(command.arg(source).status().is_ok_and(|it| it.success()), "{name}.c does not compile");
    dir
}

fn path_of(dirs: &[&Path]) -> std::ffi::OsString {
    std::env::join_paths(dirs).expect("no colons")
}

// ------------------------------------------------------------------------------------------------ where all is well

#[test]
fn all_is_well_on_a_machine_with_channels() {
    let Some(found) = until_good(|| Visit::new().finds(), Found::is_well) else { return };
    assert_eq!(found.names(), ALL);
    assert!(found.is_well(), "{:#}", found.report);
    assert_eq!((found.status, &found.report["summary"]), (0, &"ration will hold programs here.".into()));
    found.has("driver", "ok", "CUDA 13.0, release 580.159.04", "");
    found.has("gpus", "ok", "0: NVIDIA H200, GPU-", "");
    found.has("library", "ok", concat!("version ", env!("CARGO_PKG_VERSION")), "");
    found.has("memory-cap", "ok", "a cap of 1.0 GiB was refused what is over it", "");
    found.has("channels", "ok", "driven: ", "");
    // The stand-in takes 0.35 ms to put on and 0.55 to take off.
    let channels = found.of("channels").1;
    let each = channels.split_once("a switch took ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    assert!(each.is_some_and(|each: f64| (0.3..50.0).contains(&each)), "{channels}");
}

#[test]
fn people_read_a_line_for_each_check() {
    let (answer, desk) = Visit::new().ask();
    let heads: Vec<&str> = answer.out.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()).collect();
    assert_eq!(heads.len(), ALL.len() + 1, "{}", answer.out);
    for (line, name) in heads.iter().zip(ALL) {
        let words: Vec<&str> = line.split_whitespace().take(2).collect();
        assert!(["ok", "warning", "problem"].contains(&words[0]) && words[1] == name, "{line}");
    }
    assert!(heads.last().is_some_and(|line| line.starts_with("ration will hold programs here")), "{}", answer.out);
    assert!(!answer.out.contains('\u{1b}') && answer.err.is_empty(), "nobody looks at a terminal: {answer:?}");
    assert!(answer.out.lines().all(|line| line.chars().count() <= 100), "{}", answer.out);
    desk.is_clean();
}

#[test]
fn the_form_for_programs_is_the_documented_one() {
    let found = Visit::new().args(&["--library", "/nowhere/libration.so"]).ask().0;
    assert_eq!(found.status, 2, "twice is once too often: {found:?}");
    let found = Visit::new().finds();
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&found.report), ["checks", "not_tried", "status", "summary", "version"]);
    assert_eq!(found.report["version"], 1);
    let documented = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md")).expect("a page");
    for check in found.checks() {
        assert_eq!(keys(check), ["check", "found", "remedy", "status"], "{check}");
        assert_eq!(check["remedy"].is_null(), check["status"] == "ok", "{check}");
        let name = check["check"].as_str().expect("a name");
        assert!(documented.contains(&format!("| `{name}` |")), "docs/cli.md says nothing of {name}");
    }
}

#[test]
fn what_is_not_understood_has_a_status_of_its_own() {
    for arguments in [&["--no-such-option"][..], &["--gpu", "-1"], &["--gpu", "one"], &["--timeout", "0"], &["more"]] {
        let (answer, _) = Visit::new().args(arguments).ask();
        assert_eq!(answer.status, 2, "{arguments:?}: {answer:?}");
    }
}

// ------------------------------------------------------------------------------------------------ the driver

#[test]
fn without_a_driver_it_says_how_to_come_by_one() {
    let found = Visit::new().env_remove("LD_LIBRARY_PATH").finds();
    found.has("driver", "problem", "libcuda.so.1 cannot be loaded", "");
    // NVIDIA's libcuda, where root has tried it, makes that file on a machine without a GPU, too.
    let missing = if Path::new("/dev/nvidiactl").exists() { "no GPU's device" } else { "no /dev/nvidiactl" };
    found.has("devices", "problem", missing, "");
    found.has("library", "ok", "", "");
    for name in ["gpus", "mig", "compute-mode", "driver-cap", "memory-cap", "compute", "channels"] {
        assert!(found.not_tried().contains(&name) && !found.names().contains(&name), "{name}: {:#}", found.report);
    }
}

#[test]
fn a_driver_in_trouble_is_a_finding() {
    let bench = Bench::new();
    let dir = stub(&bench, "driver", "libcuda.so.1");
    for (init, found, remedy) in [
        ("803", "cuInit answered 803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "two releases"),
        ("100", "cuInit answered 100", "CUDA_VISIBLE_DEVICES"),
        ("12345", "cuInit answered 12345", "nvidia-smi"),
        ("crash", "at cuInit: the process crashed with signal 11", "Programs would crash"),
        ("hang", "at cuInit: the process did not answer within 1 s", "nvidia-smi"),
    ] {
        let began = Instant::now();
        let visit = Visit::new().with(|it, _| {
            it.env("LD_LIBRARY_PATH", &dir).env("STUB_INIT", init).args(["--timeout", "1"]);
        });
        let said = visit.finds();
        said.has("driver", "problem", found, remedy);
        assert!(said.not_tried().contains(&"memory-cap"), "{:#}", said.report);
        assert!(began.elapsed() < Duration::from_secs(15), "{init}: it was waited for");
    }
    let said = Visit::new().env("LD_LIBRARY_PATH", &dir).finds();
    said.has("driver", "warning", "CUDA 12.8", "");
    said.has("gpus", "problem", "shows no GPU", "--gpus all");
}

#[test]
fn what_nvml_tells_is_heeded() {
    let bench = Bench::new();
    let dir = stub(&bench, "nvml", "libnvidia-ml.so.1");
    let visit = |variables: &[(&str, &str)]| {
        Visit::new()
            .with(|it, desk| {
                let world = desk.machine.world();
                it.env("LD_LIBRARY_PATH", path_of(&[&dir, &sim_dir()])).envs(variables.iter().copied());
                it.env("STUB_UUID", uuid(&world.record().gpus[0].uuid));
            })
            .finds()
    };
    let found = visit(&[("STUB_MODE", "3"), ("STUB_MIG", "1")]);
    found.has("compute-mode", "problem", "only one process at a time may use GPU 0", "nvidia-smi -i 0 -c DEFAULT");
    found.has("mig", "warning", "on, on GPU 0", "MIG-");
    visit(&[("STUB_MODE", "2")]).has("compute-mode", "problem", "no process may compute on GPU 0", "");
    let found = visit(&[("STUB_INIT", "18")]);
    found.has("driver", "warning", "two versions", "restart the machine");
    assert!(found.not_tried().contains(&"mig"), "{:#}", found.report);
}

fn uuid(text: &str) -> String {
    if text.starts_with("GPU-") { text.to_owned() } else { format!("GPU-{text}") }
}

#[test]
fn a_limit_of_the_drivers_own_is_told() {
    let visit = Visit::new().with(|_, desk| {
        drop(desk.machine.world());
        let line = format!("0 0 {} /sys/fs/cgroup\n", 3u64 << 30);
        fs::write(desk.machine.dir.join("memory-limits"), line).expect("the machine's directory is writable");
    });
    let found = visit.finds();
    // Where groups are of the first version, there is none to be asked about.
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        found.has("driver-cap", "ok", "holds this cgroup to 3.0 GiB on GPU 0", "");
    }
}

#[test]
fn a_gpu_that_is_not_there_is_a_problem() {
    let found = Visit::new().args(&["--gpu", "3"]).finds();
    found.has("gpus", "problem", "there is no GPU 3", "from 0 to 0");
    assert!(found.not_tried().contains(&"compute"), "{:#}", found.report);
}

// ------------------------------------------------------------------------------------------------ the library

#[test]
fn without_the_library_nobody_is_held() {
    let mut command = Visit::new();
    // In the place of the one that is named.
    let desk = Desk::new();
    command.command = desk.ration("doctor", &["--library", "/nowhere/libration.so"]);
    let found = command.finds();
    found.has("library", "problem", "/nowhere/libration.so", "--library PATH");
    found.has("driver", "ok", "", "");
    assert_eq!(found.not_tried(), ["memory-cap", "compute", "channels"]);
}

/// What the checks of a slice are good for: a library that holds nobody is found out by what programs get.
#[test]
fn a_library_that_holds_nobody_is_found_out() {
    let bench = Bench::new();
    let library = stub(&bench, "nothing", "libration.so").join("libration.so");
    let mut visit = Visit::new();
    let mut command = visit.desk.ration("doctor", &["--library"]);
    command.arg(&library).env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
    visit.command = command;
    let found = visit.finds();
    found.has("library", "warning", "programs that it is preloaded into have it", "one version");
    found.has("memory-cap", "problem", "a cap of 1.0 GiB was told that it has 139.8 GiB", "");
    found.has("compute", "problem", "had 0.0% of the GPU's time", "not held");
    found.has("channels", "warning", "", "See `compute`");
}

#[test]
fn channels_that_cannot_be_driven_are_a_warning() {
    let found = Visit::new().env_remove("LD_PRELOAD").finds();
    found.has("channels", "warning", "no channels were seen being made; launches are held", "docs/compute.md");
    found.has("memory-cap", "ok", "", "");
    let found = Visit::new().env("RATION_SIM_KERNEL", "refuse").finds();
    found.has("channels", "warning", "the kernel module refuses; launches are held", "docs/compute.md");
    let found = Visit::new().env("RATION_SWITCH", "launches").finds();
    found.has("channels", "warning", "as RATION_SWITCH=launches says", "Remove that variable");
}

#[test]
fn a_full_gpu_is_nobodys_fault() {
    let visit = Visit::new();
    let mut session = visit.desk.hold(&["--memory", "200GiB"]);
    for piece in [16 << 30, 1 << 30, 64 << 20] {
        while take(&mut session, piece) == "had" {}
    }
    let (answer, desk) = visit.arg("--json").ask();
    let found = Found { report: serde_json::from_str(&answer.out).expect("it is JSON"), status: answer.status };
    found.has("memory-cap", "warning", "no memory for a context", "when there is room");
    assert_eq!(desk::end(session).0, Some(0));
    desk.is_clean();
}

// ------------------------------------------------------------------------------------------------ what is asked for

#[test]
fn settings_are_read_as_the_library_reads_them() {
    let found = Visit::new().env("RATION_MEMORY", "8g").finds();
    found.has("settings", "problem", "RATION_MEMORY=\"8g\"", "refused all GPU work");
    found.has("enforced", "problem", "not understood", "");
    found.has("memory-cap", "ok", "", "");
    let slip = || Visit::new().env("RATION_MEMROY", "8GiB").finds();
    let Some(found) = until_good(slip, |found| found.status == 0) else { return };
    found.has("settings", "warning", "RATION_MEMROY is no setting", "Is RATION_MEMORY meant?");
    assert_eq!((found.status, &found.report["status"]), (0, &"warning".into()), "{:#}", found.report);
}

#[test]
fn who_would_be_held_is_said() {
    let limit = |visit: Visit| visit.env("RATION_MEMORY", "8GiB");
    let preload = |visit: Visit| visit.env("LD_PRELOAD", shim());
    Visit::new().finds().has("enforced", "ok", "programs are held if `ration run` starts them", "");
    limit(Visit::new()).finds().has(
        "enforced",
        "warning",
        "memory 8GiB is asked for, and the library is not",
        "ration run",
    );
    preload(Visit::new()).finds().has("enforced", "warning", "no limit is asked for", "RATION_MEMORY");
    let found = preload(limit(Visit::new())).finds();
    found.has("enforced", "ok", "a program started from here is held: memory 8GiB, by ", "");
    found.has("preload", "ok", "libration.so is in programs", "");
    let missing = limit(Visit::new()).env("LD_PRELOAD", "/nowhere/libration.so").finds();
    missing.has("preload", "problem", "/nowhere/libration.so from LD_PRELOAD is not preloaded", "Correct LD_PRELOAD");
}

#[test]
fn what_a_quota_file_says_is_what_is_tried() {
    let (machine, regions) = (Machine::new(), Regions::new());
    let library = shim();
    let arguments = ["doctor", "--json", "--library", library.to_str().expect("a path")];
    let files = [("quota", "memory = 2GiB\ncompute = 30%\n")];
    let Some((mut command, _)) = container::with_files(&machine, &regions, &files, &ration(), &arguments) else {
        return;
    };
    let answer = Answer::of(&command.output().expect("unshare runs"));
    let found = Found { report: serde_json::from_str(&answer.out).expect("it is JSON"), status: answer.status };
    found.has("settings", "ok", "memory 2GiB, compute 30%, by /etc/ration/quota", "");
    found.has("enforced", "ok", "is held: memory 2GiB, compute 30%", "");
    found.has("memory-cap", "ok", "a cap of 2.0 GiB was refused what is over it", "");
    found.has("compute", "ok", "is said by the quota file", "");
    command.env_remove("LD_PRELOAD");
    let answer = Answer::of(&command.output().expect("unshare runs"));
    let found = Found { report: serde_json::from_str(&answer.out).expect("it is JSON"), status: answer.status };
    found.has("enforced", "problem", "the library is not preloaded", "/etc/ld.so.preload");
    assert_eq!(found.status, 1);
}

// ------------------------------------------------------------------------------------------------ where containers meet

#[test]
fn a_place_that_cannot_be_had_is_a_problem() {
    // Nobody can make anything there, root neither.
    let found = Visit::new().env("RATION_DIR", "/proc/ration").finds();
    found.has("region", "problem", "/proc/ration", "chmod 1777");
    found.has("memory-cap", "ok", "", "");
    assert_eq!(found.status, 1);
}

#[test]
fn strange_files_are_named() {
    let visit = Visit::new().with(|_, desk| {
        let dir = &desk.regions.0;
        fs::write(dir.join("a-file"), "text").expect("ours");
        fs::create_dir(dir.join("odd")).expect("ours");
        fs::write(dir.join("odd/gpu-00010203-0405-0607-0809-0a0b0c0d0e0f.region"), "short").expect("ours");
        symlink("/dev/zero", dir.join("a-link\u{1b}[2J")).expect("ours");
    });
    let (answer, _desk) = visit.arg("--json").ask();
    let found = Found { report: serde_json::from_str(&answer.out).expect("it is JSON"), status: answer.status };
    let (status, words, _) = found.of("region-files");
    assert_eq!(status, "warning", "{words}");
    for what in ["a-file", "does not begin as one", "a-link"] {
        assert!(words.contains(what) && !words.contains('\u{1b}'), "{what}: {words}");
    }
}

#[test]
fn those_who_are_here_are_not_disturbed() {
    let visit = Visit::new();
    let mut session = visit.desk.hold(&["--name", "box", "--memory", "2GiB"]);
    assert_eq!(take(&mut session, 1 << 30), "had");
    let (answer, desk) = visit.arg("--json").ask();
    let found = Found { report: serde_json::from_str(&answer.out).expect("it is JSON"), status: answer.status };
    found.has("region-files", "ok", "1 container here", "");
    assert_eq!(desk::names(&desk.status()), ["box"], "the doctor's own slice is elsewhere");
    assert_eq!(take(&mut session, 1 << 30), "refused 2");
    assert_eq!(desk::end(session).0, Some(0));
    desk.is_clean();
}

// ------------------------------------------------------------------------------------------------ its end

/// Whoever has seen enough gets the prompt back, and nothing is left of it.
#[test]
fn an_interruption_ends_it_and_what_it_started() {
    let bench = Bench::new();
    let dir = stub(&bench, "driver", "libcuda.so.1");
    let desk = Desk::new();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut command = desk.machine.command(ration());
        command.args(["doctor", "--timeout", "60"]).env("LD_LIBRARY_PATH", &dir).env("STUB_INIT", "hang");
        let mut child = command.stdout(Stdio::null()).spawn().expect("it runs");
        let pid = child.id();
        let children = || {
            let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let deadline = Instant::now() + PATIENCE;
        // The one that asks, once it hangs, has started one more.
        let theirs = |it: &String| fs::read_to_string(format!("/proc/{it}/task/{it}/children")).unwrap_or_default();
        let asking = loop {
            let asking = children();
            if asking.first().is_some_and(|it| !theirs(it).is_empty()) {
                break asking;
            }
            assert!(Instant::now() < deadline, "it asks no driver");
            std::thread::sleep(Duration::from_millis(5));
        };
        let grandchild = theirs(&asking[0]).trim().to_owned();
        // SAFETY: kill takes numbers; the child was not waited for, so nobody else has its number.
        unsafe { libc::kill(pid as libc::pid_t, signal) };
        let status = child.wait().expect("it can be waited for");
        assert_eq!(status.code(), Some(130), "{status}");
        for gone in [&asking[0], &grandchild] {
            let runs = || fs::read_to_string(format!("/proc/{gone}/stat")).is_ok_and(|it| !it.contains(") Z "));
            while runs() {
                assert!(Instant::now() < deadline, "{gone} runs on");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let left = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let prefix = format!("ration-doctor-{pid}-");
        assert!(left.map(|it| it.file_name()).all(|it| !it.to_string_lossy().starts_with(&prefix)));
    }
}

/// The directory of its own goes, too, when it is in the middle of trying a slice.
#[test]
fn an_interrupted_trial_leaves_nothing_behind() {
    let desk = Desk::new();
    let mut command = desk.machine.command(ration());
    let mut child = command.arg("doctor").stdout(Stdio::null()).spawn().expect("it runs");
    let dir = PathBuf::from(format!("/dev/shm/ration-doctor-{}-0", child.id()));
    let deadline = Instant::now() + PATIENCE;
    while !dir.join("regions").exists() {
        assert!(Instant::now() < deadline, "it tries no slice");
        std::thread::sleep(Duration::from_millis(2));
    }
    // SAFETY: kill takes numbers; the child was not waited for, so nobody else has its number.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    assert_eq!(child.wait().expect("it can be waited for").code(), Some(130));
    assert!(!dir.exists(), "it is left behind");
    desk.is_clean();
}

/// MPS is told by its pipes.
#[test]
fn programs_under_mps_are_warned_of() {
    let visit = Visit::new().with(|it, desk| {
        fs::write(desk.notes.join("control"), "").expect("ours");
        it.env("CUDA_MPS_PIPE_DIRECTORY", &desk.notes);
    });
    let (answer, _desk) = visit.arg("--json").ask();
    let found = Found { report: serde_json::from_str(&answer.out).expect("it is JSON"), status: answer.status };
    found.has("mps", "warning", "its pipes are in", "launches are held");
}
