"""/etc/ld.so.preload instead of LD_PRELOAD: what a container's runtime can set up, and a scrubbed environment keeps."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpu import build, counts
from gpu.bench import Bench, Case, Run
from gpu.hooks.counted import counted, fresh_directory

# In a mount namespace of its own, so that nobody else sees the /etc with the preload in it.
SCRIPT = 'mount --bind "$1" /etc && shift && exec "$@"'
WAYS = (["--mount"], ["--mount", "--user", "--map-root-user"])
# What the loader and the driver may look at; a whole copy would have secrets in it.
KEPT = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.so.preload",
    "alternatives",
    "nvidia",
    "nsswitch.conf",
    "group",
)


def ld_so_preload(bench: Bench) -> None:
    program = str(build.program(bench, "driver_plain"))
    etc = fresh_directory(bench, "etc")
    try:
        inside = namespace(bench, etc)
        show(bench, program, inside)
    finally:
        shutil.rmtree(etc, ignore_errors=True)


def namespace(bench: Bench, etc: Path) -> list[str]:
    """A command that runs another one where /etc/ld.so.preload names the library.

    That file seldom exists, and what does not exist cannot be mounted over: so a small /etc goes over the real one.
    """
    unshare = shutil.which("unshare")
    if not unshare:
        bench.skip("no unshare on this machine")
    for name in KEPT:
        real = Path("/etc", name)
        if real.is_dir():
            shutil.copytree(real, etc / name, symlinks=True, ignore_dangling_symlinks=True)
        elif real.is_file():
            shutil.copy(real, etc / name)
    with (etc / "ld.so.preload").open("a") as file:
        file.write(f"{bench.library}\n")
    refusals = []
    for way in WAYS:
        command = [unshare, *way, "sh", "-c", SCRIPT, "sh", str(etc)]
        probe = bench.run(f"probe-{len(way)}", [*command, "true"], limit=20)
        if probe.status == 0:
            bench.figures["namespace"] = " ".join(way)
            return command
        refusals.append(probe.last_words)
    bench.skip("no mount namespace of our own here: " + "; ".join(refusals))


def show(bench: Bench, program: str, inside: list[str]) -> None:
    bare = bench.run("bare", [program])
    counted(bench, "ld-preload", [program])
    trace = bench.path("ld-so-preload.trace")
    settings = [f"RATION_TRACE={trace}"]
    for name in ("LD_LIBRARY_PATH", "GPU_TEST_IMAGE"):  # where the driver is; kernels for a driver that takes no PTX
        if name in bench.machine.environment:
            settings.append(f"{name}={bench.machine.environment[name]}")
    run: Run = bench.run("ld-so-preload", [*inside, "env", "-i", *settings, program])
    if (run.status, run.out) != (bare.status, bare.out):
        bench.problem(f"by ld.so.preload: {run.how()}, other results than bare: {run.last_words}")
    traces = []
    for label in ("ld-preload", "ld-so-preload"):
        traces.append(list(counts.read_trace(bench.directory / f"{label}.trace").values()))
        if len(traces[-1]) != 1:
            bench.problem(f"{label}: {len(traces[-1])} processes in the trace, should be 1")
    if bench.problems:
        return
    (one,), (two,) = traces
    table = counts.read_table()
    for symbol in sorted(one | two):
        # CUPTI watches the first run, and may look around in the driver by itself; the judged classes it leaves alone.
        if one[symbol] != two[symbol] and table.get(symbol) in counts.JUDGED:
            bench.problem(f"{symbol}: {one[symbol]} by LD_PRELOAD, {two[symbol]} by ld.so.preload")
    bench.headline = f"{sum(two.values()):,} calls in the trace, as by LD_PRELOAD, with the environment scrubbed"


CASES = [Case("ld-so-preload", "preloaded by /etc/ld.so.preload: the same results and counts", ld_so_preload)]
