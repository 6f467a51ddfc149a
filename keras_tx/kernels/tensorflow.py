"""TensorFlow."""

import tensorflow as tf


def compiled(function, variables, *, jit_compile=False, overwrites=()):
    """`function` traced once for each shape of its arguments; changed variables are seen.

    Args:
        function: Of nested tensors.
        variables: Those that it reads.
        jit_compile: Whether XLA compiles it, where the backend has a choice.
        overwrites: The places of arguments that are not used again, whose memory may be.
    """
    del variables, overwrites  # a traced function refers to its variables
    return tf.function(function, autograph=False, jit_compile=jit_compile)


def serial_loop(start, stop, body, carry):
    """`carry = body(i, carry)` for i from start to stop - 1, one after the other.

    TensorFlow's loops run ten iterations ahead by default and hold the memory of all of them.
    """

    def step(i, carry):
        return i + 1, tf.nest.map_structure(_with_the_shape_of, carry, body(i, carry))

    _, carry = tf.while_loop(
        lambda i, carry: i < stop,
        step,
        (tf.convert_to_tensor(start, "int32"), carry),
        parallel_iterations=1,
    )
    return carry


def _with_the_shape_of(before, after):
    """What a step makes has the shape of what it was made from, also where a trace lost it."""
    if tf.is_tensor(after):
        after.set_shape(before.shape)
    return after


def rows(x):
    """x (n, ...) as rows that `row` takes and `put` replaces one by one, without a copy of all.

    A list of tensors: TensorFlow's updates of a part of a tensor copy the whole.
    """
    array = tf.TensorArray(
        x.dtype,
        size=tf.shape(x)[0],
        element_shape=x.shape[1:],
        clear_after_read=False,
    )
    return array.unstack(x)


def row(rows, index):
    return rows.read(index)


def put(rows, index, row):
    """The rows with `row` in that place."""
    return rows.write(index, row)


def stacked(rows):
    """The reverse of `rows`."""
    return rows.stack()


def with_gradient(forward, backward):
    """A function whose gradient is written by hand.

    Args:
        forward: `forward(inputs, constants) -> output, residuals`, all but the output tuples.
        backward: `backward(inputs, constants, output, residuals, upstream)` -> the gradients of
            `inputs`.

    Returns:
        `function(inputs, constants)`; nothing is derived by `constants`.
    """

    def apply(inputs, constants):
        @tf.custom_gradient
        def function(*inputs):
            output, residuals = forward(inputs, constants)

            def gradient(upstream):
                return backward(inputs, constants, output, residuals, upstream)

            return output, gradient

        return function(*inputs)

    return apply


# From so many scores a head a loop over tiles is faster than all at once
# (on a CPU, in graph mode).
MANY_SCORES = 512 * 512
HAS_FUSED_ATTENTION = False


def fused_attention(*arguments, **keywords):
    """There is none that runs wherever this backend does."""
    raise NotImplementedError
