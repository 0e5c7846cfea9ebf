"""What a launch costs in a slice that holds nobody back, and what an ioctl does that is not for the driver.

As `gpu.hooks.cost` does for the hooks: ours and the driver's own function (or libc's) by turns in one process, and the same
in processes without the library, which take turns with the others. What is added is the median over all pairs of batches.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

from gpu import build
from gpu.bench import Bench, Case
from gpu.compute.container import slice_of
from gpu.hooks.cost import Pairs, named, parse, summary
from gpu.hooks.counted import fresh_directory

PROCESSES = 5  # of each kind
KERNELS, GRAPHS, COPIES = 200_000, 10_000, 40_000  # calls of each process: 1,000,000 launches in all, and as many bare
IOCTLS = 2_000_000
ADDED_NS, RATIO = 100.0, 1.03
LAUNCH_NS, IOCTL_NS = 20.0, 10.0  # more, of a program that is free and alone
SLICE = {"RATION_COMPUTE_LIMIT": "100%", "RATION_MEMORY": "16GiB"}
FREE = {"RATION_COMPUTE_REQUEST": "50%"}
LAUNCHES = ("launch_cost", str(KERNELS), str(GRAPHS), str(COPIES))


def by_turns(bench: Bench, program: tuple[str, ...], settings: dict[str, str]) -> dict[str, Pairs] | None:
    """Pairs of batches, of processes without the library and of those in a slice. None: a problem was noted."""
    command = [str(build.program(bench, program[0])), *program[1:]]
    core = max(os.sched_getaffinity(0))
    env = slice_of(bench, "cost", fresh_directory(bench, "regions"), settings)
    pairs: dict[str, Pairs] = {"bare": {}, "sliced": {}}
    for number in range(PROCESSES):
        for way in pairs:
            run = bench.run(
                f"{way}-{number}", command, env=env if way == "sliced" else {}, core=core, limit=120, quiet=True
            )
            if run.status != 0:
                bench.problem(f"{run.label}: {run.how()}: {run.last_words}")
                return None
            hooked, found = parse(run)
            if hooked != (way == "sliced"):
                bench.problem(f"{run.label}: the linked function is {'not ' if hooked else ''}the driver's own")
                return None
            for kind, batches in found.items():
                pairs[way].setdefault(kind, []).extend(batches)
    bench.figures.update(core=core, processes=2 * PROCESSES)
    return pairs


def unthrottled(bench: Bench) -> None:
    pairs = by_turns(bench, LAUNCHES, SLICE)
    if pairs is None:
        return
    for kind, batches in pairs["sliced"].items():
        bench.figures[kind] = summary(batches) | {"noise": summary(pairs["bare"][kind])["ratio"]}
    bench.figures.update(added_ns_at_most=ADDED_NS, ratio_at_most=RATIO)
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


def added(pairs: dict[str, Pairs], kind: str) -> dict[str, float]:
    """Nanoseconds that a call takes more: than the function behind ours in the same process, and than in a bare process."""
    medians = {way: statistics.median(linked - own for linked, own in pairs[way][kind]) for way in pairs}
    took = {way: statistics.median(linked for linked, _ in pairs[way][kind]) for way in pairs}
    figures = {
        "bare_ns": took["bare"],
        "sliced_ns": took["sliced"],
        "added_ns": medians["sliced"],
        "noise_ns": medians["bare"],
        "more_than_bare_ns": took["sliced"] - took["bare"],
    }
    return {name: round(value, 2) for name, value in figures.items()}


def judge_added(what: str, figures: dict[str, float], most: float) -> list[str]:
    if figures["added_ns"] <= most:
        return []
    return [f"{what} takes {figures['added_ns']:.1f} ns more, of {figures['bare_ns']:.0f} (at most {most:g})"]


def free(kind: str, what: str, program: tuple[str, ...], most: float) -> Callable[[Bench], None]:
    """A slice that has asked for a share and is alone."""

    def run(bench: Bench) -> None:
        pairs = by_turns(bench, program, FREE)
        if pairs is None:
            return
        it = bench.figures[kind] = added(pairs, kind) | {"at_most_ns": most}
        for problem in judge_added(what, it, most):
            bench.problem(problem)
        bench.headline = (
            f"{what} takes {it['added_ns']:.1f} ns more than the function behind ours (without the library: "
            f"{it['noise_ns']:.1f}); {it['sliced_ns']:.0f} ns, in bare processes {it['bare_ns']:.0f}"
        )

    return run


ABOUT = "nanoseconds per launch in a slice that holds nobody back, over 1,000,000 launches, by turns with bare ones"
CASES = [
    Case("launch-cost-unthrottled", ABOUT, unthrottled),
    Case("cost-launch", "free and alone, a launch takes 20 ns more at most", free("kernel", "a launch", LAUNCHES, LAUNCH_NS)),
    Case(
        "cost-ioctl",
        "an ioctl that is not for the driver takes 10 ns more at most",
        free("ioctl", "an ioctl", ("ioctl_cost", str(IOCTLS)), IOCTL_NS),
    ),
]
