import functools
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_tx.layers.learned_encoding import LearnedEncoding
from keras_tx.layers.parts import clone, fresh, project
from keras_tx.layers.rotary_encoding import RotaryEncoding
from keras_tx.layers.sinusoidal_encoding import SinusoidalEncoding
from keras_tx.models.blocks import BlockStack, check_stack, scale_residual_outputs
from keras_tx.models.cached_generation import CachedGeneration
from keras_tx.models.causal_scoring import CausalScoring
from keras_tx.models.model import (
    Model,
    check_ids,
    check_length,
    check_targets,
    real_tokens,
    vocabulary_from,
)
from keras_tx.models.special_tokens import special_token_ids

POSITIONS = ("auto", "learned", "sinusoidal", "rotary", None)


@keras.saving.register_keras_serializable(package="keras_tx")
class GPT(BlockStack, CausalScoring, CachedGeneration, Model):
    """A decoder-only transformer: predicts each next token from those before it.

    Token embedding, positions, `num_layers` causal blocks, a last normalization (unless
    post-norm), and logits by the transposed token embedding.

    Args:
        vocabulary_size: Number of token ids V. Default: the tokenizer's.
        num_layers: Number of blocks.
        hidden_dim: Features D of a token.
        num_heads: Query heads of a block. Default: hidden_dim / 64.
        intermediate_dim, num_key_value_heads, head_dim, window, gated, normalization,
            normalization_order, dropout, activation, layer_norm_epsilon, use_bias: As for
            `TransformerBlock`; the last normalization is of the last block's kind.
        max_sequence_length: The most tokens of a sequence, prompt and continuation together.
        position: "learned", "sinusoidal", "rotary", a layer that is called as
            `position(x, positions=)` on the embedded tokens, or None for no positions, as for a
            `block` whose attention has its own. "auto" is "learned" for blocks made from
            numbers, and None for a `block`.
        block: An unbuilt `TransformerBlock` that is cloned for each layer, or a list of
            `num_layers` of them; it replaces the numbers of the block.
        tie_embeddings: Whether the logits use the token embedding, or a matrix of their own.
        scale_embeddings: Whether token embeddings are multiplied by sqrt(D), as in Gemma.
        embedding_normalization: Whether the embedded tokens are normalized, positions included,
            as in Bloom; of the first block's kind.
        logit_soft_cap: If given, logits are `cap tanh(logits / cap)`, as in Gemma 2.
        kernel_initializer: Initializer of the blocks' projections made from numbers.
        embeddings_initializer: Initializer of the embeddings.
        depth_scaled_initialization: Whether the last projection of each part of a block begins
            at 1 / sqrt(2 num_layers) of what its initializer gives, as in GPT-2.
        cache_dtype: Of the keys and values kept while generating: "bfloat16" halves their memory.
            Default: the dtype that the model computes in.
        tokenizer: A keras-nlp tokenizer that is saved, and exported, with the model.
        pad_token_id: Padding in the inputs and targets. Default: the tokenizer's, or none.
        start_token_id: Stands for an empty prompt. Default: the tokenizer's start, or else its
            end token.
        end_token_id: Ends a generated text. Default: the tokenizer's, or none.

    Call arguments:
        inputs: Integers (B, T), or a dictionary of `token_ids` (B, T) and, optionally,
            `segment_ids` (B, T), the sequences of a packed row, `positions` (B, T), and `lengths`
            (B,), the length that each row has or will have, for rotary scalings that depend on it
            (by default that of training; `generate` gives it).
        return_attention_scores: Whether to return the attention weights too.

    Returns:
        float32 logits (B, T, V); then, if asked for, `{layer name: (B, N, T, T)}`.

    Raises:
        ValueError: If sizes do not fit, or (numpy) ids are out of range or too many.

    Masking: Targets that are `pad_token_id` count in no loss and no metric; neither does what
    has a `sample_weight` of 0.

    Example:
        >>> import numpy as np
        >>> gpt = GPT(11, num_layers=2, hidden_dim=8, num_heads=2, max_sequence_length=16)
        >>> gpt(np.array([[1, 2, 3]])).shape
        (1, 3, 11)
        >>> len(gpt.generate([1, 2, 3], max_new_tokens=4))
        4

    Reference:
        Radford et al. 2018, 2019; Brown et al. 2020. Sizes: Radford et al. 2019, Table 2;
        `gpt_mini` is this library's own.
    """

    sizes = {
        "gpt_mini": {"num_layers": 4, "hidden_dim": 192, "num_heads": 3},
        "gpt2_small": {
            "vocabulary_size": 50257,
            "num_layers": 12,
            "hidden_dim": 768,
            "num_heads": 12,
            "max_sequence_length": 1024,
            "activation": "gelu_tanh",
        },
    }

    def __init__(
        self,
        vocabulary_size: int | None = None,
        num_layers: int | None = None,
        hidden_dim: int | None = None,
        num_heads: int | None = None,
        intermediate_dim: int | None = None,
        *,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        max_sequence_length: int = 1024,
        position: str | keras.layers.Layer | None = "auto",
        block: keras.layers.Layer | list[keras.layers.Layer] | None = None,
        window: int | None = None,
        gated: bool = False,
        normalization: str | keras.layers.Layer = "layer",
        normalization_order: str = "pre",
        tie_embeddings: bool = True,
        scale_embeddings: bool = False,
        embedding_normalization: bool = False,
        logit_soft_cap: float | None = None,
        dropout: float = 0.0,
        activation: str | Callable | None = None,
        layer_norm_epsilon: float = 1e-5,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_normal",
        embeddings_initializer: str | keras.initializers.Initializer | None = None,
        depth_scaled_initialization: bool = False,
        cache_dtype: str | None = None,
        tokenizer: keras.layers.Layer | None = None,
        pad_token_id: int | None = None,
        start_token_id: int | None = None,
        end_token_id: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._remember(
            vocabulary_size=vocabulary_size,
            num_heads=num_heads,
            position=position,
            block=block,
            normalization=normalization,
            activation=activation,
            kernel_initializer=kernel_initializer,
            embeddings_initializer=embeddings_initializer,
            pad_token_id=pad_token_id,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
        )
        self.tokenizer = tokenizer
        self.vocabulary_size = vocabulary_from(tokenizer, vocabulary_size)
        check_stack(num_layers, hidden_dim)
        if not isinstance(max_sequence_length, int) or max_sequence_length < 1:
            raise ValueError(
                f"`max_sequence_length` must be a positive integer. Received: {max_sequence_length}"
            )
        if logit_soft_cap is not None and not logit_soft_cap > 0:
            raise ValueError(
                f"`logit_soft_cap` must be positive or None. Received: {logit_soft_cap}"
            )
        if cache_dtype is not None and not keras.backend.is_float_dtype(cache_dtype):
            raise ValueError(
                f"`cache_dtype` must be a float's name or None. Received: {cache_dtype!r}"
            )
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.max_sequence_length = max_sequence_length
        self.window = window
        self.gated = gated
        self.normalization_order = normalization_order
        self.tie_embeddings = tie_embeddings
        self.scale_embeddings = scale_embeddings
        self.embedding_normalization = embedding_normalization
        self.logit_soft_cap = logit_soft_cap
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self.depth_scaled_initialization = depth_scaled_initialization
        self.cache_dtype = cache_dtype
        self.pad_token_id, start, self.end_token_id = special_token_ids(
            tokenizer,
            self.vocabulary_size,
            pad_token_id=pad_token_id,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
        )
        self.start_token_id = self.end_token_id if start is None else start

        if position == "auto":
            position = "learned" if block is None else None
        elif position == "rotary" and block is not None:
            raise ValueError(
                'position="rotary" is for blocks made from numbers. For a `block`, pass the '
                "encoding to its attention: MultiHeadSelfAttention(..., position=RotaryEncoding())"
            )
        self._refuse_without_effect()
        self._make_embeddings(position, embeddings_initializer)
        self._make_blocks(
            block, causal=True, position=RotaryEncoding() if position == "rotary" else None
        )
        for layer in self.blocks:
            if not getattr(layer.attention, "causal", True):
                raise ValueError(
                    f"The attention of a GPT's block must be causal. {layer.attention.name} has "
                    "causal=False: build it with causal=True"
                )
        self.embedding_norm = None
        if embedding_normalization:
            self.embedding_norm = self._make_norm_of(self.blocks[0], "embedding_norm")
        if depth_scaled_initialization:
            scale_residual_outputs(self.blocks)
        self.finish()

    def _make_embeddings(self, position, initializer):
        if isinstance(position, str) and position not in POSITIONS:
            raise ValueError(
                f"`position` must be one of {POSITIONS} or a layer. Received: {position!r}"
            )
        initializer = initializer or keras.initializers.RandomNormal(stddev=0.02)
        self.token_embedding = keras.layers.ReversibleEmbedding(
            self.vocabulary_size,
            self.hidden_dim,
            tie_weights=self.tie_embeddings,
            embeddings_initializer=fresh(initializer),
            name="token_embedding",
            dtype=self.dtype_policy,
        )
        self.token_embedding.build((None, None))
        shared = {"name": "position_encoding", "dtype": self.dtype_policy}
        if position == "learned":
            position = LearnedEncoding(
                self.max_sequence_length, embeddings_initializer=fresh(initializer), **shared
            )
        elif position == "sinusoidal":
            position = SinusoidalEncoding(**shared)
        elif isinstance(position, keras.layers.Layer):
            position = clone(position, **shared)
        else:
            position = None
        self.position_encoding = position
        if position is not None:
            position.build((None, None, self.hidden_dim))
        self.embedding_dropout = keras.layers.Dropout(
            self.dropout, name="embedding_dropout", dtype=self.dtype_policy
        )

    def call(self, inputs, return_attention_scores: bool = False, training: bool | None = None):
        if not isinstance(inputs, dict):
            inputs = {"token_ids": inputs}
        check_length("token_ids", inputs["token_ids"].shape, self.max_sequence_length)
        x, scores = self._hidden_states(inputs, return_attention_scores, training)
        logits = self._logits(x)
        return (logits, scores) if return_attention_scores else logits

    def _hidden_states(self, inputs, return_attention_scores=False, training=False):
        """What the logits are made of (B, T, D), and the attention weights, if asked for."""
        x = self._embed(inputs["token_ids"], inputs.get("positions"), training)
        arguments = {
            "padding_mask": real_tokens(inputs["token_ids"], self.pad_token_id),
            "segment_ids": inputs.get("segment_ids"),
            "positions": inputs.get("positions"),
            "training": training,
        }
        if "lengths" in inputs:
            arguments["lengths"] = inputs["lengths"]
        scores = {}
        for block in self.blocks:
            if return_attention_scores:
                x, scores[block.name] = block(x, return_attention_scores=True, **arguments)
            else:
                x = block(x, **arguments)
        return x, scores

    def _embed(self, token_ids, positions=None, training=False):
        x = self.token_embedding(token_ids)
        if self.scale_embeddings:
            x = ops.cast(ops.cast(x, "float32") * self.hidden_dim**0.5, x.dtype)
        if self.position_encoding is not None:
            x = self.position_encoding(x, positions=positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return self.embedding_dropout(x, training=training)

    def _logits(self, x):
        if self.output_norm is not None:
            x = self.output_norm(x)
        logits = project(functools.partial(self.token_embedding, reverse=True), x)
        logits = ops.cast(logits, "float32")
        if self.logit_soft_cap is not None:
            logits = self.logit_soft_cap * ops.tanh(logits / self.logit_soft_cap)
        return logits

    def check_inputs(self, inputs):
        if not isinstance(inputs, dict):
            inputs = {"token_ids": inputs}
        known = {"token_ids", "segment_ids", "positions"}
        if "token_ids" not in inputs or not {*known, "lengths"}.issuperset(inputs):
            raise ValueError(
                "The inputs must be `token_ids`, or a dictionary of it and, optionally, "
                f"`segment_ids`, `positions` and `lengths`. Received: {sorted(inputs)}"
            )
        check_ids("token_ids", inputs["token_ids"], self.vocabulary_size)
        limit = self.max_sequence_length
        check_length("token_ids", inputs["token_ids"].shape, limit)
        for name in sorted(known & set(inputs)):
            if inputs[name].shape != inputs["token_ids"].shape:
                raise ValueError(
                    f"`{name}` must have the shape of `token_ids`, {inputs['token_ids'].shape}. "
                    f"Received: {inputs[name].shape}"
                )
        rows = inputs["token_ids"].shape[:1]
        if "lengths" in inputs and inputs["lengths"].shape != rows:
            raise ValueError(
                f"`lengths` must have one number for each row, shape {rows}. "
                f"Received: {inputs['lengths'].shape}"
            )
        positions = inputs.get("positions", np.zeros(1))
        if positions.size and not 0 <= positions.min() <= positions.max() < limit:
            raise ValueError(
                f"`positions` must be from 0 to {limit - 1} (max_sequence_length={limit}). "
                f"Received: from {positions.min()} to {positions.max()}"
            )

    def check_targets(self, inputs, targets):
        ids = inputs["token_ids"] if isinstance(inputs, dict) else inputs
        check_targets(targets, ids.shape, self.vocabulary_size)

    def compute_output_shape(self, inputs_shape):
        shape = inputs_shape["token_ids"] if isinstance(inputs_shape, dict) else inputs_shape
        return (*shape, self.vocabulary_size)
