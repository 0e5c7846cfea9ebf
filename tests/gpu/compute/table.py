"""What the cases of the matrix got, next to each other: a table for the eye, and plots."""

from __future__ import annotations

from pathlib import Path

from gpu.compute.plot import Series, chart
from gpu.report import Outcome


def cells(outcomes: list[Outcome]) -> dict[str, dict[int, Outcome]]:
    """The cases with a limit that were measured, by load and limit."""
    found: dict[str, dict[int, Outcome]] = {}
    for outcome in outcomes:
        if "limit" in outcome.figures and "share" in outcome.figures:
            found.setdefault(outcome.figures["load"], {})[outcome.figures["limit"]] = outcome
    return found


def matrix(outcomes: list[Outcome]) -> str:
    """A row per load, a column per limit: share got, the worst second's distance, throughput; `!` where it fails."""
    rows = cells(outcomes)
    if not rows:
        return ""
    limits = sorted({limit for row in rows.values() for limit in row})
    lines = ["share of the GPU's time got, ± the worst second, / throughput in per cent of solo's; ! is out of bounds"]
    lines.append(f"{'limit':<15}" + "".join(f"{limit:>20}%" for limit in limits))
    for load, row in rows.items():
        lines.append(f"{load:<15}" + "".join(f"{cell(row.get(limit)):>21}" for limit in limits))
    return "\n".join(lines)


def cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "-"
    it = outcome.figures
    mark = "!" if outcome.result == "fail" else ""
    return f"{mark}{it['share']:.1f} ±{it['furthest_second']:.1f} / {it['throughput']:.1f}"


def write_plots(outcomes: list[Outcome], out: Path) -> None:
    """Only of what was measured; what an earlier run left is not touched."""
    rows = cells(outcomes)
    if rows:
        ideal = Series("wanted", [(0, 0), (100, 100)])
        # Side by side at each limit: most of them would hide each other.
        got = [
            Series(load, [(limit + 0.35 * place, it.figures["share"]) for limit, it in row.items()], "points")
            for place, (load, row) in enumerate(rows.items(), -len(rows) // 2)
        ]
        text = chart("Share of GPU time, alone on the GPU", "limit, %", "share got, %", [ideal, *got], top=100)
        (out / "compute-shares.svg").write_text(text)
    for outcome in outcomes:
        if outcome.name == "beside-latency" and "ration" in outcome.figures:
            ways = ("solo", "ration", "plain")
            curves = [
                Series(way, [(us / 1000, rank) for rank, us in enumerate(outcome.figures[way]["curve_us"], 1)])
                for way in ways
            ]
            text = chart("A request beside a saturating neighbour", "milliseconds", "requests done, %", curves, top=100)
            (out / "compute-latency.svg").write_text(text)
        if outcome.name == "beside-comes-and-goes" and "ration_every_50_ms" in outcome.figures:
            lines = [
                Series(way, [(at / 20, share) for at, share in enumerate(outcome.figures[f"{way}_every_50_ms"])])
                for way in ("ration", "plain")
            ]
            text = chart("A neighbour comes and goes", "seconds", "of its solo, %", lines, top=110)
            (out / "compute-comes-and-goes.svg").write_text(text)
