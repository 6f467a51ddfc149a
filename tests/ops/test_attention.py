"""Every path of attention against the float64 oracle, values and gradients, whatever the mask."""

import gc
import weakref

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_tx import kernels
from keras_tx.ops.attention import attention, choose_path
from keras_tx.ops.attention_mask import AttentionMask
from keras_tx.ops.dense_attention import dense_attention
from keras_tx.ops.hashed_dropout import keep_mask
from keras_tx.ops.scoring import Scoring
from keras_tx.ops.softmax import masked_softmax
from keras_tx.ops.tiles import classify
from keras_tx.ops.tiling import Tiling
from tests.ops import attention_oracle
from tests.ops.attention_accuracy import (
    EXPLICIT,
    HONOURED,
    PATHS,
    SHAPES,
    TILE,
    differences,
    draw_inputs,
    draw_mask,
    largest_difference,
    run,
)
from tests.ops.differentiation import pull_back


def check(*arguments, **request):
    assert max(differences(*arguments, **request).values()) <= 1


any_mask = st.fixed_dictionaries(
    {
        "parts": st.sets(st.sampled_from(["padding", "segments", *EXPLICIT]), max_size=3),
        "causal": st.booleans(),
        "window": st.sampled_from([None, 1, 3, 5]),
        "num_global_tokens": st.sampled_from([0, 2, 5]),
        "offset": st.booleans(),
    }
)
any_request = {
    "shape": st.sampled_from(SHAPES),
    "parts": any_mask,
    "extras": st.sets(st.sampled_from(["distance_bias", "bias", "sinks"])),
    "dtype": st.sampled_from(["float32", "float32", "bfloat16"]),
    "soft_cap": st.sampled_from([None, 1.5]),
    "dropout": st.sampled_from([0.0, 0.0, 0.3]),
    "seed": st.integers(0, 999),
}


def check_any(path, shape, parts, seed, extras, **request):
    mask = draw_mask(np.random.default_rng(seed), shape, **parts)
    if path == "tiled":  # so that most draws are honoured
        extras = extras - {"bias"}
        if mask.offset is not None:
            extras = extras - {"distance_bias"}
    if path == "fused":
        extras, request = extras - {"sinks"}, {**request, "soft_cap": None, "dropout": 0.0}
    check(path, shape, mask, extras, seed=seed, **request)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=10)
@given(**any_request)
def test_any_request_equals_the_oracle(path, **request):
    check_any(path, **request)


@pytest.mark.soak
@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=300)
@given(**any_request)
def test_many_requests_equal_the_oracle(path, **request):
    check_any(path, **request)


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_table_of_requests(dtype):
    for path in PATHS:
        for name in HONOURED[path]:
            assert largest_difference(path, name, dtype) <= 1, (path, name)


def test_a_mask_of_each_head_for_all_queries_alike():
    mask = draw_mask(np.random.default_rng(1), SHAPES[0], ["by key"])
    for path in PATHS:
        check(path, SHAPES[0], mask)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("path", PATHS)
def test_each_precision_of_a_causal_attention(path, dtype):
    check(path, SHAPES[0], AttentionMask(causal=True), dtype=dtype)


@pytest.mark.parametrize("path", PATHS)
def test_a_query_that_sees_nothing_gives_zero_and_moves_nothing(path):
    random = np.random.default_rng(3)
    shape = SHAPES[0]
    inputs = {n: x.astype("float32") for n, x in draw_inputs(random, shape, ()).items()}
    mask = AttentionMask(padding=np.array([[False] * 13, [True] * 13]), causal=True)
    upstream = random.standard_normal((2, 6, 13, 7)).astype("float32")
    output, gradients = pull_back(run(path, mask, Scoring()), inputs, upstream)
    for dead in (output, *gradients.values()):
        assert not dead[0].any()
        assert dead[1].any()


@pytest.mark.parametrize("path", PATHS)
def test_a_future_token_never_leaks(path):
    """Forward, and backward: the future's gradient of what came before is exactly 0."""
    random = np.random.default_rng(4)
    inputs = {n: x.astype("float32") for n, x in draw_inputs(random, SHAPES[0], ()).items()}
    function = run(path, AttentionMask(causal=True), Scoring())
    now = 6
    upstream = random.standard_normal((2, 6, 13, 7)).astype("float32")
    upstream[:, :, now + 1 :] = 0
    before, gradients = pull_back(function, inputs, upstream)
    for name in ("key", "value"):
        assert not gradients[name][:, :, now + 1 :].any()
        inputs[name][:, :, now + 1 :] = 1e4
    after, _ = pull_back(function, inputs, upstream)
    np.testing.assert_array_equal(before[:, :, : now + 1], after[:, :, : now + 1])


@settings(max_examples=12)
@given(shape=st.sampled_from(SHAPES), parts=any_mask, seed=st.integers(0, 999))
def test_tiles_are_skipped_and_left_unmasked_where_the_matrix_says_so(shape, parts, seed):
    mask = draw_mask(np.random.default_rng(seed), shape, **parts)
    batch, heads, _, queries, keys, _, _ = shape
    tiling = Tiling(queries, keys, TILE)
    some, every = (ops.convert_to_numpy(x) for x in classify(mask, tiling))
    seen = attention_oracle.visible_pairs(mask, batch, heads, queries, keys)
    for i, j in np.ndindex(some.shape):
        tile = seen[:, :, i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE]
        is_whole = tile.shape[3] == TILE
        assert some[i, j] or not tile.any()
        assert not (some[i, j] and every[i, j]) or (tile.all() and is_whole)
        if not {"padding", "segments", *EXPLICIT} & parts["parts"] and mask.offset is None:
            assert some[i, j] == tile.any()  # places alone: nothing is visited in vain
            if tile.shape[2] == TILE:
                assert (some[i, j] and every[i, j]) == (tile.all() and is_whole)


def test_the_dropout_is_a_hash_of_places():
    """Against unsigned arithmetic of numpy, and as often as asked for, near and far."""

    def mix(x):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
        return x ^ (x >> np.uint32(15))

    group, row, column = (np.arange(n, dtype="uint32") for n in (7, 101, 103))
    group, row = group[:, None, None], row[:, None]
    seed, rate = 12345, 0.3
    by_row = mix(mix(group * np.uint32(0x632BE5AB) + np.uint32(seed)) + row * np.uint32(0x2545F491))
    by_column = mix(column * np.uint32(0x1B873593) + np.uint32(seed ^ 0x5851F42D))
    expected = mix(by_row ^ by_column).view("int32") >= int(rate * 2**32) - 2**31
    places = (ops.convert_to_tensor(x.astype("int32")) for x in (group, row, column))
    kept = ops.convert_to_numpy(keep_mask(ops.convert_to_tensor(seed, "int32"), rate, *places))
    np.testing.assert_array_equal(kept, expected)
    deviation = np.sqrt(rate * (1 - rate))
    for axes in [(0, 1, 2), (0, 1), (0, 2)]:
        count = np.prod([kept.shape[axis] for axis in axes])
        off = np.abs(kept.mean(axes) - (1 - rate)) / (deviation / np.sqrt(count))
        assert off.max() < 5
    centred = kept - kept.mean()
    for step in range(1, 5):  # neighbours know nothing of each other
        for a, b in (
            (centred[:, step:], centred[:, :-step]),
            (centred[..., step:], centred[..., :-step]),
        ):
            assert abs((a * b).mean()) / deviation**2 * np.sqrt(a.size) < 5


def test_softmax_of_huge_scores_is_exact_and_of_nothing_is_zero():
    scores = np.array([[1e4, 1e4 - 1, -1e4], [1e30, -1e30, 0.0]], "float32")
    mask = np.array([[True, True, True], [False, False, False]])
    weights = ops.convert_to_numpy(masked_softmax(scores, mask))
    expected = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(weights[0], [expected, 1 - expected, 0], atol=1e-6)
    assert not weights[1].any()


@pytest.mark.parametrize("path", PATHS)
def test_huge_scores_stay_exact(path):
    random = np.random.default_rng(5)
    inputs = {n: x.astype("float32") for n, x in draw_inputs(random, SHAPES[0], ()).items()}
    inputs["query"] *= 300
    expected, _, _ = attention_oracle.attention(
        inputs, np.zeros((2, 6, 13, 7)), AttentionMask(causal=True)
    )
    output, _ = pull_back(
        run(path, AttentionMask(causal=True), Scoring()), inputs, np.zeros((2, 6, 13, 7), "float32")
    )
    np.testing.assert_allclose(output, expected, atol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_half_precision_are_computed_in_float32(dtype):
    random = np.random.default_rng(0)
    query, key, value = (ops.cast(x, dtype) for x in random.standard_normal((3, 1, 3, 5, 64)))
    exact = {
        name: ops.convert_to_numpy(ops.cast(x, "float32"))
        for name, x in (("query", query), ("key", key), ("value", value))
    }
    mask = AttentionMask(causal=True)
    _, expected, _ = attention_oracle.attention(exact, np.zeros((1, 3, 5, 64)), mask)
    output, weights = dense_attention(query, key, value, mask, Scoring())
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    np.testing.assert_allclose(ops.convert_to_numpy(weights), expected, atol=1e-6)


LONG, SHORT = (1, 4, 2048, 64), (1, 4, 64, 64)
BIAS = Scoring(bias=np.zeros((1, 1, 1, 1)))


@pytest.mark.parametrize(
    "shape, mask, scoring, arguments, name, reason",
    [
        (LONG, AttentionMask(causal=True), Scoring(soft_cap=1.0), {}, "tiled", "2048 x 2048"),
        (LONG, AttentionMask(window=3), Scoring(), {}, "tiled", "2048 x 2048"),
        (LONG, AttentionMask(), Scoring(), {"needs_weights": True}, "dense", "weights"),
        (SHORT, AttentionMask(), Scoring(soft_cap=1.0), {}, "dense", "few scores"),
        ((1, 4, 1, 64), AttentionMask(), Scoring(soft_cap=1.0), {}, "dense", "few queries"),
        (LONG, AttentionMask(), Scoring(soft_cap=1.0, bias=0), {}, "dense", "every pair"),
        (
            (1, 4, None, 64),
            AttentionMask(),
            Scoring(soft_cap=1.0),
            {},
            "tiled",
            "not known",
        ),
        (SHORT, AttentionMask(), Scoring(), {"wanted": "tiled"}, "tiled", "asked for"),
    ],
)
def test_the_path_and_its_reason(shape, mask, scoring, arguments, name, reason):
    path = choose_path(
        shape, (1, 4, 2048, 64) if shape[2] == 1 else shape, mask, scoring, **arguments
    )
    assert path.name == name
    assert reason in path.reason


@pytest.mark.parametrize(
    "mask, is_fused",
    [
        (AttentionMask(), True),
        (AttentionMask(causal=True), True),
        (AttentionMask(padding=True), True),
        (AttentionMask(causal=True, padding=True), False),
        (AttentionMask(window=5), False),
    ],
    ids=["all", "causal", "padding", "causal padding", "window"],
)
def test_a_long_attention_uses_the_backends_kernel_where_that_needs_no_matrix(mask, is_fused):
    path = choose_path(LONG, LONG, mask)
    assert path.name == ("fused" if is_fused and kernels.HAS_FUSED_ATTENTION else "tiled")


@pytest.mark.parametrize(
    "scoring, wanted, message",
    [
        (BIAS, "tiled", "a bias for every pair"),
        (Scoring(soft_cap=1.0), "fused", "no soft_cap|no kernel of its own"),
        (Scoring(), "flash", "must be one of"),
    ],
)
def test_a_path_that_cannot_be_taken_is_an_error(scoring, wanted, message):
    with pytest.raises(ValueError, match=message):
        choose_path(SHORT, SHORT, AttentionMask(), scoring, wanted)


@pytest.mark.parametrize("path", ["dense", "tiled"])
def test_rematerialized_dropout_drops_the_same_weights_again(path):
    random = np.random.default_rng(6)
    inputs = {n: x.astype("float32") for n, x in draw_inputs(random, SHAPES[0], ()).items()}
    upstream = random.standard_normal((2, 6, 13, 7)).astype("float32")
    scoring = Scoring(dropout=0.4, seed=ops.convert_to_tensor(11, "int32"))
    function = run(path, AttentionMask(causal=True), scoring)

    def rematerialized(query, key, value):
        return keras.remat(lambda *tensors: function(*tensors))(query, key, value)

    output, gradients = pull_back(rematerialized, inputs, upstream)
    expected, exact = pull_back(function, inputs, upstream)
    np.testing.assert_allclose(output, expected, atol=1e-6)
    for name in inputs:
        np.testing.assert_allclose(gradients[name], exact[name], atol=1e-5, err_msg=name)


def slope(function, x):
    """The gradient of a scalar function, of which a gradient can be taken again."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.grad(function)(x)
    if keras.backend.backend() == "torch":
        import torch

        x = x if x.requires_grad else x.clone().requires_grad_()
        return torch.autograd.grad(function(x), x, create_graph=True)[0]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        result = function(x)
    return tape.gradient(result, x)


def test_a_second_gradient_is_right_or_an_error(backend):
    query, key, value = (
        ops.convert_to_tensor(x)
        for x in np.random.default_rng(7).standard_normal((3, 1, 2, 5, 3)).astype("float32")
    )

    def second(path):
        function = run(path, AttentionMask(causal=True), Scoring())

        def first(query):
            return slope(lambda query: ops.sum(function(query, key, value) ** 2), query)

        return slope(lambda query: ops.sum(first(query) ** 2), query)

    if backend == "tensorflow":
        np.testing.assert_allclose(second("tiled"), second("dense"), atol=1e-4)
        return
    with pytest.raises((NotImplementedError, ValueError), match="no gradient of its own|Reverse"):
        second("tiled")


def test_no_call_outlives_its_result(backend):
    """Not even until Python looks for cycles: that may be many calls and gigabytes later."""
    if backend != "torch":
        pytest.skip("only PyTorch keeps what a gradient needs in objects of ours")
    random = np.random.default_rng(8)
    query, key, value = (
        ops.convert_to_tensor(x).requires_grad_()
        for x in random.standard_normal((3, 1, 2, 5, 3)).astype("float32")
    )
    gc.collect()
    gc.disable()
    try:
        run("tiled", AttentionMask(causal=True), Scoring())(query, key, value).sum().backward()
        alive = weakref.ref(query)
        del query
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("wanted", ["auto", "tiled"])
@pytest.mark.parametrize("queries, keys", [(0, 0), (0, 5), (5, 0)])
def test_no_queries_give_nothing_and_no_keys_give_zero(queries, keys, wanted):
    query, key = np.ones((2, 3, queries, 5), "float32"), np.ones((2, 3, keys, 5), "float32")
    scoring = Scoring(sinks=ops.ones(3), distance_bias=ops.ones((3, 2 * max(queries, keys, 1) - 1)))
    mask = AttentionMask(causal=True)
    path = choose_path(query.shape, key.shape, mask, scoring, wanted)
    output = attention(*map(ops.convert_to_tensor, (query, key, key)), mask, scoring, path)
    np.testing.assert_array_equal(ops.convert_to_numpy(output), np.zeros((2, 3, queries, 5)))
