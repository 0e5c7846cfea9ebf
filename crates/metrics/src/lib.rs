//! Containers and regions in figures, as Prometheus reads them. `ration export` and the node part both tell of them, by these names
//! and with these labels: whoever has written a query for one has written it for the other.
//!
//! Base units, OpenMetrics' text. Figures and names come from files that tenants write to: they are the tenants' word.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The media type of [`text`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A GPU's region in a directory.
#[derive(Debug, Clone, Default)]
pub struct Region {
    /// The GPU's UUID.
    pub gpu: String,
    /// Its number on this machine, if that is known.
    pub index: Option<u32>,
    /// The directory, by its name among the others: only who may write there has said what is told of its containers.
    pub directory: String,
    /// Whether it can be read, and joined by the library of this release.
    pub is_sound: bool,
    /// The GPU's memory in bytes; nothing: not known.
    pub memory: Option<u64>,
    /// Who is in it.
    pub containers: Vec<Container>,
}

/// A container. Nothing: not known. Times are seconds.
#[derive(Debug, Clone, Default)]
pub struct Container {
    /// `namespace/pod/container` where the injector gave it, otherwise anything.
    pub name: String,
    /// The bytes that it holds.
    pub used: Option<u64>,
    /// The most that it held.
    pub peak: Option<u64>,
    /// The most that it may hold.
    pub cap: Option<u64>,
    /// Requests for memory that did not fit.
    pub refused: Option<u64>,
    /// The part of the GPU's time that it may have, of one.
    pub limit: Option<f64>,
    /// The part that it is to have.
    pub request: Option<f64>,
    /// What it uses by its own word just now.
    pub usage: Option<f64>,
    /// How long the GPU has worked for it, while it had a limit or neighbours.
    pub gpu_seconds: Option<f64>,
    /// How long its limit kept it off the GPU.
    pub throttled_seconds: Option<f64>,
    /// How long it waited for others' leases.
    pub waited_seconds: Option<f64>,
    /// Leases that it has had.
    pub leases: Option<u64>,
    /// How often it went off the GPU or on.
    pub switches: Option<u64>,
    /// By what: `channels` or `launches`.
    pub switched_by: Option<String>,
    /// Kernels that it has launched.
    pub kernels: Option<u64>,
    /// Graphs that it has launched.
    pub graphs: Option<u64>,
    /// Its processes: those alive, and the dead that nobody has buried.
    pub processes: Option<(u64, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfGpu {
    gpu: String,
    index: Index,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRegion {
    gpu: String,
    index: Index,
    directory: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfContainer {
    gpu: String,
    index: Index,
    directory: String,
    namespace: String,
    pod: String,
    container: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSwitch {
    #[prometheus(flatten)]
    container: OfContainer,
    by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfProcesses {
    #[prometheus(flatten)]
    container: OfContainer,
    state: &'static str,
}

/// A GPU's number; an empty label, which is the same as none, where that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Index(Option<u32>);

impl EncodeLabelValue for Index {
    fn encode(&self, encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => number.encode(encoder),
            None => "".encode(encoder),
        }
    }
}

type Float = Gauge<f64, AtomicU64>;
type Sum = Counter<f64, AtomicU64>;

/// The registry's text.
pub fn text(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, registry);
    text
}

/// Tells of regions and of who is in them.
pub fn register(registry: &mut Registry, regions: &[Region]) {
    of_regions(registry, regions);
    of_containers(registry, regions);
}

fn of_regions(registry: &mut Registry, regions: &[Region]) {
    let (sound, total) = (Family::<OfRegion, Gauge>::default(), Family::<OfGpu, Float>::default());
    for region in regions {
        let (gpu, index) = (region.gpu.clone(), Index(region.index));
        let labels = OfRegion { gpu: gpu.clone(), index, directory: region.directory.clone() };
        sound.get_or_create(&labels).set(region.is_sound.into());
        // All of a GPU should say the same. One that says less does not take anything from the others' word.
        let total = total.get_or_create(&OfGpu { gpu, index }).clone();
        total.set(total.get().max(region.memory.unwrap_or_default() as f64));
    }
    registry.register(
        "ration_region_joinable",
        "Whether the library of this release can join the GPU's region in this directory",
        sound,
    );
    registry.register("ration_gpu_memory_bytes", "The GPU's memory, as its regions have it", total);
}

/// All containers, each with its labels.
fn all(regions: &[Region]) -> impl Iterator<Item = (OfContainer, &Container)> {
    regions.iter().flat_map(|region| region.containers.iter().map(move |it| (labels(region, it), it)))
}

/// A name as the injector gives it is three: none of Kubernetes' has a `/` in it.
fn labels(region: &Region, container: &Container) -> OfContainer {
    let parts: Vec<&str> = container.name.split('/').collect();
    let (namespace, pod, name) = match parts[..] {
        [namespace, pod, name] => (namespace, pod, name),
        _ => ("", "", container.name.as_str()),
    };
    OfContainer {
        gpu: region.gpu.clone(),
        index: Index(region.index),
        directory: region.directory.clone(),
        namespace: namespace.into(),
        pod: pod.into(),
        container: name.into(),
    }
}

fn of_containers(registry: &mut Registry, regions: &[Region]) {
    let containers: Vec<(OfContainer, &Container)> = all(regions).collect();
    let mut gauge = |name: &str, help: &str, value: fn(&Container) -> Option<f64>| {
        registry.register(name, help, family(&containers, value, Float::set));
    };
    gauge("ration_container_memory_used_bytes", "GPU memory that it holds", |it| float(it.used));
    gauge("ration_container_memory_peak_bytes", "The most GPU memory that it held", |it| float(it.peak));
    gauge("ration_container_memory_limit_bytes", "GPU memory that it may hold", |it| float(it.cap));
    gauge("ration_container_compute_limit_ratio", "The part of the GPU's time that it may have", |it| it.limit);
    gauge("ration_container_compute_request_ratio", "The part that it is to have at least", |it| it.request);
    gauge("ration_container_compute_usage_ratio", "The part that it uses just now, by its own word", |it| it.usage);
    let mut counter = |name: &str, help: &str, value: fn(&Container) -> Option<f64>| {
        registry.register(name, help, family(&containers, value, Sum::inc_by));
    };
    counter("ration_container_memory_refused", "How often it was refused memory", |it| float(it.refused));
    counter("ration_container_gpu_seconds", "How long the GPU has worked for it", |it| it.gpu_seconds);
    counter("ration_container_throttled_seconds", "How long its limit kept it off", |it| it.throttled_seconds);
    counter("ration_container_waited_seconds", "How long it has waited for leases", |it| it.waited_seconds);
    counter("ration_container_leases", "Leases that it has had", |it| float(it.leases));
    counter("ration_container_switches", "How often it went off the GPU or on", |it| float(it.switches));
    counter("ration_container_kernels", "Kernels that it has launched", |it| float(it.kernels));
    counter("ration_container_graphs", "Graphs that it has launched", |it| float(it.graphs));
    let (by, processes) = (Family::<OfSwitch, Gauge>::default(), Family::<OfProcesses, Gauge>::default());
    for (labels, container) in &containers {
        if let Some(switch) = &container.switched_by {
            by.get_or_create(&OfSwitch { container: labels.clone(), by: switch.clone() }).set(1);
        }
        let Some((alive, dead)) = container.processes else { continue };
        for (state, count) in [("alive", alive), ("dead", dead)] {
            processes
                .get_or_create(&OfProcesses { container: labels.clone(), state })
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
    registry.register("ration_container_switch", "1 for what takes it off the GPU: channels or launches", by);
    registry.register("ration_container_processes", "Its processes", processes);
}

/// What is known of it, of each container.
fn family<M: Default>(
    containers: &[(OfContainer, &Container)],
    value: fn(&Container) -> Option<f64>,
    tell: fn(&M, f64) -> f64,
) -> Family<OfContainer, M> {
    let family = Family::<OfContainer, M>::default();
    for (labels, container) in containers {
        if let Some(value) = value(container) {
            tell(&family.get_or_create(labels), value);
        }
    }
    family
}

fn float(count: Option<u64>) -> Option<f64> {
    count.map(|count| count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(regions: &[Region]) -> String {
        let mut registry = Registry::default();
        register(&mut registry, regions);
        text(&registry)
    }

    #[test]
    fn what_is_known_is_said_in_base_units_and_what_is_not_is_left_out() {
        let container = Container {
            name: "team/train-0/main".into(),
            used: Some(3 << 30),
            refused: Some(2),
            limit: Some(0.3),
            gpu_seconds: Some(12.5),
            switched_by: Some("channels".into()),
            processes: Some((2, 1)),
            ..Container::default()
        };
        let other = Container { name: "team/serve".into(), usage: Some(0.5), ..Container::default() };
        let region = Region {
            gpu: "GPU-1".into(),
            index: Some(0),
            directory: "1000-train".into(),
            is_sound: true,
            memory: Some(1 << 30),
            containers: vec![container, other],
        };
        let text = shown(&[region]);
        let train = r#"gpu="GPU-1",index="0",directory="1000-train",namespace="team",pod="train-0",container="main""#;
        let serve = r#"gpu="GPU-1",index="0",directory="1000-train",namespace="",pod="",container="team/serve""#;
        for line in [
            format!("ration_container_memory_used_bytes{{{train}}} 3221225472.0"),
            format!("ration_container_memory_refused_total{{{train}}} 2.0"),
            format!("ration_container_compute_limit_ratio{{{train}}} 0.3"),
            format!("ration_container_gpu_seconds_total{{{train}}} 12.5"),
            format!("ration_container_switch{{{train},by=\"channels\"}} 1"),
            format!("ration_container_processes{{{train},state=\"alive\"}} 2"),
            format!("ration_container_processes{{{train},state=\"dead\"}} 1"),
            format!("ration_container_compute_usage_ratio{{{serve}}} 0.5"),
            r#"ration_gpu_memory_bytes{gpu="GPU-1",index="0"} 1073741824.0"#.into(),
            r#"ration_region_joinable{gpu="GPU-1",index="0",directory="1000-train"} 1"#.into(),
        ] {
            assert!(text.lines().any(|it| it == line), "no {line} in\n{text}");
        }
        assert!(!text.contains(&format!("ration_container_memory_used_bytes{{{serve}}}")), "{text}");
        assert!(!text.contains("ration_container_memory_peak_bytes{"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn what_strangers_wrote_cannot_end_a_line() {
        let container = Container { name: "a\"} 1\nration_fake 2\\".into(), used: Some(1), ..Container::default() };
        let region = Region { gpu: "GPU-1".into(), containers: vec![container], ..Region::default() };
        let text = shown(&[region]);
        assert!(!text.lines().any(|line| line.starts_with("ration_fake")), "{text}");
        assert!(text.contains(r#"container="a\"} 1\nration_fake 2\\""#), "{text}");
        assert!(text.contains(r#"ration_gpu_memory_bytes{gpu="GPU-1",index=""} 0.0"#), "{text}");
    }
}
