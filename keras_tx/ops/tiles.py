"""A mask in tiles of queries by keys: which tiles need work, and what the mask is on one."""

import dataclasses

from keras import ops

from keras_tx.ops.attention_mask import AttentionMask, conjunction, visible_places
from keras_tx.ops.tiling import Tiling, padded


def classify(mask: AttentionMask, tiling: Tiling):
    """Which tiles hold anything to see, and which nothing to hide.

    Returns:
        Two boolean (query tiles, key tiles): some of it is visible, in some row; all of it is, in
        every row.
    """
    queries, keys = _place_bounds(mask, tiling)
    (first_query, last_query), (first_key, last_key) = queries, keys
    # The last tile of the keys may end with places that hold no key.
    some, every = [last_key >= first_key], [ops.equal(last_key - first_key, tiling.tile - 1)]
    if mask.window is not None:
        near = ops.logical_and(
            first_key - last_query < mask.window, first_query - last_key < mask.window
        )
        all_near = ops.logical_and(
            last_key - first_query < mask.window, last_query - first_key < mask.window
        )
        if mask.num_global_tokens:
            near = ops.logical_or(
                near, ops.minimum(first_key, first_query) < mask.num_global_tokens
            )
            # every pair has a place among the first when all keys, or all queries, are there
            all_near = ops.logical_or(
                all_near, ops.minimum(last_key, last_query) < mask.num_global_tokens
            )
        some.append(near)
        every.append(all_near)
    if mask.causal:
        some.append(first_key <= last_query)
        every.append(last_key <= first_query)
    if mask.padding is not None:
        real = _tiles_of(mask.padding, tiling.key_tiles, tiling.tile, False)  # (B, tiles, tile)
        some.append(ops.any(real, axis=(0, 2))[None, :])
        every.append(ops.all(real, axis=(0, 2))[None, :])
    if mask.query_segments is not None:
        overlap, equal = _segments(mask, tiling)
        some.append(overlap)
        every.append(equal)
    if mask.explicit is not None:
        visible = _tiles_of(mask.explicit, tiling.key_tiles, tiling.tile, False, axis=3)
        if _is_for_all_queries(mask.explicit):
            visible = visible[:, :, :, None]
        else:  # places past the last query are hidden too, but nobody reads them
            visible = _tiles_of(visible, tiling.query_tiles, tiling.tile, False, axis=2)
        some.append(ops.any(visible, axis=(0, 1, 3, 5)))
        every.append(ops.all(visible, axis=(0, 1, 3, 5)))
    shape = (tiling.query_tiles, tiling.key_tiles)
    some, every = (ops.broadcast_to(conjunction(parts), shape) for parts in (some, every))
    return some, every


def _place_bounds(mask, tiling):
    """First and last place of each tile of queries (tiles, 1) and of keys (1, tiles)."""
    first = ops.arange(tiling.query_tiles, dtype="int32")[:, None] * tiling.tile
    last = ops.minimum(first + tiling.tile, tiling.num_queries) - 1
    if mask.offset is None:
        offset = tiling.num_keys - tiling.num_queries
        first, last = first + offset, last + offset
    else:
        first, last = first + ops.min(mask.offset), last + ops.max(mask.offset)
    first_key = ops.arange(tiling.key_tiles, dtype="int32")[None, :] * tiling.tile
    last_key = ops.minimum(first_key + tiling.tile, tiling.num_keys) - 1
    return (first, last), (first_key, last_key)


def _tiles_of(x, tiles, tile, value, axis=1):
    """x with an axis cut into (tiles, tile), filled up with `value`."""
    shape = ops.shape(x)
    x = padded(x, axis, tiles * tile - shape[axis], value)
    return ops.reshape(x, (*shape[:axis], tiles, tile, *shape[axis + 1 :]))


def _is_for_all_queries(explicit) -> bool:
    """Whether a mask (B, 1 or N, 1, S) says the same for every query."""
    return explicit.shape[2] == 1


def _segments(mask, tiling):
    queries = _tiles_of(mask.query_segments, tiling.query_tiles, tiling.tile, -1)
    keys = _tiles_of(mask.key_segments, tiling.key_tiles, tiling.tile, -1)
    # Numbers that fill up the last tile are below all others: they only widen its range.
    lows, highs = ([f(x, axis=2) for x in (queries, keys)] for f in (ops.min, ops.max))
    low = [low[:, :, None] if n == 0 else low[:, None, :] for n, low in enumerate(lows)]
    high = [high[:, :, None] if n == 0 else high[:, None, :] for n, high in enumerate(highs)]
    overlap = ops.logical_and(low[0] <= high[1], low[1] <= high[0])
    equal = ops.logical_and(ops.equal(low[0], high[1]), ops.equal(low[1], high[0]))
    equal = ops.logical_and(equal, ops.equal(low[0], low[1]))
    return ops.any(overlap, axis=0), ops.all(equal, axis=0)


def work_list(tiles):
    """For each row of a boolean (rows, columns): its True columns first, and how many they are."""
    order = ops.argsort(ops.cast(ops.logical_not(tiles), "int32"), axis=1)
    return ops.cast(order, "int32"), ops.sum(ops.cast(tiles, "int32"), axis=1)


def tile_mask(mask: AttentionMask, tiling: Tiling, query_index, key_index):
    """The mask on one tile, boolean (B or 1, 1 or N, query tile, key tile)."""
    first_query, first_key = query_index * tiling.tile, key_index * tiling.tile
    query = ops.arange(tiling.tile, dtype="int32") + first_query
    key = ops.arange(tiling.tile, dtype="int32") + first_key
    key_places = key[None, None, None, :]
    parts = [key_places < tiling.num_keys]
    if mask.is_positional:
        if mask.offset is None:
            query_places = query[None, :] + (tiling.num_keys - tiling.num_queries)
        else:
            query_places = query[None, :] + mask.offset[:, None]
        parts.append(visible_places(mask, query_places[:, None, :, None], key_places))
    if mask.padding is not None:
        parts.append(_range(mask.padding, 1, first_key, tiling.tile)[:, None, None, :])
    if mask.query_segments is not None:
        queries = _range(mask.query_segments, 1, first_query, tiling.tile)
        keys = _range(mask.key_segments, 1, first_key, tiling.tile)
        parts.append(ops.equal(queries[:, None, :, None], keys[:, None, None, :]))
    if mask.explicit is not None:
        columns = _range(mask.explicit, 3, first_key, tiling.tile)
        if not _is_for_all_queries(mask.explicit):
            columns = _range(columns, 2, first_query, tiling.tile)
        parts.append(columns)
    return conjunction(parts)


def _range(x, axis, start, length):
    """x[..., start : start + length, ...]; x must reach so far."""
    shape = ops.shape(x)
    starts, sizes = [0] * len(shape), list(shape)
    starts[axis], sizes[axis] = start, length
    return ops.slice(x, starts, sizes)


def padded_to_tiles(mask: AttentionMask, tiling: Tiling) -> AttentionMask:
    """The mask's tensors filled up to whole tiles, so that a tile can be cut out of them."""
    more_queries = tiling.query_tiles * tiling.tile - tiling.num_queries
    more_keys = tiling.key_tiles * tiling.tile - tiling.num_keys
    changes = {}
    if mask.padding is not None:
        changes["padding"] = padded(mask.padding, 1, more_keys, False)
    if mask.query_segments is not None:
        changes["query_segments"] = padded(mask.query_segments, 1, more_queries, -1)
        changes["key_segments"] = padded(mask.key_segments, 1, more_keys, -1)
    if mask.explicit is not None:
        changes["explicit"] = padded(mask.explicit, 3, more_keys, False)
        if not _is_for_all_queries(mask.explicit):
            changes["explicit"] = padded(changes["explicit"], 2, more_queries, False)
    return dataclasses.replace(mask, **changes)
