"""The programs that are run bare and under the library."""

from __future__ import annotations

from gpu.hooks.workloads import Workload, native, script

FRAMEWORK = ("linear", "launches", "copies")
RUNTIME = ("linear", "managed", "arrays", "pools", "graphs", "launches", "graph-launches", "copies")
DRIVER = (*RUNTIME, "vmm", "graph-edits")
JAX = {"JAX_PLATFORMS": "cuda", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
JAX_NEEDS = ("jax", "jax_cuda13_plugin|jax_cuda12_plugin")

WORKLOADS = (
    Workload(
        "driver",
        "a program of the driver API: every way to allocate, copy, fill and launch",
        native("driver_plain"),
        DRIVER,
    ),
    Workload(
        "driver-per-thread",
        "the same with per-thread default streams: the _ptsz and _ptds forms",
        native("driver_plain", per_thread=True),
        DRIVER,
    ),
    Workload("cuda", "a program of the CUDA runtime, built by nvcc", native("cuda_plain"), RUNTIME),
    Workload(
        "cuda-per-thread",
        "the same with --default-stream per-thread",
        native("cuda_plain", per_thread=True),
        RUNTIME,
    ),
    Workload(
        "torch-train",
        "PyTorch trains a network; cuDNN, cuBLAS, cuFFT and cuSOLVER work",
        script("torch_train"),
        FRAMEWORK,
        needs=("torch",),
    ),
    Workload(
        "torch-vmm",
        "the same, with memory in expandable segments",
        script("torch_train", "10"),
        ("vmm", "launches", "copies"),
        needs=("torch",),
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    Workload(
        "torch-async",
        "the same, with memory from cudaMallocAsync",
        script("torch_train", "10"),
        ("pools", "launches", "copies"),
        needs=("torch",),
        env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    ),
    Workload(
        "torch-graphs",
        "PyTorch captures and replays a product, a training step and a network",
        script("torch_graphs"),
        (*FRAMEWORK, "graphs", "graph-launches"),
        needs=("torch",),
    ),
    Workload(
        "torch-compile",
        "torch.compile: Inductor's Triton kernels, plain and in graphs",
        script("torch_compile"),
        (*FRAMEWORK, "graph-launches"),
        needs=("torch", "triton"),
        caches=("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
        limit=240,
    ),
    Workload(
        "triton",
        "kernels written in Triton",
        script("triton_kernels"),
        FRAMEWORK,
        needs=("torch", "triton"),
        caches=("TRITON_CACHE_DIR",),
    ),
    Workload(
        "jax",
        "JAX trains a recurrent network, with memory as it is needed",
        script("jax_train"),
        ("launches", "copies"),
        needs=JAX_NEEDS,
        env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **JAX},
        caches=("JAX_COMPILATION_CACHE_DIR",),
        limit=180,
    ),
    Workload(
        "jax-preallocated",
        "the same as JAX does by default, with most of the memory at once",
        script("jax_train"),
        ("launches", "copies"),
        needs=JAX_NEEDS,
        env=JAX,
        caches=("JAX_COMPILATION_CACHE_DIR",),
        limit=180,
    ),
    Workload(
        "cupy",
        "CuPy: kernels, products, FFTs, pools of four kinds, arrays, a graph",
        script("cupy_mix"),
        RUNTIME,
        needs=("cupy",),
        caches=("CUPY_CACHE_DIR",),
    ),
)

CASES = [workload.case() for workload in WORKLOADS]
