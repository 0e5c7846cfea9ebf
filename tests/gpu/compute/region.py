"""A container's words in the region, as a stranger would read them, and its limit, as one would change it."""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path

LAYOUT = Path(__file__).resolve().parents[3] / "crates/region/layout/2.0.txt"
LIMIT, GPU_TIME = 0, 8  # which of a container's words
MILLIONTHS = 10_000  # of a limit, in a per cent


@cache
def layout() -> dict[str, list[int]]:
    lines = (line.split() for line in LAYOUT.read_text().splitlines() if line and not line.startswith("#"))
    return {name: [int(number) for number in numbers] for name, *numbers in lines}


def number_at(region: bytes, at: int, field: str) -> int:
    return struct.unpack_from("<I", region, at + layout()[field][0])[0]


def words_of(region: bytes, container: str) -> int | None:
    """Where a container's words for compute are; None: it is not in the region."""
    of = layout()
    size = (of["number.processes_at"][0] - of["number.containers_at"][0]) // of["number.containers"][0]
    for number in range(of["number.containers"][0]):
        at = of["number.containers_at"][0] + number * size
        state, length = (number_at(region, at, f"container.{it}") for it in ("state", "name_length"))
        begin = at + of["container.name"][0]
        if state == of["number.container_live"][0] and region[begin : begin + length] == container.encode():
            return at + of["container.compute"][0]
    return None


def word(region: bytes, container: str, which: int) -> int | None:
    at = words_of(region, container)
    return None if at is None else struct.unpack_from("<Q", region, at + 8 * which)[0]


def gpu_time_of(regions: Path, container: str) -> int:
    """Nanoseconds that the GPUs that there are regions of have worked for a container, by its account."""
    found = (word(path.read_bytes(), container, GPU_TIME) for path in regions.rglob("*.region"))
    return sum(time or 0 for time in found)


def set_limit(regions: Path, container: str, limit: float) -> None:
    """Another limit, in per cent, on all GPUs that it uses; it holds at once. What it owes by the one before, it still owes."""
    changed = 0
    for path in regions.rglob("*.region"):
        at = words_of(path.read_bytes(), container)
        if at is None:
            continue
        file = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(file, struct.pack("<Q", round(limit * MILLIONTHS)), at + 8 * LIMIT)
        finally:
            os.close(file)
        changed += 1
    if not changed:
        raise RuntimeError(f"{container} is in no region of {regions}: its limit cannot be changed")
