"""JAX."""

import jax
import keras


def compiled(function, variables):
    """`function` traced once for each shape of its arguments; changed variables are seen."""

    @jax.jit
    def stateless(values, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*arguments)

    return lambda *arguments: stateless([v.value for v in variables], *arguments)
