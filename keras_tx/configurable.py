"""Configuration read off the constructor, so that it can never drift from it."""

import functools
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


def _with_plain_numbers(constructor):
    """The constructor, to which numpy's numbers, as sweeps and tables have them, are Python's."""

    def plain(value):
        return value.item() if isinstance(value, np.generic) else value

    @functools.wraps(constructor)
    def construct(self, *arguments, **keywords):
        keywords = {name: plain(value) for name, value in keywords.items()}
        constructor(self, *map(plain, arguments), **keywords)

    construct.__signature__ = inspect.signature(constructor)  # Keras looks no deeper
    return construct


def _deserialize(value):
    if isinstance(value, (list, tuple)):
        return [_deserialize(item) for item in value]
    if isinstance(value, dict) and "class_name" in value:
        return keras.saving.deserialize_keras_object(value)
    return value


def misplaced(names, of: str, to: str) -> dict[str, str]:
    """{name: advice} for arguments of something that is not made here: give them elsewhere."""
    *others, last = [f"`{name}`" for name in names]
    listed = f"{', '.join(others)} and {last} are" if others else f"{last} is"
    return dict.fromkeys(names, f"{listed} for {of}: give {'them' if others else 'it'} to {to}.")


class Configurable:
    """`get_config` and `from_config` for layers, models and what they take, from `__init__`.

    Each constructor argument is stored as an attribute of its own name, or, where the attribute
    holds something made from it, handed to `_remember`.
    """

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            cls.__init__ = _with_plain_numbers(cls.__init__)

    def _remember(self, **arguments):
        """Keeps constructor arguments as given, out of Keras' tracking of attributes."""
        object.__setattr__(self, "_remembered", {**self._arguments_kept(), **arguments})

    def _arguments_kept(self):
        return self.__dict__.get("_remembered", {})

    def _argument(self, name: str):
        """A constructor argument as it was given."""
        kept = self._arguments_kept()
        return kept[name] if name in kept else getattr(self, name)

    def _is_known(self, name: str) -> bool:
        return name in self._arguments_kept() or hasattr(self, name)

    @classmethod
    def _constructor_arguments(cls) -> dict:
        """{name: default}"""
        parameters = inspect.signature(cls.__init__).parameters.values()
        various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        kept = [p for p in parameters if p.name != "self" and p.kind not in various]
        return {p.name: p.default for p in kept}

    @classmethod
    def _inherited_arguments(cls) -> dict:
        """The same with those of the classes that it inherits from."""
        found = {}
        for base in reversed(cls.__mro__):
            if issubclass(base, Configurable):
                found.update(base._constructor_arguments())
        return found

    @classmethod
    def _without_effect(cls, arguments: dict) -> dict[str, str]:
        """{name: what to do instead} of arguments that do nothing beside these others."""
        return {}

    def _refuse_without_effect(self):
        """Raises ValueError for an argument that does nothing and is not the default."""
        defaults = self._inherited_arguments()
        # A subclass may store its own later.
        known = [name for name in defaults if self._is_known(name)]
        arguments = {**defaults, **{name: self._argument(name) for name in known}}
        idle = {
            name: advice
            for name, advice in self._without_effect(arguments).items()
            if arguments[name] is not defaults[name] and arguments[name] != defaults[name]
        }
        if idle:
            received = ", ".join(f"{name}={arguments[name]!r}" for name in idle)
            advice = " ".join(dict.fromkeys(idle.values()))
            raise ValueError(f"{advice} Received: {received}")

    def get_config(self):
        config = getattr(super(), "get_config", dict)()  # of Keras, for layers and models
        for name in self._constructor_arguments():
            config[name] = _serialize(self._argument(name))
        return config

    @classmethod
    def from_config(cls, config):
        arguments = {name: _deserialize(value) for name, value in config.items()}
        for name in cls._without_effect({**cls._inherited_arguments(), **arguments}):
            arguments.pop(name, None)  # a file of a release that took it and did nothing
        return cls(**arguments)
