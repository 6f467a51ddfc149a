"""Attention and transformer layers and models for Keras 3, from data to a served model."""

from keras_tx import analysis, data, decoding, layers, models
from keras_tx.export import publish
from keras_tx.models import GPT, Seq2Seq, ViT
from keras_tx.version import __version__

__all__ = [
    "GPT",
    "Seq2Seq",
    "ViT",
    "__version__",
    "analysis",
    "data",
    "decoding",
    "layers",
    "models",
    "publish",
]
