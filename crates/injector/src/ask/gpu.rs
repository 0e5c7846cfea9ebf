//! Which containers have a GPU.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar};
use k8s_openapi::apimachinery::pkg::api::resource;

use super::{Quantity, foreign};
use crate::config::Config;

/// Whether a container has a GPU: by a resource, by a claim (which may be for another device, but that is not to be seen
/// here), or because NVIDIA's runtime is told to give it one.
pub fn has_gpu(config: &Config, container: &Container) -> bool {
    let resources = container.resources.as_ref();
    let by_resource = resources.is_some_and(|resources| {
        [&resources.limits, &resources.requests].into_iter().flatten().any(|list| names_gpu(config, list))
    });
    let by_claim = resources.and_then(|resources| resources.claims.as_ref()).is_some_and(|claims| !claims.is_empty());
    by_resource || by_claim || env_gives_gpu(container.env.as_deref().unwrap_or_default())
}

fn names_gpu(config: &Config, list: &BTreeMap<String, resource::Quantity>) -> bool {
    // What is no quantity is refused by the API server later; until then it may well be a GPU.
    let some = |amount: &resource::Quantity| Quantity::parse(&amount.0).is_none_or(|amount| !amount.is_zero());
    // What is about to be removed makes no GPU, though the configuration may say nvidia.com/*.
    let removed = |name: &str| config.translate_foreign && foreign::is_translated(config, name);
    list.iter().any(|(name, amount)| config.is_gpu_resource(name) && !removed(name) && some(amount))
}

/// Whether `NVIDIA_VISIBLE_DEVICES` makes NVIDIA's container runtime give it a GPU. The last of several counts; one whose
/// value cannot be seen may name a GPU.
pub fn env_gives_gpu(env: &[EnvVar]) -> bool {
    env.iter().rev().find(|one| one.name == "NVIDIA_VISIBLE_DEVICES").is_some_and(|one| {
        one.value_from.is_some() || !matches!(one.value.as_deref().unwrap_or("").trim(), "" | "void" | "none")
    })
}
