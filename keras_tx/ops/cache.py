"""Writing into a key-value cache of static shape, with core operations only."""

from keras import ops


def write(cache, new, index):
    """Copies `new` into `cache` at each row's own place.

    A scatter compiles under XLA and also runs where XLA is off, which a slice update does not.

    Args:
        cache: (B, K, S, H).
        new: (B, K, T, H), T <= S.
        index: (B,) integers, place of the first new entry of each row; index + T <= S.

    Returns:
        The cache with `new` in it, (B, K, S, H).
    """
    batch, heads, length, dim = ops.shape(new)
    shape = (batch, heads, length)
    rows = ops.broadcast_to(ops.arange(batch, dtype="int32")[:, None, None], shape)
    head = ops.broadcast_to(ops.arange(heads, dtype="int32")[None, :, None], shape)
    slots = ops.cast(index, "int32")[:, None] + ops.arange(length, dtype="int32")[None, :]
    slots = ops.broadcast_to(slots[:, None, :], shape)
    places = ops.reshape(ops.stack([rows, head, slots], axis=-1), (-1, 3))
    return ops.scatter_update(cache, places, ops.reshape(ops.cast(new, cache.dtype), (-1, dim)))
