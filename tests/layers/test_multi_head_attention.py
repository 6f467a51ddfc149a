"""Multi-head attention against Keras' with copied weights, and what only ours has."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers import (
    AlibiBias,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    RotaryEncoding,
)
from tests.contract.running import arrays, assert_close, call, outputs, tensors

B, T, S, D, C, N, H = 2, 5, 7, 11, 13, 3, 2


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def random_weights(layer):
    random = np.random.default_rng(17)
    layer.set_weights([0.5 * random.standard_normal(w.shape) for w in layer.get_weights()])


def split(kernel, bias, heads):
    """One fused product's weights as a list of (kernel (D, heads, H), bias (heads, H))."""
    kernel, bias = (ops.convert_to_numpy(x) for x in (kernel, bias))
    kernel = kernel.reshape(kernel.shape[0], -1, H)
    bias = bias.reshape(-1, H)
    edges = np.cumsum(heads)[:-1]
    return [
        weight
        for pair in zip(np.split(kernel, edges, 1), np.split(bias, edges, 0), strict=True)
        for weight in pair
    ]


def output_weights(dense, heads):
    kernel, bias = (ops.convert_to_numpy(x) for x in (dense.kernel, dense.bias))
    return [kernel.reshape(heads, H, -1), bias]


def masks(kind):
    """Call arguments of ours and of Keras for the same mask."""
    real = np.array([[True] * S, [True, False] + [True] * (S - 3) + [False]])
    free = normal(B, T, S, seed=5) > -0.5
    return {
        "none": ({}, {}),
        "padding": (real, {"attention_mask": np.broadcast_to(real[:, None], (B, T, S))}),
        "given": (free, {"attention_mask": free}),
    }[kind]


@pytest.mark.parametrize("kind", ["none", "padding", "given"])
def test_cross_attention_is_kerass(kind):
    x, context = normal(B, T, D), normal(B, S, C, seed=1)
    ours = MultiHeadCrossAttention(N, H)
    ours.build((None, None, D), (None, None, C))
    random_weights(ours)
    theirs = keras.layers.MultiHeadAttention(N, H)
    theirs.build((None, None, D), (None, None, C), (None, None, C))
    query = split(ours.query_dense.kernel, ours.query_dense.bias, [N])
    key_value = split(ours.key_value_dense.kernel, ours.key_value_dense.bias, [N, N])
    theirs.set_weights([*query, *key_value, *output_weights(ours.output_dense, N)])

    mask, keras_mask = masks(kind)
    name = {"none": None, "padding": "context_mask", "given": "attention_mask"}[kind]
    arguments = tensors({name: mask}) if name else {}
    got = call(ours, {"x": x, "context": context}, return_attention_scores=True, **arguments)
    expected = theirs(x, context, return_attention_scores=True, **keras_mask)
    assert_close(got, tuple(ops.convert_to_numpy(y) for y in expected))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_context_may_be_projected_once(dtype):
    real = np.arange(S) < [[S], [0]]
    context = np.where(real[..., None], normal(B, S, C, seed=1), np.nan)
    x, context, real = map(ops.convert_to_tensor, (normal(B, T, D), context, real))
    layer = MultiHeadCrossAttention(N, H, query_key_norm=True, sinks=True, dtype=dtype)
    layer.build((None, None, D), (None, None, C))
    random_weights(layer)
    expected = layer(x, context, context_mask=real)
    memory = layer.project_context(context, real)
    assert [tuple(part.shape) for part in memory] == [(B, N, S, H)] * 2
    got = layer(x, context_mask=real, memory=memory)
    assert_close(arrays(got), arrays(expected))


def test_a_context_or_what_was_made_of_it():
    x, context = normal(B, T, D), normal(B, S, C)
    layer = MultiHeadCrossAttention(N, H)
    with pytest.raises(ValueError, match="has no weights yet"):
        layer.project_context(context)
    layer(x, context)
    memory = layer.project_context(context)
    with pytest.raises(ValueError, match="needs `context`, or else the `memory`.*neither"):
        layer(x)
    with pytest.raises(ValueError, match="needs `context`, or else the `memory`.*both"):
        layer(x, context, memory=memory)
    with pytest.raises(ValueError, match="of one batch.*1 rows of `x`, 2 of `context`"):
        layer(x[:1], memory=memory)
    key, value = memory
    for wrong in (key, [key], (key, value[:, :, :1]), (key[:, :2], value[:, :2]), (key[0], value)):
        with pytest.raises(ValueError, match=r"pair of keys and values.*\(batch, 3, length, 2\)"):
            layer(x, memory=wrong)
    with pytest.raises(ValueError, match="does not know the features of a context yet"):
        MultiHeadCrossAttention(N, H)(x, memory=memory)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("kind", ["none", "padding", "given"])
def test_self_attention_is_kerass(kind, causal):
    x = normal(B, S, D)
    ours = MultiHeadSelfAttention(N, H, causal=causal)
    ours.build((None, None, D))
    random_weights(ours)
    fused = ours.query_key_value_dense
    theirs = keras.layers.MultiHeadAttention(N, H)
    theirs.build((None, None, D), (None, None, D))
    theirs.set_weights(
        [*split(fused.kernel, fused.bias, [N, N, N]), *output_weights(ours.output_dense, N)]
    )
    mask, keras_mask = masks(kind)
    if kind == "given":
        mask = mask[:, :1] | np.eye(S, dtype=bool)  # (B, S, S), no row without a key
        keras_mask = {"attention_mask": mask}
    elif kind == "padding":
        keras_mask = {"attention_mask": np.broadcast_to(mask[:, None], (B, S, S))}
    name = {"none": None, "padding": "padding_mask", "given": "attention_mask"}[kind]
    arguments = tensors({name: mask}) if name else {}
    got = call(ours, {"x": x}, return_attention_scores=True, **arguments)
    expected = theirs(x, x, return_attention_scores=True, use_causal_mask=causal, **keras_mask)
    output, scores = (ops.convert_to_numpy(y) for y in expected)
    real = mask if kind == "padding" else np.ones((B, S), bool)  # of the others nothing is said
    assert_close(got[0][real], output[real])
    assert_close(got[1].swapaxes(1, 2)[real], scores.swapaxes(1, 2)[real])


@pytest.mark.parametrize("num_key_value_heads", [1, 2])
def test_grouped_queries_are_kerass(num_key_value_heads):
    x, heads = normal(B, T, D), 6
    ours = MultiHeadSelfAttention(heads, H, num_key_value_heads)
    ours.build((None, None, D))
    random_weights(ours)
    fused = ours.query_key_value_dense
    theirs = keras.layers.GroupQueryAttention(H, heads, num_key_value_heads)
    theirs.build((None, None, D), (None, None, D))
    grouped = split(fused.kernel, fused.bias, [heads, num_key_value_heads, num_key_value_heads])
    theirs.set_weights([*grouped, *output_weights(ours.output_dense, heads)])
    assert_close(call(ours, {"x": x}), ops.convert_to_numpy(theirs(x, x)))


def test_every_mask_at_once_shows_in_the_weights():
    x = normal(B, S, D)
    layer = MultiHeadSelfAttention(6, 2, 3, causal=True, window=3)
    real = np.arange(S)[None] < [[S], [4]]
    segments = np.array([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2]])
    free = normal(B, 6, S, S, seed=2) > -1
    arguments = tensors({"padding_mask": real, "segment_ids": segments, "attention_mask": free})
    _, weights = call(layer, {"x": x}, return_attention_scores=True, **arguments)
    query, key = np.arange(S)[:, None], np.arange(S)[None]
    seen = (key <= query) & (query - key < 3) & real[:, None, None] & free
    seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
    np.testing.assert_array_equal(weights > 0, seen)
    np.testing.assert_allclose(weights.sum(-1), seen.any(-1), atol=1e-6)


def test_what_sees_nothing_gives_only_the_bias():
    x = normal(B, T, D)
    layer = MultiHeadSelfAttention(N, H)
    layer.build((None, None, D))
    random_weights(layer)
    output = call(layer, {"x": x}, **tensors({"padding_mask": np.zeros((B, T), bool)}))
    bias = ops.convert_to_numpy(layer.output_dense.bias)
    np.testing.assert_array_equal(output, np.broadcast_to(bias, (B, T, D)))


def test_packed_segments_equal_separate_sequences():
    first, second = normal(1, 3, D), normal(1, 4, D, seed=1)
    layer = MultiHeadSelfAttention(N, H, causal=True, position=RotaryEncoding())
    packed = np.concatenate([first, second], axis=1)
    arguments = tensors(
        {
            "segment_ids": np.array([[7, 7, 7, 2, 2, 2, 2]]),
            "positions": np.array([[0, 1, 2, 0, 1, 2, 3]]),
        }
    )
    got = call(layer, {"x": packed}, **arguments)
    assert_close(got[:, :3], call(layer, {"x": first}))
    assert_close(got[:, 3:], call(layer, {"x": second}))


def test_rotary_positions_count_by_their_differences():
    x = normal(B, T, D)
    layer = MultiHeadSelfAttention(N, H, position=RotaryEncoding(100.0))
    expected = call(layer, {"x": x})
    for positions in (np.arange(T) + 23, np.arange(T)[None] + np.array([[23], [401]])):
        assert_close(call(layer, {"x": x}, **tensors({"positions": positions})), expected, 1e-4)
    stretched = call(layer, {"x": x}, **tensors({"positions": 3 * np.arange(T)}))
    assert np.abs(stretched - expected).max() > 1e-3


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float32"])
def test_a_float32_position_scheme_leaves_the_compute_dtype(dtype):
    layer = MultiHeadSelfAttention(
        N, H, causal=True, position=RotaryEncoding(dtype="float32"), dtype=dtype
    )
    _, (key, value) = outputs(
        layer,
        {"x": normal(B, T, D)},
        cache=layer.empty_cache(B, T, D),
        cache_index=ops.zeros((B,), "int32"),
    )
    for cached in (key, value):
        assert keras.backend.standardize_dtype(cached.dtype) == layer.compute_dtype


def test_sinks_stay_float32_in_mixed_precision():
    sink = 2.003  # 2.0 in bfloat16
    layer = MultiHeadSelfAttention(N, H, sinks=True, dtype="mixed_bfloat16")
    layer.build((None, None, D))
    layer.sink_scores.assign(np.full(N, sink))
    _, weights = call(layer, {"x": np.zeros((B, T, D), "float32")}, return_attention_scores=True)
    np.testing.assert_allclose(weights, np.full((B, N, T, T), 1 / (T + np.exp(sink))), rtol=1e-5)


def test_float64_is_kept_on_every_path(backend):
    if backend != "tensorflow":
        pytest.skip("Keras computes in float32 on JAX and PyTorch, whatever it is given")
    dense, tiled = (
        MultiHeadSelfAttention(
            N, H, sinks=True, position=AlibiBias(), implementation=path, dtype="float64"
        )
        for path in ("dense", "tiled")
    )
    for layer in (dense, tiled):
        layer.build((None, None, D))
        random_weights(layer)
    x = ops.convert_to_tensor(normal(B, T, D), "float64")
    difference = ops.convert_to_numpy(tiled(x)) - ops.convert_to_numpy(dense(x))
    assert difference.dtype == "float64"
    assert np.abs(difference).max() < 1e-12
