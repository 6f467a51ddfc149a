"""TensorFlow."""

import contextlib
import contextvars

import keras
import tensorflow as tf

# Whether what is traced runs without XLA, in a function whose tensors nobody else holds.
_in_place = contextvars.ContextVar("in_place", default=False)


def compiled(function, variables, *, jit_compile=False, overwrites=()):
    """`function` traced once for each shape of its arguments; changed variables are seen.

    Args:
        function: Of nested tensors.
        variables: Those that it reads.
        jit_compile: Whether XLA compiles it, where the backend has a choice.
        overwrites: The places of arguments that are not used again, whose memory may be.
    """
    del overwrites

    def traced(*arguments):
        with tracing(variables, jit_compile=jit_compile):
            return function(*arguments)

    function_of_tensors = tf.function(traced, autograph=False, jit_compile=jit_compile)
    # That each shape is traced once is meant; and TensorFlow takes all of these for one function.
    function_of_tensors._omit_frequent_tracing_warning = True
    return function_of_tensors


@contextlib.contextmanager
def tracing(variables, *, jit_compile=False):
    """Within it a graph is traced whose tensors nobody else holds.

    It reads each variable once, where a loop would at every step, and writes in place if it will
    run without XLA.
    """
    distinct = {id(v): v for v in variables}.values()
    values = [(v, tf.convert_to_tensor(v.value)) for v in distinct]
    before = _in_place.set(not jit_compile)
    try:
        with keras.StatelessScope(state_mapping=values):
            yield
    finally:
        _in_place.reset(before)


def repeat_while(condition, body, carry, given):
    """`carry = body(carry, given)` as long as `condition(carry)`; both nested tensors.

    What the body needs of the outside is `given`; it must hold on to no other tensor.
    """
    return tf.while_loop(
        lambda carry: condition(carry),
        lambda carry: (tf.nest.map_structure(_with_the_shape_of, carry, body(carry, given)),),
        (carry,),
    )[0]


def known(x):
    """What a backend that runs eagerly knows of a scalar: here nothing, a graph is traced."""
    return x


def updated(x, indices, new, *, overwrites=False):
    """x (..., H) with `new` (M, H) in its rows, counted through, at different `indices` (M,).

    With `overwrites`, in a graph that is `tracing` without XLA, it is x itself: on a CPU the
    functional update copies all of it. Then x must not be read afterwards, be no constant, and what
    is carried on must be `settled`.
    """
    rows = tf.reshape(x, (-1, x.shape[-1]))
    if overwrites and _in_place.get():
        rows = tf.raw_ops.InplaceUpdate(x=rows, i=indices, v=new)
    else:
        rows = tf.tensor_scatter_nd_update(rows, indices[:, None], new)
    return _with_the_shape_of(x, tf.reshape(rows, tf.shape(x)))


def settled(nested, readers):
    """The tensors, as they are when `readers` is known: what reads them has read them then.

    Steps of a loop run ahead, and one may overwrite what the step before has not read yet.
    """
    if not _in_place.get():
        return nested
    with tf.control_dependencies([readers]):
        return tf.nest.map_structure(tf.identity, nested)


def products_of_few(query, key):
    """query (B, K, T, H) key^T, (B, K, S, H) -> (B, K, T, S), T small, without a copy of `key`."""
    return tf.matmul(query, key, transpose_b=True)


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
