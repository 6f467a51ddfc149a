"""Scaled dot-product attention with all scores at once: Vaswani et al. 2017, Eq. 1."""

from keras import ops

from keras_tx import kernels
from keras_tx.ops.attention_mask import AttentionMask, dense_mask, query_place
from keras_tx.ops.distance_bias import bias_matrix, toeplitz
from keras_tx.ops.hashed_dropout import keep_mask
from keras_tx.ops.scoring import Scoring
from keras_tx.ops.softmax import at_least_float32, masked_softmax

FEW_QUERIES = 16


def dense_attention(query, key, value, mask: AttentionMask, scoring: Scoring):
    """softmax(scores) value, and the weights.

    Args:
        query: (B, N, T, H).
        key: (B, K, S, H), K divides N; query head n reads key head n // (N / K).
        value: (B, K, S, H').
        mask, scoring: What is visible, and how scores come about.

    Returns:
        (B, N, T, H') in the dtype of `value`, and float32 weights (B, N, T, S) before dropout.
    """
    num_queries, num_keys = ops.shape(query)[2], ops.shape(key)[2]
    scores = _scores(query, key, scoring)
    bias = pair_bias(mask, scoring, num_queries, num_keys)
    if bias is not None:
        scores = scores + ops.cast(bias, scores.dtype)
    sinks = None if scoring.sinks is None else scoring.sinks[:, None, None]
    weights = masked_softmax(
        scores,
        dense_mask(mask, num_queries, num_keys),
        sinks,
        mask.may_hide_all(num_queries, num_keys),
    )
    return weighted_values(_dropped(weights, scoring), value), weights


def _scores(query, key, scoring):
    query = at_least_float32(query) * scoring.scale_for(query.shape[-1])
    key = at_least_float32(key)
    is_few = isinstance(query.shape[2], int) and query.shape[2] <= FEW_QUERIES
    product = kernels.products_of_few if is_few else _products
    return scoring.capped(_per_key_head(query, key.shape[1], lambda q: product(q, key)))


def _products(query, key):
    return ops.matmul(query, ops.swapaxes(key, -1, -2))


def pair_bias(mask: AttentionMask, scoring: Scoring, num_queries, num_keys):
    """What is added to the score of each pair, (B or 1, N or 1, T, S); None when nothing is."""
    if scoring.distance_bias is None:
        return scoring.bias
    bias = _distance_bias(scoring.distance_bias, mask, num_queries, num_keys)
    return bias if scoring.bias is None else bias + ops.cast(scoring.bias, bias.dtype)


def _distance_bias(table, mask, num_queries, num_keys):
    """Of (1 or B, N, T, S)."""
    sizes = (num_queries, num_keys)
    if mask.offset is None and all(isinstance(size, int) and size > 0 for size in sizes):
        zero = table.shape[1] // 2  # from 1 - T to S - 1
        return toeplitz(table[:, zero + 1 - num_queries : zero + num_keys], *sizes)[None]
    return bias_matrix(table, query_place(mask, *sizes), num_keys)


def _dropped(weights, scoring):
    if not scoring.dropout:
        return weights
    batch, heads, queries, keys = ops.shape(weights)
    kept = keep_mask(
        scoring.seed,
        scoring.dropout,
        ops.reshape(ops.arange(batch * heads, dtype="int32"), (batch, heads, 1, 1)),
        ops.arange(queries, dtype="int32")[:, None],
        ops.arange(keys, dtype="int32"),
    )
    return ops.where(kept, weights / (1.0 - scoring.dropout), 0.0)


def weighted_values(weights, value):
    """sum_s weights[..., s] * value[..., s, :].

    Args:
        weights: (B, N, T, S).
        value: (B, K, S, H), K divides N.

    Returns:
        (B, N, T, H) in the dtype of `value`.
    """
    weights = ops.cast(weights, value.dtype)
    return _per_key_head(weights, value.shape[1], lambda w: ops.matmul(w, value))


def _per_key_head(x, num_key_value_heads, product):
    """Applies a batched product to x (B, N, T, ...) folded to (B, K, N/K * T, ...)."""
    if x.shape[1] == num_key_value_heads:
        return product(x)
    num_heads, (batch, length) = x.shape[1], (ops.shape(x)[0], ops.shape(x)[2])
    groups = num_heads // num_key_value_heads
    folded = ops.reshape(x, (batch, num_key_value_heads, groups * length, ops.shape(x)[3]))
    result = product(folded)
    return ops.reshape(result, (batch, num_heads, length, ops.shape(result)[3]))
