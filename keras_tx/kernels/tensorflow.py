"""TensorFlow."""

import tensorflow as tf


def compiled(function, variables):
    """`function` traced once for each shape of its arguments; changed variables are seen."""
    del variables  # a traced function refers to them
    return tf.function(function, autograph=False)
