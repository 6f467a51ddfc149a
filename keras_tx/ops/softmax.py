"""A softmax with places that take no part."""

import keras
from keras import ops

MASKED_SCORE = -1e30


def masked_softmax(scores, mask=None, sinks=None, may_hide_all: bool = True):
    """Softmax over the last axis in float32; masked places, and rows with no other, give 0.

    Args:
        scores: Floating tensor (..., S).
        mask: Boolean, broadcastable to `scores`, True = take part.
        may_hide_all: False if each row is known to have a place that takes part.
        sinks: Scores (..., 1) of one more place for each row, whose weight is not returned.

    Returns:
        float32 tensor (..., S). Without sinks its rows sum to 1, or to 0 where nothing takes part.
    """
    scores = at_least_float32(scores)
    if mask is not None:
        scores = ops.where(mask, scores, MASKED_SCORE)
    if sinks is None:
        weights = ops.softmax(scores, axis=-1)
    else:
        sinks = ops.cast(sinks, scores.dtype)
        top = ops.max(scores, axis=-1, keepdims=True, initial=MASKED_SCORE)  # also where S is 0
        top = ops.maximum(top, sinks)
        top = ops.stop_gradient(top)
        weights = ops.exp(scores - top)
        weights = weights / (ops.sum(weights, axis=-1, keepdims=True) + ops.exp(sinks - top))
    if mask is None or not may_hide_all:  # the others are 0 beside one that takes part
        return weights
    return ops.where(mask, weights, 0.0)


def at_least_float32(x):
    """float16 and bfloat16 become float32; float64 stays."""
    return ops.cast(x, score_dtype(x))


def score_dtype(query) -> str:
    """Of scores, and of what is added to them."""
    return "float64" if keras.backend.standardize_dtype(query.dtype) == "float64" else "float32"
