"""What self- and cross-attention share: heads, projections, the product and the output."""

import numbers

import keras
from keras import ops

from keras_tx.layers.layer import Layer, known_features
from keras_tx.layers.normalization import make_normalization
from keras_tx.layers.parts import dense, project
from keras_tx.ops.attention import PATHS, attention, choose_path
from keras_tx.ops.dense_attention import dense_attention
from keras_tx.ops.hashing import seed_number
from keras_tx.ops.scoring import Scoring


class MultiHeadAttention(Layer):
    """Base of the multi-head layers: validates the heads, owns what follows the projections.

    `path_taken` says how the last traced call computed the attention, and why; None before it.
    """

    path_taken: str | None = None

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

    def _store_scoring(self, scale, soft_cap, sinks, dropout, implementation):
        for name, value in (("scale", scale), ("soft_cap", soft_cap)):
            if value is not None and not (isinstance(value, numbers.Real) and value > 0):
                raise ValueError(f"`{name}` must be positive or None. Received: {value!r}")
        if not (isinstance(dropout, numbers.Real) and 0 <= dropout < 1):
            raise ValueError(f"`dropout` must be at least 0 and below 1. Received: {dropout!r}")
        if implementation not in PATHS:
            raise ValueError(
                f"`implementation` must be one of {PATHS}. Received: {implementation!r}"
            )
        self.scale = scale
        self.soft_cap = soft_cap
        self.sinks = sinks
        self.dropout = dropout
        self.implementation = implementation

    def _build_scores(self, head_dim: int):
        """What the scores need: norms of queries and keys, sinks, numbers for the dropout."""
        if self.query_key_norm:
            self.query_norm, self.key_norm = (
                make_normalization(
                    "rms", name, self.layer_norm_epsilon, self.dtype_policy, head_dim
                )
                for name in ("query_norm", "key_norm")
            )
        if self.sinks:
            self.sink_scores = self.add_weight(
                (self.num_heads,), initializer="zeros", autocast=False, name="sink_scores"
            )
        if self.dropout:
            self.seed_generator = keras.random.SeedGenerator()

    def _normalized(self, query, key):
        if not self.query_key_norm:
            return query, key
        return self.query_norm(query), self.key_norm(key)

    def _build_output(self, hidden_dim: int, head_dim: int):
        use_bias = self.use_bias if self.use_output_bias is None else self.use_output_bias
        self.output_dense = dense(
            self, hidden_dim, "output_dense", self.num_heads * head_dim, use_bias=use_bias
        )

    def _split_heads(self, x, num_heads: int):
        """(B, T, heads * H) -> (B, heads, T, H)"""
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        head_dim = x.shape[-1] // num_heads
        if x.shape[1] == 1:
            return ops.reshape(x, (batch, num_heads, 1, head_dim))
        return ops.transpose(ops.reshape(x, (batch, length, num_heads, head_dim)), (0, 2, 1, 3))

    def _scoring(self, training, **given) -> Scoring:
        drops = self.dropout > 0 and bool(training)
        return Scoring(
            scale=self.scale,
            soft_cap=self.soft_cap,
            sinks=ops.cast(self.sink_scores, "float32") if self.sinks else None,
            dropout=self.dropout if drops else 0.0,
            seed=seed_number(self.seed_generator.next()) if drops else None,
            **given,
        )

    def _attend(self, query, key, value, mask, scoring, needs_weights, implementation=None):
        """Attention, heads merged and projected; and the weights (B, N, T, S), if needed."""
        implementation = implementation or self.implementation
        path = choose_path(query.shape, key.shape, mask, scoring, implementation, needs_weights)
        self.path_taken = str(path)
        weights = None
        if needs_weights:
            heads, weights = dense_attention(query, key, value, mask, scoring)
        else:
            heads = attention(query, key, value, mask, scoring, path)
        batch, length = ops.shape(heads)[0], ops.shape(heads)[2]
        if heads.shape[2] != 1:
            heads = ops.transpose(heads, (0, 2, 1, 3))  # (B, T, N, H)
        merged = ops.reshape(heads, (batch, length, query.shape[1] * value.shape[3]))
        return project(self.output_dense, merged), weights
