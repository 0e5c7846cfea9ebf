"""Is CUPTI's count to be trusted, and does the library leave it alone? Asked before anything is compared with it."""

from __future__ import annotations

from collections import Counter

from gpu import build, counts
from gpu.bench import Bench, Case
from gpu.hooks.counted import fresh_directory

# What tests/gpu/programs/driver_plain.c calls, counted by hand.
KNOWN = {
    "cuLaunchKernel": 165,
    "cuLaunchKernelEx": 20,
    "cuGraphLaunch": 21,
    "cuMemAlloc_v2": 10,
    "cuMemFree_v2": 12,
    "cuMemCreate": 1,
    "cuMemAllocManaged": 1,
    "cuMemAllocAsync": 8,
}


def witness(bench: Bench) -> None:
    library = build.witness(bench)
    if isinstance(library, build.Missing):
        if library.fault:
            raise RuntimeError(library.reason)
        bench.skip(library.reason)
    program = str(build.program(bench, "driver_plain"))
    bare = watched(bench, "bare", program, str(library))
    if bare is None:
        build.distrust("CUPTI does not count on this machine (see the case witness)")
        return
    hooked = watched(bench, "hooked", program, str(library))
    if hooked is None:
        return
    for symbol, count in KNOWN.items():
        if bare[symbol] != count:
            bench.problem(f"the program makes {count} calls of {symbol}; CUPTI saw {bare[symbol]}")
    table = counts.read_table()
    other = {name: [bare[name], hooked[name]] for name in sorted(bare | hooked) if bare[name] != hooked[name]}
    judged = [f"{name}: bare {a}, hooked {b}" for name, (a, b) in other.items() if table.get(name) in counts.JUDGED]
    if judged:
        bench.problem("under the library other calls reach the driver: " + "; ".join(judged[:12]))
    bench.figures.update(calls=dict(bare), bare_and_hooked_differ=other)
    bench.headline = f"CUPTI sees the {sum(bare.values()):,} calls that the program makes; hooked, the same"


def watched(bench: Bench, label: str, program: str, library: str) -> Counter | None:
    """CUPTI's counts of one run."""
    pages = fresh_directory(bench, f"{label}.cupti")
    env = {"CUDA_INJECTION64_PATH": library, "CUPTI_COUNT_DIR": str(pages)}
    run = bench.run(label, [program], hooked=label == "hooked", env=env)
    if run.status != 0:
        bench.problem(f"{label}: {run.how()}: {run.last_words}")
        return None
    found = list(counts.read_pages(pages).values())
    if len(found) != 1 or found[0].result:
        results = [page.result for page in found]
        bench.problem(f"{label}: CUPTI did not count: {len(found)} processes, results of subscribing {results}")
        return None
    return found[0].counts


CASES = [Case("witness", "CUPTI counts what a known program calls, and the same when it is hooked", witness)]
