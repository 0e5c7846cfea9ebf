"""Tests of what measures and judges shares of GPU time, with made-up figures, files and programs, and without a GPU."""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from unittest import mock

from gpu import compute
from gpu.bench import Bench
from gpu.compute import account, alone, beside, busy, container, cores, cost, host, loads, mixes, plot, region, table, witness
from gpu.compute.busy import SECOND
from gpu.machine import Machine
from gpu.report import Outcome

US, MS = 1_000, 1_000_000
GOOD = alone.Cell(limit=25, share=25.2, solo_share=100, throughput=25.3, seconds=[24.1, 25.9, 29.9])

# A program that is what share_load.c is, with work that it makes up: a millisecond in every four.
PRETENDER = """
import os, struct, sys, time
print("loaded", flush=True); sys.stdin.readline()
print("ready", flush=True); _, start, until = sys.stdin.readline().split()
start, until = int(start), int(until)
time.sleep(max(0, (until - time.monotonic_ns()) / 1e9))
works = range(start, until, 4_000_000)
records = b"".join(struct.pack("<QQQQ", at - 500, at + 999_500, 1, 1) for at in works)  # its clock is 500 ns behind
head = struct.pack("<8sIIQQQQQQ", b"busy   2", os.getpid(), 0, 0, 500, 10**9, 10**9 + 500, len(works), 0)
open(f"{os.environ['BUSY_DIR']}/{os.getpid()}.own.busy", "wb").write(head + records)
print("took_us", f"{start}:1.0", f"{until - 160_000_000}:2.5")
print("done", len(works), start, until, flush=True)
"""


class Pretending(loads.Load):
    """A load of the above."""

    def command(self, bench: Bench) -> list[str]:
        return [sys.executable, "-c", PRETENDER]


def options(**given: object) -> argparse.Namespace:
    nothing = ("window", "warmup", "quick", "mixes", "settings", "busy", "budget", "no_pin", "rounds", "soak")
    return argparse.Namespace(**{**dict.fromkeys(nothing), **given})


def file_of(records: list[tuple[int, int]], trouble: int = 0, count: int | None = None, late: int = 10**9) -> bytes:
    head = (busy.MAGIC, 7, trouble, 100, 1100, 100 + late, 1100 + 10**9, len(records) if count is None else count, 0)
    return busy.HEAD.pack(*head) + b"".join(busy.RECORD.pack(a, b, 1, 1) for a, b in records)


def bench_in(place: str, name: str = "x") -> Bench:
    return Bench(name, Path(place, "lib.so"), Machine(), Path(place), Path(place, "x.log"))


class Files(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)

    def read(self, data: bytes) -> busy.Notes:
        path = self.place / "7.own.busy"
        path.write_bytes(data)
        return busy.read(path)

    def test_layout_is_the_c_programs(self) -> None:
        self.assertEqual((busy.HEAD.size, busy.RECORD.size), (64, 32))

    def test_records_come_onto_the_hosts_clock(self) -> None:
        notes = self.read(file_of([(100, 200), (500, 600)]))
        self.assertEqual((notes.intervals, notes.kinds), ([(1100, 1200), (1500, 1600)], {"kernel": 2}))

    def test_what_is_broken_is_not_read(self) -> None:
        whole = file_of([(100, 200)])
        for data in (
            b"",
            b"another " + whole[8:],
            whole[:-1],
            file_of([(100, 200)], trouble=1),
            file_of([(100, 200)], trouble=0xFFFFFFFF),
            file_of([(100, 200)], count=2),
            file_of([(200, 100)]),
            file_of([(100, 200)], late=2 * 10**9),
        ):
            with self.assertRaises(busy.Broken):
                self.read(data)

    def test_every_process_must_have_been_seen(self) -> None:
        (self.place / "7.own.busy").write_bytes(file_of([(100, 200)]))
        (self.place / "7.cupti.busy").write_bytes(file_of([(100, 200)]))
        self.assertEqual(len(busy.read_all(self.place, "own", 1).intervals), 1)
        with self.assertRaises(busy.Broken):
            busy.read_all(self.place, "own", 2)
        (self.place / "8.own.busy").write_bytes(file_of([]))
        (self.place / "7.own.busy").write_bytes(file_of([]))
        with self.assertRaises(busy.Broken):
            busy.read_all(self.place, "own", 2)


class Adding(unittest.TestCase):
    def test_streams_count_once(self) -> None:
        self.assertEqual(busy.union([(0, 10), (5, 15), (20, 30), (21, 22)]), [(0, 15), (20, 30)])

    def test_short_pauses_are_busy_and_waits_are_not(self) -> None:
        notes = busy.Notes([(0, 50 * US), (51 * US, 100 * US), (110 * US, 200 * US)])
        window = busy.measure(notes, 0, 200 * US)
        self.assertAlmostEqual(window.share, 95.0)
        self.assertAlmostEqual(window.bare_share, 94.5)

    def test_windows_cut_what_crosses_their_edges(self) -> None:
        merged = [(0, 10), (20, 40), (60, 100)]
        self.assertEqual(busy.within(merged, 5, 70), 5 + 20 + 10)
        self.assertEqual(busy.within(merged, 25, 35), 10)
        self.assertEqual((busy.within(merged, 41, 59), busy.within([], 0, 9)), (0, 0))

    def test_seconds_rates_and_the_worst(self) -> None:
        quarter = [(at, at + MS) for at in range(0, SECOND, 4 * MS)]
        half = [(at, at + 2 * MS) for at in range(SECOND, 2 * SECOND, 4 * MS)]
        window = busy.measure(busy.Notes(quarter + half), 0, 2 * SECOND)
        self.assertEqual([round(second, 3) for second in window.seconds], [25.0, 50.0])
        self.assertAlmostEqual(window.share, 37.5)
        self.assertAlmostEqual(window.rate, 250.0)
        self.assertAlmostEqual(window.furthest(30), 20.0)
        self.assertEqual(busy.rates(busy.Notes(quarter), 0, SECOND, SECOND // 2), [250.0, 250.0])

    def test_pauses_are_told_by_length(self) -> None:
        found = busy.pauses([(0, 10 * US), (11 * US + 500, 20 * US), (40 * US, 41 * US)], 0, MS)
        self.assertEqual(found, {"<2us": 1, "<100us": 1})


class Limits(unittest.TestCase):
    def test_nothing_wrong_is_nothing_wrong(self) -> None:
        self.assertEqual(alone.judge(GOOD), [])

    def test_each_fault_is_found(self) -> None:
        for fault in (
            {"share": 26.1},
            {"share": 23.9},
            {"seconds": [25.0, 30.1]},
            {"seconds": [19.9, 25.0]},
            {"throughput": 23.9},
            {"throughput": 26.1},
        ):
            self.assertEqual(len(alone.judge(replace(GOOD, **fault))), 1, fault)

    def test_heat_excuses_more_work_and_not_less(self) -> None:
        self.assertEqual(alone.judge(replace(GOOD, throughput=30, power_bound=True)), [])
        self.assertTrue(alone.judge(replace(GOOD, throughput=20, power_bound=True)))

    def test_a_program_that_pauses_by_itself_does_more_in_its_time(self) -> None:
        pausing = replace(GOOD, limit=75, share=75, seconds=[75], solo_share=93)
        self.assertEqual(alone.judge(replace(pausing, throughput=80.6)), [])
        self.assertTrue(alone.judge(replace(pausing, throughput=82)))
        cannot_use_it = replace(pausing, limit=90, share=80, seconds=[80], solo_share=80, throughput=99.5)
        self.assertEqual(alone.judge(cannot_use_it), [])
        self.assertTrue(alone.judge(replace(cannot_use_it, throughput=85)))

    def test_a_limit_of_everything_is_about_speed(self) -> None:
        free = replace(GOOD, limit=100, share=97, seconds=[80.0], throughput=99.1)
        self.assertEqual(alone.judge(free), [])
        self.assertTrue(alone.judge(replace(free, throughput=98.9)))

    def test_all_cells_are_there(self) -> None:
        self.assertEqual(len(alone.CELLS), 12 * 7)
        self.assertEqual({limit for _, limit in alone.CELLS.values()}, {5, 10, 25, 50, 75, 90, 100})

    def test_the_plan_has_each_solo_once_and_in_time(self) -> None:
        keys = alone.keys(["alone-processes-25", "alone-kernels-500us-25", "alone-gemm-5", "launch-cost-unthrottled"])
        labels = [key.label for key in keys]
        expected = ["kernels-500us-solo", "processes-25", "kernels-500us-25", "gemm-solo", "gemm-5"]
        self.assertEqual(labels, expected)


class Others(unittest.TestCase):
    def test_shares(self) -> None:
        self.assertEqual(beside.judge_shares([25, 75], [24.1, 75.9]), [])
        self.assertEqual(len(beside.judge_shares([25, 75], [26.1, 74.5])), 1)
        self.assertEqual(len(beside.judge_shares([25, 75], [24.1, 73.8])), 2)
        self.assertEqual(len(beside.judge_shares([12.5] * 8, [12.2] * 8)), 1)

    def test_phases(self) -> None:
        start, middle, late, end = (second * SECOND for second in (0, 2, 4, 6))
        change = int(beside.CHANGE * SECOND)
        all_of_it = [(at, at + MS) for at in range(start, middle, MS)]
        slow = range(middle + change, late + MS, 4 * MS)
        notes = busy.Notes(all_of_it + [(at, at + MS) for at in slow] + [(at, at + MS) for at in range(late, end, MS)])
        phases = beside.by_phase(notes, busy.Notes([(middle, middle + MS), (late - MS, late)]), start, end, 1000.0)
        self.assertAlmostEqual(phases["before"], 100, delta=0.5)
        self.assertAlmostEqual(phases["beside"], 25, delta=0.5)
        self.assertAlmostEqual(phases["after"], 100, delta=0.5)
        self.assertEqual(beside.judge_phases(phases, 25), [])
        for fault in ({"before": 97.9}, {"after": 97.9}, {"beside": 23.9}, {"beside": 26.1}):
            self.assertEqual(len(beside.judge_phases({**phases, **fault}, 25)), 1, fault)

    def test_turn(self) -> None:
        visitor = busy.Notes([(5 * MS, 6 * MS), (20 * MS, 30 * MS)])
        stayer = [(at, at + MS) for at in range(0, 18 * MS, 2 * MS)]  # it ends at 17 ms
        self.assertIsNone(beside.until_a_turn(busy.Notes(stayer), visitor), "nobody knows whether it would go on")
        self.assertIsNone(beside.until_a_turn(busy.Notes([*stayer, (26 * MS, 27 * MS)]), visitor), "too short")
        self.assertEqual(beside.until_a_turn(busy.Notes([*stayer, (27 * MS, 28 * MS)]), visitor), 12)
        before = busy.Notes([(-20 * MS, -19 * MS), (0, MS), (12 * MS, 13 * MS)])
        self.assertEqual(beside.until_a_turn(before, visitor), 0, "it had paused already, but not before")
        self.assertEqual([len(beside.judge_turn(turn)) for turn in (None, 0, 200, 201)], [1, 0, 0, 1])

    def test_latency(self) -> None:
        alone_, good = {"p50_us": 2600, "p99_us": 2700}, {"p50_us": 3100, "p99_us": 3700, "neighbour": 85.0}
        self.assertEqual(beside.judge_latency(alone_, good, 87), [])
        for fault in ({"p50_us": 3130}, {"p99_us": 3790}, {"neighbour": 84.0}):
            self.assertEqual(len(beside.judge_latency(alone_, {**good, **fault}, 87)), 1, fault)

    def test_changes(self) -> None:
        filled = [(at, at + MS) for at in range(0, 10 * MS, MS)] + [(13 * MS, 14 * MS), (14 * MS, 15 * MS)]
        request = [(10 * MS + 140 * US + at * US, 10 * MS + 240 * US + at * US) for at in range(0, 2000, 100)]
        told = beside.changes(request, filled)
        times = {"to_it": 140.0, "for_it": 2000.0, "back": 860.0}
        self.assertEqual(told, {f"{name}{which}": it for name, it in times.items() for which in ("_us", "_p99_us")})
        self.assertEqual(beside.changes(request[:-1], filled), {}, "not a whole request")
        self.assertEqual(beside.changes(request, []), {}, "there is no neighbour")

    def test_host(self) -> None:
        told = host.parse("late 9000 55 80 400 1200\n")
        self.assertEqual([told[name] for name in ("sleeps", "p99_us", "most_us")], [9000, 80, 1200])
        with self.assertRaises(RuntimeError):
            host.parse("late 1 2 3\n")

    def test_launch_bound(self) -> None:
        self.assertEqual(beside.judge_launch_bound([1.1, 1.29], [1.0]), [])
        self.assertTrue(beside.judge_launch_bound([1.0, 1.31], [1.2, 1.27]))

    def test_launches(self) -> None:
        good = {"driver_ns": 3400.0, "hooked_ns": 3490.0, "ratio": 3490 / 3400}
        self.assertEqual(cost.judge(good), [])
        self.assertEqual(len(cost.judge({**good, "hooked_ns": 3501.0})), 1)
        self.assertEqual(len(cost.judge({"driver_ns": 2900.0, "hooked_ns": 2990.0, "ratio": 2990 / 2900})), 1)
        self.assertEqual(cost.PROCESSES * cost.KERNELS, 1_000_000)

    def test_what_a_call_takes_more(self) -> None:
        pairs = {"bare": {"ioctl": [(100.0, 99.0), (101.0, 101.0)]}, "sliced": {"ioctl": [(120.0, 109.0), (90.0, 81.0)] * 2}}
        told = cost.added(pairs, "ioctl")
        expected = {"bare_ns": 100.5, "sliced_ns": 105.0, "added_ns": 10.0, "noise_ns": 0.5, "more_than_bare_ns": 4.5}
        self.assertEqual(told, expected)
        self.assertEqual((cost.judge_added("it", told, 10), len(cost.judge_added("it", told, 9.9))), ([], 1))

    def test_witnesses(self) -> None:
        own = busy.measure(busy.Notes([(at, at + MS) for at in range(0, SECOND, 2 * MS)]), 0, SECOND)
        self.assertEqual(witness.judge_clocks(own, replace(own, share=own.share + 0.4)), [])
        self.assertTrue(witness.judge_clocks(own, replace(own, share=own.share + 0.6)))
        self.assertTrue(witness.judge_clocks(own, replace(own, rate=own.rate * 0.99)))
        self.assertEqual((witness.judge_cost(100, 97.5), len(witness.judge_cost(100, 96.5))), ([], 1))


class Programs(unittest.TestCase):
    def test_a_container_is_brought_through_its_window(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            bench = bench_in(place)
            bench.machine.environment.pop(container.SIMULATED, None)
            times, container.TIMES.warmup = container.TIMES.warmup, 0.1
            try:
                crew = container.Crew(bench, "pretender", Pretending("p", "about", ("deep",), processes=2), {})
                got = container.alone(crew, 1.0)
            finally:
                container.TIMES.warmup = times
            self.assertAlmostEqual(got.window.share, 25, delta=0.2)
            self.assertAlmostEqual(got.rate, 500, delta=4)
            self.assertEqual(got.window.kinds, {"kernel": got.units})
            self.assertEqual(got.took_us, [2.5, 2.5])  # the first of each was before the window
            self.assertTrue(alone.same_work(got, got))
            self.assertFalse(alone.same_work(replace(got, units=got.units // 2), got))
            self.assertTrue(account.judge(got), "it is in no slice")
            self.assertEqual(account.judge(replace(got, account=got.window.share + 4)), [])
            self.assertTrue(account.judge(replace(got, account=got.window.share - 6)))

    def test_programs_load_when_they_are_needed_soon(self) -> None:
        stable, started = container.Stable(), []
        stable.order = alone.keys([name for name in alone.CELLS if "-processes-" in name or "-gemm-" in name])
        start = mock.patch.object(container.Key, "crew", lambda key, _: started.append(key.label))
        with tempfile.TemporaryDirectory() as place, start:
            while stable.order:
                soon = [key.label for key in stable.order[: stable.AHEAD]]
                before = len(started)
                stable.look_ahead(bench_in(place))
                self.assertLessEqual(set(started[before:]), set(soon))
                del stable.order[0]
        self.assertEqual(started, ["gemm-solo", *(f"gemm-{limit}" for limit in alone.LIMITS)])

    def test_the_account_is_read_from_the_region(self) -> None:
        of = region.layout()
        size = (of["number.processes_at"][0] - of["number.containers_at"][0]) // of["number.containers"][0]
        for state, seen in ((of["number.container_live"][0], 77 * SECOND), (of["number.container_free"][0], 0)):
            data = bytearray(of["number.size"][0])
            at = of["number.containers_at"][0] + 3 * size
            struct.pack_into("<II", data, at + of["container.state"][0], state, 8)
            data[at + of["container.name"][0] : at + of["container.name"][0] + 8] = b"gpu/free"
            struct.pack_into("<Q", data, at + of["container.compute"][0] + 8 * region.GPU_TIME, 77 * SECOND)
            with tempfile.TemporaryDirectory() as place:
                Path(place, "gpu.region").write_bytes(data)
                self.assertEqual(region.gpu_time_of(Path(place), "gpu/free"), seen)
                self.assertEqual(region.gpu_time_of(Path(place), "gpu/fre"), 0)

    def test_quick_and_windows(self) -> None:
        before, before_mixes = replace(container.TIMES), replace(mixes.TIMES)
        try:
            compute.plan(options(quick=True), [])
            self.assertEqual(container.TIMES.window, compute.QUICK_WINDOW)
            compute.plan(options(window=20.0, warmup=1.0, quick=True), [])
            self.assertEqual((container.TIMES.window, container.TIMES.solo, container.TIMES.warmup), (20.0, 20.0, 1.0))
        finally:
            vars(container.TIMES).update(vars(before))
            vars(mixes.TIMES).update(vars(before_mixes))
            cores.PINS.begin(False)


class Showing(unittest.TestCase):
    def outcomes(self) -> list[Outcome]:
        def cell(load: str, limit: int, share: float, result: str) -> Outcome:
            figures = {"load": load, "limit": limit, "share": share, "throughput": share + 0.1, "furthest_second": 0.6}
            return Outcome("compute", f"alone-{load}-{limit}", "about", result, "", "", 1.0, "", figures)

        skipped = Outcome("compute", "alone-jax-25", "about", "skip", "no jax", "", 0.0, "")
        return [cell("gemm", 25, 24.9, "pass"), cell("gemm", 50, 58.0, "fail"), skipped]

    def test_the_matrix_marks_what_fails(self) -> None:
        text = table.matrix(self.outcomes())
        self.assertIn("24.9 ±0.6 / 25.0", text)
        self.assertIn("!58.0 ±0.6 / 58.1", text)
        self.assertNotIn("jax", text)
        self.assertEqual(table.matrix([]), "")

    def test_plots_are_svg(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            table.write_plots(self.outcomes(), Path(place))
            root = ElementTree.parse(Path(place, "compute-shares.svg")).getroot()
            circles = root.findall("{http://www.w3.org/2000/svg}circle")
            self.assertEqual(len(circles), 2)
            table.write_plots([], Path(place, "nowhere"))

    def test_axes_are_round(self) -> None:
        self.assertEqual(plot.ticks(0, 100), [0, 20, 40, 60, 80, 100])
        self.assertEqual(plot.ticks(0, 7.4), [0, 1, 2, 3, 4, 5, 6, 7])
