//! What a pod gets, to the letter: each file of `tests/mutating` has a configuration, a pod, and what became of it.
//!
//! `RATION_WRITE_GOLDEN=1` writes the last part anew; what changed is then for the reviewer to judge.

use std::collections::BTreeSet;
use std::path::Path;

use ration_injector::config::Config;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::support::{admitted, canonical, config, create, pod_with, yaml};

#[test]
fn pods_come_out_to_the_letter() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutating");
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(&directory).expect("the directory") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a file");
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let parts: Vec<&str> = text.split("\n---\n").collect();
        let [settings, before, ..] = parts.as_slice() else { panic!("{name} has fewer than two parts") };
        let mut reply = admitted(&config(settings), &yaml(before));
        let mark = &mut reply.pod["metadata"]["annotations"]["ration.dev/injected"];
        *mark = json!(mark.as_str().expect("a mark").replace(env!("CARGO_PKG_VERSION"), "VERSION"));
        if std::env::var_os("RATION_WRITE_GOLDEN").is_some() {
            let after = serde_yaml_ng::to_string(&reply.pod).expect("YAML");
            std::fs::write(&path, format!("{settings}\n---\n{before}\n---\n{after}")).expect("written");
        } else {
            let after = parts.get(2).map(|text| plain_yaml(text));
            assert_eq!(Some(&reply.pod), after.as_ref(), "{name} comes out otherwise");
        }
        seen.insert(name);
    }
    assert!(seen.len() >= 8, "{seen:?}");
}

fn plain_yaml(text: &str) -> Value {
    Value::deserialize(serde_yaml_ng::Deserializer::from_str(text)).expect("YAML")
}

#[test]
fn what_is_not_known_here_stays_with_what_it_belongs_to() {
    let text = "delivery: initContainer\nlibrary: {image: example.com/ration:1}";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "newTop": 1,
        "metadata": {"name": "a", "newMeta": {"x": [1, 2]}, "annotations": {"ration.dev/memory": "8Gi"}},
        "spec": {
            "newSpec": {"deep": null},
            "initContainers": [{"name": "first", "newInit": true}, {"name": "second", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            "containers": [{
                "name": "main", "newContainer": 1.5,
                "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1k"}, "newResources": {}},
                "env": [{"name": "A", "newEnv": 1}],
                "volumeMounts": [{"name": "v", "mountPath": "/v", "newMount": "x"}]
            }],
            "volumes": [{"name": "v", "newSource": {"a": 1}}]
        },
        "status": {"newStatus": 1}
    });
    let after = admitted(&config(text), &pod).pod;
    assert_eq!(after["spec"]["initContainers"][0]["name"], "ration-library");
    assert_eq!(after["spec"]["initContainers"][0].get("newInit"), None, "ours has not taken what was another's");
    assert_eq!(after["spec"]["initContainers"][1], pod["spec"]["initContainers"][0]);
    for pointer in [
        "/newTop",
        "/metadata/newMeta",
        "/spec/newSpec",
        "/spec/containers/0/newContainer",
        "/spec/containers/0/resources/newResources",
        "/spec/containers/0/env",
        "/spec/containers/0/volumeMounts/0",
        "/spec/volumes/0",
        "/status",
    ] {
        assert_eq!(after.pointer(pointer), pod.pointer(pointer), "{pointer}");
    }
}

#[test]
fn each_pod_writes_to_its_own_directory_alone_whatever_it_says_it_is() {
    let uid =
        json!({"name": "RATION_POD_UID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}});
    let by_key = |kind: &str| json!({"name": "RATION_POD_UID", "valueFrom": {kind: {"name": "c", "key": "k"}}});
    let forged = json!({"name": "RATION_POD_UID", "value": "../705ab4f5-6393-11e8-b7cc-42010a800002"});
    let other = json!({"name": "A", "value": "$(RATION_POD_UID)"});
    for (env, is_told) in [
        (json!([]), false),
        (json!([other, uid]), false),
        (json!([forged]), true),
        (json!([by_key("configMapKeyRef"), other]), true),
        (json!([uid, forged]), true),
        (json!([forged, uid, by_key("secretKeyRef"), uid]), true),
    ] {
        let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
        pod["spec"]["containers"][0]["env"] = env.clone();
        pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "c"}}]);
        let reply = admitted(&Config::default(), &pod);
        let main = &reply.pod["spec"]["containers"][0];
        let env_after = main["env"].as_array().expect("a list");
        let ours: Vec<&Value> = env_after.iter().filter(|one| one["name"] == "RATION_POD_UID").collect();
        assert_eq!(ours, [&uid], "{env}");
        let others = |env: &Value| env.as_array().expect("a list").iter().filter(|one| one["name"] == "A").count();
        assert_eq!(others(&env), others(&main["env"]), "{env}");
        assert_eq!(reply.warnings.iter().any(|it| it.contains("RATION_POD_UID")), is_told, "{:?}", reply.warnings);
        let mounts: Vec<&Value> = main["volumeMounts"].as_array().expect("a list").iter().collect();
        let of_region: Vec<&&Value> = mounts.iter().filter(|mount| mount["name"] == "ration-region").collect();
        let wanted = [
            &json!({"name": "ration-region", "mountPath": "/run/ration", "readOnly": true}),
            &json!({"name": "ration-region", "mountPath": "/run/ration-own", "subPathExpr": "$(RATION_POD_UID)"}),
        ];
        assert_eq!(of_region.into_iter().copied().collect::<Vec<_>>(), wanted);
    }
    // One that was injected when all pods wrote to one directory, and is copied.
    let mut copy = admitted(&Config::default(), &pod_with(&[("ration.dev/memory", "8Gi")])).pod;
    let fresh = copy.clone();
    copy["spec"]["containers"][0]["env"] = json!([]);
    copy["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "ration-region", "mountPath": "/run/ration"}]);
    copy["spec"]["volumes"] = json!([{"name": "ration-region", "hostPath": {"path": "/run/ration"}}]);
    let after = admitted(&Config::default(), &copy).pod;
    assert_eq!(after["spec"]["containers"], fresh["spec"]["containers"]);
    let region = after["spec"]["volumes"].as_array().expect("a list").iter().find(|it| it["name"] == "ration-region");
    assert_eq!(region.expect("the region")["hostPath"]["path"], "/run/ration-pods");
    // One that has the region for itself needs no name for it, and what it says is its own business.
    let apart = config("delivery: image\nlibrary: {image: example.com/ration:1}");
    let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    pod["spec"]["containers"][0]["env"] = json!([forged, uid]);
    let main = admitted(&apart, &pod).pod["spec"]["containers"][0].clone();
    assert_eq!(main["env"], json!([forged]));
    assert!(main["volumeMounts"].as_array().expect("a list").iter().all(|it| it.get("subPathExpr").is_none()));
    assert!(
        main["volumeMounts"]
            .as_array()
            .expect("a list")
            .contains(&json!({"name": "ration-region", "mountPath": "/run/ration"}))
    );
}

#[test]
fn a_copy_of_a_running_pod_follows_the_configuration_of_today() {
    let ways = [
        "{}",
        "preload: env",
        "delivery: image\nlibrary: {image: example.com/ration:1}",
        "delivery: initContainer\nlibrary: {image: example.com/ration:1}",
    ];
    let pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    for first in ways {
        let copy = admitted(&config(first), &pod).pod;
        for second in ways {
            let fresh = admitted(&config(second), &pod).pod;
            let reply = create(&config(second), &copy);
            if first.contains("initContainer") && !second.contains("initContainer") {
                assert!(reply.message.contains("remove or rename the container"), "{}", reply.message);
                continue;
            }
            let names = |pod: &Value, pointer: &str, field: &str| -> BTreeSet<String> {
                let list = pod.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
                list.map(|one| one[field].as_str().unwrap_or("").to_owned()).collect()
            };
            for (pointer, field) in [
                ("/spec/volumes", "name"),
                ("/spec/initContainers", "name"),
                ("/spec/containers/0/volumeMounts", "mountPath"),
            ] {
                assert_eq!(names(&reply.pod, pointer, field), names(&fresh, pointer, field), "{first} then {second}");
            }
            assert_eq!(reply.pod["metadata"], fresh["metadata"]);
            let mounts = |pod: &Value| -> BTreeSet<String> {
                let list = pod["spec"]["containers"][0]["volumeMounts"].as_array().expect("a list");
                list.iter().map(Value::to_string).collect()
            };
            assert_eq!(mounts(&reply.pod), mounts(&fresh), "{first} then {second}");
            let has_uid = |pod: &Value| names(pod, "/spec/containers/0/env", "name").contains("RATION_POD_UID");
            assert_eq!(has_uid(&reply.pod), has_uid(&fresh), "{first} then {second}");
            for volume in fresh["spec"]["volumes"].as_array().expect("volumes") {
                assert!(
                    reply.pod["spec"]["volumes"].as_array().expect("volumes").contains(volume),
                    "{first} then {second}"
                );
            }
        }
    }
}

#[test]
fn the_copying_container_comes_before_all_that_need_the_library() {
    let text = "delivery: initContainer\nlibrary: {image: example.com/ration:1}";
    let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    pod["spec"]["initContainers"] = json!([{"name": "train", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]);
    let mut after = admitted(&config(text), &pod).pod;
    let names = |pod: &Value| -> Vec<String> {
        let list = pod["spec"]["initContainers"].as_array().expect("a list");
        list.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&after), ["ration-library", "train"]);
    after["spec"]["initContainers"].as_array_mut().expect("a list").insert(0, json!({"name": "mesh"}));
    assert_eq!(
        names(&admitted(&config(text), &after).pod),
        ["mesh", "ration-library", "train"],
        "another webhook's may be first"
    );
    after["spec"]["initContainers"].as_array_mut().expect("a list").reverse();
    assert_eq!(
        names(&admitted(&config(text), &after).pod),
        ["ration-library", "train", "mesh"],
        "but not one with a GPU"
    );
}

#[test]
fn what_the_api_server_fills_in_is_filled_in_already() {
    let text = "delivery: initContainer\nlibrary: {image: example.com/ration:1}";
    let after = admitted(&config(text), &pod_with(&[("ration.dev/memory", "8Gi")])).pod;
    let quota =
        after["spec"]["volumes"].as_array().and_then(|list| list.iter().find(|one| one["name"] == "ration-quota-main"));
    let quota = &quota.expect("the quota's volume")["downwardAPI"];
    assert_eq!(quota["defaultMode"], 0o444);
    assert!(quota["items"].as_array().expect("items").iter().all(|item| item["fieldRef"]["apiVersion"] == "v1"));
    let init = &after["spec"]["initContainers"][0];
    for field in ["imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"] {
        assert!(init[field].is_string(), "{field}");
    }
    assert_eq!(init["resources"]["limits"], init["resources"]["requests"]);
}

#[test]
fn the_audit_log_says_what_was_injected() {
    let reply = admitted(&Config::default(), &pod_with(&[("ration.dev/memory", "8Gi"), ("ration.dev/compute", "30%")]));
    assert_eq!(reply.audit["injected"], "main: memory=8GiB compute-request=30% compute-limit=30%");
    assert_eq!(reply.summary, "create team-a/trainer: main: memory=8GiB compute-request=30% compute-limit=30%");
    let mark = reply.pod["metadata"]["annotations"]["ration.dev/injected"].as_str().expect("a text");
    assert_eq!(mark, format!("{} hostPath main", env!("CARGO_PKG_VERSION")));
}

#[test]
fn long_names_of_containers_fit() {
    let (one, other) = ("c".repeat(62) + "1", "c".repeat(62) + "2");
    let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    pod["spec"]["containers"] = json!([
        {"name": one, "resources": {"limits": {"nvidia.com/gpu": "1"}}},
        {"name": other, "resources": {"limits": {"nvidia.com/gpu": "1"}}},
    ]);
    let after = admitted(&Config::default(), &pod).pod;
    let volumes = after["spec"]["volumes"].as_array().expect("a list");
    assert_eq!(volumes.len(), 4);
    assert!(volumes.iter().all(|volume| volume["name"].as_str().is_some_and(|name| name.len() <= 63)));
    let annotations = after["metadata"]["annotations"].as_object().expect("annotations");
    assert!(annotations.keys().all(|name| name.len() <= "ration.dev/".len() + 63));
    let mut pod = pod.clone();
    canonical(&mut pod);
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = json!("1k");
    pod["metadata"]["annotations"] = json!({});
    let reply = create(&Config::default(), &pod);
    assert!(reply.message.contains("too long to translate"), "{}", reply.message);
}
