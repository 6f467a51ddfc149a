"""Values and gradients of a function of arrays, on whichever backend runs."""

import keras
from keras import ops

from tests.contract.running import arrays


def pull_back(function, inputs, upstream):
    """The function's result and the gradients of its inputs, as arrays.

    Args:
        function: Of keyword tensors.
        inputs: {name: floating array or tensor}.
        upstream: Gradient of the result.
    """
    inputs = {name: ops.convert_to_tensor(x) for name, x in inputs.items()}
    gradients = GRADIENTS[keras.backend.backend()]
    if keras.backend.backend() == "jax":
        import jax

        gradients = jax.jit(gradients, static_argnums=0)
    result, gradients = gradients(function, inputs, ops.convert_to_tensor(upstream))
    return arrays(result), arrays(gradients)


def _tensorflow(function, inputs, upstream):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = function(**inputs)
    return result, tape.gradient(result, inputs, output_gradients=upstream)


def _jax(function, inputs, upstream):
    import jax

    result, pull = jax.vjp(lambda inputs: function(**inputs), inputs)
    return result, pull(upstream)[0]


def _torch(function, inputs, upstream):
    import torch

    inputs = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    result = function(**inputs)
    gradients = torch.autograd.grad(result, list(inputs.values()), upstream)
    return result.detach(), dict(zip(inputs, gradients, strict=True))


# {backend: gradients(function, inputs, upstream) -> result, gradients of the inputs by name}
GRADIENTS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
