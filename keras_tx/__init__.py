"""Attention and transformer layers and models for Keras 3, from data to a served model."""

from keras_tx import data, decoding, layers, models
from keras_tx.models import GPT, ViT
from keras_tx.version import __version__

__all__ = ["GPT", "ViT", "__version__", "data", "decoding", "layers", "models"]
