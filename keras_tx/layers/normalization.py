"""Normalizations: the two with a name, or any layer."""

import keras

from keras_tx.layers.parts import clone

NORMALIZATIONS = {
    "layer": keras.layers.LayerNormalization,
    "rms": keras.layers.RMSNormalization,
}


def check_normalization(kind):
    if isinstance(kind, keras.layers.Layer) or (isinstance(kind, str) and kind in NORMALIZATIONS):
        return
    raise ValueError(
        f"`normalization` must be one of {tuple(NORMALIZATIONS)} or a layer. Received: {kind!r}"
    )


def make_normalization(kind, name: str, epsilon: float, dtype, hidden_dim: int):
    """A built LayerNormalization ("layer"), RMSNormalization ("rms"), or clone of a layer.

    It computes in float32 with float32 weights: what it is called on must have the compute dtype.
    """
    check_normalization(kind)
    if isinstance(kind, str):
        layer = NORMALIZATIONS[kind](epsilon=epsilon, name=name, dtype=dtype)
    else:
        layer = clone(kind, name, dtype)
    layer.autocast = False  # Keras would round the gain and the bias to the compute dtype
    layer.supports_masking = True  # RMSNormalization would warn that it drops the mask
    layer.build((None, None, hidden_dim))
    return layer
