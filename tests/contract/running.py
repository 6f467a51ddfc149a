"""How the checks call a layer, differentiate it and compare, on whichever backend runs.

JAX compiles every operation by itself when it runs eagerly, which costs more than all the rest of
these tests; so there whole functions are compiled.
"""

import inspect
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


class _Mask(keras.layers.Layer):
    def call(self, x, mask=None):
        return mask

    def compute_mask(self, x, previous_mask):
        return None


_mask = _Mask(autocast=False)


def mask_of(x):
    """The mask that Keras attached to a tensor; on tracers of JAX it is no attribute."""
    return _mask(x)


def staged(function, *arguments):
    """`function(*arguments)`, on JAX traced and compiled."""
    if keras.backend.backend() == "jax":
        import jax

        function = jax.jit(function)
    return function(*arguments)


def split(layer, inputs):
    """The first call argument and the others, whatever the order of the dictionary."""
    first, *others = (name for name in inspect.signature(layer.call).parameters if name in inputs)
    return inputs[first], {name: inputs[name] for name in others}


def call_eagerly(layer, inputs, masked=(), **arguments):
    """The layer's result as tensors; `masked` inputs first pass a `Masking`."""
    inputs = {k: keras.layers.Masking()(v) if k in masked else v for k, v in inputs.items()}
    first, others = split(layer, inputs)
    return layer(first, **others, **arguments)


def outputs(layer, inputs, masked=(), **arguments):
    """The same, on JAX compiled as a whole."""
    if keras.backend.backend() == "jax":
        return _jax_outputs(layer, inputs, tuple(masked), arguments)
    return call_eagerly(layer, inputs, masked, **arguments)


def call(layer, inputs, masked=(), **arguments):
    """The same as arrays."""
    return arrays(outputs(layer, inputs, masked, **arguments))


def _jax_outputs(layer, inputs, masked, arguments):
    if not layer.built:
        layer.build(**{f"{name}_shape": np.shape(value) for name, value in inputs.items()})
    flags = {name: value for name, value in arguments.items() if isinstance(value, bool)}
    rest = {name: value for name, value in arguments.items() if name not in flags}

    def function(layer, inputs, rest):
        return call_eagerly(layer, inputs, masked, **rest, **flags)

    run = _jax_compiled(layer, function, ("outputs", masked, *flags.items()))
    result, states = run([v.value for v in layer.variables], tensors(inputs), rest)
    for variable, state in zip(layer.non_trainable_variables, states, strict=True):
        variable.assign(state)
    return result


_jax_functions = weakref.WeakKeyDictionary()  # {layer: {key: compiled function}}
_twins = weakref.WeakKeyDictionary()  # {layer: the one whose compiled functions it uses}


def share_compiled(layer, source):
    """Lets a layer of the same configuration use what was compiled for `source`."""
    _twins[layer] = source


def _jax_compiled(layer, function, key):
    """(values of the variables, ...) -> `function(layer, ...)` and the other variables' new values.

    Compiled once for each layer and key, and by JAX once for each shape.
    """
    import jax

    layer = _twins.get(layer, layer)
    functions, reference = _jax_functions.setdefault(layer, {}), weakref.ref(layer)
    if key not in functions:

        def pure(values, *arguments):
            layer = reference()
            mapping = list(zip(layer.variables, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                result = function(layer, *arguments)
            states = [scope.get_current_value(v) for v in layer.non_trainable_variables]
            return result, states

        functions[key] = jax.jit(pure)
    return functions[key]


def gradients(layer, inputs, cotangent, **arguments):
    """Of `sum(layer(inputs) * cotangent)`: {input: gradient}, [gradient of each weight]."""
    function = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    return arrays(function(layer, inputs, cotangent, arguments))


def weighted_sum(layer, inputs, cotangent, arguments):
    output = call_eagerly(layer, inputs, **arguments)
    return ops.sum(ops.cast(output, "float32") * cotangent)


def _tensorflow(layer, inputs, cotangent, arguments):
    import tensorflow as tf

    inputs = tensors(inputs)
    weights = [weight.value for weight in layer.trainable_weights]
    with tf.GradientTape() as tape:
        tape.watch(list(inputs.values()))
        loss = weighted_sum(layer, inputs, cotangent, arguments)
    found = tape.gradient(loss, [inputs, weights])
    return keras.tree.map_structure(tf.convert_to_tensor, tuple(found))  # of a gather: slices


def _jax(layer, inputs, cotangent, arguments):
    def function(layer, inputs, cotangent, arguments):
        values = [weight.value for weight in layer.trainable_weights]
        return jax_gradients(layer, arguments)(inputs, values, cotangent)

    run = _jax_compiled(layer, function, "gradients")
    return run([v.value for v in layer.variables], tensors(inputs), cotangent, arguments)[0]


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
    every = [*inputs.values(), *weights]
    found = torch.autograd.grad(loss, every, allow_unused=True)
    found = [torch.zeros_like(x) if g is None else g for x, g in zip(every, found, strict=True)]
    return dict(zip(inputs, found, strict=False)), found[len(inputs) :]


def assert_close(got, expected, tolerance=1e-5):
    """Within `tolerance * max(1, max|expected|)`, leaf by leaf."""
    keras.tree.assert_same_structure(got, expected)
    for left, right in zip(keras.tree.flatten(got), keras.tree.flatten(expected), strict=True):
        assert left.shape == right.shape, (left.shape, right.shape)
        assert np.isfinite(right).all() and np.isfinite(left).all()
        if right.size:
            scale = tolerance * max(1.0, np.abs(right).max())
            np.testing.assert_allclose(left, right, rtol=0, atol=scale)
