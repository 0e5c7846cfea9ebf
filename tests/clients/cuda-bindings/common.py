"""Calling cuda.bindings.driver: results unpacked, failures raised."""

import ctypes

from cuda.bindings import driver as cuda

IMAGE = b"""ration-sim-image 1
global table 4096
kernel free
kernel step time=2ms shared=1024 regs=32 threads=512 param=8,4
kernel asked time=@0 param=8
kernel half time=2ms width=50%
kernel counts sets=0:-1 param=8 time=1ms
"""
STEP_MS = 2.0

R = cuda.CUresult


def ok(result):
    """The values of a call that must have succeeded: none, one, or a tuple."""
    code, *values = result
    assert code == R.CUDA_SUCCESS, code
    return None if not values else values[0] if len(values) == 1 else tuple(values)


def refused(result, code):
    """A call that must have failed in this way."""
    assert result[0] == code, f"{result[0]!r} instead of {code!r}"


def address(buffer):
    """Where a ctypes array or a numpy array lies."""
    return buffer.ctypes.data if hasattr(buffer, "ctypes") else ctypes.addressof(buffer)


def module():
    """The image, loaded into the current context."""
    return ok(cuda.cuModuleLoadData(IMAGE))


def function(name, of=None):
    return ok(cuda.cuModuleGetFunction(of or module(), name.encode()))


def launch(kernel, stream=0, arguments=(), types=(), blocks=1, threads=128):
    """One launch; arguments and types as cuda-bindings takes them."""
    parameters = (tuple(arguments), tuple(types)) if arguments else 0
    ok(cuda.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, 0))


def step(kernel, stream=0):
    """One launch of the kernel `step`: 2 ms."""
    launch(kernel, stream, (0, 1), (ctypes.c_void_p, ctypes.c_int))


def be_busy(asked, stream=0):
    """Keeps a stream busy for long enough to look at it meanwhile, even from a process that waits for a processor."""
    launch(asked, stream, (100_000_000,), (ctypes.c_uint64,))


def stopwatch(act, stream=0):
    """Something that does `act` and returns the milliseconds between two points of a stream, before it and after it."""

    def measure():
        start, end = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
        ok(cuda.cuEventRecord(start, stream))
        act()
        ok(cuda.cuEventRecord(end, stream))
        ok(cuda.cuEventSynchronize(end))
        return ok(cuda.cuEventElapsedTime(start, end))

    return measure
