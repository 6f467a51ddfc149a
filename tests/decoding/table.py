"""A decoder that is a table, and slow searches in it."""

import dataclasses
import itertools

import numpy as np
from keras import ops

from keras_tx import kernels
from keras_tx.decoding import Request


class Table:
    """Gives logits table[row, step, last token]; its state holds what it has read.

    Args:
        table: (rows, steps, V, V), or (rows, steps, V) where the last token does not matter.
    """

    def __init__(self, table):
        table = np.asarray(table, "float32")
        if table.ndim == 3:
            table = np.repeat(table[:, :, None], table.shape[-1], axis=2)
        self.table = table

    def start(self, inputs, max_new_tokens, slack=0):
        rows = ops.arange(len(self.table), dtype="int32")
        state = {"row": rows, "steps": ops.zeros_like(rows)}
        return self._logits(ops.zeros_like(rows), state), state

    def step(self, tokens, state):
        state = {**state, "steps": state["steps"] + 1}
        return self._logits(tokens, state), state

    def extend(self, tokens, state):
        count = tokens.shape[1]
        logits = []
        for place in range(count):
            read, state = self.step(tokens[:, place], state)
            logits.append(read)
        return ops.stack(logits, axis=1), state

    def rewind(self, state, count):
        return {**state, "steps": state["steps"] - count}

    def _logits(self, tokens, state):
        _, steps, vocabulary, _ = self.table.shape
        # After the last token there is one step more, which nobody reads.
        place = ops.minimum(state["steps"], steps - 1)
        tokens = ops.minimum(tokens, vocabulary - 1)  # padding is none of them
        flat = ops.reshape(ops.convert_to_tensor(self.table), (-1, vocabulary))
        return ops.take(flat, (state["row"] * steps + place) * vocabulary + tokens, axis=0)

    def log_probabilities(self, row):
        """(steps, V, V) in float64."""
        logits = self.table[row].astype("float64")
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def texts(self, row, limit, end):
        """Every text there is, [(tokens, log-probability, number of tokens with the end)]."""
        log_p = self.log_probabilities(row)
        found = []
        for tokens in itertools.product(range(log_p.shape[-1]), repeat=limit):
            if end in tokens:
                tokens = tokens[: tokens.index(end) + 1]
            path = zip(range(limit), (0, *tokens), tokens)  # noqa: B905  the last has no successor
            value = sum(log_p[step, last, token] for step, last, token in path)
            kept = tokens[:-1] if tokens[-1] == end else tokens
            found.append((list(kept), value, len(tokens)))
        return list({tuple(text[0]) + (text[2],): text for text in found}.values())


def request(rows, max_new_tokens, strategy, limits=None, end=None, pad=7, seeds=None, inputs=None):
    """A request for `rows` rows of a table."""
    limits = np.full(rows, max_new_tokens) if limits is None else limits
    seeds = np.arange(rows) if seeds is None else seeds
    return Request(
        inputs=inputs,
        max_new_tokens=max_new_tokens,
        limits=ops.convert_to_tensor(np.asarray(limits, "int32")),
        prompt=ops.zeros((rows, 0), "int32"),
        seeds=ops.convert_to_tensor(np.asarray(seeds, "int32")),
        options={
            name: ops.convert_to_tensor(value) for name, value in strategy.options(rows).items()
        },
        end_token_id=end,
        pad_token_id=pad,
    )


def search(decoder, strategy, rows, max_new_tokens, limits=None, end=None, seeds=None, pauses=()):
    """What a strategy finds, as numpy arrays, and how many steps it made."""
    asked = request(rows, max_new_tokens, strategy, limits, end, seeds=seeds)

    def run(tensors):
        given = dataclasses.replace(asked, **tensors)
        progress = strategy.begin(decoder, given)
        for until in (*pauses, max_new_tokens):
            progress = strategy.advance(decoder, given, progress, until)
        return {**strategy.result(decoder, given, progress), "steps": progress["index"]}

    tensors = {name: getattr(asked, name) for name in ("limits", "prompt", "seeds", "options")}
    result = kernels.compiled(run, ())(tensors)
    return {name: ops.convert_to_numpy(value) for name, value in result.items()}
