"""JAX at work: a compiled step, asked for again as long as a few are under way; or a small one, each waited for.
usage: share_jax.py [small]
"""

import sys

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


@jax.jit
def descend(weights, inputs, labels):
    def loss(weights):
        values = inputs
        for matrix in weights[:-1]:
            values = jax.nn.relu(values @ matrix)
        return jnp.mean((values @ weights[-1] - labels) ** 2)

    slopes = jax.grad(loss)(weights)
    return [matrix - 0.01 * slope for matrix, slope in zip(weights, slopes, strict=True)]


def small():
    keys = jax.random.split(jax.random.PRNGKey(0), 10)
    state = {"weights": [jax.random.normal(key, (256, 256)) / 16 for key in keys[:8]]}
    inputs, labels = (jax.random.normal(key, (128, 256)) for key in keys[8:])

    def step():
        state["weights"] = jax.block_until_ready(descend(state["weights"], inputs, labels))

    return step, lambda: lambda: None, 1


if __name__ == "__main__":
    if sys.argv[1:] == ["small"]:
        repeat(small, ahead=0)
    else:
        repeat(setup)
