//! Containers that are added to a running pod, `kubectl debug`'s: they join the slice of the container that they look at.

use k8s_openapi::api::core::v1::{EphemeralContainer, Pod};
use serde::Deserialize as _;

use super::{Context, Question, Verdict};
use crate::ask::{Findings, Reason, gpu};
use crate::config::{Policy, Preload};
use crate::mutate::{self, guard};

/// Puts the library into the ephemeral containers that are new.
pub(super) fn added(context: &Context<'_>, question: &Question, pod: &Pod, namespace: &str) -> Verdict {
    let injected = mutate::injected(pod);
    if injected.is_empty() {
        return Verdict::untouched("the pod was not injected");
    }
    let old = Pod::deserialize(&question.old).unwrap_or_default();
    let there: Vec<&str> = ephemeral(&old).map(|one| one.name.as_str()).collect();
    let rules = context.config.rules(namespace);
    let mut verdict = Verdict::default();
    let mut after = question.object.clone();
    let mut joined = Vec::new();
    for (index, one) in ephemeral(pod).enumerate().filter(|(_, one)| !there.contains(&one.name.as_str())) {
        let target = target(one, &injected, &mut verdict.findings);
        let container = mutate::as_container(one);
        if rules.privileged == Policy::Deny {
            guard::check_privileges_of(&container, target.is_some(), &mut verdict.findings);
        }
        guard::check_mounts(&container, target.map(|_| Preload::Env), &mut verdict.findings);
        let Some(target) = target else { continue };
        let env = container.env.as_deref().unwrap_or_default();
        guard::check_env(env, &container.name, Preload::Env, &mut verdict.findings);
        mutate::inject_ephemeral(&mut after, index, target);
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
