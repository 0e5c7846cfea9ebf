"""When the GPU worked: what the witnesses wrote down, put on the host's clock, and added up over a window.

A witness is `cupti_busy.c` in the program, the program itself by the GPU's nanosecond clock (`share_load.c`), or the
simulated GPU's own record. None of them knows of limits. Busy time is the union of the records of all of a container's
processes. Between two kernels that are both queued the GPU pauses for a microsecond or two, in which nobody else could
have had it: pauses up to `PAUSE` count as busy. What is longer was a wait for the program, or for its turn.

A kernel that is preempted, or taken off the GPU, goes on meanwhile by all of these clocks. What the GPU really did for a
program that has neighbours or a limit is its *GPU time*: of each kind of kernel, how many ran, times the lower quartile of
what they took, and the pauses. `gpu_time` says it in Python, `programs/busy_sum.c` does it for millions of records.
"""

from __future__ import annotations

import bisect
import json
import statistics
import struct
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HEAD = struct.Struct("<8sIIQQQQQQ")
RECORD = struct.Struct("<QQQQ")
MAGIC = b"busy   2"
FEW = 4  # records of a kind, below which their median counts, not their lower quartile
KINDS = {1: "kernel", 2: "copy", 3: "set", 4: "graph"}
COPY = 2
PAUSE = 5_000  # ns
SECOND = 1_000_000_000

Interval = tuple[int, int]


class Broken(Exception):
    """A witness that is not to be trusted; says why."""


@dataclass
class Notes:
    """What was noted of one process, or of several: intervals in nanoseconds of CLOCK_MONOTONIC."""

    intervals: list[Interval] = field(default_factory=list)
    kinds: Counter = field(default_factory=Counter)
    which: list[tuple[int, int]] = field(default_factory=list)  # of each interval: kind of record, kind of kernel

    def join(self, other: Notes) -> None:
        self.intervals += other.intervals
        self.kinds += other.kinds
        self.which += other.which


def read(path: Path) -> Notes:
    """A .busy file (busy.h)."""
    data = path.read_bytes()
    if len(data) < HEAD.size:
        raise Broken(f"{path.name} has no head")
    magic, _, trouble, gpu_1, host_1, gpu_2, host_2, count, _ = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise Broken(f"{path.name} is no file of a witness")
    if trouble:
        why = {0xFFFFFFFF: "was not closed", 1: "lost records", 2: "could not get the last records"}
        raise Broken(f"{path.name} {why.get(trouble, f'says {trouble}')}")
    if len(data) != HEAD.size + count * RECORD.size:
        raise Broken(f"{path.name} should have {count} records and has {len(data) - HEAD.size} bytes of them")
    # The two clocks drift by some microseconds in a minute.
    slope = (host_2 - host_1) / (gpu_2 - gpu_1) if gpu_2 > gpu_1 else 1.0
    if not 0.99 < slope < 1.01:
        raise Broken(f"{path.name}: its clock runs {slope:.3f} times as fast as the host's")
    notes = Notes()
    for start, end, kind, which in RECORD.iter_unpack(data[HEAD.size :]):
        if end < start:
            raise Broken(f"{path.name}: a record ends before it begins")
        notes.intervals.append((host_1 + int((start - gpu_1) * slope), host_1 + int((end - gpu_1) * slope)))
        notes.kinds[KINDS.get(kind, str(kind))] += 1
        notes.which.append((kind, which))
    return notes


def read_all(directory: Path, witness: str, processes: int) -> Notes:
    """What a witness wrote of a container's processes, of which there must be so many."""
    paths = sorted(directory.glob(f"*.{witness}.busy"))
    if len(paths) != processes:
        raise Broken(f"{len(paths)} of {processes} processes have a witness")
    whole = Notes()
    for path in paths:
        whole.join(read(path))
    if not whole.intervals:
        raise Broken("the witness saw nothing")
    return whole


def ask_simulated(tool: str, environment: dict[str, str], what: str) -> str:
    done = subprocess.run([tool, what], env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def simulated_kernels(tool: str, environment: dict[str, str]) -> tuple[int, Counter]:
    """The simulated GPU's clock, and how many kernels of each process it has done."""
    record = json.loads(ask_simulated(tool, environment, "record"))
    done: Counter = Counter()  # a process that uses NVML as well is there twice
    for process in record["processes"]:
        if process["alive"]:
            done[process["pid"]] += sum(gpu["kernels"] for gpu in process["gpus"].values())
    return record["clock_ns"], done


def read_simulated(tool: str, environment: dict[str, str]) -> Notes:
    """The simulated GPU's own record of its compute engine, whoever was on it."""
    before = time.monotonic_ns()
    clock = json.loads(ask_simulated(tool, environment, "record"))["clock_ns"]
    offset = (before + time.monotonic_ns()) // 2 - clock
    notes = Notes()
    for line in ask_simulated(tool, environment, "intervals").splitlines():
        words = line.split()  # gpu 0 process 5 from 12844392790 to 12846992790 ns
        notes.intervals.append((int(words[5]) + offset, int(words[7]) + offset))
    notes.kinds["engine"] = len(notes.intervals)
    if not notes.intervals:
        raise Broken("the simulated GPU's record is empty")
    return notes


def union(intervals: list[Interval], pause: int = 0) -> list[Interval]:
    """In order and without overlap; what is no further apart than `pause` is one."""
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1] + pause:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def within(merged: list[Interval], start: int, end: int) -> int:
    """Nanoseconds of a union that lie in a window."""
    total = 0
    for at in range(max(0, bisect.bisect_right(merged, (start, start)) - 1), len(merged)):
        one, other = merged[at]
        if one >= end:
            break
        total += max(0, min(other, end) - max(one, start))
    return total


@dataclass(frozen=True)
class Window:
    """What a container got in a window, by a witness. Shares are parts of wall time, in per cent."""

    share: float
    bare_share: float  # without the pauses
    seconds: list[float]  # second by second
    rate: float  # records that ended, per second
    records: int  # in all, the time before the window too
    kinds: dict[str, int]

    def furthest(self, limit: float) -> float:
        """How far the worst second is from a limit, in points."""
        return max((abs(second - limit) for second in self.seconds), default=0.0)


def measure(notes: Notes, start: int, end: int) -> Window:
    merged = union(notes.intervals, PAUSE)
    bare = union(notes.intervals)
    whole = range(start, end - SECOND + 1, SECOND)
    ended = sum(1 for _, stop in notes.intervals if start < stop <= end)
    return Window(
        share=100 * within(merged, start, end) / (end - start),
        bare_share=100 * within(bare, start, end) / (end - start),
        seconds=[100 * within(merged, at, at + SECOND) / SECOND for at in whole],
        rate=ended * SECOND / (end - start),
        records=len(notes.intervals),
        kinds=dict(notes.kinds),
    )


def usual(took: list[int]) -> float:
    """What a kernel of a kind takes when nobody interrupts it."""
    took = sorted(took)
    return took[(len(took) - 1) // 4] if len(took) >= FEW else statistics.median(took)


def apart(intervals: list[Interval], start: int, end: int) -> float:
    """The time that kernels took together, as part of what each took by itself."""
    whole = sum(max(0, min(b, end) - max(a, start)) for a, b in intervals)
    return within(union(intervals), start, end) / whole if whole else 1.0


def gpu_time(
    notes: Notes,
    start: int,
    end: int,
    reference: dict[tuple[int, int], float] | None = None,
    alone: float | None = None,
) -> float:
    """Nanoseconds of a window in which the GPU worked for a container, whatever interrupted it.

    `reference` is what kinds of kernels usually take when the program is alone: kernels so long that all of them are
    interrupted show it nowhere else. Copies are not the GPU's time: other engines do them. What overlaps counts once;
    `alone`: by how much does when the program is alone, for two kernels that are interrupted where they overlap are both
    long.
    """
    took: dict[tuple[int, int], list[int]] = {}
    counts: Counter = Counter()
    inside: list[Interval] = []
    for (a, b), which in zip(notes.intervals, notes.which, strict=True):
        if which[0] == COPY or a >= end or b <= start:
            continue
        took.setdefault(which, []).append(b - a)
        counts[which] += (min(b, end) - max(a, start)) / (b - a) if b > a else 1.0
        inside.append((a, b))
    known = reference or {}
    total = sum(counts[which] * min(usual(took[which]), known.get(which, float("inf"))) for which in took)
    pauses_ = within(union(inside, PAUSE), start, end) - within(union(inside), start, end)
    return total * (apart(inside, start, end) if alone is None else alone) + pauses_


@dataclass(frozen=True)
class Sum:
    """What `busy_sum` says of a window: shares of it in per cent."""

    gpu: float  # GPU time
    raw: float  # the union of all records, with pauses
    bare: float  # and without
    copies: float
    rate: float  # records that ended, per second
    kinds: int


@dataclass(frozen=True)
class Reference:
    """A run of a program alone."""

    paths: tuple[Path, ...]
    start: int
    end: int


def sums(tool: str, paths: list[Path], windows: list[Interval], reference: Reference | None = None) -> list[Sum]:
    """What is in the files of a container's processes, for each window."""
    lines = [f"file {path}" for path in paths]
    if reference:
        lines += [f"reference {path} {reference.start} {reference.end}" for path in reference.paths]
    lines += [f"window {start} {end}" for start, end in windows]
    text = "\n".join(lines) + "\n"
    done = subprocess.run([tool], input=text, capture_output=True, text=True, check=True, timeout=300)
    return read_sums(done.stdout, windows)


def read_sums(told: str, windows: list[Interval]) -> list[Sum]:
    found = []
    for line in told.splitlines():
        word, *numbers = line.split()
        if word != "window":
            raise Broken(" ".join(numbers))
        start, end = windows[len(found)]
        gpu, raw, bare, copies, ended, kinds = (float(number) for number in numbers)
        share = 100 / (end - start)
        found.append(Sum(gpu * share, raw * share, bare * share, copies * share, ended * SECOND / (end - start), int(kinds)))
    if len(found) != len(windows):
        raise Broken(f"{len(found)} of {len(windows)} windows were added up")
    return found


def pauses(intervals: list[Interval], start: int, end: int) -> dict[str, int]:
    """How many pauses between records are how long: for whoever doubts `PAUSE`."""
    bounds = [(us * 1_000, f"<{us}us") for us in (1, 2, 5, 10, 20, 100)]
    found: Counter = Counter()
    inside = union([(a, b) for a, b in intervals if start <= a and b <= end])
    for (_, stop), (begin, _) in zip(inside, inside[1:], strict=False):
        found[next((name for bound, name in bounds if begin - stop < bound), ">=100us")] += 1
    return dict(found)


def rates(notes: Notes, start: int, end: int, step: int) -> list[float]:
    """Records that ended, per second, in one step after the other."""
    ends = sorted(stop for _, stop in notes.intervals)
    edges = range(start, end + 1, step)
    counts = [bisect.bisect_right(ends, edge) for edge in edges]
    return [(b - a) * SECOND / step for a, b in zip(counts, counts[1:], strict=False)]
