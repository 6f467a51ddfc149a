"""The two normalizations, by name."""

import keras

NORMALIZATIONS = ("layer", "rms")


def check_normalization(kind: str):
    if kind not in NORMALIZATIONS:
        raise ValueError(f"`normalization` must be one of {NORMALIZATIONS}. Received: {kind!r}")


def make_normalization(kind: str, name: str, epsilon: float, dtype, hidden_dim: int):
    """A built LayerNormalization ("layer") or RMSNormalization ("rms")."""
    check_normalization(kind)
    layer_class = {
        "layer": keras.layers.LayerNormalization,
        "rms": keras.layers.RMSNormalization,
    }[kind]
    layer = layer_class(epsilon=epsilon, name=name, dtype=dtype)
    layer.supports_masking = True  # RMSNormalization would warn that it drops the mask
    layer.build((None, None, hidden_dim))
    return layer
