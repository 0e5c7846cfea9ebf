"""What the programs in a cap share: they print what they are told and have, and wait while somebody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

STEP = 64 << 20
MOST = 1000  # steps: far more than any cap has room for


def say(name: str, value: Any = "") -> None:
    """A line of the result."""
    print(name, value, flush=True)


def full() -> None:
    """All of it is held; goes on when the witness has looked."""
    print("full", flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody looks")


def fill(take: Callable[[int], Any], out_of_memory: Callable[[Exception], bool]) -> tuple[list, str]:
    """Takes steps until the framework says, in its own words, that there is no more; what was had, and the error."""
    had = []
    try:
        while len(had) < MOST:
            had.append(take(STEP))
    except Exception as error:
        if not out_of_memory(error):
            raise
        return had, type(error).__name__
    raise SystemExit(f"{len(had)} steps, and no end")
