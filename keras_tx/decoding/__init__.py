"""The token loop and its strategies."""

from keras_tx.decoding.greedy import Greedy, get
from keras_tx.decoding.loop import generate_tokens

__all__ = ["Greedy", "generate_tokens", "get"]
