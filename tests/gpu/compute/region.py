"""The library's account of GPU time, in the region, read as a stranger would."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

LAYOUT = Path(__file__).resolve().parents[3] / "crates/region/layout/1.1.txt"
GPU_TIME = 8  # which of a container's words


@cache
def layout() -> dict[str, list[int]]:
    lines = (line.split() for line in LAYOUT.read_text().splitlines() if line and not line.startswith("#"))
    return {name: [int(number) for number in numbers] for name, *numbers in lines}


def number_at(region: bytes, at: int, field: str) -> int:
    return struct.unpack_from("<I", region, at + layout()[field][0])[0]


def gpu_time(region: bytes, container: str) -> int | None:
    """Nanoseconds that the GPU has worked for a container by its account; None: it is not in the region."""
    of = layout()
    size = (of["number.processes_at"][0] - of["number.containers_at"][0]) // of["number.containers"][0]
    for number in range(of["number.containers"][0]):
        at = of["number.containers_at"][0] + number * size
        state, length = (number_at(region, at, f"container.{it}") for it in ("state", "name_length"))
        begin = at + of["container.name"][0]
        if state == of["number.container_live"][0] and region[begin : begin + length] == container.encode():
            return struct.unpack_from("<Q", region, at + of["container.compute"][0] + 8 * GPU_TIME)[0]
    return None


def gpu_time_of(regions: Path, container: str) -> int:
    """The same over all GPUs that there are regions of in a directory."""
    found = (gpu_time(path.read_bytes(), container) for path in regions.glob("*.region"))
    return sum(time or 0 for time in found)
