import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers import FeedForward
from tests.contract.running import assert_close, call

X = np.random.default_rng(0).standard_normal((2, 5, 7)).astype("float32")
erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
}


def exact(layer):
    random = np.random.default_rng(1)
    layer.build(X.shape)
    layer.set_weights([random.standard_normal(w.shape) for w in layer.get_weights()])
    return [w.astype("float64") for w in layer.get_weights()]


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_plain(activation):
    layer = FeedForward(11, activation=activation)
    inner_kernel, inner_bias, kernel, bias = exact(layer)
    function = ACTIVATIONS[activation or "gelu"]
    expected = function(X.astype("float64") @ inner_kernel + inner_bias) @ kernel + bias
    assert_close(call(layer, {"x": X}).astype("float64"), expected)


@pytest.mark.parametrize("activation", [None, "gelu", "gelu_tanh"])
def test_gated(activation):
    layer = FeedForward(11, activation=activation, gated=True, use_bias=False)
    inner, kernel = exact(layer)
    assert inner.shape == (7, 22)
    gate, wide = np.split(X.astype("float64") @ inner, 2, axis=-1)
    expected = (ACTIVATIONS[activation or "silu"](gate) * wide) @ kernel
    assert_close(call(layer, {"x": X}).astype("float64"), expected)


@pytest.mark.parametrize("hidden_dim, plain, gated", [(12, 48, 32), (7, 28, 24)])
def test_default_widths(hidden_dim, plain, gated):
    for is_gated, width in ((False, plain), (True, gated)):
        layer = FeedForward(gated=is_gated)
        layer.build((None, None, hidden_dim))
        assert layer.output_dense.kernel.shape == (width, hidden_dim)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_saved_by_its_name(activation):
    layer = FeedForward(11, activation=activation)
    assert FeedForward.from_config(layer.get_config()).activation is layer.activation


def test_any_rank_and_a_layer_as_activation():
    layer = FeedForward(11, activation=keras.activations.tanh)
    expected = call(layer, {"x": X})
    assert_close(call(layer, {"x": X[0]}), expected[0])
    assert_close(call(layer, {"x": X[None]}), expected[None])
    assert ops.ndim(layer(X[0, :1])) == 2
