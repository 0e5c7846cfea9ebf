"""Programs in a cap of their own, talked to line by line: the witness looks while they hold what they have."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from gpu.bench import Bench, end_group, text_of
from gpu.hooks.counted import fresh_directory
from gpu.machine import ROOT
from gpu.memory.witness import Watch, Witness, witness

PROGRAMS = ROOT / "tests/programs"
built: dict[str, Path] = {}


def program(bench: Bench, name: str, folder: str = "caps") -> Path:
    """tests/programs/FOLDER/NAME*.c, compiled against the headers of this tree and the machine's driver."""
    if name not in built:
        compiler = bench.machine.tool("gcc") or bench.machine.tool("cc")
        driver = bench.machine.driver["path"]
        if not compiler or not driver:
            bench.skip("no C compiler on this machine" if not compiler else "no driver to link with")
        where = bench.directory.parent / "built"
        where.mkdir(parents=True, exist_ok=True)
        output = where / f"caps-{name}"
        sources = [str(path) for path in sorted((PROGRAMS / folder).glob(f"{name}*.c"))]
        command = [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-pthread"]
        command += [f"-I{ROOT / 'include'}", f"-I{PROGRAMS}", "-o", str(output), *sources, driver, "-ldl"]
        # The driver needs libraries that are not looked for while linking.
        done = bench.run(f"compile-{name}", [*command, "-Wl,--allow-shlib-undefined"], limit=120)
        if done.status != 0:
            raise RuntimeError(f"{name} does not compile ({done.how()}): {done.last_words}")
        built[name] = output
    return built[name]


def settings(bench: Bench, eyes: Witness, cap: int, name: str) -> dict[str, str]:
    """The environment of a new container. Its regions are its own."""
    return {
        "LD_PRELOAD": bench.preload(),
        "RATION_MEMORY": str(cap),
        "RATION_NAME": f"gpu/{name}",
        "RATION_DIR": str(fresh_directory(bench, f"regions-{name}")),
        "CUDA_VISIBLE_DEVICES": eyes.uuid,
    }


class Session:
    """A program that runs. What it prints before a prompt is read, then it waits for a line."""

    def __init__(
        self,
        bench: Bench,
        label: str,
        command: list[str],
        env: dict[str, str],
        limit: float,
        cores: Collection[int] | None = None,
    ) -> None:
        self.bench, self.label, self.env, self.limit = bench, label, env, limit
        self.start = time.monotonic()
        self.lines: list[str] = []
        self.errors = bench.path(f"{label}.err")
        bench.note(f"\n== {label}\n$ env {' '.join(f'{k}={v}' for k, v in sorted(env.items()))} {' '.join(command)}")
        with self.errors.open("wb") as err_file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err_file,
                env={**bench.machine.environment, **env},
                cwd=bench.directory,
                start_new_session=True,
                text=True,
                bufsize=1,
                preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
            )
        self.coming: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def listen(self) -> None:
        for line in self.process.stdout or ():
            self.coming.put(line.rstrip("\n"))
        self.coming.put(None)

    def line(self) -> str | None:
        """The next line, None at the end. More than the limit, from the start on, is a hang."""
        left = max(0.0, self.start + self.limit - time.monotonic())
        try:
            line = self.coming.get(timeout=left)
        except queue.Empty:
            raise RuntimeError(f"{self.label}: not done after {self.limit:.0f} s; {self.last_words()}") from None
        if line is not None:
            self.lines.append(line)
        return line

    def until(self, prompt: str) -> list[str] | None:
        """The lines before a prompt; None where the program says that it skips. Ending before it is an error."""
        lines: list[str] = []
        while (line := self.line()) != prompt:
            if line is None:
                if any(line.startswith("skipped ") for line in lines):
                    return None
                status = self.process.wait()
                raise RuntimeError(f"{self.label}: ended before `{prompt}` with status {status}; {self.last_words()}")
            lines.append(line)
        return lines

    def tell(self, line: str = "") -> None:
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):  # one that has ended does not read
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()

    def rest(self) -> list[str]:
        """What it prints until its end, which must be a good one."""
        lines = []
        while (line := self.line()) is not None:
            lines.append(line)
        status = self.process.wait()
        if status:
            raise RuntimeError(f"{self.label}: status {status}; {self.last_words()}")
        return lines

    def last_words(self) -> str:
        words = [line.strip() for line in text_of(self.errors).splitlines() if line.strip()]
        return " | ".join([*self.lines[-2:], *words[-2:]])[:400]

    def close(self) -> None:
        end_group(self.process.pid, 0 if self.process.poll() is None else 1.0)
        self.process.wait()
        self.bench.note("\n".join(["-- stdout", *self.lines, "-- stderr", text_of(self.errors)]))
        messages = [line for line in text_of(self.errors).splitlines() if line.startswith("ration: ")]
        if messages:
            self.bench.figures.setdefault("messages", []).extend(messages[:10])


@contextlib.contextmanager
def capped(
    bench: Bench,
    label: str,
    command: list[str],
    cap: int,
    *,
    env: dict[str, str] | None = None,
    limit: float = 120,
) -> Iterator[tuple[Session, Witness, Watch]]:
    """A program in a cap, ended with the block; the watch looks at it all the time."""
    eyes = witness(bench)
    session = Session(bench, label, command, {**settings(bench, eyes, cap, label), **(env or {})}, limit)
    watch = Watch(eyes, session.pid)
    try:
        yield session, eyes, watch
    finally:
        watch.stop()
        session.close()


def gone(eyes: Witness, session: int, patience: float = 10.0) -> int:
    """What NVML still counts of a session that has ended, once it had the time to notice."""
    deadline = time.monotonic() + patience
    while (left := sum(eyes.held(session).values())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def cores() -> int:
    return max(os.sched_getaffinity(0))
