"""What the kernels of a new model begin at."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_tx as ktx
from keras_tx import layers

GPT = {"vocabulary_size": 5, "num_layers": 3, "hidden_dim": 48, "num_heads": 3}


def kernels(model):
    """{path: kernel} of the blocks' products."""
    return {
        weight.path: ops.convert_to_numpy(weight)
        for block in model.blocks
        for weight in block.weights
        if weight.path.endswith("kernel")
    }


@pytest.mark.parametrize("model", ["gpt", "gpt_gated", "vit", "experts"])
def test_kernels_begin_with_a_variance_of_1_over_fan_in(model):
    experts = layers.TransformerBlock(3, causal=True, feed_forward=layers.MoEFFN(3, gated=True))
    made = {
        "gpt": lambda: ktx.GPT(**GPT, max_sequence_length=7),
        "gpt_gated": lambda: ktx.GPT(**GPT, gated=True, max_sequence_length=7),
        "vit": lambda: ktx.ViT(5, 3, 48, 3, image_size=8, patch_size=4),
        "experts": lambda: ktx.GPT(5, 2, 48, block=experts, max_sequence_length=7),
    }[model]()
    found = kernels(made)
    assert len(found) == (10 if model == "experts" else 12)
    for path, kernel in found.items():
        deviation = kernel.std() * np.sqrt(kernel.shape[-2])
        assert abs(deviation - 1) < 4 / np.sqrt(2 * kernel.size), path


def test_depth_scaled_initialization_is_that_of_gpt_2():
    keras.utils.set_random_seed(3)
    plain = kernels(ktx.GPT(**GPT, max_sequence_length=7))
    keras.utils.set_random_seed(3)
    gpt = ktx.GPT(**GPT, max_sequence_length=7, depth_scaled_initialization=True)
    for path, kernel in kernels(gpt).items():
        factor = np.sqrt(2 * 3) if "output_dense" in path else 1.0
        np.testing.assert_allclose(kernel * factor, plain[path], rtol=1e-6)


def test_depth_scaling_reaches_every_expert_and_no_loaded_weight(tmp_path):
    block = layers.TransformerBlock(3, causal=True, feed_forward=layers.MoEFFN(3, 2, 7))
    arguments = {"block": block, "max_sequence_length": 7, "depth_scaled_initialization": True}
    gpt = ktx.GPT(5, 2, 48, **arguments)
    for path, kernel in kernels(gpt).items():
        if path.endswith("output_kernel"):
            deviation = kernel.std(axis=(1, 2)) * np.sqrt(7)
            np.testing.assert_allclose(deviation, np.full(3, 1 / 2), rtol=0.1)
    gpt.save(tmp_path / "gpt.keras")
    loaded = keras.models.load_model(tmp_path / "gpt.keras")
    for one, same in zip(gpt.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, same)
