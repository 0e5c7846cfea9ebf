"""What came out: a line per case while it runs, a table at the end, and a JSON file for programs."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu.machine import ROOT

COLOURS = {"pass": "\033[32m", "fail": "\033[31m", "skip": "\033[33m"}

PLACES = ("--results", "--out", "--library", "--python")  # options that say nothing about what was measured


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


def write_json(
    path: Path, given: list[str], facts: dict, library: Path, began: str, seconds: float, outcomes: list[Outcome]
) -> None:
    """Written anew after every case, so that a run that is cut short leaves what it had."""
    whole = {
        "version": 1,
        "command": given,
        "began": began,
        "seconds": round(seconds, 1),
        "machine": facts,
        "library": {
            "path": relative(library),
            "bytes": library.stat().st_size,
            "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
        },
        "build": build_of(library),
        "totals": totals(outcomes),
        "cases": [asdict(outcome) for outcome in outcomes],
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(whole, indent=1, default=str) + "\n")
    temporary.replace(path)


def read_json(path: Path) -> dict:
    """What a run left."""
    try:
        whole = json.loads(path.read_text())
        whole["cases"] = [Outcome(**case) for case in whole["cases"]]
        missing = [key for key in ("command", "began", "machine", "build") if key not in whole]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"ci/gpu: {path} is not what a run leaves, a results.json: {error}") from None
    if missing:
        raise SystemExit(f"ci/gpu: {path} does not say its {missing[0]}: it is from an older ci/gpu; run the cases again")
    return whole


def write_pages(place: Path, paths: list[Path]) -> None:
    """One page of tables for each group, for people: what was run, on what, and what came out, run by run."""
    runs = [read_json(path) for path in paths]
    place.mkdir(parents=True, exist_ok=True)
    for group in dict.fromkeys(outcome.group for run in runs for outcome in run["cases"]):
        (place / f"{group}.md").write_text(page(group, runs))


def build_of(library: Path) -> str:
    """Which build was tested: the checkout's commit, and the library's own bytes."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        commit = ""
    name = hashlib.sha256(library.read_bytes()).hexdigest()[:12]
    return f"{commit or 'no checkout'}, `{library.name}` {name}"


def page(group: str, runs: list[dict]) -> str:
    """The page. Figures that a case has as rows come in a table of their own."""
    lines = [f"# Results: {group}", "", "<!-- Written by ci/gpu --results; do not edit. -->"]
    for number, run in enumerate(runs, 1):
        outcomes = [outcome for outcome in run["cases"] if outcome.group == group]
        if not outcomes:
            continue
        lines += [""] if len(runs) == 1 else ["", f"## Run {number}", ""]
        lines += part(run, outcomes, "##" if len(runs) == 1 else "###")
    return "\n".join(lines) + "\n"


def part(run: dict, outcomes: list[Outcome], heading: str) -> list[str]:
    """Of a page: one run. Cases for which it had no time are not told of."""
    given, facts = run["command"], run["machine"]
    asked = [
        word for at, word in enumerate(given) if word not in PLACES and (at == 0 or given[at - 1] not in PLACES)
    ]
    versions = ", ".join(f"{name} {version}" for name, version in facts.get("packages", {}).items())
    sums = totals(outcomes)
    told = [it for it in outcomes if not (it.result == "skip" and "budget" in it.reason)]
    lines = [
        *markdown(
            ["", ""],
            [
                ["command", f"`ci/gpu {' '.join(asked)}`".replace(" `", "`")],
                ["machine", f"{facts.get('gpu') or 'no GPU'}, {facts.get('cores', '?')} cores"],
                ["driver", str(facts.get("driver") or "-")],
                ["programs", f"nvcc {facts.get('nvcc') or '-'}, {versions}"],
                ["build", run["build"]],
                ["when", run["began"]],
                ["cases", f"{sums['pass']} held, {sums['fail']} not, {sums['skip']} skipped"],
            ],
        ),
        "",
        *markdown(
            ["case", "held", "what it showed"],
            [[it.name, {"pass": "yes", "fail": "**no**", "skip": "skipped"}[it.result], shown(it)] for it in told],
        ),
    ]
    for it in told:
        if it.figures.get("rows"):
            lines += ["", f"{heading} {it.name}", "", f"{it.about}.", ""]
            lines += markdown(it.figures["columns"], it.figures["rows"])
    return lines


def shown(outcome: Outcome) -> str:
    told = [outcome.headline] if outcome.headline else []
    if outcome.result != "pass":
        problems = outcome.reason.split("\n")
        told += problems[:3] + ([f"and {len(problems) - 3} more"] if len(problems) > 3 else [])
    return "; ".join(told)


def markdown(columns: list[str], rows: list[list[str]]) -> list[str]:
    """A table; what would end a cell is written otherwise."""

    def line_of_cells(cells: list[str]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line_of_cells(columns), "|" + "---|" * len(columns), *(line_of_cells(row) for row in rows)]


def relative(path: Path) -> str:
    """A path as seen from the checkout, where it is inside of it."""
    try:
        return str(path.relative_to(ROOT))
    except ValueError:
        return str(path)
