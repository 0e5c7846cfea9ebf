//! Containers whose clocks differ, as those in time namespaces do: they have their shares, and nobody who is ahead of the others keeps
//! them off the GPU when it stands still. The judge is the simulated GPU's own record.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

#[path = "caps/container.rs"]
mod container;
#[path = "channels/steered.rs"]
mod steered;
mod support;

use container::Session;
use steered::{Steered, milliseconds, ready};
use support::tries::until_good;
use support::{compile, report};

/// The command's clock is so many seconds ahead of the machine's; `false`: this user may not make it so.
fn set_ahead(command: &mut Command, seconds: u32) -> bool {
    let offsets: &'static str = format!("monotonic {seconds} 0\nboottime {seconds} 0\n").leak();
    let enter = move || {
        let opened = |path: &std::ffi::CStr, flags: i32| {
            // SAFETY: a path that ends in NUL.
            unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) }
        };
        // SAFETY: in a child that was forked just now and has one thread, which allocates nothing.
        let done = unsafe {
            libc::unshare(libc::CLONE_NEWTIME) == 0
                && {
                    let file = opened(c"/proc/self/timens_offsets", libc::O_WRONLY);
                    libc::write(file, offsets.as_ptr().cast(), offsets.len()) == offsets.len() as isize
                }
                && libc::setns(opened(c"/proc/self/ns/time_for_children", libc::O_RDONLY), libc::CLONE_NEWTIME) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    let mut trial = Command::new("true");
    // SAFETY: see above.
    unsafe {
        trial.pre_exec(enter);
        command.pre_exec(enter);
    }
    trial.status().is_ok_and(|status| status.success())
}

/// Two containers that fill the GPU, with three quarters and a quarter; the one that is ahead is stopped for a while.
/// What was seen, and whether it is as it should be.
fn share(switch: &str, ahead: [u32; 2]) -> Option<(String, bool)> {
    let steered = Steered::new(compile("compute_work"));
    let requests = ["75%", "25%"];
    let mut sessions: Vec<Session> = Vec::new();
    for which in 0..2 {
        let settings = [("RATION_COMPUTE_REQUEST", requests[which]), ("RATION_SWITCH", switch)];
        let mut command = steered.command(["tests/one", "tests/two"][which], &settings, &["queue", "500", "60"]);
        if !set_ahead(&mut command, ahead[which]) {
            return None;
        }
        sessions.push(ready(&mut command));
    }
    milliseconds(500);
    let got = steered.shares(&[&sessions[0], &sessions[1]], 2_000);
    let stopped = usize::from(ahead[1] > ahead[0]);
    sessions[stopped].signal(libc::SIGSTOP);
    // What it has queued goes on.
    milliseconds(1_000);
    let alone = steered.shares(&[&sessions[1 - stopped]], 1_000)[0];
    sessions[stopped].signal(libc::SIGCONT);
    let said = format!(
        "{switch}, ahead by {ahead:?} s: {:.1}, {:.1} of 75, 25; while one is stopped {alone:.1}",
        got[0], got[1]
    );
    Some((said, (70.0..=80.0).contains(&got[0]) && (20.0..=30.0).contains(&got[1]) && alone > 90.0))
}

#[test]
fn containers_in_time_namespaces_have_their_shares() {
    let mut lines = String::new();
    for (switch, ahead) in [("channels", [86_400, 0]), ("channels", [0, 86_400]), ("launches", [3_600, 86_400])] {
        let (mut seen, mut is_allowed) = (String::new(), true);
        let judged = until_good(
            || {
                let (line, is_right) = share(switch, ahead).unwrap_or_else(|| {
                    is_allowed = false;
                    (String::new(), true)
                });
                seen += &(line + "\n");
                is_right
            },
            |is_right| *is_right,
        );
        if !is_allowed {
            println!("not tested: no time namespaces for this user here");
            return;
        }
        assert!(judged != Some(false), "{seen}");
        lines += &seen;
    }
    report("clocks", &lines);
}
