"""Tries: what a test measures on a machine that may stand still for a while.

What fails on a machine that kept up counts; what fails on one that did not is tried again; and where it never did, nothing is
judged, and that is said. tests/support/tries.rs does the same for tests in Rust.
"""

import threading
import time

TRIES = 8
COUNTED = 3  # so many may fail on a machine that kept up
LATE = 0.02  # a thread that sleeps for a millisecond at a time is late for less than this part of the time
STOLEN = 0.03  # and others have less than this part of the processors' time
PAUSE = 2  # seconds for what disturbs the machine to be over


class NotJudged(Exception):
    """The machine never kept up."""


def processors():
    """What others had of the processors' time since the machine runs, and all of it, in the kernel's ticks."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            ticks = [int(word) for word in stat.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return ticks[7] if len(ticks) > 7 else 0, sum(ticks)


def watched(work):
    """What the work gives back, and whether the machine kept up meanwhile."""
    over, late = threading.Event(), 0.0

    def watch():
        nonlocal late
        while not over.is_set():
            slept = time.monotonic()
            time.sleep(0.001)
            late += max(0.0, time.monotonic() - slept - 0.0012)

    watcher = threading.Thread(target=watch)
    begun, (stolen, ticks) = time.monotonic(), processors()
    watcher.start()
    try:
        done = work()
    finally:
        over.set()
        watcher.join()
    late /= max(time.monotonic() - begun, 0.001)
    stolen, ticks = (now - then for now, then in zip(processors(), (stolen, ticks), strict=True))
    return done, late < LATE and stolen < STOLEN * max(ticks, 1)


def until_good(measure, is_good):
    """Tries until it is good, or has failed often enough for the failure to count: then an AssertionError says what was seen.
    Raises NotJudged where the machine kept up in none of the tries."""
    seen, counted = [], 0
    for _ in range(TRIES):
        got, kept_up = watched(measure)
        seen.append(got)
        if is_good(got):
            return got
        counted += kept_up
        if counted == COUNTED:
            break
        if not kept_up:
            time.sleep(PAUSE)
    if counted:
        raise AssertionError(f"seen {seen}, in {len(seen)} tries")
    raise NotJudged(f"this machine had no time for what is measured: seen {seen}")
