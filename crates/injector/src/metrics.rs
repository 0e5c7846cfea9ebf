//! What the webhook counts, in the text format that Prometheus reads.
//!
//! Every label value is one of a fixed set: nothing that a tenant writes becomes a time series.

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::review::Outcome;

/// The media type of [`Metrics::text`].
pub const MEDIA_TYPE: &str = ration_metrics::MEDIA_TYPE;

/// One label and its value.
type Label = [(&'static str, &'static str); 1];

/// Seconds: an answer takes well under a millisecond, and the API server gives up after five seconds.
const LATENCIES: [f64; 12] = [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// What the webhook counts.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    admissions: Family<Label, Counter>,
    denials: Family<Label, Counter>,
    latency: Histogram,
    rejected: Family<Label, Counter>,
    connections: Gauge,
    handshakes_failed: Counter,
    certificate_expiry: Gauge,
    certificate_reloads: Family<Label, Counter>,
    certificate_in_order: Gauge,
    config_reloads: Family<Label, Counter>,
    config_in_order: Gauge,
    namespaces: Gauge,
    namespaces_in_order: Gauge,
    memory: Gauge,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// With everything at zero, so that a rate is right from the first event on.
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix("ration_injector");
        let admissions = Family::<Label, Counter>::default();
        for outcome in ["injected", "untouched", "denied", "unreadable", "failed"] {
            drop(admissions.get_or_create(&[("outcome", outcome)]));
        }
        registry.register("admissions", "Admission reviews that were answered", admissions.clone());
        let denials = Family::<Label, Counter>::default();
        registry.register("denials", "Pods that were refused", denials.clone());
        let latency = Histogram::new(LATENCIES);
        registry.register_with_unit(
            "admission_duration",
            "From the end of a review's headers to its answer",
            Unit::Seconds,
            latency.clone(),
        );
        let rejected = Family::<Label, Counter>::default();
        for reason in ["too-large", "slow", "busy", "cut-off"] {
            drop(rejected.get_or_create(&[("reason", reason)]));
        }
        registry.register("requests_rejected", "Requests whose body was not read to its end", rejected.clone());
        let connections = Gauge::default();
        registry.register("connections", "Connections that are open to the webhook's port", connections.clone());
        let handshakes_failed = Counter::default();
        registry.register(
            "tls_handshakes_failed",
            "Connections that ended before TLS was set up: a caBundle that does not fit shows here",
            handshakes_failed.clone(),
        );
        let certificate_expiry = Gauge::default();
        registry.register_with_unit(
            "certificate_expiry_timestamp",
            "When the certificate that is served ends, in seconds since 1970; 0 where there is none yet",
            Unit::Seconds,
            certificate_expiry.clone(),
        );
        let reloads = || {
            let family = Family::<Label, Counter>::default();
            for result in ["ok", "failed"] {
                drop(family.get_or_create(&[("result", result)]));
            }
            family
        };
        let certificate_reloads = reloads();
        registry.register("certificate_reloads", "New certificates, by what came of them", certificate_reloads.clone());
        let certificate_in_order = Gauge::default();
        registry.register(
            "certificate_in_order",
            "1: the newest certificate is served, and renewing it works; 0: an older one stays in force",
            certificate_in_order.clone(),
        );
        let config_reloads = reloads();
        registry.register(
            "config_reloads",
            "Changes of the configuration file, by what came of them",
            config_reloads.clone(),
        );
        let config_in_order = Gauge::default();
        registry.register(
            "config_in_order",
            "1: the configuration file is in force as it is; 0: it cannot be used, and an older one stays in force",
            config_in_order.clone(),
        );
        let namespaces = Gauge::default();
        registry.register("namespaces", "Namespaces whose labels are known", namespaces.clone());
        let namespaces_in_order = Gauge::default();
        registry.register(
            "namespaces_in_order",
            "1: the labels of namespaces are followed; 0: they are not, or not now",
            namespaces_in_order.clone(),
        );
        let memory = Gauge::default();
        registry.register_with_unit("resident_memory", "Memory of this process", Unit::Bytes, memory.clone());
        let build = Family::<Label, Gauge>::default();
        build.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        registry.register("build_info", "Which version this is", build);
        Metrics {
            registry,
            admissions,
            denials,
            latency,
            rejected,
            connections,
            handshakes_failed,
            certificate_expiry,
            certificate_reloads,
            certificate_in_order,
            config_reloads,
            config_in_order,
            namespaces,
            namespaces_in_order,
            memory,
        }
    }

    /// A review was answered.
    pub fn answered(&self, outcome: Outcome, took: Duration) {
        self.admissions.get_or_create(&[("outcome", outcome_name(outcome))]).inc();
        if let Outcome::Denied(reason) = outcome {
            self.denials.get_or_create(&[("reason", reason)]).inc();
        }
        self.latency.observe(took.as_secs_f64());
    }

    /// A review could not be answered, by a fault of ours.
    pub fn failed(&self, took: Duration) {
        self.admissions.get_or_create(&[("outcome", "failed")]).inc();
        self.latency.observe(took.as_secs_f64());
    }

    /// A request's body was not read to its end, for this reason.
    pub fn rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&[("reason", reason)]).inc();
    }

    /// Connections that are open now.
    pub fn connections(&self) -> &Gauge {
        &self.connections
    }

    /// A connection ended before TLS was set up.
    pub fn handshake_failed(&self) {
        self.handshakes_failed.inc();
    }

    /// A certificate is served from now on, until `expires` (seconds since 1970).
    pub fn certificate_taken(&self, expires: i64) {
        self.certificate_expiry.set(expires);
        self.certificate_reloads.get_or_create(&[("result", "ok")]).inc();
        self.certificate_in_order.set(1);
    }

    /// A new certificate could not be had or used; what was served is served on.
    pub fn certificate_failed(&self) {
        self.certificate_reloads.get_or_create(&[("result", "failed")]).inc();
        self.certificate_in_order.set(0);
    }

    /// What is served is the newest there is.
    pub fn certificate_in_order(&self) {
        self.certificate_in_order.set(1);
    }

    /// The configuration file changed, and is in force or not.
    pub fn config_reloaded(&self, in_force: bool) {
        self.config_reloads.get_or_create(&[("result", if in_force { "ok" } else { "failed" })]).inc();
        self.config_in_order.set(i64::from(in_force));
    }

    /// The labels of so many namespaces are known.
    pub fn namespaces(&self, known: usize) {
        self.namespaces.set(i64::try_from(known).unwrap_or(i64::MAX));
        self.namespaces_in_order.set(1);
    }

    /// The labels of namespaces cannot be followed now.
    pub fn namespaces_lost(&self) {
        self.namespaces_in_order.set(0);
    }

    /// Everything, as Prometheus reads it.
    pub fn text(&self) -> String {
        self.memory.set(resident_bytes().unwrap_or(0));
        let mut text = String::with_capacity(8 << 10);
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// An outcome, as metrics and the log name it.
pub fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Injected => "injected",
        Outcome::Untouched => "untouched",
        Outcome::Denied(_) => "denied",
        Outcome::Unreadable => "unreadable",
    }
}

/// What `/proc` says that this process holds.
fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_in_the_text() {
        let metrics = Metrics::new();
        metrics.answered(Outcome::Injected, Duration::from_micros(300));
        metrics.answered(Outcome::Denied("over-maximum"), Duration::from_micros(700));
        metrics.config_reloaded(false);
        metrics.certificate_taken(1_800_000_000);
        let text = metrics.text();
        for line in [
            "ration_injector_admissions_total{outcome=\"injected\"} 1",
            "ration_injector_admissions_total{outcome=\"denied\"} 1",
            "ration_injector_admissions_total{outcome=\"untouched\"} 0",
            "ration_injector_denials_total{reason=\"over-maximum\"} 1",
            "ration_injector_admission_duration_seconds_count 2",
            "ration_injector_admission_duration_seconds_bucket{le=\"0.0005\"} 1",
            "ration_injector_config_reloads_total{result=\"failed\"} 1",
            "ration_injector_config_in_order 0",
            "ration_injector_certificate_expiry_timestamp_seconds 1800000000",
            concat!("ration_injector_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        ] {
            assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn memory_is_what_the_kernel_counts() {
        let bytes = resident_bytes().expect("/proc says what a process holds");
        assert!((1 << 20..1 << 32).contains(&bytes), "{bytes}");
    }
}
