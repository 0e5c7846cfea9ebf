"""What people's tools show of a slice: run in it, with the container's processes as arguments.

usage: views.py PID:MIB…      nvidia-ml-py; nvitop, where it is installed
"""

import importlib.util
import re
import subprocess
import sys

import pynvml as nvml

wanted = dict(map(int, argument.split(":")) for argument in sys.argv[1:])
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
lists = [nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetComputeRunningProcesses_v2]
for ask in lists:
    found = {process.pid: process.usedGpuMemory >> 20 for process in ask(gpu)}
    assert found == wanted, f"{ask.__name__}: {found}, not {wanted}"
details = nvml.nvmlDeviceGetRunningProcessDetailList(gpu, nvml.nvmlProcessDetailList_v1, 0)
assert {process.pid for process in details} == set(wanted), details
assert nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu) == []
try:
    busy = {sample.pid for sample in nvml.nvmlDeviceGetProcessUtilization(gpu, 0)}
except nvml.NVMLError_NotFound:
    busy = set()
assert busy <= set(wanted), f"{busy} were busy, of whom only {set(wanted)} are here"
print("nvidia-ml-py")

if importlib.util.find_spec("nvitop"):
    command = [sys.executable, "-m", "nvitop", "--once", "--no-unicode"]
    view = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = re.findall(r"(\d+) [CG] .*?(\d+(?:\.\d+)?)([MG])iB", view)
    found = {int(pid): float(figure) * (1024 if unit == "G" else 1) for pid, figure, unit in rows}
    assert set(found) == set(wanted), view
    assert all(abs(found[pid] - wanted[pid]) <= wanted[pid] / 50 for pid in wanted), view
    total = nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20
    assert re.search(rf"{total}MiB|{total / 1024:.2f}GiB|{total / 1024:.1f}GiB", view), view
    print("nvitop")
