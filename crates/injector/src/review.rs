//! Answers admission reviews.
//!
//! Pure: no I/O and no clock, so a dry run is like any other, and the same question has the same answer. Every review gets
//! one; bytes that are none get a text and the status 400.

use std::collections::HashMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Pod;
use kube::core::Status;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, META_API_VERSION_V1, META_KIND, Operation};
use kube::core::metadata::TypeMeta;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::ask::{Denial, Findings, LABEL, PREFIX, Reason, one_line, quoted};
use crate::config::{Config, Policy, Rules};
use crate::mutate;
use crate::mutate::guard;

mod ephemeral;
mod namespaces;
mod update;

pub use ephemeral::{PodName, missing_pod};
pub use namespaces::{Labels, Namespaces, Unknown};

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The pod is changed.
    Injected,
    /// It is let through as it is.
    Untouched,
    /// It is refused, for this reason (one of a fixed set, for metrics: [`Reason::name`]).
    Denied(&'static str),
    /// What came is no admission review.
    Unreadable,
}

/// What is sent back.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body: an AdmissionReview in JSON, or a text where what came is none.
    pub body: Vec<u8>,
    /// What was decided.
    pub outcome: Outcome,
    /// One line for the log.
    pub summary: String,
}

/// What an answer depends on, apart from the question.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The labels of namespaces, and the API server's version, as far as they are known.
    pub namespaces: &'a dyn Namespaces,
    /// The pod that [`missing_pod`] names, if it could be had.
    pub pod: Option<&'a Value>,
}

/// Answers a review, knowing no namespace's labels.
pub fn answer(config: &Config, body: &[u8]) -> Answer {
    answer_in(&Context { config, namespaces: &Unknown, pod: None }, body)
}

/// Answers a review.
pub fn answer_in(context: &Context<'_>, body: &[u8]) -> Answer {
    match Question::read(body) {
        Ok(question) => question.answered(decide(context, &question)),
        Err(text) => Answer {
            status: 400,
            body: format!("no admission review: {text}\n").into_bytes(),
            outcome: Outcome::Unreadable,
            summary: format!("unreadable: {text}"),
        },
    }
}

/// A review that can be read, and the pods in it as they came.
struct Question {
    request: AdmissionRequest<Pod>,
    object: Value,
    old: Value,
}

impl Question {
    fn read(body: &[u8]) -> Result<Question, String> {
        let mut review: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let text = |review: &Value, field: &str| review.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
        let (kind, version) = (text(&review, "kind"), text(&review, "apiVersion"));
        if kind != META_KIND || version != META_API_VERSION_V1 {
            return Err(format!(
                "it is a {} of {}; accepted: an {META_KIND} of {META_API_VERSION_V1}",
                quoted(&kind),
                quoted(&version)
            ));
        }
        let Some(request) = review.get_mut("request").filter(|request| request.is_object()) else {
            return Err("it has no request".to_owned());
        };
        // Pods are read on their own: what is wrong with one is for whoever sent it to know.
        let mut take = |field: &str| request.get_mut(field).map_or(Value::Null, Value::take);
        let (object, old) = (take("object"), take("oldObject"));
        let mut request =
            AdmissionRequest::<Pod>::deserialize(&*request).map_err(|error| format!("its request: {error}"))?;
        request.types = TypeMeta { api_version: version, kind };
        Ok(Question { request, object, old })
    }

    fn answered(&self, verdict: Verdict) -> Answer {
        let mut response = AdmissionResponse::from(&self.request);
        let (mut outcome, mut patch) = (Outcome::Untouched, None);
        if !verdict.findings.warnings.is_empty() {
            response.warnings = Some(verdict.findings.warnings);
        }
        let mut summary = verdict.summary;
        if let Some(first) = verdict.findings.denials.first() {
            let reason = first.reason;
            outcome = Outcome::Denied(reason.name());
            let text = verdict.findings.denials.iter().map(Denial::to_string).collect::<Vec<_>>().join("; and ");
            summary = format!("denied ({}): {text}", reason.name());
            response.audit_annotations = HashMap::from([("denied".to_owned(), reason.name().to_owned())]);
            response.allowed = false;
            let word = if reason.code() == 400 { "BadRequest" } else { "Forbidden" };
            response.result = Status::failure(&format!("ration: {text}"), word).with_code(reason.code());
        } else if let Some(after) = verdict.pod
            && after != self.object
        {
            outcome = Outcome::Injected;
            patch = serde_json::to_vec(&json_patch::diff(&self.object, &after)).ok();
            response.audit_annotations = HashMap::from([("injected".to_owned(), summary.clone())]);
        }
        let mut review = serde_json::to_value(response.into_review()).unwrap_or(Value::Null);
        if let (Some(patch), Some(response)) = (patch, review.get_mut("response").and_then(Value::as_object_mut)) {
            // In base64, as the API has it: the type that is used here would write a list of numbers.
            response.insert("patch".to_owned(), json!(ByteString(patch)));
            response.insert("patchType".to_owned(), json!("JSONPatch"));
        }
        let whose = format!("{:?} {}", self.request.operation, self.whose()).to_lowercase();
        let summary = if summary.is_empty() { format!("{whose}: untouched") } else { format!("{whose}: {summary}") };
        Answer { status: 200, body: review.to_string().into_bytes(), outcome, summary: one_line(&summary) }
    }

    /// For the log: which pod.
    fn whose(&self) -> String {
        let text = |pointer| self.object.pointer(pointer).and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = text("/metadata/name").map(str::to_owned);
        let name = name.or_else(|| text("/metadata/generateName").map(|beginning| format!("{beginning}*")));
        let namespace = self.request.namespace.as_deref().unwrap_or("");
        format!("{namespace}/{}", name.as_deref().unwrap_or(&self.request.name))
    }
}

/// What is to be said about a pod, and what becomes of it.
#[derive(Default)]
struct Verdict {
    findings: Findings,
    pod: Option<Value>,
    summary: String,
}

impl Verdict {
    fn untouched(why: &str) -> Verdict {
        Verdict { summary: format!("untouched: {why}"), ..Verdict::default() }
    }

    fn denied(reason: Reason, text: String) -> Verdict {
        let mut verdict = Verdict::default();
        verdict.findings.deny(reason, text);
        verdict
    }
}

fn decide(context: &Context<'_>, question: &Question) -> Verdict {
    let request = &question.request;
    if request.resource.resource != "pods" || !request.resource.group.is_empty() {
        return Verdict::untouched("no pod");
    }
    let subresource = request.sub_resource.as_deref().unwrap_or("");
    if request.kind.kind == ephemeral::LIST {
        return ephemeral::listed(context, question);
    }
    let handler: fn(&Context<'_>, &Question, &Pod, &str) -> Verdict = match (&request.operation, subresource) {
        (Operation::Create, "") => created,
        (Operation::Update, "") => update::updated,
        (Operation::Update, "ephemeralcontainers") => ephemeral::added,
        _ => return Verdict::untouched("nothing to put anything into"),
    };
    let pod = match Pod::deserialize(&question.object) {
        Ok(pod) if pod.spec.is_some() => pod,
        Ok(_) => return Verdict::denied(Reason::UnreadablePod, "the pod has no spec; write one".to_owned()),
        Err(error) => {
            let text = format!("the pod cannot be read: {}; correct it", quoted(&error.to_string()));
            return Verdict::denied(Reason::UnreadablePod, text);
        }
    };
    let namespace = request.namespace.as_deref().or(pod.metadata.namespace.as_deref()).unwrap_or("");
    if !guard::is_label(namespace) {
        let text = format!("the pod is in no namespace that Kubernetes takes, but in {}", quoted(namespace));
        return Verdict::denied(Reason::UnreadablePod, text);
    }
    handler(context, question, &pod, namespace)
}

/// A pod that is to be made.
fn created(context: &Context<'_>, question: &Question, pod: &Pod, namespace: &str) -> Verdict {
    let rules = context.config.rules(namespace);
    if is_mirror(question, pod) {
        return Verdict::untouched("a static pod, which its node has started already");
    }
    if pod.spec.as_ref().and_then(|spec| spec.os.as_ref()).is_some_and(|os| os.name == "windows") {
        return Verdict::untouched("a pod for Windows");
    }
    let mut verdict = Verdict::default();
    match opts_out(pod) {
        Ok(false) => {}
        Ok(true) => return opted_out(context, rules, pod),
        Err(text) => verdict.findings.deny(Reason::Label, text),
    }
    let injection = mutate::inject(context.config, rules, namespace, pod, &question.object, &mut verdict.findings);
    let Some(injection) = injection else {
        verdict.summary = "untouched: no container has a GPU".to_owned();
        if crate::ask::annotations(pod).keys().any(|name| name.starts_with(PREFIX)) {
            verdict.findings.warn(format!(
                "the pod asks for part of a GPU, and none of its containers has one; add {}: 1 to the limits of one",
                context.config.added_gpu_resource()
            ));
        }
        return verdict;
    };
    let labels = context.namespaces.labels(namespace);
    if let Some(text) = namespaces::forbids_host_path(rules, labels.as_ref(), namespace) {
        verdict.findings.deny(Reason::PodSecurity, text);
    }
    if let Some(text) = namespaces::lacks_image_volumes(rules, context.namespaces.server_version(), namespace) {
        verdict.findings.deny(Reason::Delivery, text);
    }
    verdict.summary = injection.summary;
    verdict.pod = Some(injection.pod);
    verdict
}

/// The API server's image of a pod that a node started from a file. Changes to it would reach no container. Only nodes may
/// make them: of others, this is not believed.
fn is_mirror(question: &Question, pod: &Pod) -> bool {
    let by_node = question.request.user_info.groups.iter().flatten().any(|group| group == "system:nodes");
    by_node && crate::ask::annotations(pod).contains_key("kubernetes.io/config.mirror")
}

/// Whether the pod opts out. That its namespace, or it, opts in is for the API server to see, by the selectors of the webhook:
/// it knows a namespace's labels as they are, and what is known here may be older.
fn opts_out(pod: &Pod) -> Result<bool, String> {
    match pod.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL)).map(String::as_str) {
        None | Some("enabled") => Ok(false),
        Some("disabled") => Ok(true),
        Some(other) => Err(format!(
            "label {LABEL}={} is not understood; accepted: enabled, disabled; correct it, or remove it",
            quoted(other)
        )),
    }
}

fn opted_out(context: &Context<'_>, rules: &Rules, pod: &Pod) -> Verdict {
    let mut scratch = Findings::default();
    let has_gpu = !crate::ask::slices(context.config, rules, pod, None, &mut scratch).is_empty();
    if rules.opt_out == Policy::Deny && (has_gpu || !scratch.denials.is_empty()) {
        let text = format!(
            "label {LABEL}=disabled: this namespace lets no pod with a GPU opt out; remove the label, or run the pod in another \
             namespace"
        );
        return Verdict::denied(Reason::OptOut, text);
    }
    Verdict::untouched("the pod opts out")
}
