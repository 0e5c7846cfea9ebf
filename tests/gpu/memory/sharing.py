"""Memory that crosses processes, or that a descriptor keeps when it was given back: still the container's, and once.

Such memory may be in no process's figure, so the witness is the device's own: what NVML says is used of it. The programs are
tests/programs/gpus/actor*.c, with which tests/caps_sharing.rs plays the same and more on the simulated GPU.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator

from gpu.bench import Bench, Case
from gpu.memory.container import Session, program, settings
from gpu.memory.witness import MIB, Witness, witness

GIB = 1 << 30
CAP = 4 * GIB
STEP = 64 * MIB
OUT_OF_MEMORY = 2
NEAR = 8 * MIB  # how far what the program is told may be from what NVML says


class Actor:
    """A program that does as it is told."""

    def __init__(self, stage: Stage, label: str) -> None:
        self.session = Session(stage.bench, label, [str(program(stage.bench, "actor", "gpus"))], stage.env, 120)
        self.session.until("ready")

    def ask(self, order: str) -> tuple[int, list[str]]:
        """The driver's code, and what else there is to say."""
        self.session.tell(order)
        line = self.session.line()
        if line is None:
            raise RuntimeError(f"{self.session.label}: `{order}` ended it; {self.session.last_words()}")
        code, *words = line.split()
        return int(code), words

    def must(self, *orders: str) -> list[str]:
        """Orders that must go well; what the last one said."""
        words: list[str] = []
        for order in orders:
            code, words = self.ask(order)
            if code:
                raise RuntimeError(f"{self.session.label}: `{order}` is answered by {code}")
        return words

    def free(self) -> int:
        return int(self.must("info")[0])


class Stage:
    """A container, its actors, and what the device has for it."""

    def __init__(self, bench: Bench, place: str) -> None:
        self.bench, self.place, self.eyes = bench, place, witness(bench)
        images = {} if bench.machine.environment.get("GPU_TEST_IMAGE") else {"CAPS_IMAGES": "ptx"}
        self.env = {**settings(bench, self.eyes, CAP, bench.name), **images}
        self.actors: list[Actor] = []
        self.contexts: set[int] = set()
        self.before = self.eyes.taken()
        self.own = 0  # what the driver takes of the device for a context, and has in no process's figure
        self.highest = 0

    def actor(self, label: str) -> Actor:
        """One that does not use the GPU yet."""
        actor = Actor(self, label)
        self.actors.append(actor)
        return actor

    def uses(self, actor: Actor) -> bool:
        """It makes its context, if there is room for it."""
        if actor.ask("use 0")[0]:
            return False
        pid = actor.session.pid
        if not self.contexts:
            self.own = self.eyes.taken() - self.before - self.eyes.processes()[pid]
        self.contexts.add(pid)
        return True

    def user(self, label: str) -> Actor:
        actor = self.actor(label)
        if not self.uses(actor):
            raise RuntimeError(f"{label}: there is no room for a context")
        return actor

    def kill(self, actor: Actor) -> None:
        """Kills it, and waits until the driver has let go of it."""
        pid = actor.session.pid
        os.kill(pid, signal.SIGKILL)
        actor.session.process.wait()
        deadline = time.monotonic() + 10
        while pid in self.eyes.processes():
            if time.monotonic() > deadline:
                raise RuntimeError(f"NVML lists {pid}, which was killed 10 s ago")
            time.sleep(0.001)
        self.contexts.discard(pid)

    def taken(self) -> int:
        """What the container has of the device, in whosever figure it is or in nobody's. Never more than the cap."""
        taken = self.eyes.taken() - self.before - self.own * len(self.contexts)
        self.highest = max(self.highest, taken)
        self.expect(taken <= CAP, f"{taken - CAP} bytes over the cap")
        return taken

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.bench.problem(what)

    def agrees(self, actor: Actor, when: str) -> None:
        """What is told to the program is what there is."""
        free, left = actor.free(), CAP - self.taken()
        self.expect(abs(free - left) <= NEAR, f"{when}: {free} bytes are said to be free, {left} are")

    def fills(self, actor: Actor, when: str) -> None:
        """What is left can be had, no more, and given back."""
        code, _ = actor.ask(f"fill alloc {STEP} {3 * CAP} 0 0")
        self.expect(code == OUT_OF_MEMORY, f"{when}: filling the rest is answered by {code}")
        taken = self.taken()
        self.expect(taken >= CAP - 2 * STEP, f"{when}: only {taken} bytes of {CAP} were to be had")
        self.agrees(actor, f"{when}, full")
        actor.must("empty")


@contextlib.contextmanager
def stage_for(bench: Bench) -> Iterator[Stage]:
    # Addresses of sockets are short.
    with tempfile.TemporaryDirectory(prefix="gpu-sharing-") as place:
        stage = Stage(bench, place)
        try:
            yield stage
        finally:
            for actor in stage.actors:
                actor.session.close()


def told(bench: Bench, stage: Stage, what: str) -> None:
    bench.figures.update(cap=CAP, highest=stage.highest, own=stage.own)
    bench.headline = f"{what}; the device had {stage.highest / MIB:.0f} of {CAP / MIB:.0f} MiB at most"


def parked(bench: Bench, way: str) -> None:
    """Memory is taken, a descriptor is made of it, it is given back, and so on: three times the cap is asked for."""
    with stage_for(bench) as stage:
        actor = stage.user("parking")
        if way == "dma-buf":
            actor.must(f"alloc m {STEP}")
            if (code := actor.ask("dma-buf m")[0]) != 0:
                bench.skip(f"this driver makes no dma-buf: {code}")
            actor.must("close m", "free m")
        had = []
        for number in range(2):
            code, words = actor.ask(f"park {way} {STEP} {3 * CAP // STEP} 0")
            stage.expect(code == OUT_OF_MEMORY, f"round {number} ends with {code}, after {words[0]} bytes")
            full, figure = stage.taken(), stage.eyes.processes()[actor.session.pid]
            stage.expect(full >= CAP - 2 * STEP, f"only {full} bytes of {CAP} were to be had")
            stage.agrees(actor, f"round {number}, parked")
            had.append((int(words[0]), figure))
            actor.must("unpark")
            stage.agrees(actor, f"round {number}, closed")
            stage.fills(actor, f"round {number}, closed")
        stage.expect(actor.ask("kernel 0")[0] == 0, "a kernel does not run afterwards")
        bench.figures["had"] = had
        told(bench, stage, f"{had[0][0] / MIB:.0f} MiB parked, in nobody's figure ({had[0][1] / MIB:.0f} MiB in its own)")


def owners_killed(bench: Bench) -> None:
    """Owners of IPC memory are killed while another has it open: it is the other's then."""
    with stage_for(bench) as stage:
        opener = stage.user("opener")
        opened = 0
        while opened * GIB < 2 * CAP:
            owner = stage.actor(f"owner-{opened}")
            if not stage.uses(owner) or owner.ask(f"alloc m {GIB}")[0]:
                stage.kill(owner)
                break
            handle = owner.must(f"alloc n {STEP}", "free n", "ipc m")[0]
            opener.must(f"open m{opened} {handle}")
            stage.agrees(opener, f"{opened} opened, its owner alive")
            stage.kill(owner)
            opened += 1
            stage.agrees(opener, f"{opened} opened, all owners dead")
        stage.expect(2 <= opened <= 3, f"{opened} GiB were had of 4")
        figure = stage.eyes.processes()[opener.session.pid]
        stage.expect(figure >= opened * GIB, f"the opener's figure is {figure} bytes, with {opened} GiB open")
        stage.fills(opener, "all owners dead")
        for number in range(opened):
            opener.must(f"shut m{number}")
        stage.fills(opener, "all closed")
        told(bench, stage, f"{opened} GiB of dead owners open, {figure / MIB:.0f} MiB in the opener's figure")


def handed_over(bench: Bench, way: str) -> None:
    """One makes memory, gives it to another and lets go of it, over and over; the other does nothing but keep it."""
    with stage_for(bench) as stage:
        maker, keeper = stage.user("maker"), stage.user("keeper")
        mailbox = f"{stage.place}/keeper"
        keeper.must(f"listen {mailbox}")
        had, piece = 0, 512 * MIB
        while had * piece < 2 * CAP:
            if maker.ask(f"alloc m {piece}" if way == "ipc" else f"create p {piece} 0")[0]:
                break
            if way == "ipc":
                keeper.must(f"open m{had} {maker.must('ipc m')[0]}")
                maker.must("free m")
            else:
                maker.must("export p", f"send p {mailbox}", "close p")
                keeper.must(f"receive p{had}", f"import p{had} {piece}", f"close p{had}")
                maker.must("release p")
            had += 1
            stage.agrees(maker, f"{had} handed over")
        stage.expect(had >= 4, f"only {had} pieces of {piece} bytes were had")
        stage.fills(maker, "handed over")
        for number in range(had):
            keeper.must(f"shut m{number}" if way == "ipc" else f"release p{number}")
        stage.agrees(maker, "all closed")
        stage.fills(maker, "all closed")
        told(bench, stage, f"{had * piece / MIB:.0f} MiB handed over")


def kept_for_the_dead(bench: Bench) -> None:
    """Descriptors of dead makers' memory, in a process that does not use the GPU."""
    with stage_for(bench) as stage:
        keeper, living = stage.actor("keeper"), stage.user("living")
        mailbox = f"{stage.place}/keeper"
        keeper.must(f"listen {mailbox}")
        kept = 0
        while kept * GIB < 2 * CAP:
            maker = stage.actor(f"maker-{kept}")
            if not stage.uses(maker) or maker.ask(f"create p {GIB} 0")[0]:
                stage.kill(maker)
                break
            maker.must("export p", f"send p {mailbox}")
            keeper.must(f"receive p{kept}")
            stage.kill(maker)
            kept += 1
            stage.agrees(living, f"{kept} makers dead")
        stage.expect(2 <= kept <= 3, f"{kept} GiB were had of 4")
        stage.fills(living, "all makers dead")
        for number in range(kept):
            keeper.must(f"close p{number}")
        stage.agrees(living, "all closed")
        stage.fills(living, "all closed")
        told(bench, stage, f"{kept} GiB of dead makers in descriptors")


def pools(bench: Bench) -> None:
    """Pools that their maker destroys while another has them, with what was exported of them."""
    with stage_for(bench) as stage:
        maker, importer = stage.user("maker"), stage.user("importer")
        mailbox = f"{stage.place}/importer"
        importer.must(f"listen {mailbox}")
        had = 0
        while had * GIB < 2 * CAP:
            maker.must("pool q 0", "export-pool q", f"send q {mailbox}", "close q")
            importer.must(f"receive q{had}", f"import-pool q{had}", f"close q{had}")
            if maker.ask(f"from-pool x q {GIB} 0")[0]:
                maker.must("destroy q")
                importer.must(f"destroy q{had}")
                break
            importer.must(f"import-pointer x{had} q{had} {maker.must('export-pointer x')[0]}")
            maker.must("free-async x 0", "destroy q")
            had += 1
            stage.agrees(maker, f"{had} pools destroyed by their maker")
        stage.expect(2 <= had <= 3, f"{had} GiB were had of 4")
        stage.fills(importer, "pools kept")
        for number in range(had):
            importer.must(f"free-async x{number} 0", f"destroy q{number}")
        stage.agrees(maker, "all destroyed")
        stage.fills(maker, "all destroyed")
        told(bench, stage, f"{had} GiB of destroyed pools kept")


def case(name: str, about: str, run: Callable[[Bench], None]) -> Case:
    return Case(f"shared-{name}", about, run)


CASES = [
    case("parked", "memory released while a descriptor of it is open", lambda bench: parked(bench, "plain")),
    case("parked-mapped", "the same, mapped in between", lambda bench: parked(bench, "map")),
    case("parked-dma-buf", "memory freed while a dma-buf of it is open", lambda bench: parked(bench, "dma-buf")),
    case("ipc-killed", "IPC memory of killed owners is charged once", owners_killed),
    case("ipc-freed", "IPC memory freed while another has it open", lambda bench: handed_over(bench, "ipc")),
    case("handed-over", "memory imported by another and released", lambda bench: handed_over(bench, "descriptor")),
    case("dead-makers", "descriptors of dead makers' memory", kept_for_the_dead),
    case("pools", "pools destroyed while another has them", pools),
]
