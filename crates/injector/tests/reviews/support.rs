//! Reviews as an API server sends them, and answers as it would take them.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Pod;
use ration_contract::Settings;
use ration_injector::config::Config;
use ration_injector::mutate::quota_annotation;
use ration_injector::review::{Answer, Context, Namespaces, Outcome, Unknown, answer_in};
use serde::Deserialize as _;
use serde_json::{Value, json};

pub const NAMESPACE: &str = "team-a";

/// YAML as the API server would hand it on: quantities are texts.
pub fn yaml(text: &str) -> Value {
    let mut value: Value = serde_yaml_ng::from_str(text).expect("the test's YAML");
    canonical(&mut value);
    value
}

/// Quantities in limits and requests become texts, thousands become `k`.
pub fn canonical(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(canonical),
        Value::Object(map) => {
            for (key, value) in map {
                if matches!(key.as_str(), "limits" | "requests")
                    && let Some(list) = value.as_object_mut()
                {
                    for amount in list.values_mut().filter(|amount| amount.is_u64()) {
                        let number = amount.as_u64().expect("a number");
                        let thousands = number > 0 && number % 1000 == 0;
                        *amount = json!(if thousands { format!("{}k", number / 1000) } else { number.to_string() });
                    }
                }
                canonical(value);
            }
        }
        _ => {}
    }
}

/// A review of some operation.
pub fn review(operation: &str, subresource: Option<&str>, object: &Value, old: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "subResource": subresource,
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": object.pointer("/metadata/name").cloned().unwrap_or(json!("")),
            "namespace": NAMESPACE,
            "operation": operation,
            "userInfo": {"username": "jane", "groups": ["system:authenticated"]},
            "object": object,
            "oldObject": old,
            "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        }
    })
}

/// A review of ephemeral containers as API servers before 1.23 send it: without the pod.
pub fn listed(containers: &Value) -> Value {
    let list = |containers: &Value| json!({"kind": "EphemeralContainers", "apiVersion": "v1", "metadata": {"name": "p"}, "ephemeralContainers": containers});
    let mut review = review("UPDATE", Some("ephemeralcontainers"), &list(containers), &list(&json!([])));
    review["request"]["name"] = json!("p");
    review["request"]["kind"]["kind"] = json!("EphemeralContainers");
    review
}

/// An answer, as the API server takes it.
#[derive(Debug)]
pub struct Reply {
    pub allowed: bool,
    pub outcome: Outcome,
    pub code: u64,
    pub message: String,
    pub warnings: Vec<String>,
    pub audit: BTreeMap<String, String>,
    pub summary: String,
    /// The object with the patch applied.
    pub pod: Value,
    /// How many operations the patch had.
    pub operations: usize,
}

/// Sends a review, and holds the answer to all that an API server asks of one.
pub fn send_in(config: &Config, namespaces: &dyn Namespaces, review: &Value) -> Reply {
    let answer = answer_in(&Context { config, namespaces, pod: None }, review.to_string().as_bytes());
    taken(&answer, review)
}

pub fn taken(answer: &Answer, review: &Value) -> Reply {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let body: Value = serde_json::from_slice(&answer.body).expect("the answer is JSON");
    assert_eq!(body["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(body["kind"], "AdmissionReview");
    let response = &body["response"];
    assert_eq!(response["uid"], review["request"]["uid"], "the uid comes back");
    let allowed = response["allowed"].as_bool().expect("allowed or not");
    let mut pod = review["request"]["object"].clone();
    let mut operations = 0;
    if let Some(patch) = response.get("patch") {
        assert!(allowed, "a refusal has no patch");
        assert_eq!(response["patchType"], "JSONPatch");
        let ByteString(bytes) = serde_json::from_value(patch.clone()).expect("base64");
        let patch: json_patch::Patch = serde_json::from_slice(&bytes).expect("a patch");
        operations = patch.0.len();
        json_patch::patch(&mut pod, &patch).expect("the patch applies to what was sent");
    }
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|one| one.as_str().expect("a text").to_owned()).collect()
    };
    let warnings = texts(&response["warnings"]);
    for warning in &warnings {
        assert!(warning.len() <= 256, "the API server cuts what is longer: {warning}");
        assert!(!warning.contains(char::is_control), "{warning:?}");
    }
    let audit: BTreeMap<String, String> = match response.get("auditAnnotations") {
        Some(found) => serde_json::from_value(found.clone()).expect("texts"),
        None => BTreeMap::new(),
    };
    match answer.outcome {
        Outcome::Injected => {
            assert!(allowed && operations > 0 && audit.contains_key("injected"));
            if review["request"]["kind"]["kind"] == "Pod" {
                Pod::deserialize(&pod).expect("what became of it is a pod");
            }
        }
        Outcome::Untouched => assert!(allowed && operations == 0),
        Outcome::Denied(reason) => {
            assert!(!allowed && operations == 0);
            assert_eq!(audit.get("denied").map(String::as_str), Some(reason));
            assert_eq!(response["status"]["status"], "Failure");
            assert!(!response["status"]["message"].as_str().unwrap_or("").is_empty(), "a refusal says why");
        }
        Outcome::Unreadable => panic!("it was answered"),
    }
    assert!(!answer.summary.contains(char::is_control), "{:?}", answer.summary);
    Reply {
        allowed,
        outcome: answer.outcome,
        code: response["status"]["code"].as_u64().unwrap_or(0),
        message: response["status"]["message"].as_str().unwrap_or("").to_owned(),
        warnings,
        audit,
        summary: answer.summary.clone(),
        pod,
        operations,
    }
}

/// Creates a pod.
pub fn create(config: &Config, pod: &Value) -> Reply {
    send_in(config, &Unknown, &review("CREATE", None, pod, &Value::Null))
}

/// Creates a pod that must be let in, and sees that another round of admission changes nothing.
#[track_caller]
pub fn admitted(config: &Config, pod: &Value) -> Reply {
    let reply = create(config, pod);
    assert!(reply.allowed, "refused: {}", reply.message);
    let again = create(config, &reply.pod);
    assert!(again.allowed, "refused the second time: {}", again.message);
    assert_eq!(again.pod, reply.pod, "a second round changes something");
    reply
}

/// Creates a pod that must be refused for this reason, with a text that has all of these.
#[track_caller]
pub fn refused(config: &Config, pod: &Value, reason: &str, texts: &[&str]) -> Reply {
    let reply = create(config, pod);
    assert!(!reply.allowed, "it was let in");
    let Outcome::Denied(found) = reply.outcome else { panic!("{:?}", reply.outcome) };
    assert_eq!(found, reason, "{}", reply.message);
    for text in texts {
        assert!(reply.message.contains(text), "{text:?} is not in {:?}", reply.message);
    }
    reply
}

/// What a container of a pod is held to, as the library would read it.
#[track_caller]
pub fn quota(pod: &Value, container: &str) -> Settings {
    let annotation = quota_annotation(container);
    let text = pod["metadata"]["annotations"][&annotation].as_str();
    let text = text.unwrap_or_else(|| panic!("no {annotation} in {}", pod["metadata"]["annotations"]));
    as_library(text, &|_| None)
}

/// A quota file as the library reads it, with the name of the pod beside it.
#[track_caller]
pub fn as_library(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Settings {
    let text = ration_contract::with_pod(text, "trainer-x7k2p");
    Settings::read(environment, Some(&text)).unwrap_or_else(|errors| panic!("{text}: {errors:?}"))
}

/// The same in one line: `memory=8GiB compute-request=30% compute-limit=30%`.
#[track_caller]
pub fn gets(pod: &Value, container: &str) -> String {
    let settings = quota(pod, container);
    let mut words = Vec::new();
    if !settings.memory.is_empty() {
        words.push(format!("memory={}", settings.memory));
    }
    if settings.compute_request.to_string() != "0%" {
        words.push(format!("compute-request={}", settings.compute_request));
    }
    if !settings.compute_limit.is_empty() {
        words.push(format!("compute-limit={}", settings.compute_limit));
    }
    if settings.priority != Default::default() {
        words.push(format!("priority={}", settings.priority));
    }
    words.join(" ")
}

/// A pod with annotations and one container that has a GPU.
pub fn pod_with(annotations: &[(&str, &str)]) -> Value {
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trainer", "namespace": NAMESPACE, "creationTimestamp": null, "annotations": annotations},
        "spec": {"containers": [
            {"name": "main", "image": "cuda", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        ]},
        "status": {}
    })
}

/// A pod whose one container asks with these resources.
pub fn pod_asking(resources: &[(&str, &str)]) -> Value {
    let limits: BTreeMap<_, _> = resources.iter().copied().collect();
    let mut pod = pod_with(&[]);
    pod["spec"]["containers"][0]["resources"] = json!({"limits": limits, "requests": limits});
    pod
}

pub fn config(text: &str) -> Config {
    Config::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}
