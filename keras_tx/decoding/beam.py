from collections.abc import Callable, Sequence

import keras
from keras import ops, tree

from keras_tx.decoding import rules
from keras_tx.decoding.options import LARGEST_FLOAT
from keras_tx.decoding.progress import advance, only_written, read_state
from keras_tx.decoding.strategy import Strategy
from keras_tx.integers import positive_integer

NEVER = float("-inf")


@keras.saving.register_keras_serializable(package="keras_tx")
class Beam(Strategy):
    """Keeps the `width` most probable texts at every step, and gives the best that have ended.

    A text of n tokens, the end token among them, is worth `sum of log-probabilities / n **
    length_penalty`. What ends among the best `width` continuations of a step is kept if it is worth
    more than what was kept before; the best others go on. With rules it is the log-probabilities
    that they change, after the softmax.

    Each number but `width` and `num_results` may be one for all rows, or one for each.

    Args:
        width: Texts kept at every step.
        length_penalty: Exponent of the length. Above 0 long texts gain, 0 leaves the sums.
        early_stopping: Whether a row is done when `width` texts have ended. If not, it is when none
            of those under way would be worth more than the worst of them if it ended now.
        num_results: How many texts are given for each prompt, best first; at most `width`. With
            more than 1 each result has a second dimension of this size.
        repetition_penalty: Divides the positive logits of tokens that the text, prompt included,
            has already, and multiplies the negative ones. 1 does nothing.
        frequency_penalty: Taken off a token's logit for each time it is in the new text.
        presence_penalty: Taken off a token's logit if it is in the new text.
        no_repeat_ngram_size: No so many tokens in a row stand twice in the text. 0 does nothing.
        min_new_tokens: Before so many, the end token is not chosen.
        banned_tokens: Ids that are never chosen; for each row its own as a list of lists.
        forced_tokens: Ids that the new text begins with, None where the choice is free; for each
            row its own as a list of lists.
        rules: Functions `(logits (B, V), tokens (B, L), step (B,)) -> logits` of your own, applied
            after the others: pure `keras.ops`. `tokens` are the text so far at consecutive places,
            -1 elsewhere; `step` counts the new ones.

    Returns of the loop:
        As for every strategy; `scores` are what the texts are worth. A text that does not exist, of
        a vocabulary that is too small for so many, has length 0 and a score of -inf.

    Raises:
        ValueError: If a number is out of its range.

    Example:
        >>> Beam(4, length_penalty=0.6)
        Beam(length_penalty=0.6)

    Reference:
        Graves 2012, "Sequence Transduction with Recurrent Neural Networks", Algorithm 1; Sutskever
        et al. 2014, section 3.2; the worth and the end are those of transformers' `generate`.
    """

    static = ("width", "num_results")
    can_stream = False

    def __init__(
        self,
        width: int = 4,
        *,
        length_penalty: float | Sequence[float] = 1.0,
        early_stopping: bool | Sequence[bool] = False,
        num_results: int = 1,
        repetition_penalty: float | Sequence[float] | None = None,
        frequency_penalty: float | Sequence[float] | None = None,
        presence_penalty: float | Sequence[float] | None = None,
        no_repeat_ngram_size: int | Sequence[int] | None = None,
        min_new_tokens: int | Sequence[int] | None = None,
        banned_tokens: Sequence | None = None,
        forced_tokens: Sequence | None = None,
        rules: Sequence[Callable] = (),
    ):
        self._store(locals())
        for name in self.static:
            setattr(self, name, positive_integer(name, getattr(self, name)))
        if self.num_results > self.width:
            raise ValueError(
                f"`num_results` may be at most the width, {self.width}. "
                f"Received: {self.num_results}. Ask for a wider beam."
            )

    def begin(self, decoder, request):
        logits, state = decoder.start(request.inputs, request.max_new_tokens)
        batch, width, length = ops.shape(logits)[0], self.width, request.max_new_tokens
        rows = ops.repeat(ops.arange(batch, dtype="int32"), width)
        logits, state = tree.map_structure(lambda x: ops.take(x, rows, axis=0), (logits, state))
        # At first all beams of a row are the same text: one of them goes on.
        is_first = ops.arange(width, dtype="int32")[None, :] < 1
        worth = ops.where(is_first, 0.0, NEVER)
        padding = ops.cast(request.pad_token_id, "int32")
        tokens = ops.broadcast_to(padding, (batch, width, length))
        return {
            "index": ops.cast(0, "int32"),
            "tokens": tokens,
            "sums": ops.broadcast_to(worth, (batch, width)),
            "ended": {
                "tokens": tokens,
                "scores": ops.broadcast_to(NEVER, (batch, width)),
                "lengths": ops.zeros((batch, width), "int32"),
                "read": self._read(decoder, state, batch),
            },
            "done": ops.cast(request.limits, "int32") <= 0,
            "logits": logits,
            "state": state,
        }

    def advance(self, decoder, request, progress, until):
        used = rules.in_use(request.options)

        def one_step(request, used, progress):
            limits = ops.cast(request.limits, "int32")[:, None]
            places = ops.arange(request.max_new_tokens, dtype="int32")
            penalty = ops.cast(request.options["length_penalty"], "float32")[:, None]
            stops_early = ops.cast(request.options["early_stopping"], "bool")[:, None]
            # Each row's options for each of its beams.
            each = {name: ops.repeat(x, self.width, axis=0) for name, x in request.options.items()}
            index, done = progress["index"], progress["done"]
            batch, width = ops.shape(done)[0], self.width
            log_p = ops.log_softmax(ops.cast(progress["logits"], "float32"), axis=-1)

            def text():
                new = ops.where(places < index, progress["tokens"], -1)
                new = ops.reshape(new, (batch * width, request.max_new_tokens))
                prompt = ops.repeat(request.prompt, width, axis=0)
                return ops.concatenate([prompt, new], axis=1)

            step = ops.broadcast_to(index, (batch * width,))
            log_p = rules.apply_rules(
                log_p, text, step, each, used, request.end_token_id, self.rules
            )
            vocabulary = log_p.shape[-1]
            sums = progress["sums"][:, :, None] + ops.reshape(log_p, (batch, width, vocabulary))
            # Twice as many as go on: at most one continuation of each beam ends.
            count = width * min(2, vocabulary)
            sums, best = ops.top_k(ops.reshape(sums, (batch, width * vocabulary)), count)
            parents, token = best // vocabulary, ops.cast(best % vocabulary, "int32")
            parents = ops.cast(parents, "int32")  # (B, 2W)
            tokens = ops.where(
                ops.equal(places, index), token[..., None], _pick(progress["tokens"], parents)
            )
            ends = ops.broadcast_to(index + 1 >= limits, ops.shape(token))
            is_end = ops.zeros_like(ends)
            if request.end_token_id is not None:
                is_end = ops.equal(token, request.end_token_id)
                ends = ops.logical_or(ends, is_end)

            ended = self._keep(
                progress["ended"],
                {
                    "tokens": ops.where(
                        ops.logical_and(is_end[..., None], ops.equal(places, index)),
                        request.pad_token_id,
                        tokens,
                    ),
                    "scores": _worth(sums, index + 1, penalty),
                    "lengths": index + 1 - ops.cast(is_end, "int32"),
                    "read": tree.map_structure(
                        lambda x: _pick(x, parents), self._read(decoder, progress["state"], batch)
                    ),
                },
                ends,
                done,
            )
            sums, best = ops.top_k(ops.where(ends, NEVER, sums), width)  # (B, W)
            token, parents, tokens = (_pick(x, best) for x in (token, parents, tokens))
            worst = ops.min(ended["scores"], axis=1, keepdims=True)
            hope = ops.logical_and(
                _worth(sums[:, :1], index + 1, penalty) > worst,
                ops.logical_not(ops.logical_and(stops_early, worst > NEVER)),
            )
            done = ops.logical_or(done, ops.logical_not(hope[:, 0]))

            rows = ops.arange(batch, dtype="int32")[:, None] * width + parents
            state = tree.map_structure(
                lambda x: ops.take(x, ops.reshape(rows, (-1,)), axis=0), progress["state"]
            )
            # A beam that is no text goes on with padding: nobody reads it.
            token = ops.where(ops.logical_and(hope, sums > NEVER), token, request.pad_token_id)
            logits, state = decoder.step(ops.reshape(token, (-1,)), state)
            return {
                "index": index + 1,
                "tokens": tokens,
                "sums": sums,
                "ended": ended,
                "done": done,
                "logits": logits,
                "state": state,
            }

        return advance(one_step, request, progress, used, until)

    def _keep(self, ended, new, ends, done):
        """The best `width` texts of those kept and of the new ones that end, best first."""
        among_best = ops.arange(ends.shape[1], dtype="int32")[None, :] < self.width
        takes_part = ops.logical_and(
            ops.logical_and(ends, among_best), ops.logical_not(done)[:, None]
        )
        new = {**new, "scores": ops.where(takes_part, new["scores"], NEVER)}
        both = tree.map_structure(lambda a, b: ops.concatenate([a, b], axis=1), ended, new)
        scores, best = ops.top_k(both["scores"], self.width)
        return {**tree.map_structure(lambda x: _pick(x, best), both), "scores": scores}

    def _read(self, decoder, state, batch):
        """What the decoder tells of its state, {name: (B, W, ...)}."""
        return {
            name: ops.reshape(x, (batch, self.width, *ops.shape(x)[1:]))
            for name, x in read_state(decoder, state).items()
        }

    def result(self, decoder, request, progress):
        ended, places = progress["ended"], ops.arange(request.max_new_tokens, dtype="int32")
        exists = ended["scores"] > NEVER
        lengths = ops.where(exists, ended["lengths"], 0)
        written = places < lengths[..., None]  # (B, W, new)
        result = {
            "token_ids": ops.where(written, ended["tokens"], request.pad_token_id),
            "lengths": lengths,
            "scores": ended["scores"],
            **only_written(ended["read"], written),
        }
        if self.num_results == 1:
            return {name: x[:, 0] for name, x in result.items()}
        return {name: x[:, : self.num_results] for name, x in result.items()}


def _pick(x, indices):
    """x (B, W, ...) and indices (B, M) -> (B, M, ...)."""
    indices = ops.reshape(indices, (*ops.shape(indices), *[1] * (len(x.shape) - 2)))
    shape = (*ops.shape(indices)[:2], *ops.shape(x)[2:])
    return ops.take_along_axis(x, ops.broadcast_to(indices, shape), axis=1)


def _worth(sums, length, penalty):
    """What texts are worth, finite for all that exist, whatever the penalty."""
    worth = sums / ops.power(ops.cast(length, "float32"), penalty)
    return ops.where(sums > NEVER, ops.clip(worth, -LARGEST_FLOAT, LARGEST_FLOAT), NEVER)
