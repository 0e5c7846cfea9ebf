//! What must not be among the dependencies: `[bans]` of deny.toml, which cargo-deny reads, too.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::graph::Graph;
use super::{read, root};

/// The names in a list of tables `{ crate = "NAME" }` or `{ crate = "NAME@VERSION" }`.
fn named(list: &str) -> Vec<(String, Option<String>)> {
    let text = read("deny.toml");
    let section = text.split("[bans]").nth(1).expect("deny.toml has a section [bans]");
    let start = format!("\n{list} = [");
    let list = section.split(&start).nth(1).and_then(|rest| rest.split("]\n").next()).expect("with that list");
    let crates = list.split("crate = \"").skip(1).map(|rest| rest.split('"').next().expect("a string ends"));
    let split = |it: &str| match it.split_once('@') {
        Some((name, version)) => (name.to_owned(), Some(version.to_owned())),
        None => (it.to_owned(), None),
    };
    crates.map(split).collect()
}

/// What is built into the members, by name and version. What only tests use is not in it.
fn used() -> BTreeSet<(String, String)> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["tree", "--workspace", "--all-features", "--edges", "normal,build", "--prefix", "none"]);
    for processor in ["x86_64", "aarch64"] {
        cargo.args(["--target", &format!("{processor}-unknown-linux-gnu")]);
    }
    let output = cargo.args(["--format", "{p}"]).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let words = text.lines().filter_map(|line| line.split(' ').collect::<Vec<_>>().get(..2).map(<[_]>::to_vec));
    words.map(|it| (it[0].to_owned(), it[1].trim_start_matches('v').to_owned())).collect()
}

#[test]
fn dependencies_are_there_once_and_none_is_banned() {
    let (skipped, banned) = (named("skip"), named("deny"));
    assert!(!skipped.is_empty() && !banned.is_empty(), "deny.toml's lists are not understood");
    let is_in = |list: &[(String, Option<String>)], name: &str, version: &str| {
        let has = |wanted: &String| version == wanted || version.starts_with(&format!("{wanted}."));
        list.iter().any(|(other, wanted)| other == name && wanted.as_ref().is_none_or(has))
    };
    let is_banned = |name: &str| banned.iter().any(|(other, _)| other == name);
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (name, version) in used() {
        if !is_in(&skipped, &name, &version) {
            versions.entry(name).or_default().insert(version);
        }
    }
    assert!(versions.len() > 100, "cargo tree is not understood: {versions:?}");
    let graph = Graph::read();
    // Of these, also what only tests use.
    wrong.extend(graph.packages.values().filter(|it| is_banned(&it.name)).map(|it| format!("{} is banned", it.name)));
    for member in graph.packages.values().filter(|it| it.dir.is_some()) {
        wrong.extend(member.wildcards.iter().map(|of| format!("{} takes any version of {of}", member.name)));
    }
    let several = versions.iter().filter(|(_, all)| all.len() > 1);
    wrong.extend(several.map(|(name, all)| format!("{name} is there in several versions: {all:?}")));
    assert!(wrong.is_empty(), "against deny.toml:\n{}", wrong.join("\n"));
}
