from keras import ops

from keras_tx.decoding import rules
from keras_tx.decoding.progress import advance, only_written, read_state
from keras_tx.decoding.strategy import Strategy


class TokenByToken(Strategy):
    """A strategy that adds one token to each row at every step, and never takes one back."""

    def choose(self, logits, step, request, used):
        """The next token of each row: logits (B, V), rules applied, -> int32 (B,)."""
        raise NotImplementedError

    def begin(self, decoder, request):
        logits, state = decoder.start(request.inputs, request.max_new_tokens)
        batch, length = ops.shape(logits)[0], request.max_new_tokens
        padding = ops.cast(request.pad_token_id, "int32")
        return {
            "index": ops.cast(0, "int32"),
            "tokens": ops.broadcast_to(padding, (batch, length)),
            "log_probabilities": ops.zeros((batch, length), "float32"),
            "lengths": ops.zeros((batch,), "int32"),
            "done": ops.cast(request.limits, "int32") <= 0,
            "logits": logits,
            "state": state,
        }

    def advance(self, decoder, request, progress, until):
        used = rules.in_use(request.options)

        def one_step(request, used, progress):
            index, done = progress["index"], progress["done"]
            places = ops.arange(request.max_new_tokens, dtype="int32")[None, :]
            logits = ops.cast(progress["logits"], "float32")
            step = ops.zeros_like(progress["lengths"]) + index

            def text():
                new = ops.where(places < progress["lengths"][:, None], progress["tokens"], -1)
                return ops.concatenate([request.prompt, new], axis=1)

            ruled = rules.apply_rules(
                logits, text, step, request.options, used, request.end_token_id, self.rules
            )
            token = self.choose(ruled, step, request, used)
            log_probability = ops.take_along_axis(
                ops.log_softmax(logits, axis=-1), token[:, None], axis=-1
            )
            here = ops.logical_and(ops.equal(places, index), ops.logical_not(done)[:, None])
            if request.end_token_id is not None:
                done = ops.logical_or(done, ops.equal(token, request.end_token_id))
            token = ops.where(done, request.pad_token_id, token)
            lengths = progress["lengths"] + ops.cast(ops.logical_not(done), "int32")
            logits, state = decoder.step(token, progress["state"])
            return {
                "index": index + 1,
                "tokens": ops.where(here, token[:, None], progress["tokens"]),
                "log_probabilities": ops.where(
                    here, log_probability, progress["log_probabilities"]
                ),
                "lengths": lengths,
                "done": ops.logical_or(done, lengths >= ops.cast(request.limits, "int32")),
                "logits": logits,
                "state": state,
            }

        return advance(one_step, request, progress, used, until)

    def result(self, decoder, request, progress):
        """As for every strategy; `scores` sum the log-probabilities that the model gave the chosen
        tokens, the end token's included, whatever the rules made of them."""
        lengths = progress["lengths"]
        written = ops.arange(request.max_new_tokens, dtype="int32")[None, :] < lengths[:, None]
        return {
            "token_ids": progress["tokens"],
            "lengths": lengths,
            "scores": ops.sum(progress["log_probabilities"], axis=1),
            **only_written(read_state(decoder, progress["state"]), written),
        }
