"""What self- and cross-attention share: heads, projections, the product and the output."""

import keras
from keras import ops

from keras_tx.layers.layer import Layer, dense, known_features
from keras_tx.ops.attention import attention_weights, weighted_values


class MultiHeadAttention(Layer):
    """Base of the multi-head layers: validates the heads, owns what follows the projections."""

    def _store_heads(self, num_heads, head_dim, num_key_value_heads):
        for name, value in (
            ("num_heads", num_heads),
            ("head_dim", 1 if head_dim is None else head_dim),
            ("num_key_value_heads", 1 if num_key_value_heads is None else num_key_value_heads),
        ):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be a positive integer. Received: {value!r}")
        if num_heads % (num_key_value_heads or num_heads):
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`, so that each key-value "
                f"head serves the same number of query heads. Received: num_heads={num_heads}, "
                f"num_key_value_heads={num_key_value_heads}"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_key_value_heads = num_key_value_heads

    @property
    def _key_value_heads(self) -> int:
        return self.num_key_value_heads or self.num_heads

    def _sequence_features(self, name: str, shape) -> int:
        if len(shape) != 3:
            raise ValueError(
                f"`{name}` must be (batch, length, features). Received: shape {tuple(shape)}"
            )
        return known_features(name, shape)

    def _resolve_head_dim(self, hidden_dim: int) -> int:
        if self.head_dim is not None:
            return self.head_dim
        if hidden_dim % self.num_heads:
            raise ValueError(
                f"The input's last dimension must be divisible by num_heads={self.num_heads}, or "
                f"`head_dim` be given. Received: last dimension {hidden_dim}"
            )
        return hidden_dim // self.num_heads

    def _build_output(self, hidden_dim: int, head_dim: int):
        self.output_dense = dense(self, hidden_dim, "output_dense", self.num_heads * head_dim)
        self.attention_dropout = keras.layers.Dropout(
            self.dropout, name="attention_dropout", dtype=self.dtype_policy
        )

    def _split_heads(self, x, num_heads: int):
        """(B, T, heads * H) -> (B, heads, T, H)"""
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        x = ops.reshape(x, (batch, length, num_heads, x.shape[-1] // num_heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def _attend(self, query, key, value, mask, training):
        """softmax(q k / sqrt(H)) v, heads merged and projected; and the weights."""
        weights = attention_weights(query, key, mask)  # (B, N, T, S)
        dropped = self.attention_dropout(weights, training=training)
        heads = ops.transpose(weighted_values(dropped, value), (0, 2, 1, 3))  # (B, T, N, H)
        batch, length = ops.shape(heads)[0], ops.shape(heads)[1]
        merged = ops.reshape(heads, (batch, length, heads.shape[2] * heads.shape[3]))
        return self.output_dense(merged), weights
