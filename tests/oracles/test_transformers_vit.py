"""ViT equals transformers' ViT with its weights copied."""

import sys

import numpy as np
import pytest

import keras_tx as ktx
from tests.models import tools


@pytest.fixture(scope="module")
def reference():
    """State dict, images and logits of a tiny random ViT."""
    sys.modules.setdefault("torchvision", None)  # PyPI's does not fit the CPU build of torch
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=7,
        image_size=(6, 9),
        patch_size=(2, 3),
        num_channels=2,
        num_labels=5,
        initializer_range=0.4,
    )
    vit = transformers.ViTForImageClassification(config).eval()
    images = tools.images(3)
    with torch.no_grad():
        for parameter in vit.parameters():
            if parameter.ndim == 1:  # no bias of 0, no gain of 1
                parameter.add_(0.2 * torch.randn_like(parameter))
        pixels = torch.tensor(images).permute(0, 3, 1, 2) / 255
        logits = vit(pixel_values=(pixels - 0.5) / 0.5).logits.numpy()
    return {name: value.numpy() for name, value in vit.state_dict().items()}, images, logits


def copy(state, vit):
    def dense(name):
        return state[f"{name}.weight"].T, state[f"{name}.bias"]

    def norm(layer, name):
        layer.set_weights([state[f"{name}.weight"], state[f"{name}.bias"]])

    vit.class_token.assign(state["vit.embeddings.cls_token"])
    vit.position_encoding.embeddings.assign(state["vit.embeddings.position_embeddings"][0])
    kernel = state["vit.embeddings.patch_embeddings.projection.weight"]  # (D, C, rows, columns)
    vit.patch_embedding.projection.set_weights(
        [
            kernel.transpose(2, 3, 1, 0).reshape(-1, kernel.shape[0]),
            state["vit.embeddings.patch_embeddings.projection.bias"],
        ]
    )
    for index, block in enumerate(vit.blocks):
        h = f"vit.layers.{index}"
        projections = [dense(f"{h}.attention.{part}_proj") for part in "qkv"]
        kernel, bias = (np.concatenate(part, axis=-1) for part in zip(*projections, strict=True))
        norm(block.attention_norm, f"{h}.layernorm_before")
        block.attention.query_key_value_dense.set_weights([kernel, bias])
        block.attention.output_dense.set_weights(dense(f"{h}.attention.o_proj"))
        norm(block.feed_forward_norm, f"{h}.layernorm_after")
        block.feed_forward.inner_dense.set_weights(dense(f"{h}.mlp.fc1"))
        block.feed_forward.output_dense.set_weights(dense(f"{h}.mlp.fc2"))
    norm(vit.output_norm, "vit.layernorm")
    vit.head.set_weights(dense("classifier"))


def test_logits(reference):
    state, images, logits = reference
    vit = ktx.ViT(
        5,
        2,
        12,
        3,
        7,
        image_size=(6, 9),
        patch_size=(2, 3),
        num_channels=2,
        layer_norm_epsilon=1e-12,
    )
    copy(state, vit)
    tools.assert_close(vit.predict(images, verbose=0), logits, 1e-4)
    assert np.abs(logits).max() > 0.5
