"""Memory caps: no way of taking device memory gets past them, most of a cap can be had, and programs live with that."""

from gpu.memory import cost, death, frameworks, inside, rows, sharing

ABOUT = "a container's device memory, by whatever way it is taken, ends at its cap and not much before"

# Quick ones first, as in the other groups.
CASES = [*rows.CASES, *sharing.CASES, *death.CASES, *inside.CASES, *cost.CASES, *frameworks.CASES]
