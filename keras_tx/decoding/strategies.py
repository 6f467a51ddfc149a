"""Strategies by name."""

from keras_tx.decoding.beam import Beam
from keras_tx.decoding.greedy import Greedy
from keras_tx.decoding.sample import Sample
from keras_tx.decoding.strategy import Strategy

NAMED = {"greedy": Greedy, "sample": Sample, "beam": Beam}


def get(strategy: str | Strategy) -> Strategy:
    """A strategy from itself, or the one of that name with its defaults."""
    if isinstance(strategy, Strategy):
        return strategy
    if isinstance(strategy, str) and strategy in NAMED:
        return NAMED[strategy]()
    names = ", ".join(f'"{name}"' for name in NAMED)
    raise ValueError(f"`strategy` must be {names} or a strategy object. Received: {strategy!r}")
