"""nvidia-smi and NVIDIA's profilers, bare and under the library."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpu import build, counts
from gpu.bench import Bench, Case, Run

QUERY = "--query-gpu=name,uuid,memory.total,driver_version"
METRIC = "gpu__time_duration.sum"

Outcome = Callable[[Run], tuple]  # reduces a run to what must not depend on the library


def nvidia_smi(bench: Bench) -> None:
    smi = bench.machine.tool("nvidia-smi")
    if not smi:
        bench.skip("no nvidia-smi on this machine")
    questions = {"list": ["-L"], "query": [QUERY, "--format=csv"], "apps": ["--query-compute-apps=pid", "--format=csv"]}
    for label, arguments in questions.items():
        bare = bench.run(f"{label}-bare", [smi, *arguments], limit=60)
        hooked = bench.run(f"{label}-hooked", [smi, *arguments], hooked=True, limit=60)
        if (bare.status, bare.out) != (hooked.status, hooked.out):
            both = f"bare {bare.how()} {bare.out!r}, hooked {hooked.how()} {hooked.out!r}"
            bench.problem(f"nvidia-smi {' '.join(arguments)}: {both}")
    trace = bench.path("plain.trace")
    bare = bench.run("plain-bare", [smi], limit=60)
    plain = bench.run("plain-hooked", [smi], hooked=True, env={"RATION_TRACE": str(trace)}, limit=60)
    if plain.status != 0 or plain.status != bare.status:
        bench.problem(f"nvidia-smi: bare {bare.how()}, hooked {plain.how()}: {plain.last_words}")
    # Figures change from second to second; the frame and the words around them do not.
    if shape(plain.out) != shape(bare.out):
        bench.problem("nvidia-smi prints another table under the library; both are in the log")
    traced = sum((sum(calls.values()) for calls in counts.read_trace(trace).values()), 0)
    if not traced:
        bench.problem("nvidia-smi's calls of NVML are not in the trace: it was not hooked")
    bench.figures["nvml_calls_traced"] = traced
    bench.headline = f"answers as bare; {traced} calls of NVML in the trace"


def shape(text: str) -> str:
    return re.sub(r"[ =|+-]+", " ", re.sub(r"[\d.:]+|N/A", "0", text))


def launches_traced(bench: Bench, name: str) -> int:
    trace = counts.read_trace(bench.directory / name)
    return sum(calls["cuLaunchKernel"] for calls in trace.values())


def under(bench: Bench, tool: str, arguments: list[str], outcome: Outcome, limit: float = 120) -> tuple:
    """Runs the driver program under a tool: bare, with the library around the tool, and around the program alone.

    Returns the outcome of the bare run.
    """
    path = bench.machine.tool(tool)
    if not path:
        bench.skip(f"no {tool} on this machine")
    program = str(build.program(bench, "driver_plain"))
    traces = {label: bench.path(f"{label}.trace") for label in ("around", "inside")}
    plain = [path, *arguments, "sh", "-c", 'exec "$0"', program]
    # The tool preloads something into the program itself, which is kept.
    add = 'LD_PRELOAD="$1${LD_PRELOAD:+:$LD_PRELOAD}" RATION_TRACE=$2 exec "$0"'
    inside = [path, *arguments, "sh", "-c", add, program, str(bench.library), str(traces["inside"])]
    bare = bench.run("bare", plain, limit=limit)
    around = bench.run("around", plain, hooked=True, env={"RATION_TRACE": str(traces["around"])}, limit=limit)
    within = bench.run("inside", inside, limit=limit)
    outcomes = {run.label: outcome(run) for run in (bare, around, within)}
    traced = {label: launches_traced(bench, f"{label}.trace") for label in traces}
    bench.figures.update(outcomes={k: list(v) for k, v in outcomes.items()}, launches_traced=traced)
    for label in traces:
        if outcomes[label] != outcomes["bare"]:
            bench.problem(f"{tool}, library {label}: {outcomes[label]}, bare: {outcomes['bare']}")
        elif bare.status == 0 and not traced[label]:
            # Tools set LD_PRELOAD for the program themselves; what they make of ours is theirs to decide.
            bench.figures.setdefault("not_hooked", []).append(label)
    if bare.status == 0 and not any(traced.values()):
        bench.problem(f"{tool}: the program was not hooked in either way, so nothing is shown")
    return outcomes["bare"]


def ncu(bench: Bench) -> None:
    def outcome(run: Run) -> tuple:
        said = run.out + run.err
        return (run.how(), "step" in said, METRIC in said, "ERR_NVGPUCTRPERM" in said)

    arguments = ["--clock-control", "none", "--target-processes", "all", "--kernel-name", "step"]
    arguments += ["--launch-count", "1", "--metrics", METRIC]
    status, named, measured, refused = under(bench, "ncu", arguments, outcome)
    if refused:
        bench.headline = "ncu may not read the counters here; it says the same under the library"
    elif not (named and measured):
        bench.headline = f"ncu does not work here even bare ({status}); the same under the library"
    else:
        bench.headline = f"profiles a kernel ({METRIC}), as bare"


def sanitizer(bench: Bench) -> None:
    def outcome(run: Run) -> tuple:
        summary = re.search(r"ERROR SUMMARY: .*", run.out + run.err)
        return (run.how(), summary.group(0) if summary else "no summary", "done" in run.out)

    bare = under(bench, "compute-sanitizer", ["--tool", "memcheck", "--target-processes", "all"], outcome, 180)
    bench.headline = f"memcheck as bare: {bare[1]}"


def nsys(bench: Bench) -> None:
    def outcome(run: Run) -> tuple:
        return (run.how(), "done" in run.out)

    report = str(bench.directory / "report")
    arguments = ["profile", "--trace=cuda", "--sample=none", "--force-overwrite=true", "-o", report]
    under(bench, "nsys", arguments, outcome, 180)
    bench.headline = "traces the program, as bare"


CASES = [
    Case("nvidia-smi", "answers as it does bare, and is hooked", nvidia_smi),
    Case("ncu", "profiles a kernel of a hooked program", ncu),
    Case("compute-sanitizer", "checks the memory of a hooked program", sanitizer),
    Case("nsys", "traces a hooked program", nsys),
]
