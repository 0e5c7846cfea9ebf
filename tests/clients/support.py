"""What the Python clients share: running checks, and the record of the simulated GPU."""

import json
import os
import subprocess

MIB = 1 << 20


def run(*checks):
    """Runs the checks in order; each is named by what it is about and returns what it found, in a few words."""
    for check in checks:
        name = check.__name__.strip("_").replace("_", " ")
        print(f"  {name}: {check()}", flush=True)


def about(got, wanted, slack):
    """Whether a measured time is what was asked for: never shorter, and longer only by what a busy machine adds."""
    return wanted * 0.99 <= got <= wanted * 1.1 + slack


def record():
    """Everything that the simulated driver knows, through its side door."""
    told = subprocess.run(["ration-sim", "record"], check=True, capture_output=True, text=True)
    return json.loads(told.stdout)


def own_record():
    """What it knows of this process."""
    mine = [p for p in record()["processes"] if p["alive"] and not p["observer"] and p["pid"] == os.getpid()]
    assert len(mine) == 1, mine
    return mine[0]
