"""What is trained on and reported: exact over real tokens, whatever the padding (law 2)."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.models import tools

PAD = 0
LENGTHS = [7, 1, 4, 7, 0, 2]


@pytest.fixture(scope="module")
def data():
    """Right-padded ids, targets, and weights of tokens; row 4 is all padding."""
    real = np.arange(7) < np.array(LENGTHS)[:, None]
    x = np.where(real, tools.tokens(6, 7, low=1), PAD).astype("int32")
    y = np.where(real, tools.tokens(6, 7, low=1, seed=6), PAD).astype("int32")
    weights = np.random.default_rng(8).uniform(0.2, 2.0, (6, 7)).astype("float32")
    return x, y, weights, real


@pytest.fixture(scope="module")
def gpt():
    model = tools.make_gpt("list", pad_token_id=PAD)  # a plain block and one of experts
    model.compile("sgd")
    return model


@pytest.fixture(scope="module")
def forward(gpt):
    return tools.forward(gpt)


def padded(array, value=PAD):
    return np.pad(array, ((0, 0), (0, 4)), constant_values=value)


def test_appended_padding_changes_no_real_logit(gpt, forward, data):
    x, _, _, real = data
    one, other = forward(x), forward(padded(x))
    tools.assert_close(other[:, :7][real], one[real])
    assert np.isfinite(other).all()


def test_evaluate_is_exact_over_real_tokens_whatever_the_batch_size(gpt, forward, data):
    x, y, weights, real = data
    logits = forward(x)
    for weighting, batch_size in (
        (None, 1),
        (None, 4),
        (None, 6),
        (weights, 4),
        (weights, 6),
        (weights[:, 0], 6),
    ):
        token_weights = 1.0 if weighting is None else weighting.reshape(6, -1)
        expected = tools.numpy_loss(logits, y, real * token_weights)
        results = gpt.evaluate(
            x, y, sample_weight=weighting, batch_size=batch_size, verbose=0, return_dict=True
        )
        assert set(results) == {"loss", "accuracy"}
        tools.assert_close([results["loss"], results["accuracy"]], list(expected))


def test_appended_padding_changes_no_loss_metric_or_gradient(gpt, data):
    x, y, weights, _ = data
    logs, expected = tools.gradients(gpt, x, y, weights)
    padded_logs, actual = tools.gradients(gpt, padded(x), padded(y), padded(weights, 1))
    tools.assert_close(list(padded_logs.values()), list(logs.values()))
    tools.assert_close(actual, expected)
    assert max(np.abs(gradient).max() for gradient in expected) > 1e-2


def test_a_batch_of_padding_alone_trains_to_no_nan(gpt, data):
    x, y = data[0][4:5], data[1][4:5]
    logs, gradients = tools.gradients(gpt, x, y)
    assert logs["loss"] == 0
    assert not any(gradient.any() for gradient in gradients)


def test_without_a_padding_id_every_id_is_a_word(data):
    x, y, _, real = data
    gpt = tools.make_gpt()
    gpt.compile("sgd")
    logits = gpt.predict(x, verbose=0)
    assert logits.dtype == np.float32
    results = gpt.evaluate(x, y, verbose=0, return_dict=True)
    tools.assert_close(results["loss"], tools.numpy_loss(logits, y, np.ones(y.shape))[0])
    results = gpt.evaluate(x, y, sample_weight=real.astype("float32"), verbose=0, return_dict=True)
    tools.assert_close(results["loss"], tools.numpy_loss(logits, y, real)[0])


def test_segments_of_a_packed_row_are_sequences_of_their_own():
    gpt = tools.make_gpt()
    forward = tools.forward(gpt)
    one, other = tools.tokens(1, 5), tools.tokens(1, 3, seed=6)
    packed = {
        "token_ids": np.concatenate([one, other], 1),
        "segment_ids": np.array([[1] * 5 + [2] * 3], "int32"),
        "positions": np.array([[0, 1, 2, 3, 4, 0, 1, 2]], "int32"),
    }
    logits = forward(packed)
    tools.assert_close(logits[:, :5], forward(np.pad(one, ((0, 0), (0, 3))))[:, :5])
    tools.assert_close(logits[:, 5:], forward(np.pad(other, ((0, 0), (0, 5))))[:, :3])


def test_inputs_are_left_as_they_are(gpt):
    x = ops.convert_to_tensor(tools.tokens(2, 7))
    before = ops.convert_to_numpy(x).copy()
    gpt(x)
    np.testing.assert_array_equal(ops.convert_to_numpy(x), before)
    assert getattr(x, "_keras_mask", None) is None


def test_the_balance_loss_is_added_once_with_gradient_accumulation(data):
    x, y = data[:2]
    gpt = tools.make_gpt("experts", pad_token_id=PAD, num_layers=1)
    gpt(x, training=True)
    (added,) = map(float, gpt.losses)
    assert added > 0.1
    _, expected = tools.gradients(gpt, x, y)
    before = gpt.get_weights()
    gpt.compile(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    gpt.fit(np.concatenate([x, x]), np.concatenate([y, y]), batch_size=6, shuffle=False, verbose=0)
    actual = [a - b for a, b in zip(before, gpt.get_weights(), strict=True)]
    gpt.set_weights(before)
    tools.assert_close(actual, expected)

    gpt.compile(keras.optimizers.SGD(0.0))
    logs = gpt.train_on_batch(x, y, return_dict=True)
    total = next(metric for metric in gpt.metrics if metric.name == "loss")  # what is trained on
    tools.assert_close(float(total.result()), logs["loss"] + added)


def test_vit_trains_from_uint8_images():
    vit = tools.make_vit()
    vit.compile(keras.optimizers.Adam(0.01))
    x, y = tools.images(6), np.array([0, 1, 2, 3, 4, 0])
    history = vit.fit(x, y, batch_size=3, epochs=15, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    logits = vit.predict(x, verbose=0)
    assert logits.dtype == np.float32 and logits.shape == (6, 5)
    weights = np.array([1, 0, 2, 0.5, 1, 3], "float32")
    expected = tools.numpy_loss(logits, y, weights)
    for batch_size in (1, 6):
        results = vit.evaluate(
            x, y, sample_weight=weights, batch_size=batch_size, verbose=0, return_dict=True
        )
        tools.assert_close([results["loss"], results["accuracy"]], list(expected))
