//! The regions on the node: who is in them, who can join them, and what dead pods leave.

mod node_support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use node_support::{GPU, Host, OTHER_POD, POD, PUBLIC, REGION, all_of, be_a_tenant, told, within};
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
    assert_eq!(region["file"], format!("{POD}/{REGION}"));
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
        &format!("{POD}/{REGION}: version"),
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
        "ration_container_memory_used_bytes{{gpu=\"GPU-01234567-89ab-cdef-2073-6f6d65677075\",index=\"\",directory=\"{POD}\",\
         namespace=\"team\",pod=\"living\",container=\"main\"}} {:.1}",
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
    let region = Region::open(&host.directory(POD), &GPU).expect("a region");
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
    drop(told(&host.directory(POD)));
    let file = OpenOptions::new().read(true).write(true).open(host.region()).unwrap();
    // A major version that is yet to come.
    file.write_all_at(&[9, 0, 7, 0], 8).unwrap();
    let status = host.status_json();
    let region = &status["regions"][0];
    assert_eq!(
        (&region["joinable"], &region["version"], &region["in_use"]),
        (&false.into(), &"9.7".into(), &true.into())
    );
    let text = region["problem"].as_str().unwrap();
    assert!(text.contains("version 9.7") && text.contains("remove the file when"), "{text}");
    let watch = host.watch(&library, "1.0.0", &["--grace", "3600"]);
    watch.look_again();
    assert!(host.region().exists(), "it was removed while somebody had it open");
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 8).unwrap();
    assert_eq!(bytes, [9, 0, 7, 0], "a region of another version was changed");
    drop(file);
    within(10, "it is removed", || !host.region().exists());
    // The same for what is damaged, and for what is no file.
    fs::write(host.region(), "no region").unwrap();
    within(10, "the damaged one is removed", || !host.region().exists());
    std::os::unix::fs::symlink("/etc/passwd", host.region()).unwrap();
    within(10, "the link is removed", || host.region().symlink_metadata().is_err());
    assert!(fs::metadata("/etc/passwd").is_ok());
    within(10, "the public one goes with it", || !host.directory(POD).join(PUBLIC).exists());
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
    drop(Region::open(&host.directory(POD), &GPU).expect("a region"));
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
    drop(Region::open(&host.directory(POD), &GPU).expect("a region"));
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

#[test]
fn each_pod_is_looked_at_in_its_directory() {
    let host = Host::new("pods");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    let living = host.tenant_in(POD, "team/living/main", 1 << 30);
    host.tenant_in(OTHER_POD, "team/dead/main", 2 << 30).kill();
    // Not looked into: a link, a pipe, and what is no directory.
    let elsewhere = host.dir.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    drop(Region::open(&elsewhere, &GPU).expect("a region"));
    let link = host.regions().join("00000000-0000-4000-8000-000000000000");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    let pipe = host.regions().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // One of noise: pipes and links where files should be, and many names.
    let noise = host.directory("11111111-0000-4000-8000-000000000000");
    assert!(std::process::Command::new("mkfifo").arg(noise.join(REGION)).status().unwrap().success());
    std::os::unix::fs::symlink("/etc/passwd", noise.join(PUBLIC)).unwrap();
    (0..2000).for_each(|number| drop(File::create(noise.join(format!("noise {number}"))).unwrap()));
    // What was made before each pod had a directory.
    let old = host.regions().join(REGION);
    let mut bytes = fs::read(host.region()).unwrap();
    bytes[8] = 1;
    fs::write(&old, &bytes).unwrap();

    let status = host.status_json();
    let files: Vec<&str> =
        status["regions"].as_array().unwrap().iter().map(|it| it["file"].as_str().unwrap()).collect();
    let wanted = [format!("{POD}/{REGION}"), format!("{OTHER_POD}/{REGION}"), REGION.to_owned()];
    // Of too many names, a region's may not be among those that are looked at.
    let of_pods: Vec<&&str> = files.iter().filter(|it| !it.starts_with("1111")).collect();
    assert_eq!(of_pods, wanted.iter().collect::<Vec<_>>(), "{status:#}");
    assert_eq!(status["ready"], true, "what pods leave is not the node's trouble");
    assert_eq!(status["more"], true);
    let old_one = status["regions"].as_array().unwrap().iter().find(|it| it["file"] == REGION).unwrap();
    assert!(old_one["problem"].as_str().unwrap().contains("version 1."), "{old_one}");
    let strangers: Vec<&str> = status["strangers"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(
        strangers.contains(&"00000000-0000-4000-8000-000000000000") && strangers.contains(&"pipe"),
        "{strangers:?}"
    );
    assert_eq!(containers(&status), ["team/living/main", "team/dead/main"]);

    let before = fs::read(elsewhere.join(REGION)).unwrap();
    let watch = host.watch(&library, "1.0.0", &["--host-processes", "no"]);
    let dead = host.directory(OTHER_POD);
    within(10, "the dead pod's are removed", || !dead.join(REGION).exists() && !dead.join(PUBLIC).exists());
    within(10, "the old one is removed", || !old.exists());
    watch.look_again();
    assert!(dead.exists(), "a directory that a pod may still have was removed");
    assert!(
        host.region().exists() && host.directory(POD).join(PUBLIC).exists(),
        "of the living, something was removed"
    );
    assert!(elsewhere.join(REGION).exists() && link.symlink_metadata().is_ok() && pipe.exists());
    assert_eq!(fs::read(elsewhere.join(REGION)).unwrap(), before, "a link was followed");
    assert_eq!(containers(&watch.status()), ["team/living/main"]);
    living.kill();
    let log = watch.end();
    assert!(log.contains(&format!("removed {OTHER_POD}/{REGION}: nobody used it")), "{log}");
}

#[test]
fn looking_makes_nothing_and_tells_nothing() {
    let host = Host::new("looking");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    drop(Region::open(&host.directory(POD), &GPU).expect("a region"));
    let watch = host.watch(&library, "1.0.0", &["--grace", "3600"]);
    watch.look_again();
    assert_eq!(host.status_json()["regions"][0]["joinable"], true);
    let names: Vec<_> = fs::read_dir(host.directory(POD)).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names, [REGION]);
}

#[test]
fn what_is_told_beside_no_region_goes_and_that_of_the_living_stays() {
    let host = Host::new("told");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    let living = told(&host.directory(POD));
    drop(told(&host.directory(OTHER_POD)));
    let (region, public) = (host.directory(OTHER_POD).join(REGION), host.directory(OTHER_POD).join(PUBLIC));
    fs::remove_file(region).unwrap();
    // Somebody listens to it.
    let listener = File::open(&public).unwrap();
    let watch = host.watch(&library, "1.0.0", &[]);
    within(10, "it is removed", || !public.exists());
    watch.look_again();
    assert!(host.directory(POD).join(PUBLIC).exists());
    drop((listener, living));
    let log = watch.end();
    assert!(log.contains(&format!("removed {OTHER_POD}/{PUBLIC}: there was no region beside it")), "{log}");
}

/// A `/proc` in which one process has these directories mounted.
fn proc_with(host: &Host, mounted: &[&str]) -> String {
    let process = host.dir.join("proc/1");
    fs::create_dir_all(&process).expect("room");
    let line = |name: &&str| format!("90 80 0:25 /ration-pods/{name} /run/ration-own rw,nosuid - tmpfs tmpfs rw\n");
    fs::write(process.join("mountinfo"), mounted.iter().map(line).collect::<String>()).expect("room");
    fs::write(process.join("comm"), "python\n").expect("room");
    fs::write(process.join("maps"), "").expect("room");
    host.dir.join("proc").display().to_string()
}

#[test]
fn a_directory_goes_when_no_container_has_it_mounted() {
    let host = Host::new("mounted");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    let (living, gone) = (host.directory(POD), host.directory(OTHER_POD));
    // Of a pod, whatever it left; of others, nothing that is not ours.
    fs::create_dir_all(gone.join("notes/more")).unwrap();
    fs::write(gone.join("notes/more/file"), "x").unwrap();
    let (empty, full) = (host.directory("1000-team%2fpod"), host.directory("somebody"));
    fs::write(full.join("file"), "x").unwrap();
    let proc = proc_with(&host, &[POD]);
    let seeing = ["--host-processes", "yes", "--proc", &proc];
    let watch = host.watch(&library, "1.0.0", &seeing);
    within(10, "what nobody has mounted is removed", || !gone.exists() && !empty.exists());
    watch.look_again();
    assert!(living.exists(), "a directory was removed from under a container");
    assert!(full.join("file").exists());
    proc_with(&host, &[]);
    within(10, "it is removed when its pod has gone", || !living.exists());
    let log = watch.end();
    assert!(log.contains(&format!("removed the directory {OTHER_POD}: no pod used it")), "{log}");
    // Where one process cannot be looked at, nobody is taken for gone.
    let living = host.directory(POD);
    fs::create_dir_all(host.dir.join("proc/2/mountinfo")).unwrap();
    let watch = host.watch(&library, "1.0.0", &seeing);
    watch.look_again();
    watch.end();
    assert!(living.exists());
}

#[test]
fn a_directory_stays_for_long_where_mounts_cannot_be_seen() {
    let host = Host::new("blind");
    let library = host.library("one");
    host.installed(&library, "1.0.0");
    let (empty, used) = (host.directory(POD), host.directory(OTHER_POD));
    let tenant = host.tenant_in(OTHER_POD, "team/pod/main", 1 << 20);
    let watch = host.watch(&library, "1.0.0", &["--host-processes", "no"]);
    watch.look_again();
    watch.end();
    assert!(empty.exists(), "a directory that a pod may still have was removed");
    let _watch = host.watch(&library, "1.0.0", &["--host-processes", "no", "--blind-grace", "2"]);
    // A pod that does something in it is there.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        assert!(empty.exists(), "something came and went there just now");
        fs::write(empty.join("file"), "x").unwrap();
        fs::remove_file(empty.join("file")).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    within(10, "it is removed", || !empty.exists());
    assert!(used.join(REGION).exists(), "it was removed from under a process");
    tenant.kill();
    within(10, "the other is removed, too", || !used.exists());
}
