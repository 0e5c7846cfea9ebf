"""What a launch costs in a slice that holds nobody back: a cap on memory and a limit of 100% of the GPU's time.

As `gpu.hooks.cost` does for the hooks: ours and the driver's own function by turns in one process, and the same in
processes without the library.
"""

from __future__ import annotations

import os

from gpu import build
from gpu.bench import Bench, Case
from gpu.compute.container import slice_of
from gpu.hooks.cost import Pairs, named, parse, summary
from gpu.hooks.counted import fresh_directory

PROCESSES = 5  # of each kind
KERNELS, GRAPHS, COPIES = 200_000, 10_000, 40_000  # calls of each process: 1,000,000 launches in all, and as many bare
ADDED_NS, RATIO = 100.0, 1.03
SLICE = {"RATION_COMPUTE_LIMIT": "100%", "RATION_MEMORY": "16GiB"}


def unthrottled(bench: Bench) -> None:
    command = [str(build.program(bench, "launch_cost")), str(KERNELS), str(GRAPHS), str(COPIES)]
    core = max(os.sched_getaffinity(0))
    env = slice_of(bench, "cost", fresh_directory(bench, "regions"), SLICE)
    pairs: dict[str, Pairs] = {"bare": {}, "sliced": {}}
    for number in range(PROCESSES):
        for way in pairs:
            settings = env if way == "sliced" else {}
            run = bench.run(f"{way}-{number}", command, env=settings, core=core, limit=120, quiet=True)
            if run.status != 0:
                bench.problem(f"{run.label}: {run.how()}: {run.last_words}")
                return
            hooked, found = parse(run)
            if hooked != (way == "sliced"):
                bench.problem(f"{run.label}: the linked function is {'not ' if hooked else ''}the driver's own")
                return
            for kind, batches in found.items():
                pairs[way].setdefault(kind, []).extend(batches)
    for kind, batches in pairs["sliced"].items():
        bench.figures[kind] = summary(batches) | {"noise": summary(pairs["bare"][kind])["ratio"]}
    bench.figures.update(added_ns_at_most=ADDED_NS, ratio_at_most=RATIO, core=core, processes=2 * PROCESSES)
    for problem in judge(bench.figures["kernel"]):
        bench.problem(problem)
    bench.headline = ", ".join(
        f"{kind} {f['driver_ns']:.0f} → {f['hooked_ns']:.0f} ns ({f['ratio']:.4f}; unhooked {f['noise']:.4f})"
        for kind, f in named(bench)
    )


def judge(kernel: dict) -> list[str]:
    """Both bounds hold; each counts for itself."""
    wrong, added = [], kernel["hooked_ns"] - kernel["driver_ns"]
    what = f"a launch takes {kernel['hooked_ns']:.0f} ns in a slice, {kernel['driver_ns']:.0f} by the driver alone"
    if added > ADDED_NS:
        wrong.append(f"{what}: {added:.0f} ns more")
    if kernel["ratio"] > RATIO:
        wrong.append(f"{what}: {kernel['ratio']:.4f} times as long")
    return wrong


ABOUT = "nanoseconds per launch in a slice that holds nobody back, over 1,000,000 launches, by turns with bare ones"
CASES = [Case("launch-cost-unthrottled", ABOUT, unthrottled)]
