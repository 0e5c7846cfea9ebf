//! The regions on the node: who is in them, who can join them, and what dead pods leave.

mod node_support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use node_support::{GPU, Host, REGION, all_of, be_a_tenant, within};
use ration_region::Region;

#[test]
#[ignore = "a process that other tests start"]
fn a_tenant() {
    be_a_tenant();
}

fn containers(status: &serde_json::Value) -> Vec<String> {
    let regions = status["regions"].as_array().expect("regions").iter();
    let containers = regions.flat_map(|region| region["containers"].as_array().expect("containers").clone());
    containers.map(|container| container["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn status_says_who_is_in() {
    let host = Host::new("status");
    host.installed(&host.library("one"), "1.0.0");
    let tenant = host.tenant("team/pod/main", 3 << 30);
    let status = host.status_json();
    assert_eq!(status["ready"], true);
    assert_eq!(status["libraries"][0]["current"], true);
    let region = &status["regions"][0];
    assert_eq!(region["gpu"], "01234567-89ab-cdef-2073-6f6d65677075");
    assert_eq!(region["version"], format!("{}.{}", ration_region::MAJOR, ration_region::MINOR));
    assert_eq!((&region["joinable"], &region["in_use"]), (&true.into(), &true.into()));
    assert_eq!(region["memory_total"], 80u64 << 30);
    let container = &region["containers"][0];
    assert_eq!(container["name"], "team/pod/main");
    assert_eq!((&container["memory_used"], &container["memory_limit"]), (&(3u64 << 30).into(), &(8u64 << 30).into()));
    assert_eq!(container["compute_limit_ppm"], 1_000_000);
    assert_eq!(container["processes"][0]["pid"], tenant.child.id());
    let text = String::from_utf8(host.status(&[]).stdout).unwrap();
    for part in [
        "the node is ready",
        "can be joined, in use, 80.0 GiB",
        "team/pod/main: 1 processes alive, 0 dead",
        "memory: 3.0 GiB of 8.0 GiB",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    tenant.kill();
    let text = String::from_utf8(host.status(&[]).stdout).unwrap();
    assert!(text.contains("team/pod/main: 0 processes alive, 1 dead"), "{text}");
}

#[test]
fn status_of_a_bare_node_says_what_is_missing() {
    let host = Host::new("bare");
    let status = host.status(&[]);
    let text = all_of(&status);
    assert_eq!(status.status.code(), Some(1), "{text}");
    assert!(
        text.contains("NOT ready") && text.contains("no library is installed") && text.contains("is not there"),
        "{text}"
    );
    assert!(host.listing().is_empty(), "looking changed something");
}

#[test]
fn the_dead_are_reaped_and_the_living_are_not() {
    let host = Host::new("reap");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    let living = host.tenant("team/living/main", 1 << 30);
    // In the living one's container, a dead process is the living one's business.
    host.tenant("team/living/main", 1 << 20).kill();
    host.tenant("team/dead/main", 2 << 30).kill();
    let before = fs::metadata(host.region()).map(|it| std::os::unix::fs::MetadataExt::ino(&it)).unwrap();
    let watch = host.watch(&library, "1.0.0", &[]);
    within(10, "the dead one is forgotten", || containers(&watch.status()) == ["team/living/main"]);
    watch.look_again();
    let container = watch.status()["regions"][0]["containers"][0].clone();
    assert_eq!(container["memory_used"], (1u64 << 30) + (1 << 20), "what the living account for was touched");
    assert_eq!(container["processes"].as_array().unwrap().len(), 2);
    let after = fs::metadata(host.region()).map(|it| std::os::unix::fs::MetadataExt::ino(&it)).unwrap();
    assert_eq!(before, after, "a region that is in use was replaced");
    let (_, metrics) = watch.get("/metrics");
    let used = format!(
        "ration_container_memory_used_bytes{{gpu=\"01234567-89ab-cdef-2073-6f6d65677075\",container=\"team/living/main\"}} {:.1}",
        ((1u64 << 30) + (1 << 20)) as f64
    );
    assert!(metrics.contains(&used), "{used} is not in\n{metrics}");
    assert!(metrics.contains("ration_node_ready 1"), "{metrics}");
    // With the last of them, the region goes too.
    living.kill();
    within(10, "the region is removed", || !host.region().exists());
    let log = watch.end();
    assert!(log.contains("forgot 1 dead processes of team/dead/main, which had held 2147483648 bytes"), "{log}");
}

#[test]
fn what_is_unused_is_left_for_its_time() {
    let host = Host::new("patience");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    host.tenant("team/dead/main", 2 << 30).kill();
    let draft = host.regions().join(".gpu-01234567-89ab-cdef-2073-6f6d65677075.1.0.a.b.c");
    fs::write(&draft, "half").unwrap();
    let before = host.listing();
    let watch = host.watch(&library, "1.0.0", &["--grace", "3600"]);
    watch.look_again();
    assert_eq!(containers(&watch.status()), ["team/dead/main"]);
    watch.end();
    assert_eq!(host.listing(), before, "it was not left for its time");
}

#[test]
fn a_region_that_is_mapped_but_empty_is_kept() {
    let host = Host::new("mapped");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    // As a process that has opened it, and has not joined yet.
    let region = Region::open(&host.regions(), &GPU).expect("a region");
    let watch = host.watch(&library, "1.0.0", &[]);
    watch.look_again();
    assert!(host.region().exists(), "a region was removed from under a process that has it mapped");
    drop(region);
    within(10, "the region is removed", || !host.region().exists());
}

#[test]
fn regions_that_nobody_can_join_are_named_and_go_when_nobody_uses_them() {
    let host = Host::new("versions");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    drop(Region::open(&host.regions(), &GPU).expect("a region"));
    let file = OpenOptions::new().read(true).write(true).open(host.region()).unwrap();
    // A major version that is yet to come.
    file.write_all_at(&[2, 0, 7, 0], 8).unwrap();
    let status = host.status_json();
    let region = &status["regions"][0];
    assert_eq!(
        (&region["joinable"], &region["version"], &region["in_use"]),
        (&false.into(), &"2.7".into(), &true.into())
    );
    let text = region["problem"].as_str().unwrap();
    assert!(text.contains("version 2.7") && text.contains("remove the file when"), "{text}");
    let watch = host.watch(&library, "1.0.0", &["--grace", "3600"]);
    watch.look_again();
    assert!(host.region().exists(), "it was removed while somebody had it open");
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 8).unwrap();
    assert_eq!(bytes, [2, 0, 7, 0], "a region of another version was changed");
    drop(file);
    within(10, "it is removed", || !host.region().exists());
    // The same for what is damaged, and for what is no file.
    fs::write(host.region(), "no region").unwrap();
    within(10, "the damaged one is removed", || !host.region().exists());
    std::os::unix::fs::symlink("/etc/passwd", host.region()).unwrap();
    within(10, "the link is removed", || host.region().symlink_metadata().is_err());
    assert!(fs::metadata("/etc/passwd").is_ok());
    fs::create_dir_all(host.region().join("full")).unwrap();
    watch.look_again();
    assert!(host.region().join("full").exists(), "a directory with something in it was removed");
    let region = watch.status()["regions"][0].clone();
    assert_eq!(region["joinable"], false);
    assert_eq!(watch.get("/readyz").0, 200, "one GPU's trouble is not the node's");
}

#[test]
fn a_life_that_is_only_written_down_keeps_nothing() {
    let host = Host::new("claims");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    host.tenant("team/dead/main", 1 << 30).kill();
    // As somebody who wants the region to stay for ever: the first process's life word says that it is there.
    let file = OpenOptions::new().write(true).open(host.region()).unwrap();
    file.write_all_at(&12_345u32.to_le_bytes(), 69_632).unwrap();
    drop(file);
    assert_eq!(host.status_json()["regions"][0]["in_use"], true);
    let _watch = host.watch(&library, "1.0.0", &[]);
    within(10, "the region is removed", || !host.region().exists());
}

#[test]
fn a_newer_minor_version_can_be_joined_and_is_said() {
    let host = Host::new("minor");
    host.installed(&host.library("one"), "1.0.0");
    drop(Region::open(&host.regions(), &GPU).expect("a region"));
    let newer = ration_region::MINOR + 1;
    let file = OpenOptions::new().write(true).open(host.region()).unwrap();
    file.write_all_at(&newer.to_le_bytes(), 10).unwrap();
    let region = host.status_json()["regions"][0].clone();
    assert_eq!(
        (&region["joinable"], &region["version"]),
        (&true.into(), &format!("{}.{newer}", ration_region::MAJOR).into())
    );
    assert!(region["problem"].as_str().unwrap().contains("newer library"), "{region}");
}

#[test]
fn a_region_that_is_cut_short_while_it_is_read_ends_nobody() {
    let host = Host::new("short");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    drop(Region::open(&host.regions(), &GPU).expect("a region"));
    let begin = fs::read(host.region()).unwrap();
    let watch = host.watch(&library, "1.0.0", &["--grace", "3600", "--every", "0.05"]);
    let end = Instant::now() + Duration::from_secs(4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = OpenOptions::new().write(true).open(host.region()).unwrap();
            while Instant::now() < end {
                file.set_len(0).unwrap();
                file.set_len(begin.len() as u64).unwrap();
                file.write_all_at(&begin, 0).unwrap();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        while Instant::now() < end {
            let status = host.status(&["--json"]);
            assert_eq!(status.status.code(), Some(0), "{}", all_of(&status));
        }
    });
    watch.look_again();
    watch.end();
}

#[test]
fn strangers_in_the_directory_are_left_alone() {
    let host = Host::new("strangers");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    let stranger = host.regions().join("somebody's notes");
    File::create(&stranger).unwrap();
    let draft = host.regions().join(".gpu-01234567-89ab-cdef-2073-6f6d65677075.1.0.a.b.c");
    let held = File::create(&draft).unwrap();
    let watch = host.watch(&library, "1.0.0", &[]);
    watch.look_again();
    assert!(draft.exists(), "what somebody is writing was removed");
    drop(held);
    within(10, "what nobody finishes is removed", || !draft.exists());
    assert!(stranger.exists());
    assert_eq!(watch.status()["strangers"][0], "somebody's notes");
    assert!(!host.regions().join(REGION).exists(), "looking made a region");
}
