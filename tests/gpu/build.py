"""Builds the C and CUDA programs of tests/gpu/programs on the machine that runs them, each once per run."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from gpu.bench import Bench

PROGRAMS = Path(__file__).resolve().parent / "programs"
PER_THREAD = "CUDA_API_PER_THREAD_DEFAULT_STREAM"
PLAIN = ("busy_sum",)  # programs that need no driver
built: dict[tuple[str, str], Path | Missing] = {}


@dataclass(frozen=True)
class Missing:
    """Why something could not be built, and whether that is the machine's lack or the program's fault."""

    reason: str
    fault: bool = False


def program(bench: Bench, name: str, *, per_thread: bool = False) -> Path:
    """A program, compiled. Skips the case where the machine cannot compile it."""
    flavour = "per-thread" if per_thread else ""
    result = get(bench, name, flavour)
    if isinstance(result, Missing):
        if result.fault:
            raise RuntimeError(result.reason)
        bench.skip(result.reason)
    return result


def witness(bench: Bench) -> Path | Missing:
    """The library that counts inside the driver, or why there is none."""
    return get(bench, "cupti_count", "")


def distrust(reason: str) -> None:
    """From here on there is no witness, for a reason that is a problem of its own, and of one case only."""
    built["cupti_count", ""] = Missing(reason)


def get(bench: Bench, name: str, flavour: str) -> Path | Missing:
    key = (name, flavour)
    if key not in built:
        built[key] = compile_it(bench, name, flavour)
    return built[key]


def compile_it(bench: Bench, name: str, flavour: str) -> Path | Missing:
    where = bench.directory.parent / "built"
    where.mkdir(parents=True, exist_ok=True)
    output = where / (name + (f"-{flavour}" if flavour else "") + (".so" if name == "cupti_count" else ""))
    command = command_for(bench, name, flavour, output)
    if isinstance(command, Missing):
        return command
    done = bench.run(f"compile-{output.name}", command, limit=180)
    if done.status != 0:
        return Missing(f"{name} does not compile ({done.how()}): {done.last_words}", fault=True)
    return output


def command_for(bench: Bench, name: str, flavour: str, output: Path) -> list[str] | Missing:
    machine = bench.machine
    source = next(PROGRAMS.glob(f"{name}.c*"))
    if source.suffix == ".cu":
        nvcc = machine.tool("nvcc")
        if not nvcc:
            return Missing("no nvcc on this machine")
        target = [f"-arch={machine.architecture}"] if machine.architecture else []
        stream = ["--default-stream", "per-thread"] if flavour else []
        return [nvcc, "-O2", *target, *stream, "-o", str(output), str(source)]

    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        return Missing("no C compiler on this machine")
    if name in PLAIN:
        return [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread", "-o", str(output), str(source)]
    cuda = machine.header("cuda.h")
    if not cuda:
        return Missing("no cuda.h on this machine")
    common = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread", f"-I{cuda}"]
    if name == "cupti_count":
        headers, library = machine.header("cupti.h"), machine.cupti
        if not headers or not library:
            return Missing(f"no CUPTI on this machine ({'libcupti' if headers else 'cupti.h'} was not found)")
        search = f"-Wl,-rpath,{library.parent}"
        shared = ["-shared", "-fPIC", "-fvisibility=hidden", f"-I{headers}"]
        return [*common, *shared, "-o", str(output), str(source), str(library), search]
    driver = machine.driver["path"]
    if not driver:
        return Missing(f"no driver to link with: {machine.driver['error']}")
    defines = [f"-D{PER_THREAD}"] if flavour else []
    # The driver needs libraries that are not looked for while linking.
    return [*common, *defines, "-o", str(output), str(source), driver, "-ldl", "-Wl,--allow-shlib-undefined"]
