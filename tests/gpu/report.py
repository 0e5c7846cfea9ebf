"""What came out: a line per case while it runs, a table at the end, and a JSON file for programs."""

from __future__ import annotations

import hashlib
import json
import sys
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu.machine import ROOT

COLOURS = {"pass": "\033[32m", "fail": "\033[31m", "skip": "\033[33m"}


@dataclass
class Outcome:
    """How one case ended. `reason` says why it failed or was skipped; `headline` what a pass showed."""

    group: str
    name: str
    about: str
    result: str
    reason: str
    headline: str
    seconds: float
    log: str
    figures: dict[str, Any] = field(default_factory=dict)


def coloured(result: str) -> str:
    word = result.upper() if result == "fail" else result
    return f"{COLOURS[result]}{word}\033[0m" if sys.stdout.isatty() else word


def words(outcome: Outcome) -> str:
    return outcome.headline if outcome.result == "pass" else outcome.reason


def line(outcome: Outcome, width: int = 150) -> str:
    """The result of a case, on one line."""
    short = textwrap.shorten(words(outcome), width, placeholder=" …")
    return f"{coloured(outcome.result)}  {outcome.seconds:6.1f} s  {short}"


def table(outcomes: list[Outcome]) -> str:
    """All results, with the whole of what is wrong under those that failed."""
    lines = [f"{'case':<34} result   seconds  what it showed, or why not"]
    for outcome in outcomes:
        name = f"{outcome.group}.{outcome.name}"
        lines.append(f"{name:<34} {coloured(outcome.result)}   {outcome.seconds:8.1f}  {line_of(outcome)}")
        if outcome.result == "fail":
            for problem in outcome.reason.split("\n"):
                lines += textwrap.wrap(problem, 140, initial_indent="    - ", subsequent_indent="      ")[:12]
            lines.append(f"      ({outcome.log})")
    return "\n".join(lines)


def line_of(outcome: Outcome) -> str:
    if outcome.result == "fail":
        count = len(outcome.reason.split("\n"))
        return f"{count} problem{'s' if count > 1 else ''}:"
    return textwrap.shorten(words(outcome), 110, placeholder=" …")


def totals(outcomes: list[Outcome]) -> dict[str, int]:
    return {result: sum(outcome.result == result for outcome in outcomes) for result in ("pass", "fail", "skip")}


def write_json(path: Path, facts: dict, library: Path, began: str, seconds: float, outcomes: list[Outcome]) -> None:
    """Written anew after every case, so that a run that is cut short leaves what it had."""
    whole = {
        "version": 1,
        "began": began,
        "seconds": round(seconds, 1),
        "machine": facts,
        "library": {
            "path": relative(library),
            "bytes": library.stat().st_size,
            "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        },
        "totals": totals(outcomes),
        "cases": [asdict(outcome) for outcome in outcomes],
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(whole, indent=1, default=str) + "\n")
    temporary.replace(path)


def relative(path: Path) -> str:
    """A path as seen from the checkout, where it is inside of it."""
    try:
        return str(path.relative_to(ROOT))
    except ValueError:
        return str(path)
