"""Configurations of vision towers as the arguments of `ViT`.

How pixels are scaled stands in no configuration of a model but in its image processor's:
`pixel_mean` and `pixel_std` are the caller's.
"""

from keras_tx.layers.attention_pooling import AttentionPooling
from keras_tx.layers.feed_forward import FeedForward
from keras_tx.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_tx.layers.transformer_block import TransformerBlock
from keras_tx.weights.options import Options


def vit(options: Options) -> dict:
    return {**_tower(options, layer_norm_epsilon=1e-12), **_classes(options)}


def deit(options: Options) -> dict:
    return {**vit(options), "distillation_token": True}


def dinov2(options: Options) -> dict:
    intermediate_dim = int(options["hidden_size"] * options.get("mlp_ratio", 4))
    is_gated = options.get("use_swiglu_ffn", False)
    if is_gated:  # two thirds, rounded up to a multiple of 8
        intermediate_dim = (int(intermediate_dim * 2 / 3) + 7) // 8 * 8
    tower = _tower(
        options,
        intermediate_dim=intermediate_dim,
        activation="silu" if is_gated else None,
        gated=is_gated,
        layer_scale=float(options.get("layerscale_value", 1.0)),
    )
    return {**tower, "pooling": "class_token_and_mean", **_classes(options)}


def dinov2_with_registers(options: Options) -> dict:
    return {**dinov2(options), "num_register_tokens": options.get("num_register_tokens", 4)}


def siglip(options: Options) -> dict:
    options.require("vision_use_head", True)
    activation = options.activation("hidden_act", "gelu_pytorch_tanh")
    pooling = AttentionPooling(
        options["num_attention_heads"],
        options["intermediate_size"],
        activation=activation,
        layer_norm_epsilon=options.get("layer_norm_eps", 1e-6),
    )
    tower = _tower(options, activation=activation)
    return {**tower, "pooling": pooling, "num_classes": options["hidden_size"]}


def clip(options: Options) -> dict:
    activation = options.activation("hidden_act", "quick_gelu")
    tower = _tower(options, activation=activation, layer_norm_epsilon=1e-5)
    return {**tower, "embedding_normalization": True, "num_classes": options["hidden_size"]}


def _tower(
    options: Options,
    *,
    intermediate_dim: int | None = None,
    activation: str | None = None,
    gated: bool = False,
    layer_scale: float | None = None,
    layer_norm_epsilon: float = 1e-6,
) -> dict:
    block = TransformerBlock(
        attention=MultiHeadSelfAttention(
            options["num_attention_heads"],
            use_bias=options.get("qkv_bias", True),
            use_output_bias=True,
        ),
        feed_forward=FeedForward(
            intermediate_dim or options["intermediate_size"],
            gated=gated,
            activation=activation or options.activation("hidden_act", "gelu"),
        ),
        layer_scale=layer_scale,
        layer_norm_epsilon=options.get("layer_norm_eps", layer_norm_epsilon),
    )
    return {
        "num_layers": options["num_hidden_layers"],
        "hidden_dim": options["hidden_size"],
        "image_size": _pair(options["image_size"]),
        "patch_size": _pair(options["patch_size"]),
        "num_channels": options.get("num_channels", 3),
        "block": block,
    }


def _pair(size):
    return size if isinstance(size, int) else tuple(size)


def _classes(options) -> dict:
    """The number of classes, and their names where they have been given any."""
    labels = options.first("id2label", default={})
    names = [labels[key] for key in sorted(labels, key=int)]
    if names == [f"LABEL_{index}" for index in range(len(names))]:
        return {"num_classes": len(names) or options.first("num_labels", default=2)}
    return {"num_classes": len(names), "class_names": names}
