import inspect
from collections.abc import Callable

import keras

from keras_tx.configurable import misplaced
from keras_tx.layers.attached_mask import resolve_mask
from keras_tx.layers.feed_forward import FeedForward
from keras_tx.layers.layer import Layer, known_features
from keras_tx.layers.multi_head_cross_attention import MultiHeadCrossAttention
from keras_tx.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_tx.layers.parts import build_part
from keras_tx.layers.residual import PARALLEL, Residual


@keras.saving.register_keras_serializable(package="keras_tx")
class TransformerBlock(Residual, Layer):
    """Attention and feed-forward, each a branch with a normalization beside the identity.

    With f self-attention, then cross-attention if there is one, then the feed-forward network,
    `normalization_order` is

        "pre"                 x + f(norm(x))
        "post"                norm(x + f(x))
        "sandwich"            x + norm'(f(norm(x)))                       as Gemma 2
        "parallel"            x + attention(norm(x)) + mlp(norm(x))       as GPT-J and PaLM
        "parallel_two_norms"  x + attention(norm(x)) + mlp(norm'(x))      as GPT-NeoX

    The parts are made from plain numbers or passed in.

    Args:
        num_heads: Query heads of the attention made here.
        intermediate_dim: Width of the feed-forward network made here. Default: 4 D, or when gated
            8/3 D rounded up to a multiple of 8.
        attention: A self-attention layer, called as
            `attention(x, padding_mask=, attention_mask=, segment_ids=, positions=, ...)`.
        feed_forward: A layer called as `feed_forward(x)`, or with `padding_mask=` if it has it.
        cross_attention: A `MultiHeadCrossAttention`, or True for one with `num_heads`. Not in the
            parallel forms.
        num_key_value_heads, head_dim, causal, window, position: Of the attention made here.
        gated: Of the feed-forward network made here.
        normalization: "layer", "rms", or a layer that is cloned for each place, such as
            `keras.layers.LayerNormalization(center=False)` for one without bias.
        normalization_order: One of the forms above.
        layer_scale: If given, a learned vector (D,) that begins at this number multiplies what
            each part adds.
        dropout: Fraction of each part's output dropped in training, and of the attention
            weights of attention made here.
        stochastic_depth: Fraction of rows for which a part is left out in training; what is kept
            grows by 1 / (1 - fraction).
        activation: Of the feed-forward network made here.
        layer_norm_epsilon: Added to the variance (or mean square) in the normalizations.
        use_bias: Whether the parts made here have biases.
        kernel_initializer: Initializer of the parts made here. Default: LeCun normal, of variance
            1 / fan-in, which does not depend on what a product is fused with.

    Call arguments:
        x: (B, T, D).
        context: (B, S, C), for the cross-attention. Not needed with `memory`.
        padding_mask: Boolean (B, T), True at real positions. Default: the mask that Keras
            attached to `x`, if any.
        context_mask: The same for `context`, (B, S).
        attention_mask, segment_ids, positions, lengths, cache, cache_index: As for
            `MultiHeadSelfAttention`.
        memory: In place of a context what `cross_attention.project_context` made of it.
        return_attention_scores: Whether to return the self-attention weights too.

    Returns:
        (B, T, D) in the compute dtype; then, if asked for, the weights (B, N, T, S); then, if a
        cache was given, the new cache.

    Raises:
        ValueError: If the arguments do not say how to make a part, or say so for one that is
            passed in, or a context is missing or has no reader.

    Precision: The normalizations are float32.

    Example:
        >>> import numpy as np
        >>> block = TransformerBlock(4, causal=True, normalization="rms", gated=True)
        >>> block(np.ones((2, 5, 16), "float32")).shape
        (2, 5, 16)

    Reference:
        Vaswani et al. 2017, section 3.1 (post-norm); Xiong et al. 2020, "On Layer Normalization
        in the Transformer Architecture", Table 1 (pre-norm); Ding et al. 2021, "CogView", section
        2.4 (sandwich); Chowdhery et al. 2022, "PaLM", section 2, and Black et al. 2022,
        "GPT-NeoX-20B", section 2.1 (parallel); Touvron et al. 2021, "CaiT", Eq. 4 (layer scale);
        Huang et al. 2016, "Deep Networks with Stochastic Depth", Eq. 2.
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
        normalization: str | keras.layers.Layer = "layer",
        normalization_order: str = "pre",
        layer_scale: float | None = None,
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        activation: str | Callable | None = None,
        layer_norm_epsilon: float = 1e-5,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._check_branches(normalization, normalization_order, stochastic_depth, layer_scale)
        if num_heads is None and (attention is None or cross_attention is True):
            raise ValueError(
                "Give `num_heads`, or pass every attention in. Received: num_heads=None, "
                f"attention={attention}, cross_attention={cross_attention}"
            )
        if cross_attention and normalization_order in PARALLEL:
            raise ValueError(
                "The parallel forms have no place for cross-attention, which reads what "
                'self-attention found: use normalization_order="pre", "post" or "sandwich". '
                f"Received: normalization_order={normalization_order!r}, "
                f"cross_attention={cross_attention}"
            )
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.causal = causal
        self.window = window
        self.gated = gated
        self.normalization_order = normalization_order
        self.layer_scale = layer_scale
        self.dropout = dropout
        self.stochastic_depth = stochastic_depth
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self._remember(
            attention=attention,
            feed_forward=feed_forward,
            cross_attention=cross_attention,
            position=position,
            normalization=normalization,
            activation=activation,
            kernel_initializer=kernel_initializer,
        )
        self._refuse_without_effect()
        shared = {
            "use_bias": use_bias,
            "kernel_initializer": kernel_initializer or "lecun_normal",
            "dtype": self.dtype_policy,
        }
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
        self.cross_attention = cross_attention or None
        self.feed_forward = feed_forward or FeedForward(
            intermediate_dim, gated=gated, activation=activation, name="feed_forward", **shared
        )
        self._feed_forward_is_masked = (
            "padding_mask" in inspect.signature(self.feed_forward.call).parameters
        )

    @classmethod
    def _without_effect(cls, arguments):
        has_attention = arguments.get("attention") is not None
        has_feed_forward = arguments.get("feed_forward") is not None
        found = {}
        if has_attention:
            names = ["causal", "window", "position"]
            if arguments.get("cross_attention") is not True:
                names += ["num_heads", "num_key_value_heads", "head_dim"]
            found |= misplaced(names, "attention made here", "the attention passed in")
        if has_feed_forward:
            names = ("intermediate_dim", "gated", "activation")
            found |= misplaced(names, "a feed-forward network made here", "the one passed in")
        if has_attention and has_feed_forward and arguments.get("cross_attention") is not True:
            names = ("use_bias", "kernel_initializer")
            found |= misplaced(names, "parts made here", "the parts passed in")
        if isinstance(arguments.get("normalization"), keras.layers.Layer):
            names, of = ("layer_norm_epsilon",), "a normalization made here"
            found |= misplaced(names, of, "the `normalization` passed in")
        return found

    def build(self, x_shape, context_shape=None):
        build_part(self.attention, x_shape)
        if self.cross_attention is not None:
            build_part(self.cross_attention, x_shape, context_shape or x_shape)
        build_part(self.feed_forward, x_shape)
        parts = ("attention", "cross_attention", "feed_forward")
        self._build_branches(
            [part for part in parts if getattr(self, part) is not None],
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
        lengths=None,
        cache=None,
        cache_index=None,
        memory=None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ):
        has_context = context is not None or memory is not None
        if self.cross_attention is not None and not has_context:
            raise ValueError(f"{self.name} has cross-attention: call it with `context=`")
        if self.cross_attention is None and has_context:
            raise ValueError(
                f"{self.name} has no cross-attention to read `context`: build it with "
                "cross_attention=True"
            )
        if cache is None:
            padding_mask = resolve_mask(x, padding_mask)
        extras = []  # the scores and the cache, where asked for
        given = {} if lengths is None else {"lengths": lengths}  # not every attention takes them

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
                **given,
            )
            if isinstance(y, tuple):
                y, *extras[:] = y
            return y

        def attend_context(y):
            return self.cross_attention(
                y, context, context_mask=context_mask, memory=memory, training=training
            )

        def feed_forward(y):
            masked = {"padding_mask": padding_mask} if self._feed_forward_is_masked else {}
            return self.feed_forward(y, **masked)

        parts = {"attention": attend}
        if self.cross_attention is not None:
            parts["cross_attention"] = attend_context
        parts["feed_forward"] = feed_forward
        x = self._add_branches(x, parts, training)
        return (x, *extras) if extras else x

    def compute_output_shape(self, x_shape, context_shape=None):
        return tuple(x_shape)
