//! The webhook over HTTP: `/mutate` on a port with TLS; `/healthz`, `/readyz` and `/metrics` on a plain one.
//!
//! | module | what it does |
//! |---|---|
//! | this one | what is answered to which request |
//! | [`connections`] | accepts connections, and lets them end without losing a request |
//! | [`namespaces`] | follows the labels of namespaces |
//! | [`pods`] | asks for a pod that a review only names |
//! | [`command`] | `ration-injector webhook`: its arguments, and what runs beside what |

pub mod command;
pub mod connections;
pub mod namespaces;
pub mod pods;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::sync::{Semaphore, watch};
use tokio::time::{timeout, timeout_at};

use crate::certs::Served;
use crate::config::Config;
use crate::metrics::{Metrics, outcome_name};
use crate::reload::Current;
use crate::review::{self, Outcome};
use namespaces::Followed;

/// The longest review that is read: as long as the longest request that the API server itself takes. A pod that long could not
/// be stored, and of an update, which comes with the old pod, the two that can be are not longer together.
pub const LONGEST_REVIEW: usize = 3 << 20;

/// So much of reviews is held at a time, in KiB, and so much of that is being answered: more waits. An answer takes some fifty
/// times the memory of its question, so with these memory has a bound that no number of clients can move.
const HELD_REVIEWS: u32 = 8 << 10;
const ANSWERED_REVIEWS: u32 = (LONGEST_REVIEW >> 10) as u32 + 1;

/// Reviews up to this length, as those of nearly all pods are, are held without a limit of their own: whoever promises long ones
/// and is slow to send them keeps nobody else waiting. There are only so many connections.
const SHORT_REVIEW: u64 = 64 << 10;

/// After a review of this length, what it took is given back to the system.
const LONG_REVIEW: usize = 256 << 10;

/// What has not come by then, or has not had its turn, is given up. The API server itself waits five seconds by our configuration, and
/// thirty by anyone's.
const READING_TIME: Duration = Duration::from_secs(10);

/// How long, and how much of, a body that is not wanted is still read, so that the answer is not lost in a reset.
const UNWANTED_TIME: Duration = Duration::from_secs(1);
const UNWANTED_BYTES: usize = 64 << 20;

/// Where the program is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Everything is served.
    Serving,
    /// Everything is still served, but we are not ready any more, and connections end with their next answer.
    Draining,
    /// No connection is accepted; what was begun is ended.
    Stopping,
}

/// What must be there before the API server may send anything.
#[derive(Debug, Default)]
pub struct Gates {
    /// The API server trusts the certificate's CA, where that is ours to see to.
    pub trusted: AtomicBool,
    /// The labels of namespaces are known, where they are followed.
    pub namespaces: AtomicBool,
}

/// What all requests share.
pub struct Webhook {
    /// The configuration in force.
    pub config: Current<Config>,
    /// What is counted.
    pub metrics: Metrics,
    /// The certificate that is served.
    pub served: Arc<Served>,
    /// The labels of namespaces.
    pub namespaces: Followed,
    /// The cluster's API, where there is one to ask.
    pub cluster: OnceLock<kube::Client>,
    /// What must be there first.
    pub gates: Gates,
    phase: watch::Sender<Phase>,
    held: Semaphore,
    answered: Semaphore,
}

impl Webhook {
    /// Serving, with this configuration; ready once its gates are open and there is a certificate.
    pub fn new(config: Config) -> Webhook {
        Webhook {
            config: Current::new(config),
            metrics: Metrics::new(),
            served: Arc::new(Served::default()),
            namespaces: Followed::default(),
            cluster: OnceLock::new(),
            gates: Gates::default(),
            phase: watch::Sender::new(Phase::Serving),
            held: Semaphore::new(HELD_REVIEWS as usize),
            answered: Semaphore::new(ANSWERED_REVIEWS as usize),
        }
    }

    /// Goes on to the next phase of life.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Follows the phases of life.
    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// What is missing before the API server may send anything.
    pub fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if *self.phase.borrow() != Phase::Serving {
            missing.push("shutting down");
        }
        if !self.served.ready() {
            missing.push("no certificate yet");
        }
        if !self.gates.trusted.load(Ordering::Relaxed) {
            missing.push("the CA is not in the webhook's configuration yet");
        }
        if !self.gates.namespaces.load(Ordering::Relaxed) {
            missing.push("the labels of namespaces are not known yet");
        }
        missing
    }
}

/// What is served with TLS.
pub fn reviews(webhook: Arc<Webhook>) -> Router {
    Router::new().route("/mutate", post(mutate)).with_state(webhook)
}

/// What is served without.
pub fn status(webhook: Arc<Webhook>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(webhook)
}

async fn ready(State(webhook): State<Arc<Webhook>>) -> Response {
    match webhook.missing().as_slice() {
        [] => "ready\n".into_response(),
        missing => {
            let lines: String = missing.iter().map(|what| format!("not ready: {what}\n")).collect();
            (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
        }
    }
}

async fn metrics(State(webhook): State<Arc<Webhook>>) -> Response {
    ([(header::CONTENT_TYPE, crate::metrics::MEDIA_TYPE)], webhook.metrics.text()).into_response()
}

async fn mutate(State(webhook): State<Arc<Webhook>>, request: Request) -> Response {
    let begun = Instant::now();
    let until = (begun + READING_TIME).into();
    let body = request.into_body();
    let announced = http_body::Body::size_hint(&body).upper().unwrap_or(LONGEST_REVIEW as u64);
    if announced > LONGEST_REVIEW as u64 {
        return refuse(&webhook, Unread::TooLarge, Some(body)).await;
    }
    // A body of an unknown length counts as the longest.
    let room = if announced <= SHORT_REVIEW { 0 } else { kibibytes(announced) };
    let Ok(Ok(_held)) = timeout_at(until, webhook.held.acquire_many(room)).await else {
        return refuse(&webhook, Unread::Busy, Some(body)).await;
    };
    let body = match timeout_at(until, whole(body)).await {
        Err(_) => return refuse(&webhook, Unread::Slow, None).await,
        Ok(Err(why)) => return refuse(&webhook, why, None).await,
        Ok(Ok(body)) => body,
    };
    let length = body.len();
    let Ok(Ok(_turn)) = timeout_at(until, webhook.answered.acquire_many(kibibytes(length as u64))).await else {
        return refuse(&webhook, Unread::Busy, None).await;
    };
    let pod = pods::missing_in(&webhook, &body).await;
    let response = answer(&webhook, &body, pod.as_ref(), begun);
    if length >= LONG_REVIEW {
        drop(body);
        give_back();
    }
    response
}

/// Of a review that is not too long.
fn kibibytes(bytes: u64) -> u32 {
    u32::try_from(bytes / 1024 + 1).unwrap_or(ANSWERED_REVIEWS).min(ANSWERED_REVIEWS)
}

/// Gives memory that is free back to the system, where the allocator would keep it.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, from any thread, and changes nothing but what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Why a body was not read to its end.
#[derive(Debug, Clone, Copy)]
enum Unread {
    TooLarge,
    Slow,
    Busy,
    CutOff,
}

async fn whole(body: Body) -> Result<Bytes, Unread> {
    match Limited::new(body, LONGEST_REVIEW).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(why) if why.is::<LengthLimitError>() => Err(Unread::TooLarge),
        Err(_) => Err(Unread::CutOff),
    }
}

async fn refuse(webhook: &Webhook, why: Unread, rest: Option<Body>) -> Response {
    let (reason, status, text) = match why {
        Unread::TooLarge => {
            ("too-large", StatusCode::PAYLOAD_TOO_LARGE, "an admission review has at most 3 MiB; this one is longer\n")
        }
        Unread::Slow => ("slow", StatusCode::REQUEST_TIMEOUT, "the body did not come within 10 s\n"),
        Unread::Busy => ("busy", StatusCode::SERVICE_UNAVAILABLE, "too much is waiting to be read; try again\n"),
        Unread::CutOff => ("cut-off", StatusCode::BAD_REQUEST, "the body ended too early\n"),
    };
    webhook.metrics.rejected(reason);
    tracing::debug!(reason, "a request was not read");
    if let Some(mut rest) = rest {
        let discard = async {
            let mut left = UNWANTED_BYTES;
            while let Some(Ok(frame)) = rest.frame().await {
                let length = frame.data_ref().map_or(0, Bytes::len);
                let Some(less) = left.checked_sub(length) else { break };
                left = less;
            }
        };
        let _ = timeout(UNWANTED_TIME, discard).await;
    }
    let mut response = (status, text).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn answer(webhook: &Webhook, body: &[u8], pod: Option<&serde_json::Value>, begun: Instant) -> Response {
    let config = webhook.config.get();
    let context = review::Context { config: &config, namespaces: &webhook.namespaces, pod };
    // It is not meant to panic, and one pod that makes it do so must not take the others' answers along.
    let answered = std::panic::catch_unwind(AssertUnwindSafe(|| review::answer_in(&context, body)));
    let took = begun.elapsed();
    let Ok(answer) = answered else {
        webhook.metrics.failed(took);
        tracing::error!(bytes = body.len(), "a review could not be answered: a fault in this program");
        let text = "the injector could not answer this review: a fault in it, which its log shows\n";
        return (StatusCode::INTERNAL_SERVER_ERROR, text).into_response();
    };
    webhook.metrics.answered(answer.outcome, took);
    log(&answer, took);
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = match answer.outcome {
        Outcome::Unreadable => "text/plain; charset=utf-8",
        _ => "application/json",
    };
    (status, [(header::CONTENT_TYPE, kind)], answer.body).into_response()
}

/// One line per admission.
fn log(answer: &review::Answer, took: Duration) {
    let outcome = outcome_name(answer.outcome);
    let reason = if let Outcome::Denied(reason) = answer.outcome { Some(reason) } else { None };
    let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    match answer.outcome {
        Outcome::Unreadable => tracing::warn!(outcome, microseconds, "{}", answer.summary),
        _ => tracing::info!(outcome, reason, microseconds, "{}", answer.summary),
    }
}
