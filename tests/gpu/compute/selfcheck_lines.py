"""Tests of the mixes: their bars with made-up figures, the robust witness with made-up files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from dataclasses import replace
from pathlib import Path

from gpu import build
from gpu.bench import Run, Skip
from gpu.compute import bars, busy, container, lines, loads, mixes, node, whole
from gpu.compute.busy import SECOND
from gpu.compute.selfcheck import bench_in

US, MS = 1_000, 1_000_000
KERNEL, COPY, GRAPH = 1, 2, 4

def file_of(records: list[tuple[int, int, int, int]]) -> bytes:
    head = (busy.MAGIC, 7, 0, 0, 1000, 10**9, 10**9 + 1000, len(records), 0)
    return busy.HEAD.pack(*head) + b"".join(busy.RECORD.pack(*record) for record in records)


class Witness(unittest.TestCase):
    """What `gpu_time` says of files, and that `busy_sum` says the same."""

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.tool = self.place / "busy_sum"
        compiler = shutil.which("gcc") or shutil.which("cc")
        if not compiler:
            self.skipTest("no C compiler")
        source = build.PROGRAMS / "busy_sum.c"
        subprocess.run([compiler, "-std=gnu11", "-Wall", "-Werror", "-o", self.tool, source], check=True)

    def time_of(
        self,
        records: list[tuple[int, int, int, int]],
        start: int,
        end: int,
        alone: list[tuple[int, int, int, int]] | None = None,
    ) -> float:
        path, other = self.place / "1.own.busy", self.place / "2.own.busy"
        path.write_bytes(file_of(records))
        reference, known, apart = None, None, None
        if alone is not None:
            other.write_bytes(file_of(alone))
            reference = busy.Reference((other,), 0, 10 * SECOND)
            took: dict[tuple[int, int], list[int]] = {}
            for a, b, kind, which in alone:
                took.setdefault((kind, which), []).append(b - a)
            known = {which: busy.usual(it) for which, it in took.items() if len(it) >= busy.FEW}
            apart = busy.apart(busy.read(other).intervals, 0, 10 * SECOND)
        by_python = busy.gpu_time(busy.read(path), start, end, known, apart)
        by_c = busy.sums(str(self.tool), [path], [(start, end)], reference)[0]
        self.assertAlmostEqual(by_c.gpu * (end - start) / 100, by_python, delta=2.0)
        measured = busy.measure(busy.read(path), start, end)
        self.assertAlmostEqual(by_c.raw, measured.share, places=3)
        self.assertAlmostEqual(by_c.bare, measured.bare_share, places=3)
        self.assertAlmostEqual(by_c.rate, measured.rate, places=3)
        return by_python

    def test_interrupted_kernels_count_as_the_others(self) -> None:
        records = [(at, at + (100 if at % (4 * MS) else 900) * US, KERNEL, 1) for at in range(0, 40 * MS, MS)]
        self.assertAlmostEqual(self.time_of(records, 0, SECOND), 40 * 100 * US, delta=10)

    def test_kernels_interrupted_where_they_overlap_count_once(self) -> None:
        # The second begins 10 us before the first ends; every fifth pair is interrupted just then.
        alone, beside = [], []
        for number, at in enumerate(range(0, 100 * MS, 5 * MS)):
            more = 2 * MS if number % 5 == 0 else 0
            alone += [(at, at + 100 * US, KERNEL, 1), (at + 90 * US, at + 190 * US, KERNEL, 2)]
            beside += [(at, at + 100 * US + more, KERNEL, 1), (at + 90 * US, at + 190 * US + more, KERNEL, 2)]
        expected = 20 * 190 * US
        self.assertAlmostEqual(self.time_of(beside, 0, SECOND, alone), expected, delta=100)

    def test_kinds_count_by_themselves_and_few_by_their_median(self) -> None:
        records = [(at, at + 100 * US, KERNEL, 1) for at in range(0, 10 * MS, MS)]
        records += [(at + 200 * US, at + 300 * US + at // 10, KERNEL, 2) for at in range(0, 3 * MS, MS)]
        expected = 10 * 100 * US + 3 * 200 * US
        self.assertAlmostEqual(self.time_of(records, 0, SECOND), expected, delta=10)

    def test_the_same_number_of_a_graph_is_another_kind(self) -> None:
        records = [(at, at + 100 * US, KERNEL, 1) for at in range(0, 10 * MS, MS)]
        records += [(at + 300 * US, at + 600 * US, GRAPH, 1) for at in range(0, 10 * MS, MS)]
        self.assertAlmostEqual(self.time_of(records, 0, SECOND), 10 * 400 * US, delta=10)

    def test_pauses_count_up_to_5_us_and_copies_do_not(self) -> None:
        records = [(0, 100 * US, KERNEL, 1), (104 * US, 204 * US, KERNEL, 1), (214 * US, 314 * US, KERNEL, 1)]
        records += [(400 * US, 500 * US, COPY, 9)]
        self.assertAlmostEqual(self.time_of(records, 0, SECOND), 304 * US, delta=10)

    def test_what_overlaps_counts_once(self) -> None:
        records = [(at, at + MS, KERNEL, 1) for at in range(0, 10 * MS, MS)] * 2
        self.assertAlmostEqual(self.time_of(records, 0, SECOND), 10 * MS, delta=10)

    def test_windows_cut_records(self) -> None:
        records = [(at, at + MS, KERNEL, 1) for at in range(0, 10 * MS, MS)]
        self.assertAlmostEqual(self.time_of(records, MS // 2 + 1000, 3 * MS + 1000), 2.5 * MS, delta=10)

    def test_long_kernels_are_known_from_a_run_alone(self) -> None:
        alone = [(at, at + 5 * MS, KERNEL, 1) for at in range(0, 50 * MS, 5 * MS)]
        interrupted = [(at, at + 10 * MS, KERNEL, 1) for at in range(0, 100 * MS, 10 * MS)]
        self.assertAlmostEqual(self.time_of(interrupted, 0, SECOND), 100 * MS, delta=10)
        self.assertAlmostEqual(self.time_of(interrupted, 0, SECOND, alone), 50 * MS, delta=10)

    def test_nothing_is_nothing_and_broken_is_said(self) -> None:
        self.assertEqual(self.time_of([], 0, SECOND), 0.0)
        broken = self.place / "3.own.busy"
        for data in (b"", file_of([(0, 1, 1, 1)])[:-1], file_of([(2, 1, 1, 1)])):
            broken.write_bytes(data)
            with self.assertRaises(busy.Broken):
                busy.sums(str(self.tool), [broken], [(0, SECOND)])
        with self.assertRaises(busy.Broken):
            busy.read_sums("", [(0, 1)])


class Bars(unittest.TestCase):
    GOOD = (
        bars.Entry("decode", 50, 24, 84, 20, 92, 22.6),
        bars.Entry("gemm", 50, 98, 70, 68, 75, 74),
    )

    def test_fair_shares(self) -> None:
        for shares, wanted in (
            (bars.fair([50, 50], [24, 98]), [24, 76]),
            (bars.fair([25, 75], [98, 98]), [25, 75]),
            (bars.fair([30, 10, 20], [10, 20, 100], 90), [10, 20, 60]),
            (bars.fair([12.5] * 4, [5, 5, 5, 5]), [5] * 4),
        ):
            for share, it in zip(shares, wanted, strict=True):
                self.assertAlmostEqual(share, it)

    def test_mixes(self) -> None:
        self.assertEqual(bars.mixed(self.GOOD), [])
        decode, gemm = self.GOOD
        self.assertEqual(len(bars.mixed((replace(decode, speed=80), gemm))), 1, "slower than by plain time slicing")
        greedy = (replace(decode, speed=84, gpu=18), replace(gemm, gpu=79))
        self.assertEqual(len(bars.mixed(greedy)), 1, "one is short, and the other has more than its share")
        quicker = (replace(decode, speed=99.5, gpu=20), replace(gemm, gpu=79, speed=79))
        self.assertEqual(bars.mixed(quicker), [], "its kernels take less than alone, and it does all that it can")
        self.assertEqual(len(bars.mixed((decode, replace(gemm, gpu=60, speed=69)))), 1, "time is lost")
        self.assertEqual(bars.mixed((replace(decode, speed=80), gemm), slack=3), [])
        self.assertEqual(bars.not_below_plain(self.GOOD, 3), [])
        self.assertEqual(len(bars.not_below_plain((replace(decode, speed=80), gemm), 3)), 1)

    def test_shares(self) -> None:
        self.assertEqual(bars.shares([25, 75], [24.2, 74.1]), [])
        self.assertEqual(len(bars.shares([25, 75], [26.1, 73.9])), 2)
        self.assertEqual(len(bars.shares([25, 75], [24.1, 73.8])), 2)
        self.assertEqual((bars.halves([48.6, 50]), len(bars.halves([48.4, 50]))), ([], 1))
        self.assertEqual(bars.phases(24.5, [98.5, 99]), [])
        self.assertEqual(len(bars.phases(26.5, [98.5, 97])), 2)

    def test_limits(self) -> None:
        self.assertEqual(bars.limit(25, 24, 23.9, 97.5), [])
        self.assertEqual(bars.limit(25, 50, 25.9, 47.5), [])
        self.assertEqual(len(bars.limit(25, 50, 26.1, 46.5)), 2)
        self.assertEqual(len(bars.limit(90, 17, 17, 96)), 1)
        self.assertEqual((bars.empty(88.1), len(bars.empty(87.9))), ([], 1))

    def test_latency(self) -> None:
        alone = [1000.0] * 99 + [1200.0]
        got = bars.slowed([it * 1.1 for it in alone], alone)
        self.assertAlmostEqual(got.p50, 1.1)
        self.assertEqual((bars.quick(got, 1.12, 1.2), len(bars.quick(got, 1.05, 1.05))), ([], 2))
        self.assertEqual((bars.keeps(84.5, 13), len(bars.keeps(84.3, 13))), ([], 1))
        plain = bars.Latency(1.05, 1.3)
        self.assertEqual((bars.no_worse(bars.Latency(1.05, 1.2), plain), len(bars.no_worse(got, plain))), ([], 1))
        self.assertEqual((bars.sum_near_plain([20, 20], [22, 22]), len(bars.sum_near_plain([20, 18], [22, 22]))), ([], 1))
        self.assertEqual((bars.each_near_plain([20], [24]), len(bars.each_near_plain([20], [26]))), ([], 1))

    def test_the_rest(self) -> None:
        self.assertEqual((bars.alike([70, 72], [71, 72]), len(bars.alike([68, 72], [71, 72]))), ([], 2))
        self.assertEqual((bars.free(99.6), len(bars.free(99.4))), ([], 1))
        self.assertEqual((bars.account(50.9, 50, 500), len(bars.account(51.1, 50, 500))), ([], 1))
        self.assertEqual((bars.account(53.9, 50, 9), len(bars.account(45.9, 50, 9))), ([], 1))
        self.assertEqual(bars.account(1.9, 1, 9), [], "a point is always forgiven")
        self.assertEqual((bars.threads([4.9, 4.9], 0), len(bars.threads([5.1, 4.9], 0.3))), ([], 2))
        self.assertEqual((bars.threads([7.9] * 3, 0), len(bars.threads([8.1] * 3, 0))), ([], 3))


class Mixes(unittest.TestCase):
    def test_rates_between_marks(self) -> None:
        marks = [(0, 0), (SECOND, 100), (3 * SECOND, 500)]
        self.assertAlmostEqual(mixes.rate_in(marks, 0, 2 * SECOND), 150)
        self.assertAlmostEqual(mixes.rate_in(marks, SECOND, 3 * SECOND), 200)
        self.assertAlmostEqual(mixes.rate_in(marks, 2 * SECOND, 4 * SECOND), 100)
        with self.assertRaises(busy.Broken):
            mixes.rate_in([(0, 0)], 0, SECOND)

    def test_lines_are_what_the_table_asks_for(self) -> None:
        by_name = {it.name: it for it in lines.LINES}
        counts = {name: len(by_name[f"mix-{name}"].mixes) for name in ("pairs", "fours", "eights")}
        self.assertEqual(counts, {"pairs": 15, "fours": 20, "eights": 3})
        self.assertEqual({len(it.members) for it in by_name["mix-fours"].mixes}, {4})
        self.assertEqual(len(by_name["limit-decode"].mixes), 5)
        names = [mix.name for line in lines.MIXED for mix in line.mixes]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreater(by_name["serve-gemm"].mixes[0].window, 10)
        windows = [it.mixes[0].window for it in lines.SHARES]
        self.assertEqual((min(windows), by_name["share-comes-and-goes"].mixes[0].window), (6.0, 12.0))
        lines.plan(["mix-fours", "limit-mlp"])
        self.assertEqual([it.name for it in lines.planned], ["mix-fours", "limit-mlp"])
        lines.plan([])

    def test_rounds_are_averaged(self) -> None:
        account = mixes.Account(25.5, 25.0, 500.0)
        one = mixes.Found(90.0, 20.0, 50.0, 22.0, [1.0, 2.0], [(90.0, 20.0), (80.0, 10.0)], 1.0, None, (account,))
        other = replace(one, speed=110.0, gpu=30.0, took_us=[9.0], cuts=[(70.0, 10.0), (80.0, 20.0)], thread=3.0)
        both = mixes.mean([one, other])
        self.assertEqual((both.speed, both.gpu, both.u, both.raw, both.thread), (100.0, 25.0, 50.0, 22.0, 2.0))
        self.assertEqual((both.took_us, both.cuts), ([1.0, 2.0, 9.0], [(80.0, 15.0), (80.0, 15.0)]))
        self.assertAlmostEqual(both.apart, 20.0)
        self.assertEqual(both.accounts, (account, account))
        self.assertEqual(mixes.mean([one]), one)

    def test_accounts_are_judged_window_by_window(self) -> None:
        good = mixes.Account(25.5, 25.0, 500.0)
        mix = lines.SHARES[0].mixes[0]
        found = [mixes.Found(25.0, 25.0, 100.0, accounts=(good, good)) for _ in mix.members]
        with tempfile.TemporaryDirectory() as place:
            try:
                for bad, problems in ((), 0), ((replace(good, account=23.9),), 1):
                    both = [found[0], replace(found[1], accounts=(good, *bad))]
                    lines.results["x"] = [mixes.Result(mix, {"ration": both})]
                    bench = bench_in(place)
                    whole.run_accounts(bench)
                    self.assertEqual(len(bench.problems), problems)
                    self.assertEqual((len(bench.figures["rows"]), "windows" in bench.headline), (3 + problems, True))
                lines.results["x"] = [mixes.Result(mix, {"ration": [replace(found[0], accounts=())] * 2})]
                with self.assertRaises(Skip):
                    whole.run_accounts(bench_in(place))
            finally:
                lines.results.clear()

    def test_free_is_over_the_bare_process_beside_it(self) -> None:
        mix = lines.UNHELD[0].mixes[0]
        bare = mixes.Found(98.0, 50.0, 50.0, apart=1.0)
        for speed, problems in ((97.6, 0), (97.4, 1)):
            result = mixes.Result(mix, {"plain": [bare], "ration": [replace(bare, speed=speed)]})
            self.assertEqual(len(lines.judge_free(None, result)[0]), problems)

    def test_every_line_can_be_judged_and_told(self) -> None:
        alone = mixes.Alone(100.0, 60.0, 61.0, [1000.0] * 50, busy.Reference((), 0, 1))
        with tempfile.TemporaryDirectory() as place:
            try:
                for line in lines.LINES:
                    mixes.solos.update({it.load.name: alone for mix in line.mixes for it in mix.members})
                    lines.results[line.name] = found = []
                    for mix in line.mixes:
                        got = [
                            mixes.Found(50.0, 12.0, 60.0, 13.0, [1000.0] * 50, [(99.0, 25.0)] * len(mix.cuts), 1.0)
                            for _ in mix.members
                        ]
                        found.append(mixes.Result(mix, {way: got for way in mix.ways}))
                    found += [mixes.Result(mix, broken="gone") for mix in line.mixes[:1]]
                    found += [mixes.Result(mix, skipped=True) for mix in line.mixes[:1]]
                    bench = bench_in(place, line.name)
                    bench.machine.environment.pop(container.SIMULATED, None)
                    lines.run_line(bench, line)
                    self.assertTrue(bench.headline)
                    self.assertIn("gone", " ".join(bench.problems))
                    self.assertEqual({len(row) for row in bench.figures["rows"]}, {len(bench.figures["columns"])})
                bench = bench_in(place, "threads")
                whole.run_threads(bench)
                self.assertEqual((bench.problems, "two 1.00%" in bench.headline), ([], True))
            finally:
                mixes.solos.clear()
                lines.results.clear()


class Scripts(unittest.TestCase):
    """What the programs in Python share, without their frameworks."""

    def told(self, source: str, runs: int = 2) -> list[list[str]]:
        command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(loads.SCRIPTS)!r})\n{source}"]
        begin, text = time.monotonic_ns(), "\n"
        for number in range(1, runs + 1):
            text += f"run {begin + number * SECOND // 2} {begin + number * SECOND // 2 + 200 * MS}\n"
        done = subprocess.run(command, input=text + "quit\n", capture_output=True, text=True, timeout=30, check=True)
        return [line.split() for line in done.stdout.splitlines()]

    def test_a_step_is_repeated_run_after_run(self) -> None:
        source = "import share_common, time\nshare_common.repeat(lambda: (lambda: time.sleep(.002), lambda: lambda: None, 2))"
        lines_ = self.told(source)
        self.assertEqual([words[0] for words in lines_], ["loaded", "ready", *("host", "marks", "done") * 2])
        marks = [tuple(map(int, pair.split(":"))) for pair in lines_[3][1:]]
        units, began, ended = (int(word) for word in lines_[4][1:])
        self.assertEqual(len(lines_[2][1:]), len(marks) - 2, "the host's speed with each but the first and the last")
        self.assertEqual((marks[0], marks[-1]), ((began, 0), (ended, units)))
        self.assertGreater(len(marks), 5)
        self.assertTrue(10 < units <= 100, units)

    def test_requests_are_answered_in_their_time(self) -> None:
        source = "import share_common, time\nshare_common.serve(lambda: lambda: time.sleep(.001), 20_000_000)"
        lines_ = self.told(source)
        self.assertEqual([words[0] for words in lines_], ["loaded", "ready", *("took_us", "host", "marks", "done") * 2])
        took = [float(pair.split(":")[1]) for pair in lines_[2][1:]]
        self.assertTrue(5 <= len(took) <= 12 and min(took) > 900, took)


class Node(unittest.TestCase):
    def test_others_may_wait_twice_as_long(self) -> None:
        told = node.parse("alloc_us 100 50.0 96.0 300.0\ncontext_us 9 150000.0 200000.0 200000.0\n")
        self.assertEqual(told["alloc_us"]["p99"], 96.0)
        plain = {"alloc_p99_us": 96.0, "context_ms": 150.0, "smi_ms": 60.0}
        self.assertEqual(node.judge(plain, {"alloc_p99_us": 190.0, "context_ms": 299.0}), [])
        self.assertEqual(len(node.judge(plain, {name: 2.1 * it for name, it in plain.items()})), 3)

    def test_results_are_compared(self) -> None:
        bare = Run("bare", 0, "a\n", "", 1.0)
        self.assertEqual(node.judge_results(bare, replace(bare, label="sliced")), [])
        self.assertEqual(len(node.judge_results(bare, replace(bare, out="b\n"))), 1)
        self.assertEqual(len(node.judge_results(bare, replace(bare, status=-9))), 1)
