"""NVIDIA's CUDA runtime on the simulated GPU: how far it gets, to the letter.

usage: client.py PROGRAM LIBCUDART...        PROGRAM is client.c, compiled

The runtime looks up the driver's functions, initialises it, reads what its devices are, and asks for private tables.
The last of them is the one by which the driver has to prove that it is NVIDIA's. The simulated driver is not, and says
so with CUDA_ERROR_NOT_SUPPORTED; the runtime then answers that to every call, and that is as far as it can get. Here it
is pinned down that it gets that far, with the right answers to all look-ups, and that it stops without harm.
"""

import csv
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from support import record

SURFACE = Path(__file__).parents[3] / "cuda-stubs/world/surface"
RELEASE = 580  # the driver that is simulated, and the CUDA version that it has
DRIVER = 13000
NOT_SUPPORTED = ("801", "cudaErrorNotSupported")
PROOF = "d4082055-bde6-704b-8d34-ba123c66e1f2"
# Asked for by runtimes from 12.9 on before anything else; they go on without it.
OPTIONAL = "f8cff951-2146-8b4e-b9e2-fb469e7c0dd9"
NEEDED_SINCE = {
    "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9": 11000,  # the runtime's interface: primary contexts, modules
    "a094798c-2e74-2e74-93f2-0800200c0a66": 11000,  # hooks for tools
    "42d85a81-23f6-cb47-8298-f6e78a3aecdc": 11000,  # storage of tools per thread
    "c693336e-1121-df11-a8c3-68f355d89593": 11000,  # storage per context
    "263e8860-7cd2-6143-92f6-bbd5006dfa7e": 12000,  # what kind of context one is
    "21318c60-9714-3248-8ca6-41ff7324c8f2": 13040,  # streams of tools
}
ENUMERATION = "cuInit cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceTotalMem_v2 cuDeviceGetUuid".split()


def table(name):
    lines = [line for line in (SURFACE / name).read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t"))


class RealDriver:
    """What cuGetProcAddress of the real driver answers, read off the tables anew."""

    def __init__(self):
        exports = {row["symbol"] for row in table("driver.tsv") if int(row["release"]) <= RELEASE}
        self.rows = defaultdict(list)
        for row in table("resolve.tsv"):
            if row["export"] in exports:
                self.rows[row["name"]].append((int(row["since"]), row["streams"], row["export"]))

    def answer(self, name, version, flags):
        """The status and the export: 0 found, 1 no such name, 2 not at that version."""
        mode = "p" if flags == 2 else "l"
        fitting = [(since, export) for since, modes, export in self.rows[name] if mode in modes and since <= version]
        if fitting:
            return 0, max(fitting)[1]
        return (2 if self.rows[name] else 1), "-"


def trace(program, library):
    """Runs the program; what it noted, by kind."""
    done = subprocess.run([program, library], capture_output=True, text=True)
    assert done.returncode == 0, f"{library}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr}"
    noted = defaultdict(list)
    for line in done.stdout.splitlines():
        kind, *rest = line.split("\t")
        noted[kind].append(rest)
    return noted


def check_lookups(lookups, real):
    wrong = []
    for name, version, flags, result, status, export in lookups:
        wanted_status, wanted = real.answer(name, int(version), int(flags))
        old = status == "-"  # the first form of the call, which has no status but fails
        fits = (result == ("0" if not old or wanted_status == 0 else "500")) and (old or int(status) == wanted_status)
        if not fits or export != wanted:
            wrong.append(f"{name} at {version}, flags {flags}: {export} ({result}, {status}), not {wanted}")
    assert not wrong, "\n".join(wrong)


def check_tables(tables, version):
    wanted = {uuid for uuid, since in NEEDED_SINCE.items() if version >= since}
    assert len(dict(tables)) == len(tables), f"a table is asked for once: {tables}"
    assert {uuid for uuid, result in tables if result == "0"} == wanted, tables
    refused = [uuid for uuid, result in tables if result != "0"]
    assert refused == ([OPTIONAL] if version >= 12000 else []) + [PROOF], tables
    assert tables[-1] == [PROOF, "801"], "the proof is the last that it asks for"


def check_calls(calls, version):
    for function, result, name, *value in calls:
        if function == "cudaDriverGetVersion":
            assert (result, value) == ("0", [str(DRIVER)]), (function, result, value)
        elif function == "cudaRuntimeGetVersion" and version >= 12000:
            assert (result, value) == ("0", [str(version)]), (function, result, value)
        else:
            assert (result, name) == NOT_SUPPORTED, (function, result, name)
    assert len(calls) == 10, calls


def driver_calls(before):
    """What the simulated driver counted for the one process that is new in its record."""
    new = [p for p in record()["processes"] if p["key"] not in before and not p["observer"]]
    assert len(new) == 1 and not new[0]["alive"], new
    calls = new[0]["calls"]
    for function in ENUMERATION:
        assert calls.get(function) == 1, (function, calls)
    assert calls["cuDeviceGetAttribute"] > 90, calls
    contexts = [name for name in calls if "Ctx" in name or "Alloc" in name or "Launch" in name]
    assert not contexts, f"without a runtime nothing is made: {contexts}"
    assert not new[0]["gpus"], new[0]["gpus"]
    return calls


def seen():
    """Processes in the record so far; none while nobody has made a world."""
    try:
        return {p["key"] for p in record()["processes"]}
    except subprocess.CalledProcessError:
        return set()


def main(program, libraries):
    real = RealDriver()
    print("  cudart  look-ups  of which in R580  attributes read  private tables  every call after that")
    for library in libraries:
        before = seen()
        noted = trace(program, library)
        version = int(Path(library).parents[1].name.replace(".", "0")) * 10  # .../12.9/lib/libcudart.so.12
        check_lookups(noted["lookup"], real)
        check_tables(noted["table"], version)
        check_calls(noted["call"], version)
        calls = driver_calls(before)
        counted = calls.get("cuGetProcAddress", 0) + calls.get("cuGetProcAddress_v2", 0)
        assert counted == len(noted["lookup"]), (counted, len(noted["lookup"]))
        assert counted > 380, counted
        found = sum(export != "-" for *_, export in noted["lookup"])
        given = sum(result == "0" for _, result in noted["table"])
        tables = f"{given} of {len(noted['table'])}"
        name, attributes = f"{version // 1000}.{version % 1000 // 10}", calls["cuDeviceGetAttribute"]
        print(f"  {name:6} {counted:9} {found:17} {attributes:16} {tables:>15}  {' '.join(NOT_SUPPORTED)}")
    print(
        "  The table not given is the one by which the driver proves to be NVIDIA's; from 12.9 on another is optional."
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
