"""Scoring of targets given sources, with an encoder and a decoder."""

import numpy as np

from keras_tx.decoding.buckets import bucket
from keras_tx.models.text_scoring import TextScoring, padded


class PairedScoring(TextScoring):
    """Mixin that gives `score` and `rank` to a recurrent encoder-decoder with

    - `_encode(source_ids, mask)`, `_source_mask(inputs)` and `decoder`;
    - `_embed(embedding, token_ids)` and `target_embedding`.
    """

    def _scored_pairs(self, prompts, continuations):
        if continuations is None:
            raise ValueError(
                "An encoder-decoder scores targets given sources. Received no targets: call "
                "`score(sources, targets)`"
            )
        if prompts.rows:
            self.room([len(row) for row in prompts.rows])  # refuses where there is no start token
        end = [] if self.end_token_id is None else [self.end_token_id]
        targets = [row if row[-1:] == end else row + end for row in continuations.rows]
        return list(zip(prompts.rows, targets, strict=True))

    def _scoring_arrays(self, pairs, length):
        sources = [source for source, _ in pairs]
        width = bucket(max(map(len, sources)))
        read = [[self.start_token_id, *targets[:-1]] for _, targets in pairs]
        return {
            "source_ids": padded(sources, width, self.source_pad_token_id or 0),
            "lengths": np.array([len(source) for source in sources], "int32"),
            "target_ids": padded(read, length, self.pad_token_id or 0),
        }

    def _scored_states(self, arrays):
        memory, states = self._encode(arrays["source_ids"], self._source_mask(arrays), False)
        embedded = self._embed(self.target_embedding, arrays["target_ids"])
        return self.decoder(embedded, memory, states, training=False)
