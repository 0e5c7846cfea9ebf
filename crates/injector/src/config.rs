//! What the injector is set to do: a YAML file, mounted from a ConfigMap.
//!
//! A key that is not known, and a value that is not understood, are errors that say what is accepted: a mistyped maximum
//! must not mean that there is none. What holds in a namespace is worked out when the file is read ([`Config::rules`]), so
//! that whatever is wrong with it is said then and not when a pod comes.

use std::collections::BTreeMap;

use ration_contract::Settings;

use crate::ask::Findings;

mod file;
mod limits;

pub use limits::{Defaults, Maxima};

/// How the library comes into a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// From a directory of the node, where `ration-injector node` put it. The pods of a node find each other.
    #[default]
    HostPath,
    /// From an image that is mounted as a volume. Each pod has a region of its own.
    Image,
    /// From an image whose container copies it into the pod before the others start. Each pod has a region of its own.
    InitContainer,
}

impl Delivery {
    /// As it is written in the file.
    pub fn name(self) -> &'static str {
        match self {
            Delivery::HostPath => "hostPath",
            Delivery::Image => "image",
            Delivery::InitContainer => "initContainer",
        }
    }
}

/// How the dynamic linker is told of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preload {
    /// By `/etc/ld.so.preload`.
    #[default]
    File,
    /// By `LD_PRELOAD`.
    Env,
}

/// Something that can be let through or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Let through.
    Allow,
    /// Refused.
    Deny,
}

/// What holds in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// How the library comes into a pod.
    pub delivery: Delivery,
    /// How the dynamic linker is told of it.
    pub preload: Preload,
    /// A GPU container that asks for nothing and for which there is no default.
    pub without_quota: Policy,
    /// Privileged containers, `CAP_SYS_ADMIN` and `hostPID` together with a slice.
    pub privileged: Policy,
    /// A pod's label `ration.dev/inject: disabled`.
    pub opt_out: Policy,
    /// Whether the namespace's Pod Security labels are heeded. Off where the cluster exempts it.
    pub heed_pod_security: bool,
    /// For containers that do not ask.
    pub defaults: Defaults,
    /// What nobody gets more of.
    pub maxima: Maxima,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            delivery: Delivery::default(),
            preload: Preload::default(),
            without_quota: Policy::Allow,
            privileged: Policy::Deny,
            opt_out: Policy::Allow,
            heed_pod_security: true,
            defaults: Defaults::default(),
            maxima: Maxima::default(),
        }
    }
}

/// The image with the library, for deliveries that need one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryImage {
    /// Its reference. The library is `/libration.so` in it.
    pub reference: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub pull_policy: String,
    /// What copies the library to `/usr/local/ration` under `initContainer` delivery.
    pub copy_command: Vec<String>,
}

/// Where things are on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPaths {
    /// The directory with the library.
    pub library: String,
    /// The directory with the regions, in which each pod has a directory of its own.
    pub region: String,
}

/// What the injector is set to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// What holds in namespaces about which the file says nothing of its own.
    pub rules: Rules,
    /// What holds in those about which it does.
    pub namespaces: BTreeMap<String, Rules>,
    /// Resources that mean a GPU. One that ends in `*` stands for all that begin so.
    pub gpu_resources: Vec<String>,
    /// Whether requests in other projects' names are understood, and those that nothing advertises removed.
    pub translate_foreign: bool,
    /// The image with the library.
    pub library_image: Option<LibraryImage>,
    /// Where things are on a node.
    pub host_paths: HostPaths,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            rules: Rules::default(),
            namespaces: BTreeMap::new(),
            gpu_resources: ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*"].map(str::to_owned).into(),
            translate_foreign: true,
            library_image: None,
            host_paths: HostPaths { library: "/var/lib/ration/lib/current".into(), region: "/run/ration-pods".into() },
        }
    }
}

impl Config {
    /// From the text of the file. The error is for whoever wrote it: where, what, and what is accepted.
    pub fn parse(text: &str) -> Result<Config, String> {
        let config = file::read(text)?;
        config.check_rules("", &config.rules)?;
        for (namespace, rules) in &config.namespaces {
            config.check_rules(&format!("namespaces.{namespace}."), rules)?;
        }
        Ok(config)
    }

    /// What holds in a namespace.
    pub fn rules(&self, namespace: &str) -> &Rules {
        self.namespaces.get(namespace).unwrap_or(&self.rules)
    }

    /// Whether a resource means a GPU.
    pub fn is_gpu_resource(&self, name: &str) -> bool {
        self.gpu_resources.iter().any(|known| match known.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => known == name,
        })
    }

    /// The resource that is added where a request in another project's name is all that says "GPU".
    pub fn added_gpu_resource(&self) -> &str {
        self.gpu_resources.iter().find(|name| !name.ends_with('*')).map_or("nvidia.com/gpu", String::as_str)
    }

    /// What only shows when the pieces are put together.
    fn check_rules(&self, place: &str, rules: &Rules) -> Result<(), String> {
        if rules.delivery != Delivery::HostPath && self.library_image.is_none() {
            return Err(format!(
                "{place}delivery: {} needs the image with the library; write library: {{image: ...}}, or delivery: hostPath",
                rules.delivery.name()
            ));
        }
        let mut settings = Settings::read(&|name| rules.defaults.variable(name), None)
            .map_err(|errors| format!("{place}defaults: {}", join(errors)))?;
        let mut findings = Findings::default();
        rules.maxima.hold(&mut settings, "the default", &mut findings);
        match findings.denials.first() {
            Some(denial) => Err(format!("{place}defaults: {denial}")),
            None => Ok(()),
        }
    }
}

fn join(errors: Vec<ration_contract::Error>) -> String {
    errors.into_iter().map(|error| error.to_string()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
