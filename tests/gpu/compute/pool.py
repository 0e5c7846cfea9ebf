"""Many mixes of containers in little time: programs are started once, bare and in slices, and work only when told.

Loading a framework takes seconds, a mix of containers two or three. So a pool has a process for each program and each
setting of it that some mix needs, all ready and idle; each mix runs by plain time slicing, then in slices. What the GPU
did for whom is read from the witnesses' files when the pool is closed.

A limit is set in a process that runs, through the region, and what it is judged by is the same process without one, before
the first limit and after the last.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu import build
from gpu.bench import Bench
from gpu.compute import busy, region
from gpu.compute.busy import SECOND
from gpu.compute.container import TAIL, Crew, slice_of
from gpu.compute.cores import PINS, pin
from gpu.compute.mixes import (
    TIMES,
    WHOLE,
    Account,
    Alone,
    Found,
    Member,
    Mix,
    Part,
    Result,
    Seat,
    mean,
    rate_in,
    rooms_of,
    seat,
    seats_of,
    solos,
)
from gpu.hooks.counted import fresh_directory

HANGS = 45.0  # seconds after its end for a run to say so
CHANGE = 0.2  # seconds in which a change must have come through
THREAD = "ration"  # how the names of the library's own threads begin


def thread_times(pid: int) -> int:
    """Nanoseconds that the library's threads in a process have had a core for, in the kernel too."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if (task / "comm").read_text().startswith(THREAD):
                total += on_core(task)
    return total


def on_core(task: Path) -> int:
    """By the scheduler, to the nanosecond; where it does not tell, in ticks of ten milliseconds."""
    with contextlib.suppress(OSError):
        return int((task / "schedstat").read_text().split()[0])
    fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * SECOND // os.sysconf("SC_CLK_TCK")


class Pool:
    """The processes, from their start to what their witnesses wrote."""

    def __init__(self, bench: Bench, mixes: list[Mix]) -> None:
        self.bench, self.mixes = bench, mixes
        self.tool = str(build.program(bench, "busy_sum"))
        self.crews: dict[Seat, Crew] = {}
        self.parts: list[Part] = []
        self.solos: dict[str, list[Part]] = {}
        self.without: dict[Seat, list[Part]] = {}  # a limit: windows of those that have one in others
        self.results: dict[Mix, Result] = {}
        self.ran: dict[Mix, dict[str, list[list[Part]]]] = {}  # by way, round by round
        self.dead: dict[Seat, str] = {}
        PINS.settle([[it.person for it in mix.members] for mix in mixes])
        rooms = rooms_of(mixes)
        places = {number: fresh_directory(bench, f"regions-{number}") for number in sorted(set(rooms.values()))}
        try:
            for number, one in enumerate(seats_of(mixes, solos)):
                label = f"{number}-{one.load.name}" + ("" if one.settings is None else "-slice")
                env: dict[str, str] = {}
                if one.settings is not None:
                    env = slice_of(bench, label, places[rooms[one]], dict(one.settings))
                self.crews[one] = Crew(bench, label, one.load, env, cores=PINS.home(one.person))
            for one, crew in self.crews.items():
                self.attempt(one, crew.begin)
            for one, crew in self.crews.items():
                self.attempt(one, crew.get_ready)
        except BaseException:
            self.close()
            raise

    def attempt(self, one: Seat, what) -> None:
        """A program that fails spoils what it is part of, and nothing else."""
        if one in self.dead:
            return
        try:
            what()
        except RuntimeError as error:
            self.dead[one] = str(error)
            self.crews[one].close()

    def run(self) -> list[Result]:
        try:
            for number, mix in enumerate(self.mixes):
                if TIMES.deadline and time.monotonic() > TIMES.deadline:
                    self.results[mix] = Result(mix, skipped=True)
                else:
                    self.run_mix(mix)
                if mix.limit is not None:
                    one = seat(mix.members[0], "ration")
                    if not any(seat(it.members[0], "ration") == one for it in self.mixes[number + 1 :]):
                        self.run_without(mix)
            self.leave()
            self.add_up()
        finally:
            self.close()
        return [self.results[mix] for mix in self.mixes]

    def run_mix(self, mix: Mix) -> None:
        if mix.limit is not None and seat(mix.members[0], "ration") not in self.without:
            self.run_without(mix)
        for it in mix.members:
            if mix.limit is None and it.load.name not in solos and it.load.name not in self.solos:
                alone = Mix(f"{it.load.name} alone", (Member(it.load),), ("plain",))
                rounds = [self.side_by_side(alone, "plain", Result(alone)) for _ in range(alone.rounds)]
                self.solos[it.load.name] = [parts[0] for parts in rounds]
        result = self.results[mix] = Result(mix)
        if mix.limit is not None:
            self.set_limit(seat(mix.members[0], "ration"), mix.limit)
        self.ran[mix] = {way: [] for way in mix.ways}
        for _ in range(mix.rounds):
            for way in mix.ways:
                self.ran[mix][way].append(self.side_by_side(mix, way, result))

    def run_without(self, mix: Mix) -> None:
        """What a program does whose limit is changed, without one: before the first, and if there was one, after the last."""
        one = seat(mix.members[0], "ration")
        if TIMES.deadline and time.monotonic() > TIMES.deadline and one not in self.without:
            return
        self.set_limit(one, WHOLE)
        part = self.side_by_side(mix, "ration", Result(mix))[0]
        self.without.setdefault(one, []).append(part)

    def set_limit(self, one: Seat, limit: float) -> None:
        def change() -> None:
            if where := self.crews[one].slice:
                region.set_limit(*where, limit)

        self.attempt(one, change)

    def side_by_side(self, mix: Mix, way: str, result: Result) -> list[Part]:
        seats = [seat(it, way) for it in mix.members]
        for one, pair in zip(seats, PINS.places([it.person for it in mix.members]) or (), strict=False):
            for session in self.crews[one].sessions:
                pin(session.pid, pair)
        begin = time.monotonic_ns() + 20_000_000
        start = begin + int(TIMES.warmup * SECOND)
        length = int(mix.window * SECOND)
        parts = [Part(one, start, start + length, broken=self.dead.get(one, "")) for one in seats]
        for it, part in zip(mix.members, parts, strict=True):
            part.cuts = [
                (start + int(a * length) + (int(CHANGE * SECOND) if a else 0), start + int(b * length))
                for a, b in mix.cuts
            ]
            times = (begin, start + length + int(TAIL * SECOND))
            if it.stay:
                times = (start + int(it.stay[0] * length), start + int(it.stay[1] * length))
            if not part.broken:
                self.crews[part.seat].run(*times)
        self.watch(parts, way, mix, result)
        for part in parts:
            if not part.broken:
                self.attempt(part.seat, lambda part=part: self.hear(part, mix.window))
                part.broken = self.dead.get(part.seat, "")
        return parts

    def watch(self, parts: list[Part], way: str, mix: Mix, result: Result) -> None:
        """What the library's threads take meanwhile, in those that work and in those that do not, and what it accounts for."""
        if way != "ration":
            return
        watched = {one: crew for one, crew in self.crews.items() if one.settings is not None and one not in self.dead}
        accounts: list[dict[Seat, tuple[int, int]]] = []
        took: list[dict[Seat, int]] = []
        clocks: list[int] = []
        for moment in (parts[0].start, parts[0].end):
            time.sleep(max(0.0, (moment - time.monotonic_ns()) / SECOND))
            accounts.append({part.seat: self.account(part.seat) for part in parts if mix.is_accounted and not part.broken})
            clocks.append(time.monotonic_ns())
            took.append({one: sum(thread_times(it.pid) for it in crew.sessions) for one, crew in watched.items()})
        parted = {part.seat: part for part in parts}
        for one, (clock, before) in accounts[0].items():
            later, after = accounts[1][one]
            parted[one].account = 100 * (after - before) / (later - clock)
        for one in watched:
            share = 100 * (took[1][one] - took[0][one]) / (clocks[1] - clocks[0])
            if one in parted:
                parted[one].thread = share
            else:
                result.idle_thread = max(result.idle_thread, share)

    def account(self, one: Seat) -> tuple[int, int]:
        """The clock, and GPU time by the library's account."""
        where = self.crews[one].slice
        return time.monotonic_ns(), region.gpu_time_of(*where) if where else 0

    def hear(self, part: Part, seconds: float) -> None:
        for session in self.crews[part.seat].sessions:
            session.start, session.limit = time.monotonic(), TIMES.warmup + seconds + HANGS
            while (line := session.line()) is not None:
                word, *words = line.split() or [""]
                pairs = [pair.split(":") for pair in words if ":" in pair]
                if word == "took_us":
                    part.took_us += [float(us) for at, us in pairs if part.start <= int(at) < part.end]
                elif word == "host":
                    part.host_ns += [int(ns) for at, ns in pairs if part.start <= int(at) < part.end]
                elif word == "marks":
                    part.marks = [(int(at), int(units)) for at, units in pairs]
                elif word == "done":
                    session.lines.clear()  # the log need not have all of them
                    break
            else:
                raise RuntimeError(f"{session.label}: ended in the middle; {session.last_words()}")

    def leave(self) -> None:
        """All end; then their witnesses' files are whole."""
        alive = [(one, crew) for one, crew in self.crews.items() if one not in self.dead]
        for _, crew in alive:
            for session in crew.sessions:
                session.start, session.limit = time.monotonic(), 60.0
                session.tell("quit")
        for one, crew in alive:
            self.attempt(one, lambda crew=crew: [session.rest() for session in crew.sessions])

    def paths(self, one: Seat) -> list[Path]:
        crew = self.crews[one]
        witness = "cupti" if one.load.is_script else "own"
        paths = sorted(crew.notes.glob(f"*.{witness}.busy"))
        if one in self.dead:
            raise busy.Broken(self.dead[one])
        if len(paths) != one.load.processes:
            raise busy.Broken(f"{crew.label}: {len(paths)} of {one.load.processes} processes have a witness")
        return paths

    def add_up(self) -> None:
        for name, parts in self.solos.items():
            with contextlib.suppress(busy.Broken):  # its mixes will say what is wrong
                solos[name] = self.alone(parts)
        alone = {one: solos[one.load.name] for one in self.crews if one.load.name in solos}
        for one, parts in self.without.items():
            alone.pop(one, None)
            with contextlib.suppress(busy.Broken):
                alone[one] = self.alone(parts)
        windows: dict[Seat, list[tuple[int, int]]] = {}
        for rounds in (rounds for ways in self.ran.values() for rounds in ways.values()):
            for part in (part for parts in rounds for part in parts):
                windows.setdefault(part.seat, []).extend([(part.start, part.end), *part.cuts])

        def sums(one: Seat) -> dict[tuple[int, int], busy.Sum] | str:
            return self.sums(one, windows[one], alone.get(one))

        with ThreadPoolExecutor(8) as threads:
            told = dict(zip(windows, threads.map(sums, windows), strict=True))
        for mix, ways in self.ran.items():
            result = self.results[mix]
            try:
                for way, rounds in ways.items():
                    found = [[self.found(it, told[it.seat], alone.get(it.seat)) for it in parts] for parts in rounds]
                    result.found[way] = [mean(of_one) for of_one in zip(*found, strict=True)]
            except busy.Broken as broken:
                result.found, result.broken = {}, str(broken)
        kept = {path for it in solos.values() for path in it.reference.paths}
        for crew in self.crews.values():
            for path in crew.notes.glob("*.busy"):
                if path not in kept:
                    path.unlink()

    def alone(self, parts: list[Part]) -> Alone:
        """What a program does by itself, by some windows of a process: on average."""
        if broken := next((part.broken for part in parts if part.broken), ""):
            raise busy.Broken(broken)
        paths = self.paths(parts[0].seat)
        reference = busy.Reference(tuple(paths), parts[0].start, parts[0].end)
        windows = [(part.start, part.end) for part in parts]
        sums = busy.sums(self.tool, paths, windows, reference)
        rates = [rate_in(it.marks, it.start, it.end) if it.marks else one.rate for it, one in zip(parts, sums, strict=True)]
        rate = statistics.mean(rates)
        return Alone(
            rate,
            statistics.mean(it.gpu for it in sums),
            statistics.mean(it.raw for it in sums),
            [us for part in parts for us in part.took_us],
            reference,
            100 * (max(rates) - min(rates)) / rate if rate else 0.0,
            statistics.median([ns for part in parts for ns in part.host_ns] or [0.0]),
        )

    def sums(
        self, one: Seat, windows: list[tuple[int, int]], alone: Alone | None
    ) -> dict[tuple[int, int], busy.Sum] | str:
        """Of each window; or what is wrong."""
        try:
            found = busy.sums(self.tool, self.paths(one), windows, alone.reference if alone else None)
        except (busy.Broken, OSError, RuntimeError, ValueError) as broken:
            return str(broken)
        except Exception as error:  # busy_sum itself
            return f"{type(error).__name__}: {error}"
        return dict(zip(windows, found, strict=True))

    def found(self, part: Part, sums: dict[tuple[int, int], busy.Sum] | str, alone: Alone | None) -> Found:
        if part.broken or isinstance(sums, str):
            raise busy.Broken(part.broken or str(sums))
        if alone is None or not alone.rate:
            raise busy.Broken(f"{part.seat.load.name} was not measured alone")

        def speed(window: tuple[int, int]) -> float:
            return 100 * (rate_in(part.marks, *window) if part.marks else sums[window].rate) / alone.rate

        whole = (part.start, part.end)
        accounts: tuple[Account, ...] = ()
        if part.account is not None:
            kernels = sums[whole].rate * part.seat.load.batch
            kernel_us = sums[whole].gpu / 100 * 1e6 / kernels if kernels else 0.0
            accounts = (Account(part.account, sums[whole].gpu, kernel_us),)
        return Found(
            speed(whole),
            sums[whole].gpu,
            alone.gpu,
            sums[whole].raw,
            part.took_us,
            [(speed(cut), sums[cut].gpu) for cut in part.cuts],
            part.thread,
            alone.apart if part.seat in self.without else None,
            accounts,
            100 * alone.host_ns / statistics.median(part.host_ns) if alone.host_ns and part.host_ns else 100.0,
        )

    def close(self) -> None:
        for one, crew in self.crews.items():
            if one not in self.dead:
                crew.close()
