"""Are the witnesses of GPU time to be trusted, and do they leave programs alone? Asked without the library."""

from __future__ import annotations

from gpu.bench import Bench, Case
from gpu.compute import busy
from gpu.compute.container import TIMES, Crew, alone, simulated, solo
from gpu.compute.loads import BY_NAME, LOADS, Load

APART = 0.5  # points between the two witnesses of one program
SLOWED = 0.97  # of the throughput without CUPTI: what is left with it
OWN = ("kernels-50us", "kernels-500us")


def two_clocks(bench: Bench, load: Load) -> None:
    """CUPTI's records and the kernels' own clock, of one run; and what CUPTI costs."""
    if simulated(bench):
        bench.skip("there is no CUPTI for the simulated GPU")
    bare = solo(bench, load)
    crew = Crew(bench, "both", load, {}, cupti=True)
    own = alone(crew, TIMES.solo)
    try:
        cupti = busy.measure(crew.noted("cupti"), own.start, own.end)
    except busy.Broken as broken:
        bench.problem(f"CUPTI: {broken}")
        return
    bench.figures.update(without_cupti=bare.figures(), own=own.figures(), cupti=vars(cupti))
    wrong = judge_clocks(own.window, cupti) + judge_cost(bare.program_rate, own.program_rate)
    for problem in wrong:
        bench.problem(problem)
    bench.headline = (
        f"busy {own.window.share:.2f}% by the kernels' clock, {cupti.share:.2f}% by CUPTI; "
        f"{100 * own.program_rate / bare.program_rate:.2f}% of the throughput without it"
    )


def judge_clocks(own: busy.Window, cupti: busy.Window) -> list[str]:
    wrong = []
    if abs(own.share - cupti.share) > APART:
        wrong.append(f"busy {own.share:.2f}% by the kernels' own clock, {cupti.share:.2f}% by CUPTI")
    if abs(own.rate - cupti.rate) > 0.005 * own.rate:
        wrong.append(f"{own.rate:.1f} kernels a second by their own clock, {cupti.rate:.1f} by CUPTI")
    return wrong


def judge_cost(without: float, with_cupti: float) -> list[str]:
    if with_cupti < SLOWED * without:
        return [f"with CUPTI it does {with_cupti:.1f} steps a second, without {without:.1f}: a witness that disturbs"]
    return []


def undisturbed(bench: Bench, load: Load) -> None:
    """A framework's throughput with CUPTI and without, by its own count."""
    if simulated(bench):
        bench.skip("there is no CUPTI for the simulated GPU")
    load.must_be_there(bench)
    watched = solo(bench, load)
    bare = alone(Crew(bench, "unwatched", load, {}, cupti=False), TIMES.solo)
    bench.figures.update(watched=watched.figures(), units_per_second=bare.program_rate)
    for problem in judge_cost(bare.program_rate, watched.program_rate):
        bench.problem(problem)
    bench.headline = (
        f"{100 * watched.program_rate / bare.program_rate:.2f}% of the throughput without CUPTI; "
        f"busy {watched.window.share:.2f}% ({watched.window.bare_share:.2f}% without pauses)"
    )


def case(load: Load) -> Case:
    if load.is_script:
        about = f"CUPTI's records do not slow it down: {load.about}"
        return Case(f"watched-{load.name}", about, lambda bench: undisturbed(bench, load))
    about = f"CUPTI's records and the kernels' own clock agree: {load.about}"
    return Case(f"watched-{load.name}", about, lambda bench: two_clocks(bench, load))


CASES = [case(load) for load in (*(BY_NAME[name] for name in OWN), *(load for load in LOADS if load.is_script))]
