"""Generation token by token with a key-value cache, for a stack of causal blocks."""

import numpy as np
from keras import ops

from keras_tx.models.model import real_tokens
from keras_tx.models.text_generation import TextGeneration
from keras_tx.ops import cache as cache_ops


class CachedGeneration(TextGeneration):
    """Mixin that gives `start` and `step` to a decoder-only model with

    - `_embed(token_ids, positions)`, `blocks` and `_logits(x)`, as its `call` uses them;
    - `vocabulary_size`, `hidden_dim`, `max_sequence_length`, `tokenizer`;
    - `pad_token_id`, `start_token_id`, `end_token_id`.
    """

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
        if any(getattr(block.attention, "depends_on_length", False) for block in self.blocks):
            # What a row may grow to: cached keys are turned by it once and for all.
            state["lengths"] = ops.minimum(lengths + max_new_tokens, self.max_sequence_length)
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
        given = {"lengths": state["lengths"]} if "lengths" in state else {}
        extended = []
        for block, cache in zip(self.blocks, state["caches"], strict=True):
            x, cache = block(
                x, cache=cache, cache_index=position, attention_mask=mask, training=False, **given
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
    def output_vocabulary_size(self):
        return self.vocabulary_size

    @property
    def output_tokenizer(self):
        return self.tokenizer
