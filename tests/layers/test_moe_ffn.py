"""The mixture of experts against a loop over tokens, and the dense mixture for its gradients."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx.layers import MoEFFN
from tests.contract.running import assert_close, call, gradients, tensors

B, T, D, F, E = 3, 5, 7, 11, 4


def make(top_k=2, **options):
    layer = MoEFFN(E, top_k, F, **options)
    layer.build((None, None, D))
    random = np.random.default_rng(3)
    layer.set_weights([0.5 * random.standard_normal(w.shape) for w in layer.get_weights()])
    return layer


def inputs(seed=0):
    return np.random.default_rng(seed).standard_normal((B, T, D)).astype("float32")


def weights(layer):
    named = {weight.name: ops.convert_to_numpy(weight) for weight in layer.trainable_weights}
    return {name: value.astype("float64") for name, value in named.items()}


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def silu(x):
    return x / (1 + np.exp(-x))


def oracle(layer, x):
    """Token by token, expert by expert, in float64."""
    w = weights(layer)
    y = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        token = x[place].astype("float64")
        logits = token @ w["kernel"]
        probabilities = np.exp(logits - logits.max())
        best = np.argsort(-probabilities)[: layer.top_k]
        for expert in best:
            inner = token @ w["inner_kernel"][expert]
            if layer.use_bias:
                inner = inner + w["inner_bias"][expert]
            if layer.gated:
                inner = silu(inner[:F]) * inner[F:]
            else:
                inner = gelu(inner)
            output = inner @ w["output_kernel"][expert]
            if layer.use_bias:
                output = output + w["output_bias"][expert]
            y[place] += probabilities[expert] / probabilities[best].sum() * output
    return y


@pytest.mark.parametrize(
    "top_k, gated, use_bias", [(1, False, False), (2, True, True), (E, False, True)]
)
def test_equals_the_loop(top_k, gated, use_bias):
    layer = make(top_k, gated=gated, use_bias=use_bias)
    assert_close(call(layer, {"x": inputs()}).astype("float64"), oracle(layer, inputs()))


class Dense(keras.layers.Layer):
    """Every expert on every token, weighted by what the router gave: the slow, plain way."""

    def __init__(self, sparse):
        super().__init__()
        self.sparse = sparse
        self.built = True

    def call(self, x):
        sparse = self.sparse
        probabilities = ops.softmax(ops.matmul(x, sparse.router.kernel))
        least = ops.min(ops.top_k(probabilities, sparse.top_k)[0], axis=-1, keepdims=True)
        chosen = ops.where(probabilities >= least, probabilities, 0.0)
        chosen = chosen / ops.sum(chosen, axis=-1, keepdims=True)
        inner = ops.gelu(ops.einsum("btd,edf->btef", x, sparse.inner_kernel), approximate=False)
        output = ops.einsum("btef,efd->bted", inner, sparse.output_kernel)
        return ops.einsum("bte,bted->btd", chosen, output)


def test_gradients_equal_those_of_the_dense_mixture():
    layer = make(activation="gelu")
    dense = Dense(layer)
    cotangent = inputs(seed=2)
    assert_close(call(dense, {"x": inputs()}), call(layer, {"x": inputs()}))
    assert_close(
        gradients(layer, {"x": inputs()}, cotangent), gradients(dense, {"x": inputs()}, cotangent)
    )


def test_no_token_is_dropped_when_all_want_one_expert():
    layer, x = make(top_k=1), np.abs(inputs())
    kernel = np.zeros((D, E), "float32")
    kernel[:, 2] = 1.0
    layer.router.kernel.assign(kernel)
    w = weights(layer)
    expected = gelu(x.astype("float64") @ w["inner_kernel"][2]) @ w["output_kernel"][2]
    assert_close(call(layer, {"x": x}).astype("float64"), expected)


def test_other_rows_and_their_number_change_nothing():
    layer, x = make(), inputs()
    expected = call(layer, {"x": x})
    crowd = np.concatenate([x[:1], np.repeat(x[1:2], 11, axis=0)])  # another block size too
    assert_close(call(layer, {"x": crowd})[:1], expected[:1])
    assert_close(call(layer, {"x": x[:1]}), expected[:1])


INITIALIZERS = {
    "glorot_uniform": np.sqrt(2 / (97 + 101)),
    "lecun_normal": np.sqrt(1 / np.array([101, 97])),
    "he_normal": np.sqrt(2 / np.array([101, 97])),
    "seeded": 0.3,
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_each_expert_begins_as_a_dense_layer_of_its_own(name):
    seeded = keras.initializers.RandomNormal(stddev=0.3, seed=5)
    layer = MoEFFN(E, 1, 97, kernel_initializer=seeded if name == "seeded" else name)
    layer.build((None, None, 101))
    expected = np.broadcast_to(INITIALIZERS[name], 2)
    for bank, deviation in zip((layer.inner_kernel, layer.output_kernel), expected, strict=True):
        bank = ops.convert_to_numpy(bank)
        np.testing.assert_allclose(bank.std(axis=(1, 2)), deviation, rtol=0.05)
        for one in range(E):
            for other in range(one):  # no two begin alike
                assert np.abs(bank[one] - bank[other]).max() > deviation
    copy = MoEFFN.from_config(layer.get_config())
    copy.build((None, None, 101))
    same = np.array_equal(*map(ops.convert_to_numpy, (copy.inner_kernel, layer.inner_kernel)))
    assert same == (name == "seeded")


def balance(layer, x, mask=None):
    logits = x.reshape(-1, D).astype("float64") @ weights(layer)["kernel"]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    real = np.ones(len(logits), bool) if mask is None else mask.reshape(-1)
    best = np.argsort(-probabilities[real], axis=-1)[:, : layer.top_k]
    share = np.bincount(best.reshape(-1), minlength=E) / best.size
    return layer.balance_loss_weight * E * np.sum(share * probabilities[real].mean(0))


def test_balance_loss_counts_real_tokens_in_training_only():
    layer, x = make(balance_loss_weight=0.3), inputs()
    mask = np.arange(T)[None] < [[5], [2], [3]]
    layer(x)
    assert layer.losses == []
    layer(x, training=True)
    (loss,) = layer.losses
    np.testing.assert_allclose(float(loss), balance(layer, x), rtol=1e-5)

    def masked_loss(x, **arguments):
        layer(x, training=True, **arguments)
        return float(layer.losses[0])

    expected = balance(layer, x, mask)
    assert abs(expected - balance(layer, x)) > 1e-4
    np.testing.assert_allclose(
        masked_loss(x, padding_mask=ops.convert_to_tensor(mask)), expected, rtol=1e-5
    )
    zeroed = np.where(mask[..., None], x, 0).astype("float32")
    np.testing.assert_allclose(masked_loss(keras.layers.Masking()(zeroed)), expected, rtol=1e-5)
    nothing = ops.zeros((B, T), "bool")
    assert masked_loss(x, padding_mask=nothing) == 0.0
    quiet = make(balance_loss_weight=0.0)
    quiet(x, training=True)
    assert quiet.losses == []


def test_balance_loss_is_counted_once_in_fit():
    x, target = inputs(), inputs(seed=4)
    layer = make(balance_loss_weight=0.3)
    expected = np.mean((oracle(layer, x) - target) ** 2) + balance(layer, x)
    source = keras.Input((None, D))
    inner = keras.Model(source, layer(source))  # nested, where a loss could be found twice
    outer = keras.Input((None, D))
    model = keras.Model(outer, inner(outer))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    np.testing.assert_allclose(model.train_on_batch(x, target), expected, rtol=1e-5)


def test_balance_loss_moves_the_router_towards_balance():
    layer, x = make(top_k=1, balance_loss_weight=1.0), np.abs(inputs())
    kernel = np.zeros((D, E), "float32")
    kernel[:, 0] = 0.2  # everything prefers expert 0
    layer.router.kernel.assign(kernel)
    source = keras.Input((None, D))
    model = keras.Model(source, 0.0 * layer(source))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    before = balance(layer, x)
    model.train_on_batch(x, np.zeros_like(x))
    assert balance(layer, x) < before
    moved = ops.convert_to_numpy(layer.router.kernel) - kernel
    assert moved[:, 0].mean() < 0 < moved[:, 1:].mean()


def test_routes_in_float32_under_half_precision():
    x = inputs()
    reference, layer = make(), make(dtype="mixed_float16")
    layer.set_weights(reference.get_weights())
    assert layer.router.compute_dtype == "float32"
    # Two experts, now this one better and now that, by less than float16 can tell at this size.
    kernel = np.zeros((D, E), "float32")
    kernel[0], kernel[1] = [10, 10, -10, -10], [0.001, -0.001, 0, 0]
    x[..., 0], x[..., 1] = 1.0, np.where(x[..., 1] > 0, 1.0, -1.0)
    for each in (reference, layer):
        each.top_k = 1
        each.router.kernel.assign(kernel)
    assert_close(call(layer, {"x": x}), call(reference, {"x": x}), 3e-3)


def test_masked_tokens_still_get_their_own_result():
    layer, x = make(), inputs()
    mask = tensors({"padding_mask": np.zeros((B, T), bool)})
    assert_close(call(layer, {"x": x}, **mask), call(layer, {"x": x}))
