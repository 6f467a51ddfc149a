import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers.luong_attention import LuongAttention

B, T, S, Q, M, U = 2, 3, 5, 7, 11, 13


def inputs(values_dim):
    rng = np.random.default_rng(0)
    query = rng.standard_normal((B, T, Q)).astype("float32")
    values = rng.standard_normal((B, S, values_dim)).astype("float32")
    mask = np.array([[True, True, True, False, False], [True, False, True, True, True]])
    return query, values, mask


def oracle(layer, query, values, mask):
    """Luong et al. 2015, Eq. 7 and 8 in float64, position by position."""
    weights = {v.name: ops.convert_to_numpy(v).astype("float64") for v in layer.weights}
    if layer.score != "dot":
        key = ops.convert_to_numpy(layer.key_dense.kernel).astype("float64")
    if layer.score == "concat":
        query_kernel = ops.convert_to_numpy(layer.query_dense.kernel).astype("float64")
        joint = np.concatenate([query_kernel, key])  # W, which acts on [q; h]
    scores = np.zeros((B, T, S))
    for b, t, s in np.ndindex(B, T, S):
        q, h = query[b, t].astype("float64"), values[b, s].astype("float64")
        if layer.score == "dot":
            scores[b, t, s] = q @ h
        elif layer.score == "general":
            scores[b, t, s] = q @ (h @ key)
        else:
            hidden = np.tanh(np.concatenate([q, h]) @ joint)
            scores[b, t, s] = weights["score_vector"][:, 0] @ hidden
    scores = np.where(mask[:, None], scores, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    attention = exponentials / exponentials.sum(-1, keepdims=True)
    return attention @ values.astype("float64"), attention


CASES = [("dot", Q, None), ("general", M, None), ("concat", M, U), ("concat", M, None)]


@pytest.mark.parametrize("score, values_dim, units", CASES)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_equals_the_formula(score, values_dim, units, dtype):
    query, values, mask = inputs(values_dim)
    layer = LuongAttention(score, units=units, dtype=dtype)
    context, weights = layer(query, values, mask=mask, return_attention_scores=True)
    expected, expected_weights = oracle(layer, query, values, mask)
    tolerance = {"float32": 1e-5, "mixed_bfloat16": 5e-2, "mixed_float16": 5e-3}[dtype]
    np.testing.assert_allclose(ops.convert_to_numpy(weights), expected_weights, atol=tolerance)
    context = ops.convert_to_numpy(ops.cast(context, "float32"))
    np.testing.assert_allclose(context, expected, atol=2 * tolerance)


@pytest.mark.parametrize("score, values_dim, units", CASES)
def test_steps_masks_and_config(score, values_dim, units):
    query, values, mask = inputs(values_dim)
    mask[0] = False
    layer = LuongAttention(score, units=units)
    many = ops.convert_to_numpy(layer(query, values, mask=mask))
    assert not many[0].any()  # nothing to attend to

    keys = layer.project_keys(ops.convert_to_tensor(values))
    one = layer(query[:, 1], values, mask=mask, projected_keys=keys)
    np.testing.assert_allclose(ops.convert_to_numpy(one), many[:, 1], atol=1e-6)

    padded = np.concatenate([values, np.full((B, 2, values_dim), 1e4, "float32")], axis=1)
    padded_mask = np.concatenate([mask, np.zeros((B, 2), bool)], axis=1)
    got = ops.convert_to_numpy(layer(query, padded, mask=padded_mask))
    np.testing.assert_allclose(got, many, atol=1e-6)

    copy = LuongAttention.from_config(layer.get_config())
    copy.build((B, T, Q), (B, S, values_dim))
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(ops.convert_to_numpy(copy(query, values, mask=mask)), many)
    symbolic = layer(keras.Input((None, Q)), keras.Input((None, values_dim)))
    assert symbolic.shape == (None, None, values_dim)


def test_errors():
    query, values, _ = inputs(M)
    with pytest.raises(ValueError, match="`score` must be one of"):
        LuongAttention("cosine")
    with pytest.raises(ValueError, match="`units` must be a positive integer"):
        LuongAttention("concat", units=0)
    with pytest.raises(ValueError, match='With score="dot" the last dimensions'):
        LuongAttention("dot")(query, values)
