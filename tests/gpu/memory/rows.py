"""One case per way of taking device memory: asked for three times the cap, judged by what NVML says outside.

The programs are tests/programs/caps/path*.c, which tests/caps.rs runs on the simulated GPU.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass, field

from gpu.bench import Bench, Case
from gpu.machine import ROOT
from gpu.memory.container import capped, gone, program
from gpu.memory.witness import MIB, UNKNOWN

GIB = 1 << 30
OUT_OF_MEMORY = 2
INVALID_CONTEXT = 201

NEAR = 8 * MIB  # how far what the program is told may be from what NVML says
KEPT = 48 * MIB  # what the driver may keep for itself when all was freed: a chunk of a pool, and a little
BATCH = 160 * MIB  # what managed memory may be off by: the driver takes 128 MiB at a time, in no process's figure


@dataclass(frozen=True)
class Row:
    """A path of the program, and what must come out of it: `held`, `free` (not charged) or `refused` at once."""

    path: str
    about: str
    cap: int = 4 * GIB
    outcome: str = "held"
    code: int = OUT_OF_MEMORY
    image: str = ""  # how `big` is compiled, for the paths that load it; otherwise it is PTX

    @property
    def name(self) -> str:
        return f"{self.path}-{self.image}" if self.image else self.path

    def case(self) -> Case:
        return Case(f"cap-{self.name}", self.about, lambda bench: run_row(bench, self))


# What nvcc makes of it: machine code alone, or with others in a fat binary, compressed in one way or another.
IMAGES = {
    "cubin": ["-cubin"],
    "fatbin": ["-fatbin", "-compress-mode=none"],
    "lz4": ["-fatbin", "-Xfatbin=-compress-all", "-compress-mode=speed"],
    "zstd": ["-fatbin", "-Xfatbin=-compress-all", "-compress-mode=size"],
}


@dataclass
class Seen:
    """What a row printed, and what the witness saw while it waited."""

    step: int = 0
    got: int = 0
    code: int | None = None  # None: never refused
    said: dict[str, list[int]] = field(default_factory=dict)
    then: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)  # by prompt: NVML's figures added up
    taken: dict[str, int] = field(default_factory=dict)  # by prompt: the whole device's
    processes: int = 0
    highest: int = 0

    def read(self, lines: list[str]) -> None:
        for line in lines:
            name, *words = line.split()
            if name == "got":
                self.got += int(words[0])
            elif name == "step":
                self.step = int(words[0])
            elif name == "refused":
                self.code = None if words[0] == "never" else int(words[0])
            elif name == "then":
                self.then[words[0]] = int(words[1])
            else:
                self.said[name] = [int(word) for word in words]


ROWS = (
    Row("linear-4k", "cuMemAlloc in steps of 4 KiB", cap=768 * MIB),
    Row("linear-1m1", "cuMemAlloc in steps of 1 MiB and a byte"),
    Row("linear-2m", "cuMemAlloc in steps of 2 MiB"),
    Row("linear-20m1", "cuMemAlloc in steps of 20 MiB and a byte"),
    Row("linear-64m", "cuMemAlloc in steps of 64 MiB"),
    # A driver of today has no such memory in a primary context.
    Row("linear-32bit", "cuMemAlloc of CUDA 2", cap=2 * GIB, outcome="refused", code=INVALID_CONTEXT),
    Row("runtime", "cudaMalloc"),
    Row("pitch", "cuMemAllocPitch"),
    Row("managed", "cuMemAllocManaged, touched by the GPU"),
    Row("async", "cuMemAllocAsync"),
    Row("from-pool", "cuMemAllocFromPoolAsync"),
    Row("pool-kept", "cuMemAlloc, beside a pool that keeps all of it unused"),
    Row("vmm", "cuMemCreate"),
    Row("vmm-mapping", "cuMemCreate, mapped and released"),
    Row("array", "cuArrayCreate"),
    Row("array3d", "cuArray3DCreate"),
    Row("mipmap", "cuMipmappedArrayCreate"),
    Row("graph-node", "allocation nodes of graphs"),
    Row("graph-captured", "captured cuMemAllocAsync"),
    Row("graph-kept", "cuMemAlloc, beside graph memory that is unused"),
    Row("contexts", "cuCtxCreate"),
    Row("module", "modules with a variable of 64 MiB"),
    Row("library-lazy", "libraries with a variable of 64 MiB, loaded at their first launch"),
    Row("module", "the same in a cubin", image="cubin"),
    Row("library-lazy", "the same in a cubin", image="cubin"),
    Row("library-lazy", "the same in a fat binary", image="fatbin"),
    Row("library-lazy", "the same in a fat binary with LZ4", image="lz4"),
    Row("library-lazy", "the same in a fat binary with Zstandard", image="zstd"),
    Row("library-function", "the same, loaded by asking for a function of theirs"),
    Row("library-node", "the same, loaded by making nodes of a graph of them"),
    Row("local", "launches for which the driver grows local memory"),
    Row("graph-local", "graphs of kernels for which the driver grows local memory"),
    Row("stack-limit", "a growing limit on stacks"),
    Row("heap-limit", "a limit on the heap, and a kernel that uses it"),
    Row("threads", "cuMemAlloc by 16 threads at once"),
    # The contexts of eight processes alone are more than 4 GiB.
    Row("processes", "cuMemAlloc by 8 processes at once", cap=8 * GIB),
    Row("exec-chain", "processes that replace themselves, and that start others"),
    Row("ipc", "memory shared by an IPC handle is charged once"),
    Row("ipc-descriptor", "memory shared by a descriptor is charged once"),
    Row("host", "cuMemAllocHost is not charged", cap=GIB, outcome="free"),
)


def run_row(bench: Bench, row: Row) -> None:
    env = {"CAP": str(row.cap)}
    if bench.machine.environment.get("GPU_TEST_IMAGE") and row.path in ("runtime", "linear-32bit"):
        bench.skip("the simulated driver is another here: tests/caps.rs knows")
    if row.path == "runtime":
        env["CAPS_CUDART"] = runtime(bench)
    if row.image:
        env["CAPS_BIG_IMAGE"] = compiled(bench, row.image)
    seen = Seen()
    with capped(bench, row.name, [str(program(bench, "path")), row.path], row.cap, env=env) as (session, eyes, watch):
        before = eyes.taken()
        for prompt in ("ready", "full", "freed"):
            lines = session.until(prompt)
            if lines is None:
                bench.skip(next(line for line in session.lines if line.startswith("skipped ")))
            seen.read(lines)
            held = eyes.held(session.pid)
            seen.held[prompt], seen.taken[prompt] = sum(held.values()), eyes.taken() - before
            if prompt == "full":
                seen.processes = len(held)
                cross_check(bench, held)
            session.tell()
        session.rest()
        pid = session.pid
    if watch.trouble:
        bench.problem(f"the witness: {watch.trouble}")
    seen.highest = watch.highest
    left = gone(eyes, pid)
    if left:
        bench.problem(f"NVML counts {left} bytes of processes that have ended")
    bench.figures.update(cap=row.cap, **vars(seen), looks=watch.looks)
    for problem in judge(row, seen):
        bench.problem(problem)
    share = 100 * counted(row, seen) / row.cap
    bench.headline = (
        f"{counted(row, seen) / MIB:.0f} of {row.cap / MIB:.0f} MiB ({share:.1f}%) by NVML, {seen.got / MIB:.0f} asked "
        f"for and given, then {'never refused' if seen.code is None else seen.code}; afterwards {seen.then}"
    )


def compiled(bench: Bench, image: str) -> str:
    """tests/gpu/programs/big.cu in one of the forms that nvcc makes."""
    nvcc = bench.machine.tool("nvcc")
    if not nvcc or bench.machine.environment.get("GPU_TEST_IMAGE"):
        bench.skip("no nvcc, or no driver that takes what it makes")
    output = bench.directory.parent / "built" / f"big.{image}"
    output.parent.mkdir(parents=True, exist_ok=True)
    target = [f"-arch={bench.machine.architecture}"] if bench.machine.architecture else []
    command = [nvcc, *target, *IMAGES[image], "-o", str(output), str(ROOT / "tests/gpu/programs/big.cu")]
    done = bench.run(f"compile-{image}", command, limit=120)
    if done.status != 0:
        bench.skip(f"this nvcc does not make it: {done.last_words}")
    return str(output)


def runtime(bench: Bench) -> str:
    """A libcudart, of a toolkit or of a wheel."""
    for place in bench.machine.toolkits:
        for sub in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
            found = sorted(glob.glob(str(place / sub / "libcudart.so*")))
            if found:
                return found[-1]
    bench.skip("no libcudart on this machine")


def cross_check(bench: Bench, held: dict[int, int]) -> None:
    """nvidia-smi, outside, is a second witness, where there is one: it says MiB."""
    smi = bench.machine.tool("nvidia-smi")
    query = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    told = bench.machine.ask(smi, *query) if smi else ""
    listed = {}
    for line in told.splitlines():
        pid, _, used = line.partition(",")
        if pid.strip().isdigit() and used.strip().isdigit():
            listed[int(pid)] = int(used) * MIB
    ours = {pid: used for pid, used in listed.items() if pid in held}
    if ours:
        bench.figures["nvidia_smi_mib"] = sum(ours.values()) // MIB
        if abs(sum(ours.values()) - sum(held.values())) > 2 * MIB * len(held):
            bench.problem(f"nvidia-smi says {ours}, NVML says {held}")


def counted(row: Row, seen: Seen) -> int:
    """What the container holds when it is full. Managed memory is in the device's figure alone."""
    if row.path == "managed":
        return seen.held["ready"] + seen.taken["full"] - seen.taken["ready"]
    return seen.held["full"]


def judge(row: Row, seen: Seen) -> list[str]:
    """What is wrong. Empty: nothing."""
    wrong = []

    def must(holds: bool, what: str) -> None:
        if not holds:
            wrong.append(what)

    full, cap = counted(row, seen), row.cap
    near = BATCH if row.path == "managed" else NEAR
    must(seen.processes > 0 and seen.held["full"] != UNKNOWN, "NVML does not list the program, so nothing is shown")
    for name, at in (("info", 1), ("total", 0), ("nvml", 0), ("nvml-v2", 0)):
        if name in seen.said or name in ("info", "total"):
            total = seen.said.get(name, [0, 0])[at]
            must(total == cap, f"`{name}` tells the program that the GPU has {total} bytes, not {cap}")
    for name, at in (("info", 0), ("nvml", 1), ("nvml-v2", 1)):
        if name in seen.said:
            free = seen.said[name][at]
            must(abs(free - (cap - full)) <= near, f"`{name}` says that {free} bytes are free, and {cap - full} are")
    if "left" in seen.said:
        free, held = seen.said["left"][0], seen.held["freed"]
        must(abs(free - (cap - held)) <= near, f"all was freed: {free} bytes are said to be free, {cap - held} are")
    if "nvml-processes" in seen.said:
        listed = seen.said["nvml-processes"][0]
        must(listed == seen.processes, f"NVML inside lists {listed} processes, outside {seen.processes}")
    must(seen.then.get("small") == 0, f"a small allocation afterwards: {seen.then.get('small')}")
    must(seen.then.get("kernel") == 0, f"a kernel afterwards: {seen.then.get('kernel')}")
    kept = seen.held["freed"] - seen.held["ready"]
    must(kept <= KEPT, f"{kept} bytes more when all was freed than before")
    must(seen.highest <= cap, f"{seen.highest - cap} bytes over the cap, at some moment")
    if row.outcome == "free":
        must(seen.code is None, f"refused with {seen.code}")
        must(full - seen.held["ready"] <= NEAR, f"took {full - seen.held['ready']} bytes of the GPU")
        return wrong
    must(seen.code == row.code, f"refused with {seen.code}, not with {row.code}")
    if row.outcome == "refused":
        return wrong
    over = BATCH if row.path == "managed" else 0
    must(full <= cap + over, f"{full - cap} bytes over the cap")
    least = min(cap * 98 // 100, cap - seen.step)
    must(full >= least, f"only {full} bytes of {cap} were to be had")
    must(seen.then.get("closed", OUT_OF_MEMORY) == OUT_OF_MEMORY, "closing an import gave memory back")
    return wrong


CASES = [row.case() for row in ROWS]
