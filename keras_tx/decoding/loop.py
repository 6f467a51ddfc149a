"""The token loop. It knows a start and a step function, no model."""

from keras import ops


def generate_tokens(
    start, step, inputs, *, strategy, max_new_tokens: int, limits, end_token_id, pad_token_id=0
):
    """Extends every row until its end token, its limit, or `max_new_tokens`.

    Pure `keras.ops` with shapes that follow from the arguments', so that it compiles, and exports
    to a server.

    Args:
        start: `start(inputs, max_new_tokens) -> (logits, state)`, logits (B, V).
        step: `step(tokens, state) -> (logits, state)`, tokens (B,).
        inputs: What `start` takes.
        strategy: `strategy(logits) -> tokens`, (B, V) -> int32 (B,).
        max_new_tokens: Length of the result, at least 1.
        limits: Integers (B,), the most tokens each row may get; rows with 0 get none.
        end_token_id: The token that ends a row, or None.
        pad_token_id: What stands behind a row's end.

    Returns:
        A dictionary of `token_ids` (B, max_new_tokens) int32, the end token not in it; `lengths`
        (B,) int32; `scores` (B,) float32, the sum of the log-probabilities of the chosen tokens,
        the end token's included; and the last state.
    """
    limits = ops.minimum(ops.cast(limits, "int32"), max_new_tokens)
    logits, state = start(inputs, max_new_tokens)
    batch = ops.shape(logits)[0]
    places = ops.arange(max_new_tokens, dtype="int32")[None, :]

    def choose(index, logits, tokens, lengths, scores, done):
        """Appends one token to the rows that are not done."""
        token = strategy(logits)
        log_probability = ops.take_along_axis(
            ops.log_softmax(ops.cast(logits, "float32"), axis=-1), token[:, None], axis=-1
        )[:, 0]
        scores = scores + ops.where(done, 0.0, log_probability)
        ended = ops.zeros_like(done) if end_token_id is None else ops.equal(token, end_token_id)
        done = ops.logical_or(done, ended)
        token = ops.where(done, pad_token_id, token)
        tokens = ops.where(ops.equal(places, index), token[:, None], tokens)
        lengths = lengths + ops.cast(ops.logical_not(done), "int32")
        done = ops.logical_or(done, lengths >= limits)
        return token, tokens, lengths, scores, done

    zeros = ops.zeros((batch,), "int32")
    tokens = ops.broadcast_to(ops.cast(pad_token_id, "int32"), (batch, max_new_tokens))
    scores = ops.zeros((batch,), "float32")
    first = choose(0, logits, tokens, zeros, scores, limits <= 0)

    def unfinished(index, token, tokens, lengths, scores, done, state):
        return ops.logical_and(index < max_new_tokens, ops.logical_not(ops.all(done)))

    def extend(index, token, tokens, lengths, scores, done, state):
        logits, state = step(token, state)
        return (index + 1, *choose(index, logits, tokens, lengths, scores, done), state)

    index = ops.cast(1, "int32")
    _, _, tokens, lengths, scores, _, state = ops.while_loop(
        unfinished, extend, (index, *first, state)
    )
    return {"token_ids": tokens, "lengths": lengths, "scores": scores}, state
