"""Containers that compute: their programs are brought to the start, run for a time that is measured, and witnessed.

A program that loads a framework takes seconds before it touches the GPU, and the GPU's time is what is scarce: the next
ones of the plan load while one is measured, on cores that are idle then.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from gpu import build
from gpu.bench import Bench, Skip
from gpu.compute import busy, region
from gpu.compute.loads import Load
from gpu.hooks.counted import fresh_directory
from gpu.memory.container import Session

SIMULATED = "GPU_TEST_SIM"  # names `ration-sim` where the driver is the simulated one
TAIL = 0.15  # seconds that a program runs on after its window, so that the window's end is like its middle
PATIENCE = 300.0
EXTRA: dict[str, str] = {}  # settings that the command line gives all slices
watchers: dict[str, Path | build.Missing] = {}


@dataclass
class Times:
    """Seconds; the command line may shorten them."""

    warmup: float = 2.0
    window: float = 10.0
    solo: float = 10.0


TIMES = Times()


@dataclass
class Got:
    """What one container did in its window."""

    window: busy.Window
    notes: busy.Notes
    start: int
    end: int
    units: int
    program_rate: float  # units per second of the whole run, as the program counts
    took_us: list[float] = field(default_factory=list)  # per request, of a load that has requests
    simulated_rate: float | None = None  # kernels per second of the window, by the simulated GPU's record
    watched: bool = True
    account: float | None = None  # the share of the window by the library's account, of a container in a slice

    @property
    def simulated(self) -> bool:
        return self.simulated_rate is not None

    @property
    def rate(self) -> float:
        """Kernels, graphs and copies per second, as the witness saw them end; without one, what the program says."""
        if self.simulated_rate is not None:
            return self.simulated_rate
        return self.window.rate if self.watched else self.program_rate

    def figures(self) -> dict:
        told = {
            "share": round(self.window.share, 3),
            "share_without_pauses": round(self.window.bare_share, 3),
            "seconds": [round(second, 2) for second in self.window.seconds],
            "rate": round(self.rate, 2),
            "units": self.units,
            "units_per_second": round(self.program_rate, 3),
            "records": self.window.kinds,
        }
        if self.account is not None:
            told["account"] = round(self.account, 3)
        if not self.simulated:
            told["pauses"] = busy.pauses(self.notes.intervals, self.start, self.end)
        return told


def watcher(bench: Bench) -> Path | build.Missing:
    """The library that notes what ran when, compiled as the one that counts calls is."""
    if "cupti" not in watchers:
        output = bench.directory.parent / "built" / "cupti_busy.so"
        output.parent.mkdir(parents=True, exist_ok=True)
        command = build.command_for(bench, "cupti_count", "", output)
        if isinstance(command, build.Missing):
            watchers["cupti"] = command
        else:
            source = {str(build.PROGRAMS / "cupti_count.c"): str(build.PROGRAMS / "cupti_busy.c")}
            done = bench.run("compile-cupti_busy", [source.get(word, word) for word in command], limit=120)
            broken = build.Missing(f"cupti_busy does not compile: {done.last_words}", fault=True)
            watchers["cupti"] = output if done.status == 0 else broken
    return watchers["cupti"]


def simulated(bench: Bench) -> str:
    """The tool that reads the simulated GPU's record; empty where the GPU is real."""
    return bench.machine.environment.get(SIMULATED, "")


def world(bench: Bench) -> dict[str, str]:
    """Settings of the simulated GPU, which a bare run is not to lose."""
    return {name: value for name, value in os.environ.items() if simulated(bench) and name.startswith("RATION_SIM_")}


def slice_of(bench: Bench, name: str, regions: Path, settings: dict[str, str]) -> dict[str, str]:
    """The environment of a container in a slice. Those that share a GPU share the directory of regions."""
    return {"LD_PRELOAD": bench.preload(), "RATION_NAME": f"gpu/{name}", "RATION_DIR": str(regions), **settings, **EXTRA}


class Crew:
    """The processes of one container, from their start to what they have to say.

    `cupti` says whether CUPTI notes what they do; a program in C notes that itself. By default it is one of the two. On
    `cores` they are from their first instruction on.
    """

    def __init__(
        self,
        bench: Bench,
        label: str,
        load: Load,
        env: dict[str, str],
        *,
        cupti: bool | None = None,
        cores: Collection[int] | None = None,
    ) -> None:
        load.must_be_there(bench)
        self.bench, self.label, self.load = bench, label, load
        self.cupti = load.is_script if cupti is None else cupti
        self.tool = simulated(bench)
        self.notes = fresh_directory(bench, f"{label}.notes")
        env = {**world(bench), **load.env, **self.caches(), **env, "BUSY_DIR": str(self.notes)}
        if load.is_script:
            env["PYTHONHASHSEED"] = "0"  # two processes of a program lay out their memory alike
        if self.cupti:
            library = watcher(bench)
            if isinstance(library, build.Missing):
                if library.fault:
                    raise RuntimeError(library.reason)
                bench.skip(library.reason)
            env["CUDA_INJECTION64_PATH"] = str(library)
        command = load.command(bench)
        self.sessions = [
            Session(bench, f"{label}-{number}", command, env, PATIENCE, cores) for number in range(load.processes)
        ]
        self.slice = (Path(env["RATION_DIR"]), env["RATION_NAME"]) if "RATION_DIR" in env else None
        self.simulated_rate: float | None = None
        self.account: float | None = None

    def caches(self) -> dict[str, str]:
        found = {}
        for variable in self.load.caches:
            place = self.bench.directory.parent / "caches" / f"{self.load.name}-{variable.lower()}"
            place.mkdir(parents=True, exist_ok=True)
            found[variable] = str(place)
        return found

    def begin(self) -> None:
        """From here on it may use the GPU."""
        for session in self.sessions:
            session.until("loaded")
        for session in self.sessions:
            session.tell()

    def get_ready(self) -> None:
        """With a context, compiled and warm, and idle."""
        for session in self.sessions:
            session.until("ready")

    def run(self, start: int, until: int) -> None:
        for session in self.sessions:
            session.tell(f"run {start} {until}")

    def finish(self, start: int, end: int) -> Got:
        """Waits for its end. What counts is from `start` to `end`."""
        units, rate, took = 0, 0.0, []
        for session in self.sessions:
            session.tell("quit")
            said = {words[0]: words[1:] for words in (line.split() for line in session.rest()) if words}
            count, began, ended = (int(word) for word in said["done"])
            units += count
            rate += count * busy.SECOND / (ended - began)
            took += [float(us) for at, us in (w.split(":") for w in said.get("took_us", ())) if start <= int(at) < end]
        watched = self.cupti or not self.load.is_script
        if self.tool:
            notes = busy.read_simulated(self.tool, {**self.bench.machine.environment, **world(self.bench)})
        elif watched:
            notes = self.noted("own" if not self.load.is_script else "cupti")
        else:
            notes = busy.Notes()
        window = busy.measure(notes, start, end)
        return Got(window, notes, start, end, units, rate, took, self.simulated_rate, watched, self.account)

    def noted(self, witness: str) -> busy.Notes:
        """What a witness wrote down: the program itself ("own"), or "cupti"."""
        return busy.read_all(self.notes, witness, self.load.processes)

    def close(self) -> None:
        for session in self.sessions:
            session.close()


def together(crews: list[Crew], seconds: float, stays: dict[int, tuple[float, float]] | None = None) -> list[Got]:
    """Containers side by side: ready, warm, measured. They are gone afterwards.

    `stays` says of some, by number, from when to when they work, in seconds of the window; the others always do.
    """
    try:
        for crew in crews:
            crew.begin()
        for crew in crews:
            crew.get_ready()
        begin = time.monotonic_ns() + 5_000_000
        start = begin + int(TIMES.warmup * busy.SECOND)
        end = start + int(seconds * busy.SECOND)
        for number, crew in enumerate(crews):
            stay = (stays or {}).get(number)
            times = [start + int(s * busy.SECOND) for s in stay] if stay else [begin, end + int(TAIL * busy.SECOND)]
            crew.run(*times)
        look_from_outside(crews, start, end)
        return [crew.finish(start, end) for crew in crews]
    finally:
        for crew in crews:
            crew.close()


@dataclass
class Look:
    """What can be seen of containers at one time, without asking them."""

    clock: int
    accounts: dict[Crew, int]
    simulated: tuple[int, dict[int, int]] | None  # the simulated GPU's clock, and kernels by process


def look(crews: list[Crew]) -> Look:
    bench, tool = crews[0].bench, crews[0].tool
    simulated = busy.simulated_kernels(tool, {**bench.machine.environment, **world(bench)}) if tool else None
    accounts = {crew: region.gpu_time_of(*crew.slice) for crew in crews if crew.slice}
    return Look(time.monotonic_ns(), accounts, simulated)


def look_from_outside(crews: list[Crew], start: int, end: int) -> None:
    """When the window begins, and when it ends."""
    looks = []
    for moment in (start, end):
        time.sleep(max(0.0, (moment - time.monotonic_ns()) / busy.SECOND))
        looks.append(look(crews))
    before, after = looks
    for crew, accounted in before.accounts.items():
        crew.account = 100 * (after.accounts[crew] - accounted) / (after.clock - before.clock)
    if before.simulated and after.simulated:
        (first, were), (last, are) = before.simulated, after.simulated
        for crew in crews:
            done = sum(are[session.pid] - were[session.pid] for session in crew.sessions)
            crew.simulated_rate = done * busy.SECOND / (last - first)


def alone(crew: Crew, seconds: float) -> Got:
    return together([crew], seconds)[0]


@dataclass(frozen=True)
class Key:
    """A run of the plan: a load, without the library, or in a slice with a limit."""

    load: Load
    limit: int | None = None

    @property
    def label(self) -> str:
        return self.load.name + ("-solo" if self.limit is None else f"-{self.limit}")

    def crew(self, bench: Bench) -> Crew:
        env: dict[str, str] = {}
        if self.limit is not None:
            regions = fresh_directory(bench, f"regions-{self.label}")
            env = slice_of(bench, self.label, regions, {"RATION_COMPUTE_LIMIT": f"{self.limit}%"})
        return Crew(bench, self.label, self.load, env)


class Stable:
    """Programs that are loading, in the order in which they will be needed."""

    AHEAD = 4

    def __init__(self) -> None:
        self.order: list[Key] = []
        self.waiting: dict[Key, Crew] = {}

    def take(self, bench: Bench, key: Key) -> Crew:
        if key in self.order:
            del self.order[: self.order.index(key) + 1]
        crew = self.waiting.pop(key, None) or key.crew(bench)
        crew.bench = bench
        for session in crew.sessions:
            session.bench = bench
        if (os.cpu_count() or 1) >= 8:
            self.look_ahead(bench)
        return crew

    def look_ahead(self, bench: Bench) -> None:
        # Not those that are needed much later: a program that has waited for minutes is taken to hang.
        for key in self.order[: self.AHEAD]:
            if key.load.is_script and key not in self.waiting:
                with contextlib.suppress(Skip, RuntimeError):  # its own case will say what is wrong
                    self.waiting[key] = key.crew(bench)

    def clear(self) -> None:
        for crew in self.waiting.values():
            crew.close()
        self.waiting.clear()


STABLE = Stable()
solos: dict[str, Got] = {}


def solo(bench: Bench, load: Load) -> Got:
    """What a load does without the library and alone: measured once per run."""
    if load.name not in solos:
        solos[load.name] = alone(STABLE.take(bench, Key(load)), TIMES.solo)
    return solos[load.name]
