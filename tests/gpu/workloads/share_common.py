"""What the programs that want all of the GPU share: they load, wait, get ready, and repeat a step until they are told.

They talk as tests/gpu/programs/share_load.c does: "loaded", and a line is waited for before anything is done with the
GPU; "ready", and `run FROM UNTIL` is read, in nanoseconds of CLOCK_MONOTONIC; `done UNITS BEGAN ENDED`.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable

Step = Callable[[], object]
Mark = Callable[[], Callable[[], object]]  # gives what waits for all that was asked for before
AHEAD = 2  # batches that may be queued before the oldest is waited for


def hear() -> list[str]:
    line = sys.stdin.readline()
    if not line:
        sys.exit("nobody is there any more")
    return line.split()


def repeat(setup: Callable[[], tuple[Step, Mark, int]]) -> None:
    """`setup` gives a step, a mark, and how many steps make a batch: some milliseconds of work."""
    print("loaded", flush=True)
    hear()
    step, mark, batch = setup()
    for _ in range(3):
        step()
    mark()()
    print("ready", flush=True)
    _, start, until = hear()
    time.sleep(max(0.0, (int(start) - time.monotonic_ns()) / 1e9))
    began, units = time.monotonic_ns(), 0
    waiting: deque = deque()
    while time.monotonic_ns() < int(until):
        for _ in range(batch):
            step()
        units += batch
        waiting.append(mark())
        if len(waiting) > AHEAD:
            waiting.popleft()()
    for wait in waiting:
        wait()
    print("done", units, began, time.monotonic_ns(), flush=True)
