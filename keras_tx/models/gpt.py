from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_tx.layers.layer import clone, fresh
from keras_tx.layers.learned_encoding import LearnedEncoding
from keras_tx.layers.normalization import make_normalization
from keras_tx.layers.rotary_encoding import RotaryEncoding
from keras_tx.layers.sinusoidal_encoding import SinusoidalEncoding
from keras_tx.layers.transformer_block import TransformerBlock
from keras_tx.models.blocks import make_blocks
from keras_tx.models.model import (
    Model,
    check_ids,
    check_length,
    check_targets,
    real_tokens,
    vocabulary_from,
)
from keras_tx.models.text_generation import TextGeneration, special_token_ids
from keras_tx.ops import cache as cache_ops

POSITIONS = ("auto", "learned", "sinusoidal", "rotary", None)


@keras.saving.register_keras_serializable(package="keras_tx")
class GPT(TextGeneration, Model):
    """A decoder-only transformer: predicts each next token from those before it.

    Token embedding, positions, `num_layers` causal blocks, a last normalization (pre-norm), and
    logits by the transposed token embedding.

    Args:
        vocabulary_size: Number of token ids V. Default: the tokenizer's.
        num_layers: Number of blocks.
        hidden_dim: Features D of a token.
        num_heads: Query heads of a block. Default: hidden_dim / 64.
        intermediate_dim, num_key_value_heads, head_dim, window, gated, normalization,
            normalization_order, dropout, activation, layer_norm_epsilon, use_bias: As for
            `TransformerBlock`; the last normalization takes its kind and epsilon from here too.
        max_sequence_length: The most tokens of a sequence, prompt and continuation together.
        position: "learned", "sinusoidal", "rotary", a layer that is called as
            `position(x, positions=)` on the embedded tokens, or None for no positions, as for a
            `block` whose attention has its own. "auto" is "learned" for blocks made from
            numbers, and None for a `block`.
        block: An unbuilt `TransformerBlock` that is cloned for each layer, or a list of
            `num_layers` of them; it replaces the numbers of the block.
        tie_embeddings: Whether the logits use the token embedding, or a matrix of their own.
        kernel_initializer: Initializer of the blocks' projections made from numbers.
        embeddings_initializer: Initializer of the embeddings.
        tokenizer: A keras-nlp tokenizer that is saved, and exported, with the model.
        pad_token_id: Padding in the inputs and targets. Default: the tokenizer's, or none.
        start_token_id: Stands for an empty prompt. Default: the tokenizer's start, or else its
            end token.
        end_token_id: Ends a generated text. Default: the tokenizer's, or none.

    Call arguments:
        inputs: Integers (B, T), or a dictionary of `token_ids` (B, T) and, optionally,
            `segment_ids` (B, T), the sequences of a packed row, and `positions` (B, T).
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
        "gpt_mini": {"num_layers": 4, "hidden_dim": 256, "num_heads": 4},
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
        normalization: str = "layer",
        normalization_order: str = "pre",
        tie_embeddings: bool = True,
        dropout: float = 0.0,
        activation: str | Callable | None = None,
        layer_norm_epsilon: float = 1e-5,
        use_bias: bool = True,
        kernel_initializer: str | keras.initializers.Initializer = "lecun_normal",
        embeddings_initializer: str | keras.initializers.Initializer | None = None,
        tokenizer: keras.layers.Layer | None = None,
        pad_token_id: int | None = None,
        start_token_id: int | None = None,
        end_token_id: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.remember(
            vocabulary_size=vocabulary_size,
            num_heads=num_heads,
            position=position,
            block=block,
            activation=activation,
            kernel_initializer=kernel_initializer,
            embeddings_initializer=embeddings_initializer,
            pad_token_id=pad_token_id,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
        )
        self.tokenizer = tokenizer
        self.vocabulary_size = vocabulary_from(tokenizer, vocabulary_size)
        if not num_layers or not hidden_dim or num_layers < 1 or hidden_dim < 1:
            raise ValueError(
                "`num_layers` and `hidden_dim` must be positive. "
                f"Received: num_layers={num_layers}, hidden_dim={hidden_dim}"
            )
        if not isinstance(max_sequence_length, int) or max_sequence_length < 1:
            raise ValueError(
                f"`max_sequence_length` must be a positive integer. Received: {max_sequence_length}"
            )
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.max_sequence_length = max_sequence_length
        self.window = window
        self.gated = gated
        self.normalization = normalization
        self.normalization_order = normalization_order
        self.tie_embeddings = tie_embeddings
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self.pad_token_id, start, self.end_token_id = special_token_ids(
            tokenizer,
            pad_token_id=pad_token_id,
            start_token_id=start_token_id,
            end_token_id=end_token_id,
        )
        self.start_token_id = self.end_token_id if start is None else start
        for name in ("pad_token_id", "start_token_id", "end_token_id"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.vocabulary_size:
                raise ValueError(
                    f"`{name}` must be from 0 to {self.vocabulary_size - 1}, an id of the "
                    f"vocabulary, or None. Received: {token}"
                )

        if position == "auto":
            position = "learned" if block is None else None
        elif position == "rotary" and block is not None:
            raise ValueError(
                'position="rotary" is for blocks made from numbers. For a `block`, pass the '
                "encoding to its attention: MultiHeadSelfAttention(..., position=RotaryEncoding())"
            )
        if block is None:
            block = TransformerBlock(
                max(1, hidden_dim // 64) if num_heads is None else num_heads,
                intermediate_dim,
                num_key_value_heads=num_key_value_heads,
                head_dim=head_dim,
                causal=True,
                window=window,
                position=RotaryEncoding() if position == "rotary" else None,
                gated=gated,
                normalization=normalization,
                normalization_order=normalization_order,
                dropout=dropout,
                activation=activation,
                layer_norm_epsilon=layer_norm_epsilon,
                use_bias=use_bias,
                kernel_initializer=kernel_initializer,
            )
        self._make_embeddings(position, embeddings_initializer)
        self.blocks = make_blocks(block, num_layers, hidden_dim, self.dtype_policy)
        for layer in self.blocks:
            if not getattr(layer.attention, "causal", True):
                raise ValueError(
                    f"The attention of a GPT's block must be causal. {layer.attention.name} has "
                    "causal=False: build it with causal=True"
                )
        self.output_norm = None
        if self.blocks[-1].normalization_order == "pre":
            self.output_norm = make_normalization(
                normalization, "output_norm", layer_norm_epsilon, self.dtype_policy, hidden_dim
            )
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
        x = self._embed(inputs["token_ids"], inputs.get("positions"), training)
        arguments = {
            "padding_mask": real_tokens(inputs["token_ids"], self.pad_token_id),
            "segment_ids": inputs.get("segment_ids"),
            "positions": inputs.get("positions"),
            "training": training,
        }
        scores = {}
        for block in self.blocks:
            if return_attention_scores:
                x, scores[block.name] = block(x, return_attention_scores=True, **arguments)
            else:
                x = block(x, **arguments)
        logits = self._logits(x)
        return (logits, scores) if return_attention_scores else logits

    def _embed(self, token_ids, positions=None, training=False):
        x = self.token_embedding(token_ids)
        if self.position_encoding is not None:
            x = self.position_encoding(x, positions=positions)
        return self.embedding_dropout(x, training=training)

    def _logits(self, x):
        if self.output_norm is not None:
            x = self.output_norm(x)
        return ops.cast(self.token_embedding(x, reverse=True), "float32")

    def start(self, inputs, max_new_tokens: int):
        """Reads right-padded prompts into new caches.

        Args:
            inputs: `token_ids` (B, P) and `lengths` (B,); a length of 0 stands for the start token.
            max_new_tokens: How many steps may follow.

        Returns:
            Logits (B, V) of each row's next token, and the state.
        """
        token_ids, lengths = inputs["token_ids"], inputs["lengths"]
        token_ids = self._start_if_empty(token_ids, lengths)
        lengths = ops.maximum(lengths, 1)
        batch, length = ops.shape(token_ids)
        capacity = length + max_new_tokens
        state = {
            "caches": [
                block.attention.empty_cache(batch, capacity, self.hidden_dim)
                for block in self.blocks
            ],
            "position": ops.zeros((batch,), "int32"),
        }
        if self.pad_token_id is not None:
            state["is_real"] = ops.zeros((batch, 1, capacity, 1), "bool")
        x, state = self._extend(token_ids, state)
        last = ops.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)
        return self._logits(last)[:, 0], {**state, "position": lengths}

    def step(self, tokens, state):
        """Adds one token to each row: tokens (B,) -> logits (B, V) and the state."""
        x, state = self._extend(tokens[:, None], state)
        return self._logits(x)[:, 0], state

    def _extend(self, token_ids, state):
        length, position = ops.shape(token_ids)[1], state["position"]
        positions = position[:, None] + ops.arange(length, dtype="int32")[None, :]
        # Rows that are done, or padded, may point past the last position: nobody reads them.
        x = self._embed(token_ids, ops.minimum(positions, self.max_sequence_length - 1))
        state = {**state, "position": position + length}
        mask = None
        if "is_real" in state:  # a padding id hides itself here as it does in `call`
            is_real = real_tokens(token_ids, self.pad_token_id)[:, None, :, None]
            state["is_real"] = cache_ops.write(state["is_real"], is_real, position)
            mask = ops.transpose(state["is_real"], (0, 1, 3, 2))  # (B, 1, 1, S)
        extended = []
        for block, cache in zip(self.blocks, state["caches"], strict=True):
            x, cache = block(
                x, cache=cache, cache_index=position, attention_mask=mask, training=False
            )
            extended.append(cache)
        return x, {**state, "caches": extended}

    def _start_if_empty(self, token_ids, lengths):
        if self.start_token_id is None:
            return token_ids
        is_first = ops.arange(ops.shape(token_ids)[1], dtype="int32")[None, :] == 0
        is_empty = ops.logical_and(ops.equal(lengths, 0)[:, None], is_first)
        return ops.where(is_empty, self.start_token_id, token_ids)

    def prompt_inputs(self, token_ids, lengths):
        return {"token_ids": token_ids, "lengths": lengths}

    def room(self, lengths):
        if self.start_token_id is None and np.min(lengths) < 1:
            raise ValueError(
                "A prompt is empty, and there is no start token to stand for it. Give the prompt "
                "a token, or build the model with `start_token_id=`."
            )
        return self.max_sequence_length - np.maximum(lengths, 1)

    @property
    def prompt_vocabulary_size(self):
        return self.vocabulary_size

    @property
    def output_tokenizer(self):
        return self.tokenizer

    def target_weights(self, inputs, targets):
        if self.pad_token_id is None:
            return super().target_weights(inputs, targets)
        return ops.cast(real_tokens(targets, self.pad_token_id), "float32")

    def check_inputs(self, inputs):
        if not isinstance(inputs, dict):
            inputs = {"token_ids": inputs}
        known = {"token_ids", "segment_ids", "positions"}
        if "token_ids" not in inputs or not known.issuperset(inputs):
            raise ValueError(
                "The inputs must be `token_ids`, or a dictionary of it and, optionally, "
                f"`segment_ids` and `positions`. Received: {sorted(inputs)}"
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
