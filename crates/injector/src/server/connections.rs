//! Accepts connections, and lets them end without losing a request.
//!
//! HTTP/1.1 only: the API server speaks nothing else to webhooks, so that its requests spread over replicas.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, header};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::certs::{self, Served};
use crate::server::{Phase, Webhook};

/// TLS must be set up in this time.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// The longest head of a request.
const LONGEST_HEAD: usize = 32 << 10;

/// When no connection is accepted any more, those that are open may still use what is already under way for this long.
const LINGER: Duration = Duration::from_millis(500);

/// After an accept that failed for want of something, such as descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// One port, and what is served there.
#[allow(missing_debug_implementations)] // TLS has none
pub struct Port {
    /// Where connections come in.
    pub listener: TcpListener,
    /// With TLS or without.
    pub tls: Option<TlsAcceptor>,
    /// What is answered.
    pub router: Router,
    /// So many connections at a time; more wait to be accepted.
    pub most: u32,
    /// A connection on which nothing comes is closed after this time.
    pub idle: Duration,
}

/// Counts a connection while it is open, however it ends.
struct Counted(Arc<Webhook>);

impl Counted {
    fn new(webhook: Arc<Webhook>) -> Counted {
        webhook.metrics.connections().inc();
        Counted(webhook)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics.connections().dec();
    }
}

/// TLS with whatever certificate is served at the time.
pub fn tls(served: Arc<Served>) -> Result<TlsAcceptor, String> {
    let mut config = ServerConfig::builder_with_provider(certs::provider())
        .with_safe_default_protocol_versions()
        .map_err(|why| format!("TLS cannot be set up: {why}"))?
        .with_no_client_auth()
        .with_cert_resolver(served);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl Port {
    /// Serves until the webhook stops, then lets connections end for at most `end`. Says how many had to be cut off.
    pub async fn serve(self, webhook: Arc<Webhook>, end: Duration) -> usize {
        let connections = Arc::new(Semaphore::new(self.most as usize));
        let mut stop = webhook.phases();
        let mut stopped = std::pin::pin!(stopping(&mut stop));
        loop {
            let next = async {
                let permit = Arc::clone(&connections).acquire_owned().await;
                (permit, self.listener.accept().await)
            };
            match tokio::select! { () = stopped.as_mut() => break, next = next => next } {
                (Ok(permit), Ok((stream, _))) => {
                    let (tls, router) = (self.tls.clone(), self.router.clone());
                    drop(tokio::spawn(connection(stream, tls, router, self.idle, Arc::clone(&webhook), permit)));
                }
                (_, Err(why)) => pause(&why).await,
                // Only closing the semaphore would do this, and nobody does.
                (Err(_), _) => break,
            }
        }
        // Whoever is already in the queue was promised a connection. The kernel is asked itself, for it may know of some that
        // the runtime has not heard of yet.
        if let Ok(listener) = self.listener.into_std() {
            while let Ok((stream, _)) = listener.accept() {
                let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                let (Ok(permit), Ok(stream)) = (Arc::clone(&connections).try_acquire_owned(), stream) else { break };
                let (tls, router) = (self.tls.clone(), self.router.clone());
                drop(tokio::spawn(connection(stream, tls, router, self.idle, Arc::clone(&webhook), permit)));
            }
        }
        let _ = timeout(end, connections.acquire_many(self.most)).await;
        self.most as usize - connections.available_permits()
    }
}

/// One connection, from its first byte to its last.
async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    router: Router,
    idle: Duration,
    webhook: Arc<Webhook>,
    _permit: OwnedSemaphorePermit,
) {
    // An answer is one write; waiting for more to send would only delay it.
    let _ = stream.set_nodelay(true);
    let phases = webhook.phases();
    let Some(tls) = tls else { return requests(stream, router, idle, phases).await };
    let _counted = Counted::new(Arc::clone(&webhook));
    match timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
        Ok(Ok(stream)) => requests(stream, router, idle, phases).await,
        Ok(Err(why)) => {
            webhook.metrics.handshake_failed();
            tracing::debug!(%why, "TLS was not set up");
        }
        Err(_) => {
            webhook.metrics.handshake_failed();
            tracing::debug!("TLS was not set up in time");
        }
    }
}

/// Answers what comes on one connection, until either side ends it.
async fn requests<S>(stream: S, router: Router, idle: Duration, mut phases: watch::Receiver<Phase>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let phase = phases.clone();
    let inner = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        let (answer, phase) = (inner.call(request), phase.clone());
        async move {
            let mut answer = answer.await?;
            if *phase.borrow() != Phase::Serving {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stopping(&mut phases) => timeout(LINGER, connection.as_mut()).await.ok(),
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(why) = ended {
        tracing::debug!(%why, "a connection ended by an error");
    }
}

/// Until no connection is accepted any more.
async fn stopping(phases: &mut watch::Receiver<Phase>) {
    // An error means that the webhook is gone, which is as good a reason to stop.
    let _ = phases.wait_for(|phase| *phase == Phase::Stopping).await;
}

/// A client that went away is no reason to wait; a want of descriptors or memory is.
async fn pause(why: &io::Error) {
    if matches!(why.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    tracing::error!(%why, "no connection can be accepted");
    tokio::time::sleep(PAUSE).await;
}
