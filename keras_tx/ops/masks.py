"""Boolean masks as users give them, True = take part, checked."""

from keras import ops


def padding(key_padding_mask):
    """(B, S), True at real keys, as booleans."""
    _check_rank("A padding mask", key_padding_mask, "(batch, length)", 2)
    return ops.cast(key_padding_mask, "bool")


def hide_padding(x, real):
    """x (B, S, D) with zeros where the mask (B, S) is False: weights of 0 do not hide a NaN."""
    return ops.where(padding(real)[..., None], x, ops.zeros_like(x))


def segments(segment_ids):
    """Segment numbers (B, T) as int32."""
    _check_rank("`segment_ids`", segment_ids, "(batch, length)", 2)
    return ops.cast(segment_ids, "int32")


def explicit(attention_mask):
    """A mask given by the user, (B, T, S) or (B, N, T, S) -> (B, 1 or N, T, S)."""
    expected = "(batch, queries, keys) or (batch, heads, queries, keys)"
    _check_rank("`attention_mask`", attention_mask, expected, 3, 4)
    attention_mask = ops.cast(attention_mask, "bool")
    return attention_mask[:, None] if len(attention_mask.shape) == 3 else attention_mask


def _check_rank(name, mask, expected, *ranks):
    if len(mask.shape) not in ranks:
        raise ValueError(f"{name} must be {expected}. Received: shape {tuple(mask.shape)}")
