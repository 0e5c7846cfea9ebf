"""CuPy wants all of the GPU, or as much as it can launch. usage: share_cupy.py products|small|loop"""

import sys

import cupy
from share_common import repeat


def mark():
    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    return event.synchronize


def products():
    left, right = (cupy.random.standard_normal((2048, 2048), dtype=cupy.float32) for _ in range(2))
    out = cupy.empty_like(left)

    def step():
        cupy.matmul(left, right, out=out)
        cupy.multiply(out, 0.5, out=out)

    return step, mark, 25


def small():
    """Launched more slowly than the GPU does them."""
    left, right = (cupy.random.standard_normal((256, 256), dtype=cupy.float32) for _ in range(2))
    return lambda: left @ right, mark, 500


def loop():
    """The same with elementwise kernels between."""
    left, right = (cupy.random.standard_normal((256, 256), dtype=cupy.float32) / 16 for _ in range(2))
    out, other = cupy.empty_like(left), cupy.empty_like(left)

    def step():
        cupy.matmul(left, right, out=out)
        cupy.multiply(out, 0.5, out=other)
        cupy.tanh(other, out=other)
        cupy.add(other, left, out=out)

    return step, mark, 100


if __name__ == "__main__":
    repeat({"products": products, "small": small, "loop": loop}[sys.argv[1]])
