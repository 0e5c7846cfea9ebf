//! What a pod asks for: a slice for each of its containers that has a GPU.
//!
//! Four places can say it, and the first that says something about memory, about compute or about priority is the one that
//! counts for that: an annotation for the container, one for the pod, a request in another project's name
//! ([`foreign`]), and the defaults of the namespace. The three settings of compute stand together, as they do in the quota
//! file. Values have the grammar of the library's settings, and the library's own code reads them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use ration_contract::table::{COMPUTE, COMPUTE_LIMIT, COMPUTE_REQUEST, MEMORY, PRIORITY, Setting};
use ration_contract::{Amount, Error, Given, Origin, PerGpu, Problem, Settings};

use crate::config::{Config, Policy, Rules};

mod denial;
pub mod foreign;
pub mod gpu;
mod quantity;

pub(crate) use denial::one_line;
pub use denial::{Denial, Findings, Reason, quoted};
pub use quantity::Quantity;

/// What all of this project's annotations and labels begin with.
pub const PREFIX: &str = "ration.dev/";

/// The label that opts a namespace or a pod in or out.
pub const LABEL: &str = "ration.dev/inject";

/// What may be asked for, in groups that stand together.
const GROUPS: [&[&Setting]; 3] = [&[&MEMORY], &[&COMPUTE, &COMPUTE_REQUEST, &COMPUTE_LIMIT], &[&PRIORITY]];

/// The annotation that asks for a setting, without the prefix.
pub fn key_of(setting: &Setting) -> String {
    setting.key.replace('_', "-")
}

/// A value, and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// For which setting.
    pub setting: &'static Setting,
    /// In the grammar of the settings.
    pub value: String,
    /// As it was written.
    pub written: String,
    /// For messages: the annotation or the resource.
    pub place: String,
}

/// Which of a pod's lists of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// `spec.initContainers`, native sidecars among them.
    Init,
    /// `spec.containers`.
    Main,
    /// `spec.ephemeralContainers`.
    Ephemeral,
}

impl List {
    /// Its field in the spec.
    pub fn field(self) -> &'static str {
        match self {
            List::Init => "initContainers",
            List::Main => "containers",
            List::Ephemeral => "ephemeralContainers",
        }
    }
}

/// What one container gets.
#[derive(Debug, Clone)]
pub struct Slice {
    /// The list it is in.
    pub list: List,
    /// Its place there.
    pub index: usize,
    /// Its name.
    pub container: String,
    /// What it is held to; without name, directory and strictness, which depend on the delivery.
    pub settings: Settings,
    /// Annotations in our words for what it asked for in others'.
    pub translated: BTreeMap<String, String>,
    /// Resources to remove, because nothing advertises them any more.
    pub removed: Vec<String>,
    /// GPUs to add, because nothing else says that it has one.
    pub added_gpus: Option<u64>,
}

/// The pod's annotations.
pub fn annotations(pod: &Pod) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    pod.metadata.annotations.as_ref().unwrap_or(&NONE)
}

/// Init containers and containers, with their places.
pub fn containers(spec: &PodSpec) -> impl Iterator<Item = (List, usize, &Container)> {
    let init = spec.init_containers.iter().flatten().enumerate().map(|(index, one)| (List::Init, index, one));
    init.chain(spec.containers.iter().enumerate().map(|(index, one)| (List::Main, index, one)))
}

/// What each container with a GPU gets. `chosen` says which have one, where that is known already (a pod that was
/// injected); without it, what the containers ask for says so.
pub fn slices(
    config: &Config,
    rules: &Rules,
    pod: &Pod,
    chosen: Option<&dyn Fn(&str) -> bool>,
    findings: &mut Findings,
) -> Vec<Slice> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let mut foreign = if config.translate_foreign {
        foreign::read(config, pod, chosen, findings)
    } else {
        foreign::Requests::default()
    };
    check_annotations(pod, spec, findings);
    let mut slices = Vec::new();
    for (list, index, container) in containers(spec) {
        let name = &container.name;
        let says_gpu = gpu::has_gpu(config, container);
        let requested = foreign.take(name);
        let has_gpu = chosen.map_or(says_gpu || requested.means_gpu(), |chosen| chosen(name));
        if !has_gpu {
            tell_if_asked_in_vain(pod, name, findings);
            continue;
        }
        let asked = collect(pod, name, &requested, findings);
        let settings = match read(&asked, &rules.defaults) {
            Ok(settings) => settings,
            Err(errors) => {
                for error in errors {
                    let foreign = matches!(&error.given.origin, Origin::Variable(place) if !place.starts_with(PREFIX));
                    let reason = if foreign { Reason::ForeignRequest } else { Reason::Annotation };
                    findings.deny(reason, error.to_string());
                }
                continue;
            }
        };
        let translated = asked.iter().filter(|asked| requested.resources.contains(&asked.place));
        let mut slice = Slice {
            list,
            index,
            container: name.clone(),
            settings,
            translated: translated.map(|one| (annotation_for(one.setting, name), one.value.clone())).collect(),
            removed: requested.resources.clone(),
            added_gpus: (!says_gpu && chosen.is_none()).then(|| requested.gpus.unwrap_or(1)),
        };
        rules.maxima.hold(&mut slice.settings, &format!("container {name}"), findings);
        tell_if_unlimited(rules, &slice, findings);
        slices.push(slice);
    }
    slices
}

/// `ration.dev/memory.main`.
pub fn annotation_for(setting: &Setting, container: &str) -> String {
    format!("{PREFIX}{}.{container}", key_of(setting))
}

/// What counts for a container, of all that is asked in annotations and in others' names.
fn collect(pod: &Pod, container: &str, foreign: &foreign::Request, findings: &mut Findings) -> Vec<Asked> {
    let annotations = annotations(pod);
    let own = |setting: &'static Setting, key: String| {
        let written = annotations.get(&key)?;
        Some(Asked { setting, value: as_setting(setting, written), written: written.clone(), place: key })
    };
    let mut counts = Vec::new();
    for group in GROUPS {
        let for_container: Vec<_> =
            group.iter().filter_map(|setting| own(setting, annotation_for(setting, container))).collect();
        let for_pod = || -> Vec<_> {
            group.iter().filter_map(|setting| own(setting, format!("{PREFIX}{}", key_of(setting)))).collect()
        };
        let mut ours = for_container;
        if ours.is_empty() {
            ours = for_pod();
        }
        let theirs: Vec<_> = foreign.asked.iter().filter(|asked| group.contains(&asked.setting)).cloned().collect();
        if ours.is_empty() {
            counts.extend(theirs);
            continue;
        }
        if let Some(ignored) = theirs.first()
            && let Some(first) = ours.first()
            && !same(&ours, &theirs)
        {
            findings.warn(format!(
                "{}={} is ignored, because of {}={}; remove it, or let both say the same",
                ignored.place,
                quoted(&ignored.written),
                first.place,
                quoted(&first.written)
            ));
        }
        counts.extend(ours);
    }
    counts
}

/// Whether two lists ask for the same, in whatever words.
fn same(one: &[Asked], other: &[Asked]) -> bool {
    let read = |asked: &[Asked]| {
        let settings = read(asked, &crate::config::Defaults::default()).ok()?;
        Some((settings.memory, settings.compute_request, settings.compute_limit, settings.priority))
    };
    read(one).is_some_and(|one| Some(one) == read(other))
}

/// Reads what counts, with defaults for what is not asked. Errors name the annotation or resource, and quote it as it was
/// written.
fn read(asked: &[Asked], defaults: &crate::config::Defaults) -> Result<Settings, Vec<Error>> {
    let get = |variable: &str| {
        if let Some(found) = asked.iter().find(|asked| asked.setting.name == variable) {
            return Some(found.value.clone());
        }
        let group = GROUPS.into_iter().find(|group| group.iter().any(|setting| setting.name == variable))?;
        let group_is_asked = asked.iter().any(|asked| group.contains(&asked.setting));
        if group_is_asked { None } else { defaults.variable(variable) }
    };
    Settings::read(&get, None).map_err(|errors| errors.into_iter().map(|error| renamed(error, asked)).collect())
}

fn renamed(mut error: Error, asked: &[Asked]) -> Error {
    if let Origin::Variable(name) = &error.given.origin
        && let Some(found) = asked.iter().find(|asked| asked.setting.name == *name)
    {
        error.given = Given { origin: Origin::Variable(found.place.clone()), value: found.written.clone() };
    }
    error
}

/// A value of an annotation in the grammar of the settings, which have all but the rarer forms of Kubernetes' quantities:
/// `.5Gi`, `+8Gi`, `8589934592000m`. What is no quantity either is left as it is, for the settings' own error.
fn as_setting(setting: &Setting, written: &str) -> String {
    if *setting != MEMORY {
        return written.to_owned();
    }
    let amount = |text: &str| -> Result<Amount, Problem> {
        text.parse().or_else(|problem| {
            let bytes = Quantity::parse(text.trim()).and_then(Quantity::rounded_up).ok_or(problem)?;
            bytes.to_string().parse()
        })
    };
    match (PerGpu::parse(written, str::parse::<Amount>), PerGpu::parse(written, amount)) {
        (Err(_), Ok(list)) => list.to_string(),
        _ => written.to_owned(),
    }
}

/// What the injector itself writes, without the prefix: `injected`, `preload` and `quota.<container>`.
pub fn is_written_by_injector(key: &str) -> bool {
    key.strip_prefix(PREFIX).is_some_and(|rest| rest == "injected" || rest == "preload" || rest.starts_with("quota."))
}

/// Annotations with our prefix that ask for nothing that there is, or for a container that there is not. A slip in one of
/// these would otherwise mean "no limit".
fn check_annotations(pod: &Pod, spec: &PodSpec, findings: &mut Findings) {
    let keys: Vec<String> = GROUPS.into_iter().flatten().map(|setting| key_of(setting)).collect();
    for (name, value) in annotations(pod) {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        if is_written_by_injector(name) {
            continue;
        }
        let (key, container) = rest.split_once('.').map_or((rest, None), |(key, container)| (key, Some(container)));
        if name == LABEL {
            let text = format!("annotation {LABEL}: it is a label; write it under metadata.labels");
            findings.deny(Reason::Annotation, text);
        } else if !keys.iter().any(|known| known == key) {
            let text = format!(
                "annotation {name}={}: {} is nothing that can be asked for; accepted: {PREFIX} and one of {}, each also with \
                 .<container>; correct it, or remove it",
                quoted(value),
                quoted(key),
                keys.join(", ")
            );
            findings.deny(Reason::Annotation, text);
        } else if let Some(container) = container
            && !containers(spec).any(|(_, _, one)| one.name == container)
        {
            let there: Vec<&str> = containers(spec).map(|(_, _, one)| one.name.as_str()).collect();
            let text = format!(
                "annotation {name}: the pod has no container {}; accepted: {}; correct the name, or remove the annotation",
                quoted(container),
                quoted(&there.join(", "))
            );
            findings.deny(Reason::Annotation, text);
        }
    }
}

fn tell_if_asked_in_vain(pod: &Pod, container: &str, findings: &mut Findings) {
    for setting in GROUPS.into_iter().flatten() {
        let name = annotation_for(setting, container);
        if annotations(pod).contains_key(&name) {
            findings.warn(format!("annotation {name}: container {container} has no GPU, so nothing is held to it"));
        }
    }
}

fn tell_if_unlimited(rules: &Rules, slice: &Slice, findings: &mut Findings) {
    let settings = &slice.settings;
    let limited =
        !(settings.memory.is_empty() && settings.compute_limit.is_empty() && settings.compute_request.is_empty());
    if limited {
        return;
    }
    let name = &slice.container;
    match rules.without_quota {
        Policy::Allow => findings.warn(format!(
            "container {name} has a GPU and asks for no part of it, so it is not limited; ask with the annotations \
             {PREFIX}memory and {PREFIX}compute"
        )),
        Policy::Deny => findings.deny(
            Reason::WithoutQuota,
            format!(
                "container {name} has a GPU and asks for no part of it, which this namespace does not allow; add the \
                 annotation {PREFIX}memory (such as 8GiB), or {PREFIX}compute (such as 30%), or both"
            ),
        ),
    }
}
