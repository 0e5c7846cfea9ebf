"""Tests of what judges the memory cases, with made-up figures: a row that is wrong in one way is found to be, by that way."""

from __future__ import annotations

import unittest
from collections.abc import Callable

from gpu.memory import frameworks, rows
from gpu.memory.rows import GIB, Row, Seen
from gpu.memory.witness import MIB

CAP = 4 * GIB
ROW = Row("vmm", "about")
READY, FULL = 520 * MIB, 4054 * MIB


def good() -> Seen:
    """A row in which nothing is wrong."""
    left = CAP - FULL
    return Seen(
        step=16 * MIB,
        got=FULL - READY,
        code=2,
        said={
            "info": [left, CAP],
            "total": [CAP],
            "nvml": [CAP, left, FULL],
            "nvml-v2": [CAP, left, FULL, 0],
            "nvml-processes": [1, FULL],
            "left": [CAP - READY, CAP],
        },
        then={"small": 0, "kernel": 0},
        held={"ready": READY, "full": FULL, "freed": READY},
        taken={"ready": READY, "full": FULL, "freed": READY},
        processes=1,
        highest=FULL,
    )


class Rows(unittest.TestCase):
    def judged(self, change: Callable[[Seen], object], row: Row = ROW) -> list[str]:
        seen = good()
        change(seen)
        return rows.judge(row, seen)

    def test_nothing_wrong_is_nothing_wrong(self) -> None:
        self.assertEqual(rows.judge(ROW, good()), [])

    def test_each_fault_is_found(self) -> None:
        def more(seen: Seen) -> None:
            seen.held["full"] = CAP + MIB

        faults: list[Callable[[Seen], object]] = [
            more,
            lambda seen: seen.held.update(full=FULL - 90 * MIB),
            lambda seen: setattr(seen, "code", None),
            lambda seen: setattr(seen, "code", -1),
            lambda seen: setattr(seen, "highest", CAP + 1),
            lambda seen: setattr(seen, "processes", 0),
            lambda seen: seen.then.update(small=2),
            lambda seen: seen.then.update(kernel=700),
            lambda seen: seen.then.update(closed=0),
            lambda seen: seen.said.update(info=[CAP - FULL, 143 * GIB]),
            lambda seen: seen.said.update(nvml=[143 * GIB, CAP - FULL, FULL]),
            lambda seen: seen.said.update(info=[CAP - FULL + 9 * MIB, CAP]),
            lambda seen: seen.said.update(left=[CAP - FULL, CAP]),
            lambda seen: seen.held.update(freed=READY + 100 * MIB),
        ]
        for number, fault in enumerate(faults):
            self.assertTrue(self.judged(fault), f"fault {number} is not found")

    def test_a_large_step_may_leave_its_own_size(self) -> None:
        def large(seen: Seen) -> None:
            seen.step = 518 * MIB
            seen.held["full"] = seen.highest = full = CAP - 500 * MIB
            seen.said.update(info=[CAP - full, CAP], nvml=[CAP, CAP - full, full])
            seen.said["nvml-v2"] = [CAP, CAP - full, full, 0]

        self.assertEqual(self.judged(large), [])

    def test_host_memory_must_not_count(self) -> None:
        def host(seen: Seen) -> None:
            seen.code = None
            seen.held["full"] = seen.highest = READY
            seen.said.update(info=[CAP - READY, CAP], nvml=[CAP, CAP - READY, READY])
            seen.said["nvml-v2"] = [CAP, CAP - READY, READY, 0]

        row = Row("host", "about", outcome="free")
        self.assertEqual(self.judged(host, row), [])
        self.assertTrue(self.judged(lambda seen: None, row))

    def test_lines_are_read(self) -> None:
        seen = Seen()
        seen.read(["step 5", "got 7", "got 8", "refused never", "info 1 2", "then small 0"])
        self.assertEqual((seen.step, seen.got, seen.code), (5, 15, None))
        self.assertEqual((seen.said, seen.then), ({"info": [1, 2]}, {"small": 0}))


class Frameworks(unittest.TestCase):
    TORCH = frameworks.FRAMEWORKS[0]
    SAID = {"total": str(frameworks.CAP), "oom": "OutOfMemoryError", "after": "right"}

    def test_faults_are_found(self) -> None:
        full = frameworks.CAP - 10 * MIB
        self.assertEqual(frameworks.judge(self.TORCH, self.SAID, full, full), [])
        for said in ({"total": "1"}, {"oom": None}, {"after": None}, {"after": "wrong"}):
            changed = {name: value for name, value in {**self.SAID, **said}.items() if value is not None}
            self.assertTrue(frameworks.judge(self.TORCH, changed, full, full), said)
        self.assertTrue(frameworks.judge(self.TORCH, self.SAID, full // 2, full))
        self.assertTrue(frameworks.judge(self.TORCH, self.SAID, full, frameworks.CAP + 1))

    def test_a_limit_that_is_a_part_of_the_cap(self) -> None:
        jax = next(it for it in frameworks.FRAMEWORKS if it.fraction)
        said = {**self.SAID, "limit": str(int(frameworks.CAP * jax.fraction))}
        full = int(frameworks.CAP * 0.9)
        self.assertEqual(frameworks.judge(jax, said, full, full), [])
        self.assertTrue(frameworks.judge(jax, {**said, "limit": str(100 << 30)}, full, full))
