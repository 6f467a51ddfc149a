"""One batch of prompts on its way through the compiled loop."""

import time

import numpy as np
from keras import ops

from keras_tx import kernels
from keras_tx.decoding.buckets import bucket

# Between two looks at the tokens about so many seconds pass.
PAUSE = 0.05
MOST_STEPS = 128
GROWTH = 32  # from one look to the next


class CompiledLoop:
    """A strategy over a model for one length of the result, compiled once for each shape.

    Its functions take a dictionary: `token_ids` (B, P), `lengths`, `limits` and `seeds` (B,), and
    the strategy's `options`.
    """

    def __init__(self, model, strategy, max_new_tokens: int):
        variables = [*model.variables, *strategy.variables]

        def request(arguments, inputs=None):
            return model.request(**arguments, inputs=inputs, max_new_tokens=max_new_tokens)

        def begin(arguments):
            inputs = model.prompt_inputs(arguments["token_ids"], arguments["lengths"])
            return strategy.begin(model, request(arguments, inputs))

        def advance(arguments, progress, until):
            return strategy.advance(model, request(arguments), progress, until)

        def result(arguments, progress):
            return strategy.result(model, request(arguments), progress)

        def generate(arguments):
            progress = advance(arguments, begin(arguments), max_new_tokens)
            return result(arguments, progress)

        jit = bool(model.jit_compile)
        self.generate = kernels.compiled(generate, variables, jit_compile=jit)
        self.begin = kernels.compiled(begin, variables, jit_compile=jit)
        self.advance = kernels.compiled(advance, variables, jit_compile=jit, overwrites=(1,))
        self.result = kernels.compiled(result, variables, jit_compile=jit)


class DecodingRun:
    """Rounds all sizes up to buckets and runs a strategy over a model, at once or bit by bit.

    Args:
        model: A `TextGeneration`.
        strategy: A strategy object.
        rows: Lists of ids, the prompts.
        limits: (rows,), the most tokens each may get.
        seeds: (rows,).
        options: {name: (rows, ...)} of the strategy.
    """

    def __init__(self, model, strategy, rows, limits, seeds, options):
        self.num_rows, self.longest_prompt = len(rows), max(1, *map(len, rows))
        lengths = np.array([len(row) for row in rows], "int32")
        self.max_new_tokens = bucket(int(limits.max()))
        batch, length = bucket(len(rows), 1), bucket(int(lengths.max()))
        token_ids = np.full((batch, length), model.pad_token_id or 0, "int32")
        for row, place in zip(rows, token_ids, strict=False):
            place[: len(row)] = row
        filling = batch - len(rows)

        def tensor(x, **fill):  # rows that only fill the bucket get no token
            return ops.convert_to_tensor(
                np.pad(x, [(0, filling), *[(0, 0)] * (x.ndim - 1)], **fill)
            )

        self.loop = model.compiled_loop(strategy, self.max_new_tokens)
        self.arguments = {
            "token_ids": ops.convert_to_tensor(token_ids),
            "lengths": tensor(lengths),
            "limits": tensor(limits.astype("int32")),
            "seeds": tensor(seeds.astype("int32")),
            "options": {name: tensor(x, mode="edge") for name, x in options.items()},
        }

    def result(self) -> dict:
        """The strategy's result, numpy arrays of the real rows."""
        return self._real(self.loop.generate(self.arguments))

    def progress(self):
        """Works bit by bit.

        Yields:
            A dictionary of numpy arrays of the real rows: `tokens`, `log_probabilities`, `lengths`
            and `done`. Rows that are then set in `stopped` are done, too.
        """
        self.stopped = np.zeros(self.num_rows, "bool")
        began, until = time.perf_counter(), 0
        self._progress = self.loop.begin(self.arguments)
        ops.convert_to_numpy(self._progress["done"])  # when it is there, the prompts are read
        # A step takes no longer than that did.
        steps = _next_steps(1, time.perf_counter() - began)
        while True:
            until += steps
            began = time.perf_counter()
            self._progress = self.loop.advance(
                self.arguments, self._progress, ops.convert_to_tensor(until, "int32")
            )
            names = ("tokens", "log_probabilities", "lengths", "done")
            seen = self._real({name: self._progress[name] for name in names})
            taken = time.perf_counter() - began
            self.seen = seen
            yield seen
            if (seen["done"] | self.stopped).all() or until >= self.max_new_tokens:
                return
            if self.stopped.any():
                done = np.array(ops.convert_to_numpy(self._progress["done"]))
                done[: self.num_rows] |= self.stopped
                self._progress = {**self._progress, "done": ops.convert_to_tensor(done)}
            steps = _next_steps(steps, taken)

    def result_so_far(self) -> dict:
        """The strategy's result of what `progress` found."""
        return self._real(self.loop.result(self.arguments, self._progress))

    def _real(self, result):
        # Copies: the next call may write where the tensors stand.
        return {name: ops.convert_to_numpy(x)[: self.num_rows].copy() for name, x in result.items()}


def _next_steps(steps, taken):
    """How many steps fill a pause, if so many took so many seconds."""
    return int(np.clip(PAUSE * steps / taken, 1, min(GROWTH * steps, MOST_STEPS)))
