//! `ration run`, `ration status` and `ration set`, as somebody at a prompt uses them. What a slice was held to is what the simulated GPU's
//! own record says.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "caps/container.rs"]
mod container;
#[path = "cli/desk.rs"]
mod desk;
mod support;

use container::{GIB, MIB, Regions, Session, program};
use desk::{Answer, Desk, PATIENCE, USER, ask, containers, end, names, ration, take};
use support::random::Random;
use support::{Machine, compile, preload};

// ------------------------------------------------------------------------------------------------ running

#[test]
fn the_exit_status_is_the_programs_or_says_whose_trouble_it_is() {
    let desk = Desk::new();
    let limit = ["--memory", "1GiB"];
    let run = |arguments: &[&str]| desk.answer("run", &[&limit[..], arguments].concat());
    for (status, arguments) in [
        (0, &["--", "true"][..]),
        (7, &["--", "sh", "-c", "exit 7"]),
        (125, &["--compute", "30", "--", "true"]),
        (125, &["--no-such-option", "--", "true"]),
        (125, &["--library", "/nowhere/libration.so", "--", "true"]),
        (125, &[]),
        (126, &["--", "/etc/passwd"]),
        (126, &["--", "/"]),
        (127, &["--", "no-program-has-this-name"]),
        (127, &["--", "/nowhere/at-all"]),
        (128 + 9, &["--", "sh", "-c", "kill -KILL $$"]),
    ] {
        // The library is named already.
        let answer = match arguments.first() {
            Some(&"--library") => {
                let mut command = desk.machine.command(ration());
                Answer::of(&command.arg("run").args(arguments).output().expect("it runs"))
            }
            _ => run(arguments),
        };
        assert_eq!(answer.status, status, "{arguments:?}: {answer:?}");
        let is_told = answer.err.contains("ration run: ") || answer.err.contains("error: ");
        assert_eq!(is_told, [125, 126, 127].contains(&status), "{arguments:?}: {answer:?}");
    }
    let answer = desk.answer("run", &["--memory", "8g", "--", "true"]);
    assert!(answer.err.contains("--memory \"8g\"") && answer.err.contains("accepted: ") && answer.err.contains("8GiB"));
    let answer = desk.answer("run", &["--quiet", "--memory", "1GiB", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!((answer.out.as_str(), answer.err.as_str()), ("out\n", "err\n"));
    desk.is_clean();
}

#[test]
fn whoever_began_the_session_may_be_outside_of_a_container() {
    let desk = Desk::new();
    let enter = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !Command::new("unshare").args(enter).arg("true").output().is_ok_and(|output| output.status.success()) {
        println!("not tested: no PID namespaces for this user here");
        return;
    }
    let run = desk.ration("run", &["--memory", "1GiB", "--", "sh", "-c", "echo in; exit 3"]);
    // As the first process of a container, and started by a shell that is.
    for shell in [&[][..], &["sh", "-c", "\"$@\"; exit $?", "shell"]] {
        let mut command = desk.machine.command("unshare");
        command.args(enter).args(shell).arg(run.get_program()).args(run.get_args());
        for (name, value) in run.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let answer = Answer::of(&command.output().expect("it runs"));
        assert_eq!((answer.status, answer.out.as_str()), (3, "in\n"), "{shell:?}: {answer:?}");
    }
    desk.is_clean();
}

#[test]
fn signals_are_handed_on() {
    let desk = Desk::new();
    let start = |script: &str| {
        let mut command = desk.ration("run", &["--memory", "1GiB", "--", "sh", "-c", script]);
        let mut session = Session::start(&mut command, PATIENCE);
        assert_eq!(session.line(), Ok(Some("up".into())), "{}", session.said());
        session
    };
    let waits = "echo up; while :; do sleep 0.05; done";
    for (signal, trap, status) in [
        (libc::SIGTERM, "trap 'exit 5' TERM; ", 5),
        (libc::SIGUSR1, "trap 'exit 6' USR1; ", 6),
        (libc::SIGTERM, "", 128 + libc::SIGTERM),
        (libc::SIGINT, "trap 'exit 7' INT; ", 7),
    ] {
        let session = start(&format!("{trap}{waits}"));
        session.signal(signal);
        assert_eq!(end(session).0, Some(status), "{signal} {trap}");
    }
    desk.is_clean();
}

#[test]
fn a_cap_holds_and_the_last_line_says_what_was_used() {
    let desk = Desk::new();
    let most = || containers(&desk.status())[0]["peak_bytes"].as_u64();
    let mut session = desk.hold(&["--memory", "2GiB", "--compute", "30%"]);
    assert_eq!(most(), Some(desk.held()), "a context");
    assert_eq!(take(&mut session, 3 * GIB), "refused 2");
    assert_eq!(take(&mut session, GIB), "had");
    let held = desk.held();
    assert!((GIB..=2 * GIB).contains(&held), "{held} bytes");
    assert_eq!(most(), Some(held), "and a GiB");
    assert_eq!(take(&mut session, GIB), "refused 2");
    assert_eq!(ask(&mut session, "reports").split(' ').next_back(), Some((2 * GIB).to_string().as_str()));
    let (status, said) = end(session);
    assert_eq!(status, Some(0));
    let line = said.lines().find(|line| line.starts_with("ration: caps-hold-")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains(": peak 1.5 GiB of 2.0 GiB, ") && line.ends_with(" refused"), "{line}");
    assert!(line.contains(" of GPU time, throttled for ") && !line.contains("no allocations"), "{line}");
    desk.is_clean();
}

#[test]
fn runs_are_containers_of_their_own_unless_they_have_one_name() {
    let desk = Desk::new();
    let limit = ["--memory", "2GiB"];
    let (mut one, mut two) = (desk.hold(&limit), desk.hold(&limit));
    let answers = [take(&mut one, 1280 * MIB), take(&mut two, 1280 * MIB)];
    assert_eq!(answers, ["had", "had"]);
    assert!(desk.held() > 2 * GIB, "each has a cap of its own");
    let report = desk.status();
    assert_eq!(names(&report).len(), 2, "{report}");
    assert_ne!(names(&report)[0], names(&report)[1]);
    assert_eq!((end(one).0, end(two).0), (Some(0), Some(0)));

    let named = ["--name", "team/both", "--memory", "2GiB"];
    let (mut one, mut two) = (desk.hold(&named), desk.hold(&["--name", "team/both", "--memory", "4GiB"]));
    assert_eq!(take(&mut one, 768 * MIB), "had");
    assert_eq!(take(&mut two, 1024 * MIB), "refused 2", "one has taken what is left");
    assert!(desk.held() <= 2 * GIB);
    let report = desk.status();
    assert_eq!(names(&report), ["team/both"]);
    assert_eq!(containers(&report)[0]["processes"].as_array().map(Vec::len), Some(2));
    let answer = desk.answer("run", &["--name", "team/both", "--", "sh", "-c", "echo $RATION_MEMORY"]);
    assert_eq!((answer.status, answer.out.as_str()), (0, "2GiB\n"), "{answer:?}");
    assert!(!answer.err.contains("ration run: "), "nothing to say: {answer:?}");
    assert_eq!(end(one).0, Some(0));
    // Who is still there keeps what was made for both.
    assert_eq!(names(&desk.status()), ["team/both"]);
    let (status, said) = end(two);
    assert_eq!(status, Some(0));
    assert!(said.contains("team/both runs already, with memory 2GiB: that holds"), "{said}");
    desk.is_clean();
}

#[test]
fn a_program_is_told_what_was_asked_for_and_nothing_else() {
    let desk = Desk::new();
    let script = "echo $RATION_NAME $RATION_MEMORY $RATION_COMPUTE$RATION_COMPUTE_REQUEST $RATION_COMPUTE_LIMIT $RATION_PRIORITY; \
                  echo $RATION_STRICT $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_MEMORY_LIMIT$CUDA_DEVICE_SM_LIMIT_0";
    let mut command = desk.ration("run", &["--name", "box", "--memory", "2GiB", "--compute-limit", "60%", "--strict"]);
    command.args(["--gpu", "1", "--", "sh", "-c", script]);
    command.env("RATION_COMPUTE", "10%").env("RATION_PRIORITY", "batch").env("CUDA_DEVICE_MEMORY_LIMIT", "1g");
    let answer = Answer::of(&command.env("CUDA_DEVICE_SM_LIMIT_0", "5").output().expect("it runs"));
    assert_eq!(answer.out, "box 2GiB 60% 60% batch\n1 1\n", "{answer:?}");
    desk.is_clean();
}

/// What a crash left goes, and nothing else does.
#[test]
fn what_nobody_needs_is_reaped() {
    let desk = Desk::new();
    let answer = desk.answer("reap", &[]);
    assert_eq!((answer.status, answer.out.as_str()), (0, "There is nothing to clear away.\n"), "{answer:?}");

    let lives = desk.hold(&["--name", "lives", "--memory", "2GiB"]);
    // One that is killed together with its `ration run`, and one that had the library without it.
    drop(desk.hold(&["--name", "killed", "--memory", "2GiB"]));
    let mut command = container::inside(&desk.machine, &desk.regions, "bare", &[], &program("hold"));
    let mut bare = Session::start(command.env("RATION_MEMORY", "2GiB"), PATIENCE);
    assert_eq!(bare.line(), Ok(Some("ready".into())), "{}", bare.said());
    assert_eq!(end(bare).0, Some(0));
    // And something of somebody else's.
    let strange = desk.regions.0.join(format!("{}-strange", container::me()));
    fs::create_dir(&strange).expect("it is ours");
    fs::write(strange.join("letter"), "").expect("it is ours");
    let young = desk.answer("reap", &[]);
    assert!(!young.out.contains("bare"), "what was made just now may be somebody's who is about to come: {young:?}");
    std::thread::sleep(Duration::from_millis(3_200));

    let there =
        || [&desk.regions.0, &desk.notes.join("ration")].map(|dir| fs::read_dir(dir).map_or(0, Iterator::count));
    let before = there();
    let dry = desk.answer("reap", &["--dry-run"]);
    assert_eq!((dry.status, there()), (1, before), "{dry:?}");
    let answer = desk.answer("reap", &[]);
    assert_eq!(dry.out.replace("would be removed", "removed"), answer.out);
    assert!(answer.out.contains("-bare\n"), "{answer:?}");
    assert!(answer.err.contains("letter: no file of a container's; it was not put there by ration"), "{answer:?}");
    assert_eq!(names(&desk.status()), ["lives"]);
    fs::remove_dir_all(&strange).expect("it is ours");
    assert_eq!(desk.answer("reap", &[]).out, "There is nothing to clear away.\n");
    assert_eq!(end(lives).0, Some(0));
    desk.is_clean();
}

#[test]
fn what_a_killed_run_leaves_goes_with_the_next() {
    let desk = Desk::new();
    let mut session = desk.hold(&["--name", "box", "--memory", "2GiB"]);
    session.signal(libc::SIGKILL);
    session.child.wait().expect("it can be waited for");
    // The program runs on, and is held.
    assert_eq!(take(&mut session, 2 * GIB), "refused 2");
    assert_eq!(desk.answer("set", &["box", "--memory", "4GiB"]).status, 0);
    assert_eq!(take(&mut session, 2 * GIB), "had");
    session.close();
    while let Ok(Some(_)) = session.line() {}
    assert_eq!(desk.answer("run", &["--", "true"]).status, 0);
    desk.is_clean();
}

// ------------------------------------------------------------------------------------------------ changing

#[test]
fn what_is_set_holds_for_what_runs() {
    let desk = Desk::new();
    let mut session = desk.hold(&["--name", "box", "--memory", "2GiB"]);
    assert_eq!(take(&mut session, 2 * GIB), "refused 2");
    let answer = desk.answer("set", &["box", "--memory", "4GiB"]);
    assert_eq!((answer.status, answer.out.as_str()), (0, "box: memory 4GiB\n"), "{answer:?}");
    assert_eq!(take(&mut session, 2 * GIB), "had");
    let held = desk.held();
    assert!((2 * GIB..=4 * GIB).contains(&held), "{held} bytes");

    let answer = desk.answer("set", &["box", "--memory", "1GiB", "--compute", "30%", "--priority", "batch"]);
    assert_eq!(answer.status, 0, "{answer:?}");
    assert!(answer.out.contains("it holds 2.5 GiB") && answer.out.contains("nothing is freed by force"), "{answer:?}");
    assert_eq!(take(&mut session, 64 * MIB), "refused 2");
    assert_eq!(desk.held(), held, "nothing was taken away");
    let report = desk.status();
    let container = containers(&report)[0];
    assert_eq!(container["cap_bytes"], GIB);
    assert_eq!((&container["limit_percent"], &container["request_percent"]), (&30.0.into(), &30.0.into()));
    assert_eq!(container["priority"], "batch");
    assert_eq!(ask(&mut session, "give"), "gave");
    assert_eq!(take(&mut session, 64 * MIB), "had");
    assert!(desk.held() <= GIB);

    let report = desk.status();
    for (arguments, words) in [
        (&["nobody", "--memory", "1GiB"][..], "There is: box"),
        (&["box"], "nothing to change"),
        (&["box", "--memory", "lots"], "accepted: "),
        (&["box", "--compute-request", "60%"], "above the limit"),
        (&["box", "--memory", "0=1GiB"], "UUID"),
    ] {
        let answer = desk.answer("set", arguments);
        assert!(answer.status == 1 && answer.err.contains(words), "{arguments:?}: {answer:?}");
    }
    assert_eq!(desk.status(), report, "what is refused changes nothing");
    assert_eq!(end(session).0, Some(0));
    let answer = desk.answer("set", &["box", "--memory", "1GiB"]);
    assert!(answer.status == 1 && answer.err.contains("none that `ration run` started"), "{answer:?}");
    desk.is_clean();
}

#[test]
fn what_is_set_before_a_gpu_is_used_holds_from_then_on() {
    let desk = Desk::new();
    let mut command = desk.ration("run", &["--name", "late", "--memory", "2GiB", "--", "sh", "-c"]);
    command.arg("echo up; read go; exec \"$0\"").arg(program("hold"));
    let mut session = Session::start(&mut command, PATIENCE);
    assert_eq!(session.line(), Ok(Some("up".into())), "{}", session.said());
    let answer = desk.answer("set", &["late", "--memory", "5GiB"]);
    assert!(answer.status == 0 && answer.out.contains("uses no GPU yet"), "{answer:?}");
    assert_eq!(ask(&mut session, "go"), "ready");
    // Somebody has to see first that it uses one.
    let mut said = ask(&mut session, &format!("wait {}", 4 * GIB));
    if said == "refused 2" {
        said = session.line().expect("it answers").expect("it goes on");
    }
    assert_eq!(said, "had");
    assert_eq!(take(&mut session, GIB), "refused 2");
    assert!(desk.held() <= 5 * GIB);
    assert_eq!(end(session).0, Some(0));
    desk.is_clean();
}

#[test]
fn in_a_pod_whoever_runs_it_says_what_holds() {
    let (machine, regions) = (Machine::new(), Regions::new());
    let files = [("quota", "memory = 4GiB\n")];
    let ration = ration();
    let set = ["set", "x", "--memory", "1GiB"];
    let Some((mut command, _)) = container::with_files(&machine, &regions, &files, &ration, &set) else { return };
    let answer = Answer::of(&command.output().expect("unshare runs"));
    assert!(answer.status == 1 && answer.err.contains("ration.dev/memory"), "{answer:?}");
    assert!(answer.err.contains("/etc/ration/quota"), "{answer:?}");
}

// ------------------------------------------------------------------------------------------------ looking

#[test]
fn status_says_who_has_what() {
    let desk = Desk::new();
    let answer = desk.answer("status", &[]);
    assert_eq!((answer.status, answer.out.as_str()), (0, "No container uses a GPU here.\n"), "{answer:?}");
    assert_eq!(desk.status()["version"], 1);

    let mut session =
        desk.hold(&["--name", "box", "--memory", "2GiB", "--compute-limit", "60%", "--priority", "latency"]);
    assert_eq!(take(&mut session, GIB), "had");
    let report = desk.status();
    let container = containers(&report)[0];
    assert_eq!((&container["name"], &container["cap_bytes"]), (&"box".into(), &(2 * GIB).into()));
    assert_eq!(container["used_bytes"], desk.held(), "what the driver says");
    assert_eq!((&container["limit_percent"], &container["priority"]), (&60.0.into(), &"latency".into()));
    assert_eq!((&container["is_full"], &report["problems"]), (&true.into(), &Value::Array(vec![])));
    let process = &container["processes"][0];
    assert_eq!(process["held_bytes"], container["used_bytes"]);

    for arguments in [&[][..], &["box"]] {
        let answer = desk.answer("status", arguments);
        assert_eq!(answer.status, 0, "{answer:?}");
        let row = answer.out.lines().find(|line| line.starts_with("box ")).expect("a row");
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(&cells[1..7], ["1.5", "GiB", "2.0", "GiB", "60%", "60%"], "{row}");
        assert!(answer.out.contains(&format!("pid {}", process["pid"])), "{}", answer.out);
        assert!(answer.out.lines().all(|line| line.chars().count() <= 80), "{}", answer.out);
    }
    let answer = desk.answer("status", &["nobody"]);
    assert!(answer.status == 1 && answer.err.contains("no slice is called nobody"), "{answer:?}");
    assert_eq!(end(session).0, Some(0));
    desk.is_clean();
}

/// Whatever lies where containers are: it is named, nobody waits for it, and who is whole is shown.
#[test]
fn what_is_none_of_ours_is_named() {
    let desk = Desk::new();
    let mut session = desk.hold(&["--name", "whole", "--memory", "2GiB"]);
    assert_eq!(take(&mut session, GIB), "had");
    let region = desk.regions.files().remove(0);
    let name = region.file_name().expect("a name").to_owned();
    let good = fs::read(&region).expect("it is ours");
    let mut random = Random(1);
    let mut noise = |length: usize| (0..length).map(|_| random.below(256) as u8).collect::<Vec<_>>();

    let dir = &desk.regions.0;
    let bad = |what: &str, bytes: &[u8]| {
        fs::create_dir(dir.join(what)).expect("it is ours");
        fs::write(dir.join(what).join(&name), bytes).expect("it is ours");
    };
    bad("noise", &noise(good.len()));
    bad("half", &good[..good.len() / 2]);
    bad("begun", &good[..100]);
    bad("empty", b"");
    let mut forged = good[..4096].to_vec();
    forged.extend(noise(good.len() - 4096));
    bad("forged", &forged);
    for at in 0..8 {
        // Words that make a container of it, with a name that moves the cursor and members that are not there.
        let mut forged = good.clone();
        let from = 4096 + at * 40_000;
        let noise = noise(20_000);
        forged[from..from + noise.len()].copy_from_slice(&noise);
        forged[4096 + 16] = 0x1b;
        bad(&format!("forged-{at}"), &forged);
    }
    fs::create_dir(dir.join("link")).expect("it is ours");
    symlink("/dev/zero", dir.join("link").join(&name)).expect("it is ours");
    fs::create_dir_all(dir.join("dir").join(&name)).expect("it is ours");
    fs::create_dir(dir.join("fifo")).expect("it is ours");
    for fifo in [dir.join("fifo").join(&name), dir.join("a-fifo")] {
        assert!(Command::new("mkfifo").arg(fifo).status().is_ok_and(|it| it.success()));
    }
    fs::write(dir.join("a-file"), "text").expect("it is ours");
    symlink(region.parent().expect("a directory"), dir.join("a-link")).expect("it is ours");

    let answer = desk.answer("status", &[]);
    assert_eq!(answer.status, 0, "{answer:?}");
    assert!(answer.out.contains("whole ") && !answer.out.contains('\u{1b}'), "{}", answer.out);
    for what in ["noise", "half", "begun", "empty", "link", "dir", "fifo", "a-fifo", "a-file", "a-link"] {
        assert!(answer.err.contains(&format!("/{what}")), "{what} is not named: {}", answer.err);
    }
    let report = desk.status();
    assert!(names(&report).contains(&"whole"), "{report}");
    assert!(report["problems"].as_array().is_some_and(|it| it.len() >= 10), "{report}");
    // It is in nobody's way.
    assert_eq!(desk.answer("set", &["whole", "--memory", "3GiB"]).status, 0);
    assert_eq!(take(&mut session, GIB), "had");

    // Nor is it when the container's own file is cut short under it, or written over.
    fs::OpenOptions::new().write(true).open(&region).and_then(|it| it.set_len(5000)).expect("it is ours");
    let answer = desk.answer("status", &[]);
    assert!(answer.status == 0 && answer.err.contains("too short"), "{answer:?}");
    assert_eq!(desk.answer("set", &["whole", "--memory", "2GiB"]).status, 0);
    assert_eq!(end(session).0, Some(0));
}

// ------------------------------------------------------------------------------------------------ warnings

#[test]
fn who_will_not_be_held_is_warned_of() {
    let desk = Desk::new();
    let bench = preload::Bench::new();
    let source = bench.dir.join("static.c");
    fs::write(&source, "int main(void) { return 3; }\n").expect("the target directory is writable");
    let built = Command::new("cc").arg("-static").arg("-o").arg(bench.dir.join("static")).arg(&source).status();
    // What stands for sudo, in front of the path.
    fs::write(bench.dir.join("sudo"), "#!/bin/sh\nexec \"$@\"\n").expect("the target directory is writable");
    fs::set_permissions(bench.dir.join("sudo"), Permissions::from_mode(0o755)).expect("it is ours");
    let path = format!("{}:{}", bench.dir.display(), std::env::var("PATH").unwrap_or_default());
    let run = |arguments: &[&str]| {
        let mut command = desk.ration("run", &["--memory", "1GiB"]);
        Answer::of(&command.args(arguments).env("PATH", &path).output().expect("it runs"))
    };
    let answer = run(&["--", "sudo", "sh", "-c", "exit 4"]);
    assert_eq!(answer.status, 4, "it is run all the same: {answer:?}");
    assert!(answer.err.contains("sudo will not be held") && answer.err.contains("sudo ration run"), "{answer:?}");
    if built.is_ok_and(|it| it.success()) {
        let answer = run(&["--", "static"]);
        assert_eq!(answer.status, 3, "{answer:?}");
        assert!(answer.err.contains("static will not be held") && answer.err.contains("dynamically"), "{answer:?}");
    } else {
        println!("this compiler links nothing statically: not looked at");
    }
    let answer = run(&["--", "sh", "-c", "exit 0"]);
    assert!(!answer.err.contains("warning"), "{answer:?}");
    let answer = desk.answer("run", &["--", "true"]);
    assert!(answer.err.contains("no limit is asked for"), "{answer:?}");
    desk.is_clean();
}

/// A path that `LD_PRELOAD` cannot have is reached all the same, and what was preloaded before stays.
#[test]
fn a_library_anywhere_is_preloaded() {
    let desk = Desk::new();
    let bench = preload::Bench::new();
    let dir = bench.dir.join("a place: of one's own");
    fs::create_dir_all(&dir).expect("the target directory is writable");
    let library = dir.join("libration.so");
    symlink(preload::shim(), &library).expect("the target directory is writable");
    fs::copy(preload::shim(), dir.join("copy.so")).expect("the target directory is writable");
    for library in [library, dir.join("copy.so")] {
        let mut command = desk.machine.command(ration());
        command.args(["run", "--memory", "2GiB", "--library"]).arg(&library).arg("--").arg(program("hold"));
        command.env("RATION_DIR", &desk.regions.0).env("XDG_RUNTIME_DIR", &desk.notes);
        command.env("LD_PRELOAD", support::sim_dir().join("libsim-kernel.so"));
        let mut session = Session::start(&mut command, PATIENCE);
        assert_eq!(session.line(), Ok(Some("ready".into())), "{}", session.said());
        assert_eq!(take(&mut session, 3 * GIB), "refused 2");
        let (status, said) = end(session);
        assert!(status == Some(0) && !said.contains("cannot be preloaded"), "{said}");
    }
    desk.is_clean();
}

// ------------------------------------------------------------------------------------------------ other users

/// As an ordinary user: everything works, and of others' containers no more is to be seen than they tell everybody.
#[test]
fn an_ordinary_user_needs_no_rights() {
    // SAFETY: takes nothing and always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        println!("not root: the other tests are run by an ordinary user");
        return;
    }
    let mut desk = Desk::new();
    // The simulated GPU's file is everybody's, and the system guards others' files where names are guarded.
    for (dir, mode) in [(&desk.regions.0, 0o1777), (&desk.machine.dir, 0o777)] {
        fs::create_dir_all(dir).expect("shared memory is writable");
        fs::set_permissions(dir, Permissions::from_mode(mode)).expect("it is ours");
    }
    chown(&desk.notes, Some(USER), Some(USER)).expect("root may");
    let copies = std::env::temp_dir().join(format!("ration-cli-{}", std::process::id()));
    fs::create_dir_all(&copies).expect("temporary files can be made");
    fs::set_permissions(&copies, Permissions::from_mode(0o755)).expect("it is ours");
    desk.copies = Some(copies.clone());
    let copy = |from: PathBuf, name: &str| {
        fs::copy(from, copies.join(name)).expect("there is room");
        copies.join(name)
    };
    copy(preload::shim(), "libration.so");
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        copy(support::sim_dir().join(library), library);
    }
    let (ration, hold) = (copy(ration(), "ration"), copy(program("hold"), "hold"));
    let as_user = |arguments: &[&str]| {
        let mut command = desk.machine.command(&ration);
        command.args(arguments).env("LD_LIBRARY_PATH", &copies).env("RATION_DIR", &desk.regions.0);
        command.env("XDG_RUNTIME_DIR", &desk.notes).uid(USER).gid(USER).current_dir("/");
        command
    };
    let mut command = as_user(&["run", "--name", "users", "--memory", "2GiB", "--"]);
    let mut session = Session::start(command.arg(&hold), PATIENCE);
    assert_eq!(session.line(), Ok(Some("ready".into())), "{}", session.said());
    assert_eq!(take(&mut session, 2 * GIB), "refused 2");
    let output = as_user(&["set", "users", "--memory", "4GiB"]).output().expect("it runs");
    assert_eq!(Answer::of(&output).out, "users: memory 4GiB\n", "{output:?}");
    assert_eq!(take(&mut session, 2 * GIB), "had");
    let held = desk.held();
    assert!((2 * GIB..=4 * GIB).contains(&held), "{held} bytes");

    let roots = desk.regions.0.with_extension("roots");
    fs::create_dir_all(&roots).expect("shared memory is writable");
    let mut command = desk.ration("run", &["--name", "roots", "--memory", "1GiB", "--compute", "30%", "--"]);
    command.env("XDG_RUNTIME_DIR", &roots).arg(compile("compute_work")).args(["queue", "500", "60"]);
    let other = Session::start(&mut command, PATIENCE);
    let deadline = Instant::now() + PATIENCE;
    let report = loop {
        let output = as_user(&["status", "--json"]).output().expect("it runs");
        let report: Value = serde_json::from_str(&Answer::of(&output).out).expect("it is JSON");
        if names(&report) == ["roots", "users"] {
            break report;
        }
        assert!(Instant::now() < deadline, "what root's container tells everybody is not seen: {report}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let (theirs, own) = (containers(&report)[0], containers(&report)[1]);
    assert_eq!(
        (&theirs["is_full"], &theirs["user"], &theirs["limit_percent"]),
        (&false.into(), &0.into(), &30.0.into())
    );
    for private in ["cap_bytes", "used_bytes", "processes", "gpu_seconds"] {
        assert!(theirs[private].is_null() && !own[private].is_null(), "{private}: {report}");
    }
    assert_eq!((&own["user"], &report["problems"]), (&USER.into(), &Value::Array(vec![])));
    assert!(
        names(&desk.status()).contains(&"users") && containers(&desk.status()).iter().all(|it| it["is_full"] == true)
    );
    other.signal(libc::SIGTERM);
    assert_eq!((end(other).0, end(session).0), (Some(128 + libc::SIGTERM), Some(0)));
    let _ = fs::remove_dir_all(&roots);
    desk.is_clean();
}
