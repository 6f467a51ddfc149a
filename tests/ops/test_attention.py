"""Masked attention against a dense float64 oracle, whatever masks are combined."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_tx.ops import masks
from keras_tx.ops.attention import attention_weights, masked_softmax, weighted_values


def oracle(query, key, value, visible):
    """softmax(q k / sqrt(H)) v in float64, pair by pair; visible(b, n, t, s) -> bool."""
    query, key, value = (x.astype("float64") for x in (query, key, value))
    (batch, heads, length, dim), (_, kv_heads, keys, _) = query.shape, key.shape
    weights = np.zeros((batch, heads, length, keys))
    output = np.zeros((batch, heads, length, dim))
    for b, n, t in np.ndindex(batch, heads, length):
        shared = n // (heads // kv_heads)
        seen = [s for s in range(keys) if visible(b, n, t, s)]
        if seen:
            scores = np.array([query[b, n, t] @ key[b, shared, s] for s in seen]) / np.sqrt(dim)
            weights[b, n, t, seen] = np.exp(scores - scores.max())
            weights[b, n, t] /= weights[b, n, t].sum()
            output[b, n, t] = weights[b, n, t] @ value[b, shared]
    return output, weights


@settings(max_examples=12)
@given(
    heads=st.sampled_from([(1, 1), (3, 3), (6, 2), (3, 1)]),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 2, 7]),
    padding=st.booleans(),
    segments=st.booleans(),
    explicit=st.sampled_from([None, 3, 4]),
    seed=st.integers(0, 999),
)
def test_any_masks_equal_the_dense_oracle(heads, causal, window, padding, segments, explicit, seed):
    (num_heads, kv_heads), batch, length, dim = heads, 2, 5, 7
    random = np.random.default_rng(seed)
    query = random.standard_normal((batch, num_heads, length, dim)).astype("float32")
    key = random.standard_normal((batch, kv_heads, length, dim)).astype("float32")
    value = random.standard_normal((batch, kv_heads, length, dim)).astype("float32")
    real = random.random((batch, length)) < 0.6
    segment = np.sort(random.integers(0, 3, (batch, length)))
    shape = (batch, length, length) if explicit == 3 else (batch, num_heads, length, length)
    given_mask = random.random(shape) < 0.7

    place = ops.arange(length)
    mask = masks.combine(
        masks.positional_mask(place, place, causal, window),
        masks.padding_mask(real) if padding else None,
        masks.segment_mask(segment, segment) if segments else None,
        masks.full_mask(given_mask) if explicit else None,
    )
    weights = attention_weights(query, key, mask)
    output = weighted_values(weights, ops.convert_to_tensor(value))

    def visible(b, n, t, s):
        return (
            (not causal or s <= t)
            and (window is None or abs(t - s) < window)
            and (not padding or real[b, s])
            and (not segments or segment[b, t] == segment[b, s])
            and (not explicit or given_mask[(b, t, s) if explicit == 3 else (b, n, t, s)])
        )

    expected, expected_weights = oracle(query, key, value, visible)
    np.testing.assert_allclose(ops.convert_to_numpy(weights), expected_weights, atol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(output), expected, atol=1e-5)


def test_positional_mask_takes_a_place_for_each_row():
    places = np.array([[4, 5], [1, 2]])
    mask = ops.convert_to_numpy(masks.positional_mask(places, np.arange(7), True, 3))
    for b, t, s in np.ndindex(2, 2, 7):
        assert mask[b, 0, t, s] == (places[b, t] - 3 < s <= places[b, t])
    assert masks.positional_mask(places, np.arange(7)) is None
    assert masks.combine(None, None) is None


def test_softmax_of_huge_scores_is_exact_and_of_nothing_is_zero():
    scores = np.array([[1e4, 1e4 - 1, -1e4], [1e30, -1e30, 0.0]], "float32")
    mask = np.array([[True, True, True], [False, False, False]])
    weights = ops.convert_to_numpy(masked_softmax(scores, mask))
    expected = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(weights[0], [expected, 1 - expected, 0], atol=1e-6)
    assert not weights[1].any()


def test_scale_is_the_callers():
    random = np.random.default_rng(0)
    query, key = random.standard_normal((2, 1, 3, 2, 5)).astype("float32")
    got = ops.convert_to_numpy(attention_weights(query, key, scale=0.3))
    scores = 0.3 * query.astype("float64") @ key.astype("float64").swapaxes(-1, -2)
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_half_precision_are_computed_in_float32(dtype):
    random = np.random.default_rng(0)
    query, key, value = (ops.cast(x, dtype) for x in random.standard_normal((3, 1, 3, 5, 64)))
    exact = (ops.convert_to_numpy(ops.cast(x, "float32")) for x in (query, key, value))
    expected, expected_weights = oracle(*exact, lambda b, n, t, s: s <= t)
    weights = attention_weights(
        query, key, masks.positional_mask(ops.arange(5), ops.arange(5), True)
    )
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(ops.convert_to_numpy(weights), expected_weights, atol=1e-6)
    output = weighted_values(weights, value)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    output = ops.convert_to_numpy(ops.cast(output, "float32"))
    epsilon = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    np.testing.assert_allclose(output, expected, atol=2 * epsilon * np.abs(expected).max())
