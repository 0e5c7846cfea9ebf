"""What the ledger costs: taking and giving back memory in a cap, against the driver's own functions.

As `gpu.hooks.cost` does for launches: both ways in one process, in batches by turns; and in processes without the
library, to know what the measurement can tell apart. The driver takes up to half as long again for seconds at a time,
which the ratio of two medians mistakes for a difference; so each batch is compared with its neighbour, and the figure is
the median of those ratios. A batch is long enough that what happens once in a while, such as a question to NVML, is in
each of them.
"""

from __future__ import annotations

import random
import statistics

from gpu.bench import Bench, Case
from gpu.hooks.cost import parse, summary
from gpu.memory.container import cores, program, settings
from gpu.memory.witness import witness

PROCESSES = 4  # of each kind
PAIRS = {"alloc-4k": 8000, "alloc-2m": 16_000, "alloc-64m": 6400, "async-2m": 40_000, "info": 4000}
TARGET = 1.02
# What takes the driver tens of microseconds is judged by the ratio. A small piece in a block that is there already takes it
# two, of which 2% is less than two calls can do anything in: it may cost no more than 2% of what the others take.
BY_RATIO = ("alloc-2m", "alloc-64m")
SMALL, ADDED_NS = "alloc-4k", 0.02 * 55_000
CAP = 16 << 30


def alloc_cost(bench: Bench) -> None:
    command = [str(program(bench, "cost")), *(str(count) for count in PAIRS.values())]
    env = settings(bench, witness(bench), CAP, "cost")
    bare_env = {name: value for name, value in env.items() if not name.startswith(("RATION_", "LD_PRELOAD"))}
    core = cores()
    pairs: dict[str, dict] = {"bare": {}, "hooked": {}}
    for number in range(PROCESSES):
        for way in pairs:
            run = bench.run(
                f"{way}-{number}", command, env=env if way == "hooked" else bare_env, core=core, limit=120, quiet=True
            )
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
        bench.figures[kind] = compared(batches) | {"noise": compared(pairs["bare"][kind])["ratio"]}
    bench.figures.update(target=TARGET, core=core, processes=2 * PROCESSES)
    judge(bench)


def compared(pairs: list[tuple[float, float]], draws: int = 300) -> dict:
    ratios = [linked / driver for linked, driver in pairs]
    chance = random.Random(1)
    drawn = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(draws))
    interval = [round(drawn[draws * 25 // 1000], 5), round(drawn[draws * 975 // 1000], 5)]
    return summary(pairs) | {"ratio": round(statistics.median(ratios), 5), "interval": interval}


def judge(bench: Bench) -> None:
    small = bench.figures[SMALL]
    if small["hooked_ns"] - small["driver_ns"] > ADDED_NS:
        bench.problem(
            f"{SMALL}: {small['hooked_ns']:.0f} ns in a cap, {small['driver_ns']:.0f} by the driver alone: more than "
            f"{ADDED_NS:.0f} apart"
        )
    for kind in BY_RATIO:
        found = bench.figures[kind]
        if found["ratio"] > TARGET:
            low, high = found["interval"]
            bench.problem(
                f"{kind}: {found['hooked_ns']:.0f} ns in a cap, {found['driver_ns']:.0f} by the driver alone: "
                f"{found['ratio']:.4f} times as long (between {low:.4f} and {high:.4f}), more than {TARGET}"
            )
    words = [
        f"{kind} {f['driver_ns'] / 1e3:.1f} → {f['hooked_ns'] / 1e3:.1f} µs ({f['ratio']:.3f}; bare {f['noise']:.3f})"
        for kind in PAIRS
        if (f := bench.figures.get(kind))
    ]
    bench.headline = ", ".join(words)


CASES = [Case("alloc-cost", "taking and giving back memory, in a cap and by the driver alone", alloc_cost)]
