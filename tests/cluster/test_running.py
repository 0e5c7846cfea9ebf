"""End to end, without a GPU: an admitted pod becomes a real container, and its program is held to its limits.

The GPU is the simulated one, whose own record is the witness: it shares no code with the library.
"""

import copy
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import tries
from bench import ROOT, Skip, case, needed
from cluster import wait_until
from oci import Node
from pods import container, pod
from test_chart import of_kind, rendered
from test_containers import patched, review_of

MiB = 2**20
OUR_IMAGE = "registry.example/ration-injector:0.1.0"
HARDENED = {
    "runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True, "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
}  # fmt: skip


class Machine:
    """A node with the simulated GPU, an image with the client programs, and the library where the node part puts it."""

    def __init__(self, bench):
        sim, library = Path(needed("SIM")), Path(needed("RATION_LIBRARY"))
        self.record_program = needed("RATION_SIM")
        built = bench.directory / "machine"
        image, self.world = built / "image", built / "world"
        self.world.mkdir(parents=True)
        self.world.chmod(0o777)
        programs = {"client": Path(__file__).parent / "client.c", "work": ROOT / "tests" / "programs" / "compute_work.c"}
        (image / "bin").mkdir(parents=True)
        for name, source in programs.items():
            subprocess.run(
                ["cc", "-std=gnu11", "-O2", "-w", f"-I{ROOT}/include", f"-I{ROOT}/tests/programs", "-o", image / "bin" / name, source]
                + [f"-L{sim}", "-lcuda", "-lpthread"],
                check=True,
            )  # fmt: skip
        libraries = [sim / "libcuda.so.1", sim / "libnvidia-ml.so.1"]
        add_needs(image, [*(image / "bin").iterdir(), *libraries, library])
        for directory in ("proc", "dev", "etc", "run", "usr/lib/x86_64-linux-gnu", "usr/local"):
            (image / directory).mkdir(parents=True, exist_ok=True)
        # The injector's own image, by its file names; it is linked as the others are here, and so has a C library too.
        ours = built / "ours"
        shutil.copytree(image, ours)
        shutil.copy(library, ours / "libration.so")
        shutil.copy(needed("RATION_INJECTOR"), ours / "ration-injector")
        add_needs(ours, [needed("RATION_INJECTOR")])
        self.node = Node(image, libraries, self.world, {OUR_IMAGE: ours})
        for of_host in ("/var/lib", "/run"):
            self.node.path(of_host).mkdir(parents=True, exist_ok=True)
        self.before = self.listing()
        self.node_part("install")

    def node_part(self, *arguments, check=True):
        """`ration-injector node`, on this node's directories."""
        places = [f"--root={self.node.path('/var/lib/ration')}", f"--region-dir={self.node.path('/run/ration-pods')}"]
        places.append(f"--library={needed('RATION_LIBRARY')}")
        done = subprocess.run([needed("RATION_INJECTOR"), "node", *places, *arguments], capture_output=True, text=True)
        assert done.returncode == 0 or not check, f"node {arguments}: {done.stderr or done.stdout}"
        return done

    def record(self):
        env = {**os.environ, "RATION_SIM_DIR": str(self.world)}
        return json.loads(subprocess.run([self.record_program, "record"], env=env, check=True, capture_output=True).stdout)

    def processes(self, name):
        return [one for one in self.record()["processes"] if one["name"] == name and not one["observer"]]

    def shares(self, seconds):
        """Per cent of the GPU's time in which each process that lives made progress, in so many seconds from now."""
        before = self.record()
        time.sleep(seconds)
        after = self.record()
        passed = after["clock_ns"] - before["clock_ns"]
        work = lambda record: {one["key"]: one["gpus"].get("0", {}).get("work_ns", 0) for one in record["processes"] if one["alive"]}  # noqa: E731
        was = work(before)
        return {key: 100 * (value - was[key]) / passed for key, value in work(after).items() if was.get(key)}

    def listing(self):
        """What there is on the node outside of what the kubelet and the runtime keep."""
        places = (self.node.path(of_host) for of_host in ("/var/lib", "/run"))
        return sorted(str(one.relative_to(place)) for place in places for one in place.rglob("*"))

    def stop(self):
        self.node.stop()


def add_needs(image, programs):
    """The loader and the libraries that these want, but for the GPU's, to where they are on this machine."""
    said = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    found = set()
    for line in said.splitlines():
        words = line.split()
        path = words[2] if "=>" in words and len(words) > 2 else words[0] if words else ""
        if path.startswith("/") and not path.endswith(":") and "libcuda" not in path:
            found.add(path)
    for path in found:
        into = image / path.lstrip("/")
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, into)


def machine(bench):
    if os.geteuid() != 0:
        raise Skip("only root may make containers with namespaces of their own")
    if not hasattr(bench, "machine"):
        bench.machine = Machine(bench)
        bench.stopping.append(bench.machine)
    return bench.machine


def start(bench, command, annotations, namespace="on", user=1000):
    made = pod(
        bench.name("run"), container(command=command, securityContext={**HARDENED, "runAsUser": user}), annotations=annotations
    )
    stored, _ = bench.admit(made, namespace)
    return machine(bench).node.run(stored)


def lines(text):
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


@case("without an injection the container takes what it likes (so that the next means something)")
def uncapped(bench):
    running = start(bench, ["/bin/client"], {"ration.dev/memory": "1Gi"}, "off")
    status = running.finish(60)
    said = lines(running.said())
    assert status == 0 and said.get("preload") == "no", running.said()
    assert said["held"] == "4096 code 0", running.said()
    return said["held"]


@case("memory: a container is refused at its cap; non-root, read-only root, PID namespace of its own")
def capped(bench):
    running = start(bench, ["/bin/client"], {"ration.dev/memory": "1Gi"})
    status = running.finish(60)
    said = lines(running.said())
    assert status == 0, running.said()
    wanted = {"pid": "1", "uid": "1000", "root": "read-only", "preload": "yes", "total": "1024"}
    # What it tells others, and what others tell it.
    wanted |= {"pods": "read-only", "own": "writable"}
    seen = {key: said.get(key) for key in wanted}
    assert seen == wanted, f"seen {seen}, wanted {wanted}; it said {running.said()}"
    held, code = int(said["held"].split()[0]), said["held"].split()[-1]
    assert code == "2", f"refused with {code}, wanted CUDA_ERROR_OUT_OF_MEMORY (2)"
    latest = max(machine(bench).processes("client"), key=lambda one: one["started_ns"])
    peak = latest["gpus"]["0"]["peak_bytes"]
    assert 900 * MiB < peak <= 1024 * MiB, f"the GPU's record: a peak of {peak // MiB} MiB, wanted up to 1024"
    return f"{held} MiB and its context; the GPU's own record: at most {peak / MiB:.0f} of 1024 MiB"


def until_good(measure, is_good):
    """Where the machine never kept up, nothing is judged."""
    try:
        return tries.until_good(measure, is_good)
    except tries.NotJudged as why:
        raise Skip(str(why)) from why


def all_ready(running):
    wait_until(lambda: all("ready" in one.said() for one in running), 30, f"the programs to start: {[one.said() for one in running]}")
    time.sleep(1)


@case("compute: a container with a limit of 30% gets 30% of an idle GPU")
def throttled(bench):
    running = start(bench, ["/bin/work", "queue", "500", "40"], {"ration.dev/compute": "30%"})
    try:
        all_ready([running])
        seen = until_good(lambda: sum(machine(bench).shares(2).values()), lambda share: abs(share - 30) < 3)
    finally:
        running.stop()
    return f"{seen:.1f}% by the GPU's own record"


@case("two pods of different users, each with a directory of its own, find each other and take turns: 25% and 75%")
def turns(bench):
    asked = {1000: 25, 2000: 75}
    running = []
    try:
        for user, share in asked.items():
            # No limit: what holds them to their shares is the other one.
            annotations = {"ration.dev/compute-request": f"{share}%"}
            running.append(start(bench, ["/bin/work", "queue", "500", "40"], annotations, user=user))
            wait_until(lambda: "ready" in running[-1].said(), 30, f"the program to start: {running[-1].said()}")
        all_ready(running)

        def measure():
            return [round(share, 1) for share in sorted(machine(bench).shares(2).values())]

        # Of the time in which there was progress: going from one to the other costs some.
        def is_good(seen):
            return len(seen) == 2 and abs(100 * seen[0] / sum(seen) - 25) < 4

        seen = until_good(measure, is_good)
        node = machine(bench).node
        uids = [one.pod["metadata"]["uid"] for one in running]
        made = {uid: sorted(one.suffix for one in node.path(f"/run/ration-pods/{uid}").iterdir()) for uid in uids}
    finally:
        for one in running:
            one.stop()
    assert list(made.values()) == [[".public", ".region"]] * 2, f"in the pods' directories: {made}"
    return f"{seen[0]}% and {seen[1]}% of the GPU's time"


@case("an ephemeral container has no place to be held together with its target, and is refused GPU work")
def debugging(bench):
    running = start(bench, ["/bin/client", "30"], {"ration.dev/memory": "1Gi"})
    try:
        wait_until(lambda: "held" in running.said(), 30, f"the program to hold memory: {running.said()}")
        with_debugger = copy.deepcopy(running.pod)
        debugger = {"name": "debugger", "image": "x", "command": ["/bin/client"], "targetContainerName": "main"}
        debugger |= {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], "securityContext": HARDENED}
        with_debugger["spec"]["ephemeralContainers"] = [debugger]
        review = review_of(with_debugger, running.pod, "UPDATE", "ephemeralcontainers")
        admitted = patched(with_debugger, bench.webhook.review(review))
        second = machine(bench).node.run(admitted, "debugger")
        second.finish(60)
        said = second.said()
        assert "preload yes" in said, said
        assert "cuInit: 800" in said, f"wanted CUDA_ERROR_NOT_PERMITTED (800), and it said {said!r}"
        assert "held" in running.said() and running.process.poll() is None, f"its target: {running.said()!r}"
    finally:
        running.stop()
    return said.strip().splitlines()[-1]


@case("delivery by init container and by image: a restricted pod is capped without anything of the host's")
def other_deliveries(bench):
    held = {}
    for delivery in ("initContainer", "image"):
        main = container(command=["/bin/client"], securityContext=HARDENED)
        made = pod(bench.name(delivery.lower()), main, annotations={"ration.dev/memory": "1Gi"})
        made["metadata"] |= {"namespace": "restricted", "uid": f"uid-{delivery}"}
        # 1.20 knows no image volumes, so it is asked as a current API server would ask.
        config = f"delivery: {delivery}\nlibrary: {{image: {OUR_IMAGE}}}\n"
        admitted = patched(made, bench.asked_apart(config, review_of(made)))
        assert not any("hostPath" in one for one in admitted["spec"]["volumes"]), admitted["spec"]["volumes"]
        for first in admitted["spec"].get("initContainers", []):
            copying = machine(bench).node.run(admitted, first["name"])
            assert copying.finish(30) == 0, f"{first['name']}: {copying.said()}"
        running = machine(bench).node.run(admitted)
        assert running.finish(60) == 0, running.said()
        said = lines(running.said())
        assert said.get("preload") == "yes" and said.get("held", "").endswith("code 2"), running.said()
        latest = max(machine(bench).processes("client"), key=lambda one: one["started_ns"])
        peak = latest["gpus"]["0"]["peak_bytes"]
        assert peak <= 1024 * MiB, f"{delivery}: the GPU's record: a peak of {peak // MiB} MiB"
        held[delivery] = f"{peak // MiB} of 1024 MiB"
    return held


@case("the node part knows who is in the region, stays while they run, and leaves the node as it was")
def uninstall(bench):
    node_part = machine(bench).node_part
    running = start(bench, ["/bin/client", "30"], {"ration.dev/memory": "1Gi"})
    try:
        wait_until(lambda: "held" in running.said(), 30, f"the program to hold memory: {running.said()}")
        status = node_part("status", "--json").stdout
        name = f"on/{running.pod['metadata']['name']}/main"
        assert name in status, f"{name} is not in {status}"
        refused = node_part("uninstall", check=False)
        assert refused.returncode != 0 and name in refused.stderr + refused.stdout, f"uninstall said {refused}"
    finally:
        running.stop()
    node_part("uninstall")
    left = machine(bench).listing()
    node_part("install")
    assert left == machine(bench).before, f"left behind: {left}"
    return (refused.stderr or refused.stdout).strip().splitlines()[-1]


@case("the chart's node part, as a container with its own rights: installs, is ended, and uninstalls")
def node_part_of_the_chart(bench):
    ours = machine(bench).node
    node = Node(ours.image, ours.gpu_libraries, ours.world, ours.images)
    bench.stopping.append(node)

    def of_chart(name, *values):
        image, tag = OUR_IMAGE.rsplit(":", 1)
        made = of_kind(rendered(bench, "--set", f"image.repository={image},image.tag={tag}", *values), "DaemonSet")
        template = made["spec"]["template"]
        return {**template, "metadata": {**template["metadata"], "name": name, "uid": name, "namespace": "ration-system"}}

    part = node.run(of_chart("node-part"), "node", command=["/ration-injector"])
    library = node.path("/var/lib/ration/lib/current/libration.so")
    wait_until(library.exists, 30, f"the library on the node: {part.said()}")
    mode = node.path("/run/ration-pods").stat().st_mode & 0o7777
    assert mode == 0o1777, f"the region's directory has mode {mode:o}"
    main = container(command=["/bin/client"], securityContext=HARDENED)
    stored, _ = bench.admit(pod(bench.name("run"), main, annotations={"ration.dev/memory": "1Gi"}))
    running = node.run(stored)
    assert running.finish(60) == 0 and "code 2" in running.said(), running.said()
    assert part.terminate(20) == 0, part.said()
    assert library.exists(), "it took the library away when it was ended"
    gone = node.run(of_chart("uninstalling", "--set", "node.uninstall=true"), "node", command=["/ration-injector"])
    assert gone.finish(30) == 0, gone.said()
    left = [str(one) for of_host in ("/var/lib/ration", "/run/ration-pods") for one in node.path(of_host).rglob("*")]
    assert not left, f"left behind: {left}; it said {gone.said()}"
    return gone.said().strip().splitlines()[-1]


@case("a node without the library does not run the pod")
def not_installed(bench):
    stored, _ = bench.admit(pod(bench.name("nowhere"), annotations={"ration.dev/memory": "1Gi"}))
    bare = Node(machine(bench).node.image, [], machine(bench).world)
    try:
        bare.run(stored, command=["/bin/client"])
    except AssertionError as why:
        assert "FailedMount" in str(why) and "/ration" in str(why), why
        return str(why)
    finally:
        bare.stop()
    raise AssertionError("it ran")
