"""Scoring with a decoder-only model, and perplexity of texts longer than its context."""

import numpy as np
from keras import ops

from keras_tx.data import tokenizers
from keras_tx.decoding.buckets import bucket
from keras_tx.integers import is_integer
from keras_tx.models.text_scoring import TextScoring, padded


class CausalScoring(TextScoring):
    """Mixin that gives `score`, `rank` and `perplexity` to a `CachedGeneration` that also has

    - `_hidden_states(inputs)`, the features (B, T, D) that `_logits` takes, and more.
    """

    def perplexity(
        self, text, *, stride: int | None = None, batch_size: int = 8, verbose: str | int = "auto"
    ) -> float:
        """exp(- mean log-likelihood of a token) of a text of any length.

        A window of `max_sequence_length` tokens slides over the text by `stride`. Each token is
        scored once, in the first window that reaches it: with at least
        `max_sequence_length - stride` tokens before it, or with all there are. The first token of
        the text is scored given the start token, or, without one, not at all.

        Args:
            text: Text, or a list of ids.
            stride: From 1, the most exact and the slowest, to `max_sequence_length - 1`. Default:
                half of `max_sequence_length`.
            batch_size: So many windows are read at once.
            verbose: Whether to show a progress bar: 0, 1, or "auto", for more than one batch.

        Raises:
            ValueError: If there are several texts, or too few tokens to score one.

        Example:
            >>> from keras_tx import GPT
            >>> gpt = GPT(11, num_layers=1, hidden_dim=8, num_heads=2, max_sequence_length=16)
            >>> gpt.perplexity([1, 2, 3, 4, 5] * 20, verbose=0) > 1
            True

        Reference:
            Baevski and Auli 2019, "Adaptive Input Representations", section 5.3 (the stride).
        """
        window = self.max_sequence_length
        if stride is None:
            stride = max(1, window // 2)
        if not is_integer(stride) or not 1 <= stride < window:
            raise ValueError(
                f"`stride` must be from 1 to {window - 1}, below max_sequence_length={window}. "
                f"Received: {stride!r}"
            )
        read = self._read_scored(text, name="text")
        if len(read.rows) > 1:
            raise ValueError(
                f"`text` must be one text, or one list of ids. Received: {len(read.rows)}. Call "
                "`perplexity` for each, or take the mean of what `score` gives."
            )
        tokens = self._before_text() + (read.rows[0] if read.rows else [])
        if len(tokens) < 2:
            raise ValueError(
                f"The text has no token to score: it needs {2 - len(self._before_text())} or more"
            )
        pairs, begin, scored = [], 0, 1
        while scored < len(tokens):
            end = min(begin + window, len(tokens))
            pairs.append((tokens[begin:scored], tokens[scored:end]))
            begin, scored = begin + stride, end
        found = np.concatenate(self._log_likelihoods(pairs, batch_size, verbose))
        return float(np.exp(-found.mean(dtype="float64")))

    def _before_text(self):
        return [] if self.start_token_id is None else [self.start_token_id]

    def _scored_pairs(self, prompts, continuations):
        if continuations is None:
            rows = [self._before_text() + row for row in prompts.rows]
            pairs = [(row[:1], row[1:]) for row in rows]
        else:
            if prompts.rows:
                self.room([len(row) for row in prompts.rows])  # refuses what nothing stands for
            rows = continuations.rows
            if prompts.is_text:
                rows = self._behind(prompts, continuations)
            pairs = [
                (row or self._before_text(), more)
                for row, more in zip(prompts.rows, rows, strict=True)
            ]
        longest = max((len(context) + len(targets) for context, targets in pairs), default=0)
        if longest > self.max_sequence_length + 1:  # the last token is not read
            raise ValueError(
                f"A text, start token or prompt included, may be at most "
                f"{self.max_sequence_length + 1} tokens long "
                f"(max_sequence_length={self.max_sequence_length}). Received: {longest}. Use "
                "`perplexity` for a longer text, shorten the prompt, or build the model with a "
                "larger max_sequence_length."
            )
        return pairs

    def _behind(self, prompts, continuations):
        """The tokens of each continuation behind its prompt."""
        texts = zip(prompts.texts, continuations.texts, strict=True)
        joined = tokenizers.encode(self.tokenizer, [before + text for before, text in texts])
        return [
            whole[len(row) :] if whole[: len(row)] == row else alone
            for whole, row, alone in zip(joined, prompts.rows, continuations.rows, strict=True)
        ]

    def _scoring_arrays(self, pairs, length):
        rows = [(context + targets)[:-1] for context, targets in pairs]
        width = min(bucket(max(map(len, rows))), self.max_sequence_length)
        arrays = {
            "token_ids": padded(rows, width, self.pad_token_id or 0),
            "first": np.array([len(context) - 1 for context, _ in pairs], "int32"),
        }
        if any(getattr(block.attention, "depends_on_length", False) for block in self.blocks):
            whole = [min(len(row) + 1, self.max_sequence_length) for row in rows]
            arrays["lengths"] = np.array(whole, "int32")
        return arrays

    def _scored_states(self, arrays):
        token_ids, targets = arrays["token_ids"], arrays["targets"]
        names = ("token_ids", "lengths")
        states, _ = self._hidden_states({name: arrays[name] for name in names if name in arrays})
        places = arrays["first"][:, None] + ops.arange(targets.shape[1], dtype="int32")[None, :]
        # Places behind a row's end stand for none of its targets.
        places = ops.minimum(places, token_ids.shape[1] - 1)
        return ops.take_along_axis(states, places[..., None], axis=1)
