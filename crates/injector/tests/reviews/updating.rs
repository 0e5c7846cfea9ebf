//! Pods that exist: what changes with them, and what is added to them.

use ration_injector::config::Config;
use ration_injector::review::{Context, Outcome, Unknown, answer_in, missing_pod};
use serde_json::{Value, json};

use crate::support::{NAMESPACE, Reply, admitted, config, gets, listed, pod_with, quota, review, send_in, taken};

fn update(config: &Config, old: &Value, new: &Value) -> Reply {
    send_in(config, &Unknown, &review("UPDATE", None, new, old))
}

fn add(config: &Config, pod: &Value, containers: &Value) -> Reply {
    let mut new = pod.clone();
    new["spec"]["ephemeralContainers"] = containers.clone();
    send_in(config, &Unknown, &review("UPDATE", Some("ephemeralcontainers"), &new, pod))
}

fn running() -> Value {
    admitted(&Config::default(), &pod_with(&[("ration.dev/memory", "8Gi"), ("ration.dev/compute", "30%")])).pod
}

#[test]
fn a_change_of_what_is_asked_for_is_a_change_of_the_quota() {
    let old = running();
    let mut new = old.clone();
    new["metadata"]["annotations"]["ration.dev/memory"] = json!("4Gi");
    new["metadata"]["annotations"]["ration.dev/priority"] = json!("batch");
    let reply = update(&Config::default(), &old, &new);
    assert_eq!(reply.outcome, Outcome::Injected);
    assert_eq!(gets(&reply.pod, "main"), "memory=4GiB compute-request=30% compute-limit=30% priority=batch");
    assert_eq!(reply.pod["spec"], old["spec"]);
    assert_eq!(update(&Config::default(), &old, &reply.pod).operations, 0, "a second round changes nothing");

    new["metadata"]["annotations"]["ration.dev/memory"] = json!("4g");
    assert_eq!(update(&Config::default(), &old, &new).outcome, Outcome::Denied("annotation"));
    new["metadata"]["annotations"]["ration.dev/memory"] = json!("80Gi");
    let reply = update(&config("maxima: {memory: 40GiB}"), &old, &new);
    assert_eq!(reply.outcome, Outcome::Denied("over-maximum"));
}

#[test]
fn a_pod_keeps_its_delivery_when_its_quota_changes() {
    let image = config("delivery: image\nlibrary: {image: example.com/ration:1}");
    let old = admitted(&image, &pod_with(&[("ration.dev/memory", "8Gi")])).pod;
    let mut new = old.clone();
    new["metadata"]["annotations"]["ration.dev/memory"] = json!("4Gi");
    let reply = update(&Config::default(), &old, &new);
    let quota = reply.pod["metadata"]["annotations"]["ration.dev/quota.main"].as_str().expect("a text");
    assert!(quota.contains("memory = 4GiB") && !quota.contains("strict"), "{quota}");
}

#[test]
fn what_the_injector_wrote_is_put_back() {
    let old = running();
    let ours = ["ration.dev/quota.main", "ration.dev/preload", "ration.dev/injected"];
    for name in ours {
        for tampered in [json!("memory = 80GiB\n"), Value::Null] {
            let mut new = old.clone();
            let annotations = new["metadata"]["annotations"].as_object_mut().expect("annotations");
            match &tampered {
                Value::Null => drop(annotations.remove(name)),
                text => drop(annotations.insert(name.to_owned(), text.clone())),
            }
            let reply = update(&Config::default(), &old, &new);
            assert!(reply.allowed);
            assert_eq!(reply.pod["metadata"]["annotations"], old["metadata"]["annotations"], "{name}");
            assert!(reply.warnings[0].contains("were put back"), "{:?}", reply.warnings);
        }
    }
    let mut new = old.clone();
    new["metadata"]["annotations"]["ration.dev/quota.other"] = json!("memory = 1GiB\n");
    assert_eq!(update(&Config::default(), &old, &new).pod, old);
    let mut bare = old.clone();
    bare["metadata"].as_object_mut().expect("metadata").remove("annotations");
    let reply = update(&Config::default(), &old, &bare);
    assert_eq!(gets(&reply.pod, "main"), "", "what is asked for can be taken back, and the quota follows");
    assert!(reply.pod["metadata"]["annotations"]["ration.dev/preload"].is_string());
}

#[test]
fn other_changes_pass_whatever_the_configuration_says_by_now() {
    let old = running();
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"a": "b", "ration.dev/inject": "disabled"});
    new["metadata"]["finalizers"] = json!([]);
    for now in ["maxima: {memory: 1GiB, compute: 1%}", "withoutQuota: deny", "preload: env", "optOut: deny"] {
        let reply = update(&config(now), &old, &new);
        assert_eq!((reply.outcome, reply.warnings.len()), (Outcome::Untouched, 0), "{now}");
    }
}

#[test]
fn the_label_by_which_changes_are_seen_stays() {
    let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    pod["metadata"]["labels"] = json!({"ration.dev/inject": "enabled", "a": "b"});
    let old = admitted(&Config::default(), &pod).pod;
    for labels in [json!({"a": "b"}), json!({"a": "b", "ration.dev/inject": "disabled"})] {
        let mut new = old.clone();
        new["metadata"]["labels"] = labels;
        let reply = update(&Config::default(), &old, &new);
        assert_eq!(reply.pod, old);
        assert!(reply.warnings[0].contains("stays enabled"), "{:?}", reply.warnings);
    }
}

#[test]
fn a_translated_request_survives_an_update() {
    let mut pod = pod_with(&[]);
    pod["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"});
    let old = admitted(&Config::default(), &pod).pod;
    let mut new = old.clone();
    new["metadata"]["annotations"]["ration.dev/compute"] = json!("30%");
    let reply = update(&Config::default(), &old, &new);
    assert_eq!(gets(&reply.pod, "main"), "memory=3000MiB compute-request=30% compute-limit=30%");
}

#[test]
fn a_pod_without_the_library_stays_so_and_its_owner_is_told() {
    let old = pod_with(&[]);
    let new = pod_with(&[("ration.dev/memory", "8Gi")]);
    let reply = update(&Config::default(), &old, &new);
    assert_eq!(reply.outcome, Outcome::Untouched);
    assert!(reply.warnings[0].contains("only in a new pod"), "{:?}", reply.warnings);
    assert!(update(&Config::default(), &old, &old).warnings.is_empty());
}

#[test]
fn an_ephemeral_container_joins_the_slice_of_its_target() {
    let old = running();
    for container in [
        json!({"name": "debug", "image": "busybox", "targetContainerName": "main"}),
        json!({"name": "debug", "image": "busybox"}),
    ] {
        let reply = add(&Config::default(), &old, &json!([container]));
        assert_eq!(reply.outcome, Outcome::Injected);
        let debug = &reply.pod["spec"]["ephemeralContainers"][0];
        assert_eq!(debug["env"], json!([{"name": "LD_PRELOAD", "value": "/usr/local/ration/libration.so"}]));
        let mounts = json!([
            {"name": "ration-library", "mountPath": "/usr/local/ration", "readOnly": true},
            {"name": "ration-region", "mountPath": "/run/ration", "readOnly": true},
            {"name": "ration-quota-main", "mountPath": "/etc/ration", "readOnly": true},
        ]);
        assert_eq!(debug["volumeMounts"], mounts, "whole volumes, for no other can be mounted there");
        // Whatever is set by now for pods that are yet to come.
        let later = config("delivery: image\nlibrary: {image: example.com/ration:1}");
        assert_eq!(add(&later, &old, &json!([container])).pod, reply.pod);
        let mut rest = reply.pod.clone();
        rest["spec"].as_object_mut().expect("a spec").remove("ephemeralContainers");
        assert_eq!(rest, old, "nothing else is changed");
        let again =
            send_in(&Config::default(), &Unknown, &review("UPDATE", Some("ephemeralcontainers"), &reply.pod, &old));
        assert_eq!(again.operations, 0);
    }
}

#[test]
fn ephemeral_containers_that_join_nobody() {
    let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    let second = json!({"name": "second", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let third = json!({"name": "third"});
    pod["spec"]["containers"].as_array_mut().expect("a list").extend([second, third]);
    let old = admitted(&Config::default(), &pod).pod;
    let reply = add(&Config::default(), &old, &json!([{"name": "debug", "targetContainerName": "third"}]));
    assert_eq!((reply.outcome, reply.warnings.len()), (Outcome::Untouched, 0));
    let reply = add(&Config::default(), &old, &json!([{"name": "debug"}]));
    assert_eq!(reply.outcome, Outcome::Untouched);
    assert!(reply.warnings[0].contains("kubectl debug --target"), "{:?}", reply.warnings);
    let sees_gpus = json!([{"name": "debug", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]);
    let reply = add(&Config::default(), &old, &sees_gpus);
    assert_eq!(reply.outcome, Outcome::Denied("ephemeral-target"));
    assert!(reply.message.contains("one of main, second"), "{}", reply.message);
    let with_gpu = json!([{"name": "debug", "targetContainerName": "second", "env": sees_gpus[0]["env"]}]);
    let reply = add(&Config::default(), &old, &with_gpu);
    assert!(reply.warnings.iter().any(|it| it.contains("refuses it GPU work")), "{:?}", reply.warnings);
    let reply = add(&Config::default(), &old, &json!([{"name": "debug", "targetContainerName": "second"}]));
    assert!(reply.warnings.is_empty(), "{:?}", reply.warnings);
    assert_eq!(reply.pod["spec"]["ephemeralContainers"][0]["volumeMounts"][2]["name"], "ration-quota-second");
    let plain = pod_with(&[]);
    assert_eq!(add(&Config::default(), &plain, &json!([{"name": "debug"}])).outcome, Outcome::Untouched);
}

#[test]
fn ephemeral_containers_that_are_refused() {
    let old = running();
    for (container, reason) in [
        (json!({"name": "d", "securityContext": {"privileged": true}}), "privileged"),
        (json!({"name": "d", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}), "privileged"),
        (json!({"name": "d", "volumeMounts": [{"name": "x", "mountPath": "/etc/ration"}]}), "conflict"),
        (json!({"name": "d", "volumeMounts": [{"name": "ration-library", "mountPath": "/x"}]}), "conflict"),
        (json!({"name": "d", "volumeMounts": [{"name": "ration-region", "mountPath": "/x"}]}), "conflict"),
        (
            json!({"name": "d", "env": [{"name": "LD_PRELOAD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
            "preload-hidden",
        ),
    ] {
        assert_eq!(add(&Config::default(), &old, &json!([container])).outcome, Outcome::Denied(reason), "{container}");
    }
    let mut with_debug = old.clone();
    with_debug["spec"]["ephemeralContainers"] = json!([{"name": "d", "securityContext": {"privileged": true}}]);
    let mut more = with_debug.clone();
    more["spec"]["ephemeralContainers"].as_array_mut().expect("a list").push(json!({"name": "e"}));
    let reply =
        send_in(&Config::default(), &Unknown, &review("UPDATE", Some("ephemeralcontainers"), &more, &with_debug));
    assert!(reply.allowed, "those that are there already are as they are: {}", reply.message);
    assert_eq!(reply.pod["spec"]["ephemeralContainers"][0], with_debug["spec"]["ephemeralContainers"][0]);
}

#[test]
fn an_ephemeral_container_in_no_slice_writes_to_nobodys_directory() {
    let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    pod["spec"]["containers"].as_array_mut().expect("a list").push(json!({"name": "other"}));
    let old = admitted(&Config::default(), &pod).pod;
    // That pods which are yet to come have regions of their own says nothing about this one.
    for text in ["{}", "delivery: image\nlibrary: {image: example.com/ration:1}"] {
        for (mount, allowed) in [
            (json!({"name": "ration-region", "mountPath": "/run/ration"}), false),
            (json!({"name": "ration-region", "mountPath": "/run/ration", "readOnly": true}), true),
        ] {
            let debug = json!([{"name": "d", "targetContainerName": "other", "volumeMounts": [mount]}]);
            assert_eq!(add(&config(text), &old, &debug).allowed, allowed, "{text}: {mount}");
        }
    }
}

#[test]
fn a_pod_from_before_there_were_own_directories_keeps_its_place() {
    let mut old = running();
    let file = &mut old["metadata"]["annotations"]["ration.dev/quota.main"];
    *file = json!(file.as_str().expect("a text").replace("own_dir = /run/ration-own\n", ""));
    for (pod, own) in [(old, None), (running(), Some("/run/ration-own"))] {
        let mut new = pod.clone();
        new["metadata"]["annotations"]["ration.dev/memory"] = json!("4Gi");
        let reply = update(&Config::default(), &pod, &new);
        let settings = quota(&reply.pod, "main");
        assert_eq!(settings.memory.to_string(), "4GiB");
        assert_eq!((settings.dir.as_deref(), settings.own_dir.as_deref()), (Some("/run/ration"), own));
        assert!(settings.strict);
    }
}

#[test]
fn a_dry_run_is_answered_like_any_other() {
    let pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    let mut question = review("CREATE", None, &pod, &Value::Null);
    let real = send_in(&Config::default(), &Unknown, &question);
    question["request"]["dryRun"] = json!(true);
    let dry = send_in(&Config::default(), &Unknown, &question);
    assert_eq!((dry.pod, dry.warnings), (real.pod, real.warnings));
}

/// What an API server before 1.23 asks, and what is answered when the pod could be had.
fn add_listed(pod: Option<&Value>, containers: &Value) -> Reply {
    let review = listed(containers);
    let body = review.to_string();
    let wanted = missing_pod(body.as_bytes()).expect("the pod is named");
    assert_eq!((wanted.namespace.as_str(), wanted.name.as_str()), (NAMESPACE, "p"));
    taken(&answer_in(&Context { config: &Config::default(), namespaces: &Unknown, pod }, body.as_bytes()), &review)
}

#[test]
fn a_list_of_ephemeral_containers_is_treated_as_their_pod_would_be() {
    let old = running();
    for containers in [
        json!([{"name": "debug", "image": "busybox", "targetContainerName": "main", "futureField": 1}]),
        json!([{"name": "debug"}, {"name": "more", "env": [{"name": "LD_PRELOAD", "value": "/x.so"}]}]),
    ] {
        let (whole, reply) = (add(&Config::default(), &old, &containers), add_listed(Some(&old), &containers));
        assert_eq!(reply.outcome, Outcome::Injected);
        assert_eq!(reply.pod["ephemeralContainers"], whole.pod["spec"]["ephemeralContainers"]);
        assert_eq!(reply.pod["kind"], "EphemeralContainers", "nothing of the pod is put into the list");
        assert!(reply.pod.get("spec").is_none());
    }
    let privileged = json!([{"name": "d", "securityContext": {"privileged": true}}]);
    assert_eq!(add_listed(Some(&old), &privileged).outcome, Outcome::Denied("privileged"));
    assert_eq!(add_listed(Some(&pod_with(&[])), &json!([{"name": "d"}])).outcome, Outcome::Untouched);
    assert_eq!(add_listed(Some(&old), &json!("no list")).outcome, Outcome::Denied("unreadable-pod"));
    let reply = add_listed(None, &json!([{"name": "d"}]));
    assert_eq!(reply.outcome, Outcome::Denied("ephemeral-target"));
    assert!(reply.message.contains("let its ServiceAccount get pods"), "{}", reply.message);
}

#[test]
fn no_other_review_needs_its_pod() {
    assert_eq!(missing_pod(review("CREATE", None, &running(), &Value::Null).to_string().as_bytes()), None);
    for name in ["", "..", "../secrets/x", "a/b", "a?b", "%2e%2e", "a b"] {
        let mut review = listed(&json!([]));
        review["request"]["name"] = json!(name);
        assert_eq!(missing_pod(review.to_string().as_bytes()), None, "{name:?} is no pod's name");
    }
}
