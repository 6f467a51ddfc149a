"""Dropout is alive in training only, differs from call to call, and follows the seed."""

import inspect

import keras
import numpy as np
import pytest

from tests.contract.cases import CASES, built, twin
from tests.contract.running import call

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_dropout_is_alive_in_training_only(case):
    layer, inputs = twin(case), case.inputs()
    takes_training = "training" in inspect.signature(layer.call).parameters
    plain = call(layer, inputs)
    np.testing.assert_array_equal(call(layer, inputs), plain)
    if not takes_training:
        assert not case.has_dropout
        return
    first, second = (call(layer, inputs, training=True) for _ in range(2))
    if case.has_dropout:
        assert np.abs(first - plain).max() > 1e-3 and np.abs(first - second).max() > 1e-3
    else:
        np.testing.assert_array_equal(first, plain)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.has_dropout], ids=lambda case: case.name
)
def test_dropout_follows_the_seed(case):
    outputs = []
    for seed in (3, 3, 5):
        keras.utils.set_random_seed(seed)
        outputs.append(call(twin(case), case.inputs(), training=True))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0] - outputs[2]).max() > 1e-3


def test_dropout_keeps_the_mean():
    # Of the feed-forward network alone: a softmax or a norm after the dropout moves it.
    (case,) = (case for case in CASES if case.name == "feed_forward")
    layer, inputs = built(case), case.inputs()
    repeated = {name: np.repeat(value, 200, axis=0) for name, value in inputs.items()}
    expected = call(layer, inputs)
    mean = call(layer, repeated, training=True).reshape(-1, 200, *expected.shape[1:]).mean(1)
    assert np.abs(mean - expected).max() < 0.25 * np.abs(expected).max()
