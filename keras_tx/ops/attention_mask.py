"""Which keys a query may see, as a description that each path reads in its own way."""

import dataclasses

from keras import ops


@dataclasses.dataclass(frozen=True)
class AttentionMask:
    """A query may see a key when every part that is given allows it.

    Query i stands at place `offset + i`, key j at place j: without an `offset` the last query
    stands beside the last key.

    Args:
        causal: A query sees keys at or before its own place.
        window: A query sees keys fewer than `window` places away.
        num_global_tokens: With a window, the first so many places see, and are seen, beyond it.
        offset: Integers (B,), the place of each row's first query. Default: S - T.
        padding: Boolean (B, S), True at real keys.
        query_segments, key_segments: Integers (B, T) and (B, S); only equal ones see each other.
        explicit: Boolean (B or 1, 1 or N, T or 1, S).
        hides_none_all: Whether each query is known to see a key.
    """

    causal: bool = False
    window: int | None = None
    num_global_tokens: int = 0
    offset: object = None
    padding: object = None
    query_segments: object = None
    key_segments: object = None
    explicit: object = None
    hides_none_all: bool = False

    @property
    def is_positional(self) -> bool:
        """Whether places matter."""
        return self.causal or self.window is not None

    def may_hide_all(self, num_queries, num_keys) -> bool:
        """Whether there may be a query that sees nothing, as far as can be told without data."""
        if self.hides_none_all:
            return False
        if self.padding is not None or self.explicit is not None or self.offset is not None:
            return True
        if self.query_segments is not self.key_segments:
            return True
        # Otherwise a query sees the key at its own place, if it has one.
        known = isinstance(num_queries, int) and isinstance(num_keys, int)
        return not known or num_queries > num_keys


ALL_VISIBLE = AttentionMask()


def dense_mask(mask: AttentionMask, num_queries, num_keys):
    """The whole matrix.

    Args:
        mask: The description.
        num_queries: T.
        num_keys: S.

    Returns:
        Boolean, broadcastable to (B, N, T, S), or None when every query sees every key.
    """
    parts = []
    if mask.is_positional:
        query_places = query_place(mask, num_queries, num_keys)[:, None, :, None]
        key_places = ops.arange(num_keys, dtype="int32")[None, None, None, :]
        parts.append(visible_places(mask, query_places, key_places))
    if mask.padding is not None:
        parts.append(mask.padding[:, None, None, :])
    if mask.query_segments is not None:
        parts.append(
            ops.equal(mask.query_segments[:, None, :, None], mask.key_segments[:, None, None, :])
        )
    if mask.explicit is not None:
        parts.append(mask.explicit)
    return conjunction(parts)


def query_place(mask: AttentionMask, num_queries, num_keys):
    """The place of each query, int32 (B, T) or (1, T)."""
    index = ops.arange(num_queries, dtype="int32")[None, :]
    if mask.offset is None:
        return index + (num_keys - num_queries)
    return index + ops.cast(mask.offset, "int32")[:, None]


def visible_places(mask: AttentionMask, query_places, key_places):
    """What `causal`, `window` and `num_global_tokens` allow, for places that broadcast."""
    distance = query_places - key_places
    visible = None
    if mask.window is not None:
        visible = ops.abs(distance) < mask.window
        if mask.num_global_tokens:
            first = ops.minimum(query_places, key_places) < mask.num_global_tokens
            visible = ops.logical_or(visible, first)
    if mask.causal:
        visible = conjunction([visible, distance >= 0])
    return visible


def conjunction(parts):
    """All of the masks that are not None; None when there are none."""
    combined = None
    for part in parts:
        if part is not None:
            combined = part if combined is None else ops.logical_and(combined, part)
    return combined
