//! Requests in the names that users of other projects already have.
//!
//! [`TABLE`] is the one list of them; `docs/kubernetes.md` has the same for people. What they mean there, they mean here,
//! with one exception: an amount that the other project would take for "no limit" because it is nothing is refused.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use ration_contract::table::{COMPUTE, COMPUTE_REQUEST, MEMORY, PRIORITY, Setting};

use super::{Asked, Findings, Quantity, Reason, annotations, containers, gpu, quoted};
use crate::config::Config;

/// What a number in one of the names means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// MiB of memory.
    Mebibytes,
    /// Per cent of memory.
    MemoryPercent,
    /// Per cent of compute; 0 is no limit.
    ComputePercent,
    /// 0: before others; 1: as others.
    Priority,
    /// How many GPUs.
    Gpus,
}

/// Names of resources. Where two of them say how much memory, the earlier one counts.
pub const TABLE: [(&str, Meaning); 10] = [
    ("nvidia.com/gpumem", Meaning::Mebibytes),
    ("nvidia.com/gpumem-percentage", Meaning::MemoryPercent),
    ("nvidia.com/gpucores", Meaning::ComputePercent),
    ("nvidia.com/priority", Meaning::Priority),
    ("volcano.sh/gpu-memory", Meaning::Mebibytes),
    ("volcano.sh/gpu-number", Meaning::Gpus),
    ("volcano.sh/vgpu-memory", Meaning::Mebibytes),
    ("volcano.sh/vgpu-memory-percentage", Meaning::MemoryPercent),
    ("volcano.sh/vgpu-cores", Meaning::ComputePercent),
    ("volcano.sh/vgpu-number", Meaning::Gpus),
];

/// Run:ai's annotations: a part of a GPU, from 0 to 1; MiB; on how many GPUs; of which container.
pub const FRACTION: &str = "gpu-fraction";
/// MiB of memory.
pub const MEMORY_MIB: &str = "gpu-memory";
/// On how many GPUs.
pub const DEVICES: &str = "gpu-fraction-num-devices";
/// Of which container; without it, the first.
pub const CONTAINER: &str = "gpu-fraction-container-name";

/// Schedulers that may have gone together with the project whose names are translated.
const SCHEDULERS: [&str; 5] = ["hami-scheduler", "volcano", "runai-scheduler", "kai-scheduler", "4pd-scheduler"];

/// Whether a resource is one of the [`TABLE`], and not one that the configuration itself calls a GPU.
pub fn is_translated(config: &Config, resource: &str) -> bool {
    TABLE.iter().any(|(name, _)| *name == resource) && !config.gpu_resources.iter().any(|name| name == resource)
}

/// What a container asks for in others' names.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// In our words.
    pub asked: Vec<Asked>,
    /// The resources that it was asked with.
    pub resources: Vec<String>,
    /// How many GPUs.
    pub gpus: Option<u64>,
    /// Whether an annotation of Run:ai is about this container.
    by_annotation: bool,
}

impl Request {
    /// Whether a container that asks so has a GPU.
    pub fn means_gpu(&self) -> bool {
        let asks = self.asked.iter().any(|asked| asked.setting != &PRIORITY);
        self.by_annotation || self.gpus.is_some() || asks
    }
}

/// What the containers of a pod ask for in others' names.
#[derive(Debug, Default)]
pub struct Requests {
    by_container: BTreeMap<String, Request>,
}

impl Requests {
    /// What one asks for.
    pub fn take(&mut self, container: &str) -> Request {
        self.by_container.remove(container).unwrap_or_default()
    }
}

/// Reads them all. `chosen` says which containers have a GPU, where that is known already.
pub fn read(config: &Config, pod: &Pod, chosen: Option<&dyn Fn(&str) -> bool>, findings: &mut Findings) -> Requests {
    let mut requests = Requests::default();
    let Some(spec) = &pod.spec else { return requests };
    for (_, _, container) in containers(spec) {
        let request = of_container(config, container, findings);
        requests.by_container.insert(container.name.clone(), request);
    }
    of_pod(config, pod, chosen, &mut requests, findings);
    let scheduler = spec.scheduler_name.as_deref().unwrap_or("");
    let translated = requests.by_container.values().any(Request::means_gpu);
    if translated && chosen.is_none() {
        if SCHEDULERS.contains(&scheduler) {
            findings.warn(format!(
                "spec.schedulerName is {scheduler}: where that scheduler does not run, the pod waits for ever; remove it there"
            ));
        }
        tell_of_added_gpus(config, pod, &requests, findings);
    }
    requests
}

fn tell_of_added_gpus(config: &Config, pod: &Pod, requests: &Requests, findings: &mut Findings) {
    for (_, _, container) in pod.spec.iter().flat_map(containers) {
        let Some(request) = requests.by_container.get(&container.name).filter(|request| request.means_gpu()) else {
            continue;
        };
        if !gpu::has_gpu(config, container) {
            findings.warn(format!(
                "container {} asks for part of a GPU and for no GPU: {}: {} was added to its limits",
                container.name,
                config.added_gpu_resource(),
                request.gpus.unwrap_or(1)
            ));
        }
    }
}

/// The resources of one container.
fn of_container(config: &Config, container: &Container, findings: &mut Findings) -> Request {
    let mut request = Request::default();
    let Some(resources) = &container.resources else { return request };
    for (name, meaning) in TABLE {
        // Limits and requests of such a resource are the same, or the API server refuses them.
        let found = [&resources.limits, &resources.requests].into_iter().flatten().find_map(|list| list.get(name));
        let Some(written) = found.map(|quantity| quantity.0.as_str()) else { continue };
        if !is_translated(config, name) {
            continue;
        }
        let place = format!("resource {name} of container {}", container.name);
        request.resources.push(name.to_owned());
        let Some(number) = Quantity::parse(written).and_then(Quantity::whole) else {
            let text = format!("{place}: {} is no whole number; write one, without a unit", quoted(written));
            findings.deny(Reason::ForeignRequest, text);
            continue;
        };
        match understood(meaning, number) {
            Ok(Some((setting, value))) => {
                if !request.asked.iter().any(|asked| asked.setting == setting) {
                    request.asked.push(Asked { setting, value, written: written.to_owned(), place: name.to_owned() });
                }
            }
            Ok(None) if meaning == Meaning::Gpus => request.gpus = Some(number),
            Ok(None) => {}
            Err(advice) => {
                let text = format!("{place}: {number} cannot be meant; {advice}");
                findings.deny(Reason::ForeignRequest, text);
            }
        }
    }
    request
}

/// What a number means in our words; nothing, if it says nothing about a setting; else what to write.
fn understood(meaning: Meaning, number: u64) -> Result<Option<(&'static Setting, String)>, &'static str> {
    match (meaning, number) {
        (Meaning::Mebibytes, 0) => Err("write how many MiB, or remove it for no cap"),
        (Meaning::Mebibytes, 1..=0xFFF_FFFF_FFFF) => Ok(Some((&MEMORY, format!("{number}MiB")))),
        (Meaning::Mebibytes, _) => Err("write how many MiB a GPU can have"),
        (Meaning::MemoryPercent, 1..=100) => Ok(Some((&MEMORY, format!("{number}%")))),
        (Meaning::MemoryPercent, _) => Err("write 1 to 100, per cent of the GPU's memory, or remove it for no cap"),
        (Meaning::ComputePercent, 0) => Ok(None),
        (Meaning::ComputePercent, 1..=100) => Ok(Some((&COMPUTE, format!("{number}%")))),
        (Meaning::ComputePercent, _) => Err("write 0 to 100, per cent of the GPU's time"),
        (Meaning::Priority, 0) => Ok(Some((&PRIORITY, "latency".to_owned()))),
        (Meaning::Priority, 1) => Ok(Some((&PRIORITY, "normal".to_owned()))),
        (Meaning::Priority, _) => Err("write 0 (before others) or 1 (as others)"),
        (Meaning::Gpus, 1..=64) => Ok(None),
        (Meaning::Gpus, _) => Err("write 1 to 64 GPUs"),
    }
}

/// Run:ai's annotations, which are on the pod and about one container of it: the one that is named, else those that have a
/// GPU anyway, else the first.
fn of_pod(
    config: &Config,
    pod: &Pod,
    chosen: Option<&dyn Fn(&str) -> bool>,
    requests: &mut Requests,
    findings: &mut Findings,
) {
    let found = annotations(pod);
    let Some(spec) = &pod.spec else { return };
    let (fraction, memory) = (found.get(FRACTION), found.get(MEMORY_MIB));
    if fraction.is_none() && memory.is_none() {
        return;
    }
    let mut asked = Vec::new();
    let mut ask = |setting, value: String, place: &str, written: &str| {
        asked.push(Asked { setting, value, written: written.to_owned(), place: place.to_owned() });
    };
    if let Some(written) = memory {
        match written.trim().parse::<u64>().ok().and_then(|number| understood(Meaning::Mebibytes, number).ok()?) {
            Some((setting, value)) => ask(setting, value, MEMORY_MIB, written),
            None => refuse(findings, MEMORY_MIB, written, "a whole number of MiB, such as 4096"),
        }
    }
    if let Some(written) = fraction {
        match percent(written) {
            Some(value) => {
                if memory.is_none() {
                    ask(&MEMORY, value.clone(), FRACTION, written);
                }
                ask(&COMPUTE_REQUEST, value, FRACTION, written);
            }
            None => refuse(findings, FRACTION, written, "a part of a GPU above 0 and up to 1, such as 0.5"),
        }
    }
    let gpus = found.get(DEVICES).and_then(|written| {
        let number = written.trim().parse::<u64>().ok().filter(|number| (1..=64).contains(number));
        if number.is_none() {
            refuse(findings, DEVICES, written, "a number of GPUs from 1 to 64");
        }
        number
    });
    let about: Vec<&str> = match found.get(CONTAINER) {
        Some(named) if containers(spec).any(|(_, _, one)| one.name == *named) => vec![named],
        Some(named) => {
            refuse(findings, CONTAINER, named, "the name of one of the pod's containers");
            return;
        }
        None => {
            let has_gpu = |container: &Container| match chosen {
                Some(chosen) => chosen(&container.name),
                None => {
                    let request = requests.by_container.get(&container.name);
                    gpu::has_gpu(config, container) || request.is_some_and(Request::means_gpu)
                }
            };
            let with_gpu: Vec<&str> =
                containers(spec).filter(|(_, _, one)| has_gpu(one)).map(|(_, _, one)| one.name.as_str()).collect();
            if with_gpu.is_empty() {
                spec.containers.iter().take(1).map(|one| one.name.as_str()).collect()
            } else {
                with_gpu
            }
        }
    };
    for name in about {
        let request = requests.by_container.entry(name.to_owned()).or_default();
        request.by_annotation = true;
        request.gpus = request.gpus.or(gpus);
        for one in &asked {
            if !request.asked.iter().any(|other| other.setting == one.setting) {
                request.asked.push(one.clone());
            }
        }
    }
}

fn refuse(findings: &mut Findings, annotation: &str, written: &str, accepted: &str) {
    let text = format!("annotation {annotation}={} is not understood; write {accepted}", quoted(written));
    findings.deny(Reason::ForeignRequest, text);
}

/// `0.5` as `50%`. Exact, to the ten-thousandths of a per cent that settings have.
fn percent(fraction: &str) -> Option<String> {
    let (whole, part) = fraction.trim().split_once('.').unwrap_or((fraction.trim(), ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 3 || part.len() > 6 || !digits(whole) || !digits(part) {
        return None;
    }
    let ppm: u32 = format!("{whole}{part:0<6}").parse().ok()?;
    let share = ration_contract::Percent::from_ppm(ppm)?;
    (ppm > 0).then(|| share.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_percentages() {
        for (fraction, expected) in [
            ("0.5", Some("50%")),
            ("1", Some("100%")),
            ("1.0", Some("100%")),
            (" 0.333333 ", Some("33.3333%")),
            ("0.000001", Some("0.0001%")),
            ("0.", None),
            ("0", None),
            ("0.0", None),
            ("1.01", None),
            ("2", None),
            ("-0.5", None),
            (".5", None),
            ("0.5000001", None),
            ("50%", None),
            ("", None),
            ("0,5", None),
        ] {
            assert_eq!(percent(fraction).as_deref(), expected, "{fraction}");
        }
    }

    #[test]
    fn numbers_mean_what_they_mean_elsewhere() {
        assert_eq!(understood(Meaning::Mebibytes, 3000), Ok(Some((&MEMORY, "3000MiB".into()))));
        assert_eq!(understood(Meaning::MemoryPercent, 50), Ok(Some((&MEMORY, "50%".into()))));
        assert_eq!(understood(Meaning::ComputePercent, 30), Ok(Some((&COMPUTE, "30%".into()))));
        assert_eq!(understood(Meaning::ComputePercent, 0), Ok(None));
        for (meaning, number) in [
            (Meaning::Mebibytes, 0),
            (Meaning::Mebibytes, u64::MAX),
            (Meaning::MemoryPercent, 0),
            (Meaning::MemoryPercent, 101),
            (Meaning::ComputePercent, 101),
            (Meaning::Priority, 2),
            (Meaning::Gpus, 0),
            (Meaning::Gpus, 65),
        ] {
            assert!(understood(meaning, number).is_err(), "{meaning:?} {number}");
        }
    }
}
