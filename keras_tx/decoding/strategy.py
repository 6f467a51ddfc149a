"""What all strategies share: configuration, parameters as run-time inputs, and three steps."""

import inspect

import keras
from keras import ops

from keras_tx.configurable import Configurable
from keras_tx.decoding import options


class Strategy(Configurable):
    """How tokens are found, from a decoder's logits.

    A strategy works in three steps, all of them pure functions of tensors: `begin` reads the
    prompts, `advance` adds tokens until told to pause, as often as one likes, and `result` says
    what there is. What is kept between them is a dictionary, the progress; it holds at least
    `index` (how many steps were made) and `done` (B,).

    Its parameters are inputs of the compiled loop and no part of it, one value for each row,
    except for those that set a shape. So two programs serve all values: one with the rules, and
    one for strategies that were given none.
    """

    # Constructor arguments that are compiled in.
    static: tuple[str, ...] = ()
    can_stream = True
    # What its own models have, beside the decoder.
    variables: tuple = ()

    def _store(self, arguments: dict):
        """Keeps the constructor's arguments, `locals()` of it, after a check."""
        names = [name for name in arguments if name not in ("self", "__class__")]
        for name in names:
            setattr(self, name, options.plain(arguments[name]))
        self._option_names = [name for name in names if name not in ("rules", *self.static)]
        options.check(self._option_values())
        rules = self.rules
        if not isinstance(rules, (list, tuple)) or not all(callable(rule) for rule in rules):
            raise ValueError(
                "`rules` must be a list of functions `(logits, tokens, step) -> logits`. "
                f"Received: {rules!r}"
            )
        self.rules = tuple(rules)

    def _option_values(self) -> dict:
        values = {name: getattr(self, name) for name in self._option_names}
        if all(values.get(name) is None for name in options.RULES):
            # A third of what XLA compiles for a small model would be the rules.
            return {name: x for name, x in values.items() if name not in options.RULES}
        return values

    def options(self, rows: int, vocabulary_size: int | None = None) -> dict:
        """Its parameters as arrays, {name: (rows, ...)}; ValueError unless they are for `rows`."""
        return options.arrays(self._option_values(), rows, vocabulary_size)

    def constant_options(self, batch) -> dict:
        """The same for a batch of any size, as tensors: only what does something."""
        values = {name: x for name, x in self._option_values().items() if x is not None}
        return {
            name: ops.broadcast_to(ops.convert_to_tensor(x), (batch, *x.shape[1:]))
            for name, x in options.arrays(values, 1).items()
        }

    @property
    def compiled_in(self) -> tuple:
        """What another program would be needed for; strategies with the same share one."""
        rules = tuple(rule if _is_hashable(rule) else _Itself(rule) for rule in self.rules)
        return (type(self), rules, *[getattr(self, name) for name in self.static])

    def get_config(self):
        config = super().get_config()
        if "rules" in config:
            config["rules"] = [keras.saving.serialize_keras_object(rule) for rule in self.rules]
        return config

    def __repr__(self):
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(type(self)).parameters.items()
        }
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, default in defaults.items()
            if getattr(self, name) is not default and getattr(self, name) != default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def begin(self, decoder, request) -> dict:
        """Reads the prompts: the progress before the first token."""
        raise NotImplementedError

    def advance(self, decoder, request, progress: dict, until) -> dict:
        """The progress after `until` steps in all, or fewer if every row is done."""
        raise NotImplementedError

    def result(self, decoder, request, progress: dict) -> dict:
        """Tensors of what was found, each with a row for each prompt.

        `token_ids` (B, max_new_tokens) int32, the end token not in it; `lengths` (B,) int32;
        `scores` (B,) float32; and what the decoder reads from its last state.
        """
        raise NotImplementedError


def _is_hashable(rule):
    return type(rule).__hash__ is not None


class _Itself:
    """Stands for an object that has no hash, and is equal to itself alone."""

    def __init__(self, rule):
        self.rule = rule

    def __eq__(self, other):
        return isinstance(other, _Itself) and self.rule is other.rule

    def __hash__(self):
        return id(self.rule)
