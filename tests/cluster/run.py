"""Runs the cluster tests: python3 run.py [--list] [NAME...]. ci/cluster calls it, with what it needs in the environment.

A test is a function with @case in a module test_*.py; it gets the Bench. NAME is a module, or a part of a
test's name.
"""

import importlib
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

from bench import Bench, Broken, Skip, cases  # noqa: E402

MODULES = ["opting", "asking", "containers", "denials", "changes", "certificates", "running", "chart", "schemas", "renewal"]


def shown(seconds):
    return f"{seconds:6.1f} s"


def begin_renewal(bench):
    """It takes a minute of waiting, so it begins first. What goes wrong is told by the test itself, which begins it again."""
    try:
        importlib.import_module("test_renewal").begun(bench)
    except Exception as why:  # noqa: BLE001
        print(f"      the renewal of certificates could not be begun: {why}")


def main(arguments):
    color = sys.stdout.isatty()
    paint = lambda code, text: f"\x1b[{code}m{text}\x1b[0m" if color else text  # noqa: E731
    for module in MODULES:
        if (HERE / f"test_{module}.py").exists():
            importlib.import_module(f"test_{module}")
    if "--list" in arguments:
        for case in cases:
            print(f"{case.module:13} {case.name}")
        return 0
    # The last module validates what the others admitted; alone it has nothing to look at but the manifests.
    cases.sort(key=lambda case: MODULES.index(case.module))  # modules import from each other
    is_meant = lambda case, word: word == case.module if word in MODULES else word in case.name  # noqa: E731
    chosen = [case for case in cases if not arguments or any(is_meant(case, word) for word in arguments)]
    if not chosen:
        print(f"no test has any of {arguments} in its name; --list names them", file=sys.stderr)
        return 2
    directory = Path(tempfile.mkdtemp(prefix="ration-cluster-"))
    begun = time.monotonic()
    failed, skipped = [], []
    bench = Bench(directory)
    try:
        if any(case.module == "renewal" for case in chosen) and len(chosen) > 1:
            begin_renewal(bench)
        for case in chosen:
            start = time.monotonic()
            try:
                said = case.run(bench) or ""
                verdict = paint(32, "pass")
            except Skip as why:
                said, verdict = str(why), paint(33, "skip")
                skipped.append(case.name)
            except Broken as why:
                print(f"{paint(31, 'FAIL')}  {why}")
                return 1
            except Exception as why:  # noqa: BLE001: a fault of a test is a failure of it
                verdict = paint(31, "FAIL")
                said = str(why) if isinstance(why, AssertionError) else "".join(traceback.format_exception(why)[-4:])
                failed.append(case.name)
            print(f"{verdict}  {case.module:13} {case.name:58} {shown(time.monotonic() - start)}")
            for line in str(said).strip().splitlines()[:40]:
                print(f"        {line}")
            sys.stdout.flush()
    finally:
        bench.stop()
        keep = os.environ.get("RATION_KEEP")
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    total = f"{len(chosen)} tests in {time.monotonic() - begun:.0f} s"
    if failed:
        print(f"\n{total}; failed: {'; '.join(failed)}")
        print(f"what the servers said is in {directory}" if keep else "RATION_KEEP=1 keeps what the servers said")
        return 1
    print(f"\n{total}; all passed" + (f", {len(skipped)} of them skipped" if skipped else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
