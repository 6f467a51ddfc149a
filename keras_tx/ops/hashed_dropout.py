"""Dropout whose mask is a function of a seed and a place, so that any part can be made again."""

from keras import ops


def keep_mask(seed, rate: float, groups, rows, columns):
    """Which attention weights stay: each with probability 1 - rate, the same whoever asks.

    Args:
        seed: int32 scalar.
        rate: Fraction dropped.
        groups, rows, columns: int32 tensors that broadcast against each other: which head of which
            batch row, which query, which key. `columns` is the last axis.

    Returns:
        Boolean tensor of the broadcast shape.
    """
    by_row = _mix(_mix(groups * 0x632BE5AB + seed) + rows * 0x2545F491)
    by_column = _mix(columns * 0x1B873593 + ops.bitwise_xor(seed, 0x5851F42D))
    number = _mix(ops.bitwise_xor(by_row, by_column))  # any int32, equally likely
    return number >= int(rate * 2.0**32) - 2**31


def seed_number(seed):
    """An int32 scalar of a Keras seed, (2,) integers."""
    seed = ops.cast(seed, "int32")
    return _mix(_mix(seed[0]) + seed[1])


def _mix(x):
    """A bijection of int32 that spreads each bit over all (Wellons 2018, "lowbias32")."""
    x = ops.bitwise_xor(x, _shift(x, 16)) * 0x21F0AAAD
    x = ops.bitwise_xor(x, _shift(x, 15)) * 0x735A2D97
    return ops.bitwise_xor(x, _shift(x, 15))


def _shift(x, count: int):
    """To the right, zeros from the left."""
    return ops.bitwise_and(ops.right_shift(x, count), 2 ** (32 - count) - 1)
