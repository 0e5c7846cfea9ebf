"""How far the library's own account of GPU time is from a witness's, in a container that nobody holds up."""

from __future__ import annotations

from gpu.bench import Bench, Case
from gpu.compute.busy import Broken
from gpu.compute.container import TIMES, Crew, Got, alone, slice_of
from gpu.compute.loads import BY_NAME, LAUNCH_BOUND, Load
from gpu.hooks.counted import fresh_directory

OFF = 5.0  # points between an estimate and the witness
MOST_SECONDS = 5.0  # long enough to tell
NAMES = ("kernels-50us", "kernels-500us", "sync-each", "streams", "gemm", "graph", "train", "jax")
FREE = [*(BY_NAME[name] for name in NAMES), LAUNCH_BOUND]


def run_free(bench: Bench, load: Load) -> None:
    load.must_be_there(bench)
    env = slice_of(bench, "free", fresh_directory(bench, "regions"), {"RATION_MEMORY": "90%"})
    try:
        got = alone(Crew(bench, "free", load, env), min(TIMES.window, MOST_SECONDS))
    except Broken as broken:
        bench.problem(f"the witness: {broken}")
        return
    bench.figures.update(got.figures())
    for problem in judge(got):
        bench.problem(problem)
    bench.headline = f"busy {got.window.share:.2f}% by the witness, {got.account:.2f}% by the account"


def judge(got: Got) -> list[str]:
    if got.account is None:
        return ["the container has no account"]
    if abs(got.account - got.window.share) > OFF:
        return [f"the witness has {got.window.share:.2f}% of the time, the account {got.account:.2f}%"]
    return []


def case(load: Load) -> Case:
    about = f"the account of GPU time is right where nobody is held up: {load.about}"
    return Case(f"metered-{load.name}", about, lambda bench: run_free(bench, load))


CASES = [case(load) for load in FREE]
