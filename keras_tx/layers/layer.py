"""What every layer of the library shares."""

import keras

from keras_tx.configurable import Configurable


class Layer(Configurable, keras.layers.Layer):
    """A Keras layer whose configuration is its constructor's."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_spec(self, *args, **kwargs):
        if kwargs.get("return_attention_scores") or kwargs.get("cache") is not None:
            # Traced, for the extras' sake. On PyTorch a trace leaves the weights in float32.
            output, *extras = keras.Operation.compute_output_spec(self, *args, **kwargs)
            return (keras.KerasTensor(output.shape, self.compute_dtype), *extras)
        return super().compute_output_spec(*args, **kwargs)


def known_features(name: str, shape) -> int:
    """The last dimension of the shape of an input, which weights need to know."""
    if shape[-1] is None:
        raise ValueError(
            f"The last dimension of `{name}` must be known. Received: shape {tuple(shape)}"
        )
    return shape[-1]
