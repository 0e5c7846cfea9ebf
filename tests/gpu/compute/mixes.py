"""Mixes of containers, the processes that they need, and what each container got."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpu.compute import busy
from gpu.compute.busy import SECOND
from gpu.compute.loads import Load

WHOLE = 100.0  # a limit that is none


@dataclass
class Times:
    """Seconds of a mix; the command line may set them."""

    warmup: float = 0.7
    window: float = 2.5
    mixes: int | None = None  # of each case
    rounds: int = 1  # of each mix: plain, ration, plain, ration …
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

    @property
    def person(self) -> tuple[str, int]:
        return self.load.name, self.number


def member(load: Load, request: float, number: int = 0, stay: tuple[float, float] | None = None, **more: str) -> Member:
    settings = {"RATION_COMPUTE_REQUEST": f"{request:g}%"} if request else {}
    return Member(load, request, tuple(sorted({**settings, **more}.items())), number, stay)


@dataclass(frozen=True)
class Mix:
    """Containers side by side. `cuts` are parts of the window that are looked at one by one.

    `limit` is set of the only member while it runs, in per cent: its speed is over that of the same process without one.
    Two processes of a program that Python launches differ by more than what is to be told.
    """

    name: str
    members: tuple[Member, ...]
    ways: tuple[str, ...] = ("plain", "ration")
    cuts: tuple[tuple[float, float], ...] = ()
    seconds: float = 0.0  # at least
    limit: float | None = None
    least: int = 1  # rounds

    @property
    def rounds(self) -> int:
        return max(TIMES.rounds, self.least)

    @property
    def is_accounted(self) -> bool:
        """Whether each container is all the time: one that is alone and has no limit is not."""
        return (len(self.members) > 1 or self.limit is not None) and not any(it.stay for it in self.members)

    @property
    def window(self) -> float:
        return max(TIMES.window, self.seconds, *(it.load.least for it in self.members))


@dataclass(frozen=True)
class Seat:
    """A process of a pool; one without settings is bare."""

    load: Load
    settings: tuple[tuple[str, str], ...] | None = None
    number: int = 0

    @property
    def person(self) -> tuple[str, int]:
        return self.load.name, self.number


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
    host_ns: list[int] = field(default_factory=list)  # what the same piece of Python took, again and again
    thread: float | None = None  # of a core, in per cent: what the library's thread took
    account: float | None = None  # of the window, in per cent: GPU time by the library's account
    broken: str = ""


@dataclass(frozen=True)
class Alone:
    """What a program does by itself: bare, or where a limit comes and goes, without one."""

    rate: float
    gpu: float
    raw: float
    took_us: list[float]
    reference: busy.Reference
    apart: float = 0.0  # of two windows, before and after: by how much their speeds differ, in per cent of the mean
    host_ns: float = 0.0  # what a piece of Python took in its process, in the median; 0: it is not in Python


@dataclass(frozen=True)
class Account:
    """GPU time of a window by the library's account and by the witness, in per cent, and how long a kernel took."""

    account: float
    gpu: float
    kernel_us: float


@dataclass(frozen=True)
class Found:
    """What a container got. Speeds are in per cent of its own alone, times in per cent of the window."""

    speed: float
    gpu: float
    u: float  # GPU time alone
    raw: float = 0.0
    took_us: list[float] = field(default_factory=list)
    cuts: list[tuple[float, float]] = field(default_factory=list)  # speed and GPU time, of each cut
    thread: float | None = None
    apart: float | None = None  # how far rounds are apart, or two windows of what it is compared with: see `mean`
    accounts: tuple[Account, ...] = ()  # of each window
    host: float = 100.0  # how fast its host was, in per cent of what it was alone

def mean(rounds: Sequence[Found]) -> Found:
    """What a container got over some rounds: on average, with the requests of all. Says how far its speeds are apart."""
    first, speeds = rounds[0], [it.speed for it in rounds]
    threads = [it.thread for it in rounds if it.thread is not None]
    speed, apart = statistics.mean(speeds), first.apart
    if apart is None and len(rounds) > 1 and speed:
        apart = 100 * (max(speeds) - min(speeds)) / speed
    return replace(
        first,
        speed=speed,
        gpu=statistics.mean(it.gpu for it in rounds),
        raw=statistics.mean(it.raw for it in rounds),
        host=statistics.mean(it.host for it in rounds),
        took_us=[us for it in rounds for us in it.took_us],
        cuts=[
            (statistics.mean(speed for speed, _ in cut), statistics.mean(gpu for _, gpu in cut))
            for cut in zip(*(it.cuts for it in rounds), strict=True)
        ],
        thread=statistics.mean(threads) if threads else None,
        apart=apart,
        accounts=tuple(one for it in rounds for one in it.accounts),
    )


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


def seats_of(mixes: Iterable[Mix], known: Iterable[str] = ()) -> list[Seat]:
    """The processes that mixes need, those for what each program does alone included; a limit needs none."""
    needed: dict[Seat, None] = {}
    for mix in mixes:
        for it in mix.members:
            if it.load.name not in known and mix.limit is None:
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
