"""cuda-bindings on the simulated GPU: the driver API as Python sees it, and NVML beside it in the same process."""

import os

import pynvml
from common import R, cuda, ok, refused
from cuda.bindings import nvml
from graphs import (
    branches_and_children,
    capture,
    explicit_graph,
    loops,
    memory_in_graphs,
    what_breaks_a_capture,
)
from memory import arrays, host_memory, linear_memory, managed_memory, pitched_memory, pools, virtual_memory
from sharing import two_processes
from support import MIB, own_record, run
from work import copies_take_time, events, host_functions, launches, libraries, linker, modules, streams, values

# Codes that came after CUDA 13.0, and that its driver has no names for.
NEWER = {
    "CUDA_ERROR_FABRIC_NOT_READY",
    "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE",
    "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION",
    "CUDA_ERROR_MULTICAST_RESOURCE_FULL",
    "CUDA_ERROR_STREAM_DETACHED",
}


def before_init():
    refused(cuda.cuDeviceGetCount(), R.CUDA_ERROR_NOT_INITIALIZED)
    assert ok(cuda.cuDriverGetVersion()) == 13000
    refused(cuda.cuInit(1), R.CUDA_ERROR_INVALID_VALUE)
    ok(cuda.cuInit(0))
    return "nothing works but the version"


def devices():
    assert ok(cuda.cuDeviceGetCount()) == 1
    device = ok(cuda.cuDeviceGet(0))
    name = ok(cuda.cuDeviceGetName(100, device)).split(b"\0")[0].decode()
    assert name == "NVIDIA H200"
    attributes = cuda.CUdevice_attribute
    for attribute, value in (
        (attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132),
        (attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
        (attributes.CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (attributes.CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1),
    ):
        assert ok(cuda.cuDeviceGetAttribute(attribute, device)) == value, attribute
    bus = ok(cuda.cuDeviceGetPCIBusId(20, device)).split(b"\0")[0]
    assert int(ok(cuda.cuDeviceGetByPCIBusId(bus))) == int(device)
    assert len(bytes(ok(cuda.cuDeviceGetUuid(device)).bytes)) == 16
    refused(cuda.cuDeviceGet(1), R.CUDA_ERROR_INVALID_DEVICE)
    refused(cuda.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_MAX, device), R.CUDA_ERROR_INVALID_VALUE)
    return f"{name} at {bus.decode()}, {ok(cuda.cuDeviceTotalMem(device)) // MIB} MiB"


def contexts():
    refused(cuda.cuMemAlloc(1), R.CUDA_ERROR_INVALID_CONTEXT)
    primary = ok(cuda.cuDevicePrimaryCtxRetain(0))
    ok(cuda.cuCtxSetCurrent(primary))
    own = ok(cuda.cuCtxCreate(None, 0, 0))
    assert int(ok(cuda.cuCtxGetCurrent())) == int(own) != int(primary)
    assert ok(cuda.cuCtxGetId(own)) != ok(cuda.cuCtxGetId(primary))
    assert ok(cuda.cuCtxGetApiVersion(own)) == 3020
    two = own_record()["gpus"]["0"]["figure_bytes"]
    assert two == 2 * 518 * MIB, two
    ok(cuda.cuCtxDestroy(own))
    assert int(ok(cuda.cuCtxGetCurrent())) == int(primary)
    assert own_record()["gpus"]["0"]["figure_bytes"] == 518 * MIB
    limit = cuda.CUlimit.CU_LIMIT_STACK_SIZE
    ok(cuda.cuCtxSetLimit(limit, 4096))
    assert ok(cuda.cuCtxGetLimit(limit)) == 4096
    ok(cuda.cuCtxSetLimit(limit, 1024))
    assert ok(cuda.cuDevicePrimaryCtxGetState(0))[1] == 1
    return "the primary and one of our own, 518 MiB each"


def error_names():
    code = R.CUDA_ERROR_OUT_OF_MEMORY
    assert ok(cuda.cuGetErrorName(code)) == b"CUDA_ERROR_OUT_OF_MEMORY"
    assert ok(cuda.cuGetErrorString(code)) == b"out of memory"
    missing = {c.name for c in R if cuda.cuGetErrorName(c)[1] != c.name.encode()}
    assert missing == NEWER, missing ^ NEWER
    return "every code that the driver of CUDA 13.0 has"


def resolver():
    for name, version, flags, found, status in (
        (b"cuMemAlloc", 2000, 0, True, 0),
        (b"cuMemAlloc", 1000, 0, False, 2),
        (b"cuLaunchKernel", 12000, 2, True, 0),
        (b"cuGraphAddNode", 11000, 0, False, 2),
        (b"cuMemAlloc_v2", 12000, 0, False, 1),
        (b"nope", 12000, 0, False, 1),
        (b"", 0, 0, False, 1),
    ):
        pointer, said = ok(cuda.cuGetProcAddress(name, version, cuda.CUdriverProcAddress_flags(flags)))
        assert (bool(int(pointer or 0)), int(said)) == (found, status), name
    refused(cuda.cuGetProcAddress(b"cuInit", 99999, cuda.CUdriverProcAddress_flags(0)), R.CUDA_ERROR_INVALID_VALUE)
    return "answers by name, version and flags as the real driver does"


def nvml_beside_it():
    """Both NVML bindings see this process with what the driver API says that it holds."""
    held = own_record()["gpus"]["0"]["figure_bytes"]
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    mine = [process.usedGpuMemory for process in listed if process.pid == os.getpid()]
    assert mine == [held], (mine, held)
    free, total = ok(cuda.cuMemGetInfo())
    seen = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    assert (seen.free, seen.total - seen.reserved) == (free, total)
    nvml.init_v2()
    other = nvml.device_get_handle_by_index_v2(0)
    assert nvml.device_get_name(other) == "NVIDIA H200"
    assert nvml.device_get_memory_info_v2(other).free == free
    assert nvml.device_get_uuid(other) == pynvml.nvmlDeviceGetUUID(device)
    nvml.shutdown()
    pynvml.nvmlShutdown()
    return f"nvidia-ml-py and cuda.bindings.nvml: {held // MIB} MiB held, {free // MIB} free"


def the_end():
    before = own_record()["gpus"]["0"]["figure_bytes"]
    ok(cuda.cuDevicePrimaryCtxRelease(0))
    left = own_record()["gpus"].get("0", {}).get("figure_bytes", 0)
    assert left == 0, left
    return f"{before // MIB} MiB given back with the context"


if __name__ == "__main__":
    run(before_init, devices, contexts, error_names, resolver)
    run(linear_memory, pitched_memory, arrays, host_memory, managed_memory, pools, virtual_memory)
    run(modules, libraries, linker, launches, streams, events, copies_take_time, host_functions, values)
    run(explicit_graph, branches_and_children, loops, memory_in_graphs, capture, what_breaks_a_capture)
    run(two_processes, nvml_beside_it, the_end)
