"""Texts, text pairs and images, from TFDS or from local files, as batches for `fit`.

Importing this package imports no TensorFlow; the functions do.
"""

from keras_tx.data import tokenizers as tokenizers
from keras_tx.data.batches import set_epoch
from keras_tx.data.bits_per_byte import bits_per_byte, covered_text
from keras_tx.data.image_classification import image_classification
from keras_tx.data.language_modeling import language_modeling
from keras_tx.data.text_pairs import text_pairs
from keras_tx.data.train_tokenizer import train_tokenizer

__all__ = [
    "bits_per_byte",
    "covered_text",
    "image_classification",
    "language_modeling",
    "set_epoch",
    "text_pairs",
    "train_tokenizer",
]
