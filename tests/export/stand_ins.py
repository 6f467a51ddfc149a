"""Small models for the tests of exporting, importable by the process that rebuilds them."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="stand_ins")
class Scale(keras.layers.Layer):
    """Times a weight; breaks where `breaks` says so, to see an error cross the process."""

    def __init__(self, breaks=False, **kwargs):
        super().__init__(**kwargs)
        self.breaks = breaks

    def build(self, inputs_shape):
        self.factor = self.add_weight(shape=inputs_shape[-1:], initializer="random_normal")

    def call(self, inputs):
        if self.breaks and keras.backend.backend() == "tensorflow":
            raise TypeError("this layer breaks on TensorFlow")
        return inputs * self.factor

    def get_config(self):
        return {**super().get_config(), "breaks": self.breaks}


class SlicedUpdate(keras.layers.Layer):
    """Emits an XLA operation on TensorFlow."""

    def call(self, inputs):
        return ops.slice_update(inputs, (0, 1), inputs[:, :1] * 2.0)


class CallsPython(keras.layers.Layer):
    """Emits an operation that calls back into Python."""

    def call(self, inputs):
        import tensorflow as tf

        return tf.ensure_shape(tf.numpy_function(lambda x: x + 1, [inputs], tf.float32), (None, 5))


def dense(breaks=False):
    inputs = keras.Input((5,), name="features")
    outputs = keras.layers.Dense(3, name="logits")(Scale(breaks=breaks)(inputs))
    return keras.Model(inputs, outputs, name="dense")


def through(layer, shape=(5,)):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layer(inputs))
