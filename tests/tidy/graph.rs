//! Who depends on whom, as cargo tells it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::root;

/// What cargo says of the workspace: the packages that a build for this platform uses, and who depends on whom.
pub(crate) struct Graph {
    pub(crate) packages: BTreeMap<String, Package>,
}

pub(crate) struct Package {
    pub(crate) name: String,
    /// Of a member: where it lies, relative to the root of the tree (the root package: `.`).
    pub(crate) dir: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) licence: Option<String>,
    /// What it depends on in any version, and not by a path.
    pub(crate) wildcards: Vec<String>,
    /// On which packages, and as what: `normal`, `build`, `dev`.
    pub(crate) deps: Vec<(String, Vec<String>)>,
}

impl Graph {
    pub(crate) fn read() -> Graph {
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let ask = |more: &[&str]| {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
            cargo.args(["metadata", "--format-version", "1", "--filter-platform", &platform]).args(more);
            cargo.current_dir(root()).output().expect("cargo runs")
        };
        // Whoever built the whole workspace has all that is asked about; the others may have to fetch it.
        let mut output = ask(&["--offline"]);
        if !output.status.success() {
            output = ask(&[]);
        }
        assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
        let members = list(&metadata["workspace_members"]);
        let mut packages = BTreeMap::new();
        for package in list(&metadata["packages"]) {
            let id = string(&package["id"]);
            let dir = members.iter().any(|member| string(member) == id).then(|| {
                let manifest = string(&package["manifest_path"]);
                let dir = Path::new(&manifest).parent().expect("a manifest is in a directory");
                let dir = dir.strip_prefix(string(&metadata["workspace_root"])).expect("members are in the workspace");
                if dir.as_os_str().is_empty() { ".".to_owned() } else { dir.display().to_string() }
            });
            let (source, licence) = (package["source"].as_str(), package["license"].as_str());
            let (source, licence) = (source.map(str::to_owned), licence.map(str::to_owned));
            let any = list(&package["dependencies"]).iter().filter(|it| it["req"] == "*" && it["path"].is_null());
            let wildcards = any.map(|it| string(&it["name"])).collect();
            let name = string(&package["name"]);
            packages.insert(id, Package { name, dir, source, licence, wildcards, deps: Vec::new() });
        }
        for node in list(&metadata["resolve"]["nodes"]) {
            let deps = list(&node["deps"]).iter().map(|dep| {
                let kinds =
                    list(&dep["dep_kinds"]).iter().map(|kind| kind["kind"].as_str().unwrap_or("normal").to_owned());
                (string(&dep["pkg"]), kinds.collect())
            });
            packages.get_mut(&string(&node["id"])).expect("every node is a package").deps = deps.collect();
        }
        Graph { packages }
    }

    pub(crate) fn member(&self, dir: &str) -> &str {
        let found = self.packages.iter().find(|(_, package)| package.dir.as_deref() == Some(dir));
        found.unwrap_or_else(|| panic!("no member in {dir}")).0
    }

    /// What a package depends on by the given kinds, and what that depends on in turn.
    pub(crate) fn reach(&self, from: &str, kinds: &[&str]) -> BTreeSet<&String> {
        let of_kind =
            |dep: &&(String, Vec<String>), wanted: &[&str]| dep.1.iter().any(|kind| wanted.contains(&kind.as_str()));
        let mut reached = BTreeSet::new();
        let mut open: Vec<&String> =
            self.packages[from].deps.iter().filter(|d| of_kind(d, kinds)).map(|d| &d.0).collect();
        while let Some(id) = open.pop() {
            if reached.insert(id) {
                open.extend(self.packages[id].deps.iter().filter(|d| of_kind(d, &["normal", "build"])).map(|d| &d.0));
            }
        }
        reached
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("cargo metadata: a list")
}

fn string(value: &Value) -> String {
    value.as_str().expect("cargo metadata: a string").to_owned()
}
