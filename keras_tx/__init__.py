"""Attention and transformer layers and models for Keras 3, from data to a served model."""

from keras_tx import layers
from keras_tx.version import __version__

__all__ = ["__version__", "layers"]
