"""PyTorch, JAX and CuPy in a cap: they fit themselves into it, meet its end as their own error, free, and go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gpu.bench import Bench, Case
from gpu.hooks.counted import fresh_directory
from gpu.memory.container import capped, gone
from gpu.memory.witness import MIB

SCRIPTS = Path(__file__).resolve().parent.parent / "workloads"
CAP = 6 << 30
JAX = {"JAX_PLATFORMS": "cuda"}
JAX_NEEDS = ("jax", "jax_cuda13_plugin|jax_cuda12_plugin")
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}


@dataclass(frozen=True)
class Framework:
    """A script that prints what it is told and had; `least` of the cap must be held when it is full."""

    name: str
    about: str
    script: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    least: float = 0.95
    fraction: float = 0.0  # of the cap that it says is its limit, where it does not say the total
    caches: tuple[str, ...] = ()  # variables that name a directory

    def case(self) -> Case:
        return Case(f"in-{self.name}", self.about, lambda bench: run_framework(bench, self))


FRAMEWORKS = (
    Framework("torch", "PyTorch's own allocator", "mem_torch", ("fill",), ("torch",)),
    Framework("torch-vmm", "the same, in expandable segments", "mem_torch", ("fill",), ("torch",), EXPANDABLE),
    Framework("torch-async", "the same, from cudaMallocAsync", "mem_torch", ("fill",), ("torch",), ASYNC),
    # 90% of what is free, in a whole piece, as inference servers take their caches.
    Framework("vllm-like", "90% of what is free, at once", "mem_torch", ("ninety",), ("torch",), least=0.88),
    # XLA takes three quarters of what it thinks the GPU has, and more than that it never gives out.
    Framework("jax-preallocated", "JAX takes most of the GPU at its start", "mem_jax", (), JAX_NEEDS, JAX, 0.7, 0.75),
    Framework(
        "jax",
        "JAX takes memory as it needs it, all that there is",
        "mem_jax",
        (),
        JAX_NEEDS,
        {**JAX, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.99"},
        least=0.85,
        fraction=0.99,
    ),
    Framework(
        "cupy",
        "CuPy's pools: its own, the driver's, and managed",
        "mem_cupy",
        needs=("cupy",),
        least=0.9,
        caches=("CUPY_CACHE_DIR",),
    ),
)


def run_framework(bench: Bench, it: Framework) -> None:
    for package in it.needs:
        if not any(bench.machine.has_package(name) for name in package.split("|")):
            bench.skip(f"{bench.machine.python} has no {package.replace('|', ' or ')}")
    command = [bench.machine.python, str(SCRIPTS / f"{it.script}.py"), *it.arguments]
    caches = {variable: str(fresh_directory(bench, variable.lower())) for variable in it.caches}
    with capped(bench, it.name, command, CAP, env={**it.env, **caches}, limit=150) as (session, eyes, watch):
        lines = session.until("full") or []
        full = sum(eyes.held(session.pid).values())
        session.tell()
        lines += session.rest()
        pid = session.pid
    left = gone(eyes, pid)
    said = {name: words for name, *words in (line.split(maxsplit=1) for line in lines if line.strip())}
    figures = {name: words[0] if words else "" for name, words in said.items()}
    bench.figures.update(cap=CAP, full=full, highest=watch.highest, looks=watch.looks, said=figures)
    if watch.trouble or left:
        bench.problem(watch.trouble or f"NVML counts {left} bytes of processes that have ended")
    for problem in judge(it, figures, full, watch.highest):
        bench.problem(problem)
    bench.headline = (
        f"{full / MIB:.0f} of {CAP / MIB:.0f} MiB by NVML when full, {watch.highest / MIB:.0f} at most; "
        f"then {figures.get('oom', '?')}, and on"
    )


def judge(it: Framework, said: dict[str, str], full: int, highest: int) -> list[str]:
    """What is wrong. Empty: nothing."""
    wrong = []
    if it.fraction:
        limit = int(said.get("limit") or 0)
        if abs(limit - it.fraction * CAP) > 4 * MIB:
            wrong.append(f"its limit is {limit} bytes, not {it.fraction} of {CAP}")
    elif said.get("total") != str(CAP):
        wrong.append(f"it thinks that the GPU has {said.get('total')} bytes, not {CAP}")
    if max(full, highest) > CAP:
        wrong.append(f"{max(full, highest) - CAP} bytes over the cap")
    if full < it.least * CAP:
        wrong.append(f"only {full} bytes of {CAP} were held when it was full")
    for name, why in (("oom", "no error of its own kind at the cap"), ("after", "it did not go on afterwards")):
        if name not in said:
            wrong.append(why)
    if said.get("after") not in (None, "right"):
        wrong.append(f"what it computed afterwards is {said['after']}")
    return wrong


CASES = [framework.case() for framework in FRAMEWORKS]
