"""Biases of attention scores that depend on the distance of query and key alone."""

import functools

import numpy as np
from keras import ops


def alibi_slopes(num_heads: int):
    """2 ** (-8 n / N) for the heads n = 1 ... N, numpy float64 (N,). Press et al. 2022.

    Where N is no power of two: the slopes of the next smaller one, then every other slope of the
    next larger one, as in the paper's code.
    """
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = 2.0 ** (-8 / power * np.arange(1, power + 1))
    finer = 2.0 ** (-4 / power * np.arange(1, 2 * power, 2))
    return np.concatenate([slopes, finer[: num_heads - power]])


def relative_buckets(
    distance, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
):
    """T5's buckets: near distances have one each, farther ones share, logarithmically.

    Raffel et al. 2020, section 2.1. Of the buckets for one side the first half is of one distance
    each; the others grow by a constant factor up to `max_distance`, and the last one holds all
    that is farther.

    Args:
        distance: Integers, query place minus key place.
        num_buckets: Number of buckets.
        max_distance: From here on all is one bucket.
        bidirectional: Whether keys after the query have the second half of the buckets, or all
            share bucket 0 with distance 0.

    Returns:
        int32 like `distance`.
    """
    sides = 2 if bidirectional else 1
    buckets = _one_sided(num_buckets // sides, max_distance)
    buckets = ops.convert_to_tensor(buckets, "int32")
    distance = ops.cast(distance, "int32")
    far = ops.abs(distance) if bidirectional else ops.maximum(distance, 0)
    found = ops.take(buckets, ops.minimum(far, max_distance))
    if bidirectional:
        found = found + ops.where(ops.less(distance, 0), num_buckets // 2, 0)
    return found


@functools.cache
def _one_sided(num_buckets: int, max_distance: int):
    """Bucket of each distance 0 ... max_distance, numpy int32.

    floor(log(d / exact) / log(max_distance / exact) * rest) + exact, by integers alone: where the
    quotient is a whole number a rounded logarithm may fall short of it.
    """
    exact = num_buckets // 2
    rest = num_buckets - exact

    def reaches(distance, step):
        return distance**rest * exact**step >= max_distance**step * exact**rest

    buckets, bucket = list(range(exact)), exact
    for distance in range(exact, max_distance + 1):
        while bucket + 1 < num_buckets and reaches(distance, bucket + 1 - exact):
            bucket += 1
        buckets.append(bucket)
    return np.array(buckets, "int32")
