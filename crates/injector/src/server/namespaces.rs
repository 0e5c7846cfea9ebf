//! Follows the labels of namespaces, of which an admission review says nothing.
//!
//! What is not up to date is not said: while the API server cannot be followed, no namespace's labels are known, and the
//! selectors of the webhook's configuration decide alone.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams, PartialObjectMeta, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use tokio::time::timeout;

use crate::review::{Labels, Namespaces};
use crate::server::Webhook;

/// Only labels that begin so are kept: the others could be of any number and length.
const OF_INTEREST: [&str; 2] = ["ration.dev/", "pod-security.kubernetes.io/"];
/// So many namespaces are asked for at a time.
const PAGE: u32 = 500;
/// The API server ends a watch after so many seconds, and we begin the next: a connection that died silently is noticed then.
const WATCH_SECONDS: u32 = 60;
/// And if it does not.
const SILENCE: Duration = Duration::from_secs(70);
/// One page must come within this time.
const LIST_TIME: Duration = Duration::from_secs(15);
/// How soon to try again after a failure, at first and at most.
const SOON: Duration = Duration::from_millis(500);
const AT_MOST: Duration = Duration::from_secs(30);

/// The labels of all namespaces, while they are known; and the version of the API server.
#[derive(Debug, Default)]
pub struct Followed {
    labels: RwLock<Option<HashMap<String, Labels>>>,
    version: RwLock<Option<(u32, u32)>>,
}

impl Namespaces for Followed {
    fn labels(&self, namespace: &str) -> Option<Labels> {
        self.labels.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(namespace).cloned()
    }

    fn server_version(&self) -> Option<(u32, u32)> {
        *self.version.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Followed {
    fn replace(&self, all: Option<HashMap<String, Labels>>) {
        *self.labels.write().unwrap_or_else(PoisonError::into_inner) = all;
    }

    fn learn_version(&self, version: Option<(u32, u32)>) {
        if version.is_some() {
            *self.version.write().unwrap_or_else(PoisonError::into_inner) = version;
        }
    }

    /// Changes what is known, and says of how many namespaces that is.
    fn change(&self, change: impl FnOnce(&mut HashMap<String, Labels>)) -> usize {
        let mut all = self.labels.write().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        change(all);
        all.len()
    }
}

/// Follows them for as long as the program runs.
pub async fn follow(client: Client, webhook: Arc<Webhook>) {
    let namespaces = Api::<Namespace>::all(client.clone());
    let mut pause = SOON;
    loop {
        // An upgrade ends the watch, and so the new version is learned.
        webhook.namespaces.learn_version(version(&client).await);
        let why = match list(&namespaces, &webhook).await {
            Ok(version) => {
                webhook.gates.namespaces.store(true, Ordering::Relaxed);
                pause = SOON;
                watch(&namespaces, version, &webhook).await
            }
            Err(why) => why,
        };
        webhook.namespaces.replace(None);
        webhook.metrics.namespaces_lost();
        tracing::warn!(why, "the labels of namespaces cannot be followed now; until then none are known");
        // That is a state to go on in, so nobody waits for a better one.
        webhook.gates.namespaces.store(true, Ordering::Relaxed);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AT_MOST);
    }
}

/// The API server's version, if it says one. Some write more than a number: `33+`.
async fn version(client: &Client) -> Option<(u32, u32)> {
    let told = timeout(LIST_TIME, client.apiserver_version()).await.ok()?.ok()?;
    parsed_version(&told.major, &told.minor)
}

fn parsed_version(major: &str, minor: &str) -> Option<(u32, u32)> {
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    Some((number(major)?, number(minor)?))
}

/// Asks for all. Says from where on to watch.
async fn list(namespaces: &Api<Namespace>, webhook: &Webhook) -> Result<String, String> {
    let mut all = HashMap::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = timeout(LIST_TIME, namespaces.list_metadata(&params)).await;
        let page = page.map_err(|_| "the API server does not answer".to_owned())?.map_err(|why| why.to_string())?;
        all.extend(page.items.iter().map(|namespace| (namespace.name_any(), of_interest(namespace))));
        let more = page.metadata.continue_.filter(|more| !more.is_empty());
        if more.is_none() {
            webhook.metrics.namespaces(all.len());
            tracing::debug!(namespaces = all.len(), "the labels of namespaces are known");
            webhook.namespaces.replace(Some(all));
            return Ok(page.metadata.resource_version.unwrap_or_default());
        }
        params.continue_token = more;
    }
}

/// Takes what changes. Ends, with the reason, when all must be asked for again.
async fn watch(namespaces: &Api<Namespace>, mut version: String, webhook: &Webhook) -> String {
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    loop {
        let events = match timeout(LIST_TIME, namespaces.watch_metadata(&params, &version)).await {
            Ok(Ok(events)) => events,
            Ok(Err(why)) => return why.to_string(),
            Err(_) => return "the API server does not answer".to_owned(),
        };
        let mut events = pin!(events);
        loop {
            let known = match timeout(SILENCE, events.next()).await {
                Err(_) => return "the API server has gone silent".to_owned(),
                // A watch has ended as it should: the next goes on from there.
                Ok(None) => break,
                Ok(Some(Err(why))) => return why.to_string(),
                Ok(Some(Ok(WatchEvent::Error(status)))) => return format!("{} ({})", status.message, status.code),
                Ok(Some(Ok(WatchEvent::Bookmark(bookmark)))) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                Ok(Some(Ok(WatchEvent::Added(namespace) | WatchEvent::Modified(namespace)))) => {
                    version = namespace.resource_version().unwrap_or(version);
                    let labels = of_interest(&namespace);
                    webhook.namespaces.change(|all| drop(all.insert(namespace.name_any(), labels)))
                }
                Ok(Some(Ok(WatchEvent::Deleted(namespace)))) => {
                    version = namespace.resource_version().unwrap_or(version);
                    webhook.namespaces.change(|all| drop(all.remove(&namespace.name_any())))
                }
            };
            webhook.metrics.namespaces(known);
        }
    }
}

fn of_interest(namespace: &PartialObjectMeta<Namespace>) -> Labels {
    let kept = namespace.labels().iter().filter(|(name, _)| OF_INTEREST.iter().any(|begin| name.starts_with(begin)));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_clouds_write_them() {
        assert_eq!(parsed_version("1", "33"), Some((1, 33)));
        assert_eq!(parsed_version("1", "33+"), Some((1, 33)));
        assert_eq!(parsed_version("", ""), None);
    }
}
