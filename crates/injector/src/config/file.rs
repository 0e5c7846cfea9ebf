//! The file as it is written.

use std::collections::BTreeMap;
use std::fmt;

use ration_contract::{Amount, Priority, Problem, Share, limit, request};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};

use super::{Config, Defaults, Delivery, LibraryImage, Maxima, Policy, Preload, Rules};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    delivery: Option<DeliveryWord>,
    preload: Option<PreloadWord>,
    gpu_resources: Option<Vec<String>>,
    foreign_resources: Option<ForeignWord>,
    without_quota: Option<PolicyWord>,
    privileged: Option<PolicyWord>,
    opt_out: Option<PolicyWord>,
    pod_security: Option<HeedWord>,
    library: Option<LibrarySection>,
    host_paths: Option<HostPathsSection>,
    #[serde(default)]
    defaults: Values,
    #[serde(default)]
    maxima: MaximaSection,
    #[serde(default)]
    namespaces: Named<NamespaceSection>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NamespaceSection {
    delivery: Option<DeliveryWord>,
    preload: Option<PreloadWord>,
    without_quota: Option<PolicyWord>,
    privileged: Option<PolicyWord>,
    opt_out: Option<PolicyWord>,
    pod_security: Option<HeedWord>,
    #[serde(default)]
    defaults: Values,
    #[serde(default)]
    maxima: MaximaSection,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LibrarySection {
    image: String,
    pull_policy: Option<PullWord>,
    copy_command: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HostPathsSection {
    library: Option<String>,
    region: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Values {
    memory: Option<Scalar>,
    compute: Option<Scalar>,
    compute_request: Option<Scalar>,
    compute_limit: Option<Scalar>,
    priority: Option<Scalar>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MaximaSection {
    memory: Option<Scalar>,
    memory_share: Option<Scalar>,
    compute: Option<Scalar>,
    compute_request: Option<Scalar>,
    compute_limit: Option<Scalar>,
    priority: Option<Scalar>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
enum DeliveryWord {
    HostPath,
    Image,
    InitContainer,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
enum PreloadWord {
    File,
    Env,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
enum PolicyWord {
    Allow,
    Deny,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
enum ForeignWord {
    Translate,
    Ignore,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
enum HeedWord {
    Heed,
    Ignore,
}

#[derive(Deserialize, Clone, Copy, Debug)]
enum PullWord {
    Always,
    IfNotPresent,
    Never,
}

/// A value of a setting. YAML makes a number of `8589934592`, and means the same by it.
#[derive(Deserialize, Clone)]
#[serde(untagged, expecting = "a text such as 8GiB or 30%, or a number of bytes")]
enum Scalar {
    Number(u64),
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Number(number) => number.fmt(f),
            Scalar::Text(text) => f.write_str(text),
        }
    }
}

/// A map in which nothing is named twice. YAML's reader would let the later one win.
struct Named<T>(BTreeMap<String, T>);

impl<T> Default for Named<T> {
    fn default() -> Named<T> {
        Named(BTreeMap::new())
    }
}

impl<'de, T: DeserializeOwned + Default> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Named<T>, D::Error> {
        struct Names<T>(std::marker::PhantomData<T>);
        impl<'de, T: DeserializeOwned + Default> Visitor<'de> for Names<T> {
            type Value = Named<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("namespaces by their names")
            }

            fn visit_unit<E>(self) -> Result<Named<T>, E> {
                Ok(Named::default())
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Named<T>, M::Error> {
                let mut found = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Option<T>>()? {
                    if found.insert(name.clone(), value.unwrap_or_default()).is_some() {
                        return Err(serde::de::Error::custom(format!("namespace {name} is named twice")));
                    }
                }
                Ok(Named(found))
            }
        }
        deserializer.deserialize_any(Names(std::marker::PhantomData))
    }
}

/// Reads the file. A file with nothing in it is the one with all the defaults.
pub(super) fn read(text: &str) -> Result<Config, String> {
    let file: Option<File> = serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?;
    let mut config = Config::default();
    let Some(file) = file else { return Ok(config) };
    let top = NamespaceSection {
        delivery: file.delivery,
        preload: file.preload,
        without_quota: file.without_quota,
        privileged: file.privileged,
        opt_out: file.opt_out,
        pod_security: file.pod_security,
        defaults: file.defaults,
        maxima: file.maxima,
    };
    config.rules = merged(&config.rules, top, "")?;
    for (name, section) in file.namespaces.0 {
        let place = format!("namespaces.{name}.");
        let rules = merged(&config.rules, section, &place)?;
        config.namespaces.insert(name, rules);
    }
    if let Some(resources) = file.gpu_resources {
        config.gpu_resources = gpu_resources(resources)?;
    }
    if let Some(word) = file.foreign_resources {
        config.translate_foreign = matches!(word, ForeignWord::Translate);
    }
    if let Some(library) = file.library {
        config.library_image = Some(library_image(library)?);
    }
    if let Some(paths) = file.host_paths {
        let places = [
            ("library", paths.library, &mut config.host_paths.library),
            ("region", paths.region, &mut config.host_paths.region),
        ];
        for (key, given, place) in places {
            if let Some(path) = given {
                *place = host_path(key, path)?;
            }
        }
    }
    Ok(config)
}

/// The rules of a section, on top of those that hold without it.
fn merged(base: &Rules, section: NamespaceSection, place: &str) -> Result<Rules, String> {
    let policy = |word: PolicyWord| match word {
        PolicyWord::Allow => Policy::Allow,
        PolicyWord::Deny => Policy::Deny,
    };
    Ok(Rules {
        delivery: section.delivery.map_or(base.delivery, |word| match word {
            DeliveryWord::HostPath => Delivery::HostPath,
            DeliveryWord::Image => Delivery::Image,
            DeliveryWord::InitContainer => Delivery::InitContainer,
        }),
        preload: section.preload.map_or(base.preload, |word| match word {
            PreloadWord::File => Preload::File,
            PreloadWord::Env => Preload::Env,
        }),
        without_quota: section.without_quota.map_or(base.without_quota, policy),
        privileged: section.privileged.map_or(base.privileged, policy),
        opt_out: section.opt_out.map_or(base.opt_out, policy),
        heed_pod_security: section.pod_security.map_or(base.heed_pod_security, |word| matches!(word, HeedWord::Heed)),
        defaults: defaults(&base.defaults, section.defaults),
        maxima: maxima(&base.maxima, section.maxima, place)?,
    })
}

/// The three settings of compute stand together: one of them in a namespace replaces all of the cluster's.
fn defaults(base: &Defaults, section: Values) -> Defaults {
    let text = |scalar: Option<Scalar>| scalar.map(|scalar| scalar.to_string());
    let mut defaults = base.clone();
    if section.memory.is_some() {
        defaults.memory = text(section.memory);
    }
    if section.compute.is_some() || section.compute_request.is_some() || section.compute_limit.is_some() {
        defaults.compute = text(section.compute);
        defaults.compute_request = text(section.compute_request);
        defaults.compute_limit = text(section.compute_limit);
    }
    if section.priority.is_some() {
        defaults.priority = text(section.priority);
    }
    defaults
}

fn maxima(base: &Maxima, section: MaximaSection, place: &str) -> Result<Maxima, String> {
    let mut maxima = base.clone();
    // What a namespace says of memory, in whatever form, replaces what the cluster says of it.
    if section.memory.is_some() || section.memory_share.is_some() {
        (maxima.memory, maxima.memory_share) = (None, None);
    }
    if let Some(given) = section.memory {
        match value(place, "memory", &given, str::parse::<Amount>)? {
            Amount::Bytes(bytes) => maxima.memory = Some(bytes),
            Amount::Percent(share) => maxima.memory_share = Some(share),
        }
    }
    if let Some(given) = section.memory_share {
        if maxima.memory_share.is_some() {
            return Err(format!("{place}maxima: memory and memoryShare are both per cent; remove one of the two"));
        }
        maxima.memory_share = Some(value(place, "memoryShare", &given, limit)?);
    }
    if let Some(given) = section.compute {
        let share = value(place, "compute", &given, limit)?;
        (maxima.compute_request, maxima.compute_limit) = (Some(share), Some(share));
    }
    let part = |key, given: Option<Scalar>, parse: fn(&str) -> Result<Share, Problem>, base| {
        given.map_or(Ok(base), |given| value(place, key, &given, parse).map(Some))
    };
    maxima.compute_request = part("computeRequest", section.compute_request, request, maxima.compute_request)?;
    maxima.compute_limit = part("computeLimit", section.compute_limit, limit, maxima.compute_limit)?;
    if let Some(given) = section.priority {
        maxima.priority = Some(value(place, "priority", &given, str::parse::<Priority>)?);
    }
    Ok(maxima)
}

fn value<T>(place: &str, key: &str, given: &Scalar, parse: fn(&str) -> Result<T, Problem>) -> Result<T, String> {
    parse(&given.to_string()).map_err(|problem| format!("{place}maxima.{key}: {given}: {problem}"))
}

fn gpu_resources(names: Vec<String>) -> Result<Vec<String>, String> {
    if names.is_empty() {
        return Err(
            "gpuResources: it is empty, so no container would have a GPU; name at least one, or leave it out".into()
        );
    }
    for name in &names {
        let plain = name.strip_suffix('*').unwrap_or(name);
        if !plain.contains('/') || plain.contains(|c: char| c == '*' || c.is_whitespace()) {
            return Err(format!(
                "gpuResources: {name:?} is no resource; write one such as nvidia.com/gpu, or a beginning and * such as \
                 nvidia.com/mig-*"
            ));
        }
    }
    Ok(names)
}

fn library_image(section: LibrarySection) -> Result<LibraryImage, String> {
    if section.image.trim().is_empty() || section.image.contains(char::is_whitespace) {
        return Err(format!(
            "library.image: {:?} is no image; write one such as ghcr.io/me/ration:0.1.0",
            section.image
        ));
    }
    let command = section.copy_command.unwrap_or_else(|| {
        ["/ration-injector", "copy", "/libration.so", crate::mutate::LIBRARY_DIR].map(str::to_owned).into()
    });
    if command.is_empty() {
        return Err("library.copyCommand: it is empty; write what copies the library, or leave it out".into());
    }
    let pull_policy = section.pull_policy.unwrap_or(PullWord::IfNotPresent);
    Ok(LibraryImage { reference: section.image, pull_policy: format!("{pull_policy:?}"), copy_command: command })
}

fn host_path(key: &str, path: String) -> Result<String, String> {
    if !path.starts_with('/') || path == "/" || path.split('/').any(|part| part == "..") {
        return Err(format!(
            "hostPaths.{key}: {path:?} is no directory of its own; write a path from the root, without .."
        ));
    }
    Ok(path)
}
