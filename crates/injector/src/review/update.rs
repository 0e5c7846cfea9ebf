//! Changes to a pod that exists. Its containers stay as they were injected; what can change is what they ask for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize as _;

use super::{Context, Question, Verdict};
use crate::ask::{self, LABEL, PREFIX, annotations, foreign, is_written_by_injector};
use crate::mutate::{self, Place, edit};

/// What is asked for changed: quotas are worked out again. It did not: they stay as they are, whatever the configuration
/// says by now, for a change of a label or the removal of a finalizer must not fail because a maximum was lowered.
pub(super) fn updated(context: &Context<'_>, question: &Question, pod: &Pod, namespace: &str) -> Verdict {
    let Ok(old) = Pod::deserialize(&question.old) else { return Verdict::untouched("what it was cannot be read") };
    let injected = mutate::injected(&old);
    let asks_anew = asking(pod) != asking(&old);
    if injected.is_empty() {
        let mut verdict = Verdict::untouched("the pod was not injected");
        if asks_anew && !asking(pod).is_empty() {
            verdict.findings.warn(
                "the pod runs without the library, so what its annotations ask for takes effect only in a new pod",
            );
        }
        return verdict;
    }
    let mut verdict = Verdict::default();
    let mut written = written(&old);
    if asks_anew {
        let rules = context.config.rules(namespace);
        let chosen = |name: &str| injected.contains(&name);
        let slices = ask::slices(context.config, rules, pod, Some(&chosen), &mut verdict.findings);
        written.extend(mutate::quotas(namespace, &slices, &|container| Place::found(&old, container)));
        verdict.summary = "quotas changed".to_owned();
    }
    let mut after = question.object.clone();
    for name in annotations(pod).keys().filter(|name| is_written_by_injector(name) && !written.contains_key(*name)) {
        edit::remove_annotation(&mut after, name);
    }
    edit::set_annotations(&mut after, &written);
    let theirs = self::written(pod);
    if theirs != self::written(&old) && theirs != written {
        verdict.findings.warn(format!(
            "annotations {PREFIX}quota.*, {PREFIX}preload and {PREFIX}injected are the injector's, and were put back; change \
             {PREFIX}memory or {PREFIX}compute instead"
        ));
        if verdict.summary.is_empty() {
            verdict.summary = "annotations put back".to_owned();
        }
    }
    if label(&old) == Some("enabled") && label(pod) != Some("enabled") {
        edit::set_label(&mut after, LABEL, "enabled");
        verdict.findings.warn(format!(
            "label {LABEL} stays enabled on a pod that runs with the library, for its changes are seen by it"
        ));
        if verdict.summary.is_empty() {
            verdict.summary = "label put back".to_owned();
        }
    }
    verdict.pod = Some(after);
    verdict
}

/// Without it, the API server would not ask about the next change, if it is the pod and not its namespace that opted in.
fn label(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(LABEL).map(String::as_str)
}

/// The annotations that the injector wrote.
fn written(pod: &Pod) -> BTreeMap<String, String> {
    let ours = annotations(pod).iter().filter(|(name, _)| is_written_by_injector(name));
    ours.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The annotations with which something is asked for.
fn asking(pod: &Pod) -> BTreeMap<&str, &str> {
    let runai = [foreign::FRACTION, foreign::MEMORY_MIB, foreign::DEVICES, foreign::CONTAINER];
    let asks = |name: &str| name.starts_with(PREFIX) && !is_written_by_injector(name) || runai.contains(&name);
    annotations(pod)
        .iter()
        .filter(|(name, _)| asks(name))
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}
