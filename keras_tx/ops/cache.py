"""Writing into a key-value cache of static shape, with core operations only."""

from keras import ops

from keras_tx.ops.sizes import fits


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
    _check(cache, new, index)
    batch, heads, length, dim = ops.shape(new)
    shape = (batch, heads, length)
    rows = ops.broadcast_to(ops.arange(batch, dtype="int32")[:, None, None], shape)
    head = ops.broadcast_to(ops.arange(heads, dtype="int32")[None, :, None], shape)
    slots = ops.cast(index, "int32")[:, None] + ops.arange(length, dtype="int32")[None, :]
    slots = ops.broadcast_to(slots[:, None, :], shape)
    places = ops.reshape(ops.stack([rows, head, slots], axis=-1), (-1, 3))
    return ops.scatter_update(cache, places, ops.reshape(ops.cast(new, cache.dtype), (-1, dim)))


def _check(cache, new, index):
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
