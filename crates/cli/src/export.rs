//! `ration export`: what `ration status` sees, for Prometheus.
//!
//! The names are those of the node part's ([`ration_metrics`]). Each answer is a fresh look; between two nothing is done.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use clap::Args;
use prometheus_client::registry::Registry;
use ration_metrics::{Container, MEDIA_TYPE, Region};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::cards::Cards;
use crate::look::{self, Report};
use crate::places;

/// The ports that exporters register, 9100 to 9999, are used up.
const ADDRESS: &str = "127.0.0.1:19786";

/// Tells Prometheus who has what of this machine's GPUs.
///
/// It answers at /metrics, in the OpenMetrics format, until it is told to end. It sees what `ration status` sees; docs/metrics.md says what
/// each metric is. Names of slices are in the answers: let nobody reach the port who should not read them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ration export\n  ration export --once > /var/lib/node_exporter/ration.prom")]
pub struct Arguments {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADDRESS)]
    listen: SocketAddr,
    /// Prints the metrics and ends
    #[arg(long, conflicts_with = "listen")]
    once: bool,
}

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    let done = if arguments.once { print() } else { serve(arguments.listen) };
    match done {
        Ok(status) => status,
        Err(error) => {
            let _ = writeln!(io::stderr(), "ration export: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whoever scrapes waits for no driver; one that prints once may.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

fn print() -> Result<ExitCode, String> {
    let cards = Cards::ask();
    cards.wait(FIRST_ANSWER);
    let mut out = io::stdout().lock();
    // Whoever reads us has seen enough.
    let written = out.write_all(page(&cards).as_bytes()).and_then(|()| out.flush());
    Ok(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(141) })
}

fn serve(address: SocketAddr) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => format!("{address} is used by somebody already; --listen takes another address"),
            _ => format!("cannot listen on {address}: {error}; --listen takes another address"),
        })?;
        let bound = listener.local_addr().map_err(|error| format!("cannot listen on {address}: {error}"))?;
        let end = |kind: SignalKind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
        let (mut terminate, mut interrupt) = (end(SignalKind::terminate())?, end(SignalKind::interrupt())?);
        let _ = writeln!(io::stderr(), "ration export: metrics are at http://{bound}/metrics");
        let cards = Cards::ask();
        let metrics = move || async move { ([(CONTENT_TYPE, MEDIA_TYPE)], page(&cards)) };
        let pages = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/", get(|| async { "ration's metrics are at /metrics\n" }));
        tokio::select! {
            ended = async { axum::serve(listener, pages).await } => ended.map_err(|error| format!("cannot go on: {error}"))?,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// A fresh look.
fn page(cards: &Cards) -> String {
    let places = places::settings();
    let mut report = Report::now(places.dir.as_deref(), places.own_dir.as_deref());
    cards.tell(&mut report);
    let mut registry = Registry::default();
    ration_metrics::register(&mut registry, &regions(&report));
    ration_metrics::text(&registry)
}

/// The containers by GPU and directory. A damaged file is a region that nobody can join.
fn regions(report: &Report) -> Vec<Region> {
    let mut regions: BTreeMap<(String, String), Region> = BTreeMap::new();
    for gpu in &report.gpus {
        for it in &gpu.containers {
            let directory = name_of(&it.directory);
            let region = regions.entry((gpu.uuid.clone(), directory.clone())).or_insert_with(|| Region {
                gpu: gpu.uuid.clone(),
                index: gpu.index,
                directory,
                is_sound: true,
                memory: gpu.memory_bytes,
                ..Region::default()
            });
            region.containers.push(container(it));
        }
    }
    for problem in &report.problems {
        let path = Path::new(&problem.path);
        let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let uuid = file.strip_prefix("gpu-").and_then(|it| it.strip_suffix(".region").or(it.strip_suffix(".public")));
        let directory = path.parent().map(|dir| name_of(&dir.to_string_lossy())).unwrap_or_default();
        if let Some(uuid) = uuid {
            let gpu = format!("GPU-{uuid}");
            let region = regions.entry((gpu.clone(), directory.clone())).or_default();
            (region.gpu, region.directory, region.is_sound) = (gpu, directory, false);
        }
    }
    regions.into_values().collect()
}

fn name_of(directory: &str) -> String {
    Path::new(directory).file_name().map_or_else(|| directory.to_owned(), |name| name.to_string_lossy().into_owned())
}

fn container(it: &look::Container) -> Container {
    let part = |percent: f64| percent / 100.0;
    let dead = it.processes.as_ref().map(|all| all.iter().filter(|process| !process.is_alive).count() as u64);
    Container {
        name: it.name.clone(),
        used: it.used_bytes,
        peak: it.peak_bytes,
        cap: it.cap_bytes,
        refused: it.refused,
        limit: Some(part(it.limit_percent)),
        request: it.request_percent.map(part),
        usage: it.usage_percent.map(part),
        gpu_seconds: it.gpu_seconds,
        throttled_seconds: it.throttled_seconds,
        waited_seconds: it.waited_seconds,
        leases: it.leases,
        switches: it.switches,
        switched_by: it.switched_by.map(str::to_owned),
        kernels: it.kernels,
        graphs: it.graphs,
        processes: it.process_count.map(|alive| (alive, dead.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::Problem;
    use crate::look::tests::report;

    #[test]
    fn what_is_seen_is_told_by_directory() {
        let mut report = report();
        let path = "/run/ration/1002-broken/gpu-6f1c2f7a-0000-0000-0000-000000000001.region";
        report.problems.push(Problem { path: path.into(), why: "too short".into() });
        report.problems.push(Problem { path: "/run/ration/else".into(), why: "no directory".into() });
        let mut registry = Registry::default();
        ration_metrics::register(&mut registry, &regions(&report));
        let text = ration_metrics::text(&registry);
        let gpu = r#"gpu="GPU-6f1c2f7a-0000-0000-0000-000000000001",index="""#;
        for line in [
            format!(r#"ration_region_joinable{{{gpu},directory="1002-broken"}} 0"#),
            format!(r#"ration_region_joinable{{{gpu},directory="1000-team%2ftrain"}} 1"#),
            format!(
                r#"ration_container_memory_refused_total{{{gpu},directory="1000-team%2ftrain",namespace="",pod="",container="team/train"}} 2.0"#
            ),
        ] {
            assert!(text.lines().any(|it| it == line), "no {line} in\n{text}");
        }
        assert_eq!(text.matches("ration_region_joinable{").count(), 3, "{text}");
    }
}
