"""numba-cuda on the simulated GPU: its driver layer, which is everything but the compiler. See also suite.py.

usage: client.py            the checks
       client.py peer       another process: takes an IPC handle from its standard input
"""

import ctypes
import subprocess
import sys

import numpy as np
from cuda.core import LaunchConfig, ObjectCode, launch
from numba import cuda
from numba.cuda.cudadrv import driver
from numba.cuda.cudadrv.driver import CudaAPIError, IpcHandle, binding
from support import MIB, own_record, run, timed

IMAGE = b"""ration-sim-image 1
global table 256
kernel step time=2ms shared=1024 regs=32 threads=512 param=8,8
kernel long time=100ms param=8,8
"""
STEP_MS = 2.0
numbers = np.random.default_rng(1).random(100_000)


def load():
    """The image through numba's module loading, as if it were a cubin."""
    return cuda.current_context().create_module_image(ObjectCode.from_cubin(IMAGE + b"\0"))


def step(function, stream):
    """A launch as numba's dispatcher makes it."""
    launch(driver._to_core_stream(stream), LaunchConfig(grid=4, block=128), function.kernel, 0, 0)


def code_of(call, *arguments):
    try:
        call(*arguments)
    except CudaAPIError as error:
        return error.code
    return binding.CUresult.CUDA_SUCCESS


def devices():
    assert driver.driver.is_available
    assert cuda.detect(), "it prints what it found, above"
    assert [(d.name, d.compute_capability) for d in cuda.list_devices()] == [("NVIDIA H200", (9, 0))]
    device = cuda.get_current_device()
    assert device.MULTIPROCESSOR_COUNT == 132 and device.WARP_SIZE == 32
    assert driver.get_version() == (13, 0)
    return f"{device.name}, {device.uuid}"


def contexts():
    context = cuda.current_context()
    free, total = context.get_memory_info()
    assert total == 150_109_880_320 and 0 < free < total
    with cuda.gpus[0]:
        assert int(cuda.current_context().handle) == int(context.handle)
    assert own_record()["gpus"]["0"]["bytes"] == {"context": 518 * MIB, "overhead": 5 * MIB + 576 * 1024}
    return f"one, {free // MIB} of {total // MIB} MiB free"


def device_arrays():
    there = cuda.to_device(numbers)
    assert np.array_equal(there.copy_to_host(), numbers)
    assert np.array_equal(there[100:200].copy_to_host(), numbers[100:200])
    table = cuda.to_device(numbers.reshape(100, 1000))
    assert np.array_equal(table[7].copy_to_host(), numbers.reshape(100, 1000)[7])
    other = cuda.device_array_like(there)
    other.copy_to_device(there)
    assert np.array_equal(other.copy_to_host(), numbers)
    driver.device_memset(other, 0, other.nbytes)
    assert not other.copy_to_host().any()
    assert code_of(cuda.device_array, 1 << 40) == binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    return f"{numbers.nbytes} bytes there and back, slices, copies on the device, sets"


def streams_and_events():
    module = load()
    stream, other, function = cuda.stream(), cuda.stream(), module.get_function("step")
    there, start, end = cuda.to_device(numbers, stream=stream), cuda.event(), cuda.event()

    def two_kernels():
        start.record(stream)
        step(function, stream)
        step(function, stream)
        end.record(stream)
        stream.synchronize()
        assert end.query()
        return start.elapsed_time(end)

    took = timed(two_kernels, 2 * STEP_MS)
    assert np.array_equal(there.copy_to_host(stream=stream), numbers)
    step(module.get_function("long"), stream)
    end.record(stream)
    end.wait(other)
    assert not end.query()
    with other.auto_synchronize():
        pass
    assert end.query()
    return f"two kernels of {STEP_MS} ms took {took:.2f}; a stream waits for another"


def pinned_arrays():
    stream, array = cuda.stream(), cuda.pinned_array(numbers.shape)
    array[:] = numbers
    there = cuda.to_device(array, stream=stream)
    array[:] = 0
    there.copy_to_host(array, stream=stream)
    stream.synchronize()
    ordinary = numbers.copy()
    with cuda.pinned(ordinary):
        again = cuda.to_device(ordinary, stream=stream)
        stream.synchronize()
    assert np.array_equal(again.copy_to_host(), numbers)
    return "made by numba, and an ordinary one for a while"


def mapped_arrays():
    array = cuda.mapped_array(numbers.shape)
    array[:] = numbers
    there = cuda.device_array_like(numbers)
    driver.device_to_device(there, array, array.nbytes)
    assert np.array_equal(there.copy_to_host(), numbers)
    ordinary = numbers.copy()
    with cuda.mapped(ordinary) as mapped:
        driver.device_memset(mapped, 0, 800)
        cuda.synchronize()
    assert not ordinary[:100].any() and np.array_equal(ordinary[100:], numbers[100:])
    return "seen and written by the device"


def managed_arrays():
    array = cuda.managed_array(numbers.shape)
    array[:] = numbers
    there = cuda.device_array_like(numbers)
    driver.device_to_device(there, array, array.nbytes)
    assert np.array_equal(there.copy_to_host(), numbers)
    driver.device_memset(array, 0, array.nbytes)
    cuda.synchronize()
    assert not array.any()
    return "written by either side"


def modules():
    context, module = cuda.current_context(), load()
    function = module.get_function("step")
    attributes = function.attrs
    assert (attributes.regs, attributes.shared, attributes.maxthreads) == (32, 1024, 512), attributes
    assert context.get_active_blocks_per_multiprocessor(function, 512, 0) == 4
    function.cache_config(prefer_shared=True)
    function.set_shared_memory_carveout(50)
    memory, size = module.get_global_symbol("table")
    assert size == 256
    data, back = np.arange(256, dtype=np.uint8), np.zeros(256, dtype=np.uint8)
    driver.host_to_device(memory, data, size)
    driver.device_to_host(back, memory, size)
    assert np.array_equal(back, data)
    with driver.profiling():
        step(function, cuda.default_stream())
    cuda.synchronize()
    module.unload()
    return "functions with their attributes, occupancy, a global, a launch"


def real_code_is_refused():
    ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n"
    try:
        cuda.current_context().create_module_ptx(ptx).get_function("k")
    except Exception as error:  # cuda.core's own kind, which it does not publish
        assert "CUDA_ERROR_NOT_SUPPORTED" in str(error), error
    else:
        raise AssertionError("PTX was taken")
    there = cuda.to_device(numbers)
    assert np.array_equal(there.copy_to_host(), numbers), "and the context goes on working"
    return "PTX: CUDA_ERROR_NOT_SUPPORTED, and everything goes on working"


def two_processes():
    there = cuda.to_device(numbers)
    shared = there.get_ipc_handle()._ipc_handle
    told = ctypes.string_at(shared.handle.getPtr(), 64).hex() + f" {shared.size} {shared.offset}"
    peer = subprocess.run([sys.executable, __file__, "peer"], input=told, text=True, capture_output=True)
    assert peer.returncode == 0, peer.stdout + peer.stderr
    back = there.copy_to_host()
    assert not back[:1000].any() and np.array_equal(back[1000:], numbers[1000:])
    return "a peer opened an array of ours by its handle, read and changed it"


def peer():
    text, size, offset = sys.stdin.read().split()
    handle = binding.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), bytes.fromhex(text), 64)
    shared = IpcHandle(None, handle, int(size), offset=int(offset))
    array = shared.open_array(cuda.current_context(), shape=numbers.shape, dtype=numbers.dtype)
    assert np.array_equal(array.copy_to_host(), numbers)
    driver.device_memset(array, 0, 8000)
    cuda.synchronize()
    shared.close()


def memory_comes_back():
    free_now = cuda.current_context().memory_manager.deallocations.clear
    free_now()
    held = own_record()["gpus"]["0"]["figure_bytes"]
    big = cuda.device_array(100 * MIB, dtype=np.uint8)
    assert own_record()["gpus"]["0"]["figure_bytes"] - held == 100 * MIB
    del big
    free_now()
    assert own_record()["gpus"]["0"]["figure_bytes"] == held
    cuda.close()
    left = own_record()["gpus"]["0"]["figure_bytes"]
    assert left == 0, left
    return "an array's when it is dropped, all when numba is closed"


if __name__ == "__main__":
    if sys.argv[1:] == ["peer"]:
        peer()
    else:
        run(devices, contexts, device_arrays, streams_and_events)
        run(pinned_arrays, mapped_arrays, managed_arrays, modules, real_code_is_refused)
        run(two_processes, memory_comes_back)
