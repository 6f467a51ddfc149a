"""`score` and `rank`: how probable a model finds given text."""

import dataclasses
import math
import numbers

import keras
import numpy as np
from keras import ops

from keras_tx import kernels
from keras_tx.decoding.buckets import bucket
from keras_tx.integers import positive_integer
from keras_tx.models.programs import program
from keras_tx.models.prompts import Prompts, read_prompts
from keras_tx.ops.chunked_likelihood import chunked_log_likelihood

# The most logits that exist at once, 64 MB of them.
CHUNK = 2**24


class TextScoring:
    """Mixin that gives `score` and `rank` to a `TextGeneration` with

    - `_scored_pairs(prompts, continuations)`, a list of (context, targets): lists of ids, the
      targets those whose log-likelihood is wanted;
    - `_scoring_arrays(pairs, length)`, {name: array}, a row for each pair, its sizes buckets;
    - `_scored_states(arrays)`, the features (B, length, D) that the logits of the targets, at the
      first places, come from;
    - `_logits(states)`.
    """

    def score(
        self,
        prompts,
        continuations=None,
        *,
        return_dict: bool = False,
        batch_size: int = 32,
        verbose: str | int = "auto",
    ):
        """The log-likelihood of each token of given texts, in nats.

        A row's result does not depend on the other rows.

        A decoder-only model scores texts, or continuations of prompts. Of a text each token is
        scored given those before it; the first given the start token, or, without one, not at all.
        Of a continuation each token is scored given its prompt and the tokens before it, as
        `generate` would have chosen it: an empty prompt stands for the start token.

        An encoder-decoder scores targets (`continuations`) given sources (`prompts`), and then
        their end token: what is summed is what `generate` returns as `scores` for that text.

        Tokens of texts: A prompt has the tokens that `generate` would read. A continuation of it
        has those that follow in the two texts joined; where the joined text does not begin with
        the prompt's tokens, as the border is inside a token, it has those of itself alone. Targets
        have those of themselves. Ids are taken as they are.

        Args:
            prompts: Text or ids in any form that `generate` takes: texts to score, prompts, or
                sources.
            continuations: One for each prompt, text for text and ids for ids; what is scored
                instead.
            return_dict: Whether to return a dictionary with `token_ids` (lists, the tokens that
                are scored), `log_likelihoods` (arrays), `lengths` and `scores` (the sums), each
                with one row for each prompt.
            batch_size: So many rows are read at once.
            verbose: Whether to show a progress bar: 0, 1, or "auto", for more than one batch.

        Returns:
            float32 array, one number for each scored token, for one text; a list of them for
            several.

        Raises:
            ValueError: If a text, or prompt and continuation together, are longer than the
                context, there is not one continuation for each prompt, an id is unknown, or text
                meets no tokenizer.

        Example:
            >>> from keras_tx import GPT
            >>> gpt = GPT(11, num_layers=1, hidden_dim=8, num_heads=2, max_sequence_length=16)
            >>> gpt.score([1, 2, 3, 4]).shape
            (3,)
            >>> [row.shape for row in gpt.score([[1, 2], [1, 2]], [[3], [3, 4, 5]])]
            [(1,), (3,)]
        """
        prompts = self._read_scored(prompts)
        if continuations is not None:
            continuations = self._read_scored(
                continuations, is_continuation=True, name="continuations"
            )
        pairs = self._paired(prompts, continuations)
        found = self._log_likelihoods(pairs, batch_size, verbose)
        if return_dict:
            return {
                "token_ids": [targets for _, targets in pairs],
                "log_likelihoods": found,
                "lengths": np.array([len(row) for row in found], "int32"),
                "scores": np.array([row.sum(dtype="float64") for row in found], "float32"),
            }
        return prompts.answers(found)

    def rank(self, prompt, choices, *, length_penalty: float = 0.0, batch_size: int = 32):
        """Choices in the order of their log-likelihood after a prompt, the best first.

        score = (sum of the choice's log-likelihoods) / (number of its tokens) ** length_penalty

        with the tokens that `score` counts: for an encoder-decoder, the end token is one.

        Args:
            prompt: One text, or one list of ids: the prompt, or the source.
            choices: A list of texts, or of lists of ids.
            length_penalty: 0 compares sums, 1 means, which do not prefer the shorter.
            batch_size: So many choices are read at once.

        Returns:
            A list of (choice, score), each choice as it was given. Equals stay in their order.

        Raises:
            ValueError: As `score`; or if there are several prompts, no list of choices, or an empty
                choice.

        Example:
            >>> from keras_tx import GPT
            >>> gpt = GPT(11, num_layers=1, hidden_dim=8, num_heads=2, max_sequence_length=16)
            >>> best, *others = gpt.rank([1, 2, 3], [[4], [5, 6], [7]])
            >>> best[1] >= others[0][1] >= others[1][1]
            True
        """
        if not isinstance(length_penalty, numbers.Real) or not math.isfinite(length_penalty):
            raise ValueError(f"`length_penalty` must be a number. Received: {length_penalty!r}")
        prompt = self._read_scored(prompt)
        if prompt.rows and not prompt.is_single:
            raise ValueError(
                f"`prompt` must be one text, or one list of ids. Received: {len(prompt.rows)}"
            )
        if hasattr(choices, "__iter__") and not isinstance(choices, (str, bytes)):
            choices = list(choices)  # they are read and given back
        read = self._read_scored(choices, is_continuation=True, name="choices")
        if read.is_single:
            raise ValueError(
                f"`choices` must be a list of texts, or of lists of ids. Received: {choices!r}"
            )
        if not read.rows:
            return []
        prompts = dataclasses.replace(
            prompt,
            rows=(prompt.rows or [[]]) * len(read.rows),
            texts=prompt.texts and prompt.texts * len(read.rows),
            is_single=False,
        )
        pairs = self._paired(prompts, read)
        if not all(targets for _, targets in pairs):
            raise ValueError("Each of the `choices` must have a token. Received an empty one")
        with np.errstate(over="ignore"):  # a penalty may leave nothing of a score
            scores = [
                float(row.sum(dtype="float64") / np.float64(len(row)) ** length_penalty)
                for row in self._log_likelihoods(pairs, batch_size, 0)
            ]
        order = sorted(range(len(scores)), key=lambda place: -scores[place])
        return [(choices[place], scores[place]) for place in order]

    def _read_scored(
        self, prompts, is_continuation: bool = False, name: str = "prompts"
    ) -> Prompts:
        return read_prompts(
            prompts,
            tokenizer=self.output_tokenizer if is_continuation else self.tokenizer,
            vocabulary_size=(
                self.output_vocabulary_size if is_continuation else self.prompt_vocabulary_size
            ),
            pad_token_id=self.pad_token_id if is_continuation else self.prompt_pad_token_id,
            owner=self.name,
            name=name,
        )

    def _paired(self, prompts: Prompts, continuations: Prompts | None):
        if continuations is not None:
            counts = len(prompts.rows), len(continuations.rows)
            if counts[0] != counts[1] or prompts.is_single != continuations.is_single:
                raise ValueError(
                    "Give one continuation for each prompt, both alone or both in lists. "
                    f"Received: {counts[0]} prompts, {counts[1]} continuations"
                )
            if counts[0] and prompts.is_text != continuations.is_text:
                raise ValueError("Prompts and continuations must both be text, or both be ids")
        return self._scored_pairs(prompts, continuations)

    def _log_likelihoods(self, pairs, batch_size, verbose):
        """A float32 array for the targets of each (context, targets)."""
        batch_size = positive_integer("batch_size", batch_size)
        found = [np.zeros(0, "float32") for _ in pairs]
        # Rows of like lengths together: less padding, fewer buckets.
        order = sorted(
            (place for place, (_, targets) in enumerate(pairs) if targets),
            key=lambda place: (len(pairs[place][1]), len(pairs[place][0])),
        )
        batches = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
        if verbose == "auto":
            verbose = int(len(batches) > 1)
        bar = keras.utils.Progbar(len(batches), unit_name="batch") if verbose and batches else None
        for number, batch in enumerate(batches):
            for place, row in zip(batch, self._score_batch([pairs[i] for i in batch]), strict=True):
                found[place] = row
            if bar is not None:
                bar.update(number + 1)
        return found

    def _score_batch(self, pairs):
        """One batch, its sizes rounded up to buckets."""
        batch, length = bucket(len(pairs), 1), bucket(max(len(targets) for _, targets in pairs))
        filled = pairs + pairs[:1] * (batch - len(pairs))
        arrays = self._scoring_arrays(filled, length)
        arrays["targets"] = padded([targets for _, targets in filled], length, 0)
        arrays = {name: ops.convert_to_tensor(x) for name, x in arrays.items()}
        found = ops.convert_to_numpy(self._compiled_scoring()(arrays))
        return [row[: len(targets)].copy() for row, (_, targets) in zip(found, pairs, strict=False)]

    def _compiled_scoring(self):
        """What scores arrays, made once."""

        def score(arrays):
            states, targets = self._scored_states(arrays), arrays["targets"]
            rows = math.prod(targets.shape)  # a power of two, as the chunk is
            found = chunked_log_likelihood(
                ops.reshape(states, (rows, states.shape[-1])),
                ops.reshape(targets, (rows,)),
                lambda states: self._logits(states[None])[0],
                2 ** int(math.log2(max(1, CHUNK // self.output_vocabulary_size))),
            )
            return ops.reshape(found, targets.shape)

        return program(self, "score", lambda: kernels.compiled(score, self.variables))


def padded(rows, length: int, pad_token_id: int):
    """Lists of ids as an int32 array (rows, length)."""
    array = np.full((len(rows), length), pad_token_id, "int32")
    for row, place in zip(rows, array, strict=True):
        place[: len(row)] = row
    return array
