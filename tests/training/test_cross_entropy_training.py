"""The owned loss beside a user's losses and metrics."""

import keras
import numpy as np
import pytest

from tests.models import tools

X, Y = tools.tokens(5, 7), tools.tokens(5, 7, seed=6)


@pytest.fixture
def gpt():
    return tools.make_gpt(num_layers=1)


def test_a_users_metrics_stand_beside_the_models(gpt):
    gpt.compile(
        "sgd",
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(k=3, name="top")],
        weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")],
    )
    weights = (np.arange(7) < np.array([[7], [1], [2], [3], [7]])).astype("float32")
    results = gpt.evaluate(X, Y, 2, 0, sample_weight=weights, return_dict=True)
    assert set(results) == {"loss", "accuracy", "top", "ce"}
    loss, accuracy = tools.numpy_loss(gpt.predict(X, verbose=0), Y, weights)
    tools.assert_close(
        [results["loss"], results["ce"], results["accuracy"]], [loss, loss, accuracy]
    )
    history = gpt.fit(X, Y, verbose=0, validation_data=(X, Y)).history
    assert set(history) == {*results, *(f"val_{name}" for name in results)}


def test_a_users_loss_replaces_the_models(gpt, tmp_path):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    gpt.compile(keras.optimizers.SGD(0.0), loss=loss, metrics=["accuracy"])
    history = gpt.fit(X, Y, verbose=0).history
    assert set(history) == {"loss", "accuracy"}
    expected = tools.numpy_loss(gpt.predict(X, verbose=0), Y, 1.0)
    tools.assert_close([history["loss"][0], history["accuracy"][0]], list(expected))
    gpt.save(tmp_path / "gpt.keras")
    loaded = keras.models.load_model(tmp_path / "gpt.keras")
    assert not loaded.owns_loss
    results = loaded.evaluate(X, Y, verbose=0, return_dict=True)
    tools.assert_close([results["loss"], results["accuracy"]], list(expected))


def test_a_users_loss_alone_reports_no_accuracy(gpt):
    gpt.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert set(gpt.evaluate(X, Y, verbose=0, return_dict=True)) == {"loss"}
    gpt.compile("sgd")
    assert gpt.owns_loss
    assert set(gpt.evaluate(X, Y, verbose=0, return_dict=True)) == {"loss", "accuracy"}


def test_targets_must_be_given(gpt):
    gpt.compile("sgd")
    with pytest.raises(ValueError, match="trains on .inputs, targets.*Received no targets"):
        gpt.fit(X, verbose=0)


def test_callbacks_know_that_more_accuracy_is_better(gpt, tmp_path):
    gpt.compile(keras.optimizers.SGD(0.0))
    callbacks = [
        keras.callbacks.EarlyStopping(monitor="val_accuracy", patience=0),
        keras.callbacks.ModelCheckpoint(
            tmp_path / "gpt.weights.h5",
            monitor="accuracy",
            save_best_only=True,
            save_weights_only=True,
        ),
    ]
    history = gpt.fit(X, Y, verbose=0, epochs=3, validation_data=(X, Y), callbacks=callbacks)
    assert len(history.epoch) == 2
    assert [callback.mode for callback in callbacks] == ["max", "max"]
    assert (tmp_path / "gpt.weights.h5").exists()
