"""Processes that are not as processes should be: without descriptors, forked, with threads, ending in every way."""

from __future__ import annotations

from gpu import build, counts
from gpu.bench import Bench, Case, Run
from gpu.hooks.counted import counted

LAUNCHES = 100  # odd_process.c: of each piece of work
# The launches of each process, largest first; a child that CUDA refuses makes none.
EXPECTED = {
    "close-first": [LAUNCHES],
    "close-later": [2 * LAUNCHES],
    "fork-first": [LAUNCHES, LAUNCHES],
    "fork-later": [2 * LAUNCHES],
    "threads": [8 * LAUNCHES],
    "return": [LAUNCHES],
    "_exit": [LAUNCHES],
    "quick_exit": [LAUNCHES],
    "abort": [LAUNCHES],
    "terminated": [LAUNCHES],
}


def run_modes(bench: Bench, *modes: str) -> None:
    """Each mode bare, hooked and counted. Bare and hooked must answer alike; CUPTI has descriptors of its own."""
    program = str(build.program(bench, "odd_process"))
    told = {}
    for mode in modes:
        answers = {}
        for label in ("bare", "hooked", "counted"):
            answer, name = bench.path(f"{mode}-{label}.answer"), f"{mode}-{label}"
            run = run_one(bench, label, name, [program, mode, str(answer)], children_fail=mode == "fork-later")
            text = answer.read_text() if answer.exists() else ""
            answers[label] = (run.how(), text)
            if not text:
                bench.problem(f"{name}: no answer; {run.how()}: {run.last_words}")
        if answers["bare"] != answers["hooked"]:
            bench.problem(f"{mode}: bare {answers['bare']}, hooked {answers['hooked']}")
        if answers["bare"][0] != answers["counted"][0]:
            bench.problem(f"{mode}: bare {answers['bare'][0]}, counted {answers['counted'][0]}")
        told[mode] = answers["bare"][1].splitlines()
    bench.figures["answers"] = told
    bench.headline = f"{', '.join(modes)}: as bare, all calls in the trace"


def run_one(bench: Bench, label: str, name: str, command: list[str], *, children_fail: bool) -> Run:
    mode = command[1]
    if label == "bare":
        return bench.run(name, command, limit=60)
    if label == "hooked":
        trace = bench.path(f"{name}.trace")
        run = bench.run(name, command, hooked=True, env={"RATION_TRACE": str(trace)}, limit=60)
    else:
        run, _ = counted(bench, name, command, limit=60, expects=("launches",), children_fail=children_fail)
    check_launches(bench, mode, name)
    return run


def check_launches(bench: Bench, mode: str, name: str) -> None:
    """The trace against what the program is known to launch, which needs no CUPTI."""
    trace = counts.read_trace(bench.directory / f"{name}.trace")
    launches = sorted((calls["cuLaunchKernel"] for calls in trace.values()), reverse=True)
    launches = [count for count in launches if count]
    if launches != EXPECTED[mode]:
        bench.problem(f"{name}: launches per process in the trace {launches}, made {EXPECTED[mode]}")


CASES = [
    Case(
        "descriptors",
        "processes that close all descriptors, before and while they use CUDA",
        lambda bench: run_modes(bench, "close-first", "close-later"),
    ),
    Case(
        "fork",
        "CUDA in a forked child; and what a child of a process with CUDA is told",
        lambda bench: run_modes(bench, "fork-first", "fork-later"),
    ),
    Case(
        "endings",
        "eight threads; ends by return, _exit, quick_exit, abort and SIGTERM",
        lambda bench: run_modes(bench, "threads", "return", "_exit", "quick_exit", "abort", "terminated"),
    ),
]
