"""The tools that people look at GPUs with, on the simulated one: nvidia-smi and nvitop, where this machine has them.

usage: test_tools.py     (see simulated.py for SIM and DEV)

nvidia-smi is NVIDIA's and is not fetched for this test: NVIDIA_SMI names one. It should be of the R580 line, because a
tool and a driver of different releases do not have to understand each other.
"""

import csv
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml

from simulated import checked, hold, near, run, settle


def output(*command):
    """What a program says, if it ends well and the simulated GPU had all that it asked for."""
    env = os.environ | {"COLUMNS": "120", "LINES": "50", "TERM": "xterm"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    assert "not modelled" not in done.stderr, f"{command}: {done.stderr}"
    return done.stdout


def table(*command):
    """A csv output as a list of dictionaries."""
    return list(csv.DictReader(io.StringIO(output(*command)), skipinitialspace=True))


def nvidia_smi(smi):
    assert "No running processes found" in output(smi)
    with hold(mib=1024, per_mille=400) as one, hold(mib=10) as other:
        settle()
        view = output(smi)
        for pid, figure in ((one.pid, 1542), (other.pid, 528)):
            assert re.search(rf"\b{pid}\b +C .*\b{figure}MiB", view), view
        assert "CUDA Version: 13.0" in view and "2085MiB / 143771MiB" in view, view
        checked("nvidia-smi: the default view, with both clients")

        full = output(smi, "-q")
        for line in ("Product Name : NVIDIA H200", "Bus Id : 00000000:00:06.0", "SM : 1980 MHz", "Total : 143771 MiB"):
            label, value = line.split(" : ")
            assert re.search(rf"^ *{label} +: {value}$", full, re.M), f"{line!r} is not in\n{full}"
        assert "Unknown Error" not in full
        tree = xml.fromstring(output(smi, "-q", "-x"))
        pids = {int(pid.text) for pid in tree.iter("pid")}
        assert pids == {one.pid, other.pid} and tree.find("gpu/product_name").text == "NVIDIA H200"
        checked("nvidia-smi -q, as text and as XML")

        rows = table(smi, "--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv,nounits")
        figures = {int(row["pid"]): int(row["used_gpu_memory [MiB]"]) for row in rows}
        assert figures == {one.pid: 1542, other.pid: 528}, rows
        asked = re.findall(r'^"([a-z_.]+)"', output(smi, "--help-query-gpu"), re.M | re.I)
        row = table(smi, "--query-gpu=" + ",".join(asked), "--format=csv,nounits")[0]
        assert row["memory.total [MiB]"] == "143771" and row["pstate"] == "P0"
        assert near(int(row["utilization.gpu [%]"]), 40, 8), row
        assert not any("Unknown Error" in str(value) for value in row.values()), row
        checked(f"nvidia-smi --query-compute-apps, and --query-gpu with all of its {len(asked)} fields")

        line = next(line.split() for line in output(smi, "pmon", "-c", "1").splitlines() if f" {one.pid} " in line)
        assert line[2] == "C" and near(int(line[3]), 40, 8), line
        line = output(smi, "dmon", "-c", "1", "-s", "pucvmet").splitlines()[-1].split()
        assert line[0] == "0" and near(int(line[4]), 40, 8), line
        assert re.search(r"^GPU0\s+X\s", output(smi, "topo", "-m"), re.M)
        checked("nvidia-smi pmon, dmon and topo -m")


def nvitop():
    with hold(mib=1024, per_mille=400) as one:
        settle()
        view = output(sys.executable, "-m", "nvitop", "--once", "--no-unicode")
        assert re.search(rf"\b{one.pid} C .*1542MiB", view) and "H200" in view and "580.159.04" in view, view
        checked("nvitop, with the client")


def main():
    smi = os.environ.get("NVIDIA_SMI") or shutil.which("nvidia-smi")
    if smi:
        nvidia_smi(smi)
    else:
        print("  --  not tested: nvidia-smi, which this machine does not have (NVIDIA_SMI may name one)")
    if importlib.util.find_spec("nvitop"):
        nvitop()
    else:
        print("  --  not tested: nvitop, which is not installed")


run(main)
