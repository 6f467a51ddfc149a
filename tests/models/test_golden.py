"""Files of earlier releases, and of other backends, load and compute the same (laws 1 and 6)."""

import pathlib

import keras
import numpy as np
import pytest

from tests.golden import make
from tests.models import tools

FOLDER = pathlib.Path(make.__file__).parent


@pytest.mark.parametrize("name", ["gpt", "vit"])
def test_a_golden_file(name, backend):
    model = keras.models.load_model(FOLDER / f"{name}.keras")
    golden = dict(np.load(FOLDER / f"{name}.npz"))
    x = golden["inputs"]
    tools.assert_close(model.predict(x, verbose=0), golden["logits"])
    if backend != "jax":  # on JAX every operation would be compiled by itself
        tools.assert_close(model(x), golden["logits"])
    logs, gradients = tools.gradients(model, x, golden["targets"])
    tools.assert_close(logs["loss"], golden["loss"])
    tools.assert_close(np.concatenate([g.ravel() for g in gradients]), golden["gradients"])
    if "text" in golden:
        assert model.generate("An", max_new_tokens=9) == str(golden["text"])
    else:
        assert model.class_names == ("nought", "one", "two", "three", "four")
