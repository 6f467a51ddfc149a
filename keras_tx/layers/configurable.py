"""Configuration read off the constructor, so that it can never drift from it."""

import inspect

import keras
import numpy as np


def _serialize(value):
    if isinstance(value, (list, tuple)):
        return [_serialize(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if inspect.isfunction(value):
        return keras.activations.serialize(value)
    config = keras.saving.serialize_keras_object(value)
    config.pop("build_config", None)  # a part is built by its owner
    return config


def _deserialize(value):
    if isinstance(value, (list, tuple)):
        return [_deserialize(item) for item in value]
    if isinstance(value, dict) and "class_name" in value:
        return keras.saving.deserialize_keras_object(value)
    return value


class Configurable:
    """`get_config` and `from_config` for Keras layers and models, from `__init__`'s signature.

    Each constructor argument is stored as an attribute of its own name, or, where the attribute
    holds something made from it, handed to `_remember`.
    """

    def _remember(self, **arguments):
        """Keeps constructor arguments as given, out of Keras' tracking of attributes."""
        object.__setattr__(self, "_remembered", {**self._arguments_kept(), **arguments})

    def _arguments_kept(self):
        return self.__dict__.get("_remembered", {})

    @classmethod
    def _constructor_arguments(cls) -> list[str]:
        parameters = inspect.signature(cls.__init__).parameters.values()
        return [p.name for p in parameters if p.name != "self" and p.kind != p.VAR_KEYWORD]

    def get_config(self):
        config = super().get_config()
        kept = self._arguments_kept()
        for name in self._constructor_arguments():
            config[name] = _serialize(kept[name] if name in kept else getattr(self, name))
        return config

    @classmethod
    def from_config(cls, config):
        return cls(**{name: _deserialize(value) for name, value in config.items()})
