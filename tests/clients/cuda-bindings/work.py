"""What is put into streams: kernels, copies, host functions, waits; and what events say of it."""

import ctypes
import threading

import numpy as np
from common import IMAGE, STEP_MS, R, address, be_busy, cuda, function, launch, module, ok, refused, step, stopwatch
from support import MIB, own_record, timed

NON_BLOCKING = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def modules():
    loaded = module()
    kernel = function("step", loaded)
    attributes = cuda.CUfunction_attribute
    for attribute, value in (
        (attributes.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 512),
        (attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 1024),
        (attributes.CU_FUNC_ATTRIBUTE_NUM_REGS, 32),
        (attributes.CU_FUNC_ATTRIBUTE_BINARY_VERSION, 90),
    ):
        assert ok(cuda.cuFuncGetAttribute(attribute, kernel)) == value, attribute
    assert ok(cuda.cuFuncGetParamInfo(kernel, 1)) == (8, 4)
    assert ok(cuda.cuFuncGetName(kernel)) == b"step"
    refused(cuda.cuModuleGetFunction(loaded, b"missing"), R.CUDA_ERROR_NOT_FOUND)
    table, size = ok(cuda.cuModuleGetGlobal(loaded, b"table"))
    data, back = np.arange(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    ok(cuda.cuMemcpyHtoD(table, address(data), size))
    ok(cuda.cuMemcpyDtoH(address(back), table, size))
    assert np.array_equal(back, data)
    assert ok(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 512, 0)) == 4
    ok(cuda.cuModuleUnload(loaded))
    ptx = b".version 8.0\n.target sm_90\n.address_size 64\n"
    refused(cuda.cuModuleLoadData(ptx), R.CUDA_ERROR_NOT_SUPPORTED)
    return "functions, attributes, parameters, a global; real device code is refused"


def libraries():
    library = ok(cuda.cuLibraryLoadData(IMAGE, None, None, 0, None, None, 0))
    assert ok(cuda.cuLibraryGetKernelCount(library)) == 5
    kernel = ok(cuda.cuLibraryGetKernel(library, b"step"))
    assert ok(cuda.cuKernelGetName(kernel)) == b"step"
    timed(stopwatch(lambda: step(ok(cuda.cuKernelGetFunction(kernel)))), STEP_MS)
    ok(cuda.cuLibraryUnload(library))
    return "a kernel of one, launched"


def linker():
    state = ok(cuda.cuLinkCreate(0, None, None))
    text = IMAGE + b"\0"
    kind = cuda.CUjitInputType.CU_JIT_INPUT_PTX
    ok(cuda.cuLinkAddData(state, kind, text, len(text), b"image", 0, None, None))
    image, _size = ok(cuda.cuLinkComplete(state))
    kernel = function("step", ok(cuda.cuModuleLoadData(image)))
    ok(cuda.cuLinkDestroy(state))
    step(kernel)
    ok(cuda.cuCtxSynchronize())
    return "an image through it, loaded and launched"


def launches():
    loaded = module()
    kernel, asked = function("step", loaded), function("asked", loaded)
    arguments = ((0, 1), (ctypes.c_void_p, ctypes.c_int))
    before = own_record()["gpus"]["0"]
    for _ in range(10):
        step(kernel)
    ok(cuda.cuCtxSynchronize())
    after = own_record()["gpus"]["0"]
    assert after["kernels"] - before["kernels"] == 10
    assert abs(after["work_ns"] - before["work_ns"] - 10 * STEP_MS * 1e6) < 1e5
    ten = timed(stopwatch(lambda: [step(kernel) for _ in range(10)]), 10 * STEP_MS)
    timed(stopwatch(lambda: launch(asked, 0, (3_500_000,), (ctypes.c_uint64,))), 3.5)

    config = cuda.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.blockDimX = 64
    timed(stopwatch(lambda: ok(cuda.cuLaunchKernelEx(config, kernel, arguments, 0))), STEP_MS)
    together = (kernel, 1, 1, 1, 64, 1, 1, 0, 0, arguments)
    timed(stopwatch(lambda: ok(cuda.cuLaunchCooperativeKernel(*together))), STEP_MS)
    for blocks, threads, shared in ((0, 32, 0), (1, 0, 0), (1, 2048, 0), (1, 32, 64 << 10)):
        bad = cuda.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, shared, 0, arguments, 0)
        refused(bad, R.CUDA_ERROR_INVALID_VALUE)
    return f"ten kernels of {STEP_MS} ms took {ten:.2f}; the record agrees; bad shapes are refused"


def streams():
    loaded = module()
    kernel, half, asked = function("step", loaded), function("half", loaded), function("asked", loaded)
    least, greatest = ok(cuda.cuCtxGetStreamPriorityRange())
    first = ok(cuda.cuStreamCreateWithPriority(NON_BLOCKING, greatest))
    second = ok(cuda.cuStreamCreate(NON_BLOCKING))
    blocking = ok(cuda.cuStreamCreate(0))
    assert (ok(cuda.cuStreamGetPriority(first)), ok(cuda.cuStreamGetPriority(second))) == (greatest, least)
    assert ok(cuda.cuStreamGetFlags(first)) == int(NON_BLOCKING)
    assert ok(cuda.cuStreamGetId(first)) != ok(cuda.cuStreamGetId(second))
    assert int(ok(cuda.cuStreamGetCtx(first))) == int(ok(cuda.cuCtxGetCurrent()))
    mark = ok(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def one_waits_for_the_other():
        step(kernel, first)
        ok(cuda.cuEventRecord(mark, first))
        ok(cuda.cuStreamWaitEvent(second, mark, 0))
        step(kernel, second)

    def neither_waits():
        launch(half, first)
        launch(half, second)

    def legacy_comes_first():  # it holds the others up, though there is room beside it
        launch(half, 0)
        launch(half, blocking)

    chained = timed(stopwatch(one_waits_for_the_other, second), 2 * STEP_MS)
    beside = timed(stopwatch(neither_waits, second), STEP_MS)
    timed(stopwatch(legacy_comes_first, blocking), 2 * STEP_MS)
    be_busy(asked, first)
    refused(cuda.cuStreamQuery(first), R.CUDA_ERROR_NOT_READY)
    ok(cuda.cuStreamQuery(second))
    ok(cuda.cuStreamSynchronize(first))
    ok(cuda.cuStreamQuery(first))
    for stream in (first, second, blocking):
        ok(cuda.cuStreamDestroy(stream))
    return f"one after the other {chained:.2f} ms, side by side {beside:.2f}; priorities, legacy order"


def events():
    asked, stream = function("asked"), ok(cuda.cuStreamCreate(0))
    fresh, other = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
    ok(cuda.cuEventQuery(fresh))
    refused(cuda.cuEventElapsedTime(fresh, other), R.CUDA_ERROR_INVALID_HANDLE)
    ok(cuda.cuEventRecord(other, stream))
    be_busy(asked, stream)
    ok(cuda.cuEventRecord(fresh, stream))
    refused(cuda.cuEventQuery(fresh), R.CUDA_ERROR_NOT_READY)
    refused(cuda.cuEventElapsedTime(other, fresh), R.CUDA_ERROR_NOT_READY)
    ok(cuda.cuEventSynchronize(fresh))
    ok(cuda.cuEventQuery(fresh))
    untimed = ok(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    ok(cuda.cuEventRecord(untimed, stream))
    ok(cuda.cuEventSynchronize(untimed))
    refused(cuda.cuEventElapsedTime(fresh, untimed), R.CUDA_ERROR_INVALID_HANDLE)
    for event in (fresh, other, untimed):
        ok(cuda.cuEventDestroy(event))
    return "not recorded, pending, done, without timing"


def copies_take_time():
    size = 100 * MIB
    pointer, target = ok(cuda.cuMemAlloc(size)), ok(cuda.cuMemAlloc(size))
    pinned = ok(cuda.cuMemHostAlloc(size, 0))
    stream = ok(cuda.cuStreamCreate(NON_BLOCKING))
    # 54 GB/s to the device and 2.11 TB/s inside it.
    across = timed(stopwatch(lambda: ok(cuda.cuMemcpyHtoDAsync(pointer, pinned, size, stream)), stream), size / 54e6)
    within = timed(stopwatch(lambda: ok(cuda.cuMemcpyDtoDAsync(target, pointer, size, stream)), stream), size / 2.11e9)
    ok(cuda.cuMemFreeHost(pinned))
    ok(cuda.cuMemFree(pointer))
    ok(cuda.cuMemFree(target))
    return f"100 MiB: {across:.2f} ms from the host, {within:.2f} within the device"


def host_functions():
    asked, stream, said = function("asked"), ok(cuda.cuStreamCreate(0)), []

    def note(data):
        said.append((data, threading.get_ident() == threading.main_thread().ident))

    callback = HOST_FUNCTION(note)
    pointer = ctypes.cast(callback, ctypes.c_void_p).value
    for number in (1, 2, 3):
        be_busy(asked, stream)
        ok(cuda.cuLaunchHostFunc(stream, pointer, number))
    assert not said, "they come after the kernels"
    ok(cuda.cuStreamSynchronize(stream))
    assert said == [(1, False), (2, False), (3, False)], said
    return "three between kernels, in order, on a thread of the driver's"


def values():
    flag = ok(cuda.cuMemHostAlloc(4096, cuda.CU_MEMHOSTALLOC_DEVICEMAP))
    words = (ctypes.c_uint32 * 4).from_address(int(flag))
    words[:] = [0] * 4
    device = int(ok(cuda.cuMemHostGetDevicePointer(flag, 0)))
    stream = ok(cuda.cuStreamCreate(NON_BLOCKING))
    at_least = cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
    ok(cuda.cuStreamWaitValue32(stream, device, 5, at_least))
    ok(cuda.cuStreamWriteValue32(stream, device + 4, 77, 0))
    refused(cuda.cuStreamQuery(stream), R.CUDA_ERROR_NOT_READY)
    assert words[1] == 0
    words[0] = 5
    ok(cuda.cuStreamSynchronize(stream))
    assert words[1] == 77
    ok(cuda.cuMemFreeHost(flag))
    return "a stream waits for a word that the host writes, then writes one"
