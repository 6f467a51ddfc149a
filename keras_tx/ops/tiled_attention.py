"""Exact attention that never holds a (T, S) matrix: Dao et al. 2022, "FlashAttention", Alg. 1, 4.

The softmax is gathered tile by tile (Milakov and Gimelshein 2018); the backward pass makes each
tile's weights again from the saved logarithm of their sum.
"""

import dataclasses

from keras import ops

from keras_tx import kernels
from keras_tx.ops.attention_mask import AttentionMask
from keras_tx.ops.distance_bias import sum_diagonals, toeplitz
from keras_tx.ops.hashed_dropout import keep_mask
from keras_tx.ops.scoring import Scoring
from keras_tx.ops.softmax import MASKED_SCORE, at_least_float32
from keras_tx.ops.tiles import Tiling, classify, padded_to_tiles, tile_mask, tile_of, work_list


def tiled_attention(query, key, value, mask: AttentionMask, scoring: Scoring, tile: int = 256):
    """softmax(scores) value, in memory that grows with T + S.

    Args:
        query: (B, N, T, H).
        key: (B, K, S, H), K divides N; query head n reads key head n // (N / K).
        value: (B, K, S, H').
        mask, scoring: As for `dense_attention`, but for `scoring.bias` and, beside a
            `distance_bias`, `mask.offset`.
        tile: Queries, and keys, of a tile, at most.

    Returns:
        (B, N, T, H') in the dtype of `value`.
    """
    inputs = {"query": query, "key": key, "value": value}
    if scoring.sinks is not None:
        inputs["sinks"] = ops.cast(scoring.sinks, "float32")
    if scoring.distance_bias is not None:
        inputs["diagonals"] = _diagonals(scoring.distance_bias, _tiling(query, key, tile))
    fields = ("offset", "padding", "query_segments", "key_segments", "explicit")
    data = {name: getattr(mask, name) for name in fields if getattr(mask, name) is not None}
    if scoring.dropout:
        data["seed"] = scoring.seed

    def problem(query, key, constants):
        given = dict(zip(data, constants, strict=True))
        seeded = dataclasses.replace(scoring, seed=given.pop("seed", None))
        heads = Heads(key.shape[1], query.shape[1] // key.shape[1])
        # Made in each pass anew: XLA must see that the sizes are those of its inputs.
        tiling = _tiling(query, key, tile)
        return _Problem(dataclasses.replace(mask, **given), seeded, tiling, heads)

    def forward(tensors, constants):
        made = problem(*tensors[:2], constants)
        return _forward(made, **dict(zip(inputs, tensors, strict=True)))

    def backward(tensors, constants, output, residuals, upstream):
        made = problem(*tensors[:2], constants)
        named = dict(zip(inputs, tensors, strict=True))
        gradients = _backward(made, output, *residuals, upstream, **named)
        return tuple(ops.cast(gradients[name], named[name].dtype) for name in inputs)

    apply = kernels.with_gradient(forward, backward)
    return apply(tuple(inputs.values()), tuple(data.values()))


def _tiling(query, key, tile):
    """Tiles no longer than the sequences, where TensorFlow may not know yet how long those are."""
    num_queries, num_keys = ops.shape(query)[2], ops.shape(key)[2]
    if isinstance(num_queries, int) and isinstance(num_keys, int):
        return Tiling(num_queries, num_keys, min(tile, max(num_queries, num_keys)))
    longest = ops.maximum(num_queries, num_keys)
    return Tiling(num_queries, num_keys, ops.minimum(tile, longest))


@dataclasses.dataclass(frozen=True)
class Heads:
    """K key heads, each read by `groups` query heads."""

    num_key_heads: int
    groups: int

    @property
    def num_query_heads(self) -> int:
        return self.num_key_heads * self.groups


def _diagonals(table, tiling):
    """The bias of each diagonal of tiles: (query tiles + key tiles - 1, N, 2 tile - 1)."""
    tile, zero = tiling.tile, ops.shape(table)[1] // 2
    corner = tiling.num_keys - tiling.num_queries  # distance of the first query and the first key
    step = ops.arange(tiling.query_tiles + tiling.key_tiles - 1, dtype="int32")
    first = corner + (step - (tiling.key_tiles - 1)) * tile - (tile - 1)
    places = first[:, None] + ops.arange(2 * tile - 1, dtype="int32")[None, :] + zero
    places = ops.clip(places, 0, ops.shape(table)[1] - 1)  # what lies outside is masked
    return ops.transpose(ops.take(ops.cast(table, "float32"), places, axis=1), (1, 0, 2))


@dataclasses.dataclass(frozen=True)
class _Problem:
    """What both passes do to one tile. Tiles of scores are (B * K, groups * tile, tile)."""

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


def _forward(problem, query, key, value, sinks=None, diagonals=None):
    """The output, and log(sum(exp(scores))) of each query, in tiles."""
    whole, partial = problem.work()
    problem = problem.for_tiles()
    queries, keys, values = problem.cut(query, key, value)
    scale = problem.scoring.scale_for(query.shape[-1])

    def rows(i, carry):
        outputs, log_sums = carry
        q = at_least_float32(tile_of(queries, i)) * scale

        def add(order, hidden):
            def body(t, state):
                top, total, gathered = state
                j = tile_of(order, t)
                k, v = at_least_float32(tile_of(keys, j)), at_least_float32(tile_of(values, j))
                scores = problem.scores(q, k, diagonals, i, j)
                if hidden:
                    scores = problem.hide(scores, i, j, MASKED_SCORE)
                new_top = ops.maximum(top, ops.max(scores, axis=-1, keepdims=True))
                weights = ops.exp(scores - new_top)
                if hidden:  # where a row has seen nothing yet, hidden places would count 1
                    weights = problem.hide(weights, i, j, 0.0)
                shrink = ops.exp(top - new_top)
                return (
                    new_top,
                    total * shrink + ops.sum(weights, axis=-1, keepdims=True),
                    gathered * shrink + ops.matmul(problem.drop(weights, i, j), v),
                )

            return body

        zero = ops.zeros_like(q[..., :1])
        state = (zero + MASKED_SCORE, zero, zero + ops.zeros((value.shape[-1],), q.dtype))
        state = _visit(whole, i, lambda order: add(order, False), state)
        top, total, gathered = _visit(partial, i, lambda order: add(order, True), state)
        alive = total > 0
        if sinks is not None:
            sink = _row_sinks(problem, sinks, zero)
            higher = ops.maximum(top, sink)
            total = total * ops.exp(top - higher) + ops.exp(sink - higher)
            gathered, top = gathered * ops.exp(top - higher), higher
        total = ops.where(alive, total, 1.0)
        output = ops.where(alive, gathered / total, 0.0)
        log_sum = ops.where(alive, top + ops.log(total), -MASKED_SCORE)
        return (
            kernels.put(outputs, i, ops.cast(output, value.dtype)),
            kernels.put(log_sums, i, log_sum),
        )

    zeros = ops.zeros_like(queries[..., :1])
    carry = (
        kernels.rows(zeros + ops.zeros((value.shape[-1],), value.dtype)),
        kernels.rows(ops.zeros_like(at_least_float32(zeros))),
    )
    carry = kernels.serial_loop(0, problem.tiling.query_tiles, rows, carry)
    outputs, log_sums = (kernels.stacked(x) for x in carry)
    output = problem.tiling.join_queries(
        outputs, problem.heads.num_query_heads, problem.heads.groups
    )
    return output, (log_sums,)


def _backward(problem, output, log_sums, upstream, query, key, value, sinks=None, diagonals=None):
    """The gradients by name."""
    whole, partial = problem.work(transposed=True)
    problem = problem.for_tiles()
    queries, keys, values = problem.cut(query, key, value)
    scale, cap = problem.scoring.scale_for(query.shape[-1]), problem.scoring.soft_cap
    upstreams = problem.tiling.cut_queries(upstream, problem.heads.groups)
    deltas = ops.sum(at_least_float32(upstream) * at_least_float32(output), axis=-1, keepdims=True)
    deltas = problem.tiling.cut_queries(deltas, problem.heads.groups)

    def columns(j, carry):
        k, v = at_least_float32(tile_of(keys, j)), at_least_float32(tile_of(values, j))

        def add(order, hidden):
            def body(t, state):
                grads, d_k, d_v = state
                i = tile_of(order, t)
                q = at_least_float32(tile_of(queries, i)) * scale
                d_output = at_least_float32(tile_of(upstreams, i))
                scores = problem.scores(q, k, diagonals, i, j)
                weights = ops.exp(scores - tile_of(log_sums, i))
                if hidden:
                    weights = problem.hide(weights, i, j, 0.0)
                d_weights = problem.drop(ops.matmul(d_output, ops.swapaxes(v, -1, -2)), i, j)
                d_scores = weights * (d_weights - tile_of(deltas, i))
                d_v = d_v + ops.matmul(ops.swapaxes(problem.drop(weights, i, j), -1, -2), d_output)
                grads = dict(grads)
                if diagonals is not None:
                    grads["diagonals"] = _add_diagonal(problem, grads["diagonals"], d_scores, i, j)
                if cap is not None:
                    product = ops.matmul(q, ops.swapaxes(k, -1, -2))
                    d_scores = d_scores * (1.0 - ops.square(ops.tanh(product / cap)))
                d_query = kernels.row(grads["query"], i) + ops.matmul(d_scores, k)
                grads["query"] = kernels.put(grads["query"], i, d_query)
                return grads, d_k + ops.matmul(ops.swapaxes(d_scores, -1, -2), q), d_v

            return body

        grads, d_keys, d_values = carry
        state = (grads, ops.zeros_like(k), ops.zeros_like(v))
        state = _visit(whole, j, lambda order: add(order, False), state)
        grads, d_k, d_v = _visit(partial, j, lambda order: add(order, True), state)
        return grads, kernels.put(d_keys, j, d_k), kernels.put(d_values, j, d_v)

    def zeros(x):
        return kernels.rows(ops.zeros_like(at_least_float32(x)))

    grads = {"query": zeros(queries)}
    if diagonals is not None:
        grads["diagonals"] = zeros(diagonals)
    carry = (grads, zeros(keys), zeros(values))
    grads, d_keys, d_values = kernels.serial_loop(0, problem.tiling.key_tiles, columns, carry)
    grads = {name: kernels.stacked(x) for name, x in grads.items()}
    d_keys, d_values = kernels.stacked(d_keys), kernels.stacked(d_values)
    tiling, heads = problem.tiling, problem.heads
    gradients = {
        **grads,
        "query": tiling.join_queries(grads["query"] * scale, heads.num_query_heads, heads.groups),
        "key": tiling.join_keys(d_keys, heads.num_key_heads),
        "value": tiling.join_keys(d_values, heads.num_key_heads),
    }
    if sinks is not None:
        weights = ops.exp(_row_sinks(problem, sinks, log_sums) - log_sums)
        lost = tiling.join_queries(weights * deltas, heads.num_query_heads, heads.groups)
        gradients["sinks"] = -ops.sum(lost, axis=(0, 2, 3))
    return gradients


def _visit(work, row, body, state):
    """Runs the body over the tiles of a row of a work list."""
    order, count = work
    return kernels.serial_loop(0, tile_of(count, row), body(tile_of(order, row)), state)


def _row_sinks(problem, sinks, like):
    """The sink of each row of a tile, or of all tiles: (N,) -> like (..., B * K, rows, 1)."""
    heads = problem.heads
    sinks = ops.reshape(sinks, (heads.num_key_heads, heads.groups, 1))
    sinks = ops.broadcast_to(sinks, (heads.num_key_heads, heads.groups, problem.tiling.tile))
    sinks = ops.reshape(sinks, (heads.num_key_heads, heads.groups * problem.tiling.tile, 1))
    batch = ops.shape(like)[-3] // heads.num_key_heads
    return ops.zeros_like(like) + ops.tile(sinks, (batch, 1, 1))


def _add_diagonal(problem, totals, d_scores, i, j):
    by_head = ops.sum(problem.by_head(d_scores), axis=0)  # (K, groups, tile, tile)
    tile = problem.tiling.tile
    by_head = ops.reshape(by_head, (problem.heads.num_query_heads, tile, tile))
    place = problem.diagonal(i, j)
    return kernels.put(
        totals, place, kernels.row(totals, place) + sum_diagonals(by_head, tile, tile)
    )
