"""The scores of attention, tile by tile: how one is made, hidden, and dropped."""

import dataclasses

from keras import ops

from keras_tx.ops.attention_mask import AttentionMask
from keras_tx.ops.distance_bias import sum_diagonals, toeplitz
from keras_tx.ops.hashed_dropout import keep_mask
from keras_tx.ops.scoring import Scoring
from keras_tx.ops.tiles import classify, padded_to_tiles, tile_mask, work_list
from keras_tx.ops.tiling import Tiling, tile_of


@dataclasses.dataclass(frozen=True)
class Heads:
    """K key heads, each read by `groups` query heads."""

    num_key_heads: int
    groups: int

    @property
    def num_query_heads(self) -> int:
        return self.num_key_heads * self.groups


@dataclasses.dataclass(frozen=True)
class ScoreTiles:
    """The scores of one attention in tiles (B * K, groups * tile, tile), which both passes make."""

    mask: AttentionMask
    scoring: Scoring
    tiling: Tiling
    heads: Heads

    def cut(self, query, key, value):
        return (
            self.tiling.cut_queries(query, self.heads.groups),
            self.tiling.cut_keys(key),
            self.tiling.cut_keys(value),
        )

    def work(self, transposed=False):
        """Two lists of tiles: of those wholly visible, and of those visible in part."""
        some, every = classify(self.mask, self.tiling)
        if transposed:
            some, every = ops.transpose(some), ops.transpose(every)
        whole = ops.logical_and(some, every)
        return work_list(whole), work_list(ops.logical_and(some, ops.logical_not(every)))

    def for_tiles(self):
        return dataclasses.replace(self, mask=padded_to_tiles(self.mask, self.tiling))

    def scores(self, query, key, diagonals, i, j):
        scores = self.scoring.capped(ops.matmul(query, ops.swapaxes(key, -1, -2)))
        if diagonals is None:
            return scores
        bias = toeplitz(tile_of(diagonals, self.diagonal(i, j)), self.tiling.tile, self.tiling.tile)
        return self.folded(self.by_head(scores) + self.of_heads(bias[None]))

    def diagonal(self, i, j):
        return i - j + self.tiling.key_tiles - 1

    def hide(self, scores, i, j, value):
        visible = self.of_heads(tile_mask(self.mask, self.tiling, i, j))
        return self.folded(ops.where(visible, self.by_head(scores), value))

    def drop(self, weights, i, j):
        if not self.scoring.dropout:
            return weights
        weights = self.by_head(weights)  # (B, K, groups, tile, tile)
        shape, tile = ops.shape(weights), self.tiling.tile
        within = ops.arange(tile, dtype="int32")
        head = ops.arange(shape[0] * self.heads.num_query_heads, dtype="int32")
        kept = keep_mask(
            self.scoring.seed,
            self.scoring.dropout,
            ops.reshape(head, (*shape[:3], 1, 1)),
            (within + i * tile)[:, None],
            within + j * tile,
        )
        return self.folded(ops.where(kept, weights / (1.0 - self.scoring.dropout), 0.0))

    def by_head(self, x):
        """(B * K, groups * tile, ...) -> (B, K, groups, tile, ...)"""
        heads, tile = self.heads, self.tiling.tile
        return ops.reshape(x, (-1, heads.num_key_heads, heads.groups, tile, ops.shape(x)[-1]))

    def folded(self, x):
        """The reverse of `by_head`."""
        rows = self.heads.groups * self.tiling.tile
        return ops.reshape(x, (-1, rows, ops.shape(x)[-1]))

    def of_heads(self, x):
        """(B or 1, N or 1, ...) -> (B or 1, K or 1, groups or 1, ...)"""
        if x.shape[1] == 1:
            return x[:, :, None]
        batch, _, *tile = ops.shape(x)
        return ops.reshape(x, (batch, self.heads.num_key_heads, self.heads.groups, *tile))

    def row_sinks(self, sinks, like):
        """The sink of each row: (N,) -> (..., B * K, groups * tile, 1), the shape of `like`."""
        heads = self.heads
        sinks = ops.reshape(sinks, (heads.num_key_heads, heads.groups, 1))
        sinks = ops.broadcast_to(sinks, (heads.num_key_heads, heads.groups, self.tiling.tile))
        sinks = ops.reshape(sinks, (heads.num_key_heads, heads.groups * self.tiling.tile, 1))
        batch = ops.shape(like)[-3] // heads.num_key_heads
        return ops.zeros_like(like) + ops.tile(sinks, (batch, 1, 1))

    def diagonal_sums(self, d_scores):
        """The gradient of one row of `diagonals`: (N, 2 tile - 1)."""
        by_head = ops.sum(self.by_head(d_scores), axis=0)  # (K, groups, tile, tile)
        tile = self.tiling.tile
        by_head = ops.reshape(by_head, (self.heads.num_query_heads, tile, tile))
        return sum_diagonals(by_head, tile, tile)


def tiling_of(query, key, tile):
    """Tiles no longer than the sequences, where TensorFlow may not know yet how long those are."""
    num_queries, num_keys = ops.shape(query)[2], ops.shape(key)[2]
    if isinstance(num_queries, int) and isinstance(num_keys, int):
        return Tiling(num_queries, num_keys, min(tile, max(num_queries, num_keys, 1)))
    longest = ops.maximum(ops.maximum(num_queries, num_keys), 1)
    return Tiling(num_queries, num_keys, ops.minimum(tile, longest))


def diagonals_of(table, tiling):
    """The bias of each diagonal of tiles: (query tiles + key tiles - 1, N, 2 tile - 1)."""
    tile, zero = tiling.tile, ops.shape(table)[1] // 2
    corner = tiling.num_keys - tiling.num_queries  # distance of the first query and the first key
    step = ops.arange(tiling.query_tiles + tiling.key_tiles - 1, dtype="int32")
    first = corner + (step - (tiling.key_tiles - 1)) * tile - (tile - 1)
    places = first[:, None] + ops.arange(2 * tile - 1, dtype="int32")[None, :] + zero
    places = ops.clip(places, 0, ops.shape(table)[1] - 1)  # what lies outside is masked
    return ops.transpose(ops.take(table, places, axis=1), (1, 0, 2))
