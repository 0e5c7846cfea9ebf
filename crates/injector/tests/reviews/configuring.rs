//! The configuration file: what it takes, and what it says about what it does not.

use ration_injector::config::{Config, Delivery, Policy, Preload};

use crate::support::config;

#[test]
fn everything_at_once() {
    let found = config(
        "
        delivery: hostPath
        preload: env
        gpuResources: [nvidia.com/gpu, example.com/gpu-*]
        foreignResources: ignore
        withoutQuota: deny
        privileged: allow
        optOut: deny
        podSecurity: heed
        library: {image: example.com/ration:1, pullPolicy: Always, copyCommand: [/cp]}
        hostPaths: {library: /opt/ration/lib, region: /opt/ration/run}
        defaults: {memory: 8589934592, computeRequest: 10%, computeLimit: 50%, priority: batch}
        maxima: {memory: 16GiB, memoryShare: 50%, compute: 60%, computeLimit: 90%, priority: normal}
        namespaces:
          team-a: {delivery: image, preload: file, withoutQuota: allow, privileged: deny, optOut: allow, podSecurity: ignore}
          team-b: {defaults: {memory: 20%, compute: 20%}, maxima: {memory: 25%}}
          team-c:
        ",
    );
    assert_eq!((found.rules.delivery, found.rules.preload), (Delivery::HostPath, Preload::Env));
    assert_eq!(found.rules.defaults.memory.as_deref(), Some("8589934592"));
    assert_eq!(found.rules.maxima.compute_request.map(|share| share.to_string()).as_deref(), Some("60%"));
    assert_eq!(found.rules.maxima.compute_limit.map(|share| share.to_string()).as_deref(), Some("90%"));
    let team_a = found.rules("team-a");
    assert_eq!((team_a.delivery, team_a.preload), (Delivery::Image, Preload::File));
    assert_eq!((team_a.without_quota, team_a.privileged, team_a.opt_out), (Policy::Allow, Policy::Deny, Policy::Allow));
    assert!(!team_a.heed_pod_security && found.rules.heed_pod_security);
    assert_eq!(team_a.maxima, found.rules.maxima, "what a namespace does not say is the cluster's");
    let team_b = found.rules("team-b");
    assert_eq!((team_b.defaults.compute.as_deref(), team_b.defaults.compute_limit.as_deref()), (Some("20%"), None));
    assert_eq!(team_b.maxima.memory, None, "a namespace's word on memory is the only one");
    assert_eq!(found.rules("team-c"), &found.rules);
    assert_eq!(found.rules("another"), &found.rules);
    assert!(found.is_gpu_resource("example.com/gpu-small") && !found.is_gpu_resource("nvidia.com/gpu.shared"));
}

#[test]
fn what_is_wrong_is_said_with_what_is_accepted() {
    for (text, said) in [
        ("deliverey: image", &["unknown field `deliverey`", "`delivery`"][..]),
        ("delivery: ftp", &["unknown variant `ftp`", "`hostPath`", "`image`", "`initContainer`"]),
        ("delivery: image", &["needs the image with the library", "library: {image: ...}"]),
        ("namespaces: {a: {delivery: initContainer}}", &["namespaces.a.delivery: initContainer needs the image"]),
        ("namespaces: {a: {gpuResources: []}}", &["unknown field `gpuResources`"]),
        ("namespaces: {a: {}, a: {}}", &["namespace a is named twice"]),
        ("delivery: image\ndelivery: image", &["duplicate field `delivery`"]),
        ("gpuResources: []", &["it is empty"]),
        ("gpuResources: [gpu]", &["\"gpu\" is no resource", "nvidia.com/gpu"]),
        ("gpuResources: [\"a/*b*\"]", &["is no resource"]),
        ("library: {image: ''}", &["is no image"]),
        ("library: {image: a, pullPolicy: Sometimes}", &["`IfNotPresent`"]),
        ("library: {image: a, copyCommand: []}", &["library.copyCommand: it is empty"]),
        ("hostPaths: {library: lib}", &["hostPaths.library", "a path from the root"]),
        ("hostPaths: {region: /a/../b}", &["hostPaths.region"]),
        ("hostPaths: {region: /}", &["hostPaths.region"]),
        ("defaults: {memory: 8g}", &["defaults:", "\"g\" is no unit", "accepted: 8GiB"]),
        ("defaults: {compute: 30}", &["has no % sign"]),
        ("defaults: {computeRequest: 50%, computeLimit: 20%}", &["the request, 50%, is above the limit, 20%"]),
        ("defaults: {memory: [1]}", &["a text such as 8GiB"]),
        ("maxima: {memory: lots}", &["maxima.memory: lots", "does not begin with a number"]),
        ("maxima: {memoryShare: 8GiB}", &["maxima.memoryShare", "has no % sign"]),
        ("maxima: {memory: 50%, memoryShare: 40%}", &["both per cent"]),
        ("maxima: {priority: high}", &["maxima.priority"]),
        (
            "defaults: {memory: 8GiB}\nmaxima: {memory: 4GiB}",
            &["defaults: the default: memory 8GiB is above the maximum"],
        ),
        (
            "defaults: {memory: 8GiB}\nnamespaces: {a: {maxima: {memory: 4GiB}}}",
            &["namespaces.a.defaults: the default: memory 8GiB is above the maximum here, 4GiB"],
        ),
        ("- a", &["invalid type: sequence"]),
        ("{", &["line"]),
    ] {
        let error = Config::parse(text).expect_err(text);
        for part in said {
            assert!(error.contains(part), "{text}: {part:?} is not in {error:?}");
        }
    }
}

#[test]
fn the_documented_file_is_one() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kubernetes.md");
    let page = std::fs::read_to_string(page).expect("docs/kubernetes.md");
    let block = page.split("```yaml\n").find(|block| block.starts_with("delivery:")).expect("a configuration");
    let found = config(block.split("```").next().expect("its end"));
    let defaults = Config::default();
    assert_eq!(found.gpu_resources, defaults.gpu_resources, "what is shown as the default is the default");
    assert_eq!(found.host_paths, defaults.host_paths);
    assert_eq!(found.translate_foreign, defaults.translate_foreign);
    let mut rules = found.rules.clone();
    rules.defaults = defaults.rules.defaults.clone();
    rules.maxima = defaults.rules.maxima.clone();
    assert_eq!(rules, defaults.rules);
    let plain = config("library: {image: 'ghcr.io/example/ration:0.1.0'}");
    assert_eq!(found.library_image, plain.library_image);
}
