"""Boolean attention masks, True = take part."""

from keras import ops


def positional_mask(query_index, key_index, causal: bool = False, window: int | None = None):
    """Which keys a query may see by their order alone.

    Args:
        query_index: Place of each query in the sequence, (T,) or (B, T) integers.
        key_index: Place of each key, (S,) integers.
        causal: Whether a query sees only keys at or before its own place.
        window: If given, a query sees only keys fewer than `window` places away.

    Returns:
        Boolean (1, 1, T, S) or (B, 1, T, S), or None when everything is visible.
    """
    if not causal and window is None:
        return None
    query_index = ops.cast(query_index, "int32")
    if len(query_index.shape) == 1:
        query_index = query_index[None]
    distance = query_index[:, None, :, None] - ops.cast(key_index, "int32")[None, None, None, :]
    mask = distance >= 0 if causal else None
    if window is not None:
        near = ops.abs(distance) < window
        mask = near if mask is None else ops.logical_and(mask, near)
    return mask


def padding_mask(key_padding_mask):
    """(B, S) True at real keys -> (B, 1, 1, S)."""
    _check_rank("A padding mask", key_padding_mask, "(batch, length)", 2)
    return ops.cast(key_padding_mask, "bool")[:, None, None, :]


def hide_padding(x, real):
    """x (B, S, D) with zeros where the mask (B, S) is False: weights of 0 do not hide a NaN."""
    _check_rank("A padding mask", real, "(batch, length)", 2)
    return ops.where(ops.cast(real, "bool")[..., None], x, ops.zeros_like(x))


def segment_mask(query_segments, key_segments):
    """(B, T) and (B, S) segment numbers -> (B, 1, T, S), True within one segment."""
    for segments in (query_segments, key_segments):
        _check_rank("`segment_ids`", segments, "(batch, length)", 2)
    return ops.equal(query_segments[:, None, :, None], key_segments[:, None, None, :])


def full_mask(attention_mask):
    """A mask given by the user, (B, T, S) or (B, N, T, S) -> (B, 1 or N, T, S)."""
    expected = "(batch, queries, keys) or (batch, heads, queries, keys)"
    _check_rank("`attention_mask`", attention_mask, expected, 3, 4)
    attention_mask = ops.cast(attention_mask, "bool")
    return attention_mask[:, None] if len(attention_mask.shape) == 3 else attention_mask


def _check_rank(name, mask, expected, *ranks):
    if len(mask.shape) not in ranks:
        raise ValueError(f"{name} must be {expected}. Received: shape {tuple(mask.shape)}")


def combine(*masks):
    """The conjunction of all masks that are not None; None when there are none."""
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined
