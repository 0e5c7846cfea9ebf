"""Many mixes of containers in little time: programs are started once, bare and in slices, and work only when told.

Loading a framework takes seconds, a mix of containers two or three. So a pool has a process for each program and each
setting of it that some mix needs, all ready and idle; each mix runs by plain time slicing, then in slices. What the GPU
did for whom is read from the witnesses' files when the pool is closed.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gpu import build
from gpu.bench import Bench
from gpu.compute import busy
from gpu.compute.busy import SECOND
from gpu.compute.container import TAIL, Crew, slice_of
from gpu.compute.loads import Load
from gpu.hooks.counted import fresh_directory

HANGS = 45.0  # seconds after its end for a run to say so
CHANGE = 0.2  # seconds in which a change must have come through
THREAD = "ration"  # how the names of the library's own threads begin


@dataclass
class Times:
    """Seconds of a mix; the command line may set them."""

    warmup: float = 0.7
    window: float = 2.5
    mixes: int | None = None  # of each case
    deadline: float | None = None  # of time.monotonic: no mix begins after it


TIMES = Times()


@dataclass(frozen=True)
class Member:
    """A container of a mix. `stay` is the part of the window for which it works, where that is not all of it."""

    load: Load
    request: float = 0.0
    settings: tuple[tuple[str, str], ...] = ()
    number: int = 0  # tells containers apart that are alike
    stay: tuple[float, float] | None = None


def member(load: Load, request: float, number: int = 0, stay: tuple[float, float] | None = None, **more: str) -> Member:
    settings = {"RATION_COMPUTE_REQUEST": f"{request:g}%"} if request else {}
    return Member(load, request, tuple(sorted({**settings, **more}.items())), number, stay)


@dataclass(frozen=True)
class Mix:
    """Containers side by side. `cuts` are parts of the window that are looked at one by one."""

    name: str
    members: tuple[Member, ...]
    ways: tuple[str, ...] = ("plain", "ration")
    cuts: tuple[tuple[float, float], ...] = ()
    seconds: float = 0.0  # at least

    @property
    def window(self) -> float:
        return max(TIMES.window, self.seconds, *(it.load.least for it in self.members))


@dataclass(frozen=True)
class Seat:
    """A process of a pool; one without settings is bare."""

    load: Load
    settings: tuple[tuple[str, str], ...] | None = None
    number: int = 0


def seat(it: Member, way: str) -> Seat:
    return Seat(it.load, it.settings if way == "ration" else None, it.number)


@dataclass
class Part:
    """What one process did in one window, in as far as it says so itself."""

    seat: Seat
    start: int
    end: int
    cuts: list[tuple[int, int]] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    took_us: list[float] = field(default_factory=list)
    thread: float | None = None  # of a core, in per cent: what the library's thread took
    broken: str = ""


@dataclass(frozen=True)
class Alone:
    """What a program does by itself, bare."""

    rate: float
    gpu: float
    raw: float
    took_us: list[float]
    reference: busy.Reference


@dataclass(frozen=True)
class Found:
    """What a container got. Speeds are in per cent of its own alone, times in per cent of the window."""

    speed: float
    gpu: float
    raw: float = 0.0
    took_us: list[float] = field(default_factory=list)
    cuts: list[tuple[float, float]] = field(default_factory=list)  # speed and GPU time, of each cut
    thread: float | None = None


@dataclass
class Result:
    """A mix, and what its containers got in each way, in order."""

    mix: Mix
    found: dict[str, list[Found]] = field(default_factory=dict)
    idle_thread: float = 0.0  # the most that a thread of an idle container took
    broken: str = ""
    skipped: bool = False


solos: dict[str, Alone] = {}


def rate_in(marks: list[tuple[int, int]], start: int, end: int) -> float:
    """Units per second of a window, from what was done by when."""
    times = [at for at, _ in marks]

    def done_by(moment: int) -> float:
        right = min(max(bisect.bisect_left(times, moment), 1), len(marks) - 1)
        (a, before), (b, after) = marks[right - 1], marks[right]
        return before + (after - before) * (min(max(moment, a), b) - a) / max(1, b - a)

    if len(marks) < 2:
        raise busy.Broken("a program says nothing of what it did")
    return (done_by(end) - done_by(start)) * SECOND / (end - start)


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


def seats_of(mixes: Iterable[Mix], known: Iterable[str] = ()) -> list[Seat]:
    """The processes that mixes need, those for what each program does alone included."""
    needed: dict[Seat, None] = {}
    for mix in mixes:
        for it in mix.members:
            if it.load.name not in known:
                needed[Seat(it.load)] = None
            for way in mix.ways:
                needed[seat(it, way)] = None
    return list(needed)


def rooms_of(mixes: Iterable[Mix]) -> dict[Seat, int]:
    """Containers meet in one region if some mix has them together, or has both with a third."""
    room: dict[Seat, int] = {}
    for number, mix in enumerate(mixes):
        if "ration" not in mix.ways:
            continue
        mine = [seat(it, "ration") for it in mix.members]
        joined = {room[one] for one in mine if one in room}
        room.update({one: number for one in mine})
        room.update({one: number for one, where in room.items() if where in joined})
    return room


class Pool:
    """The processes, from their start to what their witnesses wrote."""

    def __init__(self, bench: Bench, mixes: list[Mix]) -> None:
        self.bench, self.mixes = bench, mixes
        self.tool = str(build.program(bench, "busy_sum"))
        self.crews: dict[Seat, Crew] = {}
        self.parts: list[Part] = []
        self.solos: dict[str, Part] = {}
        self.results: dict[Mix, Result] = {}
        self.ran: dict[Mix, dict[str, list[Part]]] = {}
        self.dead: dict[Seat, str] = {}
        rooms = rooms_of(mixes)
        places = {number: fresh_directory(bench, f"regions-{number}") for number in sorted(set(rooms.values()))}
        try:
            for number, one in enumerate(seats_of(mixes, solos)):
                label = f"{number}-{one.load.name}" + ("" if one.settings is None else "-slice")
                env: dict[str, str] = {}
                if one.settings is not None:
                    env = slice_of(bench, label, places[rooms[one]], dict(one.settings))
                self.crews[one] = Crew(bench, label, one.load, env)
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
            for mix in self.mixes:
                if TIMES.deadline and time.monotonic() > TIMES.deadline:
                    self.results[mix] = Result(mix, skipped=True)
                    continue
                for it in mix.members:
                    if it.load.name not in solos and it.load.name not in self.solos:
                        alone = Mix(f"{it.load.name} alone", (Member(it.load),), ("plain",))
                        self.solos[it.load.name] = self.side_by_side(alone, "plain", Result(alone))[0]
                result = self.results[mix] = Result(mix)
                self.ran[mix] = {way: self.side_by_side(mix, way, result) for way in mix.ways}
            self.leave()
            self.add_up()
        finally:
            self.close()
        return [self.results[mix] for mix in self.mixes]

    def side_by_side(self, mix: Mix, way: str, result: Result) -> list[Part]:
        seats = [seat(it, way) for it in mix.members]
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
        self.watch_threads(parts, way, result)
        for part in parts:
            if not part.broken:
                self.attempt(part.seat, lambda part=part: self.hear(part, mix.window))
                part.broken = self.dead.get(part.seat, "")
        return parts

    def watch_threads(self, parts: list[Part], way: str, result: Result) -> None:
        """What the library's threads take meanwhile, in those that work and in those that do not."""
        if way != "ration":
            return
        watched = {one: crew for one, crew in self.crews.items() if one.settings is not None and one not in self.dead}
        took: list[dict[Seat, int]] = []
        clocks: list[int] = []
        for moment in (parts[0].start, parts[0].end):
            time.sleep(max(0.0, (moment - time.monotonic_ns()) / SECOND))
            clocks.append(time.monotonic_ns())
            took.append({one: sum(thread_times(it.pid) for it in crew.sessions) for one, crew in watched.items()})
        parted = {part.seat: part for part in parts}
        for one in watched:
            share = 100 * (took[1][one] - took[0][one]) / (clocks[1] - clocks[0])
            if one in parted:
                parted[one].thread = share
            else:
                result.idle_thread = max(result.idle_thread, share)

    def hear(self, part: Part, seconds: float) -> None:
        for session in self.crews[part.seat].sessions:
            session.start, session.limit = time.monotonic(), TIMES.warmup + seconds + HANGS
            while (line := session.line()) is not None:
                word, *words = line.split() or [""]
                pairs = [pair.split(":") for pair in words if ":" in pair]
                if word == "took_us":
                    part.took_us += [float(us) for at, us in pairs if part.start <= int(at) < part.end]
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
        for name, part in self.solos.items():
            with contextlib.suppress(busy.Broken):  # its mixes will say what is wrong
                paths = self.paths(part.seat)
                sums = busy.sums(self.tool, paths, [(part.start, part.end)])[0]
                reference = busy.Reference(tuple(paths), part.start, part.end)
                rate = rate_in(part.marks, part.start, part.end) if part.marks else sums.rate
                solos[name] = Alone(rate, sums.gpu, sums.raw, part.took_us, reference)
        windows: dict[Seat, list[tuple[int, int]]] = {}
        for parts in (parts for ways in self.ran.values() for parts in ways.values()):
            for part in parts:
                windows.setdefault(part.seat, []).extend([(part.start, part.end), *part.cuts])
        with ThreadPoolExecutor(8) as threads:
            told = dict(zip(windows, threads.map(lambda one: self.sums(one, windows[one]), windows), strict=True))
        for mix, ways in self.ran.items():
            result = self.results[mix]
            try:
                result.found = {way: [self.found(part, told) for part in parts] for way, parts in ways.items()}
            except busy.Broken as broken:
                result.broken = str(broken)
        kept = {path for alone in solos.values() for path in alone.reference.paths}
        for crew in self.crews.values():
            for path in crew.notes.glob("*.busy"):
                if path not in kept:
                    path.unlink()

    def sums(self, one: Seat, windows: list[tuple[int, int]]) -> dict[tuple[int, int], busy.Sum] | str:
        """Of each window; or what is wrong."""
        alone = solos.get(one.load.name)
        try:
            found = busy.sums(self.tool, self.paths(one), windows, alone.reference if alone else None)
        except (busy.Broken, OSError, RuntimeError, ValueError) as broken:
            return str(broken)
        except Exception as error:  # busy_sum itself
            return f"{type(error).__name__}: {error}"
        return dict(zip(windows, found, strict=True))

    def found(self, part: Part, told: dict[Seat, dict[tuple[int, int], busy.Sum] | str]) -> Found:
        alone, sums = solos.get(part.seat.load.name), told[part.seat]
        if part.broken or isinstance(sums, str):
            raise busy.Broken(part.broken or str(sums))
        if alone is None or not alone.rate:
            raise busy.Broken(f"{part.seat.load.name} was not measured alone")

        def speed(window: tuple[int, int]) -> float:
            return 100 * (rate_in(part.marks, *window) if part.marks else sums[window].rate) / alone.rate

        whole = (part.start, part.end)
        return Found(
            speed(whole),
            sums[whole].gpu,
            sums[whole].raw,
            part.took_us,
            [(speed(cut), sums[cut].gpu) for cut in part.cuts],
            part.thread,
        )

    def close(self) -> None:
        for one, crew in self.crews.items():
            if one not in self.dead:
                crew.close()
