"""Key-value caches of static shape: which slot keeps which position, and how it gets there.

Only core operations: a scatter compiles under XLA and also runs where XLA is off, which a slice
update does not. On PyTorch, and on TensorFlow without XLA, a compiled loop writes in place.
"""

import dataclasses

from keras import ops

from keras_tx import kernels
from keras_tx.ops.sizes import fits


@dataclasses.dataclass(frozen=True)
class Slots:
    """The slots of a cache.

    Position p is kept in slot p; in a ring, the positions behind the first `num_global_tokens`
    take turns: p is kept in slot G + (p - G) % R, where S = G + R.

    Args:
        size: S, an integer or, where TensorFlow does not know it, a tensor.
        is_ring: Whether slots are used again.
        num_global_tokens: G, the first positions, which stay.
    """

    size: object
    is_ring: bool = False
    num_global_tokens: int = 0

    @property
    def ring(self):
        """R."""
        return self.size - self.num_global_tokens

    def of(self, positions):
        """The slots of positions, int32 like them."""
        if not self.is_ring:
            return positions
        first = self.num_global_tokens
        turn = first + ops.mod(positions - first, self.ring)
        return ops.where(positions < first, positions, turn) if first else turn

    def positions(self, newest):
        """What is in the slots.

        Args:
            newest: int32 (B,), the last position that was written in each row, or -1.

        Returns:
            int32 (B, S), or (1, S) if slots are not used again. A slot of a ring that was not
            written yet gives a negative number.
        """
        index = ops.arange(self.size, dtype="int32")[None, :]
        if not self.is_ring:
            return index
        first = self.num_global_tokens
        turn = newest[:, None] - first
        turn = turn - ops.mod(turn + first - index, self.ring)
        if not first:
            return turn
        turn = ops.where(turn < 0, -1, turn + first)
        return ops.where(index < first, ops.where(index <= newest[:, None], index, -1), turn)


def slots_for(capacity, window: int | None, num_global_tokens: int = 0, slack: int = 0) -> Slots:
    """The slots that attention needs for a text of up to `capacity` tokens.

    Args:
        capacity: An integer, or a tensor.
        window: Of the attention, or None.
        num_global_tokens: Of the attention.
        slack: The most tokens that are ever written at once, or taken back.
    """
    if window is None:
        return Slots(capacity)
    size = num_global_tokens + window + max(slack, 1) - 1
    if isinstance(capacity, int):
        # At least one slot that is no global one: a ring of none has no arithmetic.
        size = min(size, max(capacity, num_global_tokens + 1))
    else:
        size = ops.minimum(size, ops.maximum(capacity, num_global_tokens + 1))
    return Slots(size, True, num_global_tokens)


def write(cache, new, index):
    """Copies `new` into `cache` at each row's own place.

    Args:
        cache: (B, K, S, H).
        new: (B, K, T, H), T <= S.
        index: (B,) integers, place of the first new entry of each row; index + T <= S.

    Returns:
        The cache with `new` in it, (B, K, S, H).
    """
    check_cache(cache, new, index)
    places = ops.arange(ops.shape(new)[2], dtype="int32")[None, :]
    slots = ops.cast(index, "int32")[:, None] + places
    return scatter(cache, new, scatter_indices(slots, *ops.shape(cache)[:3]))


def scatter_indices(slots, batch, num_heads: int, size):
    """Where `scatter` writes to the slots (B or 1, T) of caches with so many: int32 (B K T,)."""
    heads = ops.reshape(ops.arange(batch * num_heads, dtype="int32"), (batch, num_heads, 1))
    return ops.reshape(heads * size + slots[:, None, :], (-1,))


def scatter(cache, new, indices, *, overwrites: bool = False):
    """The cache (B, K, S, H) with `new` (B, K, T, H) in it, at `scatter_indices`.

    With `overwrites` what is compiled may write into `cache` itself, see `kernels.updated`.
    """
    rows = ops.reshape(ops.cast(new, cache.dtype), (-1, new.shape[3]))
    return kernels.updated(cache, indices, rows, overwrites=overwrites)


def refill(cache, new, slots: Slots, start, count):
    """Keeps of `new` what is newest in each slot; also of more entries than there are slots.

    Args:
        cache: (B, K, S, H), or None where nothing was kept before.
        new: (B, K, T, H).
        slots: Of the cache.
        start: int32 (B,) or (1,), position of the first new entry.
        count: int32 (B,), how many of the new entries are a row's own; the others are dropped.

    Returns:
        (B, K, S, H) in the dtype of `new` or of the cache.
    """
    batch, heads, length = ops.shape(new)[:3]
    offset = slots.positions(start + count - 1) - start[:, None]  # (B, S), among the new
    row = ops.arange(batch * heads, dtype="int32")[:, None] * length
    row = ops.reshape(row, (batch, heads, 1)) + ops.clip(offset, 0, length - 1)[:, None, :]
    taken = ops.take(ops.reshape(new, (-1, new.shape[3])), row, axis=0)
    if cache is None:
        return taken
    is_new = (offset >= 0)[:, None, :, None]
    return ops.where(is_new, ops.cast(taken, cache.dtype), cache)


def check_cache(cache, new, index):
    """Raises ValueError unless `new` (B, K, T, H) fits into the cache at `index`."""
    batch, heads, length, dim = tuple(new.shape)
    places = cache.shape[2] if len(cache.shape) == 4 else None
    has_room = not (isinstance(places, int) and isinstance(length, int)) or length <= places
    if not (has_room and fits(cache.shape, (batch, heads, None, dim))):
        raise ValueError(
            f"A cache must be ({batch}, {heads}, at least {length}, {dim}): rows, heads, places, "
            f"features. Received: {tuple(cache.shape)}. Make it with the layer's "
            "`empty_cache`, for the whole length."
        )
    if not fits(index.shape, (batch,)):
        raise ValueError(
            f"The place in a cache must be one integer for each row, of shape ({batch},). "
            f"Received: shape {tuple(index.shape)}"
        )
