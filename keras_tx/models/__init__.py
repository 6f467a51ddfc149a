"""Models that fit, generate, save and export."""

from keras_tx.models.gpt import GPT
from keras_tx.models.vit import ViT

__all__ = ["GPT", "ViT"]
