"""What one call does with the caches of attentions of one kind, worked out once for all of them.

first   the prompt's first tokens see each other alone; then they are kept
many    a ring: new tokens see what it keeps and each other; then the newest are kept
few     new tokens are written first, and see what is kept
"""

import dataclasses
import functools

from keras import ops

from keras_tx.ops import cache as cache_ops
from keras_tx.ops.attention_mask import AttentionMask, conjunction, visible_places
from keras_tx.ops.cache import Slots

FEW_TOKENS = 16


@dataclasses.dataclass(frozen=True)
class LayerCache:
    """A layer's keys and values (B, K, S, H), and the view that says what to do with them.

    An object, so that Keras leaves it alone: tensors among a layer's arguments are cast to the
    dtype that the layer computes in.
    """

    view: object
    key: object = None
    value: object = None

    def extend(self, key, value):
        """New keys and values (B, K, T, H) -> what the new tokens see, and the new cache."""
        seen_key, kept_key = self.view.extend(self.key, key)
        seen_value, kept_value = self.view.extend(self.value, value)
        return seen_key, seen_value, dataclasses.replace(self, key=kept_key, value=kept_value)


class CacheView:
    """How a call reads, and adds to, the caches of attentions with this window.

    Args:
        slots: Of the caches.
        start: int32 (B,), or (1,) if it is one for all rows: position of the first new token.
        length: How many tokens are new, T.
        window, num_global_tokens: Of the attention.
        count: int32 (B,), how many of its new tokens a row keeps. Default: all.
        real: If given, the cache (B, 1, S, 1) of which tokens are real, and (B, 1, T, 1) for the
            new ones, booleans.
        overwrites: Whether a cache may be written into, as whoever made it never reads it again.
    """

    is_first = False

    def __init__(
        self,
        slots: Slots,
        start,
        length,
        window=None,
        num_global_tokens=0,
        count=None,
        real=None,
        *,
        overwrites=False,
    ):
        self.slots, self.start, self.length = slots, start, length
        self.window, self.num_global_tokens = window, num_global_tokens
        self.count = count
        self.overwrites = overwrites
        self._indices = {}
        self._seen_real, self.real = (None, None) if real is None else self.extend(*real)

    @property
    def _writes_first(self) -> bool:
        """Whether what the new tokens overwrite is seen by none of them."""
        if not self.slots.is_ring:
            return True
        if self.count is not None or not isinstance(self.length, int):
            return False
        if self.length == 1:
            return True
        slack = self.slots.ring - self.window + 1
        return isinstance(slack, int) and self.length <= slack

    def extend(self, cache, new):
        """Of one cache (B, K, S, H) and what is new (B, K, T, H): what is seen, and the cache."""
        if self._writes_first:
            batch, heads = ops.shape(new)[:2]
            if heads not in self._indices:
                slots = self.slots.of(self._new_positions)
                indices = cache_ops.scatter_indices(slots, batch, heads, ops.shape(cache)[2])
                self._indices[heads] = indices
            cache = cache_ops.scatter(cache, new, self._indices[heads], overwrites=self.overwrites)
            return cache, cache
        seen = ops.concatenate([cache, ops.cast(new, cache.dtype)], axis=2)
        count = self.length if self.count is None else self.count
        return seen, cache_ops.refill(cache, new, self.slots, self.start, count)

    @functools.cached_property
    def _new_positions(self):
        """(B, T), or (1, T)."""
        return self.start[:, None] + ops.arange(self.length, dtype="int32")[None, :]

    @functools.cached_property
    def _key_positions(self):
        """Of what is seen, (B, S) or (1, S)."""
        if self._writes_first:
            return self.slots.positions(self.start + (self.length - 1))
        before = self.slots.positions(self.start - 1)
        return ops.concatenate([before, self._new_positions], axis=1)

    @functools.cached_property
    def distance(self):
        """Position of the query minus that of the key, int32 (B, T, S) or (1, T, S)."""
        return self._new_positions[:, :, None] - self._key_positions[:, None, :]

    @functools.cached_property
    def mask(self) -> AttentionMask:
        description = AttentionMask(
            causal=True, window=self.window, num_global_tokens=self.num_global_tokens
        )
        many = not (isinstance(self.length, int) and self.length <= FEW_TOKENS)
        if many and not self.slots.is_ring:  # a matrix would be large
            padding = None if self._seen_real is None else self._seen_real[:, 0, :, 0]
            return dataclasses.replace(description, offset=self.start, padding=padding)
        keys = self._key_positions[:, None, None, :]
        parts = [visible_places(description, self._new_positions[:, None, :, None], keys)]
        if self.slots.is_ring:
            parts.append(keys >= 0)
        if self._seen_real is not None:
            parts.append(ops.transpose(self._seen_real, (0, 1, 3, 2)))
        return AttentionMask(explicit=conjunction(parts), hides_none_all=self._seen_real is None)


class FirstView:
    """The same where nothing was read before.

    Args:
        slots: Of the caches.
        lengths: int32 (B,), how many of the tokens a row keeps.
        window, num_global_tokens: Of the attention.
        real: If given, which tokens are real, boolean (B, 1, T, 1).
        dtype: Of the caches. Default: of keys and values.
    """

    is_first = True

    def __init__(
        self, slots: Slots, lengths, window=None, num_global_tokens=0, real=None, dtype=None
    ):
        self.slots, self.lengths, self.dtype = slots, lengths, dtype
        padding = None if real is None else real[:, 0, :, 0]
        self.mask = AttentionMask(True, window, num_global_tokens, padding=padding)
        self.real = None if real is None else self._kept(real)

    def extend(self, cache, new):
        return new, self._kept(ops.cast(new, self.dtype or new.dtype))

    def _kept(self, new):
        batch, heads, length, dim = ops.shape(new)
        size = self.slots.size
        if isinstance(size, int) and isinstance(length, int):
            fits = length <= size
        else:
            fits = not self.slots.is_ring
        if not fits:
            start = ops.zeros((1,), "int32")
            return cache_ops.refill(None, new, self.slots, start, self.lengths)
        rest = ops.zeros((batch, heads, size - length, dim), new.dtype)
        return ops.concatenate([new, rest], axis=2)
