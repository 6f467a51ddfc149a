import inspect
from collections.abc import Callable

import keras

from keras_tx.layers.feed_forward import FeedForward
from keras_tx.layers.layer import Layer, build_part, known_features, resolve_mask
from keras_tx.layers.multi_head_cross_attention import MultiHeadCrossAttention
from keras_tx.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_tx.layers.normalization import check_normalization, make_normalization

ORDERS = ("pre", "post")


@keras.saving.register_keras_serializable(package="keras_tx")
class TransformerBlock(Layer):
    """Attention and feed-forward, each with a residual connection and a normalization.

    Pre-norm: `x + f(norm(x))`. Post-norm: `norm(x + f(x))`. f is self-attention, then
    cross-attention if there is one, then the feed-forward network. The parts are made from plain
    numbers or passed in.

    Args:
        num_heads: Query heads of the attention, when it is not passed in.
        intermediate_dim: Width of the feed-forward network, when it is not passed in. Default:
            4 D, or when gated 8/3 D rounded up to a multiple of 8.
        attention: A self-attention layer, called as
            `attention(x, padding_mask=, attention_mask=, segment_ids=, positions=, ...)`.
        feed_forward: A layer called as `feed_forward(x)`, or with `padding_mask=` if it has it.
        cross_attention: A `MultiHeadCrossAttention`, or True for one with `num_heads`.
        num_key_value_heads, head_dim, causal, window, position: Of the attention made here.
        gated: Of the feed-forward network made here.
        normalization: "layer" or "rms".
        normalization_order: "pre" or "post".
        dropout: Fraction of each part's output dropped in training, and of the attention
            weights of attention made here.
        activation: Of the feed-forward network made here.
        layer_norm_epsilon: Added to the variance (or mean square) in the normalizations.
        use_bias: Whether the parts made here have biases.
        kernel_initializer: Initializer of the parts made here. Default: each part's own.

    Call arguments:
        x: (B, T, D).
        context: (B, S, C), for the cross-attention.
        padding_mask: Boolean (B, T), True at real positions. Default: the mask that Keras
            attached to `x`, if any.
        context_mask: The same for `context`, (B, S).
        attention_mask, segment_ids, positions, cache, cache_index: As for
            `MultiHeadSelfAttention`.
        return_attention_scores: Whether to return the self-attention weights too.

    Returns:
        (B, T, D) in the compute dtype; then, if asked for, the weights (B, N, T, S); then, if a
        cache was given, the new cache.

    Raises:
        ValueError: If the arguments do not say how to make a part, or say so for one that is
            passed in, or a context is missing or has no reader.

    Example:
        >>> import numpy as np
        >>> block = TransformerBlock(4, causal=True, normalization="rms", gated=True)
        >>> block(np.ones((2, 5, 16), "float32")).shape
        (2, 5, 16)

    Reference:
        Vaswani et al. 2017, section 3.1 (post-norm); Xiong et al. 2020, "On Layer Normalization
        in the Transformer Architecture", Table 1 (pre-norm).
    """

    def __init__(
        self,
        num_heads: int | None = None,
        intermediate_dim: int | None = None,
        *,
        attention: keras.layers.Layer | None = None,
        feed_forward: keras.layers.Layer | None = None,
        cross_attention: keras.layers.Layer | bool | None = None,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = False,
        window: int | None = None,
        position: keras.layers.Layer | None = None,
        gated: bool = False,
        normalization: str = "layer",
        normalization_order: str = "pre",
        dropout: float = 0.0,
        activation: str | Callable | None = None,
        layer_norm_epsilon: float = 1e-5,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_normalization(normalization)
        if normalization_order not in ORDERS:
            raise ValueError(
                f"`normalization_order` must be one of {ORDERS}. Received: {normalization_order!r}"
            )
        if num_heads is None and (attention is None or cross_attention is True):
            raise ValueError(
                "Give `num_heads`, or pass every attention in. Received: num_heads=None, "
                f"attention={attention}, cross_attention={cross_attention}"
            )
        if attention is not None and (causal or window is not None or position is not None):
            raise ValueError(
                "`causal`, `window` and `position` are for attention made here: give them to the "
                f"attention passed in. Received: causal={causal}, window={window}, "
                f"position={position}, attention={attention}"
            )
        if feed_forward is not None and (gated or activation or intermediate_dim):
            raise ValueError(
                "`intermediate_dim`, `gated` and `activation` are for a feed-forward network made "
                "here: give them to the one passed in. Received: "
                f"intermediate_dim={intermediate_dim}, gated={gated}, activation={activation}, "
                f"feed_forward={feed_forward}"
            )
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.causal = causal
        self.window = window
        self.gated = gated
        self.normalization = normalization
        self.normalization_order = normalization_order
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self._remember(
            attention=attention,
            feed_forward=feed_forward,
            cross_attention=cross_attention,
            position=position,
            activation=activation,
            kernel_initializer=kernel_initializer,
        )
        shared = {"use_bias": use_bias, "dtype": self.dtype_policy}
        if kernel_initializer is not None:
            shared["kernel_initializer"] = kernel_initializer
        heads = {
            "head_dim": head_dim,
            "num_key_value_heads": num_key_value_heads,
            "dropout": dropout,
            **shared,
        }
        self.attention = attention or MultiHeadSelfAttention(
            num_heads,
            causal=causal,
            window=window,
            position=position,
            name="attention",
            **heads,
        )
        if cross_attention is True:
            cross_attention = MultiHeadCrossAttention(num_heads, name="cross_attention", **heads)
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward or FeedForward(
            intermediate_dim, gated=gated, activation=activation, name="feed_forward", **shared
        )
        self._feed_forward_is_masked = (
            "padding_mask" in inspect.signature(self.feed_forward.call).parameters
        )

    def build(self, x_shape, context_shape=None):
        self.attention_norm = self._make_norm("attention_norm", x_shape)
        build_part(self.attention, x_shape)
        if self.cross_attention is not None:
            self.cross_attention_norm = self._make_norm("cross_attention_norm", x_shape)
            build_part(self.cross_attention, x_shape, context_shape or x_shape)
        self.feed_forward_norm = self._make_norm("feed_forward_norm", x_shape)
        build_part(self.feed_forward, x_shape)
        self.residual_dropout = keras.layers.Dropout(
            self.dropout, name="residual_dropout", dtype=self.dtype_policy
        )

    def _make_norm(self, name, x_shape):
        return make_normalization(
            self.normalization,
            name,
            self.layer_norm_epsilon,
            self.dtype_policy,
            known_features("x", x_shape),
        )

    def call(
        self,
        x,
        context=None,
        padding_mask=None,
        context_mask=None,
        attention_mask=None,
        segment_ids=None,
        positions=None,
        cache=None,
        cache_index=None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ):
        if self.cross_attention is not None and context is None:
            raise ValueError(f"{self.name} has cross-attention: call it with `context=`")
        if self.cross_attention is None and context is not None:
            raise ValueError(
                f"{self.name} has no cross-attention to read `context`: build it with "
                "cross_attention=True"
            )
        if cache is None:
            padding_mask = resolve_mask(x, padding_mask)
        extras = []  # the scores and the cache, where asked for

        def attend(y):
            y = self.attention(
                y,
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                segment_ids=segment_ids,
                positions=positions,
                cache=cache,
                cache_index=cache_index,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            if isinstance(y, tuple):
                y, *extras[:] = y
            return y

        def attend_context(y):
            return self.cross_attention(y, context, context_mask=context_mask, training=training)

        def feed_forward(y):
            masked = {"padding_mask": padding_mask} if self._feed_forward_is_masked else {}
            return self.feed_forward(y, **masked)

        x = self._residual(x, attend, self.attention_norm, training)
        if self.cross_attention is not None:
            x = self._residual(x, attend_context, self.cross_attention_norm, training)
        x = self._residual(x, feed_forward, self.feed_forward_norm, training)
        return (x, *extras) if extras else x

    def _residual(self, x, function, norm, training):
        if self.normalization_order == "pre":
            return x + self.residual_dropout(function(norm(x)), training=training)
        return norm(x + self.residual_dropout(function(x), training=training))

    def compute_output_shape(self, x_shape, context_shape=None):
        return tuple(x_shape)
