"""Which cores programs run on: a pair for each container of a mix, the same one whether it is bare, in a slice or alone.

A program that launches from Python is as fast as its core lets it; where the scheduler puts it is noise that would be taken
for what a slice costs. Pairs are the two threads of a core where it has two. Where there are too few for the largest mix, or
other programs keep cores busy, nobody is pinned.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MEMBERS = 8  # of the largest mix
TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"

Pair = frozenset[int]


def first_sibling(core: int) -> int:
    """The first of the threads that share a core with this one."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path(TOPOLOGY.format(core)).read_text().replace("-", ",").split(",")[0])
    return core


def pairs_of(cores: Sequence[int], least: int = MEMBERS) -> list[Pair]:
    """Threads of one core together. Fewer than enough are none."""
    order = sorted(cores, key=lambda core: (first_sibling(core), core))
    pairs = [frozenset(order[at : at + 2]) for at in range(0, len(order) - 1, 2)]
    return pairs if len(pairs) >= least else []


@dataclass
class Pins:
    """Pairs of cores for programs. Each has a home, by what it is and not by when it came."""

    pairs: list[Pair] = field(default_factory=list)
    homes: dict[tuple[str, int], int] = field(default_factory=dict)

    def begin(self, is_wanted: bool) -> None:
        self.pairs = pairs_of(sorted(os.sched_getaffinity(0))) if is_wanted else []
        self.homes.clear()

    def settle(self, together: Sequence[Sequence[tuple[str, int]]]) -> None:
        """Homes for those that have none yet: not with anybody whom it meets, if that can be."""
        for one in (one for some in together for one in some):
            if one in self.homes or not self.pairs:
                continue
            met = [other for some in together if one in some for other in some if other in self.homes]
            counts = [sum(self.homes[other] == pair for other in met) for pair in range(len(self.pairs))]
            crowds = [list(self.homes.values()).count(pair) for pair in range(len(self.pairs))]
            self.homes[one] = min(range(len(self.pairs)), key=lambda pair: (counts[pair], crowds[pair], pair))

    def home(self, one: tuple[str, int]) -> Pair | None:
        return self.pairs[self.homes[one]] if one in self.homes else None

    def places(self, members: Sequence[tuple[str, int]]) -> list[Pair] | None:
        """A pair for each of a mix: at home, and if somebody else is there, where nobody is."""
        if not self.pairs or len(members) > len(self.pairs) or not all(one in self.homes for one in members):
            return None
        taken: dict[int, int] = {}
        for number, one in enumerate(members):
            taken.setdefault(self.homes[one], number)
        free = iter([pair for pair in range(len(self.pairs)) if pair not in taken])
        where = {number: pair for pair, number in taken.items()}
        return [self.pairs[where[number] if number in where else next(free)] for number in range(len(members))]


PINS = Pins()


def pin(pid: int, pair: Pair) -> None:
    """All threads of a process; those that it makes later follow them."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError, ValueError):
            os.sched_setaffinity(int(task.name), pair)
