"""Layers inside layers: made, built and cloned by their owner."""

import keras
from keras import ops


def fresh(initializer):
    """A new initializer like this one: a shared unseeded one repeats its numbers."""
    return keras.initializers.get(initializer).clone()


def dense(owner, units: int, name: str, input_dim: int, use_bias: bool | None = None):
    """A built Dense with the owner's `use_bias`, `kernel_initializer` and dtype policy."""
    layer = keras.layers.Dense(
        units,
        use_bias=owner.use_bias if use_bias is None else use_bias,
        kernel_initializer=fresh(owner.kernel_initializer),
        name=name,
        dtype=owner.dtype_policy,
    )
    layer.build((None, None, input_dim))
    return layer


def project(layer, x):
    """layer(x) for x (B, T, D); with one token a row as a product of two matrices.

    Of three dimensions, where some are unknown, TensorFlow works the shapes out at every call.
    """
    if len(x.shape) == 3 and x.shape[1] == 1:
        return ops.expand_dims(layer(ops.squeeze(x, axis=1)), axis=1)
    return layer(x)


def build_part(layer, *shapes):
    """Builds a layer that may have been passed in, unless it is built already."""
    if not layer.built:
        layer.build(*shapes)


def clone(layer, name: str, dtype=None):
    """A new unbuilt layer of the same configuration, its parts included.

    Args:
        layer: The template.
        name: The clone's name.
        dtype: Dtype policy for the clone and its parts; None keeps the template's.
    """
    config = keras.saving.serialize_keras_object(layer)
    _make_own(config, None if dtype is None else keras.saving.serialize_keras_object(dtype))
    config["config"]["name"] = name
    return keras.saving.deserialize_keras_object(config)


def _make_own(config, dtype):
    """Takes out what ties a configuration to its layer: being built, and being shared.

    While a model is loaded, Keras marks what is serialized twice and hands out one object for it.
    """
    if isinstance(config, dict):
        config.pop("build_config", None)
        config.pop("shared_object_id", None)
        for key, value in config.items():
            if key == "dtype" and "name" in config and dtype is not None:
                config[key] = dtype
            else:
                _make_own(value, dtype)
    elif isinstance(config, list):
        for item in config:
            _make_own(item, dtype)
