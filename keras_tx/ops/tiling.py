"""Sequences cut into tiles."""

import dataclasses

from keras import ops


@dataclasses.dataclass(frozen=True)
class Tiling:
    """The sizes of a cut, of one tile at least; numbers of tokens and tiles may be tensors.

    Args:
        num_queries, num_keys: T and S.
        tile: Queries, and keys, of a tile.
    """

    num_queries: object
    num_keys: object
    tile: int

    @property
    def query_tiles(self):
        return self._tiles(self.num_queries)

    @property
    def key_tiles(self):
        return self._tiles(self.num_keys)

    def _tiles(self, length):
        tiles = (length + self.tile - 1) // self.tile
        return max(tiles, 1) if isinstance(tiles, int) else ops.maximum(tiles, 1)

    def cut_queries(self, x, groups: int):
        """(B, N, T, H) -> (tiles, B * N / groups, groups * tile, H), zeros in the last tile.

        `groups` neighbouring heads, which read one key head, are laid in one matrix.
        """
        x = padded(x, 2, self.query_tiles * self.tile - self.num_queries)
        shape = (-1, groups, self.query_tiles, self.tile, x.shape[-1])
        x = ops.transpose(ops.reshape(x, shape), (2, 0, 1, 3, 4))
        return ops.reshape(x, (self.query_tiles, -1, groups * self.tile, x.shape[-1]))

    def join_queries(self, tiles, heads: int, groups: int):
        """The reverse of `cut_queries`."""
        dim = tiles.shape[-1]
        shape = (self.query_tiles, -1, groups, self.tile, dim)
        x = ops.transpose(ops.reshape(tiles, shape), (1, 2, 0, 3, 4))
        x = ops.reshape(x, (-1, heads, self.query_tiles * self.tile, dim))
        return x[:, :, : self.num_queries]

    def cut_keys(self, x):
        """(B, K, S, H) -> (tiles, B * K, tile, H), zeros in the last tile."""
        x = padded(x, 2, self.key_tiles * self.tile - self.num_keys)
        x = ops.reshape(x, (-1, self.key_tiles, self.tile, x.shape[-1]))
        return ops.transpose(x, (1, 0, 2, 3))

    def join_keys(self, tiles, heads: int):
        """The reverse of `cut_keys`."""
        x = ops.transpose(tiles, (1, 0, 2, 3))
        x = ops.reshape(x, (-1, heads, self.key_tiles * self.tile, x.shape[-1]))
        return x[:, :, : self.num_keys]


def padded(x, axis, amount, value=0):
    """x with so many places of `value` after the last one of an axis."""
    if isinstance(amount, int) and amount == 0:
        return x
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (0, amount)
    return ops.pad(x, widths, constant_values=value)


def tile_of(x, index):
    """x[index] for an index that may be a tensor."""
    start = (index,) + (0,) * (len(x.shape) - 1)
    return ops.slice(x, start, (1, *ops.shape(x)[1:]))[0]
