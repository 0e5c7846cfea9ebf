"""CuPy in a cap, with each of its pools: its own over cudaMalloc, the driver's, and its own over managed memory."""

import cupy
import numpy
from mem_common import STEP, fill, full, say

Refused = (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError)


def block(size: int) -> cupy.ndarray:
    array = cupy.empty(size, dtype=cupy.uint8)
    array[:: 1 << 16] = 1  # managed memory is nowhere until it is touched
    cupy.cuda.Device().synchronize()
    return array


def out_of_memory(error: Exception) -> bool:
    return isinstance(error, Refused) and "memory" in str(error).lower()


def computes() -> str:
    """A product of small integers is exact, wherever it is computed."""
    left = numpy.random.RandomState(1).randint(-4, 5, (256, 256)).astype(numpy.float32)
    there = cupy.asnumpy(cupy.asarray(left) @ cupy.asarray(left))
    return "right" if numpy.array_equal(there, left @ left) else "wrong"


def with_pool(name: str, pool, look: bool) -> None:
    cupy.cuda.set_allocator(pool.malloc)
    had, error = fill(block, out_of_memory)
    say(f"{name}-had", len(had) * STEP)
    say(f"{name}-oom", error)
    if look:
        full()
    had.clear()
    cupy.cuda.Device().synchronize()
    pool.free_all_blocks()
    say(f"{name}-after", computes())
    cupy.cuda.Device().synchronize()
    pool.free_all_blocks()


def main() -> None:
    say("before", computes())
    block(STEP)
    cupy.get_default_memory_pool().free_all_blocks()
    say("total", cupy.cuda.runtime.memGetInfo()[1])
    with_pool("own", cupy.cuda.MemoryPool(), look=True)
    with_pool("async", cupy.cuda.MemoryAsyncPool(), look=False)
    with_pool("managed", cupy.cuda.MemoryPool(cupy.cuda.malloc_managed), look=False)
    free, total = cupy.cuda.runtime.memGetInfo()
    say("left", free)
    say("oom", "of all pools")
    say("after", "right" if free > total // 2 else "wrong: the pools gave nothing back")


if __name__ == "__main__":
    main()
