import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_tx")
class Greedy:
    """Takes the most probable token at every step.

    Example:
        >>> import numpy as np
        >>> int(Greedy()(np.array([[0.1, 2.0, 0.3]]))[0])
        1
    """

    def __call__(self, logits):
        """The chosen token of each row: logits (B, V) -> int32 (B,)."""
        return ops.cast(ops.argmax(logits, axis=-1), "int32")

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def get(strategy):
    """A strategy object from itself or from its name."""
    if strategy == "greedy":
        return Greedy()
    if isinstance(strategy, Greedy):
        return strategy
    raise ValueError(f'`strategy` must be "greedy" or a strategy object. Received: {strategy!r}')
