"""The programs that want more of the GPU than they are given."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from gpu import build
from gpu.bench import Bench

SCRIPTS = Path(__file__).resolve().parent.parent / "workloads"
JAX = {
    "JAX_PLATFORMS": "cuda",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
JAX_NEEDS = ("jax", "jax_cuda13_plugin|jax_cuda12_plugin")
calibrated: dict[str, str] = {}
packages: dict[str, bool] = {}


@dataclass(frozen=True, eq=False)  # each is itself
class Load:
    """A program. One in C is its own witness; one in Python has CUPTI's records.

    A power-bound one slows itself down by its heat, so that in a part of the time it does more than that of the work.
    """

    name: str
    about: str
    program: tuple[str, ...]  # arguments of share_load, or a script of tests/gpu/workloads and its own
    needs: tuple[str, ...] = ()  # Python packages; "a|b" is either
    env: dict[str, str] = field(default_factory=dict)
    caches: tuple[str, ...] = ()  # variables that name a directory, one for all runs of the load
    processes: int = 1
    power_bound: bool = False
    least: float = 0.0  # seconds of a window in a mix: a service needs enough requests for a percentile
    batch: int = 1  # kernels for which its witness has one record
    solo: str = ""  # the load whose solo is this one's; several processes, bare, lose time among themselves

    @property
    def is_script(self) -> bool:
        return self.program[0].endswith(".py")

    def command(self, bench: Bench) -> list[str]:
        if self.is_script:
            return [bench.machine.python, str(SCRIPTS / self.program[0]), *self.program[1:]]
        mode, length, *rest = self.program
        return [str(build.program(bench, "share_load")), mode, length, rounds(bench), *rest]

    def must_be_there(self, bench: Bench) -> None:
        for package in self.needs:
            if package not in packages:
                packages[package] = any(bench.machine.has_package(name) for name in package.split("|"))
            if not packages[package]:
                bench.skip(f"{bench.machine.python} has no {package.replace('|', ' or ')}")


def rounds(bench: Bench) -> str:
    """How many rounds of share_load's loop take a microsecond: found once, without the library, and kept for all."""
    if "rounds" not in calibrated:
        run = bench.run("calibrate", [str(build.program(bench, "share_load")), "calibrate"], limit=60)
        found = re.search(r"^rounds_per_us ([\d.]+)$", run.out, re.MULTILINE)
        if run.status != 0 or not found:
            raise RuntimeError(f"share_load cannot be calibrated: {run.how()}: {run.last_words}")
        calibrated["rounds"] = found.group(1)
    return calibrated["rounds"]


def kernels(name: str, about: str, mode: str, length_us: str, processes: int = 1, solo: str = "") -> Load:
    return Load(name, about, (mode, length_us), processes=processes, solo=solo)


LOADS = (
    kernels("kernels-50us", "kernels of 0.05 ms, queued deep", "deep", "50"),
    kernels("kernels-500us", "kernels of 0.5 ms, queued deep", "deep", "500"),
    kernels("kernels-5ms", "kernels of 5 ms, queued deep", "deep", "5000"),
    kernels("sync-each", "kernels of 0.5 ms, each waited for", "sync", "500"),
    kernels("streams", "kernels of 0.5 ms on a quarter of the GPU, in four streams", "streams", "500"),
    kernels("processes", "kernels of 0.5 ms from three processes of one container", "deep", "500", 3, "kernels-500us"),
    Load(
        "gemm",
        "PyTorch: products of 4096×4096 in bf16",
        ("share_torch.py", "gemm"),
        needs=("torch",),
        power_bound=True,
    ),
    Load(
        "graph",
        "PyTorch: replays of a CUDA graph of 20 kernels",
        ("share_torch.py", "graph"),
        needs=("torch",),
        power_bound=True,
    ),
    Load("train", "PyTorch: training steps", ("share_torch.py", "train"), needs=("torch",), power_bound=True),
    Load(
        "jax",
        "JAX: a compiled step of four products and what is between them",
        ("share_jax.py",),
        needs=JAX_NEEDS,
        env=JAX,
        caches=("JAX_COMPILATION_CACHE_DIR",),
        power_bound=True,
    ),
    Load(
        "cupy",
        "CuPy: products and elementwise kernels",
        ("share_cupy.py", "products"),
        needs=("cupy",),
        caches=("CUPY_CACHE_DIR",),
        power_bound=True,
    ),
    Load(
        "triton",
        "a matrix product written in Triton",
        ("share_triton.py",),
        needs=("torch", "triton"),
        caches=("TRITON_CACHE_DIR",),
        power_bound=True,
    ),
)
BY_NAME = {load.name: load for load in LOADS}

# Not in the matrix of limits.
REQUESTS = Load("requests", "20 kernels, 2.6 ms in all, every 20 ms", ("request", "130", "20", "20000"), least=4.0)
EMPTY = Load("empty", "kernels that do nothing", ("empty", "1"), batch=400)
LAYERS = Load(
    "layers",
    "PyTorch: training steps of many small kernels",
    ("share_torch.py", "layers"),
    needs=("torch",),
    power_bound=True,
)
LAUNCH_BOUND = Load(
    "launch-bound",
    "CuPy: products of 256×256, as fast as they can be launched",
    ("share_cupy.py", "small"),
    needs=("cupy",),
    caches=("CUPY_CACHE_DIR",),
)


# Programs that do not fill the GPU: Python launches their kernels more slowly than it does them.
CUPY = {"needs": ("cupy",), "caches": ("CUPY_CACHE_DIR",)}


def torch_script(name: str, about: str, script: str, mode: str, least: float = 0.0) -> Load:
    return Load(name, f"PyTorch: {about}", (script, mode), needs=("torch",), least=least)


LIGHT = (
    torch_script("decode", "a transformer writes token by token", "share_decode.py", "eager"),
    torch_script("mlp", "training of a small network, Adam", "share_nets.py", "mlp"),
    torch_script("conv", "training of a network of convolutions, AMP, host copies", "share_nets.py", "conv"),
    torch_script("lstm", "training of an LSTM, step by step", "share_nets.py", "lstm"),
    Load("cupy-loop", "CuPy: products of 256×256 and elementwise kernels", ("share_cupy.py", "loop"), **CUPY),
    Load(
        "jax-small",
        "JAX: small steps of training, each waited for",
        ("share_jax.py", "small"),
        needs=JAX_NEEDS,
        env=JAX,
        caches=("JAX_COMPILATION_CACHE_DIR",),
    ),
)
DECODE_GRAPH = torch_script("decode-graph", "a graph for each token, waited for", "share_decode.py", "graph")
PREFILL = torch_script("prefill", "a transformer reads 8 × 1024 tokens", "share_decode.py", "prefill")
SERVE = torch_script("serve", "16 tokens each 250 ms", "share_decode.py", "serve", least=12.0)
SERVE_GRAPH = torch_script("serve-graph", "16 tokens each 250 ms, as graphs", "share_decode.py", "serve-graph", least=12.0)
ANY = {load.name: load for load in (*LOADS, *LIGHT, DECODE_GRAPH, PREFILL, SERVE, SERVE_GRAPH, LAYERS, LAUNCH_BOUND)}
ANY |= {REQUESTS.name: REQUESTS, EMPTY.name: EMPTY}
