//! Every example is let in, and gets what its comment says.

use std::path::Path;

use ration_injector::config::Config;
use serde::Deserialize as _;
use serde_json::Value;

use crate::support::{admitted, canonical, config, gets};

/// The pods of a manifest: itself, or the template of what makes pods.
fn pod(mut manifest: Value) -> Option<Value> {
    canonical(&mut manifest);
    match manifest["kind"].as_str()? {
        "Pod" => Some(manifest),
        "Deployment" | "Job" | "StatefulSet" => {
            let mut pod = manifest["spec"]["template"].take();
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            Some(pod)
        }
        _ => None,
    }
}

#[test]
fn each_gets_what_its_comment_says() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut pods = 0;
    let mut files: Vec<_> =
        std::fs::read_dir(directory).expect("examples/").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    for path in files.iter().filter(|path| path.extension().is_some_and(|ending| ending == "yaml")) {
        let name = path.display();
        let text = std::fs::read_to_string(path).expect("a file");
        assert!(text.starts_with("# "), "{name} does not begin with what it shows");
        let settings = text.lines().find_map(|line| line.strip_prefix("# with: ")).unwrap_or("{}");
        let rules: Config = config(settings);
        let documents = serde_yaml_ng::Deserializer::from_str(&text);
        let documents: Vec<Value> = documents.map(|one| Value::deserialize(one).expect("YAML")).collect();
        let found: Vec<Value> = documents.into_iter().filter_map(pod).map(|pod| admitted(&rules, &pod).pod).collect();
        let mut said = 0;
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("# gets: ")) {
            let (container, quota) = line.split_once(": ").unwrap_or_else(|| panic!("{name}: {line}"));
            let annotation = ration_injector::mutate::quota_annotation(container);
            let with = |pod: &&Value| pod["metadata"]["annotations"].get(&annotation).is_some();
            let any = found.iter().filter(with).any(|pod| gets(pod, container) == quota.trim());
            assert!(any, "{name}: no pod has a container {container} that gets {quota}");
            said += 1;
        }
        let containers: usize = found
            .iter()
            .map(|pod| pod["metadata"]["annotations"].as_object().into_iter().flatten())
            .map(|annotations| annotations.filter(|(key, _)| key.starts_with("ration.dev/quota.")).count())
            .sum();
        assert_eq!(said, containers, "{name}: each container with a slice has a comment that says what it gets");
        pods += found.len();
    }
    assert!(pods >= 15, "{pods} pods in examples/");
}
