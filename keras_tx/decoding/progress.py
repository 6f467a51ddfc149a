"""What the strategies' loops share."""

from keras import ops


def read_state(decoder, state) -> dict:
    """What the decoder tells of its state, {name: (B, max_new_tokens, ...)}; few tell anything."""
    return getattr(decoder, "read_state", lambda state: {})(state)


def while_loop(condition, body, progress: dict) -> dict:
    """`ops.while_loop` over one dictionary."""
    return ops.while_loop(
        lambda progress: condition(progress), lambda progress: (body(progress),), (progress,)
    )[0]
