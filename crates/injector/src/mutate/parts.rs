//! What is put into pods, piece by piece.
//!
//! Every field that the API server would fill in is set here, to the same value: a pod that comes back from it is then found
//! to be as it should be.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, DownwardAPIVolumeFile, DownwardAPIVolumeSource, EmptyDirVolumeSource, EnvVar,
    EnvVarSource, HostPathVolumeSource, ImageVolumeSource, ObjectFieldSelector, ResourceRequirements, SeccompProfile,
    SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{
    LIBRARY_DIR, LIBRARY_VOLUME, OWN_DIR, POD_UID, PRELOAD, PRELOAD_FILE, QUOTA_DIR, QUOTA_VOLUME, REGION_DIR,
    REGION_VOLUME,
};
use crate::ask::PREFIX;
use crate::config::{Config, Delivery};

/// The name of the quota file in its volume; the name of the pod lies beside it.
const QUOTA_ITEM: &str = "quota";
const POD_ITEM: &str = "pod";
const PRELOAD_ITEM: &str = "ld.so.preload";

/// Names in Kubernetes have at most so many characters, and annotations too, after the slash.
const LONGEST_NAME: usize = 63;

/// The volume with the library.
pub(super) fn library(config: &Config, delivery: Delivery) -> Volume {
    let mut volume = Volume { name: LIBRARY_VOLUME.to_owned(), ..Volume::default() };
    match (delivery, &config.library_image) {
        (Delivery::Image, Some(image)) => {
            volume.image = Some(ImageVolumeSource {
                reference: Some(image.reference.clone()),
                pull_policy: Some(image.pull_policy.clone()),
            });
        }
        (Delivery::InitContainer, _) => volume.empty_dir = Some(EmptyDirVolumeSource::default()),
        // An image delivery without an image is no configuration that can be read.
        (Delivery::HostPath | Delivery::Image, _) => volume.host_path = Some(directory(&config.host_paths.library)),
    }
    volume
}

/// The volume with the regions: the node's, or one for the pod alone.
pub(super) fn region(config: &Config, delivery: Delivery) -> Volume {
    let mut volume = Volume { name: REGION_VOLUME.to_owned(), ..Volume::default() };
    if delivery == Delivery::HostPath {
        volume.host_path = Some(directory(&config.host_paths.region));
    } else {
        // A region is a third of a MiB for each GPU; the limit keeps it from being a way round the memory of the pod.
        let limit = Quantity("32Mi".to_owned());
        volume.empty_dir = Some(EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: Some(limit) });
    }
    volume
}

fn directory(path: &str) -> HostPathVolumeSource {
    HostPathVolumeSource { path: path.to_owned(), type_: Some("Directory".to_owned()) }
}

/// The volume with a container's quota file, the name of its pod, and what the dynamic linker is to preload: all from the
/// pod's own metadata, so that no one on the node has to write them.
pub(super) fn quota(container: &str) -> Volume {
    let item = |path: &str, field_path: String| DownwardAPIVolumeFile {
        path: path.to_owned(),
        field_ref: Some(field(field_path)),
        ..DownwardAPIVolumeFile::default()
    };
    let annotation = |name: &str| format!("metadata.annotations['{name}']");
    Volume {
        name: quota_volume(container),
        downward_api: Some(DownwardAPIVolumeSource {
            default_mode: Some(0o444),
            items: Some(vec![
                item(QUOTA_ITEM, annotation(&quota_annotation(container))),
                item(POD_ITEM, "metadata.name".to_owned()),
                item(PRELOAD_ITEM, annotation(PRELOAD)),
            ]),
        }),
        ..Volume::default()
    }
}

fn field(path: String) -> ObjectFieldSelector {
    ObjectFieldSelector { api_version: Some("v1".to_owned()), field_path: path }
}

/// The name of that volume.
pub fn quota_volume(container: &str) -> String {
    short(QUOTA_VOLUME, container)
}

/// The annotation with a container's quota file.
pub fn quota_annotation(container: &str) -> String {
    format!("{PREFIX}{}", short("quota.", container))
}

/// A name of at most the length that Kubernetes takes. A long one is cut, and the hash of all of it tells it from others
/// that begin so.
fn short(beginning: &str, name: &str) -> String {
    let whole = format!("{beginning}{name}");
    if whole.len() <= LONGEST_NAME {
        return whole;
    }
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let kept: String = whole.chars().take(LONGEST_NAME - 17).collect();
    format!("{kept}-{hash:016x}")
}

fn mount(volume: &str, path: &str, read_only: Option<bool>) -> VolumeMount {
    VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), read_only, ..VolumeMount::default() }
}

pub(super) fn library_mount() -> VolumeMount {
    mount(LIBRARY_VOLUME, LIBRARY_DIR, Some(true))
}

/// The regions: all pods' are only looked at (`shares`), the pod's own may be made there.
pub(super) fn region_mount(shares: bool) -> VolumeMount {
    mount(REGION_VOLUME, REGION_DIR, shares.then_some(true))
}

/// The pod's own directory among those of all pods. The kubelet makes it with the mode of the one that it is in, so that every user in
/// the pod may write there; for other pods it lies in what they can only read.
pub(super) fn own_mount() -> VolumeMount {
    VolumeMount { sub_path_expr: Some(format!("$({POD_UID})")), ..mount(REGION_VOLUME, OWN_DIR, None) }
}

/// What that directory is called. A pod has its UID from the API server, and no other has or had it.
pub(super) fn pod_uid() -> EnvVar {
    let source = EnvVarSource { field_ref: Some(field("metadata.uid".to_owned())), ..EnvVarSource::default() };
    EnvVar { name: POD_UID.to_owned(), value_from: Some(source), ..EnvVar::default() }
}

pub(super) fn quota_mount(container: &str) -> VolumeMount {
    mount(&quota_volume(container), QUOTA_DIR, Some(true))
}

pub(super) fn preload_mount(container: &str) -> VolumeMount {
    let whole = mount(&quota_volume(container), PRELOAD_FILE, Some(true));
    VolumeMount { sub_path: Some(PRELOAD_ITEM.to_owned()), ..whole }
}

/// The container that copies the library into the pod. It keeps to Pod Security's `restricted` level, and its limits are its
/// requests, so that it changes no pod's quality of service.
pub(super) fn init_container(config: &Config, delivery: Delivery) -> Option<Container> {
    let image = config.library_image.as_ref().filter(|_| delivery == Delivery::InitContainer)?;
    let amounts = || {
        let amounts = [("cpu", "50m"), ("memory", "32Mi")];
        Some(amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into())
    };
    Some(Container {
        name: LIBRARY_VOLUME.to_owned(),
        image: Some(image.reference.clone()),
        image_pull_policy: Some(image.pull_policy.clone()),
        command: Some(image.copy_command.clone()),
        resources: Some(ResourceRequirements {
            limits: amounts(),
            requests: amounts(),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            run_as_user: Some(65532),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
            ..SecurityContext::default()
        }),
        termination_message_path: Some("/dev/termination-log".to_owned()),
        termination_message_policy: Some("File".to_owned()),
        volume_mounts: Some(vec![mount(LIBRARY_VOLUME, LIBRARY_DIR, None)]),
        ..Container::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        assert_eq!(quota_volume("main"), "ration-quota-main");
        assert_eq!(quota_annotation("main"), "ration.dev/quota.main");
        let (one, other) = ("c".repeat(62) + "1", "c".repeat(62) + "2");
        assert_eq!(quota_volume(&one).len(), 63);
        assert_eq!(quota_annotation(&one).len(), "ration.dev/".len() + 63);
        assert_ne!(quota_volume(&one), quota_volume(&other));
        assert_eq!(quota_volume(&"c".repeat(50)), format!("ration-quota-{}", "c".repeat(50)));
    }
}
