"""Activations that Keras has no name for."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_tx")
def gelu_tanh(x):
    """GELU by its tanh approximation, as in GPT-2: Hendrycks and Gimpel 2016, section 2."""
    return ops.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="keras_tx")
def quick_gelu(x):
    """GELU by a sigmoid, as in CLIP: Hendrycks and Gimpel 2016, section 2."""
    return x * ops.sigmoid(1.702 * x)


@keras.saving.register_keras_serializable(package="keras_tx")
def squared_relu(x):
    """`max(0, x)^2`: So et al. 2021, "Primer", section 4."""
    return ops.square(ops.relu(x))


NAMED = {function.__name__: function for function in (gelu_tanh, quick_gelu, squared_relu)}


def get(activation):
    """An activation from itself, or its name here or in Keras, where "gelu" is the exact one."""
    if isinstance(activation, str) and activation in NAMED:
        return NAMED[activation]
    return keras.activations.get(activation)
