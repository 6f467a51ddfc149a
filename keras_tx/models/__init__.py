"""Models that fit, generate, save and export."""

from keras_tx.models.gpt import GPT
from keras_tx.models.seq2seq import Seq2Seq
from keras_tx.models.vit import ViT

__all__ = ["GPT", "Seq2Seq", "ViT"]
