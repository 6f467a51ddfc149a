import keras
from keras import ops

from keras_tx.layers.layer import build_part, dense, resolve_mask
from keras_tx.layers.multi_head_attention import MultiHeadAttention
from keras_tx.ops import cache as cache_ops
from keras_tx.ops import masks


@keras.saving.register_keras_serializable(package="keras_tx")
class MultiHeadSelfAttention(MultiHeadAttention):
    """Multi-head scaled dot-product attention of a sequence to itself.

    `head_n = softmax(q_n k_n^T / sqrt(H)) v_n`, the heads concatenated and projected. Queries,
    keys and values come from one fused product. With fewer key-value heads than query heads it is
    grouped-query attention, with one it is multi-query attention; keys are never repeated.

    Args:
        num_heads: Number of query heads N.
        head_dim: Features of a head H. Default: the input's last dimension D / N, which must
            then divide.
        num_key_value_heads: Number of key-value heads K, a divisor of N. Default: N.
        causal: Whether a position sees only itself and what is before it.
        window: If given, a position sees only positions fewer than `window` away.
        position: A layer called as `position(x, positions)` on queries and keys (B, N, T, H),
            such as `RotaryEncoding`.
        dropout: Fraction of attention weights dropped in training.
        use_bias: Whether the projections have a bias.
        kernel_initializer: Initializer of the projections. The default does not depend on
            the width of the fused product, so it equals that of separate projections.

    Call arguments:
        x: (B, T, D).
        padding_mask: Boolean (B, T), True at real positions. Default: the mask that Keras
            attached to `x`, if any.
        attention_mask: Boolean (B, T, S) or (B, N, T, S), True where a query may see a key.
        segment_ids: Integers (B, T); positions see only their own segment.
        positions: Integers (T,) or (B, T) for `position`. Default: 0, 1, ...
        cache: Pair of keys and values (B, K, S, H) of what came before; needs `causal=True`.
        cache_index: Integers (B,), the place of each row's first position in the cache.
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        (B, T, D) in the compute dtype; then, if asked for, the weights (B, N, T, S) in float32;
        then, if a cache was given, the cache with this call's keys and values in it.

    Raises:
        ValueError: If the sizes do not divide, a mask has the wrong rank, or a cache is given
            without `causal=True` or `cache_index`, or with `padding_mask` or `segment_ids`.

    Masking: A position that sees nothing gives 0 before the output projection. Masked positions
    change nothing at the others. The input's own mask is left as it is.

    Precision: Scores and softmax are float32.

    Example:
        >>> import numpy as np
        >>> layer = MultiHeadSelfAttention(4, num_key_value_heads=2, causal=True)
        >>> layer(np.ones((2, 5, 16), "float32")).shape
        (2, 5, 16)

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need", section 3.2; Ainslie et al. 2023, "GQA".
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        num_key_value_heads: int | None = None,
        *,
        causal: bool = False,
        window: int | None = None,
        position: keras.layers.Layer | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._store_heads(num_heads, head_dim, num_key_value_heads)
        if window is not None and (not isinstance(window, int) or window < 1):
            raise ValueError(f"`window` must be a positive integer or None. Received: {window!r}")
        self.causal = causal
        self.window = window
        self.position = position
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape):
        hidden_dim = self._sequence_features("x", x_shape)
        head_dim = self._resolve_head_dim(hidden_dim)
        heads = self.num_heads + 2 * self._key_value_heads
        self.query_key_value_dense = dense(
            self, heads * head_dim, "query_key_value_dense", hidden_dim
        )
        if self.position is not None:
            build_part(self.position, (None, self.num_heads, None, head_dim))
        self._build_output(hidden_dim, head_dim)

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        segment_ids=None,
        positions=None,
        cache=None,
        cache_index=None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ):
        if cache is not None:
            self._check_cached_call(cache_index, padding_mask, segment_ids)
        else:  # a cache holds what was masked when it was written, or is overwritten
            padding_mask = resolve_mask(x, padding_mask)
        if padding_mask is not None:
            x = masks.hide_padding(x, padding_mask)
        index = ops.arange(ops.shape(x)[1], dtype="int32")  # place of each query, (T,) or (B, T)
        if cache is not None:
            index = ops.cast(cache_index, "int32")[:, None] + index[None, :]

        projected = self._split_heads(
            self.query_key_value_dense(x), self.num_heads + 2 * self._key_value_heads
        )
        query = projected[:, : self.num_heads]  # (B, N, T, H)
        key, value = ops.split(projected[:, self.num_heads :], 2, axis=1)  # (B, K, T, H)
        if self.position is not None:
            positions = index if positions is None else positions
            query, key = (
                ops.cast(self.position(heads, positions), value.dtype) for heads in (query, key)
            )
        if cache is not None:
            key = cache_ops.write(cache[0], key, cache_index)
            value = cache_ops.write(cache[1], value, cache_index)

        mask = self._mask(index, key, padding_mask, attention_mask, segment_ids)
        output, weights = self._attend(
            query, ops.cast(key, query.dtype), ops.cast(value, query.dtype), mask, training
        )
        results = [output]
        if return_attention_scores:
            results.append(weights)
        if cache is not None:
            results.append((key, value))
        return tuple(results) if len(results) > 1 else output

    def _check_cached_call(self, cache_index, padding_mask, segment_ids):
        if not self.causal:
            raise ValueError(f"A cache needs `causal=True`. {self.name} has causal=False")
        if cache_index is None:
            raise ValueError("A cache needs `cache_index`, each row's place in it. Received: None")
        if padding_mask is not None or segment_ids is not None:
            raise ValueError(
                "With a cache, `padding_mask` and `segment_ids` cannot say which cached keys to "
                "see: use `attention_mask` (batch, queries, cached keys)."
            )

    def _mask(self, index, key, padding_mask, attention_mask, segment_ids):
        key_index = ops.arange(ops.shape(key)[2], dtype="int32")
        mask = masks.positional_mask(index, key_index, self.causal, self.window)
        if padding_mask is not None:
            mask = masks.combine(mask, masks.padding_mask(padding_mask))
        if segment_ids is not None:
            mask = masks.combine(mask, masks.segment_mask(segment_ids, segment_ids))
        if attention_mask is not None:
            mask = masks.combine(mask, masks.full_mask(attention_mask))
        return mask

    def empty_cache(self, batch_size, length, hidden_dim: int):
        """Zeroed keys and values (B, K, S, H) in the compute dtype, for inputs of `hidden_dim`."""
        head_dim = self._resolve_head_dim(hidden_dim)
        shape = (batch_size, self._key_value_heads, length, head_dim)
        return ops.zeros(shape, self.compute_dtype), ops.zeros(shape, self.compute_dtype)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)
