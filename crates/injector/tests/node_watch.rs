//! The program that looks after the node: puts back what is missing, and says how the node is.

mod node_support;

use std::fs;
use std::time::{Duration, Instant};

use node_support::{Host, mode, refused, within};

#[test]
fn what_somebody_removes_is_put_back() {
    let host = Host::new("putback");
    let watch = host.watch(&host.library("one"), "1.0.0", &[]);
    within(10, "it is ready", || watch.get("/readyz").0 == 200);
    let name = host.current().expect("a library");
    fs::remove_file(host.lib().join("current")).unwrap();
    within(10, "the link is back", || host.current().as_ref() == Some(&name));
    fs::remove_dir_all(host.lib().join(&name)).unwrap();
    within(10, "the library is back", || host.lib().join(&name).join("libration.so").exists());
    fs::remove_dir_all(host.host().join("ration")).unwrap();
    within(10, "all of it is back", || host.lib().join("current/libration.so").exists());
    fs::remove_dir_all(host.regions()).unwrap();
    within(10, "the place for regions is back", || host.regions().is_dir() && mode(&host.regions()) == 0o1777);
    watch.look_again();
    assert_eq!(host.check_libraries(), [name.as_str()]);
    assert_eq!(watch.get("/readyz"), (200, "ok\n".to_owned()));
    assert_eq!(watch.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(watch.get("/other").0, 404);
    let before = host.listing();
    let log = watch.end();
    assert!(log.contains("told to end"), "{log}");
    assert_eq!(host.listing(), before, "its end changed something");
}

#[test]
fn what_it_cannot_put_right_is_said_until_it_can() {
    let host = Host::new("notready");
    fs::write(host.regions(), "in the way").unwrap();
    let watch = host.watch(&host.library("one"), "1.0.0", &[]);
    watch.look_again();
    let (code, text) = watch.get("/readyz");
    assert!(code == 503 && text.contains("regions is no directory"), "{code} {text}");
    assert_eq!(watch.get("/healthz").0, 200, "a restart would not help");
    assert!(watch.get("/metrics").1.contains("ration_node_ready 0"));
    assert_eq!(watch.status()["ready"], false);
    assert!(host.current().is_some(), "the library does not depend on the regions");
    fs::remove_file(host.regions()).unwrap();
    within(10, "it is ready", || watch.get("/readyz").0 == 200);
    let log = watch.end();
    assert_eq!(log.matches("regions is no directory").count(), 1, "it is said once:\n{log}");
}

#[test]
fn of_two_at_once_the_later_one_is_right_and_the_earlier_takes_over_when_it_is_gone() {
    let host = Host::new("two");
    let is_current = |version: &str| host.current().is_some_and(|name| name.starts_with(version));
    // Also where a PID namespace keeps them from seeing the host's processes.
    let at_once = ["--blind-grace", "0"];
    let old = host.watch(&host.library("one"), "1.0.0", &at_once);
    within(10, "the old one is current", || is_current("1.0.0-"));
    let new = host.watch(&host.library("two"), "2.0.0", &at_once);
    within(10, "the new one is current", || is_current("2.0.0-"));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        assert!(is_current("2.0.0-"), "the old one took it back");
        std::thread::sleep(Duration::from_millis(2));
    }
    old.look_again();
    new.look_again();
    assert_eq!(host.check_libraries().len(), 2, "one removed what the other wants");
    // A link that leads nowhere is nobody's wish.
    fs::remove_file(host.lib().join("current")).unwrap();
    std::os::unix::fs::symlink("nowhere", host.lib().join("current")).unwrap();
    within(10, "the link is right", || is_current("1.0.0-") || is_current("2.0.0-"));
    new.end();
    within(10, "the one that is left is current", || is_current("1.0.0-"));
    within(10, "the other one is removed", || host.libraries().len() == 1);
    old.end();
}

#[test]
fn a_library_that_cannot_be_loaded_ends_it_at_once() {
    let host = Host::new("badlibrary");
    let bad = host.dir.join("bad.so");
    fs::write(&bad, "no library").unwrap();
    let text = refused(&host.node(&bad, "1.0.0").output().unwrap());
    assert!(text.contains("does not begin as an ELF file"), "{text}");
    assert!(host.listing().is_empty());
}
