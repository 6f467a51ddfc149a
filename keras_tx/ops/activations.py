"""Activations that Keras has no name for."""

import keras


@keras.saving.register_keras_serializable(package="keras_tx")
def gelu_tanh(x):
    """GELU by its tanh approximation, as in GPT-2: Hendrycks and Gimpel 2016, section 2."""
    return keras.ops.gelu(x, approximate=True)


def get(activation):
    """An activation function from itself, its name in Keras, or "gelu_tanh"."""
    return gelu_tanh if activation == "gelu_tanh" else keras.activations.get(activation)
