"""The parameters of strategies as inputs of the compiled loop: one value for each row."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_tx.decoding.buckets import bucket
from keras_tx.integers import is_integer

NOBODY = -1  # no token
LARGEST = 2**31 - 1
LARGEST_FLOAT = float(np.finfo("float32").max)
# Of penalties: what a long text makes of them, summed up by beams, is finite.
LEAST, MOST = float(np.float32(1e-20)), float(np.float32(1e20))


class Option(NamedTuple):
    """One number a row.

    Args:
        neutral: Does nothing.
        expected: What a value must be, for the error.
        holds: Whether a number is that.
        dtype: Of the array.
    """

    neutral: Any
    expected: str
    holds: Callable
    dtype: str = "float32"


NUMBERS = {
    "repetition_penalty": Option(
        1.0, "a number above 0, from 1e-20 to 1e20", lambda x: LEAST <= x <= MOST
    ),
    "frequency_penalty": Option(0.0, "a number from -1e20 to 1e20", lambda x: abs(x) <= MOST),
    "presence_penalty": Option(0.0, "a number from -1e20 to 1e20", lambda x: abs(x) <= MOST),
    "no_repeat_ngram_size": Option(0, "an integer from 0 up", lambda x: x >= 0, "int32"),
    "min_new_tokens": Option(0, "an integer from 0 up", lambda x: x >= 0, "int32"),
    "temperature": Option(1.0, "a number from 0 up", lambda x: x >= 0),
    "top_k": Option(0, "an integer from 0 up", lambda x: x >= 0, "int32"),
    "top_p": Option(1.0, "a number from 0 to 1", lambda x: 0 <= x <= 1),
    "min_p": Option(0.0, "a number from 0 to 1", lambda x: 0 <= x <= 1),
    "typical_p": Option(1.0, "a number above 0, up to 1", lambda x: 0 < x <= 1),
    "length_penalty": Option(1.0, "a finite number", lambda x: True),
    "early_stopping": Option(False, "True or False", lambda x: True, "bool"),
}
# Lists of ids: a row of the array is -1 behind them.
TOKENS = ("banned_tokens", "forced_tokens")

# Those that work on logits, in the order in which they do.
PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
RULES = (
    *PENALTIES,
    "no_repeat_ngram_size",
    "banned_tokens",
    "min_new_tokens",
    "forced_tokens",
)
FILTERS = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def check(values: dict):
    """Refuses what is out of range.

    Args:
        values: {name: None for the neutral value, one value for all rows, or one for each}.

    Raises:
        ValueError: What was expected, what was received.
    """
    for name, value in values.items():
        _lists(name, value) if name in TOKENS else _numbers(name, value)


def arrays(values: dict, rows: int, vocabulary_size: int | None = None) -> dict:
    """The values as arrays with a row for each prompt.

    Args:
        values: As for `check`.
        rows: How many prompts there are.
        vocabulary_size: How many ids there are, if known.

    Returns:
        {name: (rows,), or (rows, M) int32 for lists of ids, with M a power of two so that few
        shapes are ever compiled}.

    Raises:
        ValueError: If a value is out of range, an id unknown, or there are not `rows` values.
    """
    return {
        name: _token_array(name, value, rows, vocabulary_size)
        if name in TOKENS
        else _number_array(name, value, rows)
        for name, value in values.items()
    }


def _numbers(name, value):
    """A number for all rows, or a list with one for each, checked."""
    value, neutral = plain(value), NUMBERS[name].neutral
    is_list = isinstance(value, (list, tuple))
    numbers = [neutral if number is None else number for number in (value if is_list else [value])]
    if not all(_is_right(name, number) for number in numbers):
        raise ValueError(
            f"`{name}` must be {NUMBERS[name].expected}, a list with one for each row, or "
            f"None, which does nothing. Received: {value!r}"
        )
    return numbers if is_list else numbers[0]


def _is_right(name, number):
    option = NUMBERS[name]
    if option.dtype == "bool" or isinstance(number, (bool, np.bool_)):
        return option.dtype == "bool" and isinstance(number, (bool, np.bool_))
    if option.dtype == "int32":
        return is_integer(number) and option.holds(number) and number <= LARGEST
    if not isinstance(number, (int, float, np.integer, np.floating)):
        return False
    # As the program will see it, in float32.
    return abs(number) <= LARGEST_FLOAT and option.holds(float(np.float32(number)))


def _number_array(name, value, rows):
    value = _numbers(name, value)
    if isinstance(value, (list, tuple)) and len(value) != rows:
        raise ValueError(
            f"`{name}` must be one value for all rows or a list with one for each of the {rows}. "
            f"Received: {len(value)} values"
        )
    return np.broadcast_to(np.array(value, NUMBERS[name].dtype), (rows,)).copy()


def _lists(name, value, vocabulary_size=None):
    """The ids for all rows, or a list of ids for each; -1 for a place that is free. Checked."""
    value = [] if value is None else plain(value)
    is_list = isinstance(value, (list, tuple))
    is_nested = is_list and any(isinstance(ids, (list, tuple)) for ids in value)
    lists = value if is_nested else [value]
    most = LARGEST if vocabulary_size is None else vocabulary_size - 1
    if not all(isinstance(ids, (list, tuple)) for ids in lists) or not all(
        _is_id(token, most) or (token is None and name == "forced_tokens")
        for ids in lists
        for token in ids
    ):
        size = "up" if vocabulary_size is None else f"to {most}"
        free = ", None where the choice is free" if name == "forced_tokens" else ""
        raise ValueError(
            f"`{name}` must be a list of ids from 0 {size}{free}, or a list of such lists with one "
            f"for each row. Received: {value!r}"
        )
    lists = [[NOBODY if token is None else int(token) for token in ids] for ids in lists]
    return lists if is_nested else lists[0]


def _is_id(token, most):
    return is_integer(token) and 0 <= token <= most


def _token_array(name, value, rows, vocabulary_size):
    value = _lists(name, value, vocabulary_size)
    lists = value if value and isinstance(value[0], list) else [value] * rows
    if len(lists) != rows:
        raise ValueError(
            f"`{name}` must be a list of ids for all rows or a list of ids for each of the {rows}. "
            f"Received: {len(lists)} lists"
        )
    ids = np.full((rows, bucket(max(map(len, lists), default=0))), NOBODY, "int32")
    for row, tokens in zip(ids, lists, strict=True):
        row[: len(tokens)] = tokens
    return ids


def plain(value):
    """Numbers and lists from arrays, tensors, and lists of them; all else as it is."""
    if ops.is_tensor(value):
        value = ops.convert_to_numpy(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
