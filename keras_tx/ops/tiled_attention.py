"""Exact attention that never holds a (T, S) matrix: Dao et al. 2022, "FlashAttention", Alg. 1, 4.

The softmax is gathered tile by tile (Milakov and Gimelshein 2018); the backward pass makes each
tile's weights again from the saved logarithm of their sum.
"""

import dataclasses

from keras import ops

from keras_tx import kernels
from keras_tx.ops.attention_mask import AttentionMask
from keras_tx.ops.score_tiles import Heads, ScoreTiles, diagonals_of, tiling_of
from keras_tx.ops.scoring import Scoring
from keras_tx.ops.softmax import MASKED_SCORE, at_least_float32, score_dtype
from keras_tx.ops.tiling import tile_of


def tiled_attention(query, key, value, mask: AttentionMask, scoring: Scoring, tile: int):
    """softmax(scores) value, in memory that grows with T + S.

    Args:
        query: (B, N, T, H).
        key: (B, K, S, H), K divides N; query head n reads key head n // (N / K).
        value: (B, K, S, H').
        mask, scoring: As for `dense_attention`, but for `scoring.bias` and, beside a
            `distance_bias`, `mask.offset`.
        tile: Queries, and keys, of a tile, at most.

    Returns:
        (B, N, T, H') in the dtype of `value`. A gradient of its gradient is right on TensorFlow,
        on JAX in forward mode alone; otherwise it is an error.
    """
    inputs = {"query": query, "key": key, "value": value}
    if scoring.sinks is not None:
        inputs["sinks"] = ops.cast(scoring.sinks, score_dtype(query))
    if scoring.distance_bias is not None:
        table = ops.cast(scoring.distance_bias, score_dtype(query))
        inputs["diagonals"] = diagonals_of(table, tiling_of(query, key, tile))
    fields = ("offset", "padding", "query_segments", "key_segments", "explicit")
    data = {name: getattr(mask, name) for name in fields if getattr(mask, name) is not None}
    if scoring.dropout:
        data["seed"] = scoring.seed
    names = tuple(inputs)

    def tiles_of(query, key, constants):
        given = dict(zip(data, constants, strict=True))
        seeded = dataclasses.replace(scoring, seed=given.pop("seed", None))
        heads = Heads(key.shape[1], query.shape[1] // key.shape[1])
        # Made in each pass anew: XLA must see that the sizes are those of its inputs.
        tiling = tiling_of(query, key, tile)
        return ScoreTiles(dataclasses.replace(mask, **given), seeded, tiling, heads)

    def forward(tensors, constants):
        made = tiles_of(*tensors[:2], constants)
        return _forward(made, **dict(zip(names, tensors, strict=True)))

    def backward(tensors, constants, output, residuals, upstream):
        made = tiles_of(*tensors[:2], constants)
        named = dict(zip(names, tensors, strict=True))
        gradients = _backward(made, output, *residuals, upstream, **named)
        return tuple(ops.cast(gradients[name], named[name].dtype) for name in names)

    apply = kernels.with_gradient(forward, backward)
    return apply(tuple(inputs.values()), tuple(data.values()))


def _forward(tiles, query, key, value, sinks=None, diagonals=None):
    """The output, and log(sum(exp(scores))) of each query, in tiles."""
    whole, partial = tiles.work()
    tiles = tiles.for_tiles()
    queries, keys, values = tiles.cut(query, key, value)
    scale = tiles.scoring.scale_for(query.shape[-1])

    def rows(i, carry):
        outputs, log_sums = carry
        q = at_least_float32(tile_of(queries, i)) * scale

        def add(order, hidden):
            def body(t, state):
                top, total, gathered = state
                j = tile_of(order, t)
                k, v = at_least_float32(tile_of(keys, j)), at_least_float32(tile_of(values, j))
                scores = tiles.scores(q, k, diagonals, i, j)
                if hidden:
                    scores = tiles.hide(scores, i, j, MASKED_SCORE)
                new_top = ops.maximum(top, ops.max(scores, axis=-1, keepdims=True))
                weights = ops.exp(scores - new_top)
                if hidden:  # where a row has seen nothing yet, hidden places would count 1
                    weights = tiles.hide(weights, i, j, 0.0)
                shrink = ops.exp(top - new_top)
                return (
                    new_top,
                    total * shrink + ops.sum(weights, axis=-1, keepdims=True),
                    gathered * shrink + ops.matmul(tiles.drop(weights, i, j), v),
                )

            return body

        zero = ops.zeros_like(q[..., :1])
        state = (zero + MASKED_SCORE, zero, zero + ops.zeros((value.shape[-1],), q.dtype))
        state = _visit(whole, i, lambda order: add(order, False), state)
        top, total, gathered = _visit(partial, i, lambda order: add(order, True), state)
        alive = total > 0
        if sinks is not None:
            sink = tiles.row_sinks(sinks, zero)
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
    carry = kernels.serial_loop(0, tiles.tiling.query_tiles, rows, carry)
    outputs, log_sums = (kernels.stacked(x) for x in carry)
    output = tiles.tiling.join_queries(outputs, tiles.heads.num_query_heads, tiles.heads.groups)
    return output, (log_sums,)


def _backward(tiles, output, log_sums, upstream, query, key, value, sinks=None, diagonals=None):
    """The gradients by name."""
    whole, partial = tiles.work(transposed=True)
    tiles = tiles.for_tiles()
    queries, keys, values = tiles.cut(query, key, value)
    scale, cap = tiles.scoring.scale_for(query.shape[-1]), tiles.scoring.soft_cap
    upstreams = tiles.tiling.cut_queries(upstream, tiles.heads.groups)
    deltas = ops.sum(at_least_float32(upstream) * at_least_float32(output), axis=-1, keepdims=True)
    deltas = tiles.tiling.cut_queries(deltas, tiles.heads.groups)

    def columns(j, carry):
        k, v = at_least_float32(tile_of(keys, j)), at_least_float32(tile_of(values, j))

        def add(order, hidden):
            def body(t, state):
                grads, d_k, d_v = state
                i = tile_of(order, t)
                q = at_least_float32(tile_of(queries, i)) * scale
                d_output = at_least_float32(tile_of(upstreams, i))
                scores = tiles.scores(q, k, diagonals, i, j)
                weights = ops.exp(scores - tile_of(log_sums, i))
                if hidden:
                    weights = tiles.hide(weights, i, j, 0.0)
                d_weights = tiles.drop(ops.matmul(d_output, ops.swapaxes(v, -1, -2)), i, j)
                d_scores = weights * (d_weights - tile_of(deltas, i))
                d_v = d_v + ops.matmul(ops.swapaxes(tiles.drop(weights, i, j), -1, -2), d_output)
                grads = dict(grads)
                if diagonals is not None:
                    place = tiles.diagonal(i, j)
                    sums = kernels.row(grads["diagonals"], place) + tiles.diagonal_sums(d_scores)
                    grads["diagonals"] = kernels.put(grads["diagonals"], place, sums)
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
    grads, d_keys, d_values = kernels.serial_loop(0, tiles.tiling.key_tiles, columns, carry)
    grads = {name: kernels.stacked(x) for name, x in grads.items()}
    d_keys, d_values = kernels.stacked(d_keys), kernels.stacked(d_values)
    tiling, heads = tiles.tiling, tiles.heads
    gradients = {
        **grads,
        "query": tiling.join_queries(grads["query"] * scale, heads.num_query_heads, heads.groups),
        "key": tiling.join_keys(d_keys, heads.num_key_heads),
        "value": tiling.join_keys(d_values, heads.num_key_heads),
    }
    if sinks is not None:
        weights = ops.exp(tiles.row_sinks(sinks, log_sums) - log_sums)
        lost = tiling.join_queries(weights * deltas, heads.num_query_heads, heads.groups)
        gradients["sinks"] = -ops.sum(lost, axis=(0, 2, 3))
    return gradients


def _visit(work, row, body, state):
    """Runs the body over the tiles of a row of a work list."""
    order, count = work
    return kernels.serial_loop(0, tile_of(count, row), body(tile_of(order, row)), state)
