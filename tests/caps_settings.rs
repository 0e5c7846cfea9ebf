//! Limits that cannot be understood or kept: the program is told, and nothing runs without a limit by mistake.

use std::process::Output;

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{Regions, inside, with_files};
use support::Machine;

/// Runs `start` in a container of a machine with two GPUs; what it printed, and what was said to its user.
fn start(settings: &[(&str, &str)], dir: Option<&str>) -> (String, String) {
    let (machine, regions) = (Machine::with(&[("RATION_SIM_GPUS", "2")]), Regions::new());
    let settings: Vec<(&str, String)> = settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let mut command = inside(&machine, &regions, "tests/settings", &settings, &container::program("start"));
    if let Some(dir) = dir {
        command.env("RATION_DIR", dir);
    }
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (out, err) = (text(stdout), text(stderr));
    assert!(status.success(), "{status}: {out}{err}");
    (out, err)
}

const RUNS: &str = "init 0\ncontext 0\n";
const REFUSED: &str = "init 800\n";

#[test]
fn a_value_that_is_not_understood_refuses_gpu_work_and_says_what_would_be() {
    for (name, value, hint) in [
        ("RATION_MEMORY", "lots", "8GiB"),
        ("RATION_MEMORY", "-5", "RATION_MEMORY"),
        ("RATION_MEMORY", "0=4GiB,0=8GiB", "RATION_MEMORY"),
        ("RATION_STRICT", "maybe", "RATION_STRICT"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "much", "CUDA_DEVICE_MEMORY_LIMIT"),
    ] {
        let mut settings = vec![(name, value)];
        if name == "RATION_STRICT" {
            settings.push(("RATION_MEMORY", "4GiB"));
        }
        let (out, err) = start(&settings, None);
        assert_eq!(out, REFUSED, "{name}={value}: {err}");
        assert!(err.contains(name) && err.contains(hint) && err.contains("no GPU work"), "{name}={value}: {err}");
    }
}

#[test]
fn the_beginning_of_a_uuid_that_fits_two_gpus_refuses_gpu_work() {
    // The simulated ones all begin with this.
    let (out, err) = start(&[("RATION_MEMORY", "GPU-72617469=4GiB")], None);
    assert_eq!(out, REFUSED, "{err}");
    assert!(err.contains("more than one GPU"), "{err}");
}

#[test]
fn where_processes_cannot_meet_each_is_held_alone_or_strictly_nothing_runs() {
    // A file where the directory should be.
    let nowhere = "/proc/self/exe";
    let (out, err) = start(&[("RATION_MEMORY", "4GiB")], Some(nowhere));
    assert_eq!(out, RUNS, "{err}");
    assert!(err.contains(nowhere) && err.contains("by itself"), "{err}");

    let (out, err) = start(&[("RATION_MEMORY", "4GiB"), ("RATION_STRICT", "1")], Some(nowhere));
    assert_eq!(out, REFUSED, "{err}");
    assert!(err.contains(nowhere) && err.contains("RATION_STRICT"), "{err}");

    let (out, err) = start(&[("RATION_MEMORY", "4GiB"), ("RATION_STRICT", "1")], None);
    assert_eq!(out, RUNS, "{err}");
    assert_eq!(err, "", "nothing to say");
}

/// Runs `start` where /etc/ration holds these files; nothing, if this machine lets nobody mount anything.
fn start_with_files(files: &[(&str, &str)]) -> Option<(String, String)> {
    let (machine, regions) = (Machine::new(), Regions::new());
    let (mut command, _) = with_files(&machine, &regions, files, &container::program("start"), &[])?;
    let output = command.output().expect("unshare runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    Some((out, err))
}

#[test]
fn the_quota_file_names_the_container_also_where_only_the_pod_knows_its_name() {
    let quota = ("quota", "memory = 4GiB\nname = team/{pod}/main\n");
    let Some((out, err)) = start_with_files(&[quota, ("pod", "web-x7k2p")]) else { return };
    assert_eq!(out, RUNS, "{err}");
    assert!(err.contains("team/web-x7k2p/main"), "what the environment says does not count, and that is said: {err}");

    let (out, err) = start_with_files(&[quota]).expect("it was possible above");
    assert_eq!(out, REFUSED, "{err}");
    assert!(err.contains("a file called pod") && err.contains("no GPU work"), "{err}");
}
