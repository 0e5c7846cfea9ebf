//! Looks after the node for as long as it runs: puts back what is missing, reaps, and says over HTTP how the node is.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{debug, error, info, warn};

use super::metrics::{self, Counts};
use super::old::{self, Grace};
use super::reap::{self, Memory};
use super::regions;
use super::report::{self, Status};
use super::store::{self, Deed, Library, Serving, Store, Turn};
use super::uses::Processes;

/// What is looked after, and how.
#[derive(Debug)]
pub struct Settings {
    /// Where the libraries are.
    pub store: Store,
    /// Where the regions are.
    pub region_dir: PathBuf,
    /// The processes that can be seen.
    pub processes: Processes,
    /// How often.
    pub every: Duration,
    /// How long what is unused is left.
    pub grace: Grace,
    /// Where to say how the node is.
    pub address: Option<SocketAddr>,
}

/// What was found when the node was last looked after.
#[derive(Debug, Default)]
struct Last {
    at: Option<Instant>,
    problems: Vec<String>,
    counts: Counts,
}

struct Node {
    settings: Settings,
    library: Library,
    begun: Instant,
    last: Mutex<Last>,
    /// What was last told, for those who ask too often.
    told: Mutex<Option<(Instant, Arc<Status>)>>,
}

/// What only the one who looks after the node needs.
#[derive(Default)]
struct Caretaker {
    serving: Option<Serving>,
    memory: Memory,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Caretaker {
    /// Everything that there is to do, once.
    fn look_after(&mut self, node: &Node) {
        let Settings { store, region_dir, processes, grace, .. } = &node.settings;
        let name = &node.library.name;
        let (mut deeds, mut problems) = (Vec::new(), Vec::new());
        // A process that has just been started is what somebody wants now; later, whoever came after it is.
        let turn = if self.serving.is_some() { Turn::UnlessServed } else { Turn::Always };
        let mut attempt = |outcome: Result<(), String>| outcome.map_err(|problem| problems.push(problem)).is_ok();
        // In this order: pods that get the library have their directories made in there.
        let has_directory = attempt(store::ensure_directory(region_dir, regions::DIRECTORY_MODE, &mut deeds));
        let installed = attempt(store.install(&node.library, turn, &mut deeds));
        if installed && !self.serving.as_ref().is_some_and(|it| store.is_serving(it, name)) {
            attempt(store.serve(name).map(|serving| self.serving = Some(serving)));
        }
        if installed {
            attempt(old::sweep(store, name, processes, *grace, &mut deeds));
        }
        let mut reaped = Vec::new();
        if has_directory {
            let outcome = reap::reap(region_dir, processes, *grace, Instant::now(), &mut self.memory);
            attempt(outcome.map(|all| reaped = all));
        }
        for deed in &deeds {
            match deed {
                Deed::Repaired(..) => warn!("{deed}"),
                _ => info!("{deed}"),
            }
        }
        reaped.iter().for_each(|it| info!("{it}"));
        node.note(problems, &deeds, reaped.len());
    }
}

impl Node {
    fn note(&self, problems: Vec<String>, deeds: &[Deed], reaped: usize) {
        let mut last = lock(&self.last);
        // What is said once is not said every time.
        for problem in problems.iter().filter(|it| !last.problems.contains(it)) {
            error!("{problem}");
        }
        if problems.is_empty() && (!last.problems.is_empty() || last.at.is_none()) {
            info!(library = %self.library.name, sha256 = %self.library.sha256, "the node is ready");
        }
        debug!(problems = problems.len(), deeds = deeds.len(), reaped, "looked after the node");
        let repairs = deeds.iter().filter(|it| !matches!(it, Deed::Removed(_) | Deed::Cleared(_))).count();
        // The first time, all is new.
        last.counts.repairs += if last.at.is_some() { repairs as u64 } else { 0 };
        last.counts.checks += 1;
        last.counts.failures += u64::from(!problems.is_empty());
        last.counts.reaped += reaped as u64;
        last.at = Some(Instant::now());
        last.problems = problems;
    }

    /// How the node is, as of a moment ago at most.
    fn status(&self) -> Arc<Status> {
        const FRESH: Duration = Duration::from_secs(1);
        let mut told = lock(&self.told);
        if let Some((_, status)) = told.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Arc::clone(status);
        }
        let Settings { store, region_dir, processes, .. } = &self.settings;
        let mut status = report::inspect(store, region_dir, processes);
        for problem in &lock(&self.last).problems {
            if !status.problems.contains(problem) {
                status.problems.push(problem.clone());
            }
        }
        status.ready = status.problems.is_empty();
        let status = Arc::new(status);
        *told = Some((Instant::now(), Arc::clone(&status)));
        status
    }

    /// Whether the node is being looked after at all.
    fn health(&self) -> Result<(), String> {
        let late = (self.settings.every * 3).max(Duration::from_secs(60));
        let since = lock(&self.last).at.unwrap_or(self.begun).elapsed();
        if since <= late { Ok(()) } else { Err(format!("the node was last looked after {} s ago", since.as_secs())) }
    }

    fn readiness(&self) -> Result<(), String> {
        let last = lock(&self.last);
        match (last.at, last.problems.is_empty()) {
            (None, _) => Err("the node has not been looked after yet".to_owned()),
            (Some(_), true) => Ok(()),
            (Some(_), false) => Err(last.problems.join("\n")),
        }
    }
}

fn answer(outcome: Result<(), String>) -> Response {
    match outcome {
        Ok(()) => "ok\n".into_response(),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, problem + "\n").into_response(),
    }
}

/// Files are read for it, so it is done where nobody waits for the thread.
async fn status_of(node: Arc<Node>) -> Option<Arc<Status>> {
    tokio::task::spawn_blocking(move || node.status()).await.ok()
}

async fn status_page(State(node): State<Arc<Node>>) -> Response {
    let text = status_of(node).await.and_then(|status| serde_json::to_string_pretty(&*status).ok());
    match text {
        Some(text) => ([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn metrics_page(State(node): State<Arc<Node>>) -> Response {
    let counts = lock(&node.last).counts;
    match status_of(node).await {
        Some(status) => {
            ([(header::CONTENT_TYPE, ration_metrics::MEDIA_TYPE)], metrics::text(&status, counts)).into_response()
        }
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn pages(node: Arc<Node>) -> Router {
    Router::new()
        .route("/healthz", get(|State(node): State<Arc<Node>>| async move { answer(node.health()) }))
        .route("/readyz", get(|State(node): State<Arc<Node>>| async move { answer(node.readiness()) }))
        .route("/status", get(status_page))
        .route("/metrics", get(metrics_page))
        .with_state(node)
}

/// Looks after the node until it is told to stop.
pub fn run(settings: Settings, library: Library) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    let begun = Instant::now();
    let node = Arc::new(Node { settings, library, begun, last: Mutex::default(), told: Mutex::default() });
    let outcome = runtime.block_on(look_after(node));
    // Whatever is being done may be left half done: the next process finishes it.
    runtime.shutdown_background();
    outcome
}

async fn look_after(node: Arc<Node>) -> Result<(), String> {
    let listen = |kind: SignalKind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
    let (mut end, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    if let Some(address) = node.settings.address {
        let listener =
            TcpListener::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))?;
        let bound = listener.local_addr().map_err(|error| format!("cannot listen on {address}: {error}"))?;
        info!(address = %bound, "says how the node is");
        let pages = pages(Arc::clone(&node));
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, pages).await {
                error!("no longer says how the node is: {error}");
            }
        });
    }
    let every = node.settings.every;
    let all = if node.settings.processes.all { "all processes of the host" } else { "not all processes of the host" };
    info!(library = %node.library.name, every = every.as_secs_f64(), "looks after the node, and sees {all}");
    let work = async move {
        let mut caretaker = Caretaker::default();
        loop {
            let node = Arc::clone(&node);
            let done = tokio::task::spawn_blocking(move || {
                caretaker.look_after(&node);
                caretaker
            });
            match done.await {
                Ok(back) => caretaker = back,
                Err(error) => return Err(format!("looking after the node failed: {error}")),
            }
            tokio::time::sleep(every).await;
        }
    };
    tokio::select! {
        outcome = work => outcome,
        _ = end.recv() => { info!("told to end; the node stays as it is"); Ok(()) }
        _ = interrupt.recv() => { info!("interrupted; the node stays as it is"); Ok(()) }
    }
}
