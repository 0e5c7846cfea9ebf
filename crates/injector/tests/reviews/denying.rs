//! What is refused, and whether the refusal says what to write instead.

use std::collections::BTreeMap;

use ration_injector::ask::Reason;
use ration_injector::ask::foreign::TABLE;
use ration_injector::config::Config;
use ration_injector::review::{Labels, Namespaces, Outcome, answer};
use serde_json::{Value, json};

use crate::support::{NAMESPACE, admitted, config, create, pod_asking, pod_with, refused, review, send_in};

#[test]
fn annotations_that_are_not_understood() {
    for (name, value, texts) in [
        ("ration.dev/memory", "8g", &["ration.dev/memory=\"8g\"", "accepted: 8GiB", "write 8GiB"][..]),
        ("ration.dev/memory", "8", &["less than 1MiB", "write the unit too"]),
        ("ration.dev/memory", "0", &["no memory at all"]),
        ("ration.dev/memory", "", &["it is empty"]),
        ("ration.dev/memory", "-8Gi", &["does not begin with a number"]),
        ("ration.dev/memory", "101%", &["more than the whole GPU"]),
        ("ration.dev/memory", "100m", &["\"m\" is no unit"]),
        ("ration.dev/memory.main", "lots", &["ration.dev/memory.main=\"lots\""]),
        ("ration.dev/compute", "30", &["has no % sign", "such as 30%"]),
        ("ration.dev/compute", "0%", &["nothing of a GPU is no slice"]),
        ("ration.dev/compute-limit", "0.00001%", &["more than 4 decimals"]),
        ("ration.dev/priority", "high", &["accepted: latency, normal or batch"]),
        ("ration.dev/memroy", "8Gi", &["\"memroy\" is nothing that can be asked for", "memory, compute"]),
        ("ration.dev/memory.mian", "8Gi", &["the pod has no container \"mian\"", "main"]),
        ("ration.dev/inject", "enabled", &["it is a label", "metadata.labels"]),
    ] {
        let reply = refused(&Config::default(), &pod_with(&[(name, value)]), "annotation", texts);
        assert_eq!(reply.code, 400);
    }
    let over = [("ration.dev/compute-request", "60%"), ("ration.dev/compute-limit", "30%")];
    refused(&Config::default(), &pod_with(&over), "annotation", &["the request, 60%, is above the limit, 30%"]);
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let pod = pod_with(&[("ration.dev/memory", "8g"), ("ration.dev/compute", "30"), ("ration.dev/speed", "1")]);
    refused(&Config::default(), &pod, "annotation", &["\"8g\"", "\"30\"", "\"speed\""]);
}

#[test]
fn requests_in_others_names_that_are_not_understood() {
    for (resource, amount, texts) in [
        ("nvidia.com/gpumem", "0", &["resource nvidia.com/gpumem of container main", "how many MiB"][..]),
        ("nvidia.com/gpumem", "1500m", &["no whole number"]),
        ("nvidia.com/gpumem-percentage", "101", &["1 to 100"]),
        ("nvidia.com/gpucores", "200", &["0 to 100"]),
        ("nvidia.com/priority", "7", &["0 (before others) or 1"]),
        ("volcano.sh/gpu-memory", "0", &["how many MiB"]),
        ("volcano.sh/vgpu-number", "100", &["1 to 64"]),
    ] {
        let pod = pod_asking(&[("nvidia.com/gpu", "1"), (resource, amount)]);
        refused(&Config::default(), &pod, "foreign-request", texts);
    }
    for (name, value, texts) in [
        ("gpu-fraction", "2", &["gpu-fraction=\"2\"", "such as 0.5"][..]),
        ("gpu-fraction", "half", &["such as 0.5"]),
        ("gpu-memory", "4Gi", &["gpu-memory=\"4Gi\"", "such as 4096"]),
        ("gpu-memory", "0", &["such as 4096"]),
    ] {
        refused(&Config::default(), &pod_with(&[(name, value)]), "foreign-request", texts);
    }
    let devices = pod_with(&[("gpu-fraction", "0.5"), ("gpu-fraction-num-devices", "many")]);
    refused(&Config::default(), &devices, "foreign-request", &["gpu-fraction-num-devices=\"many\""]);
    let nobody = pod_with(&[("gpu-fraction", "0.5"), ("gpu-fraction-container-name", "nobody")]);
    refused(&Config::default(), &nobody, "foreign-request", &["gpu-fraction-container-name=\"nobody\""]);
}

#[test]
fn ways_round_the_library() {
    let changes: [(&str, Value, &[&str]); 5] = [
        ("/spec/containers/0/securityContext", json!({"privileged": true}), &["container main", "privileged: false"]),
        (
            "/spec/containers/0/securityContext",
            json!({"capabilities": {"add": ["SYS_ADMIN"]}}),
            &["could unmount the library"],
        ),
        ("/spec/containers/0/securityContext", json!({"capabilities": {"add": ["CAP_SYS_ADMIN"]}}), &["CAP_SYS_ADMIN"]),
        ("/spec/containers/0/securityContext", json!({"capabilities": {"add": ["ALL"]}}), &["ALL"]),
        ("/spec/hostPID", json!(true), &["remove hostPID"]),
    ];
    let allowing = config("privileged: allow");
    for (pointer, value, texts) in changes {
        let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        pod.pointer_mut(parent).expect("there")[key] = value;
        let reply = refused(&Config::default(), &pod, "privileged", texts);
        assert_eq!(reply.code, 403);
        assert!(reply.message.contains("privileged: allow"), "{}", reply.message);
        admitted(&allowing, &pod);
        pod["spec"]["containers"][0]["resources"] = json!({});
        assert_eq!(admitted(&Config::default(), &pod).operations, 0, "without a GPU it is nobody's business");
    }
    let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    let helper = json!({"name": "helper", "securityContext": {"privileged": true}});
    pod["spec"]["containers"].as_array_mut().expect("a list").push(helper);
    refused(&Config::default(), &pod, "privileged", &["container helper"]);
    pod["spec"]["containers"][1]["securityContext"] = json!({"capabilities": {"add": ["SYS_ADMIN"]}});
    admitted(&Config::default(), &pod);
}

#[test]
fn what_is_in_the_way() {
    let mount = |path: &str| {
        let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
        pod["spec"]["volumes"] = json!([{"name": "mine", "emptyDir": {}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "mine", "mountPath": path}]);
        pod
    };
    for path in [
        "/etc/ration",
        "/etc/ration/",
        "//etc/./ration",
        "/var/../etc/ration",
        "etc/ration",
        "/etc/ration/quota",
        "/run/ration",
        "/run/ration-own",
        "/run/./ration-own/gpu",
        "/usr/local/ration",
        "/usr/local/ration/libration.so",
        "/etc/ld.so.preload",
    ] {
        refused(
            &Config::default(),
            &mount(path),
            "conflict",
            &["container main mounts volume \"mine\"", "mount it elsewhere"],
        );
    }
    for path in ["/etc", "/run", "/etc/rations", "/usr/local", "/data"] {
        admitted(&Config::default(), &mount(path));
    }
    admitted(&config("preload: env"), &mount("/etc/ld.so.preload"));
}

#[test]
fn the_injectors_volumes_are_its_own() {
    let pod = |volume: Value, mount: Value| {
        let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
        pod["spec"]["volumes"] = json!([volume]);
        pod["spec"]["containers"]
            .as_array_mut()
            .expect("a list")
            .push(json!({"name": "side", "volumeMounts": [mount]}));
        pod
    };
    let library =
        json!({"name": "ration-library", "hostPath": {"path": "/var/lib/ration/lib/current", "type": "Directory"}});
    let region = json!({"name": "ration-region", "hostPath": {"path": "/run/ration-pods", "type": "Directory"}});
    for (volume, mount, text) in [
        (
            json!({"name": "ration-library", "configMap": {"name": "c"}}),
            json!({"name": "x", "mountPath": "/x"}),
            "rename the volume",
        ),
        (
            json!({"name": "ration-quota-main", "configMap": {"name": "c"}}),
            json!({"name": "x", "mountPath": "/x"}),
            "rename the volume",
        ),
        (library.clone(), json!({"name": "ration-library", "mountPath": "/x"}), "remove the mount"),
        (library.clone(), json!({"name": "ration-library", "mountPath": "/usr/local/ration"}), "remove the mount"),
        (
            json!({"name": "node", "hostPath": {"path": "/var/lib/ration/lib/current/"}}),
            json!({"name": "node", "mountPath": "/x"}),
            "hostPath /var/lib/ration/lib/current is the injector's",
        ),
        (
            json!({"name": "node", "hostPath": {"path": "/run/ration-pods/0"}}),
            json!({"name": "node", "mountPath": "/x"}),
            "hostPath /run/ration-pods/0 is the injector's",
        ),
        // Of another pod's directory, of all of them, and of this one's where nobody knows that it is.
        (
            region.clone(),
            json!({"name": "ration-region", "mountPath": "/run/ration-own", "subPath": "another"}),
            "remove the mount",
        ),
        (region.clone(), json!({"name": "ration-region", "mountPath": "/run/ration"}), "remove the mount"),
        (
            region.clone(),
            json!({"name": "ration-region", "mountPath": "/run/ration-own", "subPathExpr": "$(RATION_POD_UID)"}),
            "remove the mount",
        ),
    ] {
        refused(&Config::default(), &pod(volume, mount), "conflict", &[text]);
    }
    let mut named = pod_with(&[("ration.dev/memory", "8Gi")]);
    named["spec"]["initContainers"] = json!([{"name": "ration-library", "image": "mine"}]);
    refused(&Config::default(), &named, "conflict", &["the name is the injector's"]);
    let forged =
        pod(json!({"name": "ration-region", "hostPath": {"path": "/"}}), json!({"name": "x", "mountPath": "/x"}));
    let reply = admitted(&Config::default(), &forged);
    assert_eq!(reply.pod["spec"]["volumes"][0]["hostPath"]["path"], "/run/ration-pods", "a forged one is replaced");
}

#[test]
fn a_copy_whose_container_has_lost_its_gpu_writes_to_nobodys_directory() {
    let copy = admitted(&Config::default(), &pod_with(&[("ration.dev/memory", "8Gi")])).pod;
    let with_env = |env: Value| {
        let mut pod = copy.clone();
        let mut lost = pod["spec"]["containers"][0].clone();
        lost["name"] = json!("lost");
        lost["resources"] = json!({});
        lost["volumeMounts"].as_array_mut().expect("a list").retain(|mount| mount["name"] != "ration-quota-main");
        lost["env"] = env;
        pod["spec"]["containers"].as_array_mut().expect("a list").push(lost);
        pod
    };
    let uid = copy["spec"]["containers"][0]["env"][0].clone();
    admitted(&Config::default(), &with_env(json!([uid])));
    let forged = json!({"name": "RATION_POD_UID", "value": "705ab4f5-6393-11e8-b7cc-42010a800002"});
    for env in [json!([]), json!([forged]), json!([uid, forged]), json!([forged, uid])] {
        refused(&Config::default(), &with_env(env), "conflict", &["lost", "/run/ration-own", "remove the mount"]);
    }
    let mut before = with_env(json!([uid]));
    for mount in before["spec"]["containers"][1]["volumeMounts"].as_array_mut().expect("a list") {
        // As it was when all pods wrote to one directory.
        if mount["mountPath"] == "/run/ration" {
            *mount = json!({"name": "ration-region", "mountPath": "/run/ration"});
        }
    }
    refused(&Config::default(), &before, "conflict", &["lost", "/run/ration:", "remove the mount"]);
}

#[test]
fn a_preload_that_cannot_be_seen() {
    let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    pod["spec"]["containers"][0]["env"] =
        json!([{"name": "LD_PRELOAD", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]);
    let by_env = config("preload: env");
    refused(&by_env, &pod, "preload-hidden", &["container main", "valueFrom", "preload: file"]);
    let reply = admitted(&Config::default(), &pod);
    assert_eq!(reply.pod["spec"]["containers"][0]["env"][0], pod["spec"]["containers"][0]["env"][0]);
}

#[test]
fn host_paths_where_pod_security_forbids_them() {
    let with = |labels: &[(&str, &str)]| -> BTreeMap<String, Labels> {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        BTreeMap::from([(NAMESPACE.to_owned(), labels)])
    };
    let question = review("CREATE", None, &pod_with(&[("ration.dev/memory", "8Gi")]), &Value::Null);
    let enforce = "pod-security.kubernetes.io/enforce";
    let image = "library: {image: example.com/ration:1}\n";
    for level in ["baseline", "restricted"] {
        let namespaces = with(&[("ration.dev/inject", "enabled"), (enforce, level)]);
        let reply = send_in(&Config::default(), &namespaces, &question);
        assert_eq!(reply.outcome, Outcome::Denied("pod-security"));
        for text in [level, "namespaces: {team-a: {delivery: image}}", "podSecurity: ignore"] {
            assert!(reply.message.contains(text), "{}", reply.message);
        }
        for way_out in [
            format!("{image}namespaces: {{team-a: {{delivery: image}}}}"),
            format!("{image}delivery: initContainer"),
            "namespaces: {team-a: {podSecurity: ignore}}".to_owned(),
        ] {
            assert!(send_in(&config(&way_out), &namespaces, &question).allowed, "{way_out}");
        }
    }
    for labels in [&[(enforce, "privileged")][..], &[("pod-security.kubernetes.io/warn", "restricted")], &[]] {
        let mut labels = labels.to_vec();
        labels.push(("ration.dev/inject", "enabled"));
        assert!(send_in(&Config::default(), &with(&labels), &question).allowed);
    }
}

/// An API server of some version.
struct Server(Option<(u32, u32)>);

impl Namespaces for Server {
    fn labels(&self, _namespace: &str) -> Option<Labels> {
        None
    }

    fn server_version(&self) -> Option<(u32, u32)> {
        self.0
    }
}

#[test]
fn images_where_the_api_server_would_make_an_empty_directory_of_them() {
    let question = review("CREATE", None, &pod_with(&[("ration.dev/memory", "8Gi")]), &Value::Null);
    let image = config("delivery: image\nlibrary: {image: 'example.com/ration:1'}");
    let copied = config("delivery: initContainer\nlibrary: {image: 'example.com/ration:1'}");
    for (version, taken) in
        [(Some((1, 30)), false), (Some((1, 20)), false), (Some((1, 31)), true), (Some((2, 0)), true), (None, true)]
    {
        let reply = send_in(&image, &Server(version), &question);
        assert_eq!(reply.allowed, taken, "{version:?}: {}", reply.message);
        if !taken {
            assert_eq!(reply.outcome, Outcome::Denied("delivery"));
            assert!(reply.message.contains("namespaces: {team-a: {delivery: initContainer}}"), "{}", reply.message);
        }
        assert!(
            send_in(&copied, &Server(version), &question).allowed
                && send_in(&Config::default(), &Server(version), &question).allowed
        );
    }
}

#[test]
fn opting_in_and_out() {
    for (label, injected) in [(None, true), (Some("enabled"), true), (Some("disabled"), false)] {
        let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
        if let Some(label) = label {
            pod["metadata"]["labels"] = json!({"ration.dev/inject": label});
        }
        assert_eq!(admitted(&Config::default(), &pod).operations > 0, injected, "{label:?}");
    }
    let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    pod["metadata"]["labels"] = json!({"ration.dev/inject": "true"});
    refused(&Config::default(), &pod, "label", &["ration.dev/inject=\"true\"", "enabled, disabled"]);
    pod["metadata"]["labels"] = json!({"ration.dev/inject": "disabled"});
    let strict = config("optOut: deny");
    refused(&strict, &pod, "opt-out", &["lets no pod with a GPU opt out"]);
    pod["spec"]["containers"][0]["resources"] = json!({});
    assert!(create(&strict, &pod).allowed, "without a GPU there is nothing to leave");
}

#[test]
fn pods_that_cannot_be_read() {
    for (pod, text) in [
        (json!({"metadata": {"name": "a"}}), "has no spec"),
        (json!({"spec": {"containers": "none"}}), "cannot be read"),
        (json!({"spec": {"containers": [{"name": 3}]}}), "cannot be read"),
        (json!(null), "cannot be read"),
        (json!([]), "cannot be read"),
        (
            json!({"spec": {"containers": [{"name": "A b\n", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}),
            "no name that",
        ),
        (
            json!({"spec": {"containers": [
                {"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                {"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
            ]}}),
            "two containers have the name",
        ),
    ] {
        refused(&Config::default(), &pod, "unreadable-pod", &[text]);
    }
    let mut nowhere = review("CREATE", None, &pod_with(&[]), &Value::Null);
    nowhere["request"]["namespace"] = json!("a\nmemory = 80GiB");
    let reply = send_in(&Config::default(), &ration_injector::review::Unknown, &nowhere);
    assert_eq!(reply.outcome, Outcome::Denied("unreadable-pod"));
}

#[test]
fn what_is_no_review() {
    for (body, text) in [
        (&b""[..], "EOF"),
        (b"{", "EOF"),
        (b"\xff\xfe", "expected value"),
        (b"null", "accepted: an AdmissionReview of admission.k8s.io/v1"),
        (b"[]", "accepted: an AdmissionReview"),
        (br#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{}}"#, "v1beta1"),
        (br#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}"#, "it has no request"),
        (br#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{}}"#, "missing field"),
        (br#"{"kind":"Pod","apiVersion":"v1"}"#, "it is a \"Pod\""),
    ] {
        let answer = answer(&Config::default(), body);
        assert_eq!((answer.status, answer.outcome), (400, Outcome::Unreadable));
        let said = String::from_utf8(answer.body).expect("a text");
        assert!(said.contains(text), "{said}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(answer(&Config::default(), deep.as_bytes()).outcome, Outcome::Unreadable);
}

#[test]
fn what_is_none_of_its_business() {
    let pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    let mut other = review("CREATE", None, &pod, &Value::Null);
    other["request"]["resource"] = json!({"group": "apps", "version": "v1", "resource": "deployments"});
    let unknown = ration_injector::review::Unknown;
    assert_eq!(send_in(&Config::default(), &unknown, &other).outcome, Outcome::Untouched);
    for (operation, subresource) in
        [("DELETE", None), ("CONNECT", Some("exec")), ("CREATE", Some("binding")), ("UPDATE", Some("status"))]
    {
        let question = review(operation, subresource, &pod, &Value::Null);
        assert_eq!(send_in(&Config::default(), &unknown, &question).outcome, Outcome::Untouched, "{operation}");
    }
    let mut mirror = review("CREATE", None, &pod, &Value::Null);
    mirror["request"]["object"]["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x");
    assert_eq!(send_in(&Config::default(), &unknown, &mirror).outcome, Outcome::Injected, "anyone can write that");
    mirror["request"]["userInfo"]["groups"] = json!(["system:nodes"]);
    assert_eq!(send_in(&Config::default(), &unknown, &mirror).outcome, Outcome::Untouched);
    let mut windows = pod.clone();
    windows["spec"]["os"] = json!({"name": "windows"});
    assert_eq!(admitted(&Config::default(), &windows).operations, 0);
}

#[test]
fn every_reason_and_every_name_is_documented() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kubernetes.md");
    let page = std::fs::read_to_string(page).expect("docs/kubernetes.md");
    for reason in Reason::ALL {
        assert!(
            page.contains(&format!("| `{}` |", reason.name())),
            "docs/kubernetes.md has no line for {}",
            reason.name()
        );
    }
    for (name, _) in TABLE.iter().filter(|(name, _)| !name.contains("vgpu")) {
        assert!(page.contains(&format!("`{name}")), "docs/kubernetes.md does not say what {name} means");
    }
}
