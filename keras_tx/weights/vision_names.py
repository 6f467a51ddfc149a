"""What the vision towers of transformers call the tensors of a `ViT`."""

from typing import NamedTuple

import numpy as np

from keras_tx.layers.patch_embedding import patch_pair
from keras_tx.models.vit import ViT
from keras_tx.weights.state import State

QUERY_KEY_VALUE = "attention.query_key_value_dense"


class VisionNames(NamedTuple):
    """A family's names, as `State.parts` takes them.

    root: What all names but the heads' begin with.
    patches: Of the convolution.
    model: Parts of the model.
    blocks: What the names of a block's parts begin with, its number follows.
    block: Parts of a block.
    heads: Parts of the model whose names have no root.
    gated: Parts of a block with other names where the feed-forward network is gated: as now, and
        as in files of older releases.
    patch_bias: Whether the convolution has one.
    older: (what stood in names in files of older releases, what stands there now), in order.
    ignored: Endings of names that the model does not use: a token of training alone.
    """

    root: str
    patches: str
    model: dict
    blocks: str
    block: dict
    heads: dict
    gated: tuple[dict, ...] = ()
    patch_bias: bool = True
    older: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = (".mask_token", ".position_ids")


OLDER_ATTENTION = (
    ("attention.attention.query", "attention.q_proj"),
    ("attention.attention.key", "attention.k_proj"),
    ("attention.attention.value", "attention.v_proj"),
    ("attention.output.dense", "attention.o_proj"),
)

VIT = VisionNames(
    root="vit.",
    patches="embeddings.patch_embeddings.projection",
    model={
        "class_token": "embeddings.cls_token",
        "position_encoding.embeddings": "embeddings.position_embeddings",
        "output_norm": "layernorm",
    },
    blocks="layers.",
    block={
        "attention_norm": "layernorm_before",
        QUERY_KEY_VALUE: ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        "attention.output_dense": "attention.o_proj",
        "feed_forward_norm": "layernorm_after",
        "feed_forward.inner_dense": "mlp.fc1",
        "feed_forward.output_dense": "mlp.fc2",
    },
    heads={"head": "classifier"},
    older=(
        ("encoder.layer.", "layers."),
        *OLDER_ATTENTION,
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
    ),
)

DEIT = VIT._replace(
    root="deit.",
    model={**VIT.model, "distillation_token_vector": "embeddings.distillation_token"},
    heads={"head": "cls_classifier", "distillation_head": "distillation_classifier"},
)

DINOV2 = VIT._replace(
    root="dinov2.",
    blocks="encoder.layer.",
    block={
        **VIT.block,
        "attention_norm": "norm1",
        "feed_forward_norm": "norm2",
        "attention_layer_scale": "layer_scale1.lambda1",
        "feed_forward_layer_scale": "layer_scale2.lambda1",
    },
    gated=(
        {
            "feed_forward.inner_dense": ("mlp.gate_proj", "mlp.up_proj"),
            "feed_forward.output_dense": "mlp.down_proj",
        },
        {
            "feed_forward.inner_dense": "mlp.weights_in",
            "feed_forward.output_dense": "mlp.weights_out",
        },
    ),
    older=OLDER_ATTENTION,
)

DINOV2_WITH_REGISTERS = DINOV2._replace(
    root="dinov2_with_registers.",
    model={**DINOV2.model, "register_tokens": "embeddings.register_tokens"},
)

SIGLIP = VisionNames(
    root="vision_model.",
    patches="embeddings.patch_embedding",
    model={
        "position_encoding.embeddings": "embeddings.position_embedding.weight",
        "output_norm": "post_layernorm",
        "pooling_layer.probe": "head.probe",
        "pooling_layer.attention.output_dense": "head.attention.out_proj",
        "pooling_layer.norm": "head.layernorm",
        "pooling_layer.feed_forward.inner_dense": "head.mlp.fc1",
        "pooling_layer.feed_forward.output_dense": "head.mlp.fc2",
    },
    blocks="encoder.layers.",
    block={
        "attention_norm": "layer_norm1",
        QUERY_KEY_VALUE: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.output_dense": "self_attn.out_proj",
        "feed_forward_norm": "layer_norm2",
        "feed_forward.inner_dense": "mlp.fc1",
        "feed_forward.output_dense": "mlp.fc2",
    },
    heads={},
)

CLIP = SIGLIP._replace(
    model={
        "class_token": "embeddings.class_embedding",
        "position_encoding.embeddings": "embeddings.position_embedding.weight",
        "embedding_norm": "pre_layrnorm",
        "output_norm": "post_layernorm",
    },
    patch_bias=False,
)


def assign_vision(names: VisionNames, vit: ViT, tensors: dict):
    state = State({_modern(name, names.older): tensor for name, tensor in tensors.items()})
    root = state.root(names.root)
    state.parts(vit, names.model, root)
    for index, block in enumerate(vit.blocks):
        prefix = f"{root}{names.blocks}{index}."
        state.parts(block, {**names.block, **_gated(state, block, names, prefix)}, prefix)
    _patches(state, vit, f"{root}{names.patches}", names.patch_bias)
    if vit.pooling_layer is not None:
        _pooling(state, vit.pooling_layer.attention, f"{root}head.attention")
    state.parts(vit, names.heads, "")
    if not names.heads:
        _pass_on(state, vit)
    state.finish(vit, names.ignored)


def _modern(name, older):
    for old, new in older:
        name = name.replace(old, new)
    return name


def _gated(state, block, names, prefix):
    if not block.feed_forward.gated:
        return {}
    ends = [f"{prefix}{table['feed_forward.output_dense']}.weight" for table in names.gated]
    return names.gated[next((index for index, end in enumerate(ends) if end in state), 0)]


def _patches(state, vit, name, has_bias):
    projection = vit.patch_embedding.projection
    rows, columns = patch_pair(vit.patch_size)
    units = vit.hidden_dim
    state.plan(
        projection.kernel,
        [f"{name}.weight"],
        [(units, vit.num_channels, rows, columns)],
        lambda kernel: kernel.transpose(2, 3, 1, 0).reshape(-1, units),
    )
    if has_bias:
        state.variable(projection.bias, f"{name}.bias")
    else:
        state.constant(projection.bias, np.zeros(units))


def _pooling(state, attention, name):
    """Query, key and value are one tensor there; the query is of something else."""
    units = attention.query_dense.kernel.shape[0]
    for layer, part in (
        (attention.query_dense, slice(None, units)),
        (attention.key_value_dense, slice(units, None)),
    ):
        state.plan(
            layer.kernel,
            [f"{name}.in_proj_weight"],
            [(3 * units, units)],
            lambda kernel, part=part: kernel[part].T,
        )
        state.plan(
            layer.bias, [f"{name}.in_proj_bias"], [(3 * units,)], lambda bias, part=part: bias[part]
        )


def _pass_on(state, vit):
    """A tower has no classifier: the model gives what is pooled, unless it has other classes."""
    head, units = vit.head, vit.hidden_dim
    if vit.num_classes == units:
        state.constant(head.kernel, np.eye(units))
        state.constant(head.bias, np.zeros(units))
    else:
        state.keep(head.kernel)
        state.keep(head.bias)
