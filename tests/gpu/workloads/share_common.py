"""What the programs that share a GPU have in common: they load, wait, get ready, and work when they are told, until then.

They talk as tests/gpu/programs/share_load.c does: "loaded", and a line is waited for before anything is done with the
GPU; "ready", and `run FROM UNTIL` is read, in nanoseconds of CLOCK_MONOTONIC; `marks TIME:UNITS ...`, what was done by
when; `host TIME:NS ...`, how long the same piece of Python took; of a service `took_us START:US ...`, what each request
took; `done UNITS BEGAN ENDED`. Then they may be told to run
again. `quit`, or the end of the input, ends them.
"""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator

Step = Callable[[], object]
Mark = Callable[[], Callable[[], object]]  # gives what waits for all that was asked for before
AHEAD = 2  # batches that may be queued before the oldest is waited for
NOTED_NS = 10_000_000  # marks are no closer
PIECE = 150  # turns of the piece of Python that tells how fast the host is: some 15 µs


def hear() -> list[str]:
    line = sys.stdin.readline()
    if not line:
        sys.exit("nobody is there any more")
    return line.split()


def runs() -> Iterator[tuple[int, int]]:
    """When it is told to run, one time after the other. The beginning has come."""
    while (words := sys.stdin.readline().split()) and words[0] == "run":
        start, until = int(words[1]), int(words[2])
        sleep_until(start)
        yield start, until


def sleep_until(when: int) -> None:
    while (left := when - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def piece() -> int:
    """Nanoseconds for what is always the same. The first time is for the caches."""
    for _ in range(2):
        began, kept = time.perf_counter_ns(), {}
        for turn in range(PIECE):
            kept[turn & 63] = (turn, turn * 3)
    return time.perf_counter_ns() - began


class Marks:
    """What was done by when, at most every ten milliseconds, and how fast the host was."""

    def __init__(self) -> None:
        self.all: list[tuple[int, int]] = [(time.monotonic_ns(), 0)]
        self.host: list[tuple[int, int]] = []

    def note(self, units: int) -> None:
        now = time.monotonic_ns()
        if now - self.all[-1][0] >= NOTED_NS:
            self.all.append((now, units))
            self.host.append((now, piece()))

    def tell(self, units: int, ended: int) -> None:
        marks = [*self.all, (ended, units)]
        print("host", *(f"{at}:{took}" for at, took in self.host))
        print("marks", " ".join(f"{at}:{done}" for at, done in marks))
        print("done", units, self.all[0][0], ended, flush=True)


def repeat(setup: Callable[[], tuple[Step, Mark, int]], ahead: int = AHEAD) -> None:
    """`setup` gives a step, a mark, and how many steps make a batch: some milliseconds of work.

    Without anything `ahead` each batch is waited for; a step that waits by itself has a mark that does nothing.
    """
    print("loaded", flush=True)
    hear()
    step, mark, batch = setup()
    for _ in range(3):
        step()
    mark()()
    print("ready", flush=True)
    for _, until in runs():
        marks, units, done = Marks(), 0, 0
        waiting: deque = deque()
        while time.monotonic_ns() < until:
            for _ in range(batch):
                step()
            units += batch
            waiting.append(mark())
            if len(waiting) > ahead:
                waiting.popleft()()
                done += batch
                marks.note(done)
        for wait in waiting:
            wait()
        marks.tell(units, time.monotonic_ns())


def serve(setup: Callable[[], Step], period_ns: int) -> None:
    """`setup` gives what answers one request. They come in a period that wanders by a fifth, the same each time."""
    print("loaded", flush=True)
    hear()
    answer = setup()
    for _ in range(3):
        answer()
    print("ready", flush=True)
    for start, until in runs():
        chance, marks, units, following = random.Random(1), Marks(), 0, start
        took = []
        while following < until:
            sleep_until(following)
            began = time.monotonic_ns()
            answer()
            now = time.monotonic_ns()
            took.append(f"{began}:{(now - began) / 1000:.1f}")
            units += 1
            marks.note(units)
            following = began + int(period_ns * (0.9 + 0.2 * chance.random()))
        print("took_us", *took)
        marks.tell(units, time.monotonic_ns())
