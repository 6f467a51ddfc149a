from collections.abc import Callable

import keras
from keras import ops

from keras_tx.layers.layer import fresh
from keras_tx.layers.learned_encoding import LearnedEncoding
from keras_tx.layers.patch_embedding import PatchEmbedding, patch_pair
from keras_tx.models.blocks import BlockStack, check_stack
from keras_tx.models.model import Model, check_images, check_targets
from keras_tx.models.resized import resized
from keras_tx.ops.sinusoid import sinusoid_2d

POOLINGS = ("class_token", "mean")
POSITIONS = ("learned", "sinusoidal", None)


@keras.saving.register_keras_serializable(package="keras_tx")
class ViT(BlockStack, Model):
    """A vision transformer: classifies images cut into patches.

    Patches are projected, get a position, pass `num_layers` blocks and a normalization (pre-norm)
    and are pooled: a class token's vector, or the mean of the patches', goes to a linear head.

    Args:
        num_classes: Number of classes. Default: the number of `class_names`.
        num_layers: Number of blocks.
        hidden_dim: Features D of a patch.
        num_heads: Query heads of a block. Default: hidden_dim / 64.
        intermediate_dim, gated, normalization, normalization_order, dropout, activation,
            layer_norm_epsilon, use_bias: As for `TransformerBlock`.
        image_size: Height and width of the images in pixels, an integer or a pair.
        patch_size: Height and width of a patch in pixels, an integer or a pair; must divide.
        num_channels: Channels of the images.
        pixel_mean, pixel_std: The images are scaled to (x / 255 - mean) / std.
        pooling: "class_token" or "mean".
        position: "learned", "sinusoidal" (two-dimensional: rows in one half of the features,
            columns in the other) or None.
        block: An unbuilt `TransformerBlock` that is cloned for each layer, or a list of
            `num_layers` of them; it replaces the numbers of the block.
        kernel_initializer: Initializer of the blocks' projections made from numbers.
        class_names: Names of the classes, kept and exported with the model.

    Call arguments:
        inputs: Images (B, height, width, C), 0 to 255, uint8 or floating.
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        float32 logits (B, num_classes); then, if asked for, `{layer name: (B, N, P, P)}`, where
        the class token, if there is one, stands first.

    Raises:
        ValueError: If the patches do not divide the image, or images have another size.

    Example:
        >>> import numpy as np
        >>> vit = ViT(10, num_layers=2, hidden_dim=8, num_heads=2, image_size=8, patch_size=4,
        ...           num_channels=1)
        >>> vit(np.zeros((3, 8, 8, 1), "uint8")).shape
        (3, 10)

    Reference:
        Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", Eq. 1-4 and Table 1; ViT-Ti:
        Touvron et al. 2021, "DeiT", Table 1; sinusoids and mean pooling: Beyer et al. 2022,
        "Better plain ViT baselines for ImageNet-1k". `vit_mini` is this library's own.
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
        pooling: str = "class_token",
        position: str | None = "learned",
        block: keras.layers.Layer | list[keras.layers.Layer] | None = None,
        gated: bool = False,
        normalization: str | keras.layers.Layer = "layer",
        normalization_order: str = "pre",
        dropout: float = 0.0,
        activation: str | Callable | None = None,
        layer_norm_epsilon: float = 1e-6,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_normal",
        class_names: list[str] | None = None,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)  # pixels are scaled in float32
        for name, value, allowed in (
            ("pooling", pooling, POOLINGS),
            ("position", position, POSITIONS),
        ):
            if value not in allowed:
                raise ValueError(f"`{name}` must be one of {allowed}. Received: {value!r}")
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
        self.pooling = pooling
        self.position = position
        self.gated = gated
        self.normalization_order = normalization_order
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias

        self._refuse_without_effect()
        self._make_embeddings()
        self._make_blocks(block)
        self.head = keras.layers.Dense(self.num_classes, name="head", dtype=self.dtype_policy)
        self.head.build((None, hidden_dim))
        self.finish()

    def _make_embeddings(self):
        self.patch_embedding = PatchEmbedding(
            self.patch_size, self.hidden_dim, name="patch_embedding", dtype=self.dtype_policy
        )
        images = (None, *patch_pair(self.image_size), self.num_channels)
        self.patch_embedding.build(images)
        num_patches = self.patch_embedding.compute_output_shape(images)[1]
        initializer = keras.initializers.TruncatedNormal(stddev=0.02)
        self.class_token = None
        if self.pooling == "class_token":
            self.class_token = self.add_weight(
                shape=(1, 1, self.hidden_dim), initializer=fresh(initializer), name="class_token"
            )
        self.position_encoding = None
        if self.position == "learned":
            self.position_encoding = LearnedEncoding(
                num_patches + (self.class_token is not None),
                embeddings_initializer=fresh(initializer),
                name="position_encoding",
                dtype=self.dtype_policy,
            )
            self.position_encoding.build((None, None, self.hidden_dim))
        if self.position == "sinusoidal" and self.hidden_dim % 4:
            raise ValueError(
                "Two-dimensional sinusoids need a `hidden_dim` divisible by 4. "
                f"Received: {self.hidden_dim}"
            )
        self.embedding_dropout = keras.layers.Dropout(
            self.dropout, name="embedding_dropout", dtype=self.dtype_policy
        )

    def call(self, inputs, return_attention_scores: bool = False, training: bool | None = None):
        self.check_inputs(inputs)
        x = self._embed(inputs, training)
        scores = {}
        for block in self.blocks:
            if return_attention_scores:
                x, scores[block.name] = block(x, return_attention_scores=True, training=training)
            else:
                x = block(x, training=training)
        if self.output_norm is not None:
            x = self.output_norm(x)
        pooled = x[:, 0] if self.class_token is not None else ops.mean(x, axis=1)
        logits = ops.cast(self.head(pooled), "float32")
        return (logits, scores) if return_attention_scores else logits

    def _embed(self, images, training):
        pixels = ops.cast(images, "float32") / 255.0
        pixels = (pixels - ops.convert_to_tensor(self.pixel_mean, "float32")) / (
            ops.convert_to_tensor(self.pixel_std, "float32")
        )
        x = self.patch_embedding(ops.cast(pixels, self.compute_dtype))
        if self.position == "sinusoidal":
            rows, columns = self.patch_embedding.grid(images.shape)
            x = x + ops.cast(sinusoid_2d(rows, columns, self.hidden_dim), x.dtype)
        if self.class_token is not None:
            token = ops.cast(self.class_token, x.dtype)
            token = ops.broadcast_to(token, (ops.shape(x)[0], 1, self.hidden_dim))
            x = ops.concatenate([token, x], axis=1)
        if self.position_encoding is not None:
            x = self.position_encoding(x)
        return self.embedding_dropout(x, training=training)

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
