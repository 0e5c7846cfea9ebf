"""Programs beside each other for minutes, while others come, are killed and are stopped: nobody may hang.

PyTorch, JAX and CuPy work in slices, piece by piece. Every few seconds one more container comes; it is killed, or stopped for a
second and then killed. A program that makes no progress for five seconds hangs.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu.bench import Bench, Case
from gpu.compute.busy import SECOND
from gpu.compute.container import Crew, simulated, slice_of
from gpu.compute.loads import ANY, Load
from gpu.hooks.counted import fresh_directory

NAMES, SIMULATED = ("train", "jax", "cupy"), ("kernels-500us", "sync-each", "kernels-5ms")
VISITOR = "kernels-500us"
# Together they may use more than there is, so both what is limited and what is contended for is switched.
SLICE = {"RATION_COMPUTE_REQUEST": "30%", "RATION_COMPUTE_LIMIT": "40%"}
LOST = 60.0  # seconds without progress after which nobody waits any more
TICK = 0.02


@dataclass
class Pace:
    """Seconds; the command line may set how long it takes."""

    length: float = 600.0
    piece: float = 2.0  # of work, after which a program says what it did
    hang: float = 5.0
    between: tuple[float, float] = (2.0, 5.0)  # visitors
    until_signal: tuple[float, float] = (0.3, 2.5)  # of a visitor's life: it may be loading still
    stopped: float = 1.0


PACE = Pace()


@dataclass
class Progress:
    """What one program did."""

    name: str
    units: int = 0
    pieces: int = 0
    longest: float = 0.0  # seconds without progress, as far as it says when it did something
    hangs: int = 0
    broken: str = ""

    def told(self) -> str:
        return f"{self.name} {self.units} steps in {self.pieces} pieces, the longest pause {self.longest:.2f} s"


@dataclass
class Visits:
    """Those that came, and how they went."""

    killed: int = 0
    stopped: int = 0


def judge(all_: Sequence[Progress], visits: Visits) -> list[str]:
    wrong = [f"{it.name} {it.broken}" for it in all_ if it.broken]
    wrong += [f"{it.name} hangs: {it.hangs} times without progress" for it in all_ if it.hangs]
    wrong += [f"{it.name} did nothing" for it in all_ if not it.units and not it.broken and not it.hangs]
    if not visits.killed + visits.stopped:
        wrong.append("nobody came and went")
    return wrong


class Player:
    """A program at work, piece by piece, and the watchdog's look at it."""

    def __init__(self, bench: Bench, crew: Crew, pace: Pace) -> None:
        self.bench, self.crew, self.pace = bench, crew, pace
        self.session = crew.sessions[0]
        self.progress = Progress(crew.load.name)
        self.began = self.seen = time.monotonic_ns()
        self.is_hanging = False

    def go_on(self) -> None:
        self.began = self.seen = time.monotonic_ns()  # what it waited for until now was us
        self.crew.run(self.began, self.began + int(self.pace.piece * SECOND))

    def look(self) -> None:
        """Hears what it says, and gives it more to do; says so if it has been silent for too long."""
        with contextlib.suppress(queue.Empty):
            while not self.progress.broken:
                line = self.session.coming.get_nowait()
                if line is None:
                    self.progress.broken = f"ended in the middle; {self.session.last_words()}"
                elif line:
                    self.hear(*line.split())
        late = (time.monotonic_ns() - self.began) / SECOND - self.pace.piece
        if late > self.pace.hang and not self.is_hanging and not self.progress.broken:
            self.hangs(late)
            self.is_hanging = True
        if late > LOST and not self.progress.broken:
            self.progress.broken = f"did not come back in {LOST:.0f} s"

    def hear(self, word: str, *words: str) -> None:
        if word == "marks":
            marks = [(int(at), int(units)) for at, units in (pair.split(":") for pair in words)]
            moments = [at for (at, units), (_, before) in zip(marks[1:], marks, strict=False) if units > before]
            self.advance([*moments, marks[-1][0]])
        elif word == "done":
            self.progress.units += int(words[0])
            self.progress.pieces += 1
            self.is_hanging = False
            self.go_on()

    def advance(self, moments: list[int]) -> None:
        for before, at in zip([self.seen, *moments], moments, strict=False):
            pause = (at - before) / SECOND
            self.progress.longest = max(self.progress.longest, pause)
            if pause > self.pace.hang and not self.is_hanging:
                self.hangs(pause)

    def hangs(self, seconds: float) -> None:
        self.progress.hangs += 1
        self.bench.note(f"hang: {self.progress.name} made no progress for {seconds:.1f} s")


@dataclass
class Visitor:
    """One that comes for a short time, and does not choose how it goes."""

    crew: Crew
    signals: list[tuple[float, signal.Signals]] = field(default_factory=list)  # when, of time.monotonic

    def look(self) -> bool:
        """Whether it is still there."""
        now, session = time.monotonic(), self.crew.sessions[0]
        while self.signals and self.signals[0][0] <= now:
            with contextlib.suppress(ProcessLookupError):
                os.kill(session.pid, self.signals.pop(0)[1])
        if self.signals or session.process.poll() is None:  # a process with a context takes its time to be gone
            return True
        self.crew.close()
        return False


def visit(bench: Bench, load: Load, number: int, regions: Path, pace: Pace, chance: random.Random) -> Visitor:
    env = slice_of(bench, f"visitor-{number}", regions, SLICE)
    crew = Crew(bench, f"visitor-{number}", load, env, cupti=False)
    crew.sessions[0].tell()
    now = time.monotonic_ns()
    crew.run(now, now + 60 * SECOND)
    first = time.monotonic() + chance.uniform(*pace.until_signal)
    if number % 2 == 0:
        return Visitor(crew, [(first, signal.SIGKILL)])
    after = first + pace.stopped
    return Visitor(crew, [(first, signal.SIGSTOP), (after, signal.SIGCONT), (after + 0.5, signal.SIGKILL)])


def soak(bench: Bench, loads: Sequence[Load], visitor: Load, pace: Pace) -> tuple[list[Progress], Visits]:
    regions = fresh_directory(bench, "regions")
    visitor.command(bench)  # compiled and calibrated while nobody is there
    crews: list[Crew] = []
    here: Visitor | None = None
    visits, chance = Visits(), random.Random(1)
    try:
        for number, load in enumerate(loads):
            env = slice_of(bench, f"{number}-{load.name}", regions, SLICE)
            crews.append(Crew(bench, f"{number}-{load.name}", load, env, cupti=False))
        for crew in crews:
            crew.begin()
        for crew in crews:
            crew.get_ready()
        players = [Player(bench, crew, pace) for crew in crews]
        for player in players:
            player.go_on()
        began = time.monotonic()
        following = began + chance.uniform(*pace.between)
        while time.monotonic() < began + pace.length and not any(it.progress.broken for it in players):
            for player in players:
                player.look()
            if here and not here.look():
                here, following = None, time.monotonic() + chance.uniform(*pace.between)
            elif not here and time.monotonic() >= following:
                number = visits.killed + visits.stopped
                here = visit(bench, visitor, number, regions, pace, chance)
                visits.killed, visits.stopped = visits.killed + (number % 2 == 0), visits.stopped + number % 2
            time.sleep(TICK)
    finally:
        for crew in [*crews, *([here.crew] if here else [])]:
            crew.close()
    return [player.progress for player in players], visits


def run_soak(bench: Bench) -> None:
    loads = [ANY[name] for name in (SIMULATED if simulated(bench) else NAMES)]
    all_, visits = soak(bench, loads, ANY[VISITOR], PACE)
    for problem in judge(all_, visits):
        bench.problem(problem)
    hangs = sum(it.hangs for it in all_)
    bench.figures.update(
        seconds=PACE.length,
        hangs=hangs,
        killed=visits.killed,
        stopped=visits.stopped,
        columns=["program", "steps", "pieces", "longest pause, s", "hangs", "what broke"],
        rows=[[it.name, str(it.units), str(it.pieces), f"{it.longest:.2f}", str(it.hangs), it.broken] for it in all_],
    )
    came = f"{visits.killed} others were killed, {visits.stopped} stopped"
    bench.headline = f"{hangs} hangs in {PACE.length:.0f} s; {'; '.join(it.told() for it in all_)}; {came}"


ABOUT = "PyTorch, JAX and CuPy beside each other for minutes, while others are killed and stopped: no hangs"
CASES = [Case("soak", ABOUT, run_soak, is_named=True)]
