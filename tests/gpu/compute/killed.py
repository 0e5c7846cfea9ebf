"""Programs that are killed in the middle of what they do, two hundred of them at least: their neighbours lose nothing.

Processes of one container take and give back memory as fast as they can, fill the GPU, and are killed after a moment, with
memory, queues and leases in hand. Two containers beside them go on working.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpu import build
from gpu.bench import Bench, Case
from gpu.compute.busy import SECOND, Notes, gpu_time
from gpu.compute.container import Crew, slice_of
from gpu.compute.loads import ANY
from gpu.hooks.counted import fresh_directory
from gpu.memory.container import Session
from gpu.memory.witness import UNKNOWN, Witness, witness

GIB = 1 << 30
CAP = 8 * GIB
NEIGHBOURS = {"kernels-500us": 40.0, "kernels-5ms": 30.0}  # with their requests, in per cent
STORM = {"RATION_MEMORY": str(CAP), "RATION_COMPUTE_REQUEST": "30%"}
KILLS, AT_ONCE = 200, 6
LIFE = (0.05, 1.0)  # seconds after it said that it storms
PERIOD = 10.0
LEAST = 2.0  # points that a neighbour may be under its request in a period
LENGTH = 90.0  # seconds
PATIENCE = 300.0


@dataclass
class Storm:
    """What was seen from outside."""

    kills: int = 0
    highest: int = 0  # bytes of the container, by NVML
    looks: int = 0
    broken: list[str] = field(default_factory=list)
    left: list[int] = field(default_factory=list)  # processes that NVML still lists at the end


@dataclass
class Victim:
    session: Session
    dies: float | None = None  # when, of time.monotonic; it is not known before it storms


class Looker:
    """Adds up what NVML says of all processes of the storm, again and again: the dead too, until the driver let go."""

    def __init__(self, eyes: Witness, storm: Storm) -> None:
        self.eyes, self.storm = eyes, storm
        self.pids: set[int] = set()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.over.is_set():
            held = [used for pid, used in self.eyes.processes().items() if pid in self.pids and used != UNKNOWN]
            self.storm.highest = max(self.storm.highest, sum(held))
            self.storm.looks += 1
            time.sleep(0.01)

    def stop(self) -> None:
        self.over.set()
        self.thread.join()


def begin(bench: Bench, number: int, regions: Path) -> Session:
    env = slice_of(bench, "storm", regions, STORM)
    return Session(bench, f"storm-{number}", [str(build.program(bench, "storm")), str(number)], env, PATIENCE)


def go_on(victims: list[Victim], storm: Storm, chance: random.Random) -> None:
    """Hears which ones storm, and kills those whose time has come."""
    for victim in list(victims):
        session = victim.session
        if victim.dies is None and not session.coming.empty():
            word = session.line()
            if word == "storms":
                victim.dies = time.monotonic() + chance.uniform(*LIFE)
        if victim.dies is not None and time.monotonic() >= victim.dies and session.process.poll() is None:
            os.kill(session.pid, signal.SIGKILL)
            storm.kills += 1
        elif session.process.poll() not in (None, -signal.SIGKILL):
            storm.broken.append(f"{session.label} ended with status {session.process.returncode}; {session.last_words()}")
        else:
            continue
        # A process with a context takes its time to be gone; who comes next does not wait for that.
        victims.remove(victim)
        threading.Thread(target=session.close, daemon=True).start()


def run_storm(bench: Bench, regions: Path, looker: Looker, storm: Storm, end: int) -> None:
    chance, victims, number = random.Random(1), [], 0
    try:
        while len(storm.broken) < 5 and time.monotonic_ns() < end:
            while len(victims) < AT_ONCE:
                victims.append(Victim(begin(bench, number, regions)))
                looker.pids.add(victims[-1].session.pid)
                number += 1
            go_on(victims, storm, chance)
            time.sleep(0.005)
    finally:
        for victim in victims:
            victim.session.close()


def periods(notes: Notes, start: int, end: int) -> list[float]:
    """GPU time in each period, in per cent of it."""
    length = int(PERIOD * SECOND)
    return [100 * gpu_time(notes, at, at + length, alone=1.0) / length for at in range(start, end - length + 1, length)]


def judge(storm: Storm, had: dict[str, list[float]]) -> list[str]:
    wrong = list(storm.broken)
    if storm.kills < KILLS:
        wrong.append(f"{storm.kills} were killed, and {KILLS} are needed")
    if storm.highest > CAP:
        wrong.append(f"by NVML the storm held {storm.highest} bytes, {storm.highest - CAP} more than its cap")
    for name, shares in had.items():
        if not shares or min(shares) < NEIGHBOURS[name] - LEAST:
            wrong.append(f"{name} had {', '.join(f'{it:.1f}' for it in shares)}% in each {PERIOD:.0f} s, {NEIGHBOURS[name]:.0f} asked for")
    if storm.left:
        wrong.append(f"NVML still lists {len(storm.left)} of the killed")
    return wrong


def killed(bench: Bench) -> None:
    eyes, regions, storm = witness(bench), fresh_directory(bench, "regions"), Storm()
    build.program(bench, "storm")
    crews = [
        Crew(bench, name, ANY[name], slice_of(bench, name, regions, {"RATION_COMPUTE_REQUEST": f"{request:.0f}%"}))
        for name, request in NEIGHBOURS.items()
    ]
    looker = Looker(eyes, storm)
    try:
        for crew in crews:
            crew.begin()
        for crew in crews:
            crew.get_ready()
        start = time.monotonic_ns() + 2 * SECOND
        end = start + int(LENGTH * SECOND)
        for crew in crews:
            crew.run(start - 2 * SECOND, end + SECOND)
        time.sleep(2.0)
        run_storm(bench, regions, looker, storm, end)
        deadline = time.monotonic() + 10
        while (left := looker.pids & set(eyes.processes())) and time.monotonic() < deadline:
            time.sleep(0.05)
        storm.left = sorted(left)
        had = {}
        for crew in crews:
            crew.finish(start, end)
            had[crew.load.name] = periods(crew.noted("own"), start, end)
    finally:
        looker.stop()
        for crew in crews:
            crew.close()
    for problem in judge(storm, had):
        bench.problem(problem)
    bench.figures.update(kills=storm.kills, highest=storm.highest, cap=CAP, looks=storm.looks, shares=had)
    told = "; ".join(f"{name} {min(it):.1f} to {max(it):.1f}% of {NEIGHBOURS[name]:.0f}" for name, it in had.items() if it)
    bench.headline = (
        f"{storm.kills} killed in {LENGTH:.0f} s; at most {storm.highest / GIB:.3f} of {CAP / GIB:.0f} GiB in {storm.looks} looks; {told}"
    )


ABOUT = "processes of a container are killed in the middle of allocations and leases: its neighbours have their requests"
CASES = [Case("killed", ABOUT, killed, is_named=True)]
