"""JAX."""

import contextlib
import functools

import jax
import keras
from jax import lax
from jax import numpy as jnp


def compiled(function, variables, *, jit_compile=False, overwrites=()):
    """`function` traced once for each shape of its arguments; changed variables are seen.

    Args:
        function: Of nested tensors.
        variables: Those that it reads.
        jit_compile: Whether XLA compiles it, where the backend has a choice: here it always does.
        overwrites: The places of arguments that are not used again, whose memory may be.
    """
    del jit_compile

    @functools.partial(jax.jit, donate_argnums=tuple(1 + place for place in overwrites))
    def stateless(values, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(distinct, values, strict=True))):
            return function(*arguments)

    distinct = list({id(v): v for v in variables}.values())
    return lambda *arguments: stateless([v.value for v in distinct], *arguments)


def tracing(variables, *, jit_compile=False):
    """Nothing to do: XLA reads each variable once."""
    del variables, jit_compile
    return contextlib.nullcontext()


def repeat_while(condition, body, carry, given):
    """`carry = body(carry, given)` as long as `condition(carry)`; both nested tensors.

    What the body needs of the outside is `given`; it must hold on to no other tensor.
    """
    return lax.while_loop(condition, lambda carry: body(carry, given), carry)


def known(x):
    """What a backend that runs eagerly knows of a scalar: here nothing, a graph is traced."""
    return x


def updated(x, indices, new, *, overwrites=False):
    """x (..., H) with `new` (M, H) in its rows, counted through, at different `indices` (M,)."""
    del overwrites
    rows = jnp.reshape(x, (-1, x.shape[-1]))
    return jnp.reshape(rows.at[indices].set(new, unique_indices=True), x.shape)


def settled(nested, readers):
    """Nothing to do: what is read is read before it is overwritten."""
    del readers
    return nested


def products_of_few(query, key):
    """query (B, K, T, H) key^T, (B, K, S, H) -> (B, K, T, S), T small, without a copy of `key`."""
    return jnp.einsum("bksh,bkth->bkst", key, query).swapaxes(-1, -2)


def serial_loop(start, stop, body, carry):
    """`carry = body(i, carry)` for i from start to stop - 1, one after the other."""
    return lax.fori_loop(start, stop, body, carry)


def rows(x):
    """x (n, ...) as rows that `row` takes and `put` replaces one by one, without a copy of all."""
    return x


def row(rows, index):
    return lax.dynamic_index_in_dim(rows, index, 0, keepdims=False)


def put(rows, index, row):
    """The rows with `row` in that place."""
    return lax.dynamic_update_index_in_dim(rows, row, index, 0)


def stacked(rows):
    """The reverse of `rows`."""
    return rows


def with_gradient(forward, backward):
    """A function whose gradient is written by hand.

    Args:
        forward: `forward(inputs, constants) -> output, residuals`, all but the output tuples.
        backward: `backward(inputs, constants, output, residuals, upstream)` -> the gradients of
            `inputs`.

    Returns:
        `function(inputs, constants)`; nothing is derived by `constants`.
    """

    @jax.custom_vjp
    def function(inputs, constants):
        return forward(inputs, constants)[0]

    def keep(inputs, constants):
        output, residuals = forward(inputs, constants)
        return output, (inputs, constants, output, residuals)

    def pull_back(kept, upstream):
        return tuple(backward(*kept, upstream)), None

    function.defvjp(keep, pull_back)
    return function


# From so many scores a head a loop over tiles is faster than all at once
# (on a CPU).
MANY_SCORES = 256 * 256
HAS_FUSED_ATTENTION = False


def fused_attention(*arguments, **keywords):
    """There is none that runs wherever this backend does."""
    raise NotImplementedError
