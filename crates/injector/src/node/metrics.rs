//! The node in figures, as Prometheus reads them.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfGpu {
    gpu: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRegion {
    gpu: String,
    directory: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfContainer {
    gpu: String,
    /// The pod's UID: only that pod can write there what is told of a container, its name included.
    directory: String,
    container: String,
}

impl OfContainer {
    fn new(region: &RegionReport, container: &ContainerReport) -> OfContainer {
        let (gpu, directory) = (region.gpu.clone(), region.directory().to_owned());
        OfContainer { gpu, directory, container: container.name.clone() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Alive {
    Alive,
    Dead,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfProcesses {
    gpu: String,
    directory: String,
    container: String,
    state: Alive,
}

type Float = Gauge<f64, AtomicU64>;
type Seconds = Counter<f64, AtomicU64>;

/// All of it, in OpenMetrics' text. Made anew for each reader: containers come and go.
pub fn text(status: &Status, counts: Counts) -> String {
    let mut registry = Registry::default();
    of_node(&mut registry, status, counts);
    of_regions(&mut registry, status);
    of_containers(&mut registry, status);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
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

fn of_regions(registry: &mut Registry, status: &Status) {
    let (joinable, total) = (Family::<OfRegion, Gauge>::default(), Family::<OfGpu, Float>::default());
    for region in &status.survey.regions {
        let labels = OfRegion { gpu: region.gpu.clone(), directory: region.directory().to_owned() };
        joinable.get_or_create(&labels).set(region.joinable.into());
        // All of a GPU should say the same. One that says less does not take anything from the others' word.
        let total = total.get_or_create(&OfGpu { gpu: region.gpu.clone() }).clone();
        total.set(total.get().max(region.memory_total.unwrap_or_default() as f64));
    }
    registry.register(
        "ration_region_joinable",
        "Whether the library of this release can join the GPU's region in this directory",
        joinable,
    );
    registry.register("ration_gpu_memory_bytes", "The GPU's memory, as its regions have it", total);
}

fn of_containers(registry: &mut Registry, status: &Status) {
    let containers =
        || status.survey.regions.iter().flat_map(|region| region.containers.iter().map(move |it| (region, it)));
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&ContainerReport) -> Option<f64>| {
        let family = Family::<OfContainer, Float>::default();
        for (region, container) in containers() {
            if let Some(value) = value(container) {
                family.get_or_create(&OfContainer::new(region, container)).set(value);
            }
        }
        registry.register(name, help, family);
    };
    gauge("ration_container_memory_used_bytes", "GPU memory that it holds", &|it| Some(it.memory_used as f64));
    gauge("ration_container_memory_limit_bytes", "GPU memory that it may hold", &|it| {
        it.memory_limit.map(|it| it as f64)
    });
    gauge("ration_container_compute_limit_ratio", "The part of the GPU's time that it may have", &|it| {
        Some(f64::from(it.compute_limit_ppm) / 1e6)
    });
    gauge("ration_container_compute_request_ratio", "The part that it is to have at least", &|it| {
        it.compute_request_ppm.map(|it| f64::from(it) / 1e6)
    });
    let mut counter = |name: &str, help: &str, value: &dyn Fn(&ContainerReport) -> f64| {
        let family = Family::<OfContainer, Seconds>::default();
        for (region, container) in containers() {
            family.get_or_create(&OfContainer::new(region, container)).inc_by(value(container));
        }
        registry.register(name, help, family);
    };
    let seconds = |ns: u64| ns as f64 / 1e9;
    counter("ration_container_memory_refused", "How often it was refused memory", &|it| it.memory_refused as f64);
    counter("ration_container_gpu_seconds", "How long the GPU has worked for it", &|it| seconds(it.gpu_time_ns));
    counter("ration_container_throttled_seconds", "How long its limit kept it off", &|it| seconds(it.throttled_ns));
    counter("ration_container_waited_seconds", "How long it has waited for leases", &|it| seconds(it.waited_ns));
    counter("ration_container_leases", "Leases that it has had", &|it| it.leases as f64);
    counter("ration_container_switches", "How often it went off the GPU or on", &|it| it.switches as f64);
    counter("ration_container_kernels", "Kernels that it has launched", &|it| it.kernels as f64);
    counter("ration_container_graphs", "Graphs that it has launched", &|it| it.graphs as f64);
    let processes = Family::<OfProcesses, Gauge>::default();
    for (region, container) in containers() {
        let dead = container.processes.len() - container.alive();
        for (state, count) in [(Alive::Alive, container.alive()), (Alive::Dead, dead)] {
            let OfContainer { gpu, directory, container } = OfContainer::new(region, container);
            let labels = OfProcesses { gpu, directory, container, state };
            processes.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
    registry.register("ration_container_processes", "Its processes", processes);
}
