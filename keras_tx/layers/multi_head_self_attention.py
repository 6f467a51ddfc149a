import dataclasses

import keras
from keras import ops

from keras_tx.layers.attached_mask import resolve_mask
from keras_tx.layers.multi_head_attention import MultiHeadAttention
from keras_tx.layers.parts import build_part, dense, project
from keras_tx.layers.position_bias import PositionBias
from keras_tx.ops import masks
from keras_tx.ops.attention_mask import AttentionMask, conjunction
from keras_tx.ops.cache import Slots, check_cache
from keras_tx.ops.cache_view import CacheView, LayerCache
from keras_tx.ops.sizes import fits


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
        num_global_tokens: With a window, the first so many positions see, and are seen, beyond it.
        position: A layer called as `position(x, positions, lengths)` on queries and keys
            (B, N, T, H), such as `RotaryEncoding`; or a `PositionBias` of the distance of query and
            key, such as `AlibiBias`, which is added to the scores.
        query_key_norm: Whether queries and keys are RMS-normalized, head by head, before
            `position`.
        scale: Factor of the scores. Default: H ** -0.5.
        soft_cap: If given, scores s become `soft_cap * tanh(s / soft_cap)`.
        sinks: Whether each head has a learned score that takes part in the softmax without a value,
            so that its weights may sum to less than 1.
        implementation: "auto", or the path that computes attention, "dense" (all scores at once),
            "tiled" (in memory that grows with T + S) or "fused" (the backend's own kernel); with
            a cache it is automatic.
        dropout: Fraction of attention weights dropped in training. On TensorFlow and PyTorch
            `keras.remat` of a call draws anew for the backward pass, as for every layer of Keras
            that drops: the gradient is then that of other weights.
        layer_norm_epsilon: Added to the mean square in the query-key norm.
        use_bias: Whether the projections have a bias.
        use_output_bias: Whether the output projection has one. Default: as `use_bias`.
        kernel_initializer: Initializer of the projections. The default does not depend on
            the width of the fused product, so it equals that of separate projections.

    Call arguments:
        x: (B, T, D).
        padding_mask: Boolean (B, T), True at real positions. Default: the mask that Keras
            attached to `x`, if any.
        attention_mask: Boolean (B, T, S) or (B, N, T, S), True where a query may see a key.
        segment_ids: Integers (B, T); positions see only their own segment.
        positions: Integers (T,) or (B, T) for a `position` that is no bias. Default: 0, 1, ...
        lengths: Integers (B,), the length that each row has or will have, for a `position` that
            depends on it.
        cache: Pair of keys and values (B, K, S, H) of what came before; needs `causal=True`.
        cache_index: Integers (B,), the place of each row's first position in the cache.
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        (B, T, D) in the compute dtype; then, if asked for, the weights (B, N, T, S) in float32;
        then, if a cache was given, the cache with this call's keys and values in it.

    Raises:
        ValueError: If the sizes do not divide, a mask has the wrong shape or is not boolean (an
            integer mask of 0 and 1 is as good), a cache has the wrong shape or is given without
            `causal=True` or `cache_index`, or with `padding_mask` or `segment_ids`, or if the
            `implementation` that is asked for cannot honour the call.

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
        num_global_tokens: int = 0,
        position: keras.layers.Layer | None = None,
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
        if window is not None and (not isinstance(window, int) or window < 1):
            raise ValueError(f"`window` must be a positive integer or None. Received: {window!r}")
        if not isinstance(num_global_tokens, int) or num_global_tokens < 0:
            raise ValueError(
                "`num_global_tokens` must be an integer, at least 0. "
                f"Received: {num_global_tokens!r}"
            )
        if num_global_tokens and window is None:
            raise ValueError(
                "`num_global_tokens` are those that see beyond a `window`: give one. "
                f"Received: num_global_tokens={num_global_tokens}, window=None"
            )
        self._store_scoring(scale, soft_cap, sinks, dropout, implementation)
        self.causal = causal
        self.window = window
        self.num_global_tokens = num_global_tokens
        self.position = position
        self.query_key_norm = query_key_norm
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self.use_output_bias = use_output_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape):
        hidden_dim = self._sequence_features("x", x_shape)
        head_dim = self._resolve_head_dim(hidden_dim)
        heads = self.num_heads + 2 * self._key_value_heads
        self.query_key_value_dense = dense(
            self, heads * head_dim, "query_key_value_dense", hidden_dim
        )
        if self._has_bias:
            build_part(self.position, (None, self.num_heads, None, None))
        elif self.position is not None:
            build_part(self.position, (None, self.num_heads, None, head_dim))
        self._build_scores(head_dim)
        self._build_output(hidden_dim, head_dim)

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        segment_ids=None,
        positions=None,
        lengths=None,
        cache=None,
        cache_index=None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ):
        self._sequence_features("x", x.shape)
        if cache is not None:
            self._check_cached_call(cache, cache_index, padding_mask, segment_ids)
        else:  # a cache holds what was masked when it was written, or is overwritten
            padding_mask = resolve_mask(x, padding_mask)
        if padding_mask is not None:
            padding_mask = masks.padding(padding_mask, x)
            x = masks.hide_padding(x, padding_mask)
        segments = None if segment_ids is None else masks.segments(segment_ids, x)

        projected = self._split_heads(
            project(self.query_key_value_dense, x), self.num_heads + 2 * self._key_value_heads
        )
        # (B, N, T, H) and twice (B, K, T, H); the gradient of a slice would be filled up with zeros
        edges = (self.num_heads, self.num_heads + self._key_value_heads)
        query, key, value = ops.split(projected, edges, axis=1)
        query, key = self._normalized(query, key)
        if self.position is not None and not self._has_bias:
            if positions is None:
                positions = self._places(ops.shape(x)[1], cache_index)
            self._check_positions(positions, x)
            given = {"lengths": lengths} if self.depends_on_length else {}
            query, key = (
                ops.cast(self.position(heads, positions, **given), value.dtype)
                for heads in (query, key)
            )
        if cache is None:
            mask = AttentionMask(
                causal=self.causal,
                window=self.window,
                num_global_tokens=self.num_global_tokens,
                padding=padding_mask,
                query_segments=segments,
                key_segments=segments,
            )
            bias = {"distance_bias": self._distance_bias(ops.shape(key)[2])}
        else:
            key, value, cache, mask, bias = self._extend_cache(cache, cache_index, key, value)
        if attention_mask is not None:
            parts = [mask.explicit, masks.explicit(attention_mask, query, key)]
            mask = dataclasses.replace(mask, explicit=conjunction(parts), hides_none_all=False)
        output, weights = self._attend(
            query,
            ops.cast(key, query.dtype),
            ops.cast(value, query.dtype),
            mask,
            self._scoring(training, **bias),
            return_attention_scores,
            implementation=None if cache is None else "auto",
        )
        results = [output]
        if return_attention_scores:
            results.append(weights)
        if cache is not None:
            results.append(cache)
        return tuple(results) if len(results) > 1 else output

    def _check_cached_call(self, cache, cache_index, padding_mask, segment_ids):
        if not self.causal:
            raise ValueError(f"A cache needs `causal=True`. {self.name} has causal=False")
        if cache_index is None and not isinstance(cache, LayerCache):
            raise ValueError("A cache needs `cache_index`, each row's place in it. Received: None")
        if padding_mask is not None or segment_ids is not None:
            raise ValueError(
                "With a cache, `padding_mask` and `segment_ids` cannot say which cached keys to "
                "see: use `attention_mask` (batch, queries, cached keys)."
            )

    def _extend_cache(self, cache, cache_index, key, value):
        """Keys and values that are seen, the cache with the new ones in it, mask and bias."""
        is_pair = not isinstance(cache, LayerCache)
        if is_pair:
            check_cache(cache[0], key, cache_index)
            length, size = ops.shape(key)[2], ops.shape(cache[0])[2]
            start = ops.cast(cache_index, "int32")
            view = CacheView(Slots(size), start, length, self.window, self.num_global_tokens)
            cache = LayerCache(view, *cache)
        view = cache.view
        key, value, cache = cache.extend(key, value)
        if not self._has_bias:
            bias = {}
        elif view.is_first:
            bias = {"distance_bias": self._distance_bias(ops.shape(key)[2])}
        else:
            bias = {"bias": ops.moveaxis(self.position(view.distance), 0, 1)}
        return key, value, (cache.key, cache.value) if is_pair else cache, view.mask, bias

    def _check_positions(self, positions, x):
        batch, length = tuple(x.shape)[:2]
        if not fits(positions.shape, (batch, length), 1) and not fits(positions.shape, (length,)):
            raise ValueError(
                f"`positions` must be (length,) or (batch, length), here ({length},) or "
                f"({batch}, {length}). Received: shape {tuple(positions.shape)}"
            )

    @property
    def depends_on_length(self) -> bool:
        """Whether `position` needs `lengths`."""
        return getattr(self.position, "depends_on_length", False)

    @property
    def _has_bias(self) -> bool:
        return isinstance(self.position, PositionBias)

    def _places(self, length, offset):
        """The place of each query in the sequence, (T,) or, with a cache, (B, T)."""
        index = ops.arange(length, dtype="int32")
        return index if offset is None else ops.cast(offset, "int32")[:, None] + index[None, :]

    def _distance_bias(self, num_keys):
        if not self._has_bias:
            return None
        return self.position(ops.arange(-num_keys, num_keys + 1, dtype="int32"))

    def empty_cache(self, batch_size, length, hidden_dim: int):
        """Zeroed keys and values (B, K, S, H) in the compute dtype, for inputs of `hidden_dim`."""
        head_dim = self._resolve_head_dim(hidden_dim)
        shape = (batch_size, self._key_value_heads, length, head_dim)
        return ops.zeros(shape, self.compute_dtype), ops.zeros(shape, self.compute_dtype)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)
