import keras

from keras_tx.layers.layer import dense, resolve_mask
from keras_tx.layers.multi_head_attention import MultiHeadAttention
from keras_tx.ops import masks


@keras.saving.register_keras_serializable(package="keras_tx")
class MultiHeadCrossAttention(MultiHeadAttention):
    """Multi-head scaled dot-product attention of one sequence to another, the context.

    `head_n = softmax(q_n k_n^T / sqrt(H)) v_n` with queries from `x`, and keys and values from
    one fused product of `context`.

    Args:
        num_heads: Number of query heads N.
        head_dim: Features of a head H. Default: the last dimension D of `x` / N.
        num_key_value_heads: Number of key-value heads K, a divisor of N. Default: N.
        dropout: Fraction of attention weights dropped in training.
        use_bias: Whether the projections have a bias.
        kernel_initializer: Initializer of the projections.

    Call arguments:
        x: (B, T, D).
        context: (B, S, C).
        context_mask: Boolean (B, S), True at real positions of the context. Default: the mask
            that Keras attached to `context`, if any.
        attention_mask: Boolean (B, T, S) or (B, N, T, S), True where a query may see a key.
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        (B, T, D) in the compute dtype; then, if asked for, the weights (B, N, T, S) in float32.

    Raises:
        ValueError: If the sizes do not divide.

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
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._store_heads(num_heads, head_dim, num_key_value_heads)
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape, context_shape):
        hidden_dim = self._sequence_features("x", x_shape)
        context_dim = self._sequence_features("context", context_shape)
        head_dim = self._resolve_head_dim(hidden_dim)
        self.query_dense = dense(self, self.num_heads * head_dim, "query_dense", hidden_dim)
        self.key_value_dense = dense(
            self, 2 * self._key_value_heads * head_dim, "key_value_dense", context_dim
        )
        self._build_output(hidden_dim, head_dim)

    def call(
        self,
        x,
        context,
        context_mask=None,
        attention_mask=None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ):
        context_mask = resolve_mask(context, context_mask)
        if context_mask is not None:
            context = masks.hide_padding(context, context_mask)
        query = self._split_heads(self.query_dense(x), self.num_heads)  # (B, N, T, H)
        key_value = self._split_heads(self.key_value_dense(context), 2 * self._key_value_heads)
        key = key_value[:, : self._key_value_heads]  # (B, K, S, H)
        value = key_value[:, self._key_value_heads :]

        mask = masks.combine(
            None if context_mask is None else masks.padding_mask(context_mask),
            None if attention_mask is None else masks.full_mask(attention_mask),
        )
        output, weights = self._attend(query, key, value, mask, training)
        return (output, weights) if return_attention_scores else output

    def compute_output_shape(self, x_shape, context_shape=None):
        return tuple(x_shape)
