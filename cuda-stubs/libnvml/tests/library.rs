//! The built `libnvidia-ml.so.1`, loaded as a program loads it: what it exports, and how it starts, forks and ends.
//!
//! What its calls answer is tested from outside, with NVIDIA's own Python client: tests/clients/nvml.

use std::ffi::{c_char, c_uint, c_void};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libloading::{Library, Symbol};
use sim_world::{Role, World, WorldSettings};

const UNINITIALIZED: c_uint = 1;
const NOT_SUPPORTED: c_uint = 3;
const INSUFFICIENT_SIZE: c_uint = 7;
const UNKNOWN: c_uint = 999;

/// The library in cargo's output directory. This test's own binary is in `deps/` of it.
fn built() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    here.with_file_name("libnvidia_ml.so")
}

/// Runs a test's body in a process and a world of its own: settings come from the environment, which threads share.
/// Returns what it wrote to standard error, in the process that the test runner started.
fn alone(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    const INSIDE: &str = "SIM_LIBNVML_TEST";
    if std::env::var(INSIDE).is_ok_and(|name| name == test) {
        body();
        return None;
    }
    let dir = std::env::temp_dir().join(format!("sim-libnvml-{test}-{}", std::process::id()));
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args(["--exact", test, "--nocapture"]).env(INSIDE, test).env("RATION_SIM_DIR", &dir);
    let output = command.envs(settings.iter().copied()).output().expect("a test can be run again");
    let _ = std::fs::remove_dir_all(&dir);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test}, in a process of its own: {}\n{out}{err}", output.status);
    Some(err.into_owned())
}

/// The library, with the few signatures that are needed here.
struct Nvml(Library);

impl Nvml {
    fn load() -> Nvml {
        // SAFETY: the library's constructors are Rust's own.
        Nvml(unsafe { Library::new(built()) }.expect("the library was built before its tests"))
    }

    fn get<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: the callers below name each function's type as include/nvml_abi.h has it.
        unsafe { self.0.get(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn call(&self, name: &str) -> c_uint {
        // SAFETY: only for functions without arguments.
        unsafe { self.get::<unsafe extern "C" fn() -> c_uint>(name)() }
    }

    fn device(&self) -> *mut c_void {
        let mut device = std::ptr::null_mut();
        let by_index =
            self.get::<unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_uint>("nvmlDeviceGetHandleByIndex_v2");
        // SAFETY: the handle's place is ours.
        assert_eq!(unsafe { by_index(0, &raw mut device) }, 0);
        device
    }

    /// A function of a device and one number, to be filled.
    fn number(&self, name: &str) -> (c_uint, c_uint) {
        let mut value = c_uint::MAX;
        let get = self.get::<unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_uint>(name);
        // SAFETY: all of these write one unsigned int.
        let code = unsafe { get(self.device(), &raw mut value) };
        (code, value)
    }

    fn name(&self, length: c_uint) -> (c_uint, String) {
        let mut text = [0 as c_char; 96];
        let get = self.get::<unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> c_uint>("nvmlDeviceGetName");
        // SAFETY: no length passed here is more than the buffer's.
        let code = unsafe { get(self.device(), text.as_mut_ptr(), length) };
        (code, text.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect())
    }

    /// PIDs and bytes of the processes on the device.
    fn processes(&self) -> Vec<(c_uint, u64)> {
        let mut list = [[0u64; 3]; 32];
        let mut count = list.len() as c_uint;
        let name = "nvmlDeviceGetComputeRunningProcesses_v3";
        let get = self.get::<unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut [u64; 3]) -> c_uint>(name);
        // SAFETY: an entry is 24 bytes, and there is room for as many as `count` says.
        assert_eq!(unsafe { get(self.device(), &raw mut count, list.as_mut_ptr()) }, 0);
        list[..count as usize].iter().map(|[pid, bytes, _]| (*pid as c_uint, *bytes)).collect()
    }
}

/// A client of the world that this process's environment names, and the PID that it has for itself.
fn client(wrapper: &[&str]) -> Option<(Child, String)> {
    let hold = env!("CARGO_BIN_EXE_ration-sim-hold");
    let words: Vec<&str> = wrapper.iter().copied().chain([hold, "0", "1048576"]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let mut line = String::new();
    let out = child.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("its output can be read");
    match line.trim().strip_prefix("ready ") {
        Some(pid) => Some((child, pid.to_owned())),
        None => {
            let _ = child.wait();
            None
        }
    }
}

#[test]
fn exports_are_those_of_the_driver() {
    let output = Command::new("nm").args(["--dynamic", "--defined-only"]).arg(built()).output();
    let output = output.expect("nm, of the C compiler's binutils");
    assert!(output.status.success(), "nm: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("symbol names are ASCII");
    let mut exports: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    exports.sort_unstable();
    assert_eq!(exports, sim_world::surface::NVML_EXPORTS, "see cuda-stubs/world/surface/nvml.tsv");
}

#[test]
fn uses_are_counted() {
    alone("uses_are_counted", &[], || {
        let nvml = Nvml::load();
        let mut count = 0;
        let get = nvml.get::<unsafe extern "C" fn(*mut c_uint) -> c_uint>("nvmlDeviceGetCount_v2");
        // SAFETY: `count` is where the answer goes.
        let mut devices = || unsafe { get(&raw mut count) };
        assert_eq!(devices(), UNINITIALIZED);
        assert_eq!(nvml.call("nvmlShutdown"), UNINITIALIZED);
        assert_eq!((nvml.call("nvmlInit_v2"), nvml.call("nvmlInit_v2")), (0, 0));
        assert_eq!((devices(), nvml.call("nvmlShutdown")), (0, 0));
        assert_eq!((devices(), nvml.call("nvmlShutdown")), (0, 0), "the first of two uses ended");
        assert_eq!(devices(), UNINITIALIZED);
        assert_eq!((nvml.call("nvmlInit"), devices()), (0, 0), "it can begin again");
        assert_eq!(count, 1);
    });
}

#[test]
fn a_bad_setting_is_named_once() {
    let said = alone("a_bad_setting_is_named_once", &[("RATION_SIM_GPUS", "several")], || {
        let nvml = Nvml::load();
        assert_eq!((nvml.call("nvmlInit_v2"), nvml.call("nvmlInit_v2")), (UNKNOWN, UNKNOWN));
        assert_eq!(nvml.call("nvmlShutdown"), UNINITIALIZED);
    });
    if let Some(said) = said {
        assert_eq!(said.matches("RATION_SIM_GPUS=\"several\"").count(), 1, "{said}");
    }
}

#[test]
fn what_is_not_modelled_says_so_once() {
    let said = alone("what_is_not_modelled_says_so_once", &[], || {
        let nvml = Nvml::load();
        assert_eq!(nvml.call("nvmlInit_v2"), 0);
        assert_eq!(nvml.number("nvmlDeviceSetPersistenceMode").0, NOT_SUPPORTED);
        assert_eq!(nvml.number("nvmlDeviceSetPersistenceMode").0, NOT_SUPPORTED);
        assert_eq!(nvml.number("nvmlDeviceGetFanSpeed").0, NOT_SUPPORTED, "as on the H200, so in silence");
    });
    if let Some(said) = said {
        assert_eq!(said.matches("nvmlDeviceSetPersistenceMode is not modelled").count(), 1, "{said}");
        assert!(!said.contains("nvmlDeviceGetFanSpeed"), "{said}");
    }
}

#[test]
fn calls_are_in_the_record() {
    alone("calls_are_in_the_record", &[], || {
        let nvml = Nvml::load();
        assert_eq!(nvml.call("nvmlShutdown"), UNINITIALIZED, "and counted all the same");
        assert_eq!(nvml.call("nvmlInit_v2"), 0);
        assert_eq!(nvml.name(96), (0, "NVIDIA H200".to_owned()));
        assert_eq!(nvml.name(11).0, INSUFFICIENT_SIZE);
        let world = World::join(&World::default_dir(), &WorldSettings::h200(), Role::Observer).expect("it is there");
        let record = world.record();
        let mine = record.processes.iter().find(|p| p.calls.contains_key("nvmlInit_v2")).expect("this process");
        assert_eq!((mine.calls["nvmlInit_v2"], mine.calls["nvmlDeviceGetName"]), (1, 2));
        assert_eq!(mine.calls["nvmlShutdown"], 1);
        assert!(mine.observer && mine.pid == u64::from(std::process::id()));
    });
}

#[test]
fn a_killed_client_is_gone_from_the_list() {
    alone("a_killed_client_is_gone_from_the_list", &[], || {
        let nvml = Nvml::load();
        assert_eq!(nvml.call("nvmlInit_v2"), 0);
        assert_eq!(nvml.processes(), []);
        let (mut child, pid) = client(&[]).expect("it runs");
        let figure = WorldSettings::h200().context + (1 << 20);
        assert_eq!(nvml.processes(), [(child.id(), figure)]);
        assert_eq!(pid, child.id().to_string());
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert_eq!(nvml.processes(), []);
    });
}

#[test]
fn pids_are_in_the_callers_namespace() {
    alone("pids_are_in_the_callers_namespace", &[], || {
        let nvml = Nvml::load();
        assert_eq!(nvml.call("nvmlInit_v2"), 0);
        let unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"];
        let Some((mut inside, pid)) =
            client(&unshare).or_else(|| client(&["unshare", "--pid", "--fork", "--kill-child"]))
        else {
            println!("not tested: this machine lets nobody make a PID namespace");
            return;
        };
        assert_eq!(pid, "1", "it is the first of its namespace");
        let seen = nvml.processes();
        let parent = |pid: c_uint| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok())
        };
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!(parent(seen[0].0), Some(inside.id()), "{seen:?} is what unshare ({}) made", inside.id());
        inside.kill().expect("ours");
        inside.wait().expect("ours");
    });
}

#[test]
fn a_forked_child_takes_a_place_of_its_own() {
    alone("a_forked_child_takes_a_place_of_its_own", &[], || {
        let nvml = Nvml::load();
        assert_eq!(nvml.call("nvmlInit_v2"), 0);
        let mut pipe = [0; 2];
        // SAFETY: makes two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        // SAFETY: the child does only what NVML's callers do in one, and leaves without running anything else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fine = nvml.number("nvmlDeviceGetIndex") == (0, 0) && nvml.call("nvmlShutdown") == 0;
            // SAFETY: waits until the parent has seen enough, which closes the other end, and ends the child.
            unsafe {
                libc::close(pipe[1]);
                libc::read(pipe[0], (&raw mut pipe).cast(), 1);
                libc::_exit(i32::from(!fine));
            }
        }
        let world = World::join(&World::default_dir(), &WorldSettings::h200(), Role::Observer).expect("it is there");
        let through = || {
            world.record().processes.into_iter().find(|p| p.pid == child as u64 && p.calls.contains_key("nvmlShutdown"))
        };
        let began = Instant::now();
        let of_child = loop {
            match through() {
                Some(found) => break found,
                None => assert!(began.elapsed() < Duration::from_secs(10), "the child has no slot of its own"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(of_child.alive && of_child.observer && of_child.calls["nvmlDeviceGetIndex"] == 1);
        // SAFETY: lets the child go.
        unsafe { libc::close(pipe[1]) };
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child's calls were answered");
        assert_eq!(nvml.number("nvmlDeviceGetIndex"), (0, 0), "and the parent's still are");
    });
}
