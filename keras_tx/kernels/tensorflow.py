"""TensorFlow."""

import tensorflow as tf


def compiled(function, variables):
    """`function` traced once for each shape of its arguments; changed variables are seen."""
    del variables  # a traced function refers to them
    return tf.function(function, autograph=False)


def serial_loop(start, stop, body, carry):
    """`carry = body(i, carry)` for i from start to stop - 1, one after the other.

    TensorFlow's loops run ten iterations ahead by default and hold the memory of all of them.
    """
    carry = tf.nest.map_structure(tf.convert_to_tensor, carry)
    _, carry = tf.while_loop(
        lambda i, carry: i < stop,
        lambda i, carry: (i + 1, body(i, carry)),
        (tf.convert_to_tensor(start, "int32"), carry),
        parallel_iterations=1,
    )
    return carry


def put(x, index, row):
    """`x` with `x[index] = row`, in place where the old `x` is not used again."""
    return tf.tensor_scatter_nd_update(x, tf.reshape(index, (1, 1)), row[None])


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


HAS_FUSED_ATTENTION = False


def fused_attention(query, key, value, *, scale, causal=False, mask=None, bias=None):
    """There is none that runs wherever this backend does."""
    raise NotImplementedError
