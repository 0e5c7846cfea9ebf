"""Who is looked at: namespaces and pods that opted in, and of these only containers that have a GPU."""

from bench import case
from pods import LIBRARY, OWN, PRELOAD, QUOTA, REGION, container, files_of, is_injected, is_untouched, mount, pod, quota
from pods import the_container, variables, volume

ASKING = {"ration.dev/memory": "8Gi", "ration.dev/compute": "30%"}


@case("a namespace that opted in: the pod is injected")
def opted_in(bench):
    stored, _ = bench.admit(pod("trainer", annotations=ASKING))
    assert is_injected(stored), f"no quota file: {stored['spec']}"
    library, region = mount(stored, "main", LIBRARY), mount(stored, "main", REGION)
    assert library and library.get("readOnly") is True, f"{LIBRARY}: {library}"
    assert region and region.get("readOnly") is True, f"{REGION}, where all pods' are: {region}"
    own = mount(stored, "main", OWN)
    wanted = {"name": region["name"], "mountPath": OWN, "subPathExpr": "$(RATION_POD_UID)"}
    assert own == wanted, f"{OWN}: {own}"
    uid = variables(stored).get("RATION_POD_UID")
    assert uid == {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}, f"RATION_POD_UID: {uid}"
    host = {path: volume(stored, at["name"])["hostPath"] for path, at in ((LIBRARY, library), (REGION, region))}
    assert host[LIBRARY] == {"path": "/var/lib/ration/lib/current", "type": "Directory"}, host
    assert host[REGION] == {"path": "/run/ration-pods", "type": "Directory"}, host
    preload = mount(stored, "main", PRELOAD)
    assert preload and preload.get("readOnly") is True and preload.get("subPath"), f"{PRELOAD}: {preload}"
    text = files_of(stored, preload["name"])[preload["subPath"]]
    assert text.strip() == f"{LIBRARY}/libration.so", f"{PRELOAD} holds {text!r}"
    return "; ".join(f"{key} = {value}" for key, value in quota(stored).items())


@case("whatever a pod says its UID is, it writes to the directory of its own")
def own_directory(bench):
    forged = {"name": "RATION_POD_UID", "value": "705ab4f5-6393-11e8-b7cc-42010a800002"}
    by_name = {"name": "RATION_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    for env in ([forged], [by_name], [forged, {"name": "A", "value": "1"}, by_name]):
        stored, warnings = bench.admit(pod(bench.name("forged"), container(env=env), annotations=ASKING))
        found = [one for one in the_container(stored, "main")["env"] if one["name"] == "RATION_POD_UID"]
        assert [one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for one in found] == ["metadata.uid"], found
        assert any("RATION_POD_UID" in one for one in warnings), warnings


@case("its identity is namespace/pod/container, also where the pod's name is generated")
def identity(bench):
    for made in (pod("named", annotations=ASKING), pod("made-up-", annotations=ASKING, generate=True)):
        stored, _ = bench.admit(made)
        seen = quota(stored)["name"]
        beside = files_of(stored, mount(stored, "main", QUOTA)["name"])
        assert beside["pod"] == stored["metadata"]["name"], f"the file pod holds {beside['pod']!r}"
        name = seen.replace("{pod}", beside["pod"])
        assert name == f"on/{stored['metadata']['name']}/main", f"name = {seen}, pod = {beside['pod']}"
    return name


@case("a namespace that did not: the pod is left as it is")
def not_opted_in(bench):
    stored, _ = bench.admit(pod("plain", annotations=ASKING), "off")
    assert is_untouched(stored), stored


@case("a pod that opts out in a namespace that opted in")
def pod_opts_out(bench):
    stored, _ = bench.admit(pod("opted-out", annotations=ASKING, labels={"ration.dev/inject": "disabled"}))
    assert is_untouched(stored), stored


@case("a pod that opts in in a namespace that did not")
def pod_opts_in(bench):
    stored, _ = bench.admit(pod("opted-in", annotations=ASKING, labels={"ration.dev/inject": "enabled"}), "off")
    assert is_injected(stored), stored


@case("a pod without a GPU is left as it is")
def without_gpu(bench):
    stored, _ = bench.admit(pod("no-gpu", container(gpu=False)))
    assert is_untouched(stored), stored


@case("of several containers only those with a GPU are injected")
def only_gpu_containers(bench):
    made = pod("mixed", container("main"), container("logs", gpu=False), annotations=ASKING)
    stored, _ = bench.admit(made)
    assert is_injected(stored, "main") and not is_injected(stored, "logs"), stored["spec"]["containers"]
    assert not mount(stored, "logs", PRELOAD), "the other has the library preloaded"


@case("kube-system is never asked about")
def excluded(bench):
    bench.webhook
    before = bench.asked()
    made = pod("critical", annotations=ASKING, labels={"ration.dev/inject": "enabled"})
    bench.client.call(
        "PATCH", "/api/v1/namespaces/kube-system", {"metadata": {"labels": {"kubernetes.io/metadata.name": "kube-system"}}},
        "application/merge-patch+json",
    )  # fmt: skip
    stored, _ = bench.admit(made, "kube-system")
    assert is_untouched(stored) and bench.asked() == before, stored


@case("the audit log says what was injected")
def audited(bench):
    bench.admit(pod("audited", annotations=ASKING))
    found = {key: value for key, value in bench.cluster.audited("on", "audited").items() if "ration.dev" in key}
    ours = {key: value for key, value in found.items() if "mutation.webhook" not in key and "patch.webhook" not in key}
    assert ours, f"no annotation of ours in {found}"
    return "; ".join(f"{key}: {value}" for key, value in ours.items())
