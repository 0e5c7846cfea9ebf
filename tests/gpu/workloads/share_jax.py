"""JAX wants all of the GPU: a compiled step, asked for again as long as a few are under way."""

import jax
import jax.numpy as jnp
from share_common import repeat


@jax.jit
def layers(values, weights):
    for _ in range(4):
        values = jnp.tanh(values @ weights)
    return values


def setup():
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    weights = (jax.random.normal(keys[0], (4096, 4096)) / 64).astype(jnp.bfloat16)
    state = {"values": jax.random.normal(keys[1], (4096, 4096)).astype(jnp.bfloat16)}

    def step():
        state["values"] = layers(state["values"], weights)

    return step, lambda: state["values"].block_until_ready, 10


if __name__ == "__main__":
    repeat(setup)
