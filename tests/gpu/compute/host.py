"""How late the machine wakes threads while a case runs: a thread that gets no processor launches nothing, slice or not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gpu import build
from gpu.bench import Bench

NAMES = ("sleeps", "p50_us", "p99_us", "p999_us", "most_us")

# Ends by itself when whoever started it is gone.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1_000_000): pass"
loops: list[subprocess.Popen] = []


def keep_busy(count: int) -> None:
    """So many programs that do nothing but keep a core busy, from now on; none: those that there are end."""
    while len(loops) > count:
        loop = loops.pop()
        loop.kill()
        loop.wait()
    while len(loops) < count:
        loops.append(subprocess.Popen([sys.executable, "-c", BUSY]))


@contextmanager
def watched(bench: Bench, name: str) -> Iterator[None]:
    """Puts into the figures, under `host` and this name, how late a thread was woken meanwhile. It judges nothing."""
    command = [str(build.program(bench, "host_late"))]
    environment = bench.machine.environment
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as sleeper:
        try:
            yield
        finally:
            told, _ = sleeper.communicate(timeout=10)
    bench.figures.setdefault("host", {})[name] = parse(told)


def parse(told: str) -> dict[str, int]:
    words = told.split()
    if len(words) != 1 + len(NAMES) or words[0] != "late":
        raise RuntimeError(f"host_late said {told!r}")
    return dict(zip(NAMES, map(int, words[1:]), strict=True))


def headline(bench: Bench) -> str:
    """What a reader has to know of the machine, to make sense of the other figures."""
    late = bench.figures["host"].items()
    told = ", ".join(f"{name} {it['p99_us']}/{it['p999_us']}" for name, it in late)
    return f"threads were woken late by (p99/p99.9, µs) {told}"
