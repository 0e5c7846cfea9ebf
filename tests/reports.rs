//! What a program in a slice is told by NVML: its container's own processes, with their own figures, and what they do. Held
//! against the simulated driver's record, and against what the same programs are told without a slice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{GIB, MIB, Regions, Session, inside};
use support::{Machine, compile_with};

/// Compiles tests/programs/reports/NAME.c.
fn program(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reports");
    std::fs::create_dir_all(dir).expect("the target directory is writable");
    compile_with(&format!("reports/{name}"), &["-lcuda", "-lnvidia-ml"])
}

/// Two containers and somebody without a slice, on one machine.
struct Scene {
    machine: Machine,
    regions: Regions,
    work: PathBuf,
    ask: PathBuf,
}

const CAP: u64 = 8 * GIB;

impl Scene {
    fn new() -> Scene {
        Scene { machine: Machine::new(), regions: Regions::new(), work: program("work"), ask: program("ask") }
    }

    /// A command in a container, or under no shim at all.
    fn command(&self, container: Option<&str>, program: &Path) -> Command {
        match container {
            Some(name) => inside(&self.machine, &self.regions, name, &[("RATION_MEMORY", CAP.to_string())], program),
            None => self.machine.command(program),
        }
    }

    /// Starts a program that holds memory and is busy for a part of the time.
    fn work(&self, container: Option<&str>, mib: u64, per_mille: u32) -> Session {
        self.begin(self.command(container, &self.work).args([mib.to_string(), per_mille.to_string()]))
    }

    fn begin(&self, command: &mut Command) -> Session {
        let mut session = Session::start(command, Duration::from_secs(30));
        session.until("ready").unwrap_or_else(|e| panic!("{e}"));
        session
    }

    fn ask(&self, container: Option<&str>) -> Answers {
        Answers::to(self.command(container, &self.ask).stdout(Stdio::piped()))
    }

    /// The figures that NVML should have of these processes, from the driver's record.
    fn figures<'a>(&self, sessions: impl IntoIterator<Item = &'a Session>) -> BTreeMap<u64, u64> {
        let pids: BTreeSet<u64> = sessions.into_iter().map(|session| u64::from(session.child.id())).collect();
        let record = self.machine.record();
        let clients =
            record.processes.iter().filter(|process| process.alive && !process.observer && pids.contains(&process.pid));
        clients.map(|process| (process.pid, process.gpus[&0].figure_bytes)).collect()
    }
}

/// What `ask` said, by the first word of its lines.
struct Answers(Vec<Vec<String>>);

impl Answers {
    fn to(command: &mut Command) -> Answers {
        let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {}; {said}", output.status);
        assert!(!said.contains("ration:"), "the shim complains: {said}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Answers(text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect())
    }

    /// The lines that begin with a word, without it.
    fn all<'a>(&'a self, word: &str) -> impl Iterator<Item = &'a [String]> + use<'a> {
        let word = word.to_owned();
        self.0.iter().filter(move |line| line[0] == word).map(|line| &line[1..])
    }

    fn one(&self, word: &str) -> &[String] {
        self.all(word).next().unwrap_or_else(|| panic!("`ask` says nothing about {word}"))
    }

    fn numbers(&self, word: &str) -> Vec<u64> {
        self.one(word).iter().map(|number| number.parse().expect("a number")).collect()
    }

    /// A list by its function: processes and figures. It must have succeeded, and be as long as it says.
    fn list(&self, function: &str) -> BTreeMap<u64, u64> {
        let line = self.all("list").find(|line| line[0] == function).expect("a function that `ask` calls");
        let entries = pairs(&line[3..]);
        assert_eq!((line[1].as_str(), line[2].parse().ok()), ("0", Some(entries.len())), "{function}: {line:?}");
        entries
    }

    /// What processes did, by the function that tells it; nothing where that found nobody.
    fn busy(&self, function: &str) -> BTreeMap<u64, u64> {
        let line = self.all("busy").find(|line| line[0] == function).expect("a function that `ask` calls");
        const NOT_FOUND: &str = "6";
        assert!(["0", NOT_FOUND].contains(&line[1].as_str()), "{line:?}");
        if line[1] == NOT_FOUND {
            assert_eq!(line[2], "256", "the caller's count stays where nobody is found");
        }
        pairs(&line[3..])
    }
}

fn pairs(words: &[String]) -> BTreeMap<u64, u64> {
    let pair =
        |word: &String| word.split_once(':').and_then(|(pid, figure)| Some((pid.parse().ok()?, figure.parse().ok()?)));
    words.iter().map(|word| pair(word).unwrap_or_else(|| panic!("{word:?} is no pair"))).collect()
}

const LISTS: [&str; 4] = ["Compute", "Compute_v2", "Compute_v3", "details"];

#[test]
fn each_container_sees_its_own_processes_and_no_others() {
    let scene = Scene::new();
    let one = [scene.work(Some("one"), 100, 0), scene.work(Some("one"), 300, 0)];
    let two = [scene.work(Some("two"), 10, 0), scene.work(Some("two"), 20, 0), scene.work(Some("two"), 50, 0)];
    let free = scene.work(None, 700, 0);
    let everybody = scene.figures(one.iter().chain(&two).chain([&free]));
    assert_eq!(everybody.len(), 6);

    for (container, sessions) in [("one", &one[..]), ("two", &two[..])] {
        let wanted = scene.figures(sessions);
        // Somebody who only looks, as nvidia-smi does.
        let told = scene.ask(Some(container));
        for function in LISTS {
            assert_eq!(told.list(function), wanted, "{function} in container {container}");
        }
        for function in ["Graphics", "Graphics_v3", "MPSCompute", "MPSCompute_v3"] {
            assert_eq!(told.list(function), BTreeMap::new(), "{function} in container {container}");
        }
        let [total, free, used] = told.numbers("memory")[..] else { panic!("three figures") };
        assert_eq!((total, free + used), (CAP, CAP));
        assert!(used.abs_diff(wanted.values().sum()) < 2 * MIB, "{used} is used, and the list adds up to {wanted:?}");

        // One of them, which is then one more.
        let told = Answers::to(scene.command(Some(container), &scene.ask).arg("join").stdout(Stdio::piped()));
        for function in LISTS {
            let mut list = told.list(function);
            list.retain(|pid, _| !wanted.contains_key(pid));
            assert_eq!(list.len(), 1, "{function}: itself, besides the others of {container}");
            assert!(!everybody.contains_key(list.keys().next().expect("one")), "{function}: {list:?}");
        }
    }
    // A container of whom nobody computes, and those without a slice.
    assert_eq!(scene.ask(Some("three")).list("Compute_v3"), BTreeMap::new());
    let mut unsliced = scene.command(Some("four"), &scene.ask);
    let unsliced = Answers::to(unsliced.env_remove("RATION_MEMORY"));
    for function in LISTS {
        assert_eq!(scene.ask(None).list(function), everybody, "{function} without the shim");
        assert_eq!(unsliced.list(function), everybody, "{function} under the shim without a slice");
    }

    // One that is killed is in nobody's list.
    let [killed, left] = one;
    drop(killed);
    assert_eq!(scene.ask(Some("one")).list("Compute_v3"), scene.figures([&left]));
}

#[test]
fn lists_fit_their_buffers_as_the_drivers_own_do() {
    for members in [0, 1, 3] {
        let scene = Scene::new();
        // The answers of a machine on which these are alone.
        let alone: Vec<_> = (0..members).map(|_| scene.work(None, 1, 0)).collect();
        let wanted = scene.ask(None);
        drop(alone);
        let ours: Vec<_> = (0..members).map(|_| scene.work(Some("one"), 1, 0)).collect();
        let others = [scene.work(Some("two"), 1, 0), scene.work(None, 1, 0)];
        let told = scene.ask(Some("one"));
        let rooms = |answers: &Answers| -> Vec<String> {
            // What is written beyond the count means nothing.
            let line = |line: &[String]| {
                let [code, count, written] =
                    [3, 2, 1].map(|back| line[line.len() - back].parse::<u32>().expect("a number"));
                let written = if code == 0 { written.min(count) } else { written };
                format!("{} {written}", line[..line.len() - 1].join(" "))
            };
            let is_an_error_of_the_caller = |line: &&[String]| line.contains(&"null".to_owned());
            answers.all("room").filter(|line| !is_an_error_of_the_caller(line)).map(line).collect()
        };
        assert_eq!(rooms(&told), rooms(&wanted), "{members} members among others");
        assert_eq!(told.one("wrong"), wanted.one("wrong"), "what is wrong is so in the driver's words");
        // No array at all, and room for some: an error, unless there is nothing to be said or more than that.
        for line in told.all("room").filter(|line| line.len() == 6 && line[0].starts_with("Compute")) {
            let (room, code) = (line[1].parse::<usize>().expect("a number"), line[3].as_str());
            let wanted: &[&str] = if members > room {
                &["7"]
            } else if members == 0 {
                &["0", "2"]
            } else {
                &["2"]
            };
            assert!(wanted.contains(&code), "{members} members: {line:?}");
        }
        drop((ours, others));
    }
}

#[test]
fn utilization_is_the_containers_own() {
    // What else the machine does keeps programs from keeping the GPU busy.
    for tries_left in (0..5).rev() {
        match own_utilization() {
            Ok(()) => return,
            Err(why) if tries_left == 0 => panic!("{why}"),
            Err(_) => {}
        }
    }
}

fn own_utilization() -> Result<(), String> {
    let scene = Scene::new();
    let one = [scene.work(Some("one"), 1, 100), scene.work(Some("one"), 1, 200)];
    let two = scene.work(Some("two"), 1, 400);
    let idle = scene.work(Some("three"), 1, 0);
    std::thread::sleep(Duration::from_millis(2000));
    let all = scene.ask(None);
    for (container, sessions, per_cent) in [("one", &one[..], 30), ("two", &[two][..], 40), ("three", &[idle][..], 0)] {
        let told = scene.ask(Some(container));
        let pids: BTreeSet<u64> = sessions.iter().map(|session| u64::from(session.child.id())).collect();
        for function in ["samples", "info"] {
            let busy = told.busy(function);
            assert!(
                busy.keys().all(|pid| pids.contains(pid)),
                "{function} in {container}: {busy:?}, not only {pids:?}"
            );
            let those = all.busy(function);
            for (pid, part) in &busy {
                let whole = those.get(pid).copied().unwrap_or(0);
                near(part, &whole, 12, &format!("{function}: process {pid} of {container}, and by the driver"))?;
            }
            near(&busy.values().sum(), &per_cent, 12, &format!("{function}: the sum in {container}"))?;
        }
        let [rates, states] = ["rates", "pstates"].map(|word| told.numbers(word)[0]);
        near(&rates, &per_cent, 12, &format!("rates in {container}"))?;
        near(&states, &rates, 5, &format!("pstates in {container}"))?;
        near(&told.numbers("samples")[1], &per_cent, 15, &format!("samples in {container}"))?;
        let (own, whole) = (told.numbers("rates"), all.numbers("rates"));
        if own[0] > whole[0] + 5 || own[1] > whole[1] + 5 {
            return Err(format!("{container} is busier than the GPU: {own:?} of {whole:?}"));
        }
    }
    near(&all.numbers("rates")[0], &70, 15, "the GPU")
}

fn near(figure: &u64, wanted: &u64, within: u64, what: &str) -> Result<(), String> {
    if figure.abs_diff(*wanted) <= within { Ok(()) } else { Err(format!("{what}: {figure}, not {wanted}")) }
}

#[test]
fn a_region_that_cannot_be_read_leaves_the_lists_as_they_are() {
    let scene = Scene::new();
    // The first of them makes the file; what stands in its place then is no region, and nobody can make one there.
    drop(scene.work(Some("one"), 1, 0));
    let file = scene.regions.files().pop().expect("a region");
    std::fs::remove_file(&file).and_then(|()| std::fs::create_dir(&file)).expect("writable");
    let sessions = [scene.work(Some("one"), 1, 0), scene.work(Some("two"), 1, 0), scene.work(None, 1, 0)];
    assert_eq!(scene.ask(Some("one")).list("Compute_v3"), scene.figures(&sessions));

    // And where there can be none: those who could not join are in nobody's list.
    let plain = scene.regions.0.join("plain");
    std::fs::write(&plain, "").expect("writable");
    let nowhere = plain.join("nowhere");
    let everybody = scene.figures(&sessions);
    let alone = |program: &Path| {
        let mut command = scene.command(Some("one"), program);
        command.env("RATION_DIR", &nowhere).env("RATION_LOG", "off");
        command
    };
    assert_eq!(Answers::to(&mut alone(&scene.ask)).list("Compute_v3"), everybody, "seen from outside");
    let mut seen = Answers::to(alone(&scene.ask).arg("join")).list("Compute_v3");
    seen.retain(|pid, _| !everybody.contains_key(pid));
    assert_eq!(seen.len(), 1, "seen by itself: itself, besides all the others");
}

#[test]
fn a_program_that_finds_no_place_in_the_region_sees_the_lists_as_they_are() {
    let scene = Scene::new();
    let others = [scene.work(None, 1, 0)];
    let gpu = scene.machine.world().settings().gpu[0];
    let gpu = ration_region::Gpu { uuid: gpu.uuid, total: gpu.memory };
    let region = scene.regions.of("one", &gpu);
    let members: Vec<_> = (0..).map_while(|number| region.join(&format!("other-{number}"), None).ok()).collect();
    assert!(members.len() >= 64);
    let everybody = scene.figures(&others);
    let mut seen = Answers::to(scene.command(Some("one"), &scene.ask).arg("join").env("RATION_LOG", "off"));
    let mut list = seen.list("Compute_v3");
    list.retain(|pid, _| !everybody.contains_key(pid));
    assert_eq!(list.len(), 1, "itself, besides all the others");
    drop(members);
    seen = scene.ask(Some("one"));
    assert_eq!(seen.list("Compute_v3"), BTreeMap::new(), "now there is a place, and nobody of the container is there");
}

#[test]
fn a_gpu_that_is_limited_by_its_number_is_known_while_somebody_uses_it() {
    let scene = Scene::new();
    let limited =
        |program: &Path| inside(&scene.machine, &scene.regions, "one", &[("RATION_MEMORY", "0=2GiB".into())], program);
    let ours = scene.begin(limited(&scene.work).args(["100", "0"]));
    let others = scene.work(None, 100, 0);
    let told = Answers::to(&mut limited(&scene.ask));
    assert_eq!(told.list("Compute_v3"), scene.figures([&ours]));
    assert_eq!(told.numbers("memory")[0], 2 * GIB);
    drop(others);
}

#[test]
fn in_a_pid_namespace_a_container_sees_its_own_by_its_own_numbers() {
    let enter = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let possible = Command::new("unshare").args(enter).arg("true").output().is_ok_and(|output| output.status.success());
    if !possible {
        println!("not tested: no PID namespaces for this user here");
        return;
    }
    let scene = Scene::new();
    let neighbour = scene.work(Some("two"), 1, 500);
    // The shell is the first of its namespace; the worker's number there is small, and another one outside.
    let script = format!("sleep 60 | {} 100 200 >&2 & sleep 2; {}", scene.work.display(), scene.ask.display());
    let mut namespace = scene.command(Some("one"), Path::new("unshare"));
    // Without the stand-in for the kernel module, it would say that channels cannot be driven.
    namespace.env("RATION_SWITCH", "launches");
    let told = Answers::to(namespace.args(enter).args(["bash", "-c", &script]).stdin(Stdio::null()));
    let list = told.list("Compute_v3");
    assert!(list.len() == 1 && list.keys().all(|pid| *pid < 50), "one process, by its number in there: {list:?}");
    // The neighbour's number means nothing in there, so that nobody can tell whose the samples are.
    assert_eq!(told.busy("samples"), BTreeMap::new());
    assert!(told.numbers("rates")[0] > 30, "the figure of the GPU stays the whole one's");

    // Seen from outside of the namespace, by whoever is of the same container.
    let below = format!("exec {} 100 0", scene.work.display());
    let mut namespace = scene.command(Some("one"), Path::new("unshare"));
    let session = scene.begin(namespace.args(enter).args(["bash", "-c", &format!("({below})")]));
    let told = scene.ask(Some("one")).list("Compute_v3");
    let record = scene.machine.record();
    let there = record.processes.iter().filter(|process| process.alive && !process.observer).count();
    assert_eq!((there, told.len()), (2, 1), "{told:?}");
    let name = std::fs::read_to_string(format!("/proc/{}/comm", told.keys().next().expect("one"))).unwrap_or_default();
    assert!(name.starts_with("work"), "the process is {name:?}");
    drop((session, neighbour));
}

#[test]
fn the_drivers_own_limit_is_told_and_never_more_than_the_slice() {
    let scene = Scene::new();
    const UNSET: [u64; 3] = [3, 0, 0];
    assert_eq!(
        [scene.ask(None).numbers("limits"), scene.ask(Some("one")).numbers("limits")],
        [UNSET; 2].map(Vec::from)
    );
    // As R615 would have it: for the group that this machine's processes are in, or one above.
    for (soft, hard) in [(GIB, 3 * GIB), (4 * GIB, 20 * GIB), (0, u64::MAX)] {
        let line = format!("0 {soft} {hard} /sys/fs/cgroup\n");
        std::fs::write(scene.machine.dir.join("memory-limits"), line).expect("the machine's directory is writable");
        let (bare, told) = (scene.ask(None), scene.ask(Some("one")));
        if hard == u64::MAX {
            assert_eq!([bare.numbers("limits"), told.numbers("limits")], [UNSET; 2].map(Vec::from), "cleared");
        } else {
            assert_eq!(bare.numbers("limits"), [0, soft, hard]);
            assert_eq!(told.numbers("limits"), [0, soft.min(CAP), hard.min(CAP)]);
        }
        assert_eq!(told.numbers("memory")[0], hard.min(CAP), "the smaller of both is all there is");
        assert_eq!(told.numbers("memory_v2")[0], hard.min(CAP));
    }
}

#[test]
fn nvidia_ml_py_and_nvitop_show_the_slice() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".cache/py/bin/python");
    if !python.exists() {
        println!("not tested: {} is not there; ci/setup makes it", python.display());
        return;
    }
    let scene = Scene::new();
    let one = [scene.work(Some("one"), 100, 100), scene.work(Some("one"), 300, 0)];
    let others = [scene.work(Some("two"), 10, 100), scene.work(None, 700, 0)];
    std::thread::sleep(Duration::from_millis(500));
    let mut views = scene.command(Some("one"), &python);
    let wanted = scene.figures(&one).into_iter().map(|(pid, bytes)| format!("{pid}:{}", bytes / MIB));
    let output = views.arg(root.join("tests/programs/reports/views.py")).args(wanted).output().expect("it starts");
    let said = [&output.stdout[..], &output.stderr[..]].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
    assert!(output.status.success(), "{said}");
    println!("shown rightly by: {}", said.split_whitespace().collect::<Vec<_>>().join(", "));
    drop(others);
}
