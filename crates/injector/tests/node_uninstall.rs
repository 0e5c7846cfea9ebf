//! Uninstalling leaves the node as it was, and is not done to those who use it.

mod node_support;

use std::fs;
use std::process::Command;

use node_support::{Host, OTHER_POD, POD, PUBLIC, Pod, REGION, all_of, be_a_tenant, mode, refused};

#[test]
#[ignore = "a process that other tests start"]
fn a_tenant() {
    be_a_tenant();
}

#[test]
fn nothing_is_left() {
    let host = Host::new("nothing");
    fs::write(host.host().join("other"), "somebody else's").unwrap();
    let before = host.listing();
    host.installed(&host.library("one"), "1.0.0");
    host.installed(&host.library("two"), "2.0.0");
    host.tenant("team/dead/main", 1 << 30).kill();
    for dir in [host.regions(), host.directory(POD)] {
        fs::write(dir.join(".gpu-01234567-89ab-cdef-2073-6f6d65677075.1.0.a.b.c"), "half").unwrap();
    }
    // Of a pod that has not used its GPU, of one whose region is gone, and what was there before each pod had its directory.
    host.directory(OTHER_POD);
    fs::write(host.directory("third").join(PUBLIC), "told").unwrap();
    fs::write(host.regions().join(REGION), "old").unwrap();
    fs::create_dir(host.lib().join(".tmp-left")).unwrap();
    let output = host.uninstall(&[]);
    assert!(output.status.success(), "{}", all_of(&output));
    assert_eq!(host.listing(), before, "{}", all_of(&output));
    let again = host.uninstall(&[]);
    assert!(again.status.success() && all_of(&again).contains("nothing of ration"), "{}", all_of(&again));
    assert_eq!(host.listing(), before);
}

#[test]
fn what_is_not_ours_is_left_and_said() {
    let host = Host::new("notours");
    host.installed(&host.library("one"), "1.0.0");
    fs::write(host.lib().join("notes"), "mine").unwrap();
    fs::write(host.regions().join("notes"), "mine").unwrap();
    fs::write(host.directory(POD).join("notes"), "mine").unwrap();
    let output = host.uninstall(&[]);
    assert!(output.status.success(), "{}", all_of(&output));
    assert_eq!(all_of(&output).matches("not ours").count(), 3, "{}", all_of(&output));
    let left: Vec<String> = host.listing().into_keys().collect();
    assert_eq!(
        left,
        [
            "ration",
            "ration/lib",
            "ration/lib/notes",
            "regions",
            &format!("regions/{POD}"),
            &format!("regions/{POD}/notes"),
            "regions/notes"
        ]
    );
}

#[test]
fn a_tenant_is_not_left_without() {
    let host = Host::new("tenant");
    host.installed(&host.library("one"), "1.0.0");
    let tenant = host.tenant("team/pod/main", 1 << 30);
    let before = host.listing();
    let text = refused(&host.uninstall(&[]));
    assert!(text.contains("container team/pod/main") && text.contains(&tenant.child.id().to_string()), "{text}");
    assert!(text.contains("--force"), "{text}");
    assert_eq!(host.listing(), before, "it refused, and did something all the same");
    let output = host.uninstall(&["--force"]);
    assert!(output.status.success(), "{}", all_of(&output));
    assert!(host.listing().is_empty(), "{:?}", host.listing());
}

#[test]
fn a_pod_that_has_the_library_is_not_left_without() {
    let host = Host::new("pod");
    host.installed(&host.library("one"), "1.0.0");
    let pod = Pod::with(&host.lib().join("current/libration.so"));
    let text = refused(&host.uninstall(&[]));
    assert!(text.contains(&format!("process {} (sleep)", pod.pid())), "{text}");
    drop(pod);
    let output = host.uninstall(&[]);
    assert!(output.status.success(), "{}", all_of(&output));
    assert!(host.listing().is_empty());
}

#[test]
fn a_running_node_process_would_put_it_back() {
    let host = Host::new("running");
    let watch = host.watch(&host.library("one"), "1.0.0", &[]);
    watch.look_again();
    let text = refused(&host.uninstall(&[]));
    assert!(text.contains("DaemonSet"), "{text}");
    watch.end();
    assert!(host.uninstall(&[]).status.success());
    assert!(host.listing().is_empty());
}

#[test]
fn a_mount_point_is_left_empty_and_closed() {
    let host = Host::new("mountpoint");
    host.installed(&host.library("one"), "1.0.0");
    let (root, regions) = (host.host().join("ration"), host.regions());
    // As in the pod of the DaemonSet, to which both directories are mounted.
    let script = "mount --bind \"$1\" \"$1\" && mount --bind \"$2\" \"$2\" || exit 77; \
                  exec \"$0\" node uninstall --root \"$1\" --region-dir \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_ration-injector")]).args([&root, &regions]);
    let output = command.output();
    let Some(output) =
        output.ok().filter(|it| it.status.success() || it.status.code() == Some(1) && it.stderr.starts_with(b"ration"))
    else {
        return println!("no mount namespaces here: not tried");
    };
    assert!(output.status.success(), "{}", all_of(&output));
    assert_eq!(all_of(&output).matches("mount point").count(), 2, "{}", all_of(&output));
    assert_eq!(host.listing().into_keys().collect::<Vec<_>>(), ["ration", "regions"]);
    assert_eq!(mode(&regions), 0o755, "a directory that everybody may write to was left");
}

#[test]
fn what_was_never_ours_is_not_removed() {
    let host = Host::new("never");
    fs::write(host.host().join("ration"), "a file").unwrap();
    fs::create_dir(host.dir.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(host.dir.join("elsewhere"), host.regions()).unwrap();
    let before = host.listing();
    refused(&host.uninstall(&["--force"]));
    assert_eq!(host.listing(), before);
}
