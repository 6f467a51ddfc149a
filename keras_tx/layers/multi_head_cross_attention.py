import keras
from keras import ops

from keras_tx.layers.attached_mask import resolve_mask
from keras_tx.layers.multi_head_attention import MultiHeadAttention
from keras_tx.layers.parts import dense, project
from keras_tx.ops import masks
from keras_tx.ops.attention_mask import AttentionMask
from keras_tx.ops.sizes import fits


@keras.saving.register_keras_serializable(package="keras_tx")
class MultiHeadCrossAttention(MultiHeadAttention):
    """Multi-head scaled dot-product attention of one sequence to another, the context.

    `head_n = softmax(q_n k_n^T / sqrt(H)) v_n` with queries from `x`, and keys and values from
    one fused product of `context`.

    Args:
        num_heads: Number of query heads N.
        head_dim: Features of a head H. Default: the last dimension D of `x` / N.
        num_key_value_heads: Number of key-value heads K, a divisor of N. Default: N.
        query_key_norm: Whether queries and keys are RMS-normalized, head by head.
        scale: Factor of the scores. Default: H ** -0.5.
        soft_cap: If given, scores s become `soft_cap * tanh(s / soft_cap)`.
        sinks: Whether each head has a learned score that takes part in the softmax without a value,
            so that its weights may sum to less than 1.
        implementation: "auto", or the path that computes attention, "dense" (all scores at once),
            "tiled" (in memory that grows with T + S) or "fused" (the backend's own kernel).
        dropout: Fraction of attention weights dropped in training. On TensorFlow and PyTorch
            `keras.remat` of a call draws anew for the backward pass, as for every layer of Keras
            that drops: the gradient is then that of other weights.
        layer_norm_epsilon: Added to the mean square in the query-key norm.
        use_bias: Whether the projections have a bias.
        use_output_bias: Whether the output projection has one. Default: as `use_bias`.
        kernel_initializer: Initializer of the projections.

    Call arguments:
        x: (B, T, D).
        context: (B, S, C). Not needed with `memory`.
        context_mask: Boolean (B, S), True at real positions of the context. Default: the mask
            that Keras attached to `context`, if any.
        attention_mask: Boolean (B, T, S) or (B, N, T, S), True where a query may see a key.
        memory: In place of a context what `project_context` made of it: a decoder that reads one
            context at every step projects it once.
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        (B, T, D) in the compute dtype; then, if asked for, the weights (B, N, T, S) in float32.

    Raises:
        ValueError: If the sizes do not divide, there is neither `context` nor `memory`, or both,
            `x` and `context` are of different batches, a mask has the wrong shape or is not boolean
            (an integer mask of 0 and 1 is as good), or if the `implementation` that is asked for
            cannot honour the call.

    Masking: A position that sees nothing gives 0 before the output projection. The mask that
    counts is the context's; that of `x` is passed on.

    Precision: Scores and softmax are float32.

    Example:
        >>> import numpy as np
        >>> layer = MultiHeadCrossAttention(4)
        >>> layer(np.ones((2, 5, 16), "float32"), np.ones((2, 7, 8), "float32")).shape
        (2, 5, 16)

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        num_key_value_heads: int | None = None,
        *,
        query_key_norm: bool = False,
        scale: float | None = None,
        soft_cap: float | None = None,
        sinks: bool = False,
        implementation: str = "auto",
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-6,
        use_bias: bool = True,
        use_output_bias: bool | None = None,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_normal",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._store_heads(num_heads, head_dim, num_key_value_heads)
        self._store_scoring(scale, soft_cap, sinks, dropout, implementation)
        self.query_key_norm = query_key_norm
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self.use_output_bias = use_output_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape, context_shape=None):
        if context_shape is None:
            raise ValueError(
                f"{self.name} does not know the features of a context yet: build it, or call it "
                "with a context once, before it gets a `memory`"
            )
        hidden_dim = self._sequence_features("x", x_shape)
        context_dim = self._sequence_features("context", context_shape)
        head_dim = self._resolve_head_dim(hidden_dim)
        self.query_dense = dense(self, self.num_heads * head_dim, "query_dense", hidden_dim)
        self.key_value_dense = dense(
            self, 2 * self._key_value_heads * head_dim, "key_value_dense", context_dim
        )
        self._build_scores(head_dim)
        self._build_output(hidden_dim, head_dim)

    def call(
        self,
        x,
        context=None,
        context_mask=None,
        attention_mask=None,
        memory=None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ):
        self._sequence_features("x", x.shape)
        if (context is None) == (memory is None):
            received = "neither" if context is None else "both"
            raise ValueError(
                f"{self.name} needs `context`, or else the `memory` that `project_context` made of "
                f"one. Received: {received}"
            )
        if context is not None:
            context_mask = resolve_mask(context, context_mask)
            memory = self.project_context(context, context_mask)
        key, value = self._checked_memory(memory)
        if not fits(key.shape[:1], x.shape[:1]):
            raise ValueError(
                "`x` and `context` must be of one batch, row by row. Received: "
                f"{x.shape[0]} rows of `x`, {key.shape[0]} of `context`"
            )
        query = self._split_heads(project(self.query_dense, x), self.num_heads)  # (B, N, T, H)
        if self.query_key_norm:
            query = self.query_norm(query)
        if context_mask is not None:
            context_mask = masks.padding(context_mask, key[:, 0])
        mask = AttentionMask(
            padding=context_mask,
            explicit=None if attention_mask is None else masks.explicit(attention_mask, query, key),
        )
        output, weights = self._attend(
            query, key, value, mask, self._scoring(training), return_attention_scores
        )
        return (output, weights) if return_attention_scores else output

    def _checked_memory(self, memory):
        head_dim = self.query_dense.units // self.num_heads
        parts = memory if isinstance(memory, (list, tuple)) else [memory]
        shapes = [tuple(getattr(part, "shape", ())) for part in parts]
        heads = (self._key_value_heads, head_dim)
        if len(shapes) != 2 or not all(
            len(shape) == 4 and shape[1::2] == heads and fits(shape, shapes[0]) for shape in shapes
        ):
            raise ValueError(
                "`memory` must be the pair of keys and values that `project_context` gives, each "
                f"(batch, {heads[0]}, length, {heads[1]}). Received: shapes {shapes}"
            )
        return parts

    def project_context(self, context, context_mask=None):
        """Keys and values of a context (B, S, C): a pair of (B, K, S, H), for `memory`.

        Args:
            context, context_mask: As in a call, to which the mask is to be given again.

        Raises:
            ValueError: If the layer was not built.
        """
        if not self.built:
            raise ValueError(
                f"{self.name} has no weights yet to project a context with: build it, or call it "
                "with a context once"
            )
        self._sequence_features("context", context.shape)
        if context_mask is not None:
            context_mask = masks.padding(context_mask, context)
            context = masks.hide_padding(context, context_mask)
        key_value = self._split_heads(self.key_value_dense(context), 2 * self._key_value_heads)
        key, value = ops.split(key_value, 2, axis=1)
        return self.key_norm(key) if self.query_key_norm else key, value

    def compute_output_shape(self, x_shape, context_shape=None):
        return tuple(x_shape)
