"""The token loop and its strategies."""

from keras_tx.decoding.beam import Beam
from keras_tx.decoding.greedy import Greedy
from keras_tx.decoding.loop import generate_tokens
from keras_tx.decoding.request import Request
from keras_tx.decoding.sample import Sample
from keras_tx.decoding.speculative import Speculative
from keras_tx.decoding.strategies import get

__all__ = ["Beam", "Greedy", "Request", "Sample", "Speculative", "generate_tokens", "get"]
