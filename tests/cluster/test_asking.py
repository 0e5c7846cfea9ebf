"""Every way of asking, and what the container is held to for it."""

from bench import case
from pods import GPU, container, pod, slice_of, the_container

Gi, Mi = 2**30, 2**20

# what is written: annotations, resources besides; what the container is held to
WAYS = {
    "ration.dev/memory: 8Gi": ({"ration.dev/memory": "8Gi"}, {}, {"memory": 8 * Gi}),
    "ration.dev/memory: 8G": ({"ration.dev/memory": "8G"}, {}, {"memory": 8 * 10**9}),
    "ration.dev/memory: 1.5Gi": ({"ration.dev/memory": "1.5Gi"}, {}, {"memory": 3 * Gi // 2}),
    "ration.dev/memory: 25%": ({"ration.dev/memory": "25%"}, {}, {"memory": 0.25}),
    "ration.dev/compute: 30%": ({"ration.dev/compute": "30%"}, {}, {"request": 30, "limit": 30}),
    "ration.dev/compute-request and -limit": (
        {"ration.dev/compute-request": "20%", "ration.dev/compute-limit": "60%"}, {}, {"request": 20, "limit": 60},
    ),
    "ration.dev/priority: latency": (
        {"ration.dev/priority": "latency", "ration.dev/memory": "1Gi"}, {}, {"memory": Gi, "priority": "latency"},
    ),
    "HAMi: nvidia.com/gpumem": ({}, {"nvidia.com/gpumem": "3000"}, {"memory": 3000 * Mi}),
    "HAMi: nvidia.com/gpumem-percentage": ({}, {"nvidia.com/gpumem-percentage": "50"}, {"memory": 0.5}),
    "HAMi: nvidia.com/gpucores": ({}, {"nvidia.com/gpucores": "30"}, {"request": 30, "limit": 30}),
    "HAMi: gpumem and gpucores": (
        {}, {"nvidia.com/gpumem": "1024", "nvidia.com/gpucores": "25"}, {"memory": Gi, "request": 25, "limit": 25},
    ),
    "Volcano: volcano.sh/gpu-memory": ({}, {"volcano.sh/gpu-memory": "1024"}, {"memory": Gi}),
    "Run:ai: gpu-fraction": ({"gpu-fraction": "0.25"}, {}, {"memory": 0.25, "request": 25}),
    "Run:ai: gpu-memory": ({"gpu-memory": "4096"}, {}, {"memory": 4 * Gi}),
}  # fmt: skip
NO_GPU_OF_THEIR_OWN = ("Volcano", "Run:ai")


def try_way(bench, way):
    annotations, resources, wanted = WAYS[way]
    bare = way.startswith(NO_GPU_OF_THEIR_OWN)
    made = pod(bench.name("way"), container(gpu=not bare, resources=resources), annotations=annotations)
    stored, warnings = bench.admit(made, how=way)
    seen = slice_of(stored)
    assert seen == wanted, f"seen {seen}, wanted {wanted}"
    limits = the_container(stored, "main")["resources"]["limits"]
    assert limits.get(GPU) == "1", f"its limits are {limits}"
    left = [name for name in limits if name in resources]
    assert not left, f"{left} is still asked for, which nothing advertises"
    if bare:
        assert any(GPU in text for text in warnings), f"a GPU was added and the warnings do not say so: {warnings}"
    return f"{seen}" + (f"; warned: {'; '.join(warnings)}" if warnings else "")


for way in WAYS:
    case(way)(lambda bench, way=way: try_way(bench, way))


@case("one that asks for nothing is let through with a warning")
def nothing(bench):
    stored, warnings = bench.admit(pod(bench.name("silent")))
    assert warnings, "there was no warning"
    return warnings[0]


@case("a quota for a container counts before the pod's")
def per_container(bench):
    asked = {"ration.dev/memory": "4Gi", "ration.dev/memory.big": "16Gi", "ration.dev/compute.small": "10%"}
    stored, _ = bench.admit(pod("several", container("big"), container("small"), annotations=asked))
    seen = {name: slice_of(stored, name) for name in ("big", "small")}
    wanted = {"big": {"memory": 16 * Gi}, "small": {"memory": 4 * Gi, "request": 10, "limit": 10}}
    assert seen == wanted, f"seen {seen}, wanted {wanted}"
    return seen


@case("an annotation counts before a request in others' names, with a warning")
def both(bench):
    made = pod(bench.name("both"), container(resources={"nvidia.com/gpumem": "3000"}), annotations={"ration.dev/memory": "8Gi"})
    stored, warnings = bench.admit(made)
    assert slice_of(stored) == {"memory": 8 * Gi}, slice_of(stored)
    assert any("gpumem" in text for text in warnings), warnings
    return warnings[0]


@case("MIG devices and shared replicas are GPUs")
def other_resources(bench):
    for resource in ("nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"):
        made = pod(bench.name("kind"), container(gpu=False, resources={resource: "1"}), annotations={"ration.dev/memory": "4Gi"})
        stored, _ = bench.admit(made, how=resource)
        assert slice_of(stored) == {"memory": 4 * Gi}, f"{resource}: {slice_of(stored)}"


@case("defaults and maxima: of the cluster, and of a namespace")
def defaults(bench):
    bench.configure(
        "defaults: {memory: 2Gi, compute: 20%}\nmaxima: {memory: 16Gi, compute: 50%}\n"
        "namespaces:\n  privileged: {defaults: {memory: 1Gi}, maxima: {memory: 3Gi}}\n"
    )
    try:
        stored, _ = bench.admit(pod(bench.name("default")))
        assert slice_of(stored) == {"memory": 2 * Gi, "request": 20, "limit": 20}, slice_of(stored)
        stored, _ = bench.admit(pod(bench.name("default")), "privileged")
        assert slice_of(stored) == {"memory": Gi, "request": 20, "limit": 20}, slice_of(stored)
        said = bench.refuse(pod(bench.name("over"), annotations={"ration.dev/memory": "17Gi"}))
        assert "16" in said and "maximum" in said, said
        said_too = bench.refuse(pod(bench.name("over"), annotations={"ration.dev/memory": "4Gi"}), "privileged")
        assert "3" in said_too and "maximum" in said_too, said_too
    finally:
        bench.configure("{}\n")
    return said
