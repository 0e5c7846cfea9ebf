//! Changes to a pod's JSON. What is not named is not touched, and what is as it should be is not written again.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, Volume, VolumeMount};
use serde_json::{Map, Value, json};

use super::{LIBRARY, guard};

/// A field as an object, made if it is not there or null.
fn object<'a>(at: &'a mut Value, field: &str) -> Option<&'a mut Map<String, Value>> {
    let field = at.as_object_mut()?.entry(field).or_insert(Value::Null);
    if field.is_null() {
        *field = json!({});
    }
    field.as_object_mut()
}

/// A field as a list, likewise.
fn list<'a>(at: &'a mut Value, field: &str) -> Option<&'a mut Vec<Value>> {
    let field = at.as_object_mut()?.entry(field).or_insert(Value::Null);
    if field.is_null() {
        *field = json!([]);
    }
    field.as_array_mut()
}

/// The element of a list of the spec.
pub(crate) fn element<'a>(pod: &'a mut Value, field: &str, index: usize) -> Option<&'a mut Value> {
    pod.get_mut("spec")?.get_mut(field)?.get_mut(index)
}

/// Sets annotations.
pub(crate) fn set_annotations(pod: &mut Value, annotations: &BTreeMap<String, String>) {
    object(pod, "metadata");
    let Some(found) = pod.get_mut("metadata").and_then(|metadata| object(metadata, "annotations")) else { return };
    for (name, value) in annotations {
        found.insert(name.clone(), json!(value));
    }
}

/// Sets a label.
pub(crate) fn set_label(pod: &mut Value, name: &str, value: &str) {
    object(pod, "metadata");
    if let Some(found) = pod.get_mut("metadata").and_then(|metadata| object(metadata, "labels")) {
        found.insert(name.to_owned(), json!(value));
    }
}

/// Removes an annotation.
pub(crate) fn remove_annotation(pod: &mut Value, name: &str) {
    if let Some(found) = pod.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        found.remove(name);
    }
}

/// Sees to it that the pod has this volume, known by its name.
pub(crate) fn ensure_volume(pod: &mut Value, volume: &Volume) {
    let Ok(wanted) = serde_json::to_value(volume) else { return };
    let Some(volumes) = pod.get_mut("spec").and_then(|spec| list(spec, "volumes")) else { return };
    match volumes.iter_mut().find(|found| found.get("name") == wanted.get("name")) {
        Some(found) if *found == wanted => {}
        Some(found) => *found = wanted,
        None => volumes.push(wanted),
    }
}

/// Sees to it that the pod has this init container before the one at `before`; first of all, if it was not there.
pub(crate) fn ensure_init_container(pod: &mut Value, container: &Container, before: Option<usize>) {
    let Ok(wanted) = serde_json::to_value(container) else { return };
    let Some(containers) = pod.get_mut("spec").and_then(|spec| list(spec, "initContainers")) else { return };
    let found = containers.iter().position(|found| found.get("name") == wanted.get("name"));
    match found {
        Some(at) if before.is_none_or(|before| at < before) => {
            if let Some(found) = containers.get_mut(at).filter(|found| **found != wanted) {
                *found = wanted;
            }
            return;
        }
        Some(at) => drop(containers.remove(at)),
        None => {}
    }
    containers.insert(0, wanted);
}

/// Sees to it that a container has these mounts, each once, and no others of the injector's volumes or in its places, in
/// however many ways a path can be written.
pub(crate) fn ensure_mounts(container: &mut Value, wanted: &[VolumeMount]) {
    let Some(mounts) = list(container, "volumeMounts") else { return };
    let mut missing: Vec<Value> = wanted.iter().filter_map(|mount| serde_json::to_value(mount).ok()).collect();
    mounts.retain(|mount| {
        if let Some(at) = missing.iter().position(|wanted| wanted == mount) {
            missing.remove(at);
            return true;
        }
        let text = |field| mount.get(field).and_then(Value::as_str).unwrap_or("");
        let path = guard::plain_path(text("mountPath"));
        !guard::is_reserved(text("name")) && !wanted.iter().any(|wanted| wanted.mount_path == path)
    });
    mounts.append(&mut missing);
}

/// Sees to it that a container has this variable, once and from nowhere else; or that it does not have it, if it is not wanted.
/// Another one of that name is the pod's own where ours is not wanted.
pub(crate) fn ensure_variable(container: &mut Value, variable: &EnvVar, is_wanted: bool) {
    let Ok(ours) = serde_json::to_value(variable) else { return };
    if !is_wanted {
        if let Some(env) = container.get_mut("env").and_then(Value::as_array_mut) {
            env.retain(|one| *one != ours);
        }
        return;
    }
    let Some(env) = list(container, "env") else { return };
    let mut is_there = false;
    env.retain(|one| one.get("name") != ours.get("name") || (*one == ours && !std::mem::replace(&mut is_there, true)));
    if !is_there {
        env.push(ours);
    }
}

/// Puts the library first in a container's `LD_PRELOAD`. Of several entries, the last is the one that counts.
pub(crate) fn preload(container: &mut Value) {
    let Some(env) = list(container, "env") else { return };
    let is_preload = |one: &Value| one.get("name").and_then(Value::as_str) == Some("LD_PRELOAD");
    match env.iter_mut().rev().find(|one| is_preload(one)) {
        Some(found) => {
            let merged = merged(found.get("value").and_then(Value::as_str).unwrap_or(""));
            if let Some(found) = found.as_object_mut() {
                found.insert("value".to_owned(), json!(merged));
            }
        }
        None => env.push(json!({"name": "LD_PRELOAD", "value": LIBRARY})),
    }
}

/// The dynamic linker takes colons and spaces between libraries.
fn merged(value: &str) -> String {
    let others: Vec<&str> =
        value.split([':', ' ', '\t', '\n']).filter(|one| !one.is_empty() && *one != LIBRARY).collect();
    std::iter::once(LIBRARY).chain(others).collect::<Vec<_>>().join(":")
}

/// Removes resources from a container's limits and requests.
pub(crate) fn remove_resources(container: &mut Value, names: &[String]) {
    for field in ["limits", "requests"] {
        let found = container.get_mut("resources").and_then(|resources| resources.get_mut(field));
        if let Some(found) = found.and_then(Value::as_object_mut) {
            found.retain(|name, _| !names.contains(name));
        }
    }
}

/// Adds a resource to both, as the API server would fill in the one from the other.
pub(crate) fn add_resource(container: &mut Value, name: &str, amount: u64) {
    object(container, "resources");
    let Some(resources) = container.get_mut("resources") else { return };
    for field in ["limits", "requests"] {
        if let Some(found) = object(resources, field) {
            found.insert(name.to_owned(), json!(amount.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preloads_are_merged_with_ours_first() {
        for (before, after) in [
            ("", "/usr/local/ration/libration.so"),
            ("/lib/a.so", "/usr/local/ration/libration.so:/lib/a.so"),
            ("/lib/a.so /lib/b.so", "/usr/local/ration/libration.so:/lib/a.so:/lib/b.so"),
            ("/lib/a.so:/usr/local/ration/libration.so", "/usr/local/ration/libration.so:/lib/a.so"),
            ("/usr/local/ration/libration.so:/lib/a.so", "/usr/local/ration/libration.so:/lib/a.so"),
        ] {
            assert_eq!(merged(before), after, "{before}");
            assert_eq!(merged(&merged(before)), merged(before));
        }
    }

    #[test]
    fn the_last_of_several_preloads_is_the_one_that_counts() {
        let mut container = json!({"env": [
            {"name": "LD_PRELOAD", "value": "/lib/a.so"},
            {"name": "X", "value": "1"},
            {"name": "LD_PRELOAD", "value": "/lib/b.so", "newer": true},
        ]});
        preload(&mut container);
        let expected = json!({"env": [
            {"name": "LD_PRELOAD", "value": "/lib/a.so"},
            {"name": "X", "value": "1"},
            {"name": "LD_PRELOAD", "value": "/usr/local/ration/libration.so:/lib/b.so", "newer": true},
        ]});
        assert_eq!(container, expected);
    }

    #[test]
    fn a_variable_of_ours_is_there_once_whatever_else_has_its_name() {
        let ours = super::super::parts::pod_uid();
        let uid = json!({"name": "RATION_POD_UID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}});
        let (forged, other) = (json!({"name": "RATION_POD_UID", "value": "x"}), json!({"name": "A", "value": "1"}));
        let mut half = uid.clone();
        half["value"] = json!("x");
        for (before, after) in [
            (json!(null), vec![&uid]),
            (json!([]), vec![&uid]),
            (json!([uid]), vec![&uid]),
            (json!([uid, other]), vec![&uid, &other]),
            (json!([forged]), vec![&uid]),
            (json!([half]), vec![&uid]),
            (json!([forged, other, uid, forged, uid]), vec![&other, &uid]),
        ] {
            let mut container = json!({"env": before});
            ensure_variable(&mut container, &ours, true);
            assert_eq!(container, json!({"env": after}), "{before}");
            ensure_variable(&mut container, &ours, true);
            assert_eq!(container, json!({"env": after}), "{before}, twice");
        }
        let mut container = json!({"env": [forged, uid, other]});
        ensure_variable(&mut container, &ours, false);
        assert_eq!(container, json!({"env": [forged, other]}));
        let mut container = json!({});
        ensure_variable(&mut container, &ours, false);
        assert_eq!(container, json!({}));
    }

    #[test]
    fn a_mount_that_is_written_in_other_ways_does_not_lie_over_ours() {
        let wanted =
            VolumeMount { name: "ration-quota-a".into(), mount_path: "/etc/ration".into(), ..Default::default() };
        let mut container = json!({"volumeMounts": [
            {"name": "ration-quota-a", "mountPath": "/etc/ration"},
            {"name": "x", "mountPath": "/x", "newer": 1},
            {"name": "ration-region", "mountPath": "/etc/ration/"},
            {"name": "ration-region", "mountPath": "/y"},
            {"name": "ration-quota-a", "mountPath": "/etc/ration"},
        ]});
        ensure_mounts(&mut container, &[wanted]);
        let expected = json!({"volumeMounts": [
            {"name": "ration-quota-a", "mountPath": "/etc/ration"},
            {"name": "x", "mountPath": "/x", "newer": 1},
        ]});
        assert_eq!(container, expected);
    }

    #[test]
    fn what_is_null_is_made() {
        let mut pod = json!({"metadata": null, "spec": {"volumes": null}});
        set_annotations(&mut pod, &BTreeMap::from([("a".to_owned(), "b".to_owned())]));
        ensure_volume(&mut pod, &Volume { name: "v".to_owned(), ..Volume::default() });
        assert_eq!(pod, json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"volumes": [{"name": "v"}]}}));
    }
}
