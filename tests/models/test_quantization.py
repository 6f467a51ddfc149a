"""A quantized model is near the one it was made from, and survives a file."""

import keras
import numpy as np
import pytest

import keras_tx as ktx
from tests.models import tools


def quantized_models():
    ids = tools.tokens(3, 11)
    special = {"pad_token_id": 0, "start_token_id": 1, "end_token_id": 2}
    pairs = {"source_ids": ids, "target_ids": ids[:, :5]}
    return {
        "gpt": (lambda: tools.make_gpt("rotary", num_layers=1), ids),
        "vit": (tools.make_vit, tools.images(3)),
        "seq2seq": (lambda: ktx.Seq2Seq(13, 1, 8, **special), pairs),
    }


def run(model, inputs):
    """Whole on JAX, which compiles each operation that runs by itself."""
    if keras.backend.backend() == "jax":
        return model.predict(inputs, verbose=0)
    return keras.ops.convert_to_numpy(model(inputs))


@pytest.mark.parametrize(
    "name", ["gpt", *(pytest.param(name, marks=pytest.mark.soak) for name in ("vit", "seq2seq"))]
)
def test_int8_survives_a_file(name, tmp_path):
    make, inputs = quantized_models()[name]
    model = make()
    before = run(model, inputs)
    model.quantize("int8")
    after = run(model, inputs)
    assert 0 < np.abs(after - before).max() < 0.2 * np.abs(before).max()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(run(loaded, inputs), after, atol=1e-5)
    kept = [layer.path for layer in loaded._flatten_layers() if layer.quantization_mode]
    assert kept == [layer.path for layer in model._flatten_layers() if layer.quantization_mode]
