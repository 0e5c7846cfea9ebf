"""Pods as tests write them, and what can be read off an admitted one: by what its containers see, not by names of volumes."""

IMAGE = "registry.example/cuda:1"
GPU = "nvidia.com/gpu"
LIBRARY, REGION, QUOTA, PRELOAD = "/usr/local/ration", "/run/ration", "/etc/ration", "/etc/ld.so.preload"
OWN = "/run/ration-own"
OURS = (LIBRARY, REGION, OWN, QUOTA, PRELOAD)


def container(name="main", gpu=True, resources=None, **more):
    resources = dict(resources or {})
    if gpu:
        resources.setdefault(GPU, "1")
    made = {"name": name, "image": IMAGE, **more}
    if resources:
        made["resources"] = {"limits": resources}
    return made


def pod(name, *containers, annotations=None, labels=None, generate=False, **spec):
    called = {"generateName" if generate else "name": name}
    metadata = {**called, "annotations": annotations or {}, "labels": labels or {}}
    spec = {"restartPolicy": "Never", "containers": list(containers) or [container()], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def the_container(pod, name):
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for found in pod["spec"].get(kind, []):
            if found["name"] == name:
                return found
    raise AssertionError(f"the pod has no container {name}")


def mount(pod, name, path):
    found = [at for at in the_container(pod, name).get("volumeMounts", []) if at["mountPath"].rstrip("/") == path]
    assert len(found) < 2, f"{name} mounts {path} {len(found)} times"
    return found[0] if found else None


def volume(pod, name):
    found = [one for one in pod["spec"].get("volumes", []) if one["name"] == name]
    assert len(found) == 1, f"the pod has {len(found)} volumes {name}"
    return found[0]


def field(pod, path):
    """What a fieldRef stands for, as the kubelet has it."""
    metadata = pod["metadata"]
    for what in ("annotations", "labels"):
        if path.startswith(f"metadata.{what}['"):
            return metadata.get(what, {}).get(path[len(f"metadata.{what}['") : -2], "")
    simple = {"metadata.name": metadata.get("name", ""), "metadata.namespace": metadata.get("namespace", "")}
    simple |= {"metadata.uid": metadata.get("uid", ""), "spec.nodeName": "node-1", "status.podIP": "10.1.2.3"}
    simple |= {"spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"), "status.hostIP": "10.1.0.1"}
    assert path in simple, f"the field {path} is not known here"
    return simple[path]


def files_of(pod, volume_name):
    """What a downwardAPI volume holds."""
    items = volume(pod, volume_name)["downwardAPI"]["items"]
    return {item["path"]: field(pod, item["fieldRef"]["fieldPath"]) for item in items}


def is_injected(pod, name="main"):
    return mount(pod, name, QUOTA) is not None


def is_untouched(pod):
    ours = [key for key in pod["metadata"].get("annotations", {}) if key.startswith(("ration.dev/quota", "ration.dev/inject"))]
    everyone = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
    mounts = [at["mountPath"] for one in everyone for at in one.get("volumeMounts", [])]
    return not ours and not pod["spec"].get("volumes") and not any(path in OURS for path in mounts)


def quota(pod, name="main"):
    """The quota file that a container sees, as settings."""
    at = mount(pod, name, QUOTA)
    assert at is not None, f"{name} has no {QUOTA}: it mounts {the_container(pod, name).get('volumeMounts')}"
    assert at.get("readOnly") is True, f"{name} may write to {QUOTA}: {at}"
    text = files_of(pod, at["name"])["quota"]
    lines = (line.split(" #")[0].strip() for line in text.splitlines())
    settings = [line.split("=", 1) for line in lines if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, value in settings}


def variables(pod, name="main"):
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in the_container(pod, name).get("env", [])}


UNITS = {"": 1, "B": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{letter}i{b}": 2 ** (10 * power) for power, letter in enumerate("KMGT", 1) for b in ("", "B")}


def amount(text):
    """A cap in bytes, or as a part of the GPU."""
    if text.endswith("%"):
        return float(text[:-1]) / 100
    digits = text.rstrip("BkKMGTi")
    return int(float(digits) * UNITS[text[len(digits) :]])


def slice_of(pod, name="main"):
    """What a container is held to: memory, request, limit, priority; each only where it is other than without a word."""
    said = quota(pod, name)
    found = {}
    if "memory" in said:
        found["memory"] = amount(said["memory"])
    for part, without in (("request", 0), ("limit", 100)):
        share = float(said.get(f"compute_{part}", said.get("compute", f"{without}%")).removesuffix("%"))
        if share != without:
            found[part] = share
    if said.get("priority", "normal") != "normal":
        found["priority"] = said["priority"]
    return found
