//! Every way of asking.

use proptest::prelude::*;
use ration_injector::config::Config;
use serde_json::json;

use crate::support::{admitted, as_library, config, create, gets, pod_asking, pod_with, quota, refused, yaml};

#[test]
fn by_annotations() {
    for (annotations, expected) in [
        (&[("ration.dev/memory", "8Gi")][..], "memory=8GiB"),
        (&[("ration.dev/memory", "8GiB")], "memory=8GiB"),
        (&[("ration.dev/memory", "8G")], "memory=7812500KiB"),
        (&[("ration.dev/memory", "8e9")], "memory=7812500KiB"),
        (&[("ration.dev/memory", "8589934592")], "memory=8GiB"),
        (&[("ration.dev/memory", "8589934592000m")], "memory=8GiB"),
        (&[("ration.dev/memory", ".5Gi")], "memory=512MiB"),
        (&[("ration.dev/memory", "+8Gi")], "memory=8GiB"),
        (&[("ration.dev/memory", "25%")], "memory=25%"),
        (&[("ration.dev/memory", "0=8Gi,1=25%")], "memory=0=8GiB,1=25%"),
        (&[("ration.dev/memory", "0=.5Gi,1=25%")], "memory=0=512MiB,1=25%"),
        (&[("ration.dev/compute", "30%")], "compute-request=30% compute-limit=30%"),
        (&[("ration.dev/compute-limit", "30%")], "compute-request=30% compute-limit=30%"),
        (&[("ration.dev/compute-limit", "100%")], "compute-limit=100%"),
        (&[("ration.dev/compute-request", "30%")], "compute-request=30%"),
        (
            &[("ration.dev/compute-request", "30%"), ("ration.dev/compute-limit", "60%")],
            "compute-request=30% compute-limit=60%",
        ),
        (
            &[("ration.dev/compute", "30%"), ("ration.dev/compute-limit", "60%")],
            "compute-request=30% compute-limit=60%",
        ),
        (&[("ration.dev/priority", "latency")], "priority=latency"),
        (
            &[("ration.dev/memory", "8Gi"), ("ration.dev/compute", "30%"), ("ration.dev/priority", "batch")],
            "memory=8GiB compute-request=30% compute-limit=30% priority=batch",
        ),
    ] {
        let reply = admitted(&Config::default(), &pod_with(annotations));
        assert_eq!(gets(&reply.pod, "main"), expected, "{annotations:?}");
    }
}

#[test]
fn the_quota_file_leaves_nothing_to_the_environment_that_a_tenant_gains_by() {
    let reply = admitted(&Config::default(), &pod_with(&[("ration.dev/memory", "8Gi")]));
    let text = reply.pod["metadata"]["annotations"]["ration.dev/quota.main"].as_str().expect("a text");
    let environment = |name: &str| match name {
        "RATION_MEMORY" | "RATION_COMPUTE" | "RATION_COMPUTE_REQUEST" => Some("100%".to_owned()),
        "RATION_PRIORITY" => Some("latency".to_owned()),
        "RATION_NAME" => Some("another".to_owned()),
        "RATION_DIR" | "RATION_OWN_DIR" => Some("/tmp/mine".to_owned()),
        "RATION_STRICT" => Some("0".to_owned()),
        _ => None,
    };
    let with = as_library(text, &environment);
    let without = quota(&reply.pod, "main");
    let all = |settings: ration_contract::Settings| {
        (
            (settings.memory, settings.compute_request, settings.compute_limit, settings.priority),
            (settings.name, settings.dir, settings.own_dir, settings.strict),
        )
    };
    assert_eq!(all(with), all(without.clone()));
    assert_eq!(without.name.as_deref(), Some("team-a/trainer-x7k2p/main"));
    assert_eq!((without.dir.as_deref(), without.own_dir.as_deref()), (Some("/run/ration"), Some("/run/ration-own")));
    assert!(without.strict);
    // A pod that has the region for itself: containers of several users in it meet in one place.
    for delivery in ["image", "initContainer"] {
        let text = format!("delivery: {delivery}\nlibrary: {{image: 'example.com/ration:1'}}");
        let settings = quota(&admitted(&config(&text), &pod_with(&[("ration.dev/memory", "8Gi")])).pod, "main");
        assert_eq!((settings.dir.as_deref(), settings.own_dir.as_deref()), (Some("/run/ration"), Some("/run/ration")));
        assert!(!settings.strict);
    }
}

#[test]
fn per_container() {
    let pod = yaml(
        "
        metadata:
          name: two
          annotations:
            ration.dev/memory: 4Gi
            ration.dev/memory.big: 16Gi
            ration.dev/compute-limit: 50%
            ration.dev/compute.big: 80%
            ration.dev/priority.small: batch
        spec:
          initContainers:
          - {name: warm-up, image: a, resources: {limits: {nvidia.com/gpu: 1}}}
          - {name: sidecar, image: a, restartPolicy: Always}
          containers:
          - {name: big, image: a, resources: {limits: {nvidia.com/gpu: 1}}}
          - {name: small, image: a, resources: {limits: {nvidia.com/gpu.shared: 1}}}
          - {name: none, image: a}
        ",
    );
    let reply = admitted(&Config::default(), &pod);
    assert_eq!(gets(&reply.pod, "big"), "memory=16GiB compute-request=80% compute-limit=80%");
    assert_eq!(gets(&reply.pod, "small"), "memory=4GiB compute-request=50% compute-limit=50% priority=batch");
    assert_eq!(gets(&reply.pod, "warm-up"), "memory=4GiB compute-request=50% compute-limit=50%");
    assert_eq!(reply.pod["spec"]["containers"][2], pod["spec"]["containers"][2], "the one without a GPU");
    assert_eq!(reply.pod["spec"]["initContainers"][1], pod["spec"]["initContainers"][1], "nor the sidecar");
    assert_eq!(quota(&reply.pod, "big").name.as_deref(), Some("team-a/trainer-x7k2p/big"));
}

#[test]
fn who_has_a_gpu() {
    let cases = [
        (json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}}), true),
        (json!({"resources": {"requests": {"nvidia.com/gpu": "1"}}}), true),
        (json!({"resources": {"limits": {"nvidia.com/gpu": "0"}}}), false),
        (json!({"resources": {"limits": {"nvidia.com/gpu.shared": "2"}}}), true),
        (json!({"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}), true),
        (json!({"resources": {"limits": {"amd.com/gpu": "1"}}}), false),
        (json!({"resources": {"limits": {"cpu": "1"}}}), false),
        (json!({"resources": {"claims": [{"name": "gpu"}]}}), true),
        (json!({"resources": {"claims": []}}), false),
        (json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}), true),
        (json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-8932f937"}]}), true),
        (json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}), false),
        (json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}), false),
        (json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": ""}]}), false),
        (json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]}), false),
        (
            json!({"env": [
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"},
            ]}),
            false,
        ),
        (
            json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
            true,
        ),
        (json!({}), false),
    ];
    for (container, expected) in cases {
        let mut pod = pod_with(&[]);
        pod["spec"]["containers"][0] = container.clone();
        pod["spec"]["containers"][0]["name"] = json!("main");
        let reply = admitted(&Config::default(), &pod);
        assert_eq!(reply.operations > 0, expected, "{container}");
    }
    let own = config("gpuResources: [example.com/gpu]");
    assert!(admitted(&own, &pod_asking(&[("example.com/gpu", "1")])).operations > 0);
    assert_eq!(admitted(&own, &pod_asking(&[("nvidia.com/gpu", "1")])).operations, 0);
    let all = config("gpuResources: [nvidia.com/gpu, nvidia.com/*]");
    let reply = admitted(&all, &pod_asking(&[("nvidia.com/gpumem", "1k")]));
    assert_eq!(reply.pod["spec"]["containers"][0]["resources"]["limits"], json!({"nvidia.com/gpu": "1"}));
    assert_eq!(admitted(&Config::default(), &pod_asking(&[("nvidia.com/priority", "1")])).operations, 0);
}

#[test]
fn in_the_names_of_hami_and_volcano() {
    for (resources, expected, added) in [
        (&[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "3k")][..], "memory=3000MiB", false),
        (&[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem-percentage", "50")], "memory=50%", false),
        (
            &[("nvidia.com/gpu", "2"), ("nvidia.com/gpumem", "4096"), ("nvidia.com/gpucores", "30")],
            "memory=4GiB compute-request=30% compute-limit=30%",
            false,
        ),
        (&[("nvidia.com/gpu", "1"), ("nvidia.com/gpucores", "0"), ("nvidia.com/gpumem", "4Ki")], "memory=4GiB", false),
        (
            &[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "2k"), ("nvidia.com/gpumem-percentage", "50")],
            "memory=2000MiB",
            false,
        ),
        (
            &[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "2k"), ("nvidia.com/priority", "0")],
            "memory=2000MiB priority=latency",
            false,
        ),
        (&[("nvidia.com/gpumem", "1024")], "memory=1GiB", true),
        (&[("volcano.sh/gpu-memory", "1024")], "memory=1GiB", true),
        (
            &[("volcano.sh/vgpu-number", "2"), ("volcano.sh/vgpu-memory", "1024"), ("volcano.sh/vgpu-cores", "50")],
            "memory=1GiB compute-request=50% compute-limit=50%",
            true,
        ),
    ] {
        let reply = admitted(&Config::default(), &pod_asking(resources));
        assert_eq!(gets(&reply.pod, "main"), expected, "{resources:?}");
        let limits = &reply.pod["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(limits, &reply.pod["spec"]["containers"][0]["resources"]["requests"]);
        let left: Vec<&String> = limits.as_object().expect("limits").keys().collect();
        assert_eq!(left, ["nvidia.com/gpu"], "{resources:?}");
        assert_eq!(reply.warnings.iter().any(|text| text.contains("was added")), added, "{:?}", reply.warnings);
    }
    let two =
        admitted(&Config::default(), &pod_asking(&[("volcano.sh/gpu-memory", "1024"), ("volcano.sh/gpu-number", "2")]));
    assert_eq!(two.pod["spec"]["containers"][0]["resources"]["limits"], json!({"nvidia.com/gpu": "2"}));
}

#[test]
fn in_the_names_of_run_ai() {
    let without_gpu = |annotations: &[(&str, &str)]| {
        let mut pod = pod_with(annotations);
        pod["spec"]["containers"] = json!([{"name": "main", "image": "a"}, {"name": "other", "image": "a"}]);
        pod
    };
    for (annotations, expected) in [
        (&[("gpu-fraction", "0.5")][..], "memory=50% compute-request=50%"),
        (&[("gpu-fraction", "1")], "memory=100% compute-request=100%"),
        (&[("gpu-memory", "2000")], "memory=2000MiB"),
    ] {
        let reply = admitted(&Config::default(), &without_gpu(annotations));
        assert_eq!(gets(&reply.pod, "main"), expected);
        let containers = &reply.pod["spec"]["containers"];
        assert_eq!(containers[0]["resources"]["limits"], json!({"nvidia.com/gpu": "1"}));
        assert_eq!(containers[1], json!({"name": "other", "image": "a"}), "the first container alone");
        assert!(reply.warnings.iter().any(|text| text.contains("nvidia.com/gpu: 1 was added")), "{:?}", reply.warnings);
    }
    let named = without_gpu(&[
        ("gpu-fraction", "0.25"),
        ("gpu-fraction-num-devices", "2"),
        ("gpu-fraction-container-name", "other"),
    ]);
    let reply = admitted(&Config::default(), &named);
    assert_eq!(gets(&reply.pod, "other"), "memory=25% compute-request=25%");
    assert_eq!(reply.pod["spec"]["containers"][1]["resources"]["limits"], json!({"nvidia.com/gpu": "2"}));
    assert_eq!(reply.pod["spec"]["containers"][0], json!({"name": "main", "image": "a"}));
}

#[test]
fn our_words_count_before_others() {
    let mut pod = pod_asking(&[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "3k"), ("nvidia.com/gpucores", "30")]);
    pod["metadata"]["annotations"] = json!({"ration.dev/memory": "8Gi"});
    let reply = admitted(&Config::default(), &pod);
    assert_eq!(gets(&reply.pod, "main"), "memory=8GiB compute-request=30% compute-limit=30%");
    assert!(reply.warnings[0].contains("nvidia.com/gpumem=\"3k\" is ignored, because of ration.dev/memory=\"8Gi\""));
    pod["metadata"]["annotations"] = json!({"ration.dev/memory": "3000Mi"});
    assert!(admitted(&Config::default(), &pod).warnings.is_empty(), "the same in other words");
}

#[test]
fn others_names_can_be_left_alone() {
    let config = config("foreignResources: ignore");
    let pod = pod_asking(&[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "3k")]);
    let reply = admitted(&config, &pod);
    assert_eq!(gets(&reply.pod, "main"), "");
    assert_eq!(reply.pod["spec"]["containers"][0]["resources"], pod["spec"]["containers"][0]["resources"]);
    assert_eq!(admitted(&config, &pod_asking(&[("volcano.sh/gpu-memory", "1024")])).operations, 0);
}

#[test]
fn defaults_and_maxima() {
    let rules = config(
        "
        defaults: {memory: 4GiB, compute: 25%}
        maxima: {memory: 16GiB, memoryShare: 50%, computeLimit: 80%, priority: normal}
        namespaces:
          team-b: {defaults: {memory: 2GiB}}
          team-a:
            defaults: {compute-limit: 50%}
        "
        .replace("compute-limit", "computeLimit")
        .as_str(),
    );
    for (annotations, expected) in [
        (&[][..], "memory=4GiB compute-request=50% compute-limit=50%"),
        (&[("ration.dev/memory", "8Gi")], "memory=8GiB compute-request=50% compute-limit=50%"),
        (&[("ration.dev/memory", "50%")], "memory=50% compute-request=50% compute-limit=50%"),
        (&[("ration.dev/memory", "0=8Gi")], "memory=16GiB,0=8GiB compute-request=50% compute-limit=50%"),
        (&[("ration.dev/compute-request", "10%")], "memory=4GiB compute-request=10% compute-limit=80%"),
    ] {
        let reply = admitted(&rules, &pod_with(annotations));
        assert_eq!(gets(&reply.pod, "main"), expected, "{annotations:?}");
    }
    for (annotations, texts) in [
        (&[("ration.dev/memory", "17Gi")][..], &["17GiB is above the maximum here, 16GiB"][..]),
        (&[("ration.dev/memory", "8Gi,1=17Gi")], &["17GiB is above the maximum here, 16GiB"]),
        (&[("ration.dev/memory", "51%")], &["51% is above the maximum here, 50%"]),
        (&[("ration.dev/compute", "81%")], &["81% is above the maximum here, 80%", "compute-request: 80% or less"]),
        (
            &[("ration.dev/compute-limit", "100%")],
            &["100% is above the maximum here, 80%", "compute-limit: 80% or less"],
        ),
        (&[("ration.dev/priority", "latency")], &["latency is above the maximum here, normal"]),
    ] {
        refused(&rules, &pod_with(annotations), "over-maximum", texts);
    }
    let bytes_only = config("maxima: {memory: 16GiB}");
    refused(
        &bytes_only,
        &pod_with(&[("ration.dev/memory", "10%")]),
        "over-maximum",
        &["ask for an amount, such as 16GiB"],
    );
    let filled = admitted(&bytes_only, &pod_with(&[]));
    assert_eq!(gets(&filled.pod, "main"), "memory=16GiB", "what is not asked for is the maximum, not everything");
    assert!(filled.warnings[0].contains("it is the maximum here, 16GiB"), "{:?}", filled.warnings);
    let share_only = config("maxima: {memory: 50%, priority: batch, compute: 50%}");
    refused(&share_only, &pod_with(&[("ration.dev/memory", "8Gi")]), "over-maximum", &["ask in per cent, such as 50%"]);
    assert_eq!(gets(&admitted(&share_only, &pod_with(&[])).pod, "main"), "memory=50% compute-limit=50% priority=batch");
}

#[test]
fn a_gpu_without_a_quota() {
    let reply = admitted(&Config::default(), &pod_with(&[]));
    assert_eq!(gets(&reply.pod, "main"), "");
    assert!(reply.warnings[0].contains("asks for no part of it"), "{:?}", reply.warnings);
    let strict = config("withoutQuota: deny");
    refused(&strict, &pod_with(&[]), "without-quota", &["container main", "ration.dev/memory"]);
    refused(&strict, &pod_with(&[("ration.dev/priority", "batch")]), "without-quota", &["container main"]);
    admitted(&strict, &pod_with(&[("ration.dev/memory", "8Gi")]));
}

#[test]
fn a_pod_that_asks_and_has_no_gpu_is_told() {
    let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
    pod["spec"]["containers"][0]["resources"] = json!({});
    let reply = admitted(&Config::default(), &pod);
    assert_eq!(reply.operations, 0);
    assert!(reply.warnings[0].contains("add nvidia.com/gpu: 1 to the limits"), "{:?}", reply.warnings);
}

#[test]
fn oddities_are_told() {
    for (change, expected) in [
        (
            json!({"metadata": {"annotations": {"ration.dev/memory": "8Gi", "ration.dev/memory.side": "8Gi"}},
                "spec": {"containers": [{"name": "side"}]}}),
            "container side has no GPU",
        ),
        (
            json!({"spec": {"schedulerName": "volcano", "containers": [{"resources": {"limits": {"volcano.sh/gpu-memory": "1k"}}}]}}),
            "spec.schedulerName is volcano",
        ),
        (
            json!({"spec": {"containers": [{"env": [{"name": "RATION_MEMORY", "value": "80GiB"}]}]}}),
            "RATION_MEMORY in env",
        ),
        (
            json!({"spec": {"containers": [{"volumeMounts": [{"name": "v", "mountPath": "/etc", "readOnly": true}]}]}}),
            "read-only at /etc",
        ),
    ] {
        let mut pod = pod_with(&[("ration.dev/memory", "8Gi")]);
        if let Some(found) = change.pointer("/metadata/annotations") {
            pod["metadata"]["annotations"] = found.clone();
        }
        for (key, value) in change["spec"].as_object().expect("a spec") {
            if key != "containers" {
                pod["spec"][key] = value.clone();
                continue;
            }
            let container = value[0].as_object().expect("a container");
            if container.contains_key("name") {
                pod["spec"]["containers"].as_array_mut().expect("a list").push(value[0].clone());
            } else {
                for (key, value) in container {
                    pod["spec"]["containers"][0][key] = value.clone();
                }
            }
        }
        let reply = admitted(&Config::default(), &pod);
        assert!(reply.warnings.iter().any(|text| text.contains(expected)), "{expected}: {:?}", reply.warnings);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn whatever_is_asked_is_a_quota_or_a_refusal_that_says_so(
        key in "(memory|compute|compute-request|compute-limit|priority)(\\.main)?",
        value in "[0-9]{0,4}(\\.[0-9])?([KMGT]i?B?|%|m)?(,[0-9]=[0-9]{1,3}(Gi|%))?",
    ) {
        let name = format!("ration.dev/{key}");
        let reply = create(&Config::default(), &pod_with(&[(&name, &value)]));
        if reply.allowed {
            quota(&reply.pod, "main");
            prop_assert_eq!(&create(&Config::default(), &reply.pod).pod, &reply.pod);
        } else {
            let named = reply.message.contains(&name);
            prop_assert!(named, "{} does not name {}", reply.message, name);
            prop_assert!(reply.message.contains("accepted:"), "{}", reply.message);
        }
    }
}
