"""How the checks call a layer, differentiate it and compare, on whichever backend runs."""

import functools
import weakref

import keras
import numpy as np
from keras import ops


def arrays(result):
    """A tensor, or a structure of tensors, as float32, int or bool numpy arrays."""

    def convert(x):
        if x is None:
            return None
        if keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16"):
            x = ops.cast(x, "float32")
        return np.asarray(ops.convert_to_numpy(x))

    return keras.tree.map_structure(convert, result)


def tensors(inputs):
    return {name: ops.convert_to_tensor(value) for name, value in inputs.items()}


def call(layer, inputs, masked=(), **arguments):
    """The layer's result on {argument: array}, as arrays; `masked` inputs first pass a `Masking`.

    JAX compiles every operation by itself when it runs eagerly, so there a plain call is compiled
    as a whole; `test_compiling.py` compares the two.
    """
    if keras.backend.backend() == "jax" and not arguments.get("training"):
        return arrays(_jax_call(layer, inputs, tuple(masked), arguments))
    return call_eagerly(layer, inputs, masked, **arguments)


def call_eagerly(layer, inputs, masked=(), **arguments):
    return arrays(_apply(layer, arguments, inputs, masked))


_jax_functions = weakref.WeakKeyDictionary()  # {layer: {flags: compiled function}}


def _jax_call(layer, inputs, masked, arguments):
    import jax

    flags = tuple((name, value) for name, value in arguments.items() if isinstance(value, bool))
    rest = {name: value for name, value in arguments.items() if name not in dict(flags)}
    if not layer.built:
        _apply(layer, arguments, inputs)
    functions = _jax_functions.setdefault(layer, {})
    if (flags, masked) not in functions:
        reference = weakref.ref(layer)

        @jax.jit
        def function(values, inputs, rest):
            mapping = list(zip(reference().variables, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                return _apply(reference(), {**rest, **dict(flags)}, inputs, masked)

        functions[flags, masked] = function
    values = [variable.value for variable in layer.variables]
    return functions[flags, masked](values, tensors(inputs), rest)


def gradients(layer, inputs, cotangent, **arguments):
    """Of `sum(layer(inputs) * cotangent)`: {input: gradient}, [gradient of each weight]."""
    keras_backend = keras.backend.backend()
    function = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras_backend]
    of_inputs, of_weights = function(layer, inputs, cotangent, arguments)
    return arrays(of_inputs), arrays(of_weights)


def weighted_sum(layer, inputs, cotangent, arguments):
    first, *others = inputs
    output = layer(inputs[first], **{name: inputs[name] for name in others}, **arguments)
    return ops.sum(ops.cast(output, "float32") * cotangent)


def _tensorflow(layer, inputs, cotangent, arguments):
    import tensorflow as tf

    inputs = tensors(inputs)
    weights = [weight.value for weight in layer.trainable_weights]
    with tf.GradientTape() as tape:
        tape.watch(list(inputs.values()))
        loss = weighted_sum(layer, inputs, cotangent, arguments)
    found = tape.gradient(loss, [inputs, weights])
    return keras.tree.map_structure(tf.convert_to_tensor, found)  # of a gather: indexed slices


def _jax(layer, inputs, cotangent, arguments):
    import jax

    function = jax.jit(jax_gradients(layer, arguments))
    values = [weight.value for weight in layer.trainable_weights]
    return function(tensors(inputs), values, cotangent)


def jax_gradients(layer, arguments):
    """A pure (inputs, weights, cotangent) -> gradients, to compile or to export."""
    import jax

    def loss(inputs, values, cotangent):
        mapping = list(zip(layer.trainable_weights, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return weighted_sum(layer, inputs, cotangent, arguments)

    return jax.grad(loss, argnums=(0, 1))


def _torch(layer, inputs, cotangent, arguments):
    import torch

    inputs = {name: value.requires_grad_() for name, value in tensors(inputs).items()}
    weights = [weight.value for weight in layer.trainable_weights]
    loss = weighted_sum(layer, inputs, ops.convert_to_tensor(cotangent), arguments)
    names, every = list(inputs), [*inputs.values(), *weights]
    found = torch.autograd.grad(loss, every, allow_unused=True)
    found = [torch.zeros_like(x) if g is None else g for x, g in zip(every, found, strict=True)]
    return dict(zip(names, found, strict=False)), found[len(names) :]


def compiled(layer, **arguments):
    """{argument: array} -> arrays, through XLA on TensorFlow and JAX."""
    function = functools.partial(_apply, layer, arguments)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return lambda inputs: arrays(tf.function(function, jit_compile=True)(tensors(inputs)))
    if keras.backend.backend() == "jax":
        import jax

        return lambda inputs: arrays(jax.jit(function)(tensors(inputs)))
    return lambda inputs: arrays(function(tensors(inputs)))


def _apply(layer, arguments, inputs, masked=()):
    first, *others = inputs
    inputs = {k: keras.layers.Masking()(v) if k in masked else v for k, v in inputs.items()}
    return layer(inputs[first], **{name: inputs[name] for name in others}, **arguments)


def assert_close(got, expected, tolerance=1e-5):
    """Within `tolerance * max(1, max|expected|)`, leaf by leaf."""
    keras.tree.assert_same_structure(got, expected)
    for left, right in zip(keras.tree.flatten(got), keras.tree.flatten(expected), strict=True):
        assert left.shape == right.shape, (left.shape, right.shape)
        assert np.isfinite(right).all() and np.isfinite(left).all()
        if right.size:
            scale = tolerance * max(1.0, np.abs(right).max())
            np.testing.assert_allclose(left, right, rtol=0, atol=scale)
