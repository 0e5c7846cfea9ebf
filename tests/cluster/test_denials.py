"""What is refused, and what is said to whoever wrote it: what is wrong, and what to write instead."""

import re

from bench import case
from cluster import Refused, wait_until
from pods import GPU, container, pod

ASKING = {"ration.dev/memory": "8Gi"}


def asking(**annotations):
    return {f"ration.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}


# the pod, and what the text must have: what it is about, and what is accepted or what to do
REFUSED = {
    "a unit that Kubernetes reads otherwise": (pod("bad", annotations=asking(memory="8m")), ["ration.dev/memory", "8m", "GiB|Gi"]),
    "no number": (pod("bad", annotations=asking(memory="lots")), ["ration.dev/memory", "lots", "GiB|Gi"]),
    "nothing": (pod("bad", annotations=asking(memory="")), ["ration.dev/memory"]),
    "more than 100%": (pod("bad", annotations=asking(compute="130%")), ["ration.dev/compute", "130%", "%"]),
    "a request above the limit": (
        pod("bad", annotations=asking(compute_request="60%", compute_limit="30%")), ["60%", "30%"],
    ),
    "a priority that there is not": (pod("bad", annotations=asking(priority="high")), ["ration.dev/priority", "latency", "batch"]),
    "an annotation that is mistyped": (pod("bad", annotations={**ASKING, "ration.dev/memroy": "8Gi"}), ["memroy", "memory"]),
    "an annotation for a container that there is not": (
        pod("bad", annotations={**ASKING, "ration.dev/memory.mian": "8Gi"}), ["mian", "main"],
    ),
    "a privileged container": (
        pod("bad", container(securityContext={"privileged": True}), annotations=ASKING), ["privileged"],
    ),
    "CAP_SYS_ADMIN": (
        pod("bad", container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), annotations=ASKING), ["SYS_ADMIN"],
    ),
    "hostPID": (pod("bad", annotations=ASKING, hostPID=True), ["hostPID"]),
    "a volume of its own at /etc/ration": (
        pod(
            "bad", container(volumeMounts=[{"name": "mine", "mountPath": "/etc/ration"}]), annotations=ASKING,
            volumes=[{"name": "mine", "emptyDir": {}}],
        ),
        ["/etc/ration"],
    ),
    "a volume of its own at /etc/ld.so.preload": (
        pod(
            "bad", container(volumeMounts=[{"name": "mine", "mountPath": "/etc/ld.so.preload", "subPath": "x"}]),
            annotations=ASKING, volumes=[{"name": "mine", "emptyDir": {}}],
        ),
        ["/etc/ld.so.preload"],
    ),
    "HAMi's resources with a unit": (
        pod("bad", container(resources={GPU: "1", "nvidia.com/gpumem-percentage": "150"})), ["gpumem-percentage", "100"],
    ),
    "a fraction above one": (pod("bad", annotations={"gpu-fraction": "1.5"}), ["gpu-fraction", "1.5"]),
    "a label that is neither": (pod("bad", annotations=ASKING, labels={"ration.dev/inject": "yes"}), ["yes", "enabled"]),
}  # fmt: skip


def try_refused(bench, what):
    made, wanted = REFUSED[what]
    said = bench.refuse(made)
    missing = [text for text in wanted if not re.search(text, said)]
    assert not missing, f"said {said!r}, without {missing}"
    assert "denied the request" in said, said
    return said.split("denied the request: ", 1)[-1]


for what in REFUSED:
    case(what)(lambda bench, what=what: try_refused(bench, what))


@case("hostPath delivery where the namespace enforces baseline or restricted")
def pod_security(bench):
    for namespace in ("baseline", "restricted"):
        said = bench.refuse(pod("bad", annotations=ASKING), namespace)
        assert namespace in said and "hostPath" in said, said
        assert re.search("image|initContainer|privileged", said), f"no advice: {said}"
    bench.admit(pod(bench.name("free"), annotations=ASKING), "privileged")
    return said.split("denied the request: ", 1)[-1]


@case("a namespace that enforces it from now on")
def pod_security_later(bench):
    bench.client.make_namespace("later", {"ration.dev/inject": "enabled"})
    bench.admit(pod("before", annotations=ASKING), "later")
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    bench.client.call("PATCH", "/api/v1/namespaces/later", labels, "application/merge-patch+json")
    def refused():
        try:
            bench.client.create_pod("later", pod(bench.name("after"), annotations=ASKING), dry_run=True)
        except Refused as why:
            return "restricted" in why.message

    wait_until(refused, 5, "the webhook to see the namespace's new label")
