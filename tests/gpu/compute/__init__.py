"""Compute: shares of the GPU's time hold, alone on the GPU and beside others, by witnesses of GPU time."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from gpu.bench import Case
from gpu.compute import (
    account,
    alone,
    beside,
    cores,
    cost,
    host,
    judges,
    killed,
    lines,
    mixes,
    node,
    soak,
    table,
    whole,
    witness,
)
from gpu.compute.container import EXTRA, STABLE, TIMES
from gpu.report import Outcome

ABOUT = "a container gets its share of the GPU's time, every second, and the work that goes with it"

# The witnesses first: nothing is shown by ones that cannot be trusted.
MODULES = (witness, cost, account, alone, beside, lines, whole, node, killed, soak)
CASES = [case for module in MODULES for case in module.CASES]

# What `--quick` leaves: less than two minutes on an H200.
QUICK = ["alone-*-25", *(f"alone-{name}-50" for name in ("kernels-500us", "gemm", "graph"))]
QUICK_WINDOW = 3.0


def plan(options: argparse.Namespace, cases: list[Case]) -> None:
    """Before the first case: how long to measure, and in which order the programs will be wanted."""
    TIMES.window = options.window or (QUICK_WINDOW if options.quick else TIMES.window)
    TIMES.solo = TIMES.window
    if TIMES.window < 5:
        TIMES.warmup, TIMES.solo = 0.5, min(TIMES.window, 1.5)
    if options.warmup is not None:
        TIMES.warmup = options.warmup
        mixes.TIMES.warmup = options.warmup
    if options.window:
        mixes.TIMES.window = options.window
    mixes.TIMES.mixes = options.mixes
    mixes.TIMES.rounds = options.rounds or 1
    soak.PACE.length = options.soak or soak.PACE.length
    mixes.TIMES.deadline = time.monotonic() + options.budget if options.budget else None
    EXTRA.update(setting.split("=", 1) for setting in options.settings or ())
    judges.HOST.busy = options.busy or 0
    host.keep_busy(judges.HOST.busy)
    cores.PINS.begin(not options.no_pin and not judges.HOST.busy)
    names = [case.name for case in cases]
    lines.plan(names)
    STABLE.order = alone.keys(names)


def finish(outcomes: list[Outcome], out: Path) -> str:
    """After the last: the table of limits, and the plots."""
    STABLE.clear()
    host.keep_busy(0)
    table.write_plots(outcomes, out)
    return table.matrix(outcomes)
