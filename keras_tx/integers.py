"""Integers as arguments, Python's or numpy's."""

import numpy as np


def is_integer(value) -> bool:
    """Whether it is an integer; True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def positive_integer(name: str, value) -> int:
    """The value as a Python integer.

    Args:
        name: The argument that it is, for the error.

    Raises:
        ValueError: If it is no integer from 1 up.
    """
    if not is_integer(value) or value < 1:
        raise ValueError(f"`{name}` must be a positive integer. Received: {value!r}")
    return int(value)
