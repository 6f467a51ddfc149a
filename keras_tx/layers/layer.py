"""What every layer of the library shares."""

import keras

from keras_tx.layers.configurable import Configurable


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


def fresh(initializer):
    """A new initializer like this one: a shared unseeded one repeats its numbers."""
    return keras.initializers.get(initializer).clone()


def known_features(name: str, shape) -> int:
    """The last dimension of the shape of an input, which weights need to know."""
    if shape[-1] is None:
        raise ValueError(
            f"The last dimension of `{name}` must be known. Received: shape {tuple(shape)}"
        )
    return shape[-1]


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


def build_part(layer, *shapes):
    """Builds a layer that may have been passed in, unless it is built already."""
    if not layer.built:
        layer.build(*shapes)


class _AttachedMask(keras.layers.Layer):
    """Gives the mask that Keras attached to its input; None when there is none.

    Keras hands masks to calls that name them `mask`; on tracers of JAX it keeps them in a table of
    its own, where no attribute shows them.
    """

    def call(self, x, mask=None):
        return mask

    def compute_mask(self, x, previous_mask):
        return None  # a mask has none


_attached_mask = _AttachedMask(autocast=False, name="attached_mask")


def resolve_mask(x, padding_mask=None):
    """The explicit padding mask, or else the implicit one that Keras attached to `x`."""
    if padding_mask is not None:
        return padding_mask
    if isinstance(x, keras.KerasTensor):
        return getattr(x, "_keras_mask", None)
    return _attached_mask(x)


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
