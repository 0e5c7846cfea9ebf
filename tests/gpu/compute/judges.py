"""What is asked of each kind of mix: the bars, over what its containers got, and what that was, in a line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from gpu.bench import Bench
from gpu.compute import bars
from gpu.compute.mixes import Found, Result, solos


@dataclass
class Host:
    """How many cores other programs keep busy, by the command line."""

    busy: int = 0

    @property
    def slack(self) -> float:
        return 3.0 if self.busy else 0.0

    @property
    def is_full(self) -> bool:
        return self.busy >= (os.cpu_count() or 1)


HOST = Host()


def figure(value: float) -> str:
    return f"{value:.1f}"


def listed(values: Sequence[float]) -> str:
    return "/".join(f"{value:.1f}".removesuffix(".0") for value in values)


def entries(result: Result) -> list[bars.Entry]:
    plain, ration = result.found["plain"], result.found["ration"]
    return [
        bars.Entry(it.load.name, it.request, b.u, a.speed, a.gpu, b.speed, b.gpu)
        for it, a, b in zip(result.mix.members, plain, ration, strict=True)
    ]


def speeds(found: Sequence[Found]) -> list[float]:
    return [it.speed for it in found]


def times(found: Sequence[Found]) -> list[float]:
    return [it.gpu for it in found]


def judge_shares(_: Bench, result: Result) -> tuple[list[str], str]:
    wanted, got = [it.request for it in result.mix.members], times(result.found["ration"])
    told = f"{listed(wanted)} wanted, {listed(got)} got, in sum {sum(got):.1f}; plain {listed(times(result.found['plain']))}"
    return bars.shares(wanted, got, HOST.slack), told


def judge_halves(_: Bench, result: Result) -> tuple[list[str], str]:
    got = speeds(result.found["ration"])
    return bars.halves(got, HOST.slack), f"{listed(got)} of their speeds; plain {listed(speeds(result.found['plain']))}"


def judge_phases(_: Bench, result: Result) -> tuple[list[str], str]:
    before, beside, after = result.found["ration"][0].cuts
    plain = listed([gpu for _, gpu in result.found["plain"][0].cuts])
    told = f"alone, beside, alone again {listed([before[0], beside[1], after[0]])}; plain {plain}"
    return bars.phases(beside[1], [before[0], after[0]], HOST.slack), told


def judge_limit(_: Bench, result: Result) -> tuple[list[str], str]:
    it, got, most = result.mix.members[0], result.found["ration"][0], result.mix.limit or 0.0
    told = f"limit {most:g}: GPU {got.gpu:.1f}, speed {got.speed:.1f} (uses {got.u:.1f} alone"
    told += ")" if got.apart is None else f"; its speed without a limit, before and after, {got.apart:.1f}% apart)"
    if it.load.name == "empty":
        return bars.empty(got.speed, HOST.slack), told
    return bars.limit(most, got.u, got.gpu, got.speed, HOST.slack), told


def latency_of(result: Result, way: str) -> bars.Latency:
    alone = solos[result.mix.members[0].load.name]
    return bars.slowed(result.found[way][0].took_us, alone.took_us)


def told_latency(result: Result) -> str:
    lines = []
    for way in ("ration", "plain"):
        got = latency_of(result, way)
        lines.append(f"{way} {got.p50:.2f}x/{got.p99:.2f}x, others {listed(speeds(result.found[way][1:]))}")
    return "; ".join(lines)


def judge_requests(_: Bench, result: Result) -> tuple[list[str], str]:
    got, others = latency_of(result, "ration"), speeds(result.found["ration"][1:])
    if len(others) == 1:
        u = result.found["ration"][0].u
        wrong = bars.quick(got, 1.12, 1.2, HOST.slack) + bars.keeps(others[0], u, HOST.slack)
    else:
        plain = speeds(result.found["plain"][1:])
        wrong = bars.quick(got, 1.15, 1.4, HOST.slack) + bars.sum_near_plain(others, plain, HOST.slack)
    return wrong, told_latency(result)


def judge_service(_: Bench, result: Result) -> tuple[list[str], str]:
    got, plain = (latency_of(result, way) for way in ("ration", "plain"))
    others = [speeds(result.found[way][1:]) for way in ("ration", "plain")]
    wrong = bars.quick(got, 1.1, 1.2, HOST.slack) + bars.no_worse(got, plain, HOST.slack)
    return wrong + bars.each_near_plain(*others, HOST.slack), told_latency(result)


def judge_mixed(_: Bench, result: Result) -> tuple[list[str], str]:
    mix = entries(result)
    told = f"speeds {listed([it.speed for it in mix])}, plain {listed([it.plain_speed for it in mix])}; GPU "
    told += f"{listed([it.gpu for it in mix])}, plain {listed([it.plain_gpu for it in mix])}, "
    told += f"due {listed(bars.fair_shares(mix))}, use {listed([it.u for it in mix])}"
    return bars.mixed(mix, HOST.slack), told


def judge_alike(_: Bench, result: Result) -> tuple[list[str], str]:
    got, plain = speeds(result.found["ration"]), speeds(result.found["plain"])
    return bars.alike(got, plain), f"{listed(got)} of their speed alone; plain {listed(plain)}"


def judge_free(_: Bench, result: Result) -> tuple[list[str], str]:
    """Of the bare process beside which it was measured, round by round."""
    got, bare = result.found["ration"][0], result.found["plain"][0]
    speed = 100 * got.speed / bare.speed if bare.speed else 0.0
    apart = "" if got.apart is None or bare.apart is None else f" (rounds are {got.apart:.1f}% apart, bare {bare.apart:.1f}%)"
    return bars.free(speed, HOST.slack), f"{speed:.2f}% of its bare speed{apart}"
