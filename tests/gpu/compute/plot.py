"""Charts as SVG, by hand: lines and points, two axes, a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 520, 64, 190, 44, 52
COLOURS = ("#1b6ca8", "#c8442c", "#3d8b40", "#8d5ab5", "#b8860b", "#2a9d8f", "#d0628f")
COLOURS += ("#5b6770", "#7a3b12", "#00a3d9", "#9acd32", "#e69500", "#222222")
STEPS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000)

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """`style` is "line" or "points"."""

    name: str
    points: Sequence[Point]
    style: str = "line"


def ticks(low: float, high: float, about: int = 8) -> list[float]:
    """Round numbers from one end of an axis to the other."""
    step = next((step for step in STEPS if (high - low) / step <= about), (high - low) / about or 1)
    first = -(-low // step)
    return [(first + i) * step for i in range(int((high - first * step) // step) + 1)]


def chart(title: str, across: str, up: str, series: Sequence[Series], top: float | None = None) -> str:
    """The whole file. Both axes begin at 0."""
    points = [point for it in series for point in it.points]
    most_x = max((x for x, _ in points), default=1) or 1
    most_y = top or max((y for _, y in points), default=1) or 1
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(point: Point) -> tuple[str, str]:
        x, y = LEFT + wide * point[0] / most_x, TOP + high * (1 - min(point[1], most_y) / most_y)
        return f"{x:.1f}", f"{y:.1f}"

    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(across)}</text>',
        f'<text transform="translate(16 {TOP + high / 2}) rotate(-90)" text-anchor="middle">{escape(up)}</text>',
    ]
    for value in ticks(0, most_x):
        x, y = place((value, 0))
        lines.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{y}" stroke="#ddd"/>')
        lines.append(f'<text x="{x}" y="{TOP + high + 18}" text-anchor="middle">{value:g}</text>')
    for value in ticks(0, most_y):
        x, y = place((0, value))
        lines.append(f'<line x1="{x}" y1="{y}" x2="{LEFT + wide}" y2="{y}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for number, it in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(point) for point in it.points]
        if it.style == "line":
            path = " ".join(f"{x},{y}" for x, y in places)
            lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        else:
            lines += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}" fill-opacity="0.7"/>' for x, y in places]
        y = TOP + 14 + 18 * number
        lines.append(f'<rect x="{LEFT + wide + 14}" y="{y - 9}" width="12" height="10" fill="{colour}"/>')
        lines.append(f'<text x="{LEFT + wide + 32}" y="{y}">{escape(it.name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
