//! `ration-injector webhook`: its arguments, and what runs beside what.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::certs::FromFiles;
use crate::certs::authority::Plan;
use crate::certs::cluster::Keeper;
use crate::config::Config;
use crate::logs;
use crate::reload::Files;
use crate::server::connections::{self, Port};
use crate::server::namespaces;
use crate::server::{Phase, Webhook, reviews, status};

/// The API server holds a few connections per replica of its own.
const MOST_REVIEWERS: u32 = 512;
/// Probes and a scraper or two.
const MOST_LOOKERS: u32 = 32;

/// Longer than the 90 s after which Go's client, which the API server is, closes a connection on which nothing happens: whoever
/// closes first cannot send into a connection that is going away.
const REVIEWER_IDLE: Duration = Duration::from_secs(120);
/// Nobody may keep probes out by sitting there.
const LOOKER_IDLE: Duration = Duration::from_secs(10);

/// Answers the API server's admission reviews: puts the library into pods that ask for a slice of a GPU
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where admission reviews are answered, with TLS, at /mutate
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics are, without TLS
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8080")]
    pub status: SocketAddr,
    /// What to do, in YAML; followed when it changes. Without it, everything is at its default
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// The certificate to serve and what it was issued by, in PEM; followed when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<String>,
    /// The certificate's key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<String>,
    /// Make a CA and a certificate, renew them in time, and keep them in this Secret, which replicas share
    #[arg(long, value_name = "NAME", conflicts_with = "tls_cert", required_unless_present = "tls_cert")]
    pub cert_secret: Option<String>,
    /// The MutatingWebhookConfiguration into which that CA is written
    #[arg(long, value_name = "NAME", default_value = "ration-injector")]
    pub webhook_configuration: String,
    /// The Service by which the API server reaches us: what that certificate is made for
    #[arg(long, value_name = "NAME", default_value = "ration-injector")]
    pub service: String,
    /// The namespace of Service and Secret [default: the pod's own]
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub namespace: Option<String>,
    /// One more name or address that the certificate is made for; may be given several times
    #[arg(long, value_name = "NAME")]
    pub name: Vec<String>,
    /// How long a CA that was made is valid
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = duration)]
    pub ca_life: Duration,
    /// How long a certificate that was made is valid
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = duration)]
    pub cert_life: Duration,
    /// How long a new CA is trusted before it is used
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub ca_settle: Duration,
    /// Talk to no API server: the labels of namespaces are then not known, and certificates must come as files
    #[arg(long, conflicts_with = "cert_secret")]
    pub offline: bool,
    /// How long to go on answering after SIGTERM, not ready, while the cluster learns that we are going
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub drain_delay: Duration,
    /// How long requests that were begun may take after that
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub drain_timeout: Duration,
    /// How often files are looked at; a change counts when it was found twice
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub reload_interval: Duration,
    /// How many threads answer
    #[arg(long, value_name = "NUMBER", default_value = "2", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub threads: u8,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub log: logs::Args,
}

/// `90s`, `1.5h`: a number and `ms`, `s`, `m`, `h` or `d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err("expected a number and ms, s, m, h or d, such as 500ms or 5s".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "expected a number before the unit, such as 5s".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|why| why.to_string())
}

/// Runs until it is told to end.
pub fn run(args: Args) -> ExitCode {
    logs::start(args.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(usize::from(args.threads))
        // Only name look-ups and the like are done there.
        .max_blocking_threads(4)
        .thread_name("webhook")
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(serve(args)),
        Err(why) => Err(format!("no threads can be started: {why}")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!("{why}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: Args) -> Result<(), String> {
    // Taken before anything else, so that a signal during the start is not lost and does not kill.
    let mut ends = Ends::new()?;
    let mut config_file = args.config.as_ref().map(|path| Files::new([path]));
    let config = match &mut config_file {
        Some(file) => parse(file.take())?,
        None => Config::default(),
    };
    let webhook = Arc::new(Webhook::new(config));
    webhook.metrics.config_reloaded(true);

    let reviewers = listen(args.listen).await?;
    let lookers = listen(args.status).await?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = %shown(&reviewers),
        status = %shown(&lookers),
        config = args.config.as_deref().unwrap_or("defaults"),
        "started"
    );

    let client = client(&args).await?;
    let mut helpers = tokio::task::JoinSet::new();
    let mut certificate_files = None;
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let files = FromFiles::start(certificate, key, &webhook.served, &webhook.metrics)
            .map_err(|why| format!("--tls-cert {certificate}, --tls-key {key}: {why}"))?;
        certificate_files = Some(files);
        webhook.gates.trusted.store(true, Ordering::Relaxed);
    } else if let (Some(secret), Some((client, own))) = (&args.cert_secret, &client) {
        let keeper = keeper(&args, secret, client.clone(), own)?;
        helpers.spawn(keeper.keep(Arc::clone(&webhook)));
    }
    match client {
        Some((client, _)) => {
            let _ = webhook.cluster.set(client.clone());
            drop(helpers.spawn(namespaces::follow(client, Arc::clone(&webhook))));
        }
        None => webhook.gates.namespaces.store(true, Ordering::Relaxed),
    }
    helpers.spawn(follow(Arc::clone(&webhook), config_file, certificate_files, args.reload_interval));

    let tls = connections::tls(Arc::clone(&webhook.served))?;
    let router = reviews(Arc::clone(&webhook));
    let reviews = Port { listener: reviewers, tls: Some(tls), router, most: MOST_REVIEWERS, idle: REVIEWER_IDLE };
    let router = status(Arc::clone(&webhook));
    let status = Port { listener: lookers, tls: None, router, most: MOST_LOOKERS, idle: LOOKER_IDLE };
    let reviews = tokio::spawn(reviews.serve(Arc::clone(&webhook), args.drain_timeout));
    let status = tokio::spawn(status.serve(Arc::clone(&webhook), Duration::ZERO));

    tokio::select! {
        () = ends.next() => {}
        // None of them ends by itself, and without it we would go on with old certificates, labels or settings.
        Some(ended) = helpers.join_next() => {
            return Err(format!("a part of the program ended by a fault: {:?}", ended.err()));
        }
    }
    tracing::info!(delay = ?args.drain_delay, "told to end: not ready any more, still answering");
    webhook.enter(Phase::Draining);
    tokio::select! { () = tokio::time::sleep(args.drain_delay) => {}, () = ends.next() => {} }
    webhook.enter(Phase::Stopping);
    helpers.abort_all();
    tokio::select! {
        cut_off = reviews => match cut_off {
            Ok(0) => tracing::info!("ended: every request was answered"),
            Ok(cut_off) => tracing::warn!(cut_off, "ended: connections were cut off that took too long"),
            Err(why) => return Err(format!("the server ended by a fault: {why}")),
        },
        () = ends.next() => tracing::warn!("told to end again: ended without waiting"),
    }
    status.abort();
    Ok(())
}

/// The cluster's API, and the namespace that is ours there; nothing where there is none to talk to.
async fn client(args: &Args) -> Result<Option<(kube::Client, String)>, String> {
    if args.offline {
        return Ok(None);
    }
    // Whoever makes TLS connections without saying by which cryptography, as the API's client does, takes this.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match kube::Config::infer().await {
        Ok(config) => {
            let own = config.default_namespace.clone();
            let client =
                kube::Client::try_from(config).map_err(|why| format!("the API server cannot be used: {why}"))?;
            Ok(Some((client, own)))
        }
        Err(why) if args.cert_secret.is_some() => {
            Err(format!("--cert-secret needs an API server, and none is known, in the pod or by KUBECONFIG: {why}"))
        }
        Err(why) => {
            tracing::warn!(%why, "no API server is known: the labels of namespaces will not be (--offline says that this is meant)");
            Ok(None)
        }
    }
}

fn keeper(args: &Args, secret: &str, client: kube::Client, own: &str) -> Result<Keeper, String> {
    let namespace = args.namespace.clone().unwrap_or_else(|| own.to_owned());
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
    let plan = Plan {
        ca_life: seconds(args.ca_life),
        certificate_life: seconds(args.cert_life),
        settle: seconds(args.ca_settle),
        skew: 300.min(seconds(args.cert_life) / 10),
        ..Plan::for_service(&args.service, &namespace, &args.name)
    };
    plan.check()?;
    let configuration = args.webhook_configuration.clone();
    Ok(Keeper { client, namespace, secret: secret.to_owned(), configuration, plan })
}

/// Looks at files again and again.
async fn follow(webhook: Arc<Webhook>, mut config: Option<Files>, mut certificate: Option<FromFiles>, every: Duration) {
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(contents) = config.as_mut().and_then(Files::changed) {
            match parse(contents) {
                Ok(new) => {
                    webhook.config.set(new);
                    webhook.metrics.config_reloaded(true);
                    tracing::info!("the configuration changed: the new one is in force");
                }
                Err(why) => {
                    webhook.metrics.config_reloaded(false);
                    tracing::error!(why, "the configuration changed and cannot be used; the old one stays in force");
                }
            }
        }
        if let Some(certificate) = &mut certificate {
            certificate.look(&webhook.served, &webhook.metrics);
        }
    }
}

/// The configuration in a file's contents.
fn parse(contents: crate::reload::Contents) -> Result<Config, String> {
    let contents = contents?.pop().unwrap_or_default();
    let text = String::from_utf8(contents).map_err(|why| format!("the configuration is no text in UTF-8: {why}"))?;
    // A file that makes it panic must not end a program that has a configuration in force.
    std::panic::catch_unwind(|| Config::parse(&text))
        .unwrap_or_else(|_| Err("the configuration could not be read, by a fault in this program".to_owned()))
}

/// Reads a configuration file and says whether it could be used.
pub fn check(path: &str) -> Result<(), String> {
    parse(Files::new([path]).take()).map(drop)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|why| format!("{address} cannot be listened on: {why}"))
}

fn shown(listener: &TcpListener) -> String {
    listener.local_addr().map_or_else(|why| why.to_string(), |address| address.to_string())
}

/// The signals that ask for an end.
struct Ends {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Ends {
    fn new() -> Result<Ends, String> {
        let taken = |kind| signal(kind).map_err(|why| format!("signals cannot be taken: {why}"));
        Ok(Ends { terminate: taken(SignalKind::terminate())?, interrupt: taken(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! { _ = self.terminate.recv() => {}, _ = self.interrupt.recv() => {} }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, expected) in [("500ms", 500), ("5s", 5000), ("1.5m", 90_000), ("1h", 3_600_000), ("2d", 172_800_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        for text in ["", "5", "s", "-5s", "5 s", "1e3s", "5x", "999999999999999999999999d", "1.2.3s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
