"""The witness: NVML, asked by the runner, which the library is not loaded into. It knows nothing of caps."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time

from gpu.bench import Bench

MIB = 1 << 20
UNKNOWN = (1 << 64) - 1


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class MemoryInfo(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Witness:
    """What NVML says of the first GPU, which is the one that the programs are shown."""

    def __init__(self) -> None:
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        self.must("nvmlInit_v2")
        self.must("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(self.device))
        uuid = ctypes.create_string_buffer(96)
        self.must("nvmlDeviceGetUUID", self.device, uuid, ctypes.c_uint(len(uuid)))
        self.uuid = uuid.value.decode()

    def must(self, name: str, *arguments: object) -> None:
        code = getattr(self.nvml, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} says {code}")

    def processes(self) -> dict[int, int]:
        """Bytes by process, as NVML counts them."""
        room = 256
        while True:
            count = ctypes.c_uint(room)
            found = (ProcessInfo * room)()
            code = self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ctypes.byref(count), found)
            if code == 7:  # NVML_ERROR_INSUFFICIENT_SIZE
                room *= 2
                continue
            if code:
                raise RuntimeError(f"nvmlDeviceGetComputeRunningProcesses_v3 says {code}")
            return {found[i].pid: found[i].used for i in range(count.value)}

    def taken(self) -> int:
        """Bytes of the whole device that are not free."""
        memory = MemoryInfo()
        self.must("nvmlDeviceGetMemoryInfo", self.device, ctypes.byref(memory))
        return memory.used

    def held(self, session: int) -> dict[int, int]:
        """The same as `processes`, of those that belong to a session: that of the program that leads it."""
        ours = {}
        for pid, used in self.processes().items():
            try:
                mine = os.getsid(pid) == session
            except ProcessLookupError:
                continue  # it has just ended, or lives in another PID namespace
            if mine:
                if used == UNKNOWN:
                    raise RuntimeError("NVML does not know how much memory a process holds")
                ours[pid] = used
        return ours


@functools.cache
def open_witness() -> Witness | str:
    try:
        return Witness()
    except (OSError, RuntimeError, AttributeError) as error:
        return f"no NVML to look at it from outside: {error}"


def witness(bench: Bench) -> Witness:
    found = open_witness()
    if isinstance(found, str):
        bench.skip(found)
    return found


class Watch:
    """Looks again and again while a program runs, and keeps the highest sum that it saw."""

    def __init__(self, eyes: Witness, session: int, pause: float = 0.02) -> None:
        self.eyes, self.session, self.pause = eyes, session, pause
        self.highest = self.looks = 0
        self.trouble = ""
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self.highest = max(self.highest, sum(self.eyes.held(self.session).values()))
                self.looks += 1
            except RuntimeError as error:
                self.trouble = str(error)
            time.sleep(self.pause)

    def stop(self) -> None:
        self.over.set()
        self.thread.join()
