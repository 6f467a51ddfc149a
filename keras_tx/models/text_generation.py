"""`generate`: text or ids in, text or ids out, for every model with a start and a step."""

import numpy as np
from keras import ops

from keras_tx import decoding, kernels
from keras_tx.data import tokenizers
from keras_tx.decoding.buckets import bucket
from keras_tx.models.model import real_tokens


class TextGeneration:
    """Mixin that gives `generate` to a model with what decoding needs of it:

    - `start(inputs, max_new_tokens) -> (logits, state)` and `step(tokens, state)`;
    - `prompt_inputs(token_ids, lengths)`, from right-padded prompts to what `start` takes;
    - `room(lengths)`, how many tokens may follow prompts of these lengths;
    - `prompt_vocabulary_size`, `start_token_id`, `end_token_id`, `pad_token_id`;
    - `tokenizer`, of the prompts, and `output_tokenizer`.
    """

    def generate(
        self,
        prompts,
        *,
        strategy="greedy",
        max_new_tokens: int | None = None,
        stop: str | list[str] | None = None,
        seed: int | None = None,
        return_dict: bool = False,
    ):
        """Continues each prompt; what is returned is the new part alone.

        A row's result does not depend on the other rows. An empty prompt is continued from the
        start token.

        Args:
            prompts: A string, a list of strings, a list of ids, a list of lists of ids, or an
                integer array (length,) or (batch, length).
            strategy: "greedy", or a strategy object of `keras_tx.decoding`.
            max_new_tokens: The most tokens to add to a prompt. Default: what fits.
            stop: Text, or several, before which the result is cut; for prompts that are text.
            seed: For strategies that draw; greedy decoding does not.
            return_dict: Whether to return a dictionary with `text` (for prompts that are text),
                `token_ids`, `lengths` and `scores` (sums of log-probabilities), each with one row
                for each prompt, and `attention_scores` (B, T, S) where the model has them, 0
                beyond a row's own lengths.

        Returns:
            Text for text and ids for ids: one for one prompt, a list for several.

        Raises:
            ValueError: If a prompt leaves no room, an id is unknown, or text meets no tokenizer.
        """
        strategy = decoding.get(strategy)
        rows, is_text, is_single = self._read_prompts(prompts)
        if stop is not None and rows and not is_text:
            raise ValueError("`stop` is text: it needs prompts that are text, not ids")
        stops = _read_stops(stop)
        results = self._generate_rows(rows, strategy, max_new_tokens) if rows else {}
        if not rows:
            results = {"token_ids": [], "lengths": np.zeros(0, "int32"), "scores": np.zeros(0)}
        if is_text:
            texts = tokenizers.decode(self.output_tokenizer, results["token_ids"]) if rows else []
            results = {"text": [_cut(text, stops) for text in texts], **results}
        if return_dict:
            return results
        answers = results["text"] if is_text else results["token_ids"]
        return answers[0] if is_single else answers

    def _read_prompts(self, prompts):
        """Lists of ids; whether they were text; whether there was one prompt without a list."""
        if isinstance(prompts, str):
            return self._encode_texts([prompts]), True, True
        if ops.is_tensor(prompts):
            prompts = ops.convert_to_numpy(prompts)
        if hasattr(prompts, "__array__"):  # also the tensors of another library
            prompts = np.asarray(prompts).tolist()
        if not isinstance(prompts, (list, tuple)):
            raise ValueError(
                "`prompts` must be text, a list of texts, ids, or a list of lists of ids. "
                f"Received: {type(prompts).__name__}"
            )
        kinds = {_kind(prompt) for prompt in prompts}
        if kinds == {"text"}:
            return self._encode_texts([str(prompt) for prompt in prompts]), True, False
        if kinds == {"id"}:
            return [self._checked(prompts)], False, True
        if kinds <= {"row"}:
            return [self._checked(row) for row in prompts], False, False
        raise ValueError(
            "`prompts` must be texts alone, integers alone or lists of integers alone. "
            f"Received a list of: {', '.join(sorted(kinds))}"
        )

    def _encode_texts(self, texts):
        if self.tokenizer is None:
            raise ValueError(
                f"{self.name} has no tokenizer: give ids, or build the model with `tokenizer=`"
            )
        return [self._checked(row) for row in tokenizers.encode(self.tokenizer, texts)]

    def _checked(self, row):
        if any(_kind(token) != "id" for token in row):
            raise ValueError(f"A prompt of ids must hold integers alone. Received: {list(row)}")
        row, size = [int(token) for token in row], self.prompt_vocabulary_size
        if row and not 0 <= min(row) <= max(row) < size:
            raise ValueError(
                f"The ids of a prompt must be from 0 to {size - 1}. "
                f"Received: from {min(row)} to {max(row)}"
            )
        while row and row[-1] == self.prompt_pad_token_id:  # rows of an array are padded
            row.pop()
        return row

    @property
    def prompt_pad_token_id(self):
        """Padding behind a prompt, which is no part of it; None if there is none."""
        return self.pad_token_id

    def _generate_rows(self, rows, strategy, max_new_tokens):
        lengths = np.array([len(row) for row in rows], "int32")
        room = self.room(lengths)
        if max_new_tokens is not None and (
            not isinstance(max_new_tokens, (int, np.integer)) or max_new_tokens < 1
        ):
            raise ValueError(f"`max_new_tokens` must be at least 1. Received: {max_new_tokens!r}")
        if room.min() < 1:
            raise ValueError(
                "A prompt leaves no room for another token: at most "
                f"{int(lengths[room.argmin()] + room.min() - 1)} of its "
                f"{int(lengths[room.argmin()])} tokens fit before one. Shorten the prompt, or "
                "build the model with a larger max_sequence_length."
            )
        limits = room if max_new_tokens is None else np.minimum(room, max_new_tokens)
        result = self._run(rows, lengths, limits, strategy)
        result = {name: ops.convert_to_numpy(value)[: len(rows)] for name, value in result.items()}
        result["token_ids"] = [
            row[:length].tolist()
            for row, length in zip(result["token_ids"], result["lengths"], strict=True)
        ]
        if "attention_scores" in result:  # without the places that only fill a bucket
            longest, longest_prompt = result["lengths"].max(), lengths.max()
            result["attention_scores"] = result["attention_scores"][:, :longest, :longest_prompt]
        return result

    def _run(self, rows, lengths, limits, strategy):
        """Rounds all sizes up to buckets, and runs the compiled loop."""
        batch, length = bucket(len(rows), 1), bucket(int(lengths.max()))
        token_ids = np.full((batch, length), self.pad_token_id or 0, "int32")
        for row, place in zip(rows, token_ids, strict=False):
            place[: len(row)] = row
        filling = (0, batch - len(rows))
        run = self._compiled_loop(strategy, bucket(int(limits.max())))
        return run(
            ops.convert_to_tensor(token_ids),
            ops.convert_to_tensor(np.pad(lengths, filling)),
            ops.convert_to_tensor(np.pad(limits, filling).astype("int32")),
        )

    def _compiled_loop(self, strategy, max_new_tokens: int):
        loops = self.__dict__.setdefault("_compiled_loops", {})
        key = (type(strategy), repr(strategy.get_config()), max_new_tokens, len(self.variables))
        if key not in loops:

            def run(token_ids, lengths, limits):
                return self.generate_ids(token_ids, lengths, limits, strategy, max_new_tokens)

            loops[key] = kernels.compiled(run, self.variables)
        return loops[key]

    def generate_ids(self, token_ids, lengths, limits, strategy, max_new_tokens: int):
        """The token loop over right-padded prompts, in tensors; also what a server runs.

        Args:
            token_ids: int32 (B, P), each row's prompt first.
            lengths: int32 (B,), the prompts' lengths.
            limits: int32 (B,), the most tokens each row may get.
            strategy: A strategy object.
            max_new_tokens: Length of the result.

        Returns:
            A dictionary of `token_ids` (B, max_new_tokens), `lengths` (B,), `scores` (B,) and
            what the model reads from the last state.
        """
        result, state = decoding.generate_tokens(
            self.start,
            self.step,
            self.prompt_inputs(token_ids, lengths),
            strategy=strategy,
            max_new_tokens=max_new_tokens,
            limits=limits,
            end_token_id=self.end_token_id,
            pad_token_id=self.pad_token_id or 0,
        )
        # A row that is done waits for the others; what it saw then is no part of its result.
        written = ops.arange(max_new_tokens, dtype="int32")[None, :] < result["lengths"][:, None]
        for name, value in self.read_state(state).items():
            kept = ops.reshape(written, (*ops.shape(written), *[1] * (len(value.shape) - 2)))
            result[name] = ops.where(kept, value, ops.zeros_like(value))
        return result

    def target_weights(self, inputs, targets):
        if self.pad_token_id is None:
            return super().target_weights(inputs, targets)
        return ops.cast(real_tokens(targets, self.pad_token_id), "float32")

    def read_state(self, state):
        """Further results kept in the last state, each (B, max_new_tokens, ...)."""
        return {}


def _kind(prompt):
    if isinstance(prompt, (str, np.str_)):
        return "text"
    if isinstance(prompt, (int, np.integer)) and not isinstance(prompt, bool):
        return "id"
    return "row" if isinstance(prompt, (list, tuple, np.ndarray)) else type(prompt).__name__


def _read_stops(stop):
    """A list of texts from one, several or None."""
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, (list, tuple)) or not all(isinstance(s, str) and s for s in stops):
        raise ValueError(
            f"`stop` must be text or a list of texts, none of them empty. Received: {stop!r}"
        )
    return stops


def _cut(text, stops):
    """The text before the first of the stop texts."""
    ends = [text.find(stop) for stop in stops if stop in text]
    return text[: min(ends)] if ends else text
