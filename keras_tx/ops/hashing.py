"""Random numbers that are functions of integers: the same on every backend, in any order."""

from keras import ops


def uniform(seed, place):
    """A number in [0, 1) for each pair of integers.

    Equal bit for bit on all backends and under XLA. Pairs that differ in either number, also by
    one, have nothing to do with each other.

    Args:
        seed, place: int32 tensors that broadcast against each other.

    Returns:
        float32 tensor of the broadcast shape, a multiple of 2**-24.
    """
    seed, place = ops.cast(seed, "int32"), ops.cast(place, "int32")
    number = mix(ops.bitwise_xor(mix(seed + 0x5851F42D), mix(place + 0x2545F491)))
    return ops.cast(shift(number, 8), "float32") * 2.0**-24


def seed_number(seed):
    """An int32 scalar of a Keras seed, (2,) integers."""
    seed = ops.cast(seed, "int32")
    return mix(mix(seed[0]) + seed[1])


def mix(x):
    """A bijection of int32 that spreads each bit over all (Wellons 2018, "lowbias32")."""
    x = ops.bitwise_xor(x, shift(x, 16)) * 0x21F0AAAD
    x = ops.bitwise_xor(x, shift(x, 15)) * 0x735A2D97
    return ops.bitwise_xor(x, shift(x, 15))


def shift(x, count: int):
    """To the right, zeros from the left."""
    return ops.bitwise_and(ops.right_shift(x, count), 2 ** (32 - count) - 1)
