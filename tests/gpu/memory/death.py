"""A killed process's memory is the others' of its container as soon as the driver has let go of it."""

from __future__ import annotations

import os
import signal
import time

from gpu.bench import Bench, Case
from gpu.memory.container import Session, capped, program
from gpu.memory.witness import Witness

GIB = 1 << 30
CAP = 4 * GIB
ROUNDS = 4
LONGEST = 0.1  # seconds


def death(bench: Bench) -> None:
    command = [str(program(bench, "hold"))]
    waits: list[float] = []
    with capped(bench, "living", command, CAP) as (living, eyes, _):
        living.until("ready")
        for number in range(ROUNDS):
            dying = Session(bench, f"dying-{number}", command, living.env, 60)
            try:
                waits.append(one_death(living, dying, eyes))
            finally:
                dying.close()
            living.tell("give")
            answer = living.line()
            if answer != "gave":
                raise RuntimeError(f"`give` is answered by {answer}")
    bench.figures.update(waits_ms=[round(wait * 1e3, 2) for wait in waits], rounds=ROUNDS)
    bench.headline = f"{max(waits) * 1e3:.1f} ms at most, in {ROUNDS} deaths"
    if max(waits) > LONGEST:
        bench.problem(f"after the driver's release it took {max(waits) * 1e3:.0f} ms, more than {LONGEST * 1e3:.0f}")


def one_death(living: Session, dying: Session, eyes: Witness) -> float:
    """Seconds from when NVML no longer lists a killed process to when another has its memory."""
    dying.until("ready")
    dying.tell(f"take {2 * GIB}")
    if (answer := dying.line()) != "had":
        raise RuntimeError(f"{dying.label}: {answer}")
    # There is room for one of these beside two contexts, not for two.
    living.tell(f"wait {2 * GIB}")
    if (answer := living.line()) != "refused 2":
        raise RuntimeError(f"the living process is not refused but told: {answer}")
    os.kill(dying.pid, signal.SIGKILL)
    while dying.pid in eyes.processes():
        time.sleep(0.001)
    released = time.monotonic()
    if (answer := living.line()) != "had":
        raise RuntimeError(f"the living process waits, and is told: {answer}")
    return max(0.0, time.monotonic() - released)


CASES = [Case("death", "memory of a killed process, had by another", death)]
