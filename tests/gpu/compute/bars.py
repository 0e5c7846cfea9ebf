"""What containers must get: pure functions over figures, each giving what is wrong.

Speeds are in per cent of the program's own alone; GPU times in per cent of the window; `u` is the GPU time of a program
alone. `slack` is what is forgiven, in points, on a host that has little CPU to spare.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

POINT, SUM = 1.0, 98.0
HALF = 48.5
LIMIT_OVER, LIMIT_SHORT = 1.0, 3.0
EMPTY = 88.0
KEEPS = 0.97
BELOW, OVER, SUM_BELOW = 3.0, 2.0, 1.0
UNDER = 0.5  # points: less than that under a fair share is noise
ALIKE = 0.98
FREE = 99.5
ACCOUNT, ACCOUNT_SHORT, SHORT_US = 1.0, 0.08, 10.0
THREAD_TWO, THREAD_ANY, THREAD_IDLE = 5.0, 8.0, 0.2


def fair(requests: Sequence[float], demands: Sequence[float], capacity: float = 100.0) -> list[float]:
    """Max-min over requests: nobody has more than it wants, and what is left is shared out by requests."""
    shares = [0.0] * len(requests)
    left, rest = list(range(len(requests))), capacity
    while left:
        weight = sum(requests[i] for i in left)
        content = [i for i in left if demands[i] <= rest * requests[i] / weight]
        if not content:
            for i in left:
                shares[i] = rest * requests[i] / weight
            break
        for i in content:
            shares[i] = demands[i]
            left.remove(i)
        rest -= sum(demands[i] for i in content)
    return shares


@dataclass(frozen=True)
class Entry:
    """A container of a mix, by plain time slicing and in its slice."""

    name: str
    request: float
    u: float
    plain_speed: float
    plain_gpu: float
    speed: float
    gpu: float


def fair_shares(mix: Sequence[Entry]) -> list[float]:
    """Of the time that is not lost to switching between containers."""
    capacity = min(100.0, max(sum(it.gpu for it in mix), sum(it.plain_gpu for it in mix)))
    return fair([it.request for it in mix], [wanted(it) for it in mix], capacity)


def wanted(it: Entry) -> float:
    """What it uses alone. Who is quicker than alone, in another process or at another time, uses as much more."""
    quicker = [gpu for speed, gpu in ((it.speed, it.gpu), (it.plain_speed, it.plain_gpu)) if speed > 100]
    return max([it.u, *quicker])


def due_speed(it: Entry, share: float) -> float:
    return min(100.0, 100 * share / it.u) if it.u else 100.0


def is_short(it: Entry, share: float, slack: float = 0.0) -> bool:
    """By its GPU time and by its speed: clocks differ, and a kernel that is quicker than alone takes less time."""
    return it.gpu < share - UNDER - slack and it.speed < due_speed(it, share) - 1 - slack


def mixed(mix: Sequence[Entry], slack: float = 0.0) -> list[str]:
    wrong, both = [], list(zip(mix, fair_shares(mix), strict=True))
    for it, share in both:
        due = due_speed(it, share)
        if it.speed < min(it.plain_speed, due) - BELOW - slack:
            plain = f"by plain time slicing {it.plain_speed:.1f}%"
            wrong.append(f"{it.name} has {it.speed:.1f}% of its speed, {plain}, due {due:.1f}%")
    for it, share in both:
        short = [other.name for other, its in both if other is not it and is_short(other, its, slack)]
        if short and it.gpu > share + OVER + slack:
            has = f"{it.name} has {it.gpu:.1f}% of the GPU's time, due {share:.1f}%"
            wrong.append(f"{has}, while {short[0]} is short of its share")
    all_of_it, plain_sum = sum(it.gpu for it in mix), sum(it.plain_gpu for it in mix)
    if all_of_it < plain_sum - SUM_BELOW - slack:
        wrong.append(f"together they have {all_of_it:.1f}% of the GPU's time, by plain time slicing {plain_sum:.1f}%")
    return wrong


def not_below_plain(mix: Sequence[Entry], slack: float) -> list[str]:
    """All that is asked on a host without any CPU to spare."""
    return [
        f"{it.name} has {it.speed:.1f}% of its speed, by plain time slicing {it.plain_speed:.1f}%"
        for it in mix
        if it.speed < it.plain_speed - slack and it.gpu < it.request
    ]


def shares(wanted: Sequence[float], gpu: Sequence[float], slack: float = 0.0) -> list[str]:
    wrong = [
        f"number {number} has {has:.2f}% of the GPU's time, and should have {want:g}%"
        for number, (want, has) in enumerate(zip(wanted, gpu, strict=True), 1)
        if abs(has - want) > POINT + slack
    ]
    if sum(gpu) < SUM - slack:
        wrong.append(f"together they have {sum(gpu):.2f}% of the GPU's time")
    return wrong


def phases(beside: float, alone: Sequence[float], slack: float = 0.0) -> list[str]:
    """A request of 25%, before a neighbour of 75% comes, beside it, and after it has gone."""
    wrong = [f"without a neighbour it has {has:.2f}% of its speed" for has in alone if has < SUM - slack]
    if abs(beside - 25) > POINT + slack:
        wrong.append(f"beside its neighbour it has {beside:.2f}% of the GPU's time, and should have 25%")
    return wrong


def halves(speeds: Sequence[float], slack: float = 0.0) -> list[str]:
    return [f"number {i} has {it:.2f}% of its speed" for i, it in enumerate(speeds, 1) if it < HALF - slack]


def limit(most: float, u: float, gpu: float, speed: float, slack: float = 0.0) -> list[str]:
    wrong = []
    if gpu > most + LIMIT_OVER:
        wrong.append(f"at {most:g}% the GPU works {gpu:.2f}% of the time")
    due = min(100.0, 100 * most / u if u else 100.0)
    if speed < due - LIMIT_SHORT - slack:
        wrong.append(f"at {most:g}% it has {speed:.1f}% of its speed, and should have {due:.1f}% (it uses {u:.1f}%)")
    return wrong


def empty(speed: float, slack: float = 0.0) -> list[str]:
    return [f"empty kernels keep {speed:.1f}% at a limit of 90%"] if speed < EMPTY - slack else []


@dataclass(frozen=True)
class Latency:
    """What requests take, over the same percentile alone."""

    p50: float
    p99: float


def percentiles(took_us: Sequence[float]) -> tuple[float, float]:
    hundredths = statistics.quantiles(took_us, n=100, method="inclusive")
    return hundredths[49], hundredths[98]


def slowed(took_us: Sequence[float], alone_us: Sequence[float]) -> Latency:
    (p50, p99), (alone_50, alone_99) = percentiles(took_us), percentiles(alone_us)
    return Latency(p50 / alone_50, p99 / alone_99)


def quick(got: Latency, p50: float, p99: float, slack: float = 0.0) -> list[str]:
    """`slack` is in points here, too: hundredths of what it takes alone."""
    pairs = (("p50", got.p50, p50), ("p99", got.p99, p99))
    return [f"{name} is {has:.3f} times that alone" for name, has, most in pairs if has > most + slack / 100]


def keeps(neighbour: float, u: float, slack: float = 0.0) -> list[str]:
    """What a neighbour that fills the GPU keeps of what requests leave."""
    left = 100 - u
    if neighbour < KEEPS * left - slack:
        return [f"the neighbour keeps {neighbour:.1f}% of its speed, of {left:.1f}% that are left"]
    return []


def no_worse(got: Latency, plain: Latency, slack: float = 0.0) -> list[str]:
    pairs = (("p50", got.p50, plain.p50), ("p99", got.p99, plain.p99))
    return [
        f"{name} is {has:.3f} times that alone, {was:.3f} by plain time slicing"
        for name, has, was in pairs
        if has > max(was, 1.0) + 0.02 + slack / 100
    ]


def sum_near_plain(speeds: Sequence[float], plain: Sequence[float], slack: float = 0.0) -> list[str]:
    if sum(speeds) < sum(plain) - 5 - slack:
        return [f"the others have {sum(speeds):.1f}% in sum, by plain time slicing {sum(plain):.1f}%"]
    return []


def each_near_plain(speeds: Sequence[float], plain: Sequence[float], slack: float = 0.0) -> list[str]:
    return [
        f"a neighbour has {has:.1f}% of its speed, by plain time slicing {was:.1f}%"
        for has, was in zip(speeds, plain, strict=True)
        if has < was - 5 - slack
    ]


def alike(speeds: Sequence[float], plain: Sequence[float]) -> list[str]:
    """Programs that are all the same: the slowest, and all of them."""
    wrong = []
    for what, has, was in (("the slowest has", min(speeds), min(plain)), ("together they have", sum(speeds), sum(plain))):
        if has < ALIKE * was:
            wrong.append(f"{what} {has:.1f}% of the speed alone, by plain time slicing {was:.1f}%")
    return wrong


def free(speed: float, slack: float = 0.0) -> list[str]:
    return [f"free and alone it has {speed:.2f}% of its bare speed"] if speed < FREE - slack else []


def account(told: float, gpu: float, kernel_us: float, slack: float = 0.0) -> list[str]:
    """The library's account of GPU time, to a point of the window; of short kernels, to a part of itself."""
    most = max(ACCOUNT, ACCOUNT_SHORT * gpu if kernel_us < SHORT_US else 0.0) + slack
    if abs(told - gpu) <= most:
        return []
    return [f"by the account {told:.2f}% of the GPU's time, by the witness {gpu:.2f}% (kernels of {kernel_us:.1f} µs)"]


def threads(took: Sequence[float], idle: float) -> list[str]:
    """What the library's thread takes of a core, in each container and in those that have nothing to do."""
    most = THREAD_TWO if len(took) <= 2 else THREAD_ANY
    wrong = [f"the library's thread takes {it:.1f}% of a core" for it in took if it > most]
    if idle > THREAD_IDLE:
        wrong.append(f"the thread of an idle container takes {idle:.2f}% of a core")
    return wrong
