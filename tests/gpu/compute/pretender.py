"""A program for tests of the pool: it talks as share_load.c does, and its work is made up.

Of every 4 ms it works 1, and by its records 2 each other time where it is in a slice, because it is interrupted. A slice has a
region of its own: the limit there says how much of that it does, and its account is kept there while it runs.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from pathlib import Path

from gpu.compute import region
from gpu.compute.busy import HEAD, MAGIC, RECORD, SECOND

PERIOD, WORK = 4_000_000, 1_000_000
DIES = "13%"  # a request with which it fails in the middle
STALLS = "PRETENDER_STALLS"  # for how many seconds it does nothing, once


def live_region(container: str) -> tuple[bytes, int]:
    """A region with one container, in its fourth slot and without a limit, and where its words are."""
    of = region.layout()
    size = (of["number.processes_at"][0] - of["number.containers_at"][0]) // of["number.containers"][0]
    data = bytearray(of["number.size"][0])
    at = of["number.containers_at"][0] + 3 * size
    struct.pack_into("<II", data, at + of["container.state"][0], of["number.container_live"][0], len(container))
    begin = at + of["container.name"][0]
    data[begin : begin + len(container)] = container.encode()
    words = at + of["container.compute"][0]
    struct.pack_into("<Q", data, words + 8 * region.LIMIT, 1_000_000)
    return bytes(data), words


class Slice:
    """Its words in a region of its own; without a name, nothing."""

    def __init__(self) -> None:
        self.name = os.environ.get("RATION_NAME", "")
        if self.name:
            data, self.at = live_region(self.name)
            path = Path(os.environ["RATION_DIR"], f"{os.getpid()}.region")
            path.write_bytes(data)
            with path.open("r+b") as file:
                self.map = mmap.mmap(file.fileno(), 0)

    def limit(self) -> float:
        return struct.unpack_from("<Q", self.map, self.at + 8 * region.LIMIT)[0] / 1e6 if self.name else 1.0

    def account(self, gpu_time: int) -> None:
        if self.name:
            struct.pack_into("<Q", self.map, self.at + 8 * region.GPU_TIME, gpu_time)


def main() -> None:
    print("loaded", flush=True)
    sys.stdin.readline()
    it, records, worked, stall = Slice(), b"", 0, float(os.environ.get(STALLS, 0))
    print("ready", flush=True)
    for words in map(str.split, sys.stdin):
        if words[0] != "run":
            break
        start, until = int(words[1]), int(words[2])
        works = range(start, until, int(PERIOD / it.limit()))
        for number, at in enumerate(works):
            time.sleep(max(0, (at + WORK - time.monotonic_ns()) / SECOND))
            worked += WORK
            it.account(worked)
            took = 2 * WORK if it.name and number % 2 else WORK
            records += RECORD.pack(at, at + took, 1, 1)
        time.sleep(stall)
        until, stall = until + int(stall * SECOND), 0.0
        marks = [*enumerate(works), *([(len(works), until)] if until > works[-1] else [])]
        print("marks", " ".join(f"{at}:{number}" for number, at in marks))
        print("took_us", " ".join(f"{at}:{2.0 if it.name else 1.0}" for at in works))
        print("done", len(works), start, until, flush=True)
        if os.environ.get("RATION_COMPUTE_REQUEST") == DIES:
            sys.exit(3)
    head = HEAD.pack(MAGIC, os.getpid(), 0, 0, 0, SECOND, SECOND, len(records) // RECORD.size, 0)
    Path(os.environ["BUSY_DIR"], f"{os.getpid()}.own.busy").write_bytes(head + records)
