"""What a machine has: its GPU, compilers, profilers and packages, each looked for when it is first asked for."""

from __future__ import annotations

import functools
import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "triton", "jax", "jaxlib", "jax-cuda13-plugin", "cupy-cuda13x", "cupy-cuda12x", "numpy")
OURS = ("RATION_", "CUDA_INJECTION64_PATH", "CUPTI_COUNT_DIR", "BUSY_DIR")  # a bare run must be bare

# Says what cuInit thinks, which file the driver is, and how many devices it has.
PROBE = """
import ctypes, json
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(json.dumps({"error": f"no driver: {error}"}))
    raise SystemExit
count = ctypes.c_int(0)
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
path = next((line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so" in line), "")
error = f"cuInit says {code}" if code else "" if count.value else "the driver has no device"
print(json.dumps({"error": error, "path": path, "count": count.value}))
"""

VERSIONS = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class Machine:
    """The machine, as far as cases ask for it."""

    def __init__(self, python: str = sys.executable) -> None:
        self.python = python
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self.environment = {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}

    def ask(self, *command: str, limit: float = 60) -> str:
        """What a program prints, or "" if it is not there or fails."""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit, env=self.environment, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    @functools.cached_property
    def driver(self) -> dict:
        """`error` is empty when there is a GPU to work on; `path` is the driver's file."""
        told = self.ask(self.python, "-c", PROBE)
        return json.loads(told) if told else {"error": "cuInit did not come back", "path": "", "count": 0}

    @functools.cached_property
    def toolkits(self) -> list[Path]:
        """Directories that may have include/, lib*/ and extras/ of a CUDA toolkit, best first."""
        places = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")]
        nvcc = shutil.which("nvcc")
        if nvcc:
            places.append(str(Path(nvcc).resolve().parent.parent))
        places += ["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True), *self.wheels]
        places += sorted(glob.glob(str(ROOT / ".cache/cuda/1[23].*")), reverse=True)
        found: list[Path] = []
        for place in filter(None, places):
            path = Path(place)
            if path.is_dir() and path not in found:
                found.append(path)
        return found

    @functools.cached_property
    def wheels(self) -> list[str]:
        """The nvidia/… directories of the Python that the workloads run on."""
        told = self.ask(self.python, "-c", "import site, sys; print('\\n'.join(site.getsitepackages() + sys.path))")
        found: list[str] = []
        for place in told.splitlines():
            for pattern in ("nvidia/cu1[23]", "nvidia/cuda_runtime", "nvidia/cuda_cupti", "nvidia/cuda_nvrtc"):
                found += [path for path in sorted(glob.glob(f"{place}/{pattern}"), reverse=True) if path not in found]
        return found

    def has_package(self, name: str) -> bool:
        """Whether the workloads' Python finds a package, without importing it."""
        return self.ask(self.python, "-c", f"import importlib.util as u; print(u.find_spec({name!r}))") not in (
            "",
            "None",
        )

    def header(self, name: str) -> Path | None:
        """The directory that has a header of the toolkit."""
        for place in self.toolkits:
            for sub in (
                "include",
                "extras/CUPTI/include",
                "targets/x86_64-linux/include",
                "targets/sbsa-linux/include",
            ):
                if (place / sub / name).is_file():
                    return place / sub
        return None

    @functools.cached_property
    def cupti(self) -> Path | None:
        """CUPTI's library, from the first toolkit that has one."""
        for place in self.toolkits:
            for sub in ("extras/CUPTI/lib64", "lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
                found = sorted(glob.glob(str(place / sub / "libcupti.so*")), key=len)
                if found:
                    return Path(found[0])
        return None

    def tool(self, name: str) -> str | None:
        """A program by name: on the PATH, or where toolkits and Nsight put theirs."""
        found = shutil.which(name)
        if found:
            return found
        places = [str(toolkit / "bin" / name) for toolkit in self.toolkits]
        if name == "ncu":
            places += sorted(glob.glob("/opt/nvidia/nsight-compute/*/ncu"), reverse=True)
        if name == "nvidia-smi":
            places += ["/usr/local/nvidia/bin/nvidia-smi"]
        return next((place for place in places if os.access(place, os.X_OK)), None)

    def smi(self, *fields: str) -> list[str]:
        """What nvidia-smi says of the first GPU, field by field; empty strings where it says nothing."""
        smi = self.tool("nvidia-smi")
        query = ",".join(fields)
        told = self.ask(smi, f"--query-gpu={query}", "--format=csv,noheader,nounits") if smi else ""
        values = [value.strip() for value in told.splitlines()[0].split(",")] if told else []
        return values if len(values) == len(fields) else [""] * len(fields)

    @functools.cached_property
    def architecture(self) -> str:
        """As nvcc spells it ("sm_90"), or "" if nobody knows."""
        capability = self.smi("compute_cap")[0].replace(".", "")
        return f"sm_{capability}" if capability.isdigit() else ""

    def facts(self) -> dict:
        """For the report: what machine these results are from."""
        name, driver, memory = self.smi("name", "driver_version", "memory.total")
        release = re.search(r"release ([\d.]+)", self.ask(self.tool("nvcc") or "nvcc", "--version"))
        told = self.ask(self.python, "-c", VERSIONS, *PACKAGES)
        return {
            "gpu": name,
            "gpus": self.driver.get("count", 0),
            "memory_mib": memory,
            "driver": driver,
            "driver_file": self.driver.get("path", ""),
            "no_gpu_because": self.driver["error"],
            "nvcc": release.group(1) if release else "",
            "gcc": self.ask("gcc", "-dumpfullversion"),
            "ncu": self.ask(self.tool("ncu") or "ncu", "--version").splitlines()[-1:],
            "cupti": str(self.cupti or ""),
            "packages": json.loads(told) if told else {},
            "kernel": platform.release(),
            "libc": " ".join(platform.libc_ver()),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        }
