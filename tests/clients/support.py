"""What the Python clients share: running checks, and the record of the simulated GPU."""

import json
import os
import subprocess

import tries

MIB = 1 << 20


def run(*checks):
    """Runs the checks in order; each is named by what it is about and returns what it found, in a few words."""
    for check in checks:
        name = check.__name__.strip("_").replace("_", " ")
        print(f"  {name}: {check()}", flush=True)


def timed(measure, wanted):
    """Milliseconds that `measure` takes on the GPU's clock, which should be `wanted`.

    They are never fewer. They are more when this process did not get to send its work in time, so there are several
    tries; where none says anything, what is wanted is given back.
    """
    def at_least():
        got = measure()
        assert got >= wanted * 0.99, f"{got} ms, of {wanted} that were asked for"
        return got

    try:
        return tries.until_good(at_least, lambda got: got <= wanted * 1.05 + 0.2)
    except tries.NotJudged as why:
        print(f"  NOT JUDGED: whether {wanted} ms are hardly more: {why}")
        return wanted


def record():
    """Everything that the simulated driver knows, through its side door."""
    told = subprocess.run(["ration-sim", "record"], check=True, capture_output=True, text=True)
    return json.loads(told.stdout)


def own_record():
    """What it knows of this process."""
    mine = [p for p in record()["processes"] if p["alive"] and not p["observer"] and p["pid"] == os.getpid()]
    assert len(mine) == 1, mine
    return mine[0]
