"""The position layers: which positions they take, and what they do in half precision."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers import LearnedEncoding, RotaryEncoding, SinusoidalEncoding
from keras_tx.ops.sinusoid import sinusoid
from tests.contract.running import assert_close, call, tensors

X = np.random.default_rng(0).standard_normal((2, 5, 7)).astype("float32")
POSITIONS = np.array([[3, 0, 1, 12, 2], [9, 9, 4, 0, 1]])


@pytest.mark.parametrize("positions", [None, POSITIONS[0], POSITIONS], ids=["none", "one", "rows"])
def test_learned_encoding_adds_the_vector_of_each_position(positions):
    layer = LearnedEncoding(13)
    arguments = {} if positions is None else tensors({"positions": positions})
    got = call(layer, {"x": X}, **arguments)
    table = ops.convert_to_numpy(layer.embeddings)
    assert_close(got, X + table[np.arange(5) if positions is None else positions])


@pytest.mark.parametrize("positions", [None, POSITIONS[0], POSITIONS], ids=["none", "one", "rows"])
@pytest.mark.parametrize("mode", ["add", "concat"])
def test_sinusoidal_encoding(mode, positions):
    layer = SinusoidalEncoding(mode, max_wavelength=100.0)
    arguments = {} if positions is None else tensors({"positions": positions})
    got = call(layer, {"x": X}, **arguments)
    places = np.arange(5) if positions is None else positions
    wave = np.broadcast_to(ops.convert_to_numpy(sinusoid(places, 7, 100.0)), X.shape)
    assert_close(got, X + wave if mode == "add" else np.concatenate([X, wave], -1))


@pytest.mark.parametrize("mode", ["add", "concat"])
def test_neighbouring_positions_stay_distinct_in_bfloat16(mode):
    zeros = np.zeros((1, 1024, 64), "float32")
    got = ops.cast(SinusoidalEncoding(mode, dtype="bfloat16")(zeros), "float32")
    got = ops.convert_to_numpy(got)[0, :, -64:]
    exact = ops.convert_to_numpy(sinusoid(np.arange(1024), 64))
    np.testing.assert_allclose(got, exact, atol=2**-8)
    assert (np.abs(np.diff(got, axis=0)).max(-1) > 0).all()


@pytest.mark.parametrize("positions", [POSITIONS[0], POSITIONS], ids=["one", "rows"])
def test_rotary_encoding_takes_positions_of_each_row(positions):
    heads = np.random.default_rng(1).standard_normal((2, 3, 5, 14)).astype("float32")
    layer = RotaryEncoding(100.0)
    got = call(layer, {"x": heads}, **tensors({"positions": positions}))
    longest = call(layer, {"x": np.repeat(heads[:, :, :, None], 13, axis=3)})
    places = np.broadcast_to(positions, (2, 5))
    for row, t in np.ndindex(2, 5):
        assert_close(got[row, :, t], longest[row, :, t, places[row, t]])


def test_the_sum_is_made_in_float32():
    layer = SinusoidalEncoding(dtype="bfloat16")
    x = ops.cast(X, "bfloat16")
    exact = ops.convert_to_numpy(ops.cast(x, "float32")) + ops.convert_to_numpy(
        sinusoid(np.arange(5), 7)
    )
    assert keras.backend.standardize_dtype(layer(x).dtype) == "bfloat16"
    got = ops.convert_to_numpy(ops.cast(layer(x), "float32"))
    np.testing.assert_array_equal(
        got, ops.convert_to_numpy(ops.cast(ops.cast(exact, "bfloat16"), "float32"))
    )


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="PyTorch has no values only in a trace of shapes"
)
def test_positions_without_values_yet_pass():
    layer = LearnedEncoding(13)
    layer.build((None, 5, 7))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        run = tf.function(layer, jit_compile=True)
    else:
        import jax

        run = jax.jit(layer)
    x, positions = tensors({"x": X, "positions": POSITIONS}).values()
    assert_close(ops.convert_to_numpy(run(x, positions)), ops.convert_to_numpy(layer(x, positions)))


def test_positions_of_a_trace_of_shapes_pass():
    layer = LearnedEncoding(13)
    layer.build((None, 5, 7))
    spec = keras.KerasTensor((2, 5, 7)), keras.KerasTensor((2, 5), "int32")
    assert keras.Operation.compute_output_spec(layer, *spec).shape == (2, 5, 7)
