"""Boolean masks as users give them, True = take part, checked."""

import keras
from keras import ops

from keras_tx.ops.sizes import fits


def padding(key_padding_mask, x):
    """A mask (B or 1, S) of x (B, S, ...), True at real places, as booleans."""
    _check_shape("A padding mask", key_padding_mask, "(batch, length)", x.shape[:2], may_be_one=1)
    return _as_booleans("A padding mask", key_padding_mask)


def hide_padding(x, real):
    """x (B, S, D) with zeros where `real` (B, S) is False: weights of 0 do not hide a NaN."""
    return ops.where(real[..., None], x, ops.zeros_like(x))


def segments(segment_ids, x):
    """Segment numbers (B or 1, T) of x (B, T, D) as int32."""
    _check_shape("`segment_ids`", segment_ids, "(batch, length)", x.shape[:2], may_be_one=1)
    if keras.backend.is_float_dtype(segment_ids.dtype):
        raise ValueError(
            f"`segment_ids` must be integers. Received: dtype {_name(segment_ids)}. Cast them "
            'first, or declare them with keras.Input(..., dtype="int32").'
        )
    return ops.cast(segment_ids, "int32")


def explicit(attention_mask, query, key):
    """A mask given by the user as booleans.

    Args:
        attention_mask: (B, T, S) or (B, N, T, S), of which all but S may be 1.
        query: (B, N, T, H).
        key: (B, K, S, H).

    Returns:
        (B or 1, N or 1, T or 1, S).
    """
    batch, heads, queries = tuple(query.shape)[:3]
    keys = key.shape[2]
    full = (
        (batch, heads, queries, keys) if len(attention_mask.shape) == 4 else (batch, queries, keys)
    )
    expected = "(batch, queries, keys) or (batch, heads, queries, keys)"
    _check_shape("`attention_mask`", attention_mask, expected, full, may_be_one=len(full) - 1)
    attention_mask = _as_booleans("`attention_mask`", attention_mask)
    return attention_mask[:, None] if len(full) == 3 else attention_mask


def _check_shape(name, mask, expected, shape, may_be_one):
    if not fits(mask.shape, shape, may_be_one):
        raise ValueError(
            f"{name} must be {expected}, here {tuple(shape)}. Received: shape {tuple(mask.shape)}"
        )


def _as_booleans(name, mask):
    if keras.backend.is_float_dtype(mask.dtype):  # 0 may mean "hide", or "add nothing to the score"
        raise ValueError(
            f"{name} must be boolean, True = take part. Received: dtype {_name(mask)}. Compare it "
            "first: `mask > 0.5`, or `mask == 0` if it was meant to be added to scores; declare an "
            'input as keras.Input(..., dtype="bool").'
        )
    return ops.cast(mask, "bool")


def _name(x) -> str:
    return keras.backend.standardize_dtype(x.dtype)
