"""Checkpoints of other libraries: their configuration as a model, their tensors as its weights.

Provisional: the names here may change until files can be read.

    model = keras_tx.weights.build(config)           # config.json as a dictionary
    keras_tx.weights.assign(model, state, config)    # {name: array}, as in transformers' state dict
"""

from keras_tx.weights.families import assign, build

__all__ = ["assign", "build"]
