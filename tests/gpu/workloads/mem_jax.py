"""JAX in a cap: takes arrays until there are no more, frees, computes, and takes as much again.

XLA_PYTHON_CLIENT_PREALLOCATE says whether it takes memory at its start, XLA_PYTHON_CLIENT_MEM_FRACTION how much at
most. The runner sets JAX_PLATFORMS: without a GPU this must fail, not run on the CPU.
"""

import jax
import jax.numpy as jnp
import numpy
from mem_common import STEP, fill, full, say


def block(size: int) -> jax.Array:
    return jax.block_until_ready(jnp.zeros((size // 4,), jnp.float32))


def out_of_memory(error: Exception) -> bool:
    return "RESOURCE_EXHAUSTED" in str(error)


def computes() -> str:
    """A product of small integers is exact, wherever it is computed."""
    left = numpy.random.RandomState(1).randint(-4, 5, (256, 256)).astype(numpy.float32)
    with jax.default_matmul_precision("highest"):
        there = numpy.asarray(jnp.asarray(left) @ jnp.asarray(left))
    return "right" if numpy.array_equal(there, left @ left) else "wrong"


def main() -> None:
    say("before", computes())
    block(STEP).delete()
    stats = jax.local_devices()[0].memory_stats() or {}
    say("limit", stats.get("bytes_limit", 0))
    had, error = fill(block, out_of_memory)
    say("had", len(had) * STEP)
    say("oom", error)
    full()
    for array in had[len(had) // 2 :]:
        array.delete()
    del had[len(had) // 2 :]
    say("after", computes())
    more, _ = fill(block, out_of_memory)
    say("again", (len(had) + len(more)) * STEP)


if __name__ == "__main__":
    main()
