"""Two processes and one GPU: memory, events, mappings and pools that one makes and the other opens.

usage: sharing.py peer      the other process: takes handles as JSON from its standard input
"""

import ctypes
import json
import os
import subprocess
import sys

import numpy as np
from common import STEP_MS, address, cuda, function, ok, step, stopwatch
from support import MIB, own_record, timed

FILE = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ_WRITE = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
LAZY = cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
BYTES = 64


def to_text(handle):
    return ctypes.string_at(handle.getPtr(), BYTES).hex()


def from_text(kind, text):
    handle = kind()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(text), BYTES)
    return handle


def on_device():
    place = cuda.CUmemLocation()
    place.type, place.id = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    return place


def access():
    grant = cuda.CUmemAccessDesc()
    grant.location, grant.flags = on_device(), READ_WRITE
    return [grant]


def bytes_at(pointer, count=8):
    back = np.zeros(count, dtype=np.uint8)
    ok(cuda.cuMemcpyDtoH(address(back), pointer, count))
    return set(back.tolist())


def shared_properties(properties):
    properties.location = on_device()
    kind = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    if isinstance(properties, cuda.CUmemPoolProps):
        properties.allocType, properties.handleTypes = kind, FILE
    else:
        properties.type, properties.requestedHandleTypes = kind, FILE
    return properties


def two_processes():
    """Shares four things with a peer, and looks at what it has written into them."""
    stream = ok(cuda.cuStreamCreate(0))
    linear = ok(cuda.cuMemAlloc(4 * MIB))
    ok(cuda.cuMemsetD8(linear, 1, 4 * MIB))

    mapped = ok(cuda.cuMemAddressReserve(2 * MIB, 0, 0, 0))
    handle = ok(cuda.cuMemCreate(2 * MIB, shared_properties(cuda.CUmemAllocationProp()), 0))
    ok(cuda.cuMemMap(mapped, 2 * MIB, 0, handle, 0))
    ok(cuda.cuMemSetAccess(mapped, 2 * MIB, access(), 1))
    ok(cuda.cuMemsetD8(mapped, 2, 2 * MIB))

    pool = ok(cuda.cuMemPoolCreate(shared_properties(cuda.CUmemPoolProps())))
    pooled = ok(cuda.cuMemAllocFromPoolAsync(MIB, pool, stream))
    ok(cuda.cuMemsetD8Async(pooled, 3, MIB, stream))
    ok(cuda.cuStreamSynchronize(stream))

    flags = cuda.CUevent_flags.CU_EVENT_INTERPROCESS | cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING
    event = ok(cuda.cuEventCreate(flags))
    files = [
        int(ok(cuda.cuMemExportToShareableHandle(handle, FILE, 0))),
        int(ok(cuda.cuMemPoolExportToShareableHandle(pool, FILE, 0))),
    ]
    given = {
        "linear": to_text(ok(cuda.cuIpcGetMemHandle(linear))),
        "event": to_text(ok(cuda.cuIpcGetEventHandle(event))),
        "mapped": files[0],
        "pool": files[1],
        "pooled": to_text(ok(cuda.cuMemPoolExportPointer(pooled))),
    }
    kernel = function("step")
    for _ in range(50):
        step(kernel, stream)
    ok(cuda.cuEventRecord(event, stream))
    peer = subprocess.run(
        [sys.executable, __file__, "peer"], input=json.dumps(given), pass_fds=files, text=True, capture_output=True
    )
    assert peer.returncode == 0, peer.stdout + peer.stderr
    assert [bytes_at(p) for p in (linear, mapped, pooled)] == [{11}, {12}, {13}]
    ok(cuda.cuMemUnmap(mapped, 2 * MIB))
    ok(cuda.cuMemRelease(handle))
    ok(cuda.cuMemFreeAsync(pooled, stream))
    ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuMemPoolDestroy(pool))
    for file in files:
        os.close(file)
    return peer.stdout.strip()


def peer():
    given = json.load(sys.stdin)
    ok(cuda.cuInit(0))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
    stream = ok(cuda.cuStreamCreate(0))
    before = own_record()["gpus"]["0"]["figure_bytes"]

    event = ok(cuda.cuIpcOpenEventHandle(from_text(cuda.CUipcEventHandle, given["event"])))
    ok(cuda.cuStreamWaitEvent(stream, event, 0))
    ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuEventQuery(event))

    linear = ok(cuda.cuIpcOpenMemHandle(from_text(cuda.CUipcMemHandle, given["linear"]), LAZY))
    handle = ok(cuda.cuMemImportFromShareableHandle(given["mapped"], FILE))
    mapped = ok(cuda.cuMemAddressReserve(2 * MIB, 0, 0, 0))
    ok(cuda.cuMemMap(mapped, 2 * MIB, 0, handle, 0))
    ok(cuda.cuMemSetAccess(mapped, 2 * MIB, access(), 1))
    pool = ok(cuda.cuMemPoolImportFromShareableHandle(given["pool"], FILE, 0))
    ok(cuda.cuMemPoolSetAccess(pool, access(), 1))
    pooled = ok(cuda.cuMemPoolImportPointer(pool, from_text(cuda.CUmemPoolPtrExportData, given["pooled"])))

    held = own_record()["gpus"]["0"]["figure_bytes"]
    assert held == before, f"memory of another process's is in no figure but its own: {held - before} bytes"
    for value, pointer, size in ((1, linear, 4 * MIB), (2, mapped, 2 * MIB), (3, pooled, MIB)):
        assert bytes_at(pointer) == {value}, value
        ok(cuda.cuMemsetD8(pointer, value + 10, size))
    kernel = function("step")
    timed(stopwatch(lambda: step(kernel, stream), stream), STEP_MS)
    ok(cuda.cuIpcCloseMemHandle(linear))
    print("a peer waited for our event, and read and wrote three kinds of our memory, for which it does not pay")


if __name__ == "__main__" and sys.argv[1:] == ["peer"]:
    peer()
