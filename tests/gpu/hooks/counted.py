"""Runs under the library with both witnesses of its counts: the trace, and CUPTI inside the driver."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpu import build, counts
from gpu.bench import Bench, Run


def counted(
    bench: Bench,
    label: str,
    command: list[str],
    *,
    env: dict[str, str] | None = None,
    limit: float = 120,
    expects: tuple[str, ...] = (),
    children_fail: bool = False,
) -> tuple[Run, counts.Comparison | None]:
    """Runs hooked, traced and counted by CUPTI, and compares. None for the comparison where there is no CUPTI.

    `expects` are classes that must have been called: two empty counts are equal, and show nothing. `children_fail` is
    that of `counts.compare`.
    """
    trace = bench.path(f"{label}.trace")
    settings = {**(env or {}), "RATION_TRACE": str(trace)}
    pages = fresh_directory(bench, f"{label}.cupti")
    witness = build.witness(bench)
    if isinstance(witness, build.Missing):
        bench.figures.setdefault("counts_not_compared", witness.reason)
        if witness.fault:
            bench.problem(witness.reason)
    else:
        settings.update(CUDA_INJECTION64_PATH=str(witness), CUPTI_COUNT_DIR=str(pages))
    run = bench.run(label, command, hooked=True, env=settings, limit=limit)
    traced = counts.read_trace(trace)
    if not traced:
        bench.problem(f"{label}: no trace was written")
    note_messages(bench, run)
    if isinstance(witness, build.Missing):
        return run, None
    found = counts.compare(counts.read_table(), traced, counts.read_pages(pages), children_fail=children_fail)
    judge(bench, label, found, expects)
    return run, found


def judge(bench: Bench, label: str, found: counts.Comparison, expects: tuple[str, ...]) -> None:
    for problem in found.problems:
        bench.problem(f"{label}: {problem}")
    if found.differences:
        bench.problem(f"{label}: counts differ: {counts.describe(found.differences)}")
    if not found.problems:
        for section in expects:
            if not found.classes.get(section, {}).get("cupti"):
                bench.problem(f"{label}: CUPTI saw no call of class {section}, so nothing is shown about it")
    bench.note(f"-- counts of {label}: {found.figures()}")


def note_messages(bench: Bench, run: Run) -> None:
    """What the library itself had to say is worth a look, even when all is well."""
    messages = [line for line in run.err.splitlines() if line.startswith("ration: ")]
    if messages:
        bench.figures.setdefault("messages", []).extend(messages[:10])


def fresh_directory(bench: Bench, name: str) -> Path:
    path = bench.directory / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
