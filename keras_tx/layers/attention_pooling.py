from collections.abc import Callable

import keras
from keras import ops

from keras_tx.layers.attached_mask import resolve_mask
from keras_tx.layers.feed_forward import FeedForward, check_intermediate_dim
from keras_tx.layers.layer import Layer, known_features
from keras_tx.layers.multi_head_cross_attention import MultiHeadCrossAttention
from keras_tx.layers.normalization import make_normalization


@keras.saving.register_keras_serializable(package="keras_tx")
class AttentionPooling(Layer):
    """Pools a sequence into one vector: what a learned query finds in it.

    `y = attention(probe, x)` with one learned probe as the only query, then `y + mlp(norm(y))`.

    Args:
        num_heads: Number of heads N of the attention.
        intermediate_dim: Width F of the feed-forward network. Default: 4 D.
        activation: Of the feed-forward network, as for `FeedForward`.
        layer_norm_epsilon: Added to the variance in the normalization.
        use_bias: Whether the projections have a bias.
        kernel_initializer: Initializer of the projections.

    Call arguments:
        x: (B, T, D).
        padding_mask: Boolean (B, T), True at real positions. Default: the mask that Keras
            attached to `x`, if any.
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        (B, D) in the compute dtype; then, if asked for, the weights (B, N, 1, T) in float32.

    Raises:
        ValueError: If the heads do not divide the features.

    Example:
        >>> import numpy as np
        >>> AttentionPooling(4)(np.ones((2, 5, 16), "float32")).shape
        (2, 16)

    Reference:
        Lee et al. 2019, "Set Transformer", Eq. 11 (PMA); Zhai et al. 2022, "Scaling Vision
        Transformers", section 3.2 (the head of SigLIP).
    """

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int | None = None,
        *,
        activation: str | Callable | None = None,
        layer_norm_epsilon: float = 1e-6,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_normal",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_intermediate_dim(intermediate_dim)
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self._remember(activation=activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        shared = {
            "use_bias": use_bias,
            "kernel_initializer": self.kernel_initializer,
            "dtype": self.dtype_policy,
        }
        self.attention = MultiHeadCrossAttention(num_heads, name="attention", **shared)
        self.feed_forward = FeedForward(
            intermediate_dim, activation=activation, name="feed_forward", **shared
        )

    def build(self, x_shape):
        hidden_dim = known_features("x", x_shape)
        self.probe = self.add_weight(
            shape=(1, 1, hidden_dim), initializer="glorot_uniform", name="probe"
        )
        self.attention.build((None, 1, hidden_dim), x_shape)
        self.norm = make_normalization(
            "layer", "norm", self.layer_norm_epsilon, self.dtype_policy, hidden_dim
        )
        self.feed_forward.build((None, 1, hidden_dim))

    def call(
        self,
        x,
        padding_mask=None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ):
        padding_mask = resolve_mask(x, padding_mask)
        probe = ops.cast(self.probe, self.compute_dtype)
        probe = ops.broadcast_to(probe, (ops.shape(x)[0], 1, x.shape[-1]))
        y, scores = self.attention(
            probe, x, context_mask=padding_mask, return_attention_scores=True, training=training
        )
        y = (y + self.feed_forward(self.norm(y)))[:, 0]  # (B, D)
        return (y, scores) if return_attention_scores else y

    def compute_mask(self, x, previous_mask):
        return None  # nothing is left to mask

    def compute_output_shape(self, x_shape):
        return (x_shape[0], x_shape[-1])
