"""The command line of `ci/gpu`: chooses cases, runs them one after the other, and reports."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import os
import sys
import time
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu import report
from gpu.bench import Bench, Case, Skip
from gpu.machine import ROOT, Machine
from gpu.report import Outcome

GROUPS = {"hooks": "gpu.hooks", "memory": "gpu.memory", "compute": "gpu.compute"}
LIBRARIES = ("package", "release", "debug")


def arguments(manual: str, given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ci/gpu", description=manual, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"groups to run: {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--library", type=Path, metavar="PATH", help="libration.so to test")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results and logs go (default: target/gpu)")
    parser.add_argument(
        "--only", nargs="+", action="extend", metavar="NAME", help="cases, by name or pattern ('torch-*')"
    )
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no case after this many seconds")
    parser.add_argument("--window", type=float, metavar="SECONDS", help="compute: measure for so long (default: 10)")
    parser.add_argument("--warmup", type=float, metavar="SECONDS", help="compute: after so long (default: 2)")
    parser.add_argument("--mixes", type=int, metavar="N", help="compute: at most so many mixes of each case")
    parser.add_argument(
        "--settings", nargs="+", action="extend", metavar="NAME=VALUE", help="compute: more settings of all slices"
    )
    parser.add_argument("--busy", type=int, metavar="N", help="compute: keep so many cores busy meanwhile")
    parser.add_argument("--rounds", type=int, metavar="N", help="compute: run each mix N times, by turns with plain (default: 1)")
    parser.add_argument("--no-pin", action="store_true", help="compute: programs of mixes run on any core")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="compute: how long `--only soak` takes (default: 600)")
    parser.add_argument("--quick", action="store_true", help="compute: only a few cases, measured for 3 seconds")
    parser.add_argument("--results", type=Path, metavar="DIR", help="write a page of tables for each group (docs/results)")
    parser.add_argument(
        "--from", nargs="+", type=Path, action="extend", dest="left", metavar="FILE", help="write pages of these results.json"
    )
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="Python of the frameworks")
    parser.add_argument("--list", action="store_true", help="name the cases, and run none")
    parser.add_argument("--self-check", action="store_true", help="test this runner itself; needs no GPU")
    return parser.parse_args(given)


def choose(
    groups: list[str], only: list[str] | None, quick: bool = False, *, all_of_them: bool = False
) -> list[tuple[str, Case]]:
    """The cases to run, in order. A name that fits nothing is an error, not an empty run.

    `quick` leaves those that a group names `QUICK`, where it has such a list and none are named here. Those that run only
    when they are named are left out otherwise, unless all are wanted.
    """
    for group in groups:
        if group not in GROUPS:
            raise SystemExit(f"ci/gpu: no group is called '{group}' (there is {', '.join(GROUPS)})")
    cases = []
    for group in groups or GROUPS:
        module = importlib.import_module(GROUPS[group])
        few = getattr(module, "QUICK", ["*"]) if quick and not only else ["*"]
        cases += [(group, case) for case in module.CASES if any(fnmatch.fnmatch(case.name, name) for name in few)]
    if not only:
        return [(group, case) for group, case in cases if all_of_them or not case.is_named]
    chosen = []
    for pattern in only:
        fits = [(group, case) for group, case in cases if fnmatch.fnmatch(case.name, pattern.split(".")[-1])]
        if not fits:
            raise SystemExit(f"ci/gpu: no case is called '{pattern}' (ci/gpu --list names them)")
        chosen += [pair for pair in fits if pair not in chosen]
    return [pair for pair in cases if pair in chosen]


def find_library(given: Path | None) -> Path:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    places = [given] if given else [target / kind / "libration.so" for kind in LIBRARIES]
    for place in places:
        if place.is_file():
            found = place.resolve()
            if any(mark in str(found) for mark in " :\t"):
                raise SystemExit(f"ci/gpu: {found}: the loader splits such a path; put the library elsewhere")
            return found
    looked = ", ".join(str(place) for place in places)
    raise SystemExit(f"ci/gpu: no library to test (looked for {looked}); build one, or say --library PATH")


def run_case(group: str, case: Case, library: Path, machine: Machine, out: Path) -> Outcome:
    directory = out / "work" / case.name
    directory.mkdir(parents=True, exist_ok=True)
    log = out / f"{case.name}.log"
    log.write_text(f"{group}.{case.name}: {case.about}\n")
    bench = Bench(case.name, library, machine, directory, log)
    start = time.monotonic()
    result, reason = "pass", ""
    try:
        if machine.driver["error"]:
            bench.skip(f"no GPU: {machine.driver['error']}")
        case.run(bench)
    except Skip as skip:
        if not bench.problems:
            result, reason = "skip", str(skip)
    except Exception as error:  # a case that breaks is a case that failed; the others go on
        bench.note(traceback.format_exc())
        bench.problem(f"{type(error).__name__}: {error}")
    if bench.problems:
        result, reason = "fail", "\n".join(bench.problems)
    seconds = round(time.monotonic() - start, 2)
    bench.note(f"\n{result}: {reason or bench.headline}")
    return Outcome(
        group, case.name, case.about, result, reason, bench.headline, seconds, report.relative(log), bench.figures
    )


def each_group(chosen: list[tuple[str, Case]], name: str) -> list[tuple[str, Any]]:
    """The chosen groups that have a function of this name: `plan`, before their cases, or `finish`, after them."""
    groups = dict.fromkeys(group for group, _ in chosen)
    found = ((group, getattr(importlib.import_module(GROUPS[group]), name, None)) for group in groups)
    return [(group, function) for group, function in found if function]


def main(manual: str, given: list[str]) -> int:
    options = arguments(manual, given)
    if options.self_check:
        from gpu import selfcheck

        return selfcheck.run()
    if options.left:
        if not options.results:
            raise SystemExit("ci/gpu: --from needs --results DIR: where to write the pages")
        report.write_pages(options.results, options.left)
        return 0
    chosen = choose(options.groups, options.only, options.quick, all_of_them=options.list)
    if options.list:
        for group, case in chosen:
            print(f"{group + '.' + case.name:<26} {case.about}")
        return 0
    library = find_library(options.library)
    out = (options.out or ROOT / "target/gpu").resolve()
    out.mkdir(parents=True, exist_ok=True)
    machine = Machine(options.python)
    facts = machine.facts()
    began, start = datetime.now(timezone.utc).isoformat(timespec="seconds"), time.monotonic()
    versions = " ".join(f"{name} {version}" for name, version in facts["packages"].items())
    print(f"{facts['gpu'] or 'no GPU'}, driver {facts['driver'] or '-'}, nvcc {facts['nvcc'] or '-'}; {versions}")
    print(f"library {report.relative(library)}; results in {report.relative(out)}/", flush=True)

    for group, plan in each_group(chosen, "plan"):
        plan(options, [case for name, case in chosen if name == group])
    outcomes: list[Outcome] = []
    for number, (group, case) in enumerate(chosen, 1):
        print(f"{number:>2}/{len(chosen)} {group + '.' + case.name:<26} ", end="", flush=True)
        if options.budget and time.monotonic() - start > options.budget and not case.is_measured():
            reason = f"the budget of {options.budget:.0f} s was spent"
            outcome = Outcome(group, case.name, case.about, "skip", reason, "", 0.0, "")
        else:
            outcome = run_case(group, case, library, machine, out)
        outcomes.append(outcome)
        print(report.line(outcome), flush=True)
        report.write_json(out / "results.json", given, facts, library, began, time.monotonic() - start, outcomes)

    sums = report.totals(outcomes)
    print("\n" + report.table(outcomes))
    for group, finish in each_group(chosen, "finish"):
        if more := finish([outcome for outcome in outcomes if outcome.group == group], out):
            print("\n" + more)
    if options.results:
        report.write_pages(options.results, [out / "results.json"])
    print(f"\n{sums['pass']} passed, {sums['fail']} failed, {sums['skip']} skipped in {time.monotonic() - start:.0f} s")
    return 1 if sums["fail"] else 0
