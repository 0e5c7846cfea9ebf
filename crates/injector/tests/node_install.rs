//! The library on the node: there whole or not at all, whoever installs, and whenever they are killed.

mod node_support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use node_support::{Host, Pod, all_of, is_root, mode, refused};

#[test]
fn a_fresh_node_gets_the_library_and_a_place_for_regions() {
    let host = Host::new("fresh");
    let library = host.library("one");
    let name = host.installed(&library, "1.2.3");
    assert!(name.starts_with("1.2.3-"), "{name}");
    assert_eq!(host.check_libraries(), [name.as_str()]);
    assert_eq!(fs::read(host.lib().join("current/libration.so")).unwrap(), fs::read(&library).unwrap());
    assert!(host.unfinished().is_empty());
    assert_eq!(mode(&host.lib()), 0o755);
    assert_eq!(mode(&host.lib().join(&name)), 0o755);
    assert_eq!(mode(&host.lib().join(&name).join("libration.so")), 0o555);
    assert_eq!(mode(&host.regions()), 0o1777);
    let before = host.listing();
    let again = host.install(&library, "1.2.3");
    assert!(again.status.success(), "{}", all_of(&again));
    assert_eq!(host.listing(), before, "a second installation changed something");
}

#[test]
fn modes_are_right_whatever_the_umask() {
    let host = Host::new("umask");
    let library = host.library("one");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "umask 077; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_ration-injector"),
        "node",
        "install",
        "--library",
    ]);
    command.arg(&library).arg("--root").arg(host.host().join("ration")).arg("--region-dir").arg(host.regions());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", all_of(&output));
    let name = host.current().unwrap();
    for (path, right) in [
        (host.host().join("ration"), 0o755),
        (host.lib(), 0o755),
        (host.lib().join(&name), 0o755),
        (host.lib().join(&name).join("libration.so"), 0o555),
        (host.regions(), 0o1777),
    ] {
        assert_eq!(mode(&path), right, "{}", path.display());
    }
}

#[test]
fn an_upgrade_leaves_running_pods_what_they_have() {
    let host = Host::new("upgrade");
    let (one, two) = (host.library("one"), host.library("two"));
    let old = host.installed(&one, "1.0.0");
    let pod = Pod::with(&host.lib().join("current/libration.so"));
    // Without grace, so that only the pod keeps it; and without the host's processes, so that only the kernel knows of it.
    let watch = host.watch(&two, "2.0.0", &["--host-processes", "no", "--blind-grace", "0"]);
    node_support::within(10, "the new one is current", || {
        host.current().is_some_and(|name| name.starts_with("2.0.0-"))
    });
    let new = host.current().unwrap();
    watch.look_again();
    assert_eq!(host.check_libraries(), [old.clone(), new.clone()], "what a pod has mapped was removed");
    let listed = watch.status();
    let kept = listed["libraries"][0]["kept"].as_str().unwrap();
    assert!(kept.contains("mapped"), "{kept}");
    // Who it is, this one sees.
    let text = host.status(&[]);
    assert!(all_of(&text).contains(&format!("process {} (sleep)", pod.pid())), "{}", all_of(&text));
    assert!(pod.maps().contains(&old) && !pod.maps().contains("(deleted)"), "{}", pod.maps());
    drop(pod);
    node_support::within(10, "the old one is removed", || host.libraries() == [new.as_str()]);
    watch.look_again();
    let log = watch.end();
    assert!(log.contains(&format!("removed {old}")), "{log}");
}

#[test]
fn what_a_container_has_mounted_is_kept_even_if_no_process_has_it_loaded() {
    let host = Host::new("mounted");
    let (one, two) = (host.library("one"), host.library("two"));
    let old = host.installed(&one, "1.0.0");
    let place = host.dir.join("place");
    fs::create_dir(&place).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" \"$1\" && echo mounted && exec sleep 1000"]);
    command.arg(host.lib().join("current")).arg(&place).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut container) = command.spawn() else { return println!("no unshare here: not tried") };
    let mut said = [0; 7];
    let mounted = std::io::Read::read_exact(container.stdout.as_mut().unwrap(), &mut said).is_ok();
    if mounted {
        let watch = host.watch(&two, "2.0.0", &["--host-processes", "yes"]);
        watch.look_again();
        let both = host.check_libraries();
        container.kill().unwrap();
        container.wait().unwrap();
        assert!(both.contains(&old) && both.len() == 2, "what a container has mounted was removed: {both:?}");
        node_support::within(10, "the old one is removed", || host.libraries().len() == 1);
    } else {
        let _ = container.wait();
        println!("no mount namespaces here: not tried");
    }
}

#[test]
fn an_old_library_is_kept_for_its_time() {
    let host = Host::new("grace");
    let (one, two) = (host.library("one"), host.library("two"));
    let old = host.installed(&one, "1.0.0");
    let blind = host.watch(&two, "2.0.0", &["--host-processes", "no", "--blind-grace", "3600"]);
    blind.look_again();
    blind.end();
    assert!(host.check_libraries().contains(&old), "it was removed too early where processes cannot be seen");
    let seeing = host.watch(&two, "2.0.0", &["--host-processes", "yes", "--grace", "3600"]);
    seeing.look_again();
    seeing.end();
    assert!(host.check_libraries().contains(&old), "it was removed too early");
}

/// Says that it is over, also if the test fails: nobody waits for ever.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn many_install_at_once_and_the_link_never_leads_nowhere() {
    let host = Host::new("many");
    let (one, two) = (host.library("one"), host.library("two"));
    let right = [fs::read(&one).unwrap(), fs::read(&two).unwrap()];
    host.installed(&one, "1.0.0");
    let over = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let end = End(&over);
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !over.load(Ordering::Relaxed) {
                let found = fs::read(host.lib().join("current/libration.so")).expect("the link leads nowhere");
                assert!(right.contains(&found), "{} bytes of something else", found.len());
                reads += 1;
                // A link that is away for a moment is seen by who looks often.
                for _ in 0..2000 {
                    fs::read_link(host.lib().join("current")).expect("there is no link");
                }
            }
            reads
        });
        for _ in 0..4 {
            let each = |number: usize| {
                let (library, version) = if number.is_multiple_of(2) { (&one, "1.0.0") } else { (&two, "2.0.0") };
                let mut command = host.node(library, version);
                command.arg("install").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
            };
            let all: Vec<_> = (0..12).map(each).collect();
            for child in all {
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success(), "{}", all_of(&output));
            }
        }
        drop(end);
        reader.join().expect("the reader found nothing wrong")
    });
    assert!(reads > 10, "nothing was read meanwhile");
    assert_eq!(host.check_libraries().len(), 2);
    assert!(host.unfinished().is_empty());
}

#[test]
fn whoever_is_killed_in_the_middle_leaves_the_old_or_the_new() {
    let host = Host::new("killed");
    let libraries = [host.library("one"), host.library("two")];
    let names = libraries.each_ref().map(|library| host.installed(library, "1.0.0"));
    let begun = Instant::now();
    host.installed(&libraries[0], "1.0.0");
    let mut takes = begun.elapsed();
    let (mut old, mut new, mut halfway) = (0, 0, 0);
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..120 {
        let (before, at) = (round % 2, 1 - round % 2);
        assert_eq!(host.installed(&libraries[before], "1.0.0"), names[before]);
        assert!(host.unfinished().is_empty(), "what was unfinished is still there");
        // Mostly it has to be made from nothing.
        if round % 6 < 4 {
            fs::remove_dir_all(host.lib().join(&names[at])).expect("it was there");
        }
        let mut child = host.node(&libraries[at], "1.0.0").arg("install").stdout(Stdio::null()).spawn().unwrap();
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(takes.mul_f64((dice >> 40) as f64 / (1u64 << 24) as f64 * 1.2));
        let _ = child.kill();
        child.wait().unwrap();
        let after = host.current().expect("a link");
        assert!(names.contains(&after), "{after}");
        let complete = host.check_libraries();
        assert!(complete.contains(&after), "the link leads to {after}, and there is {complete:?}");
        assert!(complete.contains(&names[before]), "the old one is gone: {complete:?}");
        halfway += usize::from(!host.unfinished().is_empty());
        // However busy the machine is, some are killed before they have turned the link, and some after.
        if after == names[at] {
            new += 1;
            takes = takes.mul_f64(0.85);
        } else {
            old += 1;
            takes = takes.mul_f64(1.15);
        }
        host.installed(&libraries[at], "1.0.0");
    }
    println!("killed, and the old one was current: {old}, the new one: {new}; with something unfinished: {halfway}");
    assert!(old > 10 && new > 10, "too many were killed too early or too late: {old}, {new}");
}

#[test]
fn a_damaged_library_is_found_and_repaired() {
    let host = Host::new("damaged");
    let library = host.library("one");
    let name = host.installed(&library, "1.0.0");
    let file = host.lib().join(&name).join("libration.so");
    let damages: [(&str, &dyn Fn()); 5] = [
        ("other bytes", &|| {
            let mut bytes = fs::read(&file).unwrap();
            bytes[5000] ^= 1;
            fs::remove_file(&file).unwrap();
            fs::write(&file, bytes).unwrap();
            fs::set_permissions(&file, PermissionsExt::from_mode(0o555)).unwrap();
        }),
        ("empty", &|| {
            fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
            fs::write(&file, "").unwrap();
        }),
        ("removed", &|| fs::remove_file(&file).unwrap()),
        ("not to be read by others", &|| fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap()),
        ("closed directory", &|| {
            fs::set_permissions(file.parent().unwrap(), PermissionsExt::from_mode(0o700)).unwrap();
        }),
    ];
    for (what, damage) in damages {
        damage();
        let status = host.status(&[]);
        assert_eq!(status.status.code(), Some(1), "{what}: {}", all_of(&status));
        assert!(all_of(&status).contains("DAMAGED"), "{what}: {}", all_of(&status));
        let output = host.install(&library, "1.0.0");
        assert!(output.status.success() && all_of(&output).contains("repaired"), "{what}: {}", all_of(&output));
        assert_eq!(host.check_libraries(), [name.as_str()], "{what}");
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o555, 0o755), "{what}");
        assert!(host.status(&[]).status.success(), "{what}");
    }
}

#[test]
fn what_cannot_be_loaded_is_not_installed() {
    let host = Host::new("elf");
    let good = fs::read(host.library("one")).unwrap();
    let bad = host.dir.join("bad.so");
    let mut other_machine = good.clone();
    other_machine[18] = 8;
    for (bytes, says) in [
        (b"not a library".to_vec(), "does not begin as an ELF file"),
        (good[..good.len() / 2].to_vec(), "cut short"),
        (other_machine, "another machine"),
    ] {
        fs::write(&bad, bytes).unwrap();
        let text = refused(&host.install(&bad, "1.0.0"));
        assert!(text.contains(says), "{text}");
    }
    assert!(refused(&host.install(Path::new("/nowhere/libration.so"), "1.0.0")).contains("/nowhere/libration.so"));
    for version in ["../../etc", ".hidden", "a b", ""] {
        let text = refused(&host.install(&host.library("one"), version));
        assert!(text.contains("version"), "{text}");
    }
    assert!(host.listing().is_empty(), "something was installed");
}

#[test]
fn whatever_else_is_in_the_way_is_left_alone_and_named() {
    let library_of = |host: &Host| host.library("one");
    type Obstacle = (&'static str, fn(&Host), &'static str);
    let obstacles: [Obstacle; 7] = [
        ("a file for the region", |host| fs::write(host.regions(), "mine").unwrap(), "regions is no directory"),
        (
            "a link for the region",
            |host| {
                fs::create_dir(host.dir.join("elsewhere")).unwrap();
                std::os::unix::fs::symlink(host.dir.join("elsewhere"), host.regions()).unwrap();
            },
            "regions is a symbolic link",
        ),
        (
            "a file for the root",
            |host| fs::write(host.host().join("ration"), "mine").unwrap(),
            "ration is no directory",
        ),
        (
            "a link for the libraries",
            |host| {
                fs::create_dir(host.host().join("ration")).unwrap();
                std::os::unix::fs::symlink("/tmp", host.lib()).unwrap();
            },
            "lib is a symbolic link",
        ),
        (
            "a directory for the link",
            |host| fs::create_dir_all(host.lib().join("current/x")).unwrap(),
            "current is no symbolic link",
        ),
        (
            "another's region directory",
            |host| {
                fs::create_dir(host.regions()).unwrap();
                std::os::unix::fs::chown(host.regions(), Some(12_345), None).unwrap();
            },
            "belongs to user 12345",
        ),
        (
            "another's library directory",
            |host| {
                fs::create_dir_all(host.lib()).unwrap();
                std::os::unix::fs::chown(host.lib(), Some(12_345), None).unwrap();
            },
            "belongs to user 12345",
        ),
    ];
    for (what, put, says) in obstacles {
        if what.starts_with("another's") && !is_root() {
            println!("{what}: not tried, for only the superuser can make it");
            continue;
        }
        let host = Host::new("obstacle");
        put(&host);
        let before = host.listing();
        let text = refused(&host.install(&library_of(&host), "1.0.0"));
        assert!(text.contains(says), "{what}: {text}");
        for (path, about) in before {
            let now = host.listing().get(&path).cloned();
            // A directory that is rightly ours may get its mode.
            assert!(
                now.as_ref() == Some(&about) || path == "ration" || path == "ration/lib",
                "{what}: {path}: {about} {now:?}"
            );
        }
        assert_eq!(host.status(&[]).status.code(), Some(1), "{what}");
    }
}

#[test]
fn a_region_directory_with_another_mode_is_put_right() {
    let host = Host::new("mode");
    fs::create_dir(host.regions()).unwrap();
    fs::set_permissions(host.regions(), PermissionsExt::from_mode(0o755)).unwrap();
    host.installed(&host.library("one"), "1.0.0");
    assert_eq!(mode(&host.regions()), 0o1777);
}
