"""CuPy: elementwise kernels, raw kernels, matrix products, FFTs, pools of three kinds, arrays and a captured graph.

CUPY_CACHE_DIR is set by the runner, so that kernels are compiled once.
"""

import cupy
import numpy
from workload import digest, tell

SOURCE = r"""
extern "C" __global__ void step(unsigned *data, int n, unsigned add) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = data[i] * 1664525u + add + i;
}
"""


def kernels() -> None:
    values = cupy.arange(1 << 18, dtype=cupy.float32)
    mixed = cupy.sin(values) * 2 + cupy.sqrt(values)
    squares = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = (x - y) * (x - y)", "squares")
    tell("elementwise", digest(cupy.asnumpy(squares(mixed, values))))
    total = cupy.ReductionKernel("int64 x", "int64 y", "x * x", "a + b", "y = a", "0", "total")
    tell("reduction", int(total(cupy.arange(100000, dtype=cupy.int64))))
    data = cupy.arange(1 << 16, dtype=cupy.uint32)
    step = cupy.RawKernel(SOURCE, "step")
    for add in range(50):
        step((256,), (256,), (data, numpy.int32(1 << 16), numpy.uint32(add)))
    tell("raw", digest(cupy.asnumpy(data)))


def libraries() -> None:
    generator = numpy.random.RandomState(0)
    a = cupy.asarray(generator.randint(-4, 5, (256, 256)).astype(numpy.float32))  # small integers: exact in any order
    tell("product", digest(cupy.asnumpy(a @ a)))
    tell("fft", digest(cupy.asnumpy(cupy.fft.fft(a[:64].astype(cupy.complex64)))))
    cupy.random.seed(7)
    tell("random", digest(cupy.asnumpy(cupy.random.random_sample(4096))))


def with_allocator(name: str, allocator) -> None:
    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(allocator)
    try:
        total = 0
        for i in range(20):
            values = cupy.full(1 << (10 + i % 8), i, dtype=cupy.int64)
            total += int((values * 3).sum())
        tell(name, total)
        del values
        cupy.cuda.Device().synchronize()
    finally:
        cupy.cuda.set_allocator(before)


def pools() -> None:
    own = cupy.cuda.MemoryPool()
    with_allocator("pool", own.malloc)
    own.free_all_blocks()
    with_allocator("no pool", None)
    with_allocator("managed pool", cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
    with_allocator("async pool", cupy.cuda.MemoryAsyncPool().malloc)


def arrays() -> None:
    texture = cupy.cuda.texture
    form = texture.ChannelFormatDescriptor(32, 0, 0, 0, cupy.cuda.runtime.cudaChannelFormatKindFloat)
    array = texture.CUDAarray(form, 64, 32)
    values = numpy.arange(64 * 32, dtype=numpy.float32).reshape(32, 64)
    back = numpy.zeros_like(values)
    array.copy_from(values)
    array.copy_to(back)
    tell("array", digest(back))


def graph() -> None:
    data = cupy.arange(1 << 16, dtype=cupy.uint32)
    step = cupy.RawKernel(SOURCE, "step")
    arguments = (data, numpy.int32(1 << 16), numpy.uint32(3))
    step((256,), (256,), arguments)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for _ in range(5):
            step((256,), (256,), arguments)
        captured = stream.end_capture()
        for _ in range(10):
            captured.launch(stream)
    stream.synchronize()
    tell("graph", digest(cupy.asnumpy(data)))


def main() -> None:
    kernels()
    libraries()
    pools()
    arrays()
    graph()


if __name__ == "__main__":
    main()
