//! The node in figures, as Prometheus reads them.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use ration_metrics::{Container, Region};

use super::regions::{ContainerReport, RegionReport};
use super::report::Status;

/// What has happened since the process was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often the node was looked after.
    pub checks: u64,
    /// How often something was wrong then.
    pub failures: u64,
    /// How often something was put back or put right.
    pub repairs: u64,
    /// Things of dead pods that were removed.
    pub reaped: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLibrary {
    library: String,
    current: bool,
}

/// All of it, in OpenMetrics' text. Made anew for each reader: containers come and go.
pub fn text(status: &Status, counts: Counts) -> String {
    let mut registry = Registry::default();
    of_node(&mut registry, status, counts);
    let regions: Vec<Region> = status.survey.regions.iter().map(region).collect();
    ration_metrics::register(&mut registry, &regions);
    ration_metrics::text(&registry)
}

fn of_node(registry: &mut Registry, status: &Status, counts: Counts) {
    let ready = Gauge::<i64>::default();
    ready.set(status.ready.into());
    registry.register("ration_node_ready", "Whether pods can be started here and are held to their limits", ready);
    let mut count = |name: &str, help: &str, value: u64| {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    };
    count("ration_node_checks", "How often the node was looked after", counts.checks);
    count("ration_node_failures", "How often something was wrong then", counts.failures);
    count("ration_node_repairs", "Things that were put back or put right", counts.repairs);
    count("ration_node_reaped", "Things of dead pods that were removed", counts.reaped);
    let libraries = Family::<OfLibrary, Gauge>::default();
    for library in &status.libraries {
        let labels = OfLibrary { library: library.name.clone(), current: library.current };
        libraries.get_or_create(&labels).set(library.damage.is_none().into());
    }
    registry.register("ration_node_library_intact", "Libraries on the node; 0: damaged", libraries);
}

fn region(report: &RegionReport) -> Region {
    Region {
        gpu: format!("GPU-{}", report.gpu),
        index: None,
        // The pod's UID: only that pod can write there what is told of a container, its name included.
        directory: report.directory().to_owned(),
        is_sound: report.joinable,
        memory: report.memory_total,
        containers: report.containers.iter().map(container).collect(),
    }
}

fn container(report: &ContainerReport) -> Container {
    let seconds = |ns: u64| Some(ns as f64 / 1e9);
    let share = |ppm: u32| f64::from(ppm) / 1e6;
    let alive = report.alive() as u64;
    Container {
        name: report.name.clone(),
        used: Some(report.memory_used),
        peak: Some(report.memory_peak),
        cap: report.memory_limit,
        refused: Some(report.memory_refused),
        limit: Some(share(report.compute_limit_ppm)),
        request: report.compute_request_ppm.map(share),
        usage: None,
        gpu_seconds: seconds(report.gpu_time_ns),
        throttled_seconds: seconds(report.throttled_ns),
        waited_seconds: seconds(report.waited_ns),
        leases: Some(report.leases),
        switches: Some(report.switches),
        switched_by: report.switched_by.clone(),
        kernels: Some(report.kernels),
        graphs: Some(report.graphs),
        processes: Some((alive, report.processes.len() as u64 - alive)),
    }
}
