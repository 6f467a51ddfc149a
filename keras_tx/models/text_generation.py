"""`generate` and `stream`: text or ids in, text or ids out, for every model with a step."""

from collections.abc import Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_tx import decoding
from keras_tx.data import tokenizers
from keras_tx.integers import positive_integer
from keras_tx.models.decoding_results import cut, joined, lists, row_seeds
from keras_tx.models.decoding_run import CompiledLoop, DecodingRun
from keras_tx.models.model import real_tokens
from keras_tx.models.programs import program
from keras_tx.models.prompts import read_prompts
from keras_tx.models.stop_texts import StopTexts
from keras_tx.models.watched_run import WatchedRun


class TextGeneration:
    """Mixin that gives `generate` and `stream` to a model with what decoding needs of it:

    - `start(inputs, max_new_tokens) -> (logits, state)` and `step(tokens, state)`;
    - `prompt_inputs(token_ids, lengths)`, from right-padded prompts to what `start` takes;
    - `continues_prompt`, whether the new text continues the prompt's own;
    - `room(lengths)`, how many tokens may follow prompts of these lengths;
    - `prompt_vocabulary_size`, `start_token_id`, `end_token_id`, `pad_token_id`;
    - `tokenizer`, of the prompts, `output_tokenizer` and `output_vocabulary_size`.
    """

    continues_prompt = True

    def generate(
        self,
        prompts,
        *,
        strategy: "str | decoding.strategy.Strategy" = "greedy",
        max_new_tokens: int | None = None,
        stop: str | list[str] | None = None,
        seed: int | Sequence[int] | None = None,
        return_dict: bool = False,
        batch_size: int = 32,
        verbose: str | int = "auto",
    ):
        """Continues each prompt; what is returned is the new part alone.

        A row's result does not depend on the other rows. An empty prompt is continued from the
        start token. On TensorFlow XLA compiles the loop if `compile(jit_compile=True)` asked for
        it: on a CPU small models then decode faster, large ones slower.

        Args:
            prompts: A string, a list of strings, a list of ids, a list of lists of ids, an integer
                array (length,) or (batch, length), a ragged tensor, or a `tf.data.Dataset` of
                texts or ids.
            strategy: "greedy", "sample", "beam", or a strategy object of `keras_tx.decoding`.
            max_new_tokens: The most tokens to add to a prompt. Default: what fits.
            stop: Text, or several, before which the result is cut, wherever its tokens begin and
                end; for prompts that are text. A row that is cut makes no more tokens, and its
                `token_ids` are the fewest that hold the stop; beams are cut when all have ended.
            seed: For strategies that draw: an integer for each row, or one for all, of which row k
                takes `seed + k`; the lowest 32 bits count. Default: others each time, unless
                `keras.utils.set_random_seed` was called.
            return_dict: Whether to return a dictionary with `text` (for prompts that are text),
                `token_ids`, `lengths` and `scores` (sums of log-probabilities), each with one row
                for each prompt, and `attention_scores` (B, T, S) where the model has them, 0
                beyond a row's own lengths.
            batch_size: So many prompts are continued at once.
            verbose: Whether to show a progress bar: 0, 1, or "auto", for more than one batch.

        Returns:
            Text for text and ids for ids: one for one prompt, a list for several. A strategy with
            several results for each prompt gives a list in place of each.

        Raises:
            ValueError: If a prompt leaves no room, an id is unknown, text meets no tokenizer, or
                the strategy has numbers for other rows.
        """
        prompts, strategy, stops = self._read_request(prompts, strategy, stop)
        batch_size = positive_integer("batch_size", batch_size)
        runs = self._runs(prompts, strategy, max_new_tokens, seed, batch_size)
        if verbose == "auto":
            verbose = int(len(runs) > 1)
        bar = keras.utils.Progbar(len(runs), unit_name="batch") if verbose and runs else None
        results = []
        for number, run in enumerate(runs):
            results.append(self._run(run, strategy, stops))
            if bar is not None:
                bar.update(number + 1)
        result = joined(results)
        if prompts.is_text or (not prompts.rows and self.tokenizer is not None):
            texts = self._texts(result["token_ids"])
            result = {"text": cut(texts, stops), **result}
        if return_dict:
            return result
        return prompts.answers(result["text"] if prompts.is_text else result["token_ids"])

    def stream(
        self,
        prompts,
        *,
        strategy: "str | decoding.strategy.Strategy" = "greedy",
        max_new_tokens: int | None = None,
        stop: str | list[str] | None = None,
        seed: int | Sequence[int] | None = None,
    ) -> Iterator:
        """Like `generate`, piece by piece as the text is made.

        The pieces of a text joined are what `generate` returns. A piece comes about twenty times a
        second, or with each token where that takes longer. Half a character, or what may be the
        beginning of a stop text, waits for the rest.

        Args:
            prompts, strategy, max_new_tokens, stop, seed: As for `generate`; all prompts are
                one batch. A strategy that takes back what it has found, such as `Beam`, cannot be
                streamed.

        Yields:
            For one prompt its next piece, text or a list of ids; for several a list with a piece,
            perhaps empty, for each. Whoever stops asking stops the work.

        Raises:
            ValueError: As `generate`, at the call.
        """
        prompts, strategy, stops = self._read_request(prompts, strategy, stop)
        if not strategy.can_stream:
            raise ValueError(
                f"{type(strategy).__name__} knows its text only at the end: it cannot be streamed. "
                "Use `generate`, or another strategy."
            )
        runs = self._runs(prompts, strategy, max_new_tokens, seed, max(1, len(prompts.rows)))
        return self._pieces(prompts, runs, stops)

    def _pieces(self, prompts, runs, stops):
        for run in runs:
            watched = WatchedRun(run, stops, self._texts if prompts.is_text else None)
            yield from map(prompts.answers, watched.pieces())

    def _run(self, run, strategy, stops):
        """The result of one batch; `token_ids` are lists."""
        if stops and strategy.can_stream:
            result = WatchedRun(run, stops, self._texts).result()
        else:
            result = run.result()
        first = ("token_ids", "lengths", "scores")  # JAX sorts the names
        result = {name: result[name] for name in (*first, *sorted({*result} - {*first}))}
        result["token_ids"] = lists(result["token_ids"], result["lengths"])
        if "attention_scores" in result:  # without the places that only fill a bucket
            longest = max(1, result["lengths"].max())
            scores = result["attention_scores"][..., :longest, : run.longest_prompt]
            written = np.arange(longest) < result["lengths"][..., None]
            result["attention_scores"] = scores * written[..., None]
        return result

    def _read_request(self, prompts, strategy, stop):
        strategy = decoding.get(strategy)
        prompts = read_prompts(
            prompts,
            tokenizer=self.tokenizer,
            vocabulary_size=self.prompt_vocabulary_size,
            pad_token_id=self.prompt_pad_token_id,
            owner=self.name,
        )
        stops = StopTexts(stop)
        if stops and prompts.rows and not prompts.is_text:
            raise ValueError("`stop` is text: it needs prompts that are text, not ids")
        return prompts, strategy, stops

    def _runs(self, prompts, strategy, max_new_tokens, seed, batch_size):
        """A run for each batch of the prompts."""
        rows = prompts.rows
        if not rows:
            return []
        limits = self._limits(rows, max_new_tokens)
        seeds = row_seeds(seed, len(rows))
        options = strategy.options(len(rows), self.output_vocabulary_size)
        runs = []
        for first in range(0, len(rows), batch_size):
            of_batch = slice(first, first + batch_size)
            given = {name: x[of_batch] for name, x in options.items()}
            arrays = (rows[of_batch], limits[of_batch], seeds[of_batch], given)
            runs.append(DecodingRun(self, strategy, *arrays))
        return runs

    def _limits(self, rows, max_new_tokens):
        """The most tokens that each row may get."""
        if max_new_tokens is not None:
            max_new_tokens = positive_integer("max_new_tokens", max_new_tokens)
        lengths = np.array([len(row) for row in rows], "int32")
        room = self.room(lengths)
        if room.min() < 1:
            raise ValueError(
                "A prompt leaves no room for another token: at most "
                f"{int(lengths[room.argmin()] + room.min() - 1)} of its "
                f"{int(lengths[room.argmin()])} tokens fit before one. Shorten the prompt, or "
                "build the model with a larger max_sequence_length."
            )
        return room if max_new_tokens is None else np.minimum(room, max_new_tokens)

    def compiled_loop(self, strategy, max_new_tokens: int) -> CompiledLoop:
        """The compiled loop of a strategy for a length of the result; made once."""
        others = tuple(map(id, strategy.variables))
        ids = (self.start_token_id, self.end_token_id, self.pad_token_id)
        key = (strategy.compiled_in, others, ids, max_new_tokens, self.jit_compile)
        return program(
            self, (CompiledLoop, key), lambda: CompiledLoop(self, strategy, max_new_tokens)
        )

    def request(
        self, token_ids, lengths, limits, seeds, options, max_new_tokens: int, inputs=None
    ) -> decoding.Request:
        """What a strategy works on, from right-padded prompts."""
        return decoding.Request(
            inputs=inputs,
            max_new_tokens=max_new_tokens,
            limits=limits,
            prompt=self._text_before(token_ids, lengths),
            seeds=seeds,
            options=options,
            end_token_id=self.end_token_id,
            pad_token_id=self.pad_token_id or 0,
        )

    def generate_ids(
        self,
        token_ids,
        lengths,
        limits,
        strategy,
        max_new_tokens: int,
        seeds=None,
        options: dict | None = None,
    ) -> dict:
        """The token loop over right-padded prompts, in tensors; also what a server runs.

        Args:
            token_ids: int32 (B, P), each row's prompt first.
            lengths: int32 (B,), the prompts' lengths.
            limits: int32 (B,), the most tokens each row may get.
            strategy: A strategy object.
            max_new_tokens: Length of the result.
            seeds: int32 (B,), for strategies that draw. Default: 0.
            options: {name: (B, ...)}, as `strategy.options`. Default: those of `strategy`.

        Returns:
            A dictionary of `token_ids` (B, max_new_tokens), `lengths` (B,), `scores` (B,) and
            what the model reads from the last state.
        """
        if options is None:
            options = strategy.constant_options(ops.shape(token_ids)[0])
        request = self.request(
            token_ids,
            lengths,
            limits,
            ops.zeros_like(lengths) if seeds is None else seeds,
            options,
            max_new_tokens,
            inputs=self.prompt_inputs(token_ids, lengths),
        )
        return decoding.generate_tokens(self, strategy, request)

    def _text_before(self, token_ids, lengths):
        """What a rule sees before the new text: ids that end at the last place, -1 before them."""
        batch, length = ops.shape(token_ids)
        if not self.continues_prompt:
            return ops.zeros((batch, 0), "int32")
        if self.start_token_id is not None:  # it stands for an empty prompt
            is_empty = ops.equal(lengths, 0)[:, None]
            token_ids = ops.where(is_empty, self.start_token_id, token_ids)
            lengths = ops.maximum(lengths, 1)
        places = ops.arange(length, dtype="int32")[None, :] - (length - lengths)[:, None]
        shifted = ops.take_along_axis(token_ids, ops.maximum(places, 0), axis=1)
        return ops.where(places >= 0, shifted, -1)

    def _texts(self, rows):
        """The texts of lists of ids, or of lists of such lists."""
        if rows and rows[0] and isinstance(rows[0][0], list):
            return [self._texts(several) for several in rows]
        return tokenizers.decode(self.output_tokenizer, rows) if rows else []

    def target_weights(self, inputs, targets):
        if self.pad_token_id is None:
            return super().target_weights(inputs, targets)
        return ops.cast(real_tokens(targets, self.pad_token_id), "float32")

    @property
    def prompt_pad_token_id(self):
        """Padding behind a prompt, which is no part of it; None if there is none."""
        return self.pad_token_id

    def read_state(self, state):
        """Further results kept in the last state, each (B, max_new_tokens, ...)."""
        return {}
