"""What the hooks cost a program, measured on the program's own side of the call.

A process under the library makes batches of calls by turns through the function that it is linked to, which is ours, and
through the driver's own. Processes that are not preloaded do the same: there the two are one function, and how far their
ratio strays from 1 says what this measurement can tell. The figure is the median over all pairs of batches of several
processes.
"""

from __future__ import annotations

import os
import random
import statistics

from gpu import build
from gpu.bench import Bench, Case, Run

PROCESSES = 5  # of each kind
KERNELS, GRAPHS, COPIES = 200_000, 10_000, 40_000  # calls of each process: 1,000,000 launches in all, and as many bare
TARGET = 1.02

Pairs = dict[str, list[tuple[float, float]]]  # kind: linked and driver, a batch each, one after the other


def launch_cost(bench: Bench) -> None:
    program = str(build.program(bench, "launch_cost"))
    command = [program, str(KERNELS), str(GRAPHS), str(COPIES)]
    core = max(os.sched_getaffinity(0))
    pairs: dict[str, Pairs] = {"bare": {}, "hooked": {}}
    for number in range(PROCESSES):
        for way in ("bare", "hooked"):
            run = bench.run(f"{way}-{number}", command, hooked=way == "hooked", core=core, limit=120, quiet=True)
            if run.status != 0:
                bench.problem(f"{run.label}: {run.how()}: {run.last_words}")
                return
            hooked, found = parse(run)
            if hooked != (way == "hooked"):
                bench.problem(f"{run.label}: the linked function is {'not ' if hooked else ''}the driver's own")
                return
            for kind, batches in found.items():
                pairs[way].setdefault(kind, []).extend(batches)
    for kind, batches in pairs["hooked"].items():
        bench.figures[kind] = summary(batches) | {"noise": summary(pairs["bare"][kind])["ratio"]}
    bench.figures.update(target=TARGET, core=core, processes=2 * PROCESSES)
    judge(bench)


def judge(bench: Bench) -> None:
    kernel = bench.figures["kernel"]
    if kernel["ratio"] > TARGET:
        low, high = kernel["interval"]
        bench.problem(
            f"a launch takes {kernel['hooked_ns']:.0f} ns hooked, {kernel['driver_ns']:.0f} by the driver alone: "
            f"{kernel['ratio']:.4f} times as long (between {low:.4f} and {high:.4f}), more than {TARGET}"
        )
    words = [
        f"{kind} {f['driver_ns']:.0f} → {f['hooked_ns']:.0f} ns ({f['ratio']:.4f}; unhooked {f['noise']:.4f})"
        for kind, f in named(bench)
    ]
    bench.headline = ", ".join(words)


def named(bench: Bench) -> list[tuple[str, dict]]:
    return [(kind, bench.figures[kind]) for kind in ("kernel", "graph", "copy") if kind in bench.figures]


def parse(run: Run) -> tuple[bool, Pairs]:
    """`hooked 1`, then for each kind `kernel.linked 3105.20 …` and `kernel.driver 3098.70 …`."""
    lines = {words[0]: words[1:] for words in map(str.split, run.out.splitlines()) if words}
    kinds = [name.removesuffix(".linked") for name in lines if name.endswith(".linked")]
    columns = {name: [float(word) for word in words] for name, words in lines.items()}
    return lines["hooked"] == ["1"], {
        kind: list(zip(columns[f"{kind}.linked"], columns[f"{kind}.driver"], strict=True)) for kind in kinds
    }


def summary(pairs: list[tuple[float, float]]) -> dict:
    linked, driver = ([pair[at] for pair in pairs] for at in (0, 1))
    return {
        "driver_ns": round(statistics.median(driver), 2),
        "hooked_ns": round(statistics.median(linked), 2),
        "ratio": round(statistics.median(linked) / statistics.median(driver), 5),
        "interval": interval(pairs),
        "ratio_of_pairs": round(statistics.median(a / b for a, b in pairs), 5),
        "driver_min_ns": min(driver),
        "hooked_min_ns": min(linked),
        "batches": len(pairs),
    }


def interval(pairs: list[tuple[float, float]], draws: int = 300) -> list[float]:
    """The middle 95% of the ratio of medians, over pairs drawn again from those that were measured."""
    chance = random.Random(1)
    ratios = sorted(
        statistics.median(a for a, _ in drawn) / statistics.median(b for _, b in drawn)
        for drawn in (chance.choices(pairs, k=len(pairs)) for _ in range(draws))
    )
    return [round(ratios[draws * 25 // 1000], 5), round(ratios[draws * 975 // 1000], 5)]


CASES = [Case("launch-cost", "nanoseconds per launch, bare and hooked, over 1,000,000 launches", launch_cost)]
