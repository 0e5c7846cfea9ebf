//! Containers that are added to a running pod, `kubectl debug`'s: they join the slice of the container that they look at.
//!
//! From Kubernetes 1.23 on, their review has the whole pod. Before, it has a list of them and the pod's name: whoever serves
//! reviews asks for that pod ([`missing_pod`]) and lends it.

use k8s_openapi::api::core::v1::{EphemeralContainer, Pod};
use serde::Deserialize;
use serde_json::Value;

use super::{Context, Question, Verdict};
use crate::ask::{Findings, Reason, gpu, quoted};
use crate::config::{Policy, Preload};
use crate::mutate::{self, guard};

/// What the list without a pod is called.
pub(super) const LIST: &str = "EphemeralContainers";
/// Where it has them; in a pod, they are in its spec under the same name.
const FIELD: &str = "ephemeralContainers";

/// Which pod.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

/// The pod without which a review cannot be answered, where it has only the list.
pub fn missing_pod(body: &[u8]) -> Option<PodName> {
    #[derive(Deserialize)]
    struct Review {
        request: Request,
    }
    #[derive(Deserialize)]
    struct Request {
        kind: Kind,
        #[serde(flatten)]
        pod: PodName,
    }
    #[derive(Deserialize)]
    struct Kind {
        kind: String,
    }
    let Review { request } = serde_json::from_slice(body).ok()?;
    // They become part of an address, and anybody may send a review.
    let name = request.pod.name.as_bytes();
    let is_plain = guard::is_label(&request.pod.namespace)
        && name.first().is_some_and(u8::is_ascii_alphanumeric)
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
        && name.len() <= 253;
    (request.kind.kind == LIST && is_plain).then_some(request.pod)
}

/// Puts the library into the ephemeral containers of a list that are new.
pub(super) fn listed(context: &Context<'_>, question: &Question) -> Verdict {
    let namespace = question.request.namespace.as_deref().unwrap_or("");
    let Some(pod) = context.pod else {
        let text = format!(
            "pod {} in namespace {} could not be asked for, and before Kubernetes 1.23 nothing else says in which slice its \
             ephemeral containers are; have whoever runs the injector let its ServiceAccount get pods, or try again",
            quoted(&question.request.name),
            quoted(namespace)
        );
        return Verdict::denied(Reason::EphemeralTarget, text);
    };
    let (object, old) = (with_list(pod, &question.object), with_list(pod, &question.old));
    let Ok(typed) = Pod::deserialize(&object) else {
        let text = "the ephemeral containers cannot be read; correct them".to_owned();
        return Verdict::denied(Reason::UnreadablePod, text);
    };
    let whole = Question { request: question.request.clone(), object, old };
    let mut verdict = added(context, &whole, &typed, namespace);
    verdict.pod = verdict.pod.map(|mut pod| {
        let mut list = question.object.clone();
        if let (Some(after), Some(place)) = (pod.pointer_mut("/spec/ephemeralContainers"), list.get_mut(FIELD)) {
            *place = after.take();
        }
        list
    });
    verdict
}

/// The pod with the ephemeral containers of a list.
fn with_list(pod: &Value, list: &Value) -> Value {
    let mut pod = pod.clone();
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert(FIELD.to_owned(), list.get(FIELD).cloned().unwrap_or(Value::Null));
    }
    pod
}

/// Puts the library into the ephemeral containers that are new.
pub(super) fn added(context: &Context<'_>, question: &Question, pod: &Pod, namespace: &str) -> Verdict {
    let injected = mutate::injected(pod);
    if injected.is_empty() {
        return Verdict::untouched("the pod was not injected");
    }
    let old = Pod::deserialize(&question.old).unwrap_or_default();
    let there: Vec<&str> = ephemeral(&old).map(|one| one.name.as_str()).collect();
    let rules = context.config.rules(namespace);
    let shares = mutate::shares_region(pod);
    let mut verdict = Verdict::default();
    let mut after = question.object.clone();
    let mut joined = Vec::new();
    for (index, one) in ephemeral(pod).enumerate().filter(|(_, one)| !there.contains(&one.name.as_str())) {
        let target = target(one, &injected, &mut verdict.findings);
        let container = mutate::as_container(one);
        if rules.privileged == Policy::Deny {
            guard::check_privileges_of(&container, target.is_some(), &mut verdict.findings);
        }
        let places = if target.is_some() { guard::places(Preload::Env) } else { Vec::new() };
        guard::check_mounts(&container, &places, shares, &mut verdict.findings);
        let Some(target) = target else { continue };
        let env = container.env.as_deref().unwrap_or_default();
        guard::check_env(env, &container.name, Preload::Env, &mut verdict.findings);
        if shares && gpu::env_gives_gpu(env) {
            verdict.findings.warn(format!(
                "ephemeral container {}: it has no directory of its own on the node, so it cannot be held together with {target}, and \
                 the library refuses it GPU work",
                one.name
            ));
        }
        mutate::inject_ephemeral(&mut after, index, target, shares);
        joined.push(format!("{} joins {target}", one.name));
    }
    verdict.summary = joined.join("; ");
    verdict.pod = Some(after);
    verdict
}

fn ephemeral(pod: &Pod) -> impl Iterator<Item = &EphemeralContainer> {
    pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten())
}

/// In whose slice it is: that of its target, or of the only one that there is.
fn target<'a>(one: &EphemeralContainer, injected: &[&'a str], findings: &mut Findings) -> Option<&'a str> {
    let named = one.target_container_name.as_deref().filter(|name| !name.is_empty());
    let found = match (named, injected) {
        (Some(named), _) => injected.iter().find(|name| **name == named).copied(),
        (None, [only]) => Some(*only),
        (None, _) => None,
    };
    let gives_gpu = gpu::env_gives_gpu(one.env.as_deref().unwrap_or_default());
    if found.is_none() && gives_gpu {
        let text = format!(
            "ephemeral container {}: it has a GPU (NVIDIA_VISIBLE_DEVICES), and it is not clear in whose slice; name its target \
             (kubectl debug --target), one of {}",
            one.name,
            injected.join(", ")
        );
        findings.deny(Reason::EphemeralTarget, text);
    } else if found.is_none() && named.is_none() {
        findings.warn(format!(
            "ephemeral container {}: without a target it is in no slice, and has no GPU; name one with kubectl debug --target",
            one.name
        ));
    }
    found
}
