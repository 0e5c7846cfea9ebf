"""What the NVML client tests share: a world of their own, and programs that use its GPUs.

A test script calls `run(main)`. The script is then run again with the simulated libraries on its LD_LIBRARY_PATH and
RATION_SIM_DIR in a temporary directory, and there `main` is called. SIM names the directory of the libraries
(target/sim, see ci/build) and DEV the one of the programs (target/debug). Where CLIENT_RECORDS names a directory, the
record of each world is left there, to be compared with what others say of the same calls.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
TARGET = os.environ.get("TARGET") or os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
SIM = os.environ.get("SIM") or os.path.join(TARGET, "sim")
DEV = os.environ.get("DEV") or os.path.join(TARGET, "debug")
MIB = 1 << 20


def run(main):
    """Runs a test script's `main`, in a world of its own."""
    if os.environ.get("SIMULATED_NVML_TEST") == sys.argv[0]:
        main()
        return
    for needed in (os.path.join(SIM, "libnvidia-ml.so.1"), os.path.join(DEV, "ration-sim-hold")):
        if not os.path.exists(needed):
            sys.exit(f"{needed} is missing: run ci/build, or set SIM and DEV")
    with tempfile.TemporaryDirectory(prefix="ration-sim-") as world:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RATION_SIM_")}
        paths = [SIM, env.get("LD_LIBRARY_PATH", "")]
        env.update(RATION_SIM_DIR=world, LD_LIBRARY_PATH=":".join(filter(None, paths)))
        env.update(SIMULATED_NVML_TEST=sys.argv[0])
        status = subprocess.run([sys.executable, *sys.argv], env=env, check=False).returncode
        keep_record(env)
    sys.exit(status)


def keep_record(env):
    """Leaves the record of a world that goes away with the test, if somebody wants it and anybody was in it."""
    records = os.environ.get("CLIENT_RECORDS")
    if records and os.path.exists(os.path.join(env["RATION_SIM_DIR"], "world")):
        with tempfile.NamedTemporaryFile(dir=records, suffix=".json", delete=False) as file:
            subprocess.run([os.path.join(DEV, "ration-sim"), "record"], env=env, stdout=file, check=True)


@contextlib.contextmanager
def hold(gpu=0, mib=0, per_mille=0):
    """A client that holds so much of a GPU, besides its context, and keeps it busy for a part of the time."""
    command = [os.path.join(DEV, "ration-sim-hold"), str(gpu), str(mib * MIB), str(per_mille)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        line = client.stdout.readline().split()
        assert line and line[0] == "ready", f"{command} did not start"
        try:
            yield client
        finally:
            client.stdin.close()
            client.wait(10)


def settle(seconds=1.6):
    """Waits until utilization, which is an average of the last second, is of now."""
    time.sleep(seconds)


def checked(what):
    """Tells the reader of the output what was found to be right."""
    print(f"  ok  {what}", flush=True)


def near(value, wanted, tolerance):
    """Whether a measured figure is right."""
    return abs(value - wanted) <= tolerance
