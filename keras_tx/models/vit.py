from collections.abc import Callable

import keras
from keras import ops

from keras_tx.layers.attention_pooling import AttentionPooling
from keras_tx.layers.parts import clone
from keras_tx.layers.patch_embedding import patch_pair
from keras_tx.models.blocks import BlockStack, check_stack, default_num_heads
from keras_tx.models.image_tokens import POSITIONS, ImageTokens
from keras_tx.models.model import Model, check_images, check_targets
from keras_tx.models.resized import resized

POOLINGS = ("class_token", "mean", "class_token_and_mean", "attention")


@keras.saving.register_keras_serializable(package="keras_tx")
class ViT(BlockStack, ImageTokens, Model):
    """A vision transformer: classifies images cut into patches.

    Patches are projected, get a position, pass `num_layers` blocks and a normalization (unless
    post-norm) and are pooled into one vector that goes to a linear head.

    Args:
        num_classes: Number of classes. Default: the number of `class_names`.
        num_layers: Number of blocks.
        hidden_dim: Features D of a patch.
        num_heads: Query heads of a block. Default: hidden_dim / 64.
        intermediate_dim, gated, normalization, normalization_order, layer_scale, dropout,
            stochastic_depth, activation, layer_norm_epsilon, use_bias: As for `TransformerBlock`.
        image_size: Height and width of the images in pixels, an integer or a pair.
        patch_size: Height and width of a patch in pixels, an integer or a pair; must divide.
        num_channels: Channels of the images.
        pixel_mean, pixel_std: The images are scaled to (x / 255 - mean) / std.
        pooling: "class_token", the vector of a token of its own; "mean", that of the patches;
            "class_token_and_mean", the two side by side, as DINOv2's head; "attention", an
            `AttentionPooling` from the block's numbers, as SigLIP; or a layer called on (B, P, D).
        position: "learned", "sinusoidal" (two-dimensional: rows in one half of the features,
            columns in the other) or None.
        num_register_tokens: Learned tokens without a position that stand before the patches and
            are not pooled, as in DINOv2.
        distillation_token: Whether a second class token with a head of its own follows the first,
            as in DeiT; the logits are the mean of both heads'.
        block: An unbuilt `TransformerBlock` that is cloned for each layer, or a list of
            `num_layers` of them; it replaces the numbers of the block.
        embedding_normalization: Whether the tokens are normalized before the blocks, as in CLIP;
            as the first block does.
        kernel_initializer: Initializer of the blocks' projections made from numbers.
        class_names: Names of the classes, kept and exported with the model.

    Call arguments:
        inputs: Images (B, height, width, C), 0 to 255, uint8 or floating.
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        float32 logits (B, num_classes); then, if asked for, `{layer name: (B, N, P, P)}`, where
        P counts class token, distillation token and registers, if any, before the patches.

    Raises:
        ValueError: If the patches do not divide the image, or images have another size.

    Differs from the paper: DeiT trains its two heads on two targets; here their mean is trained
    on one.

    Example:
        >>> import numpy as np
        >>> vit = ViT(10, num_layers=2, hidden_dim=8, num_heads=2, image_size=8, patch_size=4,
        ...           num_channels=1)
        >>> vit(np.zeros((3, 8, 8, 1), "uint8")).shape
        (3, 10)

    Reference:
        Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", Eq. 1-4 and Table 1; ViT-Ti:
        Touvron et al. 2021, "DeiT", Table 1, and section 4 for the distillation token; sinusoids
        and mean pooling: Beyer et al. 2022, "Better plain ViT baselines for ImageNet-1k";
        registers: Darcet et al. 2024, "Vision Transformers Need Registers". `vit_mini` is this
        library's own.
    """

    sizes = {
        "vit_mini": {"num_layers": 6, "hidden_dim": 96, "num_heads": 4},
        "vit_tiny_16": {
            "num_classes": 1000,
            "num_layers": 12,
            "hidden_dim": 192,
            "num_heads": 3,
            "image_size": 224,
            "patch_size": 16,
            "layer_norm_epsilon": 1e-6,
        },
        "vit_base_16": {
            "num_classes": 1000,
            "num_layers": 12,
            "hidden_dim": 768,
            "num_heads": 12,
            "image_size": 224,
            "patch_size": 16,
            "layer_norm_epsilon": 1e-6,
        },
    }

    def __init__(
        self,
        num_classes: int | None = None,
        num_layers: int | None = None,
        hidden_dim: int | None = None,
        num_heads: int | None = None,
        intermediate_dim: int | None = None,
        *,
        image_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        num_channels: int = 3,
        pixel_mean: float | list[float] = 0.5,
        pixel_std: float | list[float] = 0.5,
        pooling: str | keras.layers.Layer = "class_token",
        position: str | None = "learned",
        num_register_tokens: int = 0,
        distillation_token: bool = False,
        block: keras.layers.Layer | list[keras.layers.Layer] | None = None,
        gated: bool = False,
        normalization: str | keras.layers.Layer = "layer",
        normalization_order: str = "pre",
        layer_scale: float | None = None,
        embedding_normalization: bool = False,
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        activation: str | Callable | None = None,
        layer_norm_epsilon: float = 1e-6,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_normal",
        class_names: list[str] | None = None,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)  # pixels are scaled in float32
        is_layer = isinstance(pooling, keras.layers.Layer)
        if not is_layer and pooling not in POOLINGS:
            raise ValueError(
                f"`pooling` must be one of {POOLINGS} or a layer. Received: {pooling!r}"
            )
        if position not in POSITIONS:
            raise ValueError(f"`position` must be one of {POSITIONS}. Received: {position!r}")
        has_class_token = not is_layer and pooling.startswith("class_token")
        if distillation_token and not has_class_token:
            raise ValueError(
                'A distillation token follows a class token: use pooling="class_token". '
                f"Received: {pooling!r}"
            )
        if not isinstance(num_register_tokens, int) or num_register_tokens < 0:
            raise ValueError(
                f"`num_register_tokens` must be an integer from 0. Received: {num_register_tokens}"
            )
        if num_classes is None and class_names is None:
            raise ValueError("Give `num_classes` or `class_names`")
        if None not in (num_classes, class_names) and num_classes != len(class_names):
            raise ValueError(
                f"`class_names` must name all classes. Received: num_classes={num_classes}, "
                f"{len(class_names)} names"
            )
        check_stack(num_layers, hidden_dim)
        self._remember(
            num_heads=num_heads,
            pooling=pooling,
            block=block,
            normalization=normalization,
            activation=activation,
            kernel_initializer=kernel_initializer,
            class_names=class_names,
        )
        self.class_names = None if class_names is None else tuple(map(str, class_names))
        self.num_classes = num_classes or len(class_names)
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.image_size = image_size
        self.patch_size = patch_size
        self.num_channels = num_channels
        self.pixel_mean = pixel_mean
        self.pixel_std = pixel_std
        self.position = position
        self.num_register_tokens = num_register_tokens
        self.distillation_token = distillation_token
        self.gated = gated
        self.normalization_order = normalization_order
        self.layer_scale = layer_scale
        self.embedding_normalization = embedding_normalization
        self.dropout = dropout
        self.stochastic_depth = stochastic_depth
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias

        self._refuse_without_effect()
        self._make_embeddings(has_class_token)
        self._make_blocks(block)
        self.embedding_norm = None
        if embedding_normalization:
            self.embedding_norm = self._make_norm_of(self.blocks[0], "embedding_norm")
        self._make_heads(pooling)
        self.finish()

    def _make_heads(self, pooling):
        if pooling == "attention":
            if self._argument("block") is not None:
                raise ValueError(
                    'pooling="attention" is for blocks made from numbers: beside a `block` pass '
                    "AttentionPooling(num_heads, ...)"
                )
            pooling = AttentionPooling(
                default_num_heads(self._argument("num_heads"), self.hidden_dim),
                self.intermediate_dim,
                activation=self._argument("activation"),
                layer_norm_epsilon=self.layer_norm_epsilon,
                use_bias=self.use_bias,
                kernel_initializer=self._argument("kernel_initializer"),
            )
        self.pooling_layer, features = None, self.hidden_dim
        if isinstance(pooling, keras.layers.Layer):
            self.pooling_layer = clone(pooling, "pooling_layer", self.dtype_policy)
            self.pooling_layer.build((None, None, self.hidden_dim))
            shape = self.pooling_layer.compute_output_shape((None, None, self.hidden_dim))
            features = shape[-1]
        elif pooling == "class_token_and_mean":
            features = 2 * self.hidden_dim
        self.head = self._make_head("head", features)
        if self.distillation_token:
            self.distillation_head = self._make_head("distillation_head", self.hidden_dim)

    def _make_head(self, name, features):
        head = keras.layers.Dense(self.num_classes, name=name, dtype=self.dtype_policy)
        head.build((None, features))
        return head

    def call(self, inputs, return_attention_scores: bool = False, training: bool | None = None):
        x, scores = self._encode(inputs, return_attention_scores, training)
        logits = ops.cast(self.head(self._pool(x)), "float32")
        if self.distillation_token:
            logits = (logits + ops.cast(self.distillation_head(x[:, 1]), "float32")) / 2
        return (logits, scores) if return_attention_scores else logits

    def encode(self, inputs, training: bool | None = None):
        """What the blocks make of images, normalized: (B, P, D) in the compute dtype.

        Args:
            inputs: As for the model.
            training: Whether dropout is on.
        """
        return self._encode(inputs, False, training)[0]

    def _encode(self, inputs, return_attention_scores, training):
        self.check_inputs(inputs)
        x = self._embed(inputs, training)
        scores = {}
        for block in self.blocks:
            if return_attention_scores:
                x, scores[block.name] = block(x, return_attention_scores=True, training=training)
            else:
                x = block(x, training=training)
        return (x if self.output_norm is None else self.output_norm(x)), scores

    def _pool(self, x):
        """(B, P, D) -> (B, features of the head)"""
        patches = x[:, self.num_prefix_tokens :]
        if self.pooling_layer is not None:
            return self.pooling_layer(patches)
        if self.class_token is None:
            return ops.mean(patches, axis=1)
        if self._argument("pooling") == "class_token":
            return x[:, 0]
        return ops.concatenate([x[:, 0], ops.mean(patches, axis=1)], axis=-1)

    def resized(
        self,
        image_size: int | tuple[int, int],
        *,
        interpolation: str = "bicubic",
        antialias: bool = False,
    ):
        """A new model with these weights for images of another size, not compiled.

        Learned positions are interpolated as PyTorch does it for published checkpoints, axial
        rotary encodings turn by the new grid, and sinusoids are made anew.

        Args:
            image_size: Height and width of the images in pixels, an integer or a pair.
            interpolation: "bicubic" or "bilinear".
            antialias: Whether positions of a smaller grid average over all those that they cover.
        """
        return resized(self, image_size, interpolation, antialias)

    def check_inputs(self, inputs):
        check_images(inputs.shape, patch_pair(self.image_size), self.num_channels)

    def check_targets(self, inputs, targets):
        check_targets(targets, inputs.shape[:1], self.num_classes)

    def compute_output_shape(self, inputs_shape):
        return (inputs_shape[0], self.num_classes)
