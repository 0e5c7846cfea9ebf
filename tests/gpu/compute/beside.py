"""Containers side by side, next to what each does alone and to what plain time slicing gives it, in the same run."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu.bench import Bench, Case
from gpu.compute import busy, host
from gpu.compute.busy import SECOND, Broken
from gpu.compute.container import TIMES, Crew, Got, simulated, slice_of, solo, together
from gpu.compute.loads import BY_NAME, LAUNCH_BOUND, LAYERS, REQUESTS, Load
from gpu.hooks.counted import fresh_directory

POINT = 1.0
SUM = 98.0  # of solo: what all get together
CHANGE = 0.2  # seconds in which a change must have come through
TURN = SECOND // 100  # who does nothing for so long, and wants to, waits for another's turn to end
LATENCY = (1.2, 1.4)  # p50 and p99 of a request, in solo's
LEFT = 0.97  # of what a latency container leaves: what its neighbour keeps
LAUNCH_BOUND_SLOWED = 1.3
REQUEST = 20  # kernels


@dataclass(frozen=True)
class Member:
    """A container of a case. `share` is what it should get, in per cent of its own solo."""

    load: Load
    share: float
    settings: dict[str, str] = field(default_factory=dict)


def member(load: str | Load, share: float, **settings: str) -> Member:
    load = load if isinstance(load, Load) else BY_NAME[load]
    return Member(load, share, {"RATION_COMPUTE_REQUEST": f"{share:g}%", **settings})


def side_by_side(
    bench: Bench, members: list[Member], way: str, stays: dict[int, tuple[float, float]] | None = None
) -> list[Got]:
    """`plain`: as the hardware shares; `ration`: in slices that meet in one region."""
    regions = fresh_directory(bench, f"regions-{way}")
    crews = []
    for number, it in enumerate(members):
        name = f"{way}-{number}"
        env = slice_of(bench, name, regions, it.settings) if way == "ration" else {}
        crews.append(Crew(bench, name, it.load, env, cupti=False))
    with host.watched(bench, way):
        return together(crews, TIMES.window, stays)


def conclude(bench: Bench, wrong: list[str]) -> None:
    for problem in wrong:
        bench.problem(problem)


# ------------------------------------------------------------------------------------------------------- shares


@dataclass(frozen=True)
class Shares:
    """Containers that each want all of the GPU, and together get nearly all of what one would."""

    name: str
    about: str
    members: tuple[Member, ...]
    point: float = POINT
    least_sum: float = SUM

    def case(self) -> Case:
        return Case(f"beside-{self.name}", self.about, lambda bench: run_shares(bench, self))


def run_shares(bench: Bench, it: Shares) -> None:
    members = list(it.members)
    try:
        alone = {load.name: by_itself(bench, load) for load in {m.load.name: m.load for m in members}.values()}
        found = {}
        for way in ("plain", "ration"):
            got = side_by_side(bench, members, way)
            found[way] = [100 * g.rate / alone[m.load.name].rate for g, m in zip(got, members, strict=True)]
            bench.figures[way] = [round(share, 3) for share in found[way]]
    except Broken as broken:
        bench.problem(f"the witness: {broken}")
        return
    bench.figures.update(
        loads=[m.load.name for m in members],
        wanted=[m.share for m in members],
        solo={name: round(got.rate, 2) for name, got in alone.items()},
    )
    bench.headline = f"{listed([m.share for m in members])} wanted, {listed(found['ration'])} got, in sum "
    bench.headline += f"{sum(found['ration']):.1f}; by plain time slicing {listed(found['plain'])}"
    conclude(bench, judge_shares([m.share for m in members], found["ration"], it.point, it.least_sum))


def by_itself(bench: Bench, load: Load) -> Got:
    """Side by side, nobody but the program itself says what a script does: then that is to be the measure alone, too."""
    if not load.is_script or simulated(bench):
        return solo(bench, load)
    return together([Crew(bench, f"solo-{load.name}", load, {}, cupti=False)], TIMES.solo)[0]


def judge_shares(wanted: list[float], got: list[float], point: float = POINT, least: float = SUM) -> list[str]:
    wrong = [
        f"number {number} gets {has:.2f}% of its solo, and should get {want:g}%"
        for number, (want, has) in enumerate(zip(wanted, got, strict=True), 1)
        if abs(has - want) > point
    ]
    if sum(got) < least:
        wrong.append(f"together they get {sum(got):.2f}% of a solo")
    return wrong


def listed(shares: list[float]) -> str:
    return "/".join(f"{share:.1f}".removesuffix(".0") for share in shares)


def real(name: str, about: str, *members: Member) -> Shares:
    return Shares(name, about, members, point=3.0, least_sum=95.0)


EIGHT = ("kernels-500us", "kernels-50us", "kernels-5ms", "kernels-500us") * 2
SHARES = (
    Shares(
        "25-75",
        "25% and 75%, kernels of 0.05 and 0.5 ms",
        (member("kernels-50us", 25), member("kernels-500us", 75)),
    ),
    Shares(
        "10-90",
        "10% and 90%, kernels of 0.5 and 5 ms",
        (member("kernels-500us", 10), member("kernels-5ms", 90)),
    ),
    Shares(
        "20-30-50",
        "20%, 30% and 50%, kernels of 0.05, 0.5 and 5 ms",
        (member("kernels-50us", 20), member("kernels-500us", 30), member("kernels-5ms", 50)),
    ),
    Shares("eight", "eight equal ones, kernels of all lengths", tuple(member(name, 12.5) for name in EIGHT)),
    # One that waits for every kernel has no queue to hold its place. Its own solo has pauses, which the other may use.
    Shares(
        "sync-deep",
        "half each: one waits for every kernel, one queues deep",
        (member("sync-each", 50), member("kernels-500us", 50)),
        point=2.0,
        least_sum=96.0,
    ),
    # Programs as they are: they queue some milliseconds, wait, and launch many short kernels between the long ones, some of them
    # more slowly than the GPU does them. Where a turn begins with those, the GPU waits for them.
    real("training", "60% and 40%: PyTorch trains two networks", member("train", 60), member("train", 40)),
    real("frameworks", "half each: PyTorch trains a network, JAX works", member("train", 50), member("jax", 50)),
    real(
        "layers",
        "60% and 40%: PyTorch trains a network of many small kernels, and a large one",
        member(LAYERS, 60),
        member("train", 40),
    ),
)

# -------------------------------------------------------------------------------------------- comes and goes


def comes_and_goes(bench: Bench) -> None:
    if simulated(bench):
        bench.skip("the simulated GPU's record does not tell whose kernels ended when")
    lasting = Member(BY_NAME["kernels-500us"], 25, {"RATION_COMPUTE_REQUEST": "25%", "RATION_COMPUTE_LIMIT": "100%"})
    guest = Member(BY_NAME["kernels-500us"], 75, {"RATION_COMPUTE_REQUEST": "75%"})
    third = TIMES.window / 3
    stays = {1: (third, 2 * third)}
    try:
        whole = solo(bench, lasting.load).rate
        for way in ("plain", "ration"):
            stayer, visitor = side_by_side(bench, [lasting, guest], way, stays)
            phases = by_phase(stayer.notes, visitor.notes, stayer.start, stayer.end, whole)
            bench.figures[way] = {name: round(share, 3) for name, share in phases.items()}
            bench.figures[f"{way}_turn_ms"] = until_a_turn(stayer.notes, visitor.notes)
            bins = busy.rates(stayer.notes, stayer.start, stayer.end, SECOND // 20)
            bench.figures[f"{way}_every_50_ms"] = [round(100 * rate / whole, 2) for rate in bins]
    except Broken as broken:
        bench.problem(f"the witness: {broken}")
        return
    told = {way: listed(list(bench.figures[way].values())) for way in ("ration", "plain")}
    turn = bench.figures["ration_turn_ms"]
    bench.headline = (
        f"alone, with a neighbour, alone again: {told['ration']}; by plain time slicing {told['plain']}; "
        f"the neighbour's first turn begins {'never' if turn is None else f'{turn:.0f} ms after its first kernel'}"
    )
    conclude(bench, judge_phases(bench.figures["ration"], lasting.share) + judge_turn(turn))


def by_phase(stayer: busy.Notes, visitor: busy.Notes, start: int, end: int, whole: float) -> dict[str, float]:
    """The stayer's part of its solo in each phase, without the time that a change may take."""
    came, left = min(a for a, _ in visitor.intervals), max(b for _, b in visitor.intervals)
    change = int(CHANGE * SECOND)
    phases = {"before": (start, came), "beside": (came + change, left), "after": (left + change, end)}
    ends = [stop for _, stop in stayer.intervals]
    return {
        name: 100 * sum(1 for stop in ends if a < stop <= b) * SECOND / (b - a) / whole
        for name, (a, b) in phases.items()
    }


def until_a_turn(stayer: busy.Notes, visitor: busy.Notes) -> float | None:
    """How many milliseconds after the visitor's first kernel the stayer first gives way to it; none: it never does."""
    came = min(begin for begin, _ in visitor.intervals)
    kernels = sorted(stayer.intervals)
    for (_, end), (begin, _) in itertools.pairwise(kernels):
        if begin > came and begin - end >= TURN:
            return round(max(0, end - came) / 1e6, 1)
    return None


def judge_turn(turn_ms: float | None) -> list[str]:
    if turn_ms is None:
        return ["the neighbour never has a turn"]
    return [f"the neighbour's first turn begins after {turn_ms:.0f} ms"] if turn_ms > CHANGE * 1000 else []


def judge_phases(phases: dict[str, float], share: float) -> list[str]:
    wrong = [
        f"{name} the neighbour it does {phases[name]:.2f}% of its solo"
        for name in ("before", "after")
        if phases[name] < SUM
    ]
    if abs(phases["beside"] - share) > POINT:
        wrong.append(f"beside the neighbour it does {phases['beside']:.2f}% of its solo, and should do {share:g}%")
    return wrong


# -------------------------------------------------------------------------------------------------- latency


def latency(bench: Bench) -> None:
    asking = Member(REQUESTS, 25, {"RATION_COMPUTE_REQUEST": "25%", "RATION_PRIORITY": "latency"})
    filling = Member(BY_NAME["kernels-500us"], 75, {"RATION_COMPUTE_REQUEST": "75%"})
    try:
        alone, full = solo(bench, REQUESTS), solo(bench, filling.load)
        bench.figures["solo"] = told = requests(alone)
        for way in ("plain", "ration"):
            got, neighbour = side_by_side(bench, [asking, filling], way)
            bench.figures[way] = requests(got) | {"neighbour": round(100 * neighbour.rate / full.rate, 3)}
            bench.figures[way] |= changes(got.notes.intervals, neighbour.notes.intervals)
    except Broken as broken:
        bench.problem(f"the witness: {broken}")
        return
    left = 100 - alone.window.share
    bench.figures["left"] = round(left, 3)
    plain, ration = bench.figures["plain"], bench.figures["ration"]
    p50, p99 = (f"{ration[p]:.0f} µs (solo {told[p]:.0f}, plain {plain[p]:.0f})" for p in ("p50_us", "p99_us"))
    keeps = f"{ration['neighbour']:.1f}% of {left:.1f}% (plain {plain['neighbour']:.1f}%)"
    bench.headline = f"p50 {p50}, p99 {p99}; the neighbour keeps {keeps}; {host.headline(bench)}"
    conclude(bench, judge_latency(told, ration, left))


def requests(got: Got) -> dict:
    if len(got.took_us) < 20:
        raise Broken(f"only {len(got.took_us)} requests were measured")
    hundredths = statistics.quantiles(got.took_us, n=100, method="inclusive")
    return {
        "requests": len(got.took_us),
        "p50_us": round(hundredths[49], 1),
        "p99_us": round(hundredths[98], 1),
        "most_us": max(got.took_us),
        "curve_us": [round(value, 1) for value in hundredths],
    }


def changes(asked: list[busy.Interval], filled: list[busy.Interval]) -> dict:
    """How long the GPU took from the neighbour's kernels to a request's, for those, and back to the neighbour's: medians, and
    what one in a hundred takes longer than."""
    asked, filled = sorted(asked), sorted(filled)
    begins, ends = [begin for begin, _ in filled], [end for _, end in filled]
    found: dict[str, list[float]] = {"to_it": [], "for_it": [], "back": []}
    for at in range(0, len(asked) - REQUEST + 1, REQUEST):
        first, last = asked[at][0], asked[at + REQUEST - 1][1]
        before, after = bisect.bisect_right(ends, first), bisect.bisect_left(begins, last)
        if last - first > SECOND // 100 or not 0 < before <= after < len(begins):
            continue  # not one request, or the neighbour was not there
        found["to_it"].append((first - ends[before - 1]) / 1000)
        found["for_it"].append((last - first) / 1000)
        found["back"].append((begins[after] - last) / 1000)
    told = {}
    for name, times in found.items():
        if times:
            told[f"{name}_us"] = round(statistics.median(times), 1)
            told[f"{name}_p99_us"] = round(sorted(times)[min(len(times) * 99 // 100, len(times) - 1)], 1)
    return told


def judge_latency(alone: dict, got: dict, left: float) -> list[str]:
    wrong = [
        f"{name} is {got[f'{name}_us']:.0f} µs, {got[f'{name}_us'] / alone[f'{name}_us']:.2f} times solo's"
        for name, most in zip(("p50", "p99"), LATENCY, strict=True)
        if got[f"{name}_us"] > most * alone[f"{name}_us"]
    ]
    if got["neighbour"] < LEFT * left:
        wrong.append(f"the neighbour keeps {got['neighbour']:.1f}% of its solo, of {left:.1f}% that are left")
    return wrong


# --------------------------------------------------------------------------------------------- launch-bound


def launch_bound(bench: Bench) -> None:
    LAUNCH_BOUND.must_be_there(bench)
    four = [Member(LAUNCH_BOUND, 25, {"RATION_COMPUTE_REQUEST": "25%"})] * 4
    alone = together([Crew(bench, "solo", LAUNCH_BOUND, {}, cupti=False)], TIMES.solo)[0]
    for way in ("plain", "ration"):
        found = side_by_side(bench, four, way)
        bench.figures[way] = [round(alone.program_rate / got.program_rate, 4) for got in found]
    bench.figures["solo_per_second"] = round(alone.program_rate, 1)
    ration, plain = (max(bench.figures[way]) for way in ("ration", "plain"))
    bench.headline = f"the slowest of four takes {ration:.3f} times its solo; by plain time slicing {plain:.3f}"
    conclude(bench, judge_launch_bound(bench.figures["ration"], bench.figures["plain"]))


def judge_launch_bound(slowed: list[float], plain: list[float]) -> list[str]:
    if max(slowed) > LAUNCH_BOUND_SLOWED:
        return [f"the slowest takes {max(slowed):.3f} times as long as alone, and {max(plain):.3f} by plain time slicing"]
    return []


def case(name: str, about: str, run: Callable[[Bench], None]) -> Case:
    return Case(f"beside-{name}", about, run)


CASES = [
    *(it.case() for it in SHARES),
    case("comes-and-goes", "request 25%, limit 100%: all while it is alone, 25% beside a neighbour", comes_and_goes),
    case("latency", "a request every 20 ms as `latency`, beside a neighbour that wants all", latency),
    case("launch-bound", "four launch-bound CuPy jobs, 25% each, no limit: they are let alone", launch_bound),
]
