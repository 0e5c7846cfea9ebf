"""Tests of the pool: made-up programs are brought through mixes, and what they did is added up."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from dataclasses import replace
from pathlib import Path
from unittest import mock

from gpu import build, main
from gpu.bench import Bench
from gpu.compute import bars, cores, lines, loads, mixes, pool, pretender, region, soak
from gpu.compute.mixes import Mix, Result, member
from gpu.compute.selfcheck import bench_in
from gpu.memory.container import Session

MS = 1_000_000
TESTS = Path(__file__).resolve().parents[2]


class Pretending(loads.Load):
    """A load that makes its work up."""

    def command(self, bench: Bench) -> list[str]:
        source = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from gpu.compute import pretender; pretender.main()"
        return [sys.executable, "-B", "-c", source]


def pretending(*names: str) -> list[Pretending]:
    return [Pretending(name, "about", ("deep", "1")) for name in names]


class Regions(unittest.TestCase):
    def test_a_limit_is_changed_in_the_region(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            data, words = pretender.live_region("gpu/one")
            path = Path(place, "gpu.region")
            path.write_bytes(data)
            region.set_limit(Path(place), "gpu/one", 12.5)
            after = path.read_bytes()
            self.assertEqual(struct.unpack_from("<Q", after, words)[0], 125_000)
            self.assertEqual(after[:words] + data[words : words + 8] + after[words + 8 :], data, "and nothing else")
            with self.assertRaises(RuntimeError):
                region.set_limit(Path(place), "gpu/other", 12.5)


class Cores(unittest.TestCase):
    def test_pairs_are_threads_of_one_core_and_enough_or_none(self) -> None:
        first = {core: core % 8 for core in range(16)}
        with mock.patch.object(cores, "first_sibling", first.get):
            self.assertEqual(cores.pairs_of(range(16))[:2], [{0, 8}, {1, 9}])
            self.assertEqual(cores.pairs_of(range(15)), [])
        with mock.patch.object(cores, "first_sibling", lambda core: core):
            self.assertEqual(cores.pairs_of(range(17))[-1], {14, 15})

    def test_everybody_has_a_home_and_nobody_shares_one_in_a_mix(self) -> None:
        pins = cores.Pins([frozenset({2 * at, 2 * at + 1}) for at in range(8)])
        for part in (lines.MIXED, lines.REQUESTED, lines.SHARES):
            together = [[it.person for it in mix.members] for line in part for mix in line.mixes]
            homes = dict(pins.homes)
            pins.settle(together)
            self.assertEqual({one: pins.homes[one] for one in homes}, homes, "who has a home keeps it")
            for some in together:
                places = pins.places(some)
                self.assertEqual(len(set(places)), len(some))
                self.assertGreaterEqual(sum(pins.home(one) == at for one, at in zip(some, places, strict=True)), len(some) // 2)
        self.assertTrue(all((name, 0) in pins.homes for name, _ in pins.homes), "where it is measured alone, it is at home")
        pairs = [[it.person for it in mix.members] for mix in lines.MIXED[0].mixes]
        self.assertTrue(all(pins.places(some) == [pins.home(one) for one in some] for some in pairs), "they all fit")
        self.assertIsNone(pins.places([("gemm", number) for number in range(9)]), "nobody has homes for nine")
        self.assertEqual((cores.Pins().home(("gemm", 0)), cores.Pins().places([("gemm", 0)])), (None, None))

    def test_programs_are_pinned_from_the_start_and_moved(self) -> None:
        here = sorted(os.sched_getaffinity(0))
        with tempfile.TemporaryDirectory() as place:
            source = "import os; print(sorted(os.sched_getaffinity(0)), flush=True); input()"
            session = Session(bench_in(place), "x", [sys.executable, "-c", source], {}, 30, {here[-1]})
            try:
                self.assertEqual(session.line(), str(here[-1:]))
                cores.pin(session.pid, frozenset(here[:1]))
                self.assertEqual(sorted(os.sched_getaffinity(session.pid)), here[:1])
            finally:
                session.close()
        cores.pin(session.pid, frozenset(here[:1]))  # nobody is there any more


class Pools(unittest.TestCase):
    def run_mixes(self, wanted: list[Mix], **times: float) -> list[Result]:
        if not (shutil.which("gcc") or shutil.which("cc")):
            self.skipTest("no C compiler")
        before = replace(mixes.TIMES)
        vars(mixes.TIMES).update({"warmup": 0.1, "window": 1.0, **times})
        with tempfile.TemporaryDirectory() as place:
            Path(place, "work").mkdir()
            bench = bench_in(str(Path(place, "work")))
            bench.log.parent.mkdir(exist_ok=True)
            build.built.pop(("busy_sum", ""), None)
            try:
                return pool.Pool(bench, wanted).run()
            finally:
                vars(mixes.TIMES).update(vars(before))
                self.alone = dict(mixes.solos)
                mixes.solos.clear()
                build.built.pop(("busy_sum", ""), None)

    def test_each_process_is_there_once_and_rooms_for_those_that_meet(self) -> None:
        one, other = pretending("a", "b")
        wanted = [
            Mix("both", (member(one, 25), member(other, 75))),
            *lines.limited(one, (10, 25)),
            Mix("third", (member(other, 75), member(one, 50, 1))),
        ]
        seats = mixes.seats_of(wanted)
        self.assertEqual((len(seats), sum(it.settings is None for it in seats)), (7, 3))
        rooms = mixes.rooms_of(wanted)
        self.assertEqual(len(rooms), 4)
        self.assertEqual(len(set(rooms.values())), 2)
        self.assertEqual(len(mixes.seats_of(lines.limited(one, (10, 25, 50)))), 1, "limits need one process")

    def test_mixes_are_run_and_added_up(self) -> None:
        one, other = pretending("pretender", "another")
        wanted = [
            Mix("both", (member(one, 25), member(other, 75)), cuts=((0, 0.5), (0.5, 1))),
            Mix("dies", (member(one, 13),), ("ration",)),
            Mix("again", (member(one, 25),), ("ration",)),
        ]
        for _ in range(3):  # accounts are looked at while programs run: a machine that stands still then is not judged at once
            both, dies, again = self.run_mixes(wanted)
            if all(abs(found.accounts[0].account - 25) <= 1 for found in both.found["ration"]):
                break
        alone = self.alone["pretender"]
        self.assertAlmostEqual(alone.gpu, 25, delta=0.3)
        self.assertAlmostEqual(alone.rate, 250, delta=3)
        self.assertEqual((both.broken, again.broken), ("", ""))
        self.assertIn("status 3", dies.broken)
        for found in both.found["plain"] + both.found["ration"]:
            self.assertAlmostEqual(found.gpu, 25, delta=0.3)
            self.assertAlmostEqual(found.speed, 100, delta=1)
            self.assertAlmostEqual(found.u, 25, delta=0.3)
            self.assertEqual((len(found.cuts), found.apart), (2, None))
        for found in both.found["ration"]:
            self.assertAlmostEqual(found.accounts[0].account, 25, delta=1)
            self.assertAlmostEqual(found.accounts[0].kernel_us, 1000, delta=30)
        self.assertEqual((both.found["plain"][0].accounts, again.found["ration"][0].accounts), ((), ()))
        self.assertAlmostEqual(both.found["ration"][0].raw, 37.5, delta=0.5)
        self.assertEqual(set(both.found["ration"][0].took_us), {2.0})
        entry = bars.slowed(both.found["ration"][0].took_us, alone.took_us)
        self.assertAlmostEqual(entry.p50, 2.0)

    def test_mixes_run_round_after_round_by_turns(self) -> None:
        (one,) = pretending("pretender")
        (result,) = self.run_mixes([Mix("free", (member(one, 25),), least=2)], window=0.4, rounds=1)
        self.assertEqual(result.broken, "")
        self.assertEqual(sorted(result.found), ["plain", "ration"])
        for way in ("plain", "ration"):
            self.assertAlmostEqual(result.found[way][0].speed, 100, delta=2)
            self.assertLess(result.found[way][0].apart, 3)
            self.assertAlmostEqual(len(result.found[way][0].took_us), 2 * 100, delta=4)
        self.assertAlmostEqual(len(self.alone["pretender"].took_us), 100, delta=2)

    def test_limits_come_and_go_in_one_process(self) -> None:
        (one,) = pretending("pretender")
        dying = replace(lines.limited(one, (50,))[0], members=(member(one, 13, RATION_COMPUTE_LIMIT="100%"),))
        half, quarter, dies = self.run_mixes([*lines.limited(one, (50, 25)), dying], window=0.6)
        self.assertEqual(self.alone, {}, "no bare one is needed")
        self.assertIn("ended in the middle", dies.broken)
        for result, limit in ((half, 50), (quarter, 25)):
            self.assertEqual(result.broken, "")
            found = result.found["ration"][0]
            self.assertAlmostEqual(found.speed, limit, delta=2)
            self.assertAlmostEqual(found.gpu, 25 * limit / 100, delta=0.8)
            self.assertAlmostEqual(found.u, 25, delta=0.5)
            self.assertLess(found.apart, 3)
            self.assertAlmostEqual(found.accounts[0].account, 25 * limit / 100, delta=1)
            self.assertIn("apart", lines.judge_limit(None, result)[1])


class Soaking(unittest.TestCase):
    def soaked(self, others: list[Pretending], **more: float) -> tuple[list[soak.Progress], soak.Visits, str]:
        paces = {"length": 2.5, "piece": 0.3, "hang": 0.6, "between": (0.1, 0.2), "until_signal": (0.1, 0.3), "stopped": 0.1}
        with tempfile.TemporaryDirectory() as place:
            bench = bench_in(place)
            visitor = pretending("visitor")[0]
            all_, visits = soak.soak(bench, others, visitor, soak.Pace(**{**paces, **more}))
            return all_, visits, bench.log.read_text()

    def test_progress_is_followed_while_others_are_killed_and_stopped(self) -> None:
        all_, visits, _ = self.soaked(pretending("a", "b"))
        self.assertEqual(soak.judge(all_, visits), [])
        self.assertTrue(visits.killed and visits.stopped, visits)
        for it in all_:
            self.assertGreater(it.units, 3 * 70)
            self.assertTrue(it.pieces >= 4 and 0.003 < it.longest < 0.5, it)

    def test_a_hang_is_seen_while_it_lasts_and_once(self) -> None:
        stalling = replace(pretending("stalls")[0], env={pretender.STALLS: "1.2"})
        all_, visits, log = self.soaked([*pretending("a"), stalling], length=3.5)
        self.assertEqual([it.hangs for it in all_], [0, 1])
        self.assertIn("hang: stalls made no progress", log)
        self.assertGreater(all_[1].longest, 1.1)
        self.assertGreater(all_[1].pieces, 2, "it came back")
        self.assertEqual(len(soak.judge(all_, visits)), 1)

    def test_what_goes_wrong_is_told(self) -> None:
        good, visits = soak.Progress("a", 100, 10, 0.1), soak.Visits(3, 2)
        self.assertEqual(soak.judge([good, good], visits), [])
        for fault in ({"hangs": 1}, {"broken": "ended"}, {"units": 0}):
            self.assertEqual(len(soak.judge([good, replace(good, **fault)], visits)), 1, fault)
        self.assertEqual(len(soak.judge([good], soak.Visits())), 1)

    def test_it_runs_only_when_it_is_named(self) -> None:
        def names(*only: str, **more: bool) -> list[str]:
            return [case.name for _, case in main.choose(["compute"], list(only) or None, **more)]

        self.assertNotIn("soak", names())
        self.assertEqual(names("soak"), ["soak"])
        self.assertIn("soak", names(all_of_them=True))


class Threads(unittest.TestCase):
    def test_the_librarys_threads_are_timed_from_outside(self) -> None:
        source = "open('/proc/self/task/' + str(__import__('os').getpid()) + '/comm', 'w').write('ration-x')"
        source += "\nprint(flush=True)\nwhile True: pass"
        with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as loop:
            try:
                loop.stdout.readline()
                before = pool.thread_times(loop.pid)
                time.sleep(0.3)
                took = pool.thread_times(loop.pid) - before
            finally:
                loop.kill()
        self.assertTrue(10 * MS < took < 400 * MS, took)
        self.assertEqual(pool.thread_times(loop.pid), 0)
