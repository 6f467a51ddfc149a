"""Two-dimensional rotary encoding against float64, transformers, and what it is for."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers import AxialRotaryEncoding, MultiHeadSelfAttention
from tests.contract.running import assert_close, call, tensors

B, N, ROWS, COLUMNS, PREFIX, H, BASE = 2, 3, 3, 5, 2, 20, 50.0
P = PREFIX + ROWS * COLUMNS
X = np.random.default_rng(0).standard_normal((B, N, P, H)).astype("float32")
both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])


def make(interleaved=False, prefix=PREFIX, **options):
    return AxialRotaryEncoding(
        (ROWS, COLUMNS), BASE, num_prefix_tokens=prefix, interleaved=interleaved, **options
    )


def turned(x, interleaved):
    """Each pair as a complex number times e^{i place theta}, pair by pair: float64."""
    x, result = x.astype("float64"), x.astype("float64")
    for row, column, pair in np.ndindex(ROWS, COLUMNS, H // 2):
        place = row if pair < H // 4 else column
        theta = BASE ** (-4 * (pair % (H // 4)) / H)
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + H // 2)
        patch = PREFIX + row * COLUMNS + column
        z = (x[..., patch, first] + 1j * x[..., patch, second]) * np.exp(1j * place * theta)
        result[..., patch, first], result[..., patch, second] = z.real, z.imag
    return result


@both_pairings
def test_rows_turn_one_half_and_columns_the_other(interleaved):
    got = call(make(interleaved), {"x": X})
    assert_close(got, turned(X, interleaved).astype("float32"))
    np.testing.assert_array_equal(got[:, :, :PREFIX], X[:, :, :PREFIX])


def test_it_is_that_of_qwen3_vl():
    import torch
    from transformers.models.qwen3_vl import modeling_qwen3_vl as theirs

    config = SimpleNamespace(rope_parameters={"rope_type": "axial", "rope_theta": BASE}, head_dim=H)
    places = np.stack(np.divmod(np.arange(ROWS * COLUMNS), COLUMNS), axis=1)  # (P, 2)
    rotary = theirs.Qwen3VLVisionRotaryEmbedding(config)
    x = torch.tensor(X[0, :, PREFIX:]).permute(1, 0, 2)  # (P, N, H)
    cos, sin = rotary(x, torch.tensor(places))
    expected, _ = theirs.apply_rotary_pos_emb_vision(x, x, cos, sin)
    got = call(make(prefix=0), {"x": X[:1, :, PREFIX:]})
    assert_close(got[0], expected.permute(1, 0, 2).numpy())


@both_pairings
def test_products_depend_on_both_distances_alone(interleaved):
    query, key = np.random.default_rng(1).standard_normal((2, 1, 1, 1, H)).astype("float32")
    everywhere = (1, 1, ROWS * COLUMNS, 1)
    layer = make(interleaved, prefix=0)
    query, key = (
        call(layer, {"x": np.tile(x, everywhere)})[0, 0].reshape(ROWS, COLUMNS, H)
        for x in (query, key)
    )
    products = np.einsum("abh,cdh->abcd", query, key)
    for row, column in ((1, 2), (-1, 3), (2, -4)):
        same = [
            products[a, b, a + row, b + column]
            for a, b in np.ndindex(ROWS, COLUMNS)
            if 0 <= a + row < ROWS and 0 <= b + column < COLUMNS
        ]
        assert np.ptp(same) < 1e-5
    assert np.ptp(products) > 1e-2


def test_positions_say_which_places_are_there():
    layer, places = make(), np.array([[1, 16, 4], [2, 9, 0]])
    whole = call(layer, {"x": X})
    some = np.take_along_axis(X, places[:, None, :, None], axis=2)
    got = call(layer, {"x": some}, **tensors({"positions": places}))
    assert_close(got, np.take_along_axis(whole, places[:, None, :, None], axis=2))


def test_attention_takes_it():
    attention = MultiHeadSelfAttention(N, H, position=make())
    x = np.random.default_rng(2).standard_normal((B, P, 7)).astype("float32")
    output = call(attention, {"x": x})
    swapped = x.copy()
    swapped[:, [PREFIX, PREFIX + 1]] = x[:, [PREFIX + 1, PREFIX]]
    assert np.abs(call(attention, {"x": swapped})[:, -1] - output[:, -1]).max() > 1e-4
    swapped = x.copy()
    swapped[:, [0, 1]] = x[:, [1, 0]]
    assert_close(call(attention, {"x": swapped})[:, -1], output[:, -1])


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="Others have no unknown dimension in a trace"
)
@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "jit"])
def test_unknown_batch_and_number_of_patches(compiled):
    import tensorflow as tf

    layer = make()
    layer.build((None, N, None, H))

    @tf.function(input_signature=[tf.TensorSpec((None, N, None, H))], jit_compile=compiled)
    def run(x):
        return layer(x)

    assert_close(run(X).numpy(), call(layer, {"x": X}))


def test_what_is_turned_in_half_precision():
    x = ops.cast(X, "bfloat16")
    got = ops.cast(make(dtype="bfloat16")(x), "float32")
    expected = turned(ops.convert_to_numpy(ops.cast(x, "float32")), False).astype("float32")
    assert_close(ops.convert_to_numpy(got), expected, 2**-8)
