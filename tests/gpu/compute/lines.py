"""The lines that compute must show, as mixes of a pool and as cases: plain time slicing beside slices, in the same run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu.bench import Bench, Case
from gpu.compute import bars
from gpu.compute.container import simulated
from gpu.compute.judges import (
    HOST,
    entries,
    figure,
    judge_alike,
    judge_free,
    judge_halves,
    judge_limit,
    judge_mixed,
    judge_phases,
    judge_requests,
    judge_service,
    judge_shares,
    listed,
    speeds,
    times,
)
from gpu.compute.loads import ANY, LAUNCH_BOUND, Load
from gpu.compute.mixes import TIMES, WHOLE, Member, Mix, Result, member, seats_of, solos
from gpu.compute.pool import Pool

MOST_SCRIPTS = 12  # processes with a framework in one pool: thirty kept the kernel module and the host busy
LIMITS = (10, 25, 50, 75, 90)
SHARE_SECONDS = 6.0
FREE_ROUNDS = 2
COLUMNS = ["mix", "container", "u", "plain: speed", "GPU", "ration: speed", "GPU", "account", "apart", "host", "thread", "held"]

# What each program requests in pairs, fours and eights: requests are weights where they are more than the GPU has.
REQUESTS = {
    "decode": 30,
    "mlp": 10,
    "conv": 30,
    "cupy-loop": 20,
    "gemm": 20,
    "kernels-500us": 30,
    "decode-graph": 20,
    "lstm": 15,
    "jax-small": 15,
    "prefill": 25,
    "train": 30,
    "layers": 20,
    "kernels-50us": 10,
    "kernels-5ms": 20,
    "sync-each": 20,
}
PAIRED = ("decode", "mlp", "conv", "cupy-loop", "gemm", "kernels-500us")
LIMITED = ("decode", "decode-graph", "mlp", "conv", "lstm", "cupy-loop", "jax-small")
LIMITED += ("gemm", "prefill", "train", "kernels-500us", "sync-each")
FREE = ("decode", "mlp", "conv", "lstm", "cupy-loop", "jax-small", "decode-graph", "gemm", "kernels-50us", "sync-each")


Judge = Callable[[Bench, Result], tuple[list[str], str]]  # what is wrong with a mix, and what it showed


@dataclass(frozen=True)
class Line:
    """A case: mixes, and what is asked of each."""

    name: str
    about: str
    mixes: tuple[Mix, ...]
    judge: Judge

    def chosen(self) -> list[Mix]:
        return list(self.mixes[: TIMES.mixes])

    def case(self) -> Case:
        return Case(self.name, self.about, lambda bench: run_line(bench, self), lambda: self.name in results)


planned: list[Line] = []
results: dict[str, list[Result]] = {}


def weight(mixes: Sequence[Mix]) -> int:
    return sum(seat.load.is_script for seat in seats_of(mixes, solos))


def gather(bench: Bench, line: Line) -> list[Result]:
    """What the mixes of a line gave. The lines after it that fit into the same pool are run with it."""
    if line.name not in results:
        after = [it.name for it in planned].index(line.name) + 1 if line in planned else len(planned)
        rest = [it for it in planned[after:] if it.name not in results]
        together, mixes = [line], line.chosen()
        for other in rest:
            if weight([*mixes, *other.chosen()]) > max(MOST_SCRIPTS, weight(mixes)):
                break
            together.append(other)
            mixes = [*mixes, *other.chosen()]
        bench.note(f"{len(mixes)} mixes of {', '.join(it.name for it in together)}")
        found = iter(Pool(bench, mixes).run())
        for it in together:
            results[it.name] = list(itertools.islice(found, len(it.chosen())))
    return results[line.name]


def run_line(bench: Bench, line: Line) -> None:
    if simulated(bench):
        bench.skip("the programs of these mixes need a real GPU")
    found = gather(bench, line)
    if left := sum(it.skipped for it in found):
        bench.note(f"{left} mixes were left out: the budget was spent")
        found = [it for it in found if not it.skipped]
    if not found:
        bench.skip("the budget was spent")
    rows, held, lines = [], 0, []
    for result in found:
        name = result.mix.name
        if result.broken:
            bench.problem(f"{name}: {result.broken}")
            continue
        wrong, told = judged(bench, line, result)
        held += not wrong
        lines.append(told)
        for problem in wrong:
            bench.problem(f"{name}: {problem}")
        rows += rows_of(result, wrong)
        bench.note(f"{name}: {told}" + "".join(f"\n    - {problem}" for problem in wrong))
    bench.figures["columns"] = COLUMNS
    bench.figures["rows"] = rows
    bench.headline = "; ".join(lines) if len(found) <= 2 else f"{held} of {len(found)} held; {summary(found)}"


def judged(bench: Bench, line: Line, result: Result) -> tuple[list[str], str]:
    wrong, told = line.judge(bench, result)
    if HOST.is_full:
        wrong = bars.not_below_plain(entries(result), HOST.slack) if "plain" in result.found else []
    return wrong, told


def rows_of(result: Result, wrong: list[str]) -> list[list[str]]:
    rows = []
    for number, it in enumerate(result.mix.members):
        plain, ration = (result.found[way][number] if way in result.found else None for way in ("plain", "ration"))
        asks = f"{result.mix.limit:g}%" if result.mix.limit is not None else " ".join(value for _, value in it.settings)
        cells = [figure(plain.speed), figure(plain.gpu)] if plain else ["", ""]
        cells += [figure(ration.speed), figure(ration.gpu)] if ration else ["", ""]
        thread = figure(ration.thread) if ration and ration.thread is not None else ""
        got = ration or plain
        apart = figure(got.apart) if got and got.apart is not None else ""
        name = f"{it.load.name} ({asks})" if asks else it.load.name
        u = figure(got.u) if got else ""
        account = listed([it.account for it in got.accounts]) if got else ""
        host = listed([it.host for it in (plain, ration) if it])
        rows.append([result.mix.name, name, u, *cells, account, apart, host, thread, "no" if wrong else "yes"])
    return rows


def summary(found: Sequence[Result]) -> str:
    """Of many mixes: the sums; of programs that are alone, each."""
    whole = [it for it in found if not it.broken]
    if all(len(it.mix.members) == 1 for it in whole):
        got, bare = [it.found["ration"][0] for it in whole], [it.found["plain"][0] for it in whole if "plain" in it.found]
        told = f"speeds {listed(speeds(got))}, GPU time {listed(times(got))}"
        return told + (f", bare {listed(speeds(bare))}" if bare else "")
    sums = {way: [sum(times(it.found[way])) for it in whole] for way in ("ration", "plain")}
    means = {way: sum(all_) / max(1, len(all_)) for way, all_ in sums.items()}
    return f"GPU time in sum {means['ration']:.1f} on average, plain {means['plain']:.1f}"


# -------------------------------------------------------------------------------------------------------- mixes


def mix(name: str, *members: Member, **more) -> Mix:
    return Mix(name, members, **more)


def shared(*parts: tuple[str, float]) -> tuple[Member, ...]:
    """Those of one program are numbered, so that the first of each is the process that is measured alone."""
    names = [name for name, _ in parts]
    return tuple(member(ANY[name], request, names[:at].count(name)) for at, (name, request) in enumerate(parts))


EIGHT = ("kernels-500us", "kernels-50us", "kernels-5ms", "kernels-500us") * 2
LATENCY = {"RATION_PRIORITY": "latency"}


def latency_mix(name: str, asking: str, request: float, *others: tuple[str, float]) -> Mix:
    return mix(name, member(ANY[asking], request, **LATENCY), *shared(*others))


def limited(load: Load, limits: Sequence[int]) -> tuple[Mix, ...]:
    return tuple(
        mix(
            f"{load.name} at {it}%",
            member(load, 0, RATION_COMPUTE_LIMIT=f"{WHOLE:g}%"),
            ways=("ration",),
            limit=float(it),
        )
        for it in limits
    )


def by_request(names: Sequence[str]) -> Mix:
    return mix(" + ".join(names), *(member(ANY[name], REQUESTS[name]) for name in names))


def drawn(count: int, size: int) -> tuple[Mix, ...]:
    chance, found = random.Random(size), []
    while len(found) < count:
        names = sorted(chance.sample(sorted(REQUESTS), size))
        if names not in found:
            found.append(names)
    return tuple(by_request(names) for names in found)


def line(name: str, about: str, judge: Judge, *mixes: Mix) -> Line:
    return Line(name, about, mixes, judge)


def share_line(name: str, about: str, judge: Judge, *parts: tuple[str, float]) -> Line:
    """Long enough: a lease may take 30 ms, and what is judged is a hundredth of the window."""
    told = name.removeprefix("share-").replace("-", "/")
    return line(name, about, judge, mix(told, *shared(*parts), seconds=SHARE_SECONDS))


SHARES = (
    share_line("share-25-75", "25% and 75%: GPU time", judge_shares, ("kernels-50us", 25), ("kernels-500us", 75)),
    share_line("share-10-90", "10% and 90%: GPU time", judge_shares, ("kernels-500us", 10), ("kernels-5ms", 90)),
    share_line(
        "share-20-30-50",
        "20%, 30% and 50%: GPU time",
        judge_shares,
        ("kernels-50us", 20),
        ("kernels-500us", 30),
        ("kernels-5ms", 50),
    ),
    share_line("share-eight", "eight equal ones: GPU time", judge_shares, *((name, 12.5) for name in EIGHT)),
    line(
        "share-comes-and-goes",
        "request 25%: all while it is alone, 25% of GPU time beside a neighbour",
        judge_phases,
        mix(
            "comes and goes",
            member(ANY["kernels-500us"], 25),
            member(ANY["kernels-500us"], 75, 1, (1 / 3, 2 / 3)),
            cuts=((0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1)),
            seconds=2 * SHARE_SECONDS,
        ),
    ),
    share_line(
        "share-sync-deep",
        "half each: one waits for every kernel of 0.5 ms, one queues deep",
        judge_halves,
        ("sync-each", 50),
        ("kernels-500us", 50),
    ),
    share_line(
        "share-graph-deep",
        "half each: a graph for each token, waited for, and one that queues deep",
        judge_halves,
        ("decode-graph", 50),
        ("kernels-500us", 50),
    ),
)
REQUESTED = (
    line(
        "latency-short",
        "20 short kernels each 20 ms as `latency`, beside kernels of 0.5 ms",
        judge_requests,
        latency_mix("beside 0.5 ms", "requests", 25, ("kernels-500us", 75)),
    ),
    line(
        "latency-long",
        "20 short kernels each 20 ms as `latency`, beside kernels of 5 ms",
        judge_requests,
        latency_mix("beside 5 ms", "requests", 25, ("kernels-5ms", 75)),
    ),
    line(
        "latency-three",
        "20 short kernels each 20 ms as `latency`, beside three that fill the GPU",
        judge_requests,
        latency_mix("beside three", "requests", 25, *((name, 20) for name in EIGHT[:3])),
    ),
    line(
        "latency-seven",
        "20 short kernels each 20 ms as `latency`, beside seven that fill the GPU",
        judge_requests,
        latency_mix("beside seven", "requests", 25, *((name, 10) for name in EIGHT[:7])),
    ),
)
SERVED = (
    line(
        "serve-gemm",
        "a decoder as `latency`, 16 tokens each 250 ms, eager and as graphs, beside products",
        judge_service,
        latency_mix("eager beside GEMM", "serve", 40, ("gemm", 60)),
        latency_mix("graphs beside GEMM", "serve-graph", 40, ("gemm", 60)),
    ),
    line(
        "serve-train",
        "a decoder as `latency`, beside training",
        judge_service,
        latency_mix("beside training", "serve", 40, ("train", 60)),
    ),
    line(
        "serve-three",
        "a decoder as `latency`, beside three others",
        judge_service,
        latency_mix("beside three", "serve", 40, ("gemm", 20), ("kernels-500us", 20), ("conv", 20)),
    ),
)
MIXED = (
    line("mix-pairs", "all pairs of six programs", judge_mixed, *map(by_request, itertools.combinations(PAIRED, 2))),
    line("mix-fours", "twenty fours, drawn", judge_mixed, *drawn(20, 4)),
    line("mix-eights", "three eights, drawn", judge_mixed, *drawn(3, 8)),
)
BOUND = (
    line(
        "mix-launch-bound",
        "four CuPy loops that cannot fill the GPU: within 2% of plain time slicing",
        judge_alike,
        mix("four CuPy loops", *(member(LAUNCH_BOUND, 25, number) for number in range(4))),
    ),
)
ALONE = tuple(
    line(f"limit-{name}", f"limits, alone: {ANY[name].about}", judge_limit, *limited(ANY[name], LIMITS)) for name in LIMITED
)
ALONE += (line("limit-empty", "a limit of 90%, alone: empty kernels", judge_limit, *limited(ANY["empty"], (90,))),)
UNHELD = (
    line(
        "free-alone",
        "without a limit, alone: as fast as bare, by turns",
        judge_free,
        *(mix(f"{name} free", member(ANY[name], 50), least=FREE_ROUNDS) for name in FREE),
    ),
)


LINES = (*MIXED, *SHARES, *REQUESTED, *SERVED, *BOUND, *ALONE, *UNHELD)
CASES = [it.case() for it in LINES]


def plan(names: Sequence[str]) -> None:
    """The lines that will be asked for, in order: those that fit share a pool."""
    planned[:] = [it for it in LINES if it.name in names]
