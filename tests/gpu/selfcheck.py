"""Tests of the runner itself, with made-up files and without a GPU: can it tell equal from unequal, and say which?"""

from __future__ import annotations

import struct
import sys
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path

from gpu import counts, main, report
from gpu.bench import Bench, Case
from gpu.compute import selfcheck as compute_selfcheck
from gpu.compute import selfcheck_lines, selfcheck_pool
from gpu.hooks import cost, profilers, workloads
from gpu.machine import Machine
from gpu.memory import selfcheck as memory_selfcheck

TABLE = """# a comment
[linear] libcuda: Memory.
cuMemAlloc_v2\t3.2\tmemory\tforward
cuMemFree_v2\t3.2\t-\tforward

[launches] libcuda: Kernels.
cuLaunchKernel\t4.0\twork\tforward
cuLaunchNew\t13.4\twork\tforward

[modules] libcuda: Code.
cuModuleUnload\t2.0\t-\tforward

[nvml-memory] libnvidia-ml: Not the driver.
nvmlDeviceGetMemoryInfo\t11.8\t-\tforward
"""


def page(pid: int, names: dict[str, int], result: int = 0, slots: int = 16) -> bytes:
    """A file as cupti_count.c writes it. Names with no calls are known all the same."""
    data = counts.PAGE.pack(b"cupti  1", pid, slots, len(names), result, 26, 0)
    entries = [(0, b""), *((count, name.encode()) for name, count in names.items())]
    entries += [(0, b"")] * (slots - len(entries))
    return data + b"".join(counts.SLOT.pack(count, name) for count, name in entries)


class Files(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        (self.place / "hooks.tsv").write_text(TABLE)
        self.table = counts.read_table(self.place / "hooks.tsv")

    def compared(self, trace: str, *pages: bytes) -> counts.Comparison:
        (self.place / "trace").write_text(trace)
        for number, data in enumerate(pages):
            (self.place / f"{number}.counts").write_bytes(data)
        return counts.compare(self.table, counts.read_trace(self.place / "trace"), counts.read_pages(self.place))


class Counting(Files):
    KNOWN = {"cuMemAlloc_v2": 0, "cuMemFree_v2": 0, "cuLaunchKernel": 0, "cuModuleUnload": 0, "cuCtxGetDevice": 0}

    def test_table_has_the_drivers_rows_with_their_classes(self) -> None:
        self.assertEqual(self.table["cuMemFree_v2"], "linear")
        self.assertNotIn("nvmlDeviceGetMemoryInfo", self.table)

    def test_real_table_has_every_judged_class(self) -> None:
        self.assertLessEqual(set(counts.JUDGED), set(counts.read_table().values()))

    def test_equal_counts_are_equal_and_lines_add_up(self) -> None:
        trace = "# ration trace 1: pid 7 /bin/x\n7 cuMemAlloc_v2 2\n7 cuLaunchKernel 5\n7 cuMemAlloc_v2 1\n"
        found = self.compared(trace, page(7, {**self.KNOWN, "cuMemAlloc_v2": 3, "cuLaunchKernel": 5}))
        self.assertEqual((found.differences, found.others, found.problems), ([], [], []))
        self.assertEqual(found.judged_calls, 8)

    def test_a_call_that_went_round_the_library_shows(self) -> None:
        found = self.compared("7 cuLaunchKernel 4\n", page(7, {**self.KNOWN, "cuLaunchKernel": 5}))
        self.assertEqual([(r["symbol"], r["trace"], r["cupti"]) for r in found.differences], [("cuLaunchKernel", 4, 5)])
        self.assertIn("trace 4, CUPTI 5", counts.describe(found.differences))

    def test_a_call_that_one_side_alone_saw_shows(self) -> None:
        found = self.compared("7 cuMemFree_v2 1\n", page(7, {**self.KNOWN, "cuLaunchKernel": 1}))
        self.assertEqual({r["symbol"] for r in found.differences}, {"cuMemFree_v2", "cuLaunchKernel"})

    def test_processes_are_compared_one_by_one(self) -> None:
        pages = [page(7, {**self.KNOWN, "cuLaunchKernel": 5}), page(8, {**self.KNOWN, "cuLaunchKernel": 1})]
        found = self.compared("7 cuLaunchKernel 1\n8 cuLaunchKernel 5\n", *pages)
        self.assertEqual(sorted(r["pid"] for r in found.differences), [7, 8])

    def test_a_process_without_a_trace_shows(self) -> None:
        pages = [page(7, {**self.KNOWN, "cuLaunchKernel": 5}), page(8, {**self.KNOWN, "cuLaunchKernel": 1})]
        found = self.compared("7 cuLaunchKernel 5\n", *pages)
        self.assertEqual([r["pid"] for r in found.differences], [8])

    def test_a_child_that_cuda_refuses_is_told_and_not_judged(self) -> None:
        trace = {7: Counter(cuLaunchKernel=5), 8: Counter(cuMemAlloc_v2=1)}
        _, parent = counts.read_page(page(7, {**self.KNOWN, "cuLaunchKernel": 5}))
        strict = counts.compare(self.table, trace, {7: parent})
        self.assertEqual([r["pid"] for r in strict.differences], [8])
        lenient = counts.compare(self.table, trace, {7: parent}, children_fail=True)
        self.assertEqual((lenient.differences, [r["pid"] for r in lenient.others]), ([], [8]))

    def test_other_classes_are_told_and_not_judged(self) -> None:
        found = self.compared("7 cuModuleUnload 3\n", page(7, {**self.KNOWN, "cuModuleUnload": 2}))
        self.assertEqual((found.differences, len(found.others)), ([], 1))

    def test_what_cupti_cannot_name_is_no_difference(self) -> None:
        found = self.compared("7 cuLaunchNew 3\n", page(7, self.KNOWN))
        self.assertEqual((found.differences, found.unseen), ([], Counter(cuLaunchNew=3)))

    def test_calls_outside_the_table_are_listed(self) -> None:
        found = self.compared("7 cuLaunchKernel 1\n", page(7, {**self.KNOWN, "cuLaunchKernel": 1, "cuCtxGetDevice": 9}))
        self.assertEqual(found.not_hooked, Counter(cuCtxGetDevice=9))

    def test_a_witness_that_did_not_count_is_a_problem(self) -> None:
        self.assertTrue(self.compared("7 cuLaunchKernel 1\n").problems)
        self.assertTrue(self.compared("", page(7, self.KNOWN, result=39)).problems)

    def test_broken_files_are_errors(self) -> None:
        with self.assertRaises(ValueError):
            self.compared("7 cuLaunchKernel\n", page(7, self.KNOWN))
        with self.assertRaises(ValueError):
            self.compared("", page(7, self.KNOWN)[:-1])

    def test_layout_is_the_c_programs(self) -> None:
        self.assertEqual((counts.PAGE.size, counts.SLOT.size, struct.calcsize("<8sIIIIII")), (32, 72, 32))


class Running(Files):
    def bench(self) -> Bench:
        return Bench("x", self.place / "lib.so", Machine(), self.place, self.place / "x.log")

    def python(self, *source: str) -> list[str]:
        return [sys.executable, "-c", "\n".join(source)]

    def test_output_status_and_limit(self) -> None:
        bench = self.bench()
        run = bench.run("one", self.python("import sys", "print('hello')", "sys.exit(3)"))
        self.assertEqual((run.status, run.out, run.how()), (3, "hello\n", "exit status 3"))
        start = time.monotonic()
        run = bench.run("two", self.python("import time", "time.sleep(60)"), limit=0.5)
        self.assertIsNone(run.status)
        self.assertLess(time.monotonic() - start, 20)
        self.assertIn("hello", bench.log.read_text())

    def test_what_a_program_leaves_behind_is_ended(self) -> None:
        source = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
        start = time.monotonic()
        self.bench().run("parent", self.python(source))
        self.assertLess(time.monotonic() - start, 20)
        self.assertIn("left processes behind", (self.place / "x.log").read_text())

    def test_other_results_are_seen(self) -> None:
        bench = self.bench()
        bare = bench.run("bare", self.python("print('a')", "print('b')"))
        other = bench.run("hooked", self.python("print('a')", "print('c')"))
        self.assertTrue(workloads.same(bench, bare, bare))
        self.assertFalse(workloads.same(bench, bare, other))
        self.assertIn("-b | +c", bench.problems[0])

    def test_a_case_passes_fails_skips_and_breaks(self) -> None:
        def breaks(_: Bench) -> None:
            raise KeyError("gone")

        machine = Machine()
        machine.__dict__["driver"] = {"error": "", "path": "", "count": 1}
        ways = {
            "pass": lambda bench: None,
            "fail": lambda bench: bench.problem("wrong"),
            "skip": lambda bench: bench.skip("no tool"),
            "breaks": breaks,
        }
        results = {}
        for name, way in ways.items():
            outcome = main.run_case("g", Case(name, "about", way), self.place / "lib.so", machine, self.place)
            results[name] = (outcome.result, outcome.reason)
        self.assertEqual(results["pass"], ("pass", ""))
        self.assertEqual(results["fail"], ("fail", "wrong"))
        self.assertEqual(results["skip"], ("skip", "no tool"))
        self.assertEqual(results["breaks"], ("fail", "KeyError: 'gone'"))

    def test_without_a_gpu_a_case_is_skipped(self) -> None:
        machine = Machine()
        machine.__dict__["driver"] = {"error": "cuInit says 100", "path": "", "count": 0}
        outcome = main.run_case("g", Case("n", "a", lambda bench: None), self.place / "lib.so", machine, self.place)
        self.assertEqual((outcome.result, outcome.reason), ("skip", "no GPU: cuInit says 100"))
        self.assertIn("skip", report.table([outcome]))


class Measuring(unittest.TestCase):
    def test_ratio_is_that_of_medians_over_batches(self) -> None:
        found = cost.summary([(103.0, 99.0), (104.0, 100.0), (9000.0, 101.0)] * 20)
        self.assertEqual((found["driver_ns"], found["hooked_ns"], found["ratio"]), (100.0, 104.0, 1.04))
        self.assertLessEqual(found["interval"][0], 1.04)
        self.assertGreaterEqual(found["interval"][1], 1.04)

    def test_a_launch_that_costs_more_fails(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            bench = Bench("x", Path(place), Machine(), Path(place), Path(place, "x.log"))
            bench.figures["kernel"] = cost.summary([(101.9, 100.0)] * 4) | {"noise": 1.0}
            cost.judge(bench)
            self.assertEqual(bench.problems, [])
            bench.figures["kernel"] = cost.summary([(102.1, 100.0)] * 4) | {"noise": 1.0}
            cost.judge(bench)
            self.assertEqual(len(bench.problems), 1)

    def test_a_million_launches(self) -> None:
        self.assertEqual(cost.PROCESSES * cost.KERNELS, 1_000_000)

    def test_smi_tables_with_other_figures_have_one_shape(self) -> None:
        self.assertEqual(profilers.shape("| 35C  12W |  4MiB |"), profilers.shape("| 36C 102W | 12MiB |"))
        self.assertNotEqual(profilers.shape("| H200 |"), profilers.shape("| error |"))


class Choosing(unittest.TestCase):
    def test_names_are_distinct_and_patterns_choose(self) -> None:
        names = [case.name for _, case in main.choose([], None)]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual([c.name for _, c in main.choose(["hooks"], ["cuda", "witness"])], ["witness", "cuda"])
        self.assertGreater(len(main.choose([], ["torch-*"])), 3)
        with self.assertRaises(SystemExit):
            main.choose([], ["nothing-like-it"])
        with self.assertRaises(SystemExit):
            main.choose(["nope"], None)


class Pages(unittest.TestCase):
    def test_a_page_has_the_command_the_build_and_the_tables(self) -> None:
        rows = {"columns": ["mix", "speed"], "rows": [["a | b", "50.0"]]}
        outcomes = [
            report.Outcome("g", "one", "about one", "pass", "", "50/50", 1.0, "", rows),
            report.Outcome("g", "two", "about two", "fail", "w1\nw2\nw3\nw4", "", 1.0, ""),
            report.Outcome("h", "three", "about three", "skip", "no tool", "", 1.0, ""),
        ]
        with tempfile.TemporaryDirectory() as place:
            library = Path(place, "libration.so")
            library.write_bytes(b"it")
            given = ["g", "--results", "docs/results", "--window", "3"]
            left = Path(place, "results.json")
            report.write_json(left, given, {"gpu": "H200"}, library, "today", 1.0, outcomes)
            report.write_pages(Path(place, "pages"), [left])
            text = Path(place, "pages/g.md").read_text()
            self.assertIn("`ci/gpu g --window 3`", text)
            self.assertIn("H200", text)
            self.assertIn("| a \\| b | 50.0 |", text)
            self.assertIn("and 1 more", text)
            self.assertNotIn("three", text)
            self.assertIn("no tool", Path(place, "pages/h.md").read_text())
            report.write_pages(Path(place, "pages"), [left, left])
            self.assertEqual(Path(place, "pages/g.md").read_text().count("### one"), 2, "a part for each run")
            left.write_text("{}")
            with self.assertRaisesRegex(SystemExit, "results.json"):
                report.write_pages(Path(place, "pages"), [left])


def run() -> int:
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    for module in (memory_selfcheck, compute_selfcheck, selfcheck_lines, selfcheck_pool):
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    return 0 if unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful() else 1
