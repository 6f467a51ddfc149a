"""Dropout whose mask is a function of a seed and a place, so that any part can be made again."""

from keras import ops

from keras_tx.ops.hashing import mix


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
    by_row = mix(mix(groups * 0x632BE5AB + seed) + rows * 0x2545F491)
    by_column = mix(columns * 0x1B873593 + ops.bitwise_xor(seed, 0x5851F42D))
    number = mix(ops.bitwise_xor(by_row, by_column))  # any int32, equally likely
    return number >= int(rate * 2.0**32) - 2**31
