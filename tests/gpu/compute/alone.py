"""A limit, alone on the GPU: a program that wants more gets its limit of the time, every second, and that much done."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu.bench import Bench, Case
from gpu.compute.busy import Broken
from gpu.compute.container import STABLE, TIMES, Got, Key, alone, solo
from gpu.compute.loads import BY_NAME, LOADS, Load

LIMITS = (5, 10, 25, 50, 75, 90, 100)
POINT = 1.0  # how far a share and a throughput may be off, in points
SECOND_OFF = 5.0  # how far any single second may be
FULL = 99.0  # of solo's throughput, for a limit of 100%
# On a machine that computes its GPU, whoever is late is late by its scheduler's doing.
SIMULATED_FACTOR = 4.0


@dataclass(frozen=True)
class Cell:
    """A load with a limit, in figures. Shares of wall time and throughputs in per cent."""

    limit: float
    share: float
    solo_share: float
    throughput: float  # of solo's
    seconds: list[float] = field(default_factory=list)
    power_bound: bool = False

    @property
    def wanted(self) -> float:
        """What it should get: its limit, or all that it can use."""
        return min(self.limit, self.solo_share)


def judge(cell: Cell, factor: float = 1.0) -> list[str]:
    """What is wrong. Empty: nothing."""
    point, wrong = POINT * factor, []
    if cell.limit >= 100:
        if cell.throughput < 100 - (100 - FULL) * factor:
            wrong.append(f"without a limit it does {cell.throughput:.2f}% of what it does without the library")
        return wrong
    if abs(cell.share - cell.wanted) > point:
        wrong.append(f"the GPU worked {cell.share:.2f}% of the time, and should have {cell.wanted:.1f}%")
    off = [second for second in cell.seconds if abs(second - cell.wanted) > SECOND_OFF * factor]
    if off:
        worst = max(off, key=lambda second: abs(second - cell.wanted))
        wrong.append(f"{len(off)} of {len(cell.seconds)} seconds are far off, the worst at {worst:.2f}%")
    # Where the program alone leaves the GPU idle at times, a share of the time is a larger share of its work.
    part = 100 * cell.wanted / cell.solo_share if cell.solo_share else 0.0
    if cell.throughput < min(cell.limit, part) - point:
        wrong.append(f"its throughput is {cell.throughput:.2f}% of solo's")
    if not cell.power_bound and cell.throughput > part + point:
        wrong.append(f"its throughput is {cell.throughput:.2f}% of solo's, and its share of the work {part:.1f}%")
    return wrong


def reference(load: Load, limit: int) -> Load:
    """What it is compared with. Where nobody holds it back, several processes lose time among themselves as they do bare."""
    return BY_NAME[load.solo] if load.solo and limit < 100 else load


def run_cell(bench: Bench, load: Load, limit: int) -> None:
    load.must_be_there(bench)
    try:
        bare = solo(bench, reference(load, limit))
        got = alone(STABLE.take(bench, Key(load, limit)), TIMES.window)
    except Broken as broken:
        bench.problem(f"the witness: {broken}")
        return
    cell = Cell(
        limit=limit,
        share=got.window.share,
        solo_share=bare.window.share,
        throughput=100 * got.rate / bare.rate,
        seconds=got.window.seconds,
        power_bound=load.power_bound,
    )
    bench.figures.update(
        load=load.name,
        limit=limit,
        share=round(cell.share, 3),
        throughput=round(cell.throughput, 3),
        furthest_second=round(got.window.furthest(cell.wanted), 3),
        got=got.figures(),
        solo=bare.figures(),
    )
    if not same_work(got, bare):
        bench.problem(f"it does other work than alone: {got.window.kinds} in {got.units} steps")
    for problem in judge(cell, SIMULATED_FACTOR if got.simulated else 1.0):
        bench.problem(problem)
    bench.headline = (
        f"{limit}% wanted, {cell.share:.2f}% got, no second more than {got.window.furthest(cell.wanted):.2f} off; "
        f"throughput {cell.throughput:.2f}% of solo's (which is busy {cell.solo_share:.1f}%)"
    )
    if bench.problems:
        bench.problems[0] = f"{bench.headline}: {bench.problems[0]}"


def same_work(got: Got, bare: Got, tolerance: float = 0.1) -> bool:
    """As many records for each of its steps; a little more for what comes before and after."""
    if got.simulated or not got.units or not bare.units:
        return True
    mine, other = (it.window.records / it.units for it in (got, bare))
    return abs(mine - other) <= tolerance * other + 50 / got.units


def case(load: Load, limit: int) -> Case:
    about = f"{limit}% of the GPU's time, alone on it: {load.about}"
    return Case(f"alone-{load.name}-{limit}", about, lambda bench: run_cell(bench, load, limit))


CELLS = {f"alone-{load.name}-{limit}": (load, limit) for load in LOADS for limit in LIMITS}
CASES = [case(load, limit) for load, limit in CELLS.values()]


def keys(names: list[str]) -> list[Key]:
    """The runs that the chosen cases will make, in order."""
    order: list[Key] = []
    for load, limit in (CELLS[name] for name in names if name in CELLS):
        for key in (Key(reference(load, limit)), Key(load, limit)):
            if key not in order:
                order.append(key)
    return order
