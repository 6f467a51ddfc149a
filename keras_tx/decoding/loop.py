"""The token loop as one function. It knows a decoder and a strategy, no model.

A decoder is any object with

- `start(inputs, max_new_tokens) -> (logits, state)`: reads the prompts; logits (B, V) of each row's
  first new token;
- `step(tokens, state) -> (logits, state)`: reads one token of each row, (B,);
- optionally `read_state(state) -> {name: (B, max_new_tokens, ...)}`, what it tells of its last
  state, and, for `Speculative`, `extend` and `rewind`.

Every tensor of a state has the batch first, keeps its shape from step to step, and stands there
once: a compiled loop may write into it.
"""

from keras_tx.decoding.request import Request
from keras_tx.decoding.strategy import Strategy


def generate_tokens(decoder, strategy: Strategy, request: Request) -> dict:
    """Extends every row until its end token, its limit, or `max_new_tokens`.

    Pure `keras.ops` with shapes that follow from the arguments', so that it compiles, and exports
    to a server.

    Returns:
        What `Strategy.result` says: `token_ids`, `lengths`, `scores` and more.
    """
    progress = strategy.begin(decoder, request)
    progress = strategy.advance(decoder, request, progress, request.max_new_tokens)
    return strategy.result(decoder, request, progress)
