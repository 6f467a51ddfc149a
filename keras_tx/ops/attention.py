"""Scaled dot-product attention: Vaswani et al. 2017, Eq. 1."""

from keras import ops

MASKED_SCORE = -1e30


def masked_softmax(scores, mask=None):
    """Softmax over the last axis in float32; masked places, and rows with no other, give 0.

    Args:
        scores: Floating tensor (..., S).
        mask: Boolean, broadcastable to `scores`, True = take part.

    Returns:
        float32 tensor (..., S). Its rows sum to 1, or to 0 where nothing takes part.
    """
    scores = ops.cast(scores, "float32")
    if mask is None:
        return ops.softmax(scores, axis=-1)
    weights = ops.softmax(ops.where(mask, scores, MASKED_SCORE), axis=-1)
    return ops.where(mask, weights, 0.0)


def attention_weights(query, key, mask=None, scale: float | None = None):
    """softmax(scale * query . key) for query heads in groups that share a key head.

    Args:
        query: (B, N, T, H).
        key: (B, K, S, H), K divides N; query head n reads key head n // (N / K).
        mask: Boolean, broadcastable to (B, N, T, S), True = take part.
        scale: Factor of the scores; None is H ** -0.5.

    Returns:
        float32 weights (B, N, T, S).
    """
    if scale is None:
        scale = query.shape[-1] ** -0.5
    query = ops.cast(query, "float32") * scale
    key = ops.cast(key, "float32")
    scores = _per_key_head(query, key.shape[1], lambda q: ops.matmul(q, ops.swapaxes(key, -1, -2)))
    return masked_softmax(scores, mask)


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
