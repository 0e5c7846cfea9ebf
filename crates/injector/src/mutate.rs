//! Puts the library, the region and the quota into a pod.
//!
//! Decisions are made on typed pods, and what is put in is typed too; but it is put into the JSON that came, so that fields
//! of API servers newer than this code stay with the element that they belong to. (A diff of typed pods would move them: an
//! init container that is put first takes the place, and the unknown fields, of the one that was first.) The patch is the
//! difference between what came and what became of it.
//!
//! Everything is put in by name and place: what is there already, and as it should be, is left alone. So a pod that was
//! injected before, by an earlier round of admission or as a copy of a running one, comes out the same.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, Volume, VolumeMount};
use ration_contract::{POD, PerGpu, Percent, Priority, Settings};
use serde_json::Value;

use crate::ask::{self, Findings, List, PREFIX, Reason, Slice};
use crate::config::{Config, Delivery, Preload, Rules};

pub(crate) mod edit;
pub(crate) mod guard;
mod parts;

pub use parts::{quota_annotation, quota_volume};

/// Where the library is in a container.
pub const LIBRARY_DIR: &str = "/usr/local/ration";
/// The library itself.
pub const LIBRARY: &str = "/usr/local/ration/libration.so";
/// Where the regions are in a container. Under `hostPath`, this is what all pods tell each other, and can only be read.
pub const REGION_DIR: &str = "/run/ration";
/// Where its pod's own directory among those is, under `hostPath`.
pub const OWN_DIR: &str = "/run/ration-own";
/// The variable by which the kubelet knows which directory that is.
pub const POD_UID: &str = "RATION_POD_UID";
/// Where the quota file is in a container, under the name that the library looks for.
pub const QUOTA_DIR: &str = "/etc/ration";
/// What the dynamic linker reads.
pub const PRELOAD_FILE: &str = "/etc/ld.so.preload";

/// The volume with the library, and the init container that fills it.
pub const LIBRARY_VOLUME: &str = "ration-library";
/// The volume with the regions.
pub const REGION_VOLUME: &str = "ration-region";
/// What the names of the quota files' volumes begin with.
pub const QUOTA_VOLUME: &str = "ration-quota-";

/// Says that a pod was injected, by which version and how.
pub const INJECTED: &str = "ration.dev/injected";
/// What `/etc/ld.so.preload` says.
pub const PRELOAD: &str = "ration.dev/preload";

/// What became of a pod.
#[derive(Debug)]
pub struct Injection {
    /// The pod.
    pub pod: Value,
    /// What was put into which container, for logs and the audit log.
    pub summary: String,
}

/// Puts everything in. `raw` is the same pod as `pod`. Nothing is put into a pod in which no container has a GPU.
pub fn inject(
    config: &Config,
    rules: &Rules,
    namespace: &str,
    pod: &Pod,
    raw: &Value,
    findings: &mut Findings,
) -> Option<Injection> {
    let slices = ask::slices(config, rules, pod, None, findings);
    if slices.is_empty() {
        return None;
    }
    guard::check(config, rules, pod, &slices, findings);
    let wanted = Wanted::new(config, rules);
    let mut after = raw.clone();
    for slice in &slices {
        wanted.put_into_container(config, slice, &mut after);
    }
    for volume in &wanted.volumes {
        edit::ensure_volume(&mut after, volume);
    }
    for slice in &slices {
        edit::ensure_volume(&mut after, &parts::quota(&slice.container));
    }
    if let Some(init) = &wanted.init {
        let first = slices.iter().filter(|slice| slice.list == List::Init).map(|slice| slice.index).min();
        edit::ensure_init_container(&mut after, init, first);
    }
    let mut written = quotas(namespace, &slices, &|_| Place::of(rules.delivery));
    if written.len() != slices.len() {
        let text = "two containers have long names that cannot be told apart; shorten them to 50 characters";
        findings.deny(Reason::Conflict, text);
    }
    for slice in &slices {
        for (key, value) in &slice.translated {
            check_key(key, &slice.container, findings);
            written.insert(key.clone(), value.clone());
        }
    }
    written.insert(PRELOAD.to_owned(), format!("{LIBRARY}\n"));
    written.insert(INJECTED.to_owned(), mark(rules, &slices));
    // Of a container that had a GPU in the pod of which this is a copy, or forged.
    let stale = |name: &&String| ask::is_written_by_injector(name) && !written.contains_key(*name);
    for name in ask::annotations(pod).keys().filter(stale) {
        edit::remove_annotation(&mut after, name);
    }
    edit::set_annotations(&mut after, &written);
    Some(Injection { pod: after, summary: summary(&slices) })
}

/// The API server takes 63 characters after the slash.
fn check_key(key: &str, container: &str, findings: &mut Findings) {
    if key.len() > PREFIX.len() + 63 {
        let text = format!(
            "container {container}: its name is too long to translate what it asks for; shorten it to 50 characters, or ask \
             with {PREFIX}memory and {PREFIX}compute"
        );
        findings.deny(Reason::ForeignRequest, text);
    }
}

/// Where a container's own region is, and what if it cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    own_dir: Option<String>,
    strict: bool,
}

impl Place {
    fn of(delivery: Delivery) -> Place {
        let shares = delivery == Delivery::HostPath;
        let own_dir = if shares { OWN_DIR } else { REGION_DIR };
        Place { own_dir: Some(own_dir.to_owned()), strict: shares }
    }

    /// That of a container that runs, by its quota file: where its mounts are does not change any more, and a library that was
    /// there before there were such directories would not understand that there are.
    pub fn found(pod: &Pod, container: &str) -> Place {
        let quota = ask::annotations(pod).get(&parts::quota_annotation(container));
        let own_dir = |line: &str| line.strip_prefix("own_dir = ").map(str::to_owned);
        Place { own_dir: quota.and_then(|text| text.lines().find_map(own_dir)), strict: shares_region(pod) }
    }
}

/// The annotations that quota files are made of.
pub fn quotas(namespace: &str, slices: &[Slice], place: &dyn Fn(&str) -> Place) -> BTreeMap<String, String> {
    let quota = |slice: &Slice| {
        let text = quota_file(&slice.settings, namespace, &slice.container, place(&slice.container));
        (parts::quota_annotation(&slice.container), text)
    };
    slices.iter().map(quota).collect()
}

/// A quota file. It leaves nothing to the environment that a tenant could gain by: not whose slice it is, nor where, nor
/// what is guaranteed to it, nor who waits for whom.
fn quota_file(settings: &Settings, namespace: &str, container: &str, place: Place) -> String {
    let mut all = settings.clone();
    if all.compute_request.is_empty() {
        all.compute_request = PerGpu::all(Percent::NONE);
    }
    all.name = Some(format!("{namespace}/{POD}/{container}"));
    all.dir = Some(REGION_DIR.to_owned());
    all.own_dir = place.own_dir;
    all.strict = place.strict;
    let mut text = all.quota_file();
    if all.priority == Priority::default() {
        text.push_str(&format!("priority = {}\n", all.priority));
    }
    text
}

/// Which version injected which containers, and how.
fn mark(rules: &Rules, slices: &[Slice]) -> String {
    let names: Vec<&str> = slices.iter().map(|slice| slice.container.as_str()).collect();
    format!("{} {} {}", env!("CARGO_PKG_VERSION"), rules.delivery.name(), names.join(","))
}

/// `main: memory=8GiB compute-limit=30%; other: …`
fn summary(slices: &[Slice]) -> String {
    let one = |slice: &Slice| {
        let settings = &slice.settings;
        let mut text = format!("{}:", slice.container);
        for (key, value) in [
            ("memory", (!settings.memory.is_empty()).then(|| settings.memory.to_string())),
            ("compute-request", (!settings.compute_request.is_empty()).then(|| settings.compute_request.to_string())),
            ("compute-limit", (!settings.compute_limit.is_empty()).then(|| settings.compute_limit.to_string())),
            ("priority", (settings.priority != Priority::default()).then(|| settings.priority.to_string())),
        ] {
            if let Some(value) = value {
                text.push_str(&format!(" {key}={value}"));
            }
        }
        if text.ends_with(':') {
            text.push_str(" no limit");
        }
        text
    };
    slices.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// What goes into a pod, apart from the quotas.
struct Wanted {
    volumes: Vec<Volume>,
    mounts: Vec<VolumeMount>,
    init: Option<Container>,
    preload: Preload,
    /// Whether the regions are the node's.
    shares: bool,
}

impl Wanted {
    fn new(config: &Config, rules: &Rules) -> Wanted {
        let shares = rules.delivery == Delivery::HostPath;
        let mut mounts = vec![parts::library_mount(), parts::region_mount(shares)];
        mounts.extend(shares.then(parts::own_mount));
        Wanted {
            volumes: vec![parts::library(config, rules.delivery), parts::region(config, rules.delivery)],
            mounts,
            init: parts::init_container(config, rules.delivery),
            preload: rules.preload,
            shares,
        }
    }

    fn put_into_container(&self, config: &Config, slice: &Slice, pod: &mut Value) {
        let Some(container) = edit::element(pod, slice.list.field(), slice.index) else { return };
        let mut mounts = self.mounts.clone();
        mounts.push(parts::quota_mount(&slice.container));
        match self.preload {
            Preload::File => mounts.push(parts::preload_mount(&slice.container)),
            Preload::Env => edit::preload(container),
        }
        edit::ensure_mounts(container, &mounts);
        // The mount follows it, so nobody else may say what it is.
        edit::ensure_variable(container, &parts::pod_uid(), self.shares);
        edit::remove_resources(container, &slice.removed);
        if let Some(gpus) = slice.added_gpus {
            edit::add_resource(container, config.added_gpu_resource(), gpus);
        }
    }
}

/// The containers of a pod that were injected: those with a quota file of ours.
pub fn injected(pod: &Pod) -> Vec<&str> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let mounts_quota = |one: &&Container| {
        let volume = parts::quota_volume(&one.name);
        one.volume_mounts.iter().flatten().any(|mount| mount.name == volume && mount.mount_path == QUOTA_DIR)
    };
    ask::containers(spec).map(|(_, _, one)| one).filter(mounts_quota).map(|one| one.name.as_str()).collect()
}

/// Whether the regions of an injected pod are where those of other pods are.
pub fn shares_region(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|volume| volume.name == REGION_VOLUME && volume.host_path.is_some())
}

/// Puts an ephemeral container into the slice of another container of its pod: the volumes are there, and can only be
/// mounted whole, so the dynamic linker is told by `LD_PRELOAD`, and where the regions are the node's (`shares`), there is none that
/// it could write to.
pub fn inject_ephemeral(pod: &mut Value, index: usize, target: &str, shares: bool) {
    let Some(container) = edit::element(pod, List::Ephemeral.field(), index) else { return };
    edit::preload(container);
    edit::ensure_mounts(container, &[parts::library_mount(), parts::region_mount(shares), parts::quota_mount(target)]);
}

/// An ephemeral container as what it is apart from its target.
pub fn as_container(one: &EphemeralContainer) -> Container {
    Container {
        name: one.name.clone(),
        env: one.env.clone(),
        volume_mounts: one.volume_mounts.clone(),
        security_context: one.security_context.clone(),
        ..Container::default()
    }
}
