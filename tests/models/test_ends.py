"""What stands before and after the blocks, where the blocks add nothing."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.models import tools


def without_blocks(model):
    """Blocks that are not post-norm add nothing when their weights are 0."""
    for block in model.blocks:
        for weight in block.weights:
            weight.assign(np.zeros(weight.shape))
    return model


def normal(layer, x):
    gain, *bias = (w.astype("float64") for w in layer.get_weights())
    x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + layer.epsilon) * gain
    return y + bias[0] if bias else y


@pytest.mark.parametrize("position", ["learned", None])
def test_gpt(position):
    gpt = without_blocks(
        tools.make_gpt(
            position=position,
            scale_embeddings=True,
            embedding_normalization=True,
            logit_soft_cap=5.0,
        )
    )
    ids = tools.tokens(2, 7)
    embeddings = ops.convert_to_numpy(gpt.token_embedding.embeddings).astype("float64")
    x = embeddings[ids] * np.sqrt(tools.GPT_SIZES["hidden_dim"])
    if position is not None:
        x = x + ops.convert_to_numpy(gpt.position_encoding.embeddings)[:7]
    x = normal(gpt.output_norm, normal(gpt.embedding_norm, x))
    logits = x @ embeddings.T
    assert np.abs(logits).max() > 5
    tools.assert_close(gpt.predict(ids, verbose=0), 5 * np.tanh(logits / 5))


def test_vit_with_registers_and_a_normalization_without_bias():
    vit = without_blocks(
        tools.make_vit(
            pooling="mean",
            num_register_tokens=3,
            normalization=keras.layers.LayerNormalization(epsilon=0.1, center=False),
            embedding_normalization=True,
        )
    )
    images = tools.images(2)
    patches = ops.convert_to_numpy(
        vit.patch_embedding(ops.cast(images, "float32") / 127.5 - 1)
    ).astype("float64")
    x = patches + ops.convert_to_numpy(vit.position_encoding.embeddings)
    x = normal(vit.output_norm, normal(vit.embedding_norm, x))
    kernel, bias = vit.head.get_weights()
    tools.assert_close(vit.predict(images, verbose=0), x.mean(1) @ kernel + bias)
    assert vit.encode(images).shape == (2, 3 + patches.shape[1], 8)
    _, scores = vit(images, return_attention_scores=True)
    assert scores["block_1"].shape[2:] == (3 + patches.shape[1],) * 2
    copy = type(vit).from_config(vit.get_config())
    copy.set_weights(vit.get_weights())
    tools.assert_close(copy.predict(images, verbose=0), vit.predict(images, verbose=0), 0.0)
