//! Keeps CA and certificate in a Secret that replicas share, and the CA in the webhook's configuration.
//!
//! Replicas need no leader. Each looks every few seconds, and does what is to be done; the API server lets only one of
//! them write, for what is written must be based on the newest, and the others take what that one wrote.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Error};

use super::authority::{Plan, Step, Stored, step};
use super::{Certificate, unix_now, x509};
use crate::server::Webhook;

/// How often to look while all is well.
const EVERY: Duration = Duration::from_secs(10);
/// How soon to look again after a failure, at first and at most.
const SOON: Duration = Duration::from_millis(500);
const AT_MOST: Duration = Duration::from_secs(30);
/// So often in one round another replica may have been faster.
const ATTEMPTS: usize = 8;
/// One request to the API server may take so long.
const REQUEST_TIME: Duration = Duration::from_secs(15);

const TRUSTED: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const NEXT_CA: &str = "next-ca.crt";
const NEXT_CA_KEY: &str = "next-ca.key";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// A replica's part in keeping them.
#[derive(Clone)]
#[allow(missing_debug_implementations)] // a client has none
pub struct Keeper {
    /// The cluster's API.
    pub client: Client,
    /// Where the Secret is.
    pub namespace: String,
    /// What the Secret is called.
    pub secret: String,
    /// What the MutatingWebhookConfiguration is called.
    pub configuration: String,
    /// What is made.
    pub plan: Plan,
}

/// What a round found, or left behind.
#[derive(Debug)]
pub struct Found {
    /// What replicas share.
    pub stored: Stored,
    /// Why it was written, if this replica wrote it.
    pub written: Option<&'static str>,
    /// Whether this replica changed the webhook's configuration.
    pub told: bool,
}

/// Whether to go on, or to look again because another was faster.
enum Round {
    Done(Box<Found>),
    Again,
}

impl Keeper {
    /// Looks again and again. What cannot be done is said, and tried again; what is served is served on.
    pub async fn keep(self, webhook: Arc<Webhook>) {
        let mut served = None;
        let mut pause = SOON;
        loop {
            match self.round(unix_now()).await.and_then(|found| self.take(found, &mut served, &webhook)) {
                Ok(()) => {
                    webhook.gates.trusted.store(true, Ordering::Relaxed);
                    webhook.metrics.certificate_in_order();
                    pause = SOON;
                    tokio::time::sleep(EVERY).await;
                }
                Err(why) => {
                    webhook.metrics.certificate_failed();
                    tracing::error!(why, "the certificate cannot be looked after now");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(AT_MOST);
                }
            }
        }
    }

    /// Serves what was found, where that is new.
    fn take(&self, found: Found, served: &mut Option<(String, String)>, webhook: &Webhook) -> Result<(), String> {
        if let Some(why) = found.written {
            tracing::info!(secret = self.secret, why, "CA and certificate were written");
        }
        if found.told {
            tracing::info!(configuration = self.configuration, "the CA was written into the webhook's configuration");
        }
        let pair = found.stored.certificate;
        if served.as_ref() != Some(&pair) {
            let certificate = Certificate::from_pem(pair.0.as_bytes(), pair.1.as_bytes())?;
            webhook.served.set(&certificate);
            webhook.metrics.certificate_taken(certificate.expires());
            tracing::info!(expires = %x509::written(certificate.expires()), "a certificate is served");
            *served = Some(pair);
        }
        Ok(())
    }

    /// Does what is to be done now.
    pub async fn round(&self, now: i64) -> Result<Found, String> {
        let mut written = None;
        for _ in 0..ATTEMPTS {
            if let Round::Done(found) = self.attempt(now, &mut written).await? {
                return Ok(*found);
            }
        }
        Err(format!("secret {}/{} is changed by others all the time", self.namespace, self.secret))
    }

    async fn attempt(&self, now: i64, written: &mut Option<&'static str>) -> Result<Round, String> {
        let configurations = Api::<MutatingWebhookConfiguration>::all(self.client.clone());
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        // The configuration first. What is written into it below is refused if it changed since, so an old state of the
        // Secret cannot get into it after a new one has.
        let configuration = within(configurations.get_opt(&self.configuration)).await;
        let configuration = configuration
            .map_err(|why| format!("mutatingwebhookconfiguration {} cannot be read: {why}", self.configuration))?;
        let secret = within(secrets.get_opt(&self.secret)).await;
        let secret =
            secret.map_err(|why| format!("secret {}/{} cannot be read: {why}", self.namespace, self.secret))?;

        let stored = secret.as_ref().and_then(stored);
        let told = configuration.as_ref().map(told_to_trust).unwrap_or_default();
        let stored = match step(&self.plan, stored.as_ref(), &told, now)? {
            Step::Keep => stored.unwrap_or_default(),
            Step::Write(new, why) => {
                if !self.write(&secrets, secret, &new).await? {
                    return Ok(Round::Again);
                }
                *written = Some(why);
                *new
            }
        };
        let Some(configuration) = configuration else {
            return Err(format!(
                "there is no mutatingwebhookconfiguration {}: create it, or say with --webhook-configuration what it is called",
                self.configuration
            ));
        };
        let Some(patch) = trusting(&configuration, &stored.trusted) else {
            return Ok(Round::Done(Box::new(Found { stored, written: *written, told: false })));
        };
        let params = PatchParams::default();
        match within(configurations.patch(&self.configuration, &params, &Patch::Json::<()>(patch))).await {
            Ok(_) => Ok(Round::Done(Box::new(Found { stored, written: *written, told: true }))),
            Err(why) if why.is(&[409, 422]) => Ok(Round::Again),
            Err(why) => Err(format!("mutatingwebhookconfiguration {} cannot be changed: {why}", self.configuration)),
        }
    }

    /// Whether it was written; if not, another was faster.
    async fn write(&self, secrets: &Api<Secret>, old: Option<Secret>, new: &Stored) -> Result<bool, String> {
        let data = data(new);
        let done = match old {
            // With the version that was read: it is refused if that is not the newest any more.
            Some(old) => {
                let secret = Secret { data: Some(data), ..old };
                within(secrets.replace(&self.secret, &PostParams::default(), &secret)).await
            }
            None => {
                let labels = BTreeMap::from([("app.kubernetes.io/name".to_owned(), "ration-injector".to_owned())]);
                let metadata =
                    ObjectMeta { name: Some(self.secret.clone()), labels: Some(labels), ..ObjectMeta::default() };
                let secret =
                    Secret { metadata, data: Some(data), type_: Some("Opaque".to_owned()), ..Secret::default() };
                within(secrets.create(&PostParams::default(), &secret)).await
            }
        };
        match done {
            Ok(_) => Ok(true),
            // Changed meanwhile, made meanwhile, or removed meanwhile.
            Err(why) if why.is(&[409, 404]) => Ok(false),
            Err(why) => Err(format!("secret {}/{} cannot be written: {why}", self.namespace, self.secret)),
        }
    }
}

/// Why a request to the API server came to nothing.
#[derive(Debug)]
enum Failed {
    TooSlow,
    Refused(Box<Error>),
}

impl Failed {
    /// Whether the API server answered with one of these codes.
    fn is(&self, codes: &[u16]) -> bool {
        matches!(self, Failed::Refused(why) if matches!(&**why, Error::Api(status) if codes.contains(&status.code)))
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failed::TooSlow => write!(f, "no answer from the API server within {} s", REQUEST_TIME.as_secs()),
            Failed::Refused(why) => match &**why {
                Error::Api(status) => write!(f, "{} ({})", status.message, status.code),
                other => write!(f, "{other}"),
            },
        }
    }
}

async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, Failed> {
    match tokio::time::timeout(REQUEST_TIME, request).await {
        Ok(answer) => answer.map_err(|why| Failed::Refused(Box::new(why))),
        Err(_) => Err(Failed::TooSlow),
    }
}

/// What a Secret holds, if it holds anything.
fn stored(secret: &Secret) -> Option<Stored> {
    let data = secret.data.as_ref().filter(|data| !data.is_empty())?;
    let text = |key| data.get(key).map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
    Some(Stored {
        trusted: text(TRUSTED).unwrap_or_default(),
        ca_key: text(CA_KEY).unwrap_or_default(),
        next: text(NEXT_CA).zip(text(NEXT_CA_KEY)),
        certificate: (text(CERTIFICATE).unwrap_or_default(), text(KEY).unwrap_or_default()),
    })
}

fn data(stored: &Stored) -> BTreeMap<String, ByteString> {
    let mut data = BTreeMap::new();
    let mut put = |key: &str, text: &str| drop(data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec())));
    put(TRUSTED, &stored.trusted);
    put(CA_KEY, &stored.ca_key);
    put(CERTIFICATE, &stored.certificate.0);
    put(KEY, &stored.certificate.1);
    if let Some((certificate, key)) = &stored.next {
        put(NEXT_CA, certificate);
        put(NEXT_CA_KEY, key);
    }
    data
}

/// What API servers trust for every webhook of the configuration: of several that differ, nothing.
fn told_to_trust(configuration: &MutatingWebhookConfiguration) -> String {
    let mut bundles = configuration.webhooks.iter().flatten().map(|webhook| &webhook.client_config.ca_bundle);
    let first = bundles.next().cloned().flatten();
    if bundles.any(|bundle| *bundle != first) {
        return String::new();
    }
    first.map(|bundle| String::from_utf8_lossy(&bundle.0).into_owned()).unwrap_or_default()
}

/// What to change in the configuration so that this is trusted, if anything: only that, and only if nobody was faster.
fn trusting(configuration: &MutatingWebhookConfiguration, trusted: &str) -> Option<json_patch::Patch> {
    let wanted = ByteString(trusted.as_bytes().to_vec());
    let webhooks = configuration.webhooks.iter().flatten().enumerate();
    let wrong = webhooks.filter(|(_, webhook)| webhook.client_config.ca_bundle.as_ref() != Some(&wanted));
    let changes: Vec<_> = wrong
        .map(|(at, _)| {
            serde_json::json!({"op": "add", "path": format!("/webhooks/{at}/clientConfig/caBundle"), "value": &wanted})
        })
        .collect();
    if changes.is_empty() {
        return None;
    }
    let version = configuration.metadata.resource_version.as_deref().unwrap_or_default();
    let mut patch = vec![serde_json::json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
    patch.extend(changes);
    // It is a patch, for it was just written as one.
    serde_json::from_value(serde_json::Value::Array(patch)).ok()
}
