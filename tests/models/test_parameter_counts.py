"""Published sizes, counted without making the weights."""

import keras
import pytest

import keras_tx as ktx


@pytest.mark.parametrize(
    "model_class, size, parameters",
    [
        (ktx.GPT, "gpt2_small", 124_439_808),
        (ktx.ViT, "vit_tiny_16", 5_717_416),
        (ktx.ViT, "vit_base_16", 86_567_656),
    ],
)
def test_parameters_of_a_size(model_class, size, parameters):
    with keras.StatelessScope(initialize_variables=False):
        assert model_class.from_size(size).count_params() == parameters


def test_changes_replace_and_complete_a_size():
    with keras.StatelessScope(initialize_variables=False):
        gpt = ktx.GPT.from_size("gpt_mini", vocabulary_size=13, num_layers=1)
        size = ktx.GPT.sizes["gpt_mini"]
        assert (gpt.vocabulary_size, len(gpt.blocks)) == (13, 1)
        assert gpt.hidden_dim == size["hidden_dim"] and size["num_layers"] != 1
        block = ktx.layers.TransformerBlock(3, 5, head_dim=4, causal=True)
        gpt = ktx.GPT.from_size("gpt2_small", block=block, num_layers=1)  # its numbers make way
        assert gpt.blocks[0].intermediate_dim == 5 and gpt.hidden_dim == 768
        vit = ktx.ViT.from_size("vit_mini", num_classes=3, image_size=8, patch_size=4)
        assert len(vit.blocks) == ktx.ViT.sizes["vit_mini"]["num_layers"]
