"""Real programs, bare and under the library: their results are the same text, and both witnesses count the same calls.

A workload runs three times: bare, hooked, and hooked with the trace and CUPTI counting. One that compiles and tunes
runs once more before, hooked and counted, to fill a cache that the other runs share: with what it tuned to, the results
are the same each time.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpu import build
from gpu.bench import Bench, Case, Run
from gpu.counts import Comparison
from gpu.hooks.counted import counted, fresh_directory, note_messages

SCRIPTS = Path(__file__).resolve().parent.parent / "workloads"

Command = Callable[[Bench], list[str]]


@dataclass(frozen=True)
class Workload:
    """A program, what it needs around it, and the classes of calls without which it would show nothing."""

    name: str
    about: str
    command: Command
    expects: tuple[str, ...]
    needs: tuple[str, ...] = ()  # Python packages; "a|b" is either
    env: dict[str, str] = field(default_factory=dict)
    caches: tuple[str, ...] = ()  # variables that name a directory to share between the runs
    limit: float = 120

    def case(self) -> Case:
        return Case(self.name, self.about, lambda bench: run_workload(bench, self))


def script(name: str, *arguments: str) -> Command:
    return lambda bench: [bench.machine.python, str(SCRIPTS / f"{name}.py"), *arguments]


def native(name: str, per_thread: bool = False) -> Command:
    return lambda bench: [str(build.program(bench, name, per_thread=per_thread))]


def run_workload(bench: Bench, workload: Workload) -> None:
    for package in workload.needs:
        if not any(bench.machine.has_package(name) for name in package.split("|")):
            bench.skip(f"{bench.machine.python} has no {package.replace('|', ' or ')}")
    command = workload.command(bench)
    env = dict(workload.env)
    for variable in workload.caches:
        env[variable] = str(fresh_directory(bench, variable.lower()))

    runs: list[Run] = []
    compared: dict[str, Comparison] = {}

    def run_counted(label: str) -> None:
        run, found = counted(bench, label, command, env=env, limit=workload.limit, expects=workload.expects)
        runs.append(run)
        if found:
            compared[label] = found

    if workload.caches:
        run_counted("cold")
    bare = bench.run("bare", command, env=env, limit=workload.limit)
    if bare.status != 0:
        bench.problem(f"it fails without the library too ({bare.how()}): {bare.last_words}")
        return
    runs.append(bench.run("hooked", command, hooked=True, env=env, limit=workload.limit))
    note_messages(bench, runs[-1])
    run_counted("counted")

    bench.figures["seconds"] = {run.label: round(run.seconds, 2) for run in (bare, *runs)}
    bench.figures["result"] = bare.out.splitlines()
    bench.figures["counts"] = {label: found.figures() for label, found in compared.items()}
    judge_results(bench, bare, runs, lambda: bench.run("bare-again", command, env=env, limit=workload.limit))
    calls = " + ".join(f"{found.judged_calls:,}" for found in compared.values())
    counts = f"{calls} calls counted alike" if calls else "counts not compared"
    bench.headline = f"{len(bare.out.splitlines())} lines of results equal; {counts}"


def judge_results(bench: Bench, bare: Run, runs: list[Run], again: Callable[[], Run]) -> None:
    """Every run must end as the bare one did and print the same; a cold one tunes as it goes, and may round apart."""
    different = False
    for run in runs:
        if run.label == "cold" and run.status == bare.status:
            bench.figures["cold_results_equal"] = run.out == bare.out
        else:
            different |= not same(bench, bare, run)
    if different:
        once_more = again()
        if once_more.status == 0 and once_more.out != bare.out:
            bench.problem("the results differ between two bare runs as well: this says nothing about the library")


def same(bench: Bench, bare: Run, other: Run) -> bool:
    """Whether a run went as the bare one did, by its results and its end."""
    if other.status != bare.status:
        bench.problem(f"{other.label}: {other.how()}, bare: {bare.how()}; its last words: {other.last_words}")
        return False
    if other.out != bare.out:
        lines = difflib.unified_diff(
            bare.out.splitlines(), other.out.splitlines(), "bare", other.label, n=0, lineterm=""
        )
        bench.problem(f"{other.label}: other results: " + " | ".join(list(lines)[2:10]))
        return False
    return True
