//! What is known of namespaces. An admission review names the pod's namespace and says nothing of its labels, so whoever
//! serves reviews watches namespaces and lends what it knows.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

use crate::config::{Delivery, Rules};

/// The labels of a namespace.
pub type Labels = BTreeMap<String, String>;

/// What is known of namespaces.
pub trait Namespaces {
    /// The labels of one; `None` if they are not known.
    fn labels(&self, namespace: &str) -> Option<Labels>;

    /// The version of the API server that keeps them, such as (1, 33); `None` if it is not known.
    fn server_version(&self) -> Option<(u32, u32)> {
        None
    }
}

/// Nothing is known of any.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unknown;

impl Namespaces for Unknown {
    fn labels(&self, _namespace: &str) -> Option<Labels> {
        None
    }
}

impl<S: BuildHasher> Namespaces for HashMap<String, Labels, S> {
    fn labels(&self, namespace: &str) -> Option<Labels> {
        self.get(namespace).cloned()
    }
}

impl Namespaces for BTreeMap<String, Labels> {
    fn labels(&self, namespace: &str) -> Option<Labels> {
        self.get(namespace).cloned()
    }
}

/// The label with the level of Pod Security that a namespace enforces.
pub(super) const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Why the library cannot come from the node, where the namespace's level forbids hostPath volumes. Without this, the API
/// server would refuse the pod for a volume that its owner never wrote.
pub(super) fn forbids_host_path(rules: &Rules, labels: Option<&Labels>, namespace: &str) -> Option<String> {
    if rules.delivery != Delivery::HostPath || !rules.heed_pod_security {
        return None;
    }
    let level = labels?.get(ENFORCE).map(String::as_str).filter(|level| matches!(*level, "baseline" | "restricted"))?;
    Some(format!(
        "namespace {namespace} enforces Pod Security level {level}, which forbids the hostPath volumes of delivery: hostPath; \
         have whoever runs the injector write namespaces: {{{namespace}: {{delivery: image}}}} in its configuration (or \
         initContainer where Kubernetes has no image volumes), or podSecurity: ignore if the namespace is exempt"
    ))
}

/// The first version whose API server knows volumes of images.
const IMAGE_VOLUMES: (u32, u32) = (1, 31);

/// Why the library cannot come as an image. An API server that does not know such volumes leaves out what it does not know,
/// and makes an empty directory of the rest: the pod would run, without the library and without limits.
pub(super) fn lacks_image_volumes(rules: &Rules, version: Option<(u32, u32)>, namespace: &str) -> Option<String> {
    let (major, minor) = version.filter(|version| *version < IMAGE_VOLUMES)?;
    (rules.delivery == Delivery::Image).then(|| {
        format!(
            "delivery: image needs Kubernetes 1.31 or later, and this is {major}.{minor}; have whoever runs the injector write \
             namespaces: {{{namespace}: {{delivery: initContainer}}}} in its configuration"
        )
    })
}
