//! What speaks against putting the library into a pod: something in its way, or a way round it.

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec, Volume};
use ration_contract::table::{ALIASES, Alias, SETTINGS};

use super::{
    LIBRARY_DIR, LIBRARY_VOLUME, OWN_DIR, POD_UID, PRELOAD_FILE, QUOTA_DIR, QUOTA_VOLUME, REGION_DIR, REGION_VOLUME,
    parts,
};
use crate::ask::{self, Findings, Reason, Slice, quoted};
use crate::config::{Config, Delivery, Policy, Preload, Rules};

/// Whether the quota file counts before a variable: one of the settings, or an alias, which may be for one GPU (`…_0`).
fn is_overruled(variable: &str) -> bool {
    let is_alias = |alias: &&Alias| {
        let rest = variable.strip_prefix(alias.name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    SETTINGS.iter().any(|setting| setting.name == variable) || ALIASES.iter().any(is_alias)
}

/// Whether a volume's name is one that the injector gives.
pub(crate) fn is_reserved(volume: &str) -> bool {
    volume == LIBRARY_VOLUME || volume == REGION_VOLUME || volume.starts_with(QUOTA_VOLUME)
}

/// A path as the runtime takes it: from the root, without `.`, `..` and doubled slashes.
pub(crate) fn plain_path(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Whether a path is another, or below it.
fn at_or_below(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || other == "/")
}

/// Checks a pod before it is changed.
pub(super) fn check(config: &Config, rules: &Rules, pod: &Pod, slices: &[Slice], findings: &mut Findings) {
    let Some(spec) = &pod.spec else { return };
    check_names(rules, spec, slices, findings);
    if rules.privileged == Policy::Deny {
        check_privileges(spec, slices, findings);
    }
    for volume in spec.volumes.iter().flatten() {
        check_volume(config, volume, findings);
    }
    let shares = rules.delivery == Delivery::HostPath;
    for (list, index, container) in ask::containers(spec) {
        let injected = slices.iter().any(|slice| (slice.list, slice.index) == (list, index));
        if list == ask::List::Init && container.name == LIBRARY_VOLUME {
            // It is replaced as a whole, or refused for its name.
            continue;
        }
        let mut places = if injected { places(rules.preload) } else { Vec::new() };
        if injected && shares {
            places.push(OWN_DIR);
        }
        check_mounts(container, &places, shares, findings);
        if injected {
            check_env(container.env.as_deref().unwrap_or_default(), &container.name, rules.preload, findings);
            tell_of_overruled(container, shares, findings);
        }
    }
}

/// Names end up in quota files, in the names of volumes and in annotations.
fn check_names(rules: &Rules, spec: &PodSpec, slices: &[Slice], findings: &mut Findings) {
    let mut seen: Vec<&str> = Vec::new();
    for (list, _, container) in ask::containers(spec) {
        let name = container.name.as_str();
        if !is_label(name) {
            let text = format!("container {} has no name that Kubernetes takes; write a-z, 0-9 and -", quoted(name));
            findings.deny(Reason::UnreadablePod, text);
        }
        if seen.contains(&name) {
            let text = format!("two containers have the name {}; give each its own", quoted(name));
            findings.deny(Reason::UnreadablePod, text);
        }
        // The injector's own, of an earlier round or of the pod of which this is a copy. It has no GPU.
        let has_slice = slices.iter().any(|slice| slice.container == name);
        let is_replaced = list == ask::List::Init && rules.delivery == Delivery::InitContainer && !has_slice;
        if name == LIBRARY_VOLUME && !is_replaced {
            let text = format!("container {name}: the name is the injector's; remove or rename the container");
            findings.deny(Reason::Conflict, text);
        }
        seen.push(name);
    }
}

/// Whether Kubernetes takes it for the name of a namespace or a container.
pub(crate) fn is_label(name: &str) -> bool {
    let inner = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    inner && !name.is_empty() && name.len() <= 63 && !name.starts_with('-') && !name.ends_with('-')
}

/// A privileged container sees every GPU of the node, and one with CAP_SYS_ADMIN can unmount the library. Any container of
/// the pod will do for the first, and only one with a GPU for the second.
fn check_privileges(spec: &PodSpec, slices: &[Slice], findings: &mut Findings) {
    const SETTING: &str = "or have whoever runs the injector set privileged: allow for this namespace";
    if spec.host_pid == Some(true) {
        let text = format!(
            "spec.hostPID: true and a part of a GPU: the pod could reach the processes of others and leave its slice; \
             remove hostPID, {SETTING}"
        );
        findings.deny(Reason::Privileged, text);
    }
    for (list, index, container) in ask::containers(spec) {
        let sliced = slices.iter().any(|slice| (slice.list, slice.index) == (list, index));
        check_privileges_of(container, sliced, findings);
    }
}

pub(crate) fn check_privileges_of(container: &Container, sliced: bool, findings: &mut Findings) {
    const SETTING: &str = "or have whoever runs the injector set privileged: allow for this namespace";
    let Some(context) = &container.security_context else { return };
    let name = &container.name;
    if context.privileged == Some(true) {
        let text = format!(
            "container {name}: securityContext.privileged: true in a pod with a part of a GPU: it would see whole GPUs, round \
             the library; write privileged: false, and add the capabilities that it needs one by one, {SETTING}"
        );
        findings.deny(Reason::Privileged, text);
    }
    let added = context.capabilities.iter().flat_map(|capabilities| capabilities.add.iter().flatten());
    let admin = |capability: &&String| {
        let capability = capability.to_ascii_uppercase();
        matches!(capability.as_str(), "SYS_ADMIN" | "CAP_SYS_ADMIN" | "ALL" | "CAP_ALL")
    };
    if sliced && let Some(capability) = added.into_iter().find(admin) {
        let text = format!(
            "container {name}: capability {} and a part of a GPU: it could unmount the library; remove the capability, \
             {SETTING}",
            quoted(capability)
        );
        findings.deny(Reason::Privileged, text);
    }
}

/// A volume with a name of ours is one of ours, of this configuration or an earlier one, or it is in the way. And the
/// node's directories are mounted by the injector alone.
fn check_volume(config: &Config, volume: &Volume, findings: &mut Findings) {
    let name = volume.name.as_str();
    if is_reserved(name) {
        let ours = match name {
            LIBRARY_VOLUME => volume.host_path.is_some() || volume.image.is_some() || volume.empty_dir.is_some(),
            REGION_VOLUME => volume.host_path.is_some() || volume.empty_dir.is_some(),
            _ => volume.downward_api.is_some(),
        };
        if !ours {
            let text = format!("volume {name}: the name is the injector's; rename the volume");
            findings.deny(Reason::Conflict, text);
        }
        return;
    }
    let Some(host_path) = &volume.host_path else { return };
    let path = plain_path(&host_path.path);
    for kept in [&config.host_paths.library, &config.host_paths.region] {
        if at_or_below(&path, kept) {
            let text = format!(
                "volume {}: hostPath {path} is the injector's; remove the volume, for what a container needs of it is \
                 mounted into it anyway",
                quoted(name)
            );
            findings.deny(Reason::Conflict, text);
        }
    }
}

/// Where the injector mounts something, in every container that gets the library.
pub(crate) fn places(preload: Preload) -> Vec<&'static str> {
    let mut places = vec![LIBRARY_DIR, REGION_DIR, QUOTA_DIR];
    places.extend((preload == Preload::File).then_some(PRELOAD_FILE));
    places
}

/// Mounts in places that the injector needs, and mounts of its volumes in others. `needed`: the places; none if nothing is put into this
/// container. `shares`: whether the regions are those of all pods on the node.
pub(crate) fn check_mounts(container: &Container, needed: &[&str], shares: bool, findings: &mut Findings) {
    let name = &container.name;
    for mount in container.volume_mounts.iter().flatten() {
        let path = plain_path(&mount.mount_path);
        if is_reserved(&mount.name) {
            let places = [LIBRARY_DIR, REGION_DIR, OWN_DIR, QUOTA_DIR, PRELOAD_FILE];
            let is_corrected = !needed.is_empty() && places.contains(&path.as_str());
            if !is_corrected && !is_harmless(container, mount, shares) {
                let text = format!(
                    "container {name} mounts {} at {path}: the volume is the injector's; remove the mount",
                    quoted(&mount.name)
                );
                findings.deny(Reason::Conflict, text);
            }
        } else if let Some(place) = needed.iter().find(|place| at_or_below(&path, place)) {
            let text = format!(
                "container {name} mounts volume {} at {path}: the injector needs {place} in containers with a GPU; mount it \
                 elsewhere",
                quoted(&mount.name)
            );
            findings.deny(Reason::Conflict, text);
        } else if mount.read_only == Some(true)
            && let Some(place) = needed.iter().find(|place| at_or_below(place, &path))
        {
            findings.warn(format!(
                "container {name} mounts volume {} read-only at {path}: it does not start unless {place} exists in it",
                quoted(&mount.name)
            ));
        }
    }
}

/// What the injector itself has put into a container, which may have lost its GPU since: the pod is a copy. All pods' directories can
/// only be read, and of those one is written to that is surely the pod's own.
fn is_harmless(container: &Container, mount: &k8s_openapi::api::core::v1::VolumeMount, shares: bool) -> bool {
    let mut ours = vec![
        parts::library_mount(),
        parts::region_mount(shares),
        parts::quota_mount(&container.name),
        parts::preload_mount(&container.name),
    ];
    let names: Vec<&EnvVar> = container.env.iter().flatten().filter(|one| one.name == POD_UID).collect();
    if shares && names == [&parts::pod_uid()] {
        ours.push(parts::own_mount());
    }
    ours.contains(mount)
}

/// An `LD_PRELOAD` whose value cannot be seen cannot be merged with ours.
pub(crate) fn check_env(env: &[EnvVar], container: &str, preload: Preload, findings: &mut Findings) {
    let hidden = env.iter().rev().find(|one| one.name == "LD_PRELOAD").is_some_and(|one| one.value_from.is_some());
    if hidden && preload == Preload::Env {
        let text = format!(
            "container {container}: LD_PRELOAD comes from valueFrom, so the library cannot be put before it; write its value \
             in the pod, or have whoever runs the injector set preload: file"
        );
        findings.deny(Reason::PreloadHidden, text);
    }
}

fn tell_of_overruled(container: &Container, shares: bool, findings: &mut Findings) {
    let env = container.env.iter().flatten();
    if shares && env.clone().any(|one| one.name == POD_UID && *one != parts::pod_uid()) {
        findings.warn(format!(
            "container {}: {POD_UID} in env is the injector's, and what the pod says it is does not count; rename the variable",
            container.name
        ));
    }
    let ours = |one: &&EnvVar| is_overruled(&one.name);
    if let Some(found) = env.into_iter().find(ours) {
        findings.warn(format!(
            "container {}: {} in env does not count where the quota file says something else; ask with annotations, such as {}memory",
            container.name,
            found.name,
            ask::PREFIX
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_in_the_environment_is_overruled_and_nothing_else_is() {
        for name in ["RATION_MEMORY", "RATION_DIR", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT_3"] {
            assert!(is_overruled(name), "{name}");
        }
        for name in ["RATION_LOG", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMITS", "PATH"] {
            assert!(!is_overruled(name), "{name}");
        }
    }

    #[test]
    fn paths_are_taken_as_the_runtime_takes_them() {
        for (path, plain) in [
            ("/etc/ration", "/etc/ration"),
            ("/etc/ration/", "/etc/ration"),
            ("//etc//./ration", "/etc/ration"),
            ("/etc/x/../ration", "/etc/ration"),
            ("etc/ration", "/etc/ration"),
            ("/../..", "/"),
            ("", "/"),
        ] {
            assert_eq!(plain_path(path), plain, "{path}");
        }
        assert!(at_or_below("/etc/ration/quota", "/etc/ration") && at_or_below("/etc/ration", "/etc/ration"));
        assert!(!at_or_below("/etc/rations", "/etc/ration") && !at_or_below("/etc", "/etc/ration"));
        assert!(at_or_below("/etc/ration", "/"));
    }
}
