//! Asks for a pod that a review only names: API servers before 1.23 send the ephemeral containers of one, and not the pod.

use std::time::Duration;

use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;
use tokio::time::timeout;

use crate::review::{Namespaces as _, PodName, missing_pod};
use crate::server::Webhook;

/// From this version on, reviews have the pod itself.
const WHOLE_POD: (u32, u32) = (1, 23);
/// The API server waits five seconds for the answer to its review, by our configuration.
const PATIENCE: Duration = Duration::from_secs(3);

/// The pod that a review needs and does not have; nothing for all others, and where it cannot be had.
pub(super) async fn missing_in(webhook: &Webhook, body: &[u8]) -> Option<Value> {
    let client = webhook.cluster.get()?;
    // Of a newer server, no review is read twice.
    webhook.namespaces.server_version().filter(|version| *version < WHOLE_POD)?;
    let wanted = missing_pod(body)?;
    match timeout(PATIENCE, ask(client.clone(), &wanted)).await {
        Ok(Ok(pod)) => Some(pod),
        Ok(Err(why)) => {
            tracing::warn!(namespace = wanted.namespace, pod = wanted.name, why, "a pod could not be asked for");
            None
        }
        Err(_) => {
            tracing::warn!(namespace = wanted.namespace, pod = wanted.name, "the API server does not answer");
            None
        }
    }
}

/// As it came: a field that our types do not know is not lost on the way.
async fn ask(client: Client, wanted: &PodName) -> Result<Value, String> {
    let pods = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
    let pods = Api::<DynamicObject>::namespaced_with(client, &wanted.namespace, &pods);
    let pod = pods.get(&wanted.name).await.map_err(|why| why.to_string())?;
    serde_json::to_value(pod).map_err(|why| why.to_string())
}
