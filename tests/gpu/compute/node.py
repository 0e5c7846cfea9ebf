"""What containers that contend do to others: to the rest of the node, and to each other's results."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import time
from collections.abc import Iterator

from gpu import build
from gpu.bench import Bench, Case, Run
from gpu.compute import host
from gpu.compute.busy import SECOND
from gpu.compute.container import Crew, simulated, slice_of
from gpu.compute.loads import ANY, SCRIPTS, Load
from gpu.hooks.counted import fresh_directory

EIGHT = ("kernels-500us", "kernels-50us", "kernels-5ms", "kernels-500us") * 2
TIMES = 2.0  # of plain time slicing's, for anybody else on the node
PROBE_SECONDS = 3.0
SMI = 10  # calls of nvidia-smi
LONGEST = 400.0
RESULTS = ("train", "graphs", "copies", "managed")


@contextlib.contextmanager
def contending(bench: Bench, way: str, loads: list[tuple[Load, dict[str, str]]]) -> Iterator[str]:
    """Containers at work, until the block ends; gives the directory of regions."""
    regions = fresh_directory(bench, f"regions-{way}")
    crews: list[Crew] = []
    try:
        for number, (load, settings) in enumerate(loads):
            env = slice_of(bench, f"{way}-{number}", regions, settings) if way == "ration" else {}
            crews.append(Crew(bench, f"{way}-{number}", load, env, cupti=False))
        for crew in crews:
            crew.begin()
        for crew in crews:
            crew.get_ready()
        begin = time.monotonic_ns() + 5_000_000
        for crew in crews:
            # More kernels than it has room to note would end it.
            longest = min(LONGEST, 45.0) if crew.load.name == "kernels-50us" else LONGEST
            crew.run(begin, begin + int(longest * SECOND))
        time.sleep(1.0)
        yield str(regions)
    finally:
        for crew in crews:
            crew.close()


def parse(told: str) -> dict[str, dict[str, float]]:
    found = {}
    for line in told.splitlines():
        what, *numbers = line.split()
        found[what] = dict(zip(("count", "p50", "p99", "most"), map(float, numbers), strict=True))
    return found


def probed(bench: Bench, way: str) -> dict[str, float]:
    run = bench.run(f"probe-{way}", [str(build.program(bench, "node_probe")), str(PROBE_SECONDS)], limit=120)
    if run.status != 0:
        raise RuntimeError(f"node_probe: {run.how()}: {run.last_words}")
    found = parse(run.out)
    told = {
        "alloc_p99_us": found["alloc_us"]["p99"],
        "alloc_p50_us": found["alloc_us"]["p50"],
        "context_ms": found["context_us"]["p50"] / 1000,
        "contexts": found["context_us"]["count"],
    }
    if smi := bench.machine.tool("nvidia-smi"):
        took = []
        for _ in range(SMI):
            start = time.monotonic()
            subprocess.run([smi], stdout=subprocess.DEVNULL, env=bench.machine.environment, timeout=60, check=False)
            took.append(1000 * (time.monotonic() - start))
        told["smi_ms"] = statistics.median(took)
    return {name: round(value, 2) for name, value in told.items()}


JUDGED = {"alloc_p99_us": "cuMemAlloc and cuMemFree, p99", "context_ms": "a context", "smi_ms": "nvidia-smi"}


def judge(plain: dict[str, float], ration: dict[str, float]) -> list[str]:
    return [
        f"{what}: {ration[name]:.1f}, by plain time slicing {plain[name]:.1f}"
        for name, what in JUDGED.items()
        if name in plain and name in ration and ration[name] > TIMES * plain[name]
    ]


def others(bench: Bench) -> None:
    if simulated(bench):
        bench.skip("the simulated GPU has no kernel module that others would wait for")
    loads = [(ANY[name], {"RATION_COMPUTE_REQUEST": "12.5%"}) for name in EIGHT]
    bench.figures["idle"] = probed(bench, "idle")
    for way in ("plain", "ration"):
        with contending(bench, way, loads), host.watched(bench, way):
            bench.figures[way] = probed(bench, way)
    for problem in judge(bench.figures["plain"], bench.figures["ration"]):
        bench.problem(problem)
    bench.headline = "; ".join(
        f"{what} {bench.figures['ration'].get(name, 0):.1f} (plain {bench.figures['plain'].get(name, 0):.1f}, "
        f"idle {bench.figures['idle'].get(name, 0):.1f})"
        for name, what in JUDGED.items()
    )


def results(bench: Bench, mode: str) -> None:
    """The text of a bare run, and that of a run in a slice with a limit, beside a neighbour that wants all."""
    package = "cupy" if mode == "managed" else "torch"
    if not bench.machine.has_package(package):
        bench.skip(f"{bench.machine.python} has no {package}")
    command = [bench.machine.python, str(SCRIPTS / "long_results.py"), mode]
    bare = bench.run("bare", command, limit=200)
    if bare.status != 0:
        bench.problem(f"it fails without the library too ({bare.how()}): {bare.last_words}")
        return
    again = bench.run("bare-again", command, limit=200)
    if again.out != bare.out:
        bench.skip("two bare runs differ: this program does not repeat")
    neighbour = (ANY["kernels-500us"], {"RATION_COMPUTE_REQUEST": "50%"})
    with contending(bench, "ration", [neighbour]) as regions:
        settings = {"RATION_COMPUTE_LIMIT": "50%", "RATION_NAME": f"gpu/{mode}", "RATION_DIR": regions}
        env = {**slice_of(bench, mode, bench.directory, {}), **settings}
        sliced = bench.run("sliced", command, env=env, limit=LONGEST)
    bench.figures.update(seconds={run.label: round(run.seconds, 1) for run in (bare, again, sliced)}, result=bare.out)
    for problem in judge_results(bare, sliced):
        bench.problem(problem)
    bench.headline = f"{len(bare.out.splitlines())} lines equal; bare {bare.seconds:.0f} s, in a slice {sliced.seconds:.0f} s"


def judge_results(bare: Run, sliced: Run) -> list[str]:
    if sliced.status != bare.status:
        return [f"in a slice: {sliced.how()}: {sliced.last_words}"]
    return [] if sliced.out == bare.out else [f"in a slice other results: {sliced.out.splitlines()}, bare {bare.out.splitlines()}"]


CASES = [
    Case("node-others", "memory, contexts and nvidia-smi of others beside eight that contend", others),
    *(
        Case(f"same-{mode}", f"the same bits in a slice beside a neighbour: {mode}", lambda bench, mode=mode: results(bench, mode))
        for mode in RESULTS
    ),
]
