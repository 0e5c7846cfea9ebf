"""The bench that a case works at: it runs programs bare or under the library, keeps their output, and takes notes.

Every program has a time limit and its own process group; what it leaves behind is waited for, then killed, because the
next program may want all of the GPU. Output goes to files, so that a forgotten grandchild cannot hold up a pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from gpu.machine import Machine

STRAGGLERS = 3.0  # seconds for what a program left running to end by itself


class Skip(Exception):
    """The machine lacks something; the reason says what."""


@dataclass(frozen=True)
class Case:
    """One thing that is shown. `run` raises Skip, notes problems at the bench, or returns."""

    name: str
    about: str
    run: Callable[[Bench], None]
    is_measured: Callable[[], bool] = lambda: False  # it ran with another, and only has to be judged
    is_named: bool = False  # it runs only where it is asked for by name


@dataclass(frozen=True)
class Run:
    """How a program went. `status` is negative for a signal, None when it was not done in time."""

    label: str
    status: int | None
    out: str
    err: str
    seconds: float

    @property
    def last_words(self) -> str:
        lines = [line.strip() for line in (self.out + "\n" + self.err).splitlines() if line.strip()]
        return lines[-1][:300] if lines else "(no output)"

    def how(self) -> str:
        if self.status is None:
            return f"not done after {self.seconds:.0f} s"
        if self.status < 0:
            return f"killed by signal {-self.status}"
        return f"exit status {self.status}"


@dataclass
class Bench:
    """One case's place to work."""

    name: str
    library: Path
    machine: Machine
    directory: Path
    log: Path
    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    headline: str = ""

    def problem(self, text: str) -> None:
        """Something is wrong. The case goes on, and fails at its end."""
        self.problems.append(text)
        self.note(f"PROBLEM: {text}")

    def skip(self, reason: str) -> NoReturn:
        raise Skip(reason)

    def note(self, text: str) -> None:
        with self.log.open("a") as log:
            log.write(text.rstrip("\n") + "\n")

    def path(self, name: str) -> Path:
        """A fresh place in the case's own directory."""
        path = self.directory / name
        if path.is_file():
            path.unlink()
        return path

    def preload(self) -> str:
        """LD_PRELOAD with the library in front of what the environment preloads anyway."""
        return " ".join([str(self.library), os.environ.get("LD_PRELOAD", "")]).strip()

    def run(
        self,
        label: str,
        command: list[str],
        *,
        hooked: bool = False,
        env: dict[str, str] | None = None,
        limit: float = 120,
        core: int | None = None,
        quiet: bool = False,
    ) -> Run:
        """Runs a program to its end or its limit. `quiet` ones are not written to the log unless they fail."""
        extra = dict(env or {})
        if hooked:
            extra.setdefault("LD_PRELOAD", self.preload())
        out, err = self.path(f"{label}.out"), self.path(f"{label}.err")
        start = time.monotonic()
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                env={**self.machine.environment, **extra},
                cwd=self.directory,
                start_new_session=True,
                preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
            )
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            except BaseException:
                end_group(process.pid, 0)
                process.wait()
                raise
            seconds = time.monotonic() - start
            left = end_group(process.pid, 0 if status is None else STRAGGLERS)
            process.wait()
        done = Run(label, status, text_of(out), text_of(err), seconds)
        if not quiet or status != 0:
            self.write_down(done, command, extra, left)
        if "cannot be preloaded" in done.err:
            self.problem(f"{label}: the library was not loaded: {first_line_with(done.err, 'cannot be preloaded')}")
        return done

    def write_down(self, run: Run, command: list[str], extra: dict[str, str], left: bool) -> None:
        settings = " ".join(f"{name}={value}" for name, value in sorted(extra.items()))
        self.note(f"\n== {run.label}: {run.how()}, {run.seconds:.2f} s" + (" (left processes behind)" if left else ""))
        self.note(f"$ env {settings} {' '.join(command)}")
        for title, text in (("stdout", run.out), ("stderr", run.err)):
            if text.strip():
                self.note(f"-- {title}\n{text}")


def end_group(group: int, patience: float) -> bool:
    """Waits for a process group to be empty, then kills what is left. Says whether something had to be killed.

    A dead process that nobody has collected still counts as a member, so being unable to empty the group is no error.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if not alive(group):
            return False
        time.sleep(0.02)
    if not alive(group):
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    return True


def alive(group: int) -> bool:
    """Whether a process of the group runs; those that are dead and not yet collected do not."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            return True
    return False


def text_of(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace") if path.exists() else ""


def first_line_with(text: str, part: str) -> str:
    return next((line.strip() for line in text.splitlines() if part in line), "")
