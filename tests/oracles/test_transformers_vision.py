"""ViT equals transformers' DeiT, DINOv2, SigLIP and CLIP towers with their weights copied."""

import numpy as np
import pytest

import keras_tx as ktx
from keras_tx import layers
from tests.models import tools
from tests.oracles.copying import State, randomized, transformers

D, F, N, LAYERS, CLASSES = 12, 7, 3, 2, 5
SIZES = {
    "hidden_size": D,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": N,
    "image_size": 6,
    "patch_size": 2,
    "num_channels": 2,
    "layer_norm_eps": 1e-3,
}
OURS = {
    "num_classes": CLASSES,
    "num_layers": LAYERS,
    "hidden_dim": D,
    "num_heads": N,
    "image_size": 6,
    "patch_size": 2,
    "num_channels": 2,
    "layer_norm_epsilon": 1e-3,
}
IMAGES = np.random.default_rng(7).integers(0, 256, (3, 6, 6, 2)).astype("uint8")


def run(model, **arguments):
    """What a model of transformers gives for the images."""
    import torch

    pixels = torch.tensor(IMAGES).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        return model(pixel_values=(pixels - 0.5) / 0.5, **arguments)


def copy_patches(state, vit, name):
    kernel = state[f"{name}.weight"]  # (D, C, rows, columns)
    bias = state[f"{name}.bias"] if f"{name}.bias" in state.values else np.zeros(D)
    kernel = kernel.transpose(2, 3, 1, 0).reshape(-1, D)
    vit.patch_embedding.projection.set_weights([kernel, bias])


def copy_blocks(state, vit, name, norms, attention, output, mlp):
    for index, block in enumerate(vit.blocks):
        h = f"{name}.{index}"
        state.norm(block.attention_norm, f"{h}.{norms[0]}")
        state.norm(block.feed_forward_norm, f"{h}.{norms[1]}")
        projections = [f"{h}.{attention}.{part}_proj" for part in "qkv"]
        state.dense(block.attention.query_key_value_dense, *projections)
        state.dense(block.attention.output_dense, f"{h}.{attention}.{output}")
        state.dense(block.feed_forward.inner_dense, f"{h}.{mlp}.fc1")
        state.dense(block.feed_forward.output_dense, f"{h}.{mlp}.fc2")
        for part, scale in (("attention", "layer_scale1"), ("feed_forward", "layer_scale2")):
            if block.layer_scale is not None:
                getattr(block, f"{part}_layer_scale").assign(state[f"{h}.{scale}.lambda1"])


def test_deit_with_a_distillation_token():
    hugging = transformers()
    config = hugging.DeiTConfig(**SIZES, intermediate_size=F, num_labels=CLASSES)
    deit = randomized(hugging.DeiTForImageClassificationWithTeacher(config))
    state = State(deit)
    vit = ktx.ViT(**OURS, intermediate_dim=F, distillation_token=True)
    vit.class_token.assign(state["deit.embeddings.cls_token"])
    vit.distillation_token_vector.assign(state["deit.embeddings.distillation_token"])
    vit.position_encoding.embeddings.assign(state["deit.embeddings.position_embeddings"][0])
    copy_patches(state, vit, "deit.embeddings.patch_embeddings.projection")
    norms = "layernorm_before", "layernorm_after"
    copy_blocks(state, vit, "deit.layers", norms, "attention", "o_proj", "mlp")
    state.norm(vit.output_norm, "deit.layernorm")
    state.dense(vit.head, "cls_classifier")
    state.dense(vit.distillation_head, "distillation_classifier")
    assert not state.unread
    logits = run(deit).logits.numpy()
    tools.assert_close(vit.predict(IMAGES, verbose=0), logits)
    assert np.abs(logits).max() > 0.5


def test_dinov2_with_registers():
    hugging = transformers()
    config = hugging.Dinov2WithRegistersConfig(
        **SIZES, mlp_ratio=2, num_register_tokens=4, layerscale_value=0.7, num_labels=CLASSES
    )
    dino = randomized(hugging.Dinov2WithRegistersForImageClassification(config))
    state = State(dino)
    vit = ktx.ViT(
        **OURS,
        intermediate_dim=2 * D,
        pooling="class_token_and_mean",
        num_register_tokens=4,
        layer_scale=0.7,
    )
    tower = "dinov2_with_registers"
    vit.class_token.assign(state[f"{tower}.embeddings.cls_token"])
    vit.register_tokens.assign(state[f"{tower}.embeddings.register_tokens"])
    vit.position_encoding.embeddings.assign(state[f"{tower}.embeddings.position_embeddings"][0])
    copy_patches(state, vit, f"{tower}.embeddings.patch_embeddings.projection")
    norms = "norm1", "norm2"
    copy_blocks(state, vit, f"{tower}.encoder.layer", norms, "attention", "o_proj", "mlp")
    state.norm(vit.output_norm, f"{tower}.layernorm")
    state.dense(vit.head, "classifier")
    assert state.unread == {f"{tower}.embeddings.mask_token"}  # of its training alone
    logits = run(dino).logits.numpy()
    tools.assert_close(vit.predict(IMAGES, verbose=0), logits)
    assert np.abs(logits).max() > 0.5


@pytest.mark.parametrize("pooling", ["attention", "layer"])
def test_siglip_with_attention_pooling(pooling):
    hugging = transformers()
    config = hugging.SiglipVisionConfig(**SIZES, intermediate_size=F)
    siglip = randomized(hugging.SiglipVisionModel(config))
    state = State(siglip)
    numbers = {"intermediate_dim": F, "activation": "gelu_tanh"}
    if pooling == "layer":
        pooling = layers.AttentionPooling(N, F, activation="gelu_tanh", layer_norm_epsilon=1e-3)
    vit = ktx.ViT(**OURS, **numbers, pooling=pooling)
    prefix = "vision_model." if "vision_model.post_layernorm.weight" in state.values else ""
    vit.position_encoding.embeddings.assign(state[f"{prefix}embeddings.position_embedding.weight"])
    copy_patches(state, vit, f"{prefix}embeddings.patch_embedding")
    norms = "layer_norm1", "layer_norm2"
    copy_blocks(state, vit, f"{prefix}encoder.layers", norms, "self_attn", "out_proj", "mlp")
    state.norm(vit.output_norm, f"{prefix}post_layernorm")
    head, pool = f"{prefix}head", vit.pooling_layer
    pool.probe.assign(state[f"{head}.probe"])
    kernel, bias = (
        state[f"{head}.attention.in_proj_weight"].T,
        state[f"{head}.attention.in_proj_bias"],
    )
    pool.attention.query_dense.set_weights([kernel[:, :D], bias[:D]])
    pool.attention.key_value_dense.set_weights([kernel[:, D:], bias[D:]])
    state.dense(pool.attention.output_dense, f"{head}.attention.out_proj")
    state.norm(pool.norm, f"{head}.layernorm")
    state.dense(pool.feed_forward.inner_dense, f"{head}.mlp.fc1")
    state.dense(pool.feed_forward.output_dense, f"{head}.mlp.fc2")
    assert not state.unread
    theirs = run(siglip)
    hidden = vit.encode(IMAGES)
    tools.assert_close(hidden, theirs.last_hidden_state.numpy())
    tools.assert_close(pool(hidden), theirs.pooler_output.numpy())
    assert np.abs(theirs.pooler_output.numpy()).max() > 0.5


def test_clip_normalizes_its_embeddings():
    hugging = transformers()
    config = hugging.CLIPVisionConfig(**SIZES, intermediate_size=F)
    clip = randomized(hugging.CLIPVisionModel(config))
    state = State(clip)
    vit = ktx.ViT(**OURS, intermediate_dim=F, activation="quick_gelu", embedding_normalization=True)
    prefix = "vision_model." if "vision_model.pre_layrnorm.weight" in state.values else ""
    vit.class_token.assign(state[f"{prefix}embeddings.class_embedding"][None, None])
    vit.position_encoding.embeddings.assign(state[f"{prefix}embeddings.position_embedding.weight"])
    copy_patches(state, vit, f"{prefix}embeddings.patch_embedding")
    state.norm(vit.embedding_norm, f"{prefix}pre_layrnorm")
    norms = "layer_norm1", "layer_norm2"
    copy_blocks(state, vit, f"{prefix}encoder.layers", norms, "self_attn", "out_proj", "mlp")
    state.norm(vit.output_norm, f"{prefix}post_layernorm")
    assert not state.unread
    pooled = run(clip).pooler_output.numpy()
    tools.assert_close(vit.encode(IMAGES)[:, 0], pooled)
    assert np.abs(pooled).max() > 0.5
