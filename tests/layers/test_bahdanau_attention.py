import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers.bahdanau_attention import BahdanauAttention

B, T, S, Q, M, U = 2, 3, 5, 7, 11, 13


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((B, T, Q)).astype("float32")
    values = rng.standard_normal((B, S, M)).astype("float32")
    mask = np.array([[True, True, True, False, False], [True, False, True, True, True]])
    return query, values, mask


def softmax(scores, mask):
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def oracle(layer, query, values, mask):
    """Bahdanau et al. 2015, Eq. 5, 6 and A.1.2 in float64, position by position."""
    w_q, w_k, v = (
        ops.convert_to_numpy(w).astype("float64")
        for w in (layer.query_dense.kernel, layer.key_dense.kernel, layer.score_vector)
    )
    query, values = query.astype("float64"), values.astype("float64")
    scores = np.zeros((B, T, S))
    for b, t, s in np.ndindex(B, T, S):
        scores[b, t, s] = v[:, 0] @ np.tanh(query[b, t] @ w_q + values[b, s] @ w_k)
    weights = softmax(scores, mask[:, None])
    return weights @ values, weights


def test_equals_the_formula():
    query, values, mask = inputs()
    layer = BahdanauAttention(U)
    context, weights = layer(query, values, mask=mask, return_attention_scores=True)
    expected, expected_weights = oracle(layer, query, values, mask)
    np.testing.assert_allclose(ops.convert_to_numpy(context), expected, atol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(weights), expected_weights, atol=1e-6)


def test_many_steps_equal_one_by_one_with_the_keys_projected_once():
    query, values, mask = inputs()
    layer = BahdanauAttention(U)
    many = layer(query, values, mask=mask)
    keys = layer.project_keys(ops.convert_to_tensor(values))
    assert tuple(keys.shape) == (B, S, U)
    for t in range(T):
        one, weights = layer(
            query[:, t], values, mask=mask, projected_keys=keys, return_attention_scores=True
        )
        assert tuple(weights.shape) == (B, S)
        np.testing.assert_allclose(
            ops.convert_to_numpy(one), ops.convert_to_numpy(many[:, t]), atol=1e-6
        )


def test_a_row_with_nothing_to_attend_to_gives_zero_and_finite_gradients():
    query, values, mask = inputs()
    mask[0] = False
    layer = BahdanauAttention(U)
    context, weights = layer(query, values, mask=mask, return_attention_scores=True)
    assert not ops.convert_to_numpy(context)[0].any()
    assert not ops.convert_to_numpy(weights)[0].any()

    source = keras.Input((S, M))
    steps, present = keras.Input((T, Q)), keras.Input((S,), dtype="bool")
    model = keras.Model([steps, source, present], layer(steps, source, mask=present))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    before = [np.array(w) for w in model.get_weights()]
    model.fit([query, values, mask], np.ones((B, T, M), "float32"), verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        assert np.isfinite(new).all() and (old != new).any()


def test_padding_changes_nothing_and_implicit_equals_explicit():
    query, values, mask = inputs()
    layer = BahdanauAttention(U)
    expected = ops.convert_to_numpy(layer(query, values, mask=mask))
    padded = np.concatenate([values, np.full((B, 4, M), 1e4, "float32")], axis=1)
    padded_mask = np.concatenate([mask, np.zeros((B, 4), bool)], axis=1)
    got = ops.convert_to_numpy(layer(query, padded, mask=padded_mask))
    np.testing.assert_allclose(got, expected, atol=1e-6)

    masked = keras.layers.Masking()(np.where(mask[..., None], values, 0.0).astype("float32"))
    implicit = layer(query, masked)
    np.testing.assert_allclose(ops.convert_to_numpy(implicit), expected, atol=1e-6)
    assert getattr(implicit, "_keras_mask", None) is None  # the query has no mask


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_low_precision_is_near_float64(dtype):
    query, values, mask = inputs()
    layer = BahdanauAttention(U, dtype=dtype)
    context, weights = layer(query, values, mask=mask, return_attention_scores=True)
    expected, expected_weights = oracle(layer, query, values, mask)
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    assert keras.backend.standardize_dtype(context.dtype) == layer.compute_dtype
    tolerance = 3e-2 if dtype == "mixed_bfloat16" else 4e-3
    np.testing.assert_allclose(ops.convert_to_numpy(weights), expected_weights, atol=tolerance)
    context = ops.convert_to_numpy(ops.cast(context, "float32"))
    np.testing.assert_allclose(context, expected, atol=2 * tolerance)


def test_shapes_config_and_lora():
    query, values, mask = inputs()
    layer = BahdanauAttention(U, kernel_initializer="he_normal")
    assert layer.compute_output_shape((None, Q), (None, None, M)) == (None, M)
    assert layer.compute_output_shape((None, None, Q), (None, None, M)) == (None, None, M)
    context, weights = layer(
        keras.Input((None, Q)), keras.Input((None, M)), return_attention_scores=True
    )
    assert context.shape == (None, None, M) and weights.shape == (None, None, None)

    copy = BahdanauAttention.from_config(layer.get_config())
    copy.build((B, T, Q), (B, S, M))
    copy.set_weights(layer.get_weights())
    expected = ops.convert_to_numpy(layer(query, values, mask=mask))
    np.testing.assert_array_equal(ops.convert_to_numpy(copy(query, values, mask=mask)), expected)

    copy.key_dense.enable_lora(2)
    copy.key_dense.lora_kernel_b.assign(np.ones((2, U)))
    assert (ops.convert_to_numpy(copy(query, values, mask=mask)) != expected).any()


def test_errors():
    query, values, _ = inputs()
    with pytest.raises(ValueError, match="`units` must be a positive integer"):
        BahdanauAttention(0)
    with pytest.raises(ValueError, match="`values` must have 3 dimensions"):
        BahdanauAttention(U)(query, values[:, 0])
