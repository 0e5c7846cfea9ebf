"""Init and ephemeral containers, sidecars, and containers that have an LD_PRELOAD of their own."""

import base64
import copy
import json

from bench import case
from cluster import Refused
from pods import LIBRARY, OWN, PRELOAD, QUOTA, REGION, container, is_injected, mount, pod, quota, slice_of, the_container, variables

Gi = 2**30
ASKING = {"ration.dev/memory": "8Gi"}
LIBRARY_FILE = f"{LIBRARY}/libration.so"


def review_of(pod, old=None, operation="CREATE", subresource=""):
    """As a current API server asks: the one here sends ephemeral containers without their pod, and knows no sidecars."""
    request = {
        "uid": "1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"}, "name": pod["metadata"].get("name", ""),
        "requestResource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": subresource,
        "namespace": pod["metadata"].get("namespace", "on"), "operation": operation, "userInfo": {"username": "tests"},
        "object": pod, "oldObject": old, "dryRun": False,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": f"{operation.capitalize()}Options"},
    }  # fmt: skip
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def patched(document, response):
    """The object after the response's JSON patch, as RFC 6902 has it: what a webhook sends are add, remove and replace."""
    assert response["allowed"], f"denied: {response.get('status', {}).get('message')}"
    document = copy.deepcopy(document)
    for step in json.loads(base64.b64decode(response.get("patch", "W10="))):
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        at = document
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if step["op"] == "remove":
            at.pop(int(last) if isinstance(at, list) else last)
        elif isinstance(at, dict):
            assert step["op"] == "add" or last in at, step
            at[last] = step["value"]
        elif step["op"] == "replace":
            at[int(last)] = step["value"]
        else:
            assert step["op"] == "add", step
            at.insert(len(at) if last == "-" else int(last), step["value"])
    return document


@case("an init container with a GPU is injected")
def init_container(bench):
    asked = {**ASKING, "ration.dev/memory.warm-up": "2Gi"}
    stored, _ = bench.admit(pod("with-init", initContainers=[container("warm-up"), container("plain", gpu=False)], annotations=asked))
    assert slice_of(stored, "warm-up") == {"memory": 2 * Gi}, slice_of(stored, "warm-up")
    assert slice_of(stored) == {"memory": 8 * Gi}, slice_of(stored)
    assert not is_injected(stored, "plain"), the_container(stored, "plain")
    return quota(stored, "warm-up")["name"]


@case("a sidecar (an init container that goes on) is injected, and stays one")
def sidecar(bench):
    made = pod("with-sidecar", initContainers=[container("side", restartPolicy="Always")], annotations=ASKING)
    made["metadata"]["namespace"] = "on"
    changed = patched(made, bench.webhook.review(review_of(made)))
    bench.admitted["a sidecar"] = changed
    assert is_injected(changed, "side"), changed["spec"]
    assert the_container(changed, "side")["restartPolicy"] == "Always", "a field that 1.20 does not know was lost"


def joins(pod, debugger, target):
    """Holds that an ephemeral container is in the slice of another one."""
    for path in (QUOTA, LIBRARY, REGION):
        mine, targets = mount(pod, debugger, path), mount(pod, target, path)
        assert mine and mine["name"] == targets["name"], f"{path}: {mine}, its target {targets}"
    assert not mount(pod, debugger, PRELOAD) and not mount(pod, debugger, OWN), "an ephemeral container may not mount by subPath"
    assert mount(pod, debugger, REGION).get("readOnly") is True, "it could write to all pods' directories"
    preload = variables(pod, debugger).get("LD_PRELOAD")
    assert preload and preload.split(":")[0] == LIBRARY_FILE, f"LD_PRELOAD is {preload}"
    return f"name = {quota(pod, debugger)['name']}"


def changed_beside(before, after):
    return [key for key in ("containers", "volumes") if before["spec"][key] != after["spec"][key]]


def debugger(name="debugger", **more):
    return {"name": name, "image": "x", "imagePullPolicy": "IfNotPresent", "terminationMessagePolicy": "File", **more}


@case("an ephemeral container joins the slice of its target")
def ephemeral(bench):
    before, _ = bench.admit(pod("debugged", container("main"), container("other"), annotations=ASKING))
    bench.client.debug_pod("on", "debugged", debugger(targetContainerName="main"))
    after = bench.client.pod("on", "debugged")
    bench.admitted["an ephemeral container"] = after
    said = joins(after, "debugger", "main")
    assert not changed_beside(before, after), f"changed: {changed_beside(before, after)}"
    # The one that is there stays as it is; the next is looked at alone.
    bench.client.debug_pod("on", "debugged", debugger("second", targetContainerName="other"))
    again = bench.client.pod("on", "debugged")
    joins(again, "second", "other")
    assert again["spec"]["ephemeralContainers"][0] == after["spec"]["ephemeralContainers"][0], "the first was changed"
    return said


@case("an ephemeral container that could go round the library is denied, and one in no slice left alone")
def ephemeral_denied(bench):
    bench.admit(pod("undebugged", container("main"), container("other"), annotations=ASKING))
    sees = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    try:
        bench.client.debug_pod("on", "undebugged", debugger(env=sees))
    except Refused as why:
        said = why.message
    else:
        raise AssertionError("it was let in with a GPU and without a slice")
    assert "name its target" in said and "one of main, other" in said, said
    assert not bench.client.pod("on", "undebugged")["spec"].get("ephemeralContainers"), "it was denied, and it is there"
    _, warnings = bench.client.debug_pod("on", "undebugged", debugger())
    alone = bench.client.pod("on", "undebugged")
    assert not variables(alone, "debugger") and any("in no slice" in one for one in warnings), (warnings, alone["spec"]["ephemeralContainers"])
    return said


@case("an ephemeral container, as current API servers ask")
def ephemeral_today(bench):
    old, _ = bench.admit(pod(bench.name("debugged"), container("main"), container("other"), annotations=ASKING))
    new = copy.deepcopy(old)
    new["spec"]["ephemeralContainers"] = [debugger(targetContainerName="main")]
    changed = patched(new, bench.webhook.review(review_of(new, old, "UPDATE", "ephemeralcontainers")))
    bench.admitted["an ephemeral container, today"] = changed
    assert not changed_beside(old, changed), f"changed: {changed_beside(old, changed)}"
    return joins(changed, "debugger", "main")


@case("LD_PRELOAD of the container's own, by file: both are loaded")
def preload_beside_file(bench):
    for value in ({"value": "/opt/libtrace.so"}, {"valueFrom": {"configMapKeyRef": {"name": "env", "key": "preload"}}}):
        made = pod(bench.name("preload"), container(env=[{"name": "LD_PRELOAD", **value}]), annotations=ASKING)
        stored, _ = bench.admit(made)
        assert the_container(stored, "main")["env"][0] == {"name": "LD_PRELOAD", **value}, the_container(stored, "main")["env"]
        assert mount(stored, "main", PRELOAD), "no ld.so.preload"


@case("LD_PRELOAD of the container's own, by environment: ours first; one that cannot be read is denied")
def preload_merged(bench):
    bench.configure("preload: env\n")
    try:
        env = [{"name": "A", "value": "1"}, {"name": "LD_PRELOAD", "value": "/opt/libtrace.so"}]
        stored, _ = bench.admit(pod(bench.name("merged"), container(env=env), annotations=ASKING))
        seen = [one for one in the_container(stored, "main")["env"] if one["name"] == "LD_PRELOAD"]
        assert len(seen) == 1 and seen[0]["value"].split(":") == [LIBRARY_FILE, "/opt/libtrace.so"], seen
        assert not mount(stored, "main", PRELOAD), "ld.so.preload as well"
        stored, _ = bench.admit(pod(bench.name("alone"), annotations=ASKING))
        assert variables(stored)["LD_PRELOAD"] == LIBRARY_FILE, variables(stored)
        hidden = [{"name": "LD_PRELOAD", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "preload"}}}]
        said = bench.refuse(pod(bench.name("hidden"), container(env=hidden), annotations=ASKING))
        assert "LD_PRELOAD" in said, said
    finally:
        bench.configure("{}\n")
    return said


# What Kubernetes' Pod Security Standards let through at the level "restricted".
RESTRICTED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret"}
HARDENED = {
    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip


def beyond_restricted(pod):
    """What of a pod the level "restricted" refuses."""
    wrong = [key for one in pod["spec"].get("volumes", []) for key in one if key not in ("name", *RESTRICTED_VOLUMES)]
    for one in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
        context = {**pod["spec"].get("securityContext", {}), **one.get("securityContext", {})}
        wrong += [f"{one['name']}: {key} is {context.get(key)}" for key, value in HARDENED.items() if context.get(key) != value]
        wrong += [f"{one['name']}: user 0"] if context.get("runAsUser") == 0 else []
    return wrong


def delivered_by(delivery):
    return f"delivery: {delivery}\nlibrary: {{image: registry.example/ration-injector:0.1.0}}\n"


@case("delivery by image: denied on an API server that would forget the volume, for the pod would run without limits")
def no_image_volumes(bench):
    bench.configure(delivered_by("image"))
    try:
        said = bench.refuse(pod(bench.name("image"), container(), annotations=ASKING))
    finally:
        bench.configure("{}\n")
    assert "1.31" in said and "initContainer" in said, said
    return said


@case("delivery by image and by init container: meets Pod Security level restricted, and is not strict")
def deliveries(bench):
    for delivery in ("image", "initContainer"):
        made = pod(bench.name("delivered"), container(securityContext=HARDENED), annotations=ASKING)
        assert not beyond_restricted(made), beyond_restricted(made)
        made["metadata"]["namespace"] = "restricted"
        # The API server here knows no image volumes.
        changed = patched(made, bench.asked_apart(delivered_by(delivery), review_of(made)))
        bench.admitted[f"delivery {delivery}"] = changed
        assert not beyond_restricted(changed), f"{delivery}: {beyond_restricted(changed)}"
        assert quota(changed).get("strict", "0") != "1", quota(changed)
        assert mount(changed, "main", LIBRARY), "no library"
    stored, _ = bench.admit(pod(bench.name("by-host"), container(securityContext=HARDENED), annotations=ASKING))
    assert "hostPath" in beyond_restricted(stored), "this test cannot tell"
