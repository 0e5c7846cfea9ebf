//! As much of an API server as the webhook uses: Secrets, a webhook configuration and namespaces, with versions, conflicts,
//! JSON patches and watches. It runs in the test's own process, and keeps account of what it was asked.

#![allow(clippy::unwrap_used)] // in a test, a panic is how it fails

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::{Barrier, broadcast};

pub const SECRETS: &str = "/api/v1/namespaces/ration/secrets";
pub const SECRET: &str = "/api/v1/namespaces/ration/secrets/certs";
pub const CONFIGURATION: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/ration-injector";
const NAMESPACES: &str = "/api/v1/namespaces";

/// What the API server holds and how it behaves.
#[derive(Default)]
pub struct World {
    revision: u64,
    objects: BTreeMap<String, Value>,
    /// How often which request was answered how: `"PUT 409"`.
    pub account: BTreeMap<String, usize>,
    /// Requests for these paths are forbidden.
    pub forbidden: Vec<&'static str>,
    /// So often, somebody else changes an object just before it is written.
    pub meddle: usize,
    /// Where the first readers of the Secret wait for each other.
    pub race: Option<Arc<Barrier>>,
}

impl World {
    /// Puts an object there, as somebody else would.
    pub fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    pub fn get(&self, path: &str) -> Option<&Value> {
        self.objects.get(path)
    }

    pub fn remove(&mut self, path: &str) {
        self.objects.remove(path);
    }
}

/// The API server.
#[derive(Clone)]
pub struct Cluster {
    pub address: SocketAddr,
    world: Arc<Mutex<World>>,
    events: broadcast::Sender<Option<Value>>,
}

impl Cluster {
    /// With a webhook configuration that has two webhooks and trusts nobody yet.
    pub fn start() -> Cluster {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let cluster = Cluster {
            address: listener.local_addr().unwrap(),
            world: Arc::new(Mutex::new(World::default())),
            events: broadcast::Sender::new(64),
        };
        let webhook = |name: &str| {
            json!({"name": name, "clientConfig": {"service": {"name": "injector", "namespace": "ration", "path": "/mutate"}},
                "admissionReviewVersions": ["v1"], "sideEffects": "None", "aFieldOfTheFuture": {"kept": true}})
        };
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "ration-injector"}, "webhooks": [webhook("pods.ration.dev"), webhook("labelled.ration.dev")]});
        cluster.world(|world| drop(world.put(CONFIGURATION, configuration)));
        let served = cluster.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let router = axum::Router::new().fallback(answer).with_state(served);
                axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), router).await.unwrap();
            });
        });
        cluster
    }

    /// Looks at what it holds, or changes it.
    pub fn world<T>(&self, look: impl FnOnce(&mut World) -> T) -> T {
        look(&mut self.world.lock().unwrap())
    }

    /// Gives a namespace labels, and tells whoever watches.
    pub fn label(&self, namespace: &str, labels: &Value) {
        let path = format!("{NAMESPACES}/{namespace}");
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}});
        let (known, object) = self.world(|world| (world.get(&path).is_some(), world.put(&path, object)));
        let kind = if known { "MODIFIED" } else { "ADDED" };
        let _ = self.events.send(Some(json!({"type": kind, "object": partial(object)})));
    }

    /// Ends all watches, by an error if there is one.
    pub fn end_watches(&self, error: Option<Value>) {
        if let Some(error) = error {
            let _ = self.events.send(Some(json!({"type": "ERROR", "object": error})));
        }
        let _ = self.events.send(None);
    }

    /// How often that was answered so.
    pub fn count(&self, what: &str) -> usize {
        self.world(|world| world.account.get(what).copied().unwrap_or(0))
    }

    /// What API servers trust, by both webhooks.
    pub fn trusted(&self) -> Option<String> {
        let configuration = self.world(|world| world.get(CONFIGURATION).cloned())?;
        let bundle = |at: usize| configuration["webhooks"][at]["clientConfig"]["caBundle"].as_str().map(str::to_owned);
        assert_eq!(bundle(0), bundle(1));
        let bytes: k8s_openapi::ByteString = serde_json::from_value(json!(bundle(0)?)).unwrap();
        Some(String::from_utf8(bytes.0).unwrap())
    }

    /// A file that leads a client here.
    pub fn kubeconfig(&self, directory: &Path) -> String {
        let path = directory.join("kubeconfig");
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "ration"}}]});
        std::fs::write(&path, config.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A client.
    pub fn client(&self) -> kube::Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        kube::Client::try_from(kube::Config::new(format!("http://{}", self.address).parse().unwrap())).unwrap()
    }
}

fn partial(mut object: Value) -> Value {
    object["apiVersion"] = json!("meta.k8s.io/v1");
    object["kind"] = json!("PartialObjectMetadata");
    object
}

fn refusal(code: u16, message: &str) -> Result<Value, (u16, Value)> {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        _ => "Invalid",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code});
    Err((code, status))
}

async fn answer(State(cluster): State<Cluster>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or("").to_owned());
    let body = body.collect().await.unwrap().to_bytes();
    if path == SECRET && head.method == Method::GET {
        let race = cluster.world(|world| world.race.clone());
        if let Some(race) = race {
            // Whoever comes later finds nobody to wait for.
            let _ = tokio::time::timeout(std::time::Duration::from_secs(5), race.wait()).await;
            cluster.world(|world| world.race = None);
        }
    }
    if path == NAMESPACES && query.contains("watch=true") {
        return watch(&cluster, &query);
    }
    let done = cluster.world(|world| act(world, &head.method, &path, &body));
    let (code, body) = match done {
        Ok(object) => (200, object),
        Err(refused) => refused,
    };
    let kind = path.split('/').nth(if path.starts_with("/apis") { 4 } else { 5 }).unwrap_or("namespaces");
    cluster.world(|world| *world.account.entry(format!("{} {kind} {code}", head.method)).or_default() += 1);
    (StatusCode::from_u16(code).unwrap(), [("content-type", "application/json")], body.to_string()).into_response()
}

fn act(world: &mut World, method: &Method, path: &str, body: &Bytes) -> Result<Value, (u16, Value)> {
    if world.forbidden.iter().any(|forbidden| path.starts_with(forbidden)) {
        return refusal(403, &format!("User \"test\" cannot {method} {path}"));
    }
    if path == NAMESPACES {
        let all = world.objects.iter().filter(|(at, _)| at.starts_with(NAMESPACES) && at.split('/').count() == 5);
        let items: Vec<Value> = all.map(|(_, object)| partial(object.clone())).collect();
        return Ok(json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": items,
            "metadata": {"resourceVersion": world.revision.to_string()}}));
    }
    if *method == Method::POST {
        let object: Value = serde_json::from_slice(body).unwrap();
        let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
        return if world.get(&path).is_some() { refusal(409, "it exists") } else { Ok(world.put(&path, object)) };
    }
    let Some(old) = world.get(path).cloned() else { return refusal(404, &format!("{path} not found")) };
    if *method == Method::GET {
        return Ok(old);
    }
    if world.meddle > 0 {
        world.meddle -= 1;
        let old = world.get(path).cloned().unwrap();
        world.put(path, old);
    }
    let old = world.get(path).cloned().unwrap();
    if *method == Method::PUT {
        let object: Value = serde_json::from_slice(body).unwrap();
        let newest = object["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"];
        return if newest { Ok(world.put(path, object)) } else { refusal(409, "it has changed") };
    }
    let patch: json_patch::Patch = serde_json::from_slice(body).unwrap();
    let mut object = old;
    match json_patch::patch(&mut object, &patch) {
        Ok(()) => Ok(world.put(path, object)),
        Err(why) => refusal(422, &why.to_string()),
    }
}

/// What happened since that version is not kept: a test does nothing between a list and the watch that follows it.
fn watch(cluster: &Cluster, query: &str) -> Response {
    *cluster.world.lock().unwrap().account.entry("watch".to_owned()).or_default() += 1;
    assert!(query.contains("resourceVersion="), "{query}");
    let events = stream::unfold(cluster.events.subscribe(), |mut events| async move {
        let event = events.recv().await.ok()??;
        Some((Ok::<_, std::io::Error>(Bytes::from(format!("{event}\n"))), events))
    });
    ([("content-type", "application/json")], Body::from_stream(events)).into_response()
}
