"""JAX: jit, grad, scan and vmap; a recurrent network is trained.

The runner sets JAX_COMPILATION_CACHE_DIR, so that what one run tuned is what the next one uses, and JAX_PLATFORMS:
without a GPU this must fail, not run on the CPU. XLA_PYTHON_CLIENT_PREALLOCATE says how much memory XLA takes at first.
"""

import jax
import jax.numpy as jnp
from workload import digest, tell


def parameters():
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    return {
        "inner": jax.random.normal(keys[0], (128, 128)) / 12,
        "input": jax.random.normal(keys[1], (64, 128)) / 8,
        "output": jax.random.normal(keys[2], (128, 16)) / 12,
    }


def forward(weights, sequence):
    def cell(state, value):
        state = jnp.tanh(state @ weights["inner"] + value @ weights["input"])
        return state, state @ weights["output"]

    _, outputs = jax.lax.scan(cell, jnp.zeros((sequence.shape[1], 128)), sequence)
    return outputs


def loss(weights, sequence, wanted):
    return jnp.mean((forward(weights, sequence) - wanted) ** 2)


@jax.jit
def step(weights, sequence, wanted):
    value, slopes = jax.value_and_grad(loss)(weights, sequence, wanted)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes), value


@jax.jit
def several(values):
    return jax.vmap(lambda v: jnp.sort(v)[::-1].cumsum())(values)


def main() -> None:
    weights = parameters()
    key = jax.random.PRNGKey(1)
    for round_ in range(30):
        key, one, two = jax.random.split(key, 3)
        sequence = jax.random.normal(one, (12, 32, 64))
        wanted = jax.random.normal(two, (12, 32, 16))
        weights, value = step(weights, sequence, wanted)
        if round_ % 5 == 4:
            tell(f"loss {round_}", float(value))
    tell("weights", digest(*(jax.device_get(weights[name]) for name in sorted(weights))))
    tell("several", digest(jax.device_get(several(jax.random.normal(key, (64, 512))))))
    big = jax.device_put(jnp.ones((4096, 1024), dtype=jnp.bfloat16))
    tell("product", float((big.T @ big)[3, 5]))


if __name__ == "__main__":
    main()
