"""What the strategies' loops share."""

import dataclasses

from keras import ops

from keras_tx import kernels


def read_state(decoder, state) -> dict:
    """What the decoder tells of its state, {name: (B, max_new_tokens, ...)}; few tell anything."""
    return getattr(decoder, "read_state", lambda state: {})(state)


def only_written(read: dict, written) -> dict:
    """What a decoder told, {name: (*shape, ...)}, 0 where no token was `written`, boolean (*shape).

    A row that is done waits for the others; what it saw then is no part of its result.
    """
    rank = len(written.shape)
    kept = {}
    for name, x in read.items():
        here = ops.reshape(written, (*ops.shape(written), *[1] * (len(x.shape) - rank)))
        kept[name] = ops.where(here, x, ops.zeros_like(x))
    return kept


def advance(step, request, progress: dict, used: dict, until) -> dict:
    """Makes steps up to number `until`, or until every row is done.

    Args:
        step: `step(request, used, progress) -> progress`, which adds 1 to `index`.
        request: A `Request`; what it holds reaches the steps as inputs of the loop.
        progress: Before.
        used: `rules.in_use` of the request.
        until: int32 scalar.

    Returns:
        The progress after.
    """
    until = ops.minimum(ops.cast(until, "int32"), request.max_new_tokens)
    names = ("limits", "prompt", "seeds", "options")
    given = {"used": used, **{name: getattr(request, name) for name in names}}

    def unfinished(progress):
        return ops.logical_and(
            progress["index"] < until, ops.logical_not(ops.all(progress["done"]))
        )

    def body(progress, given):
        inside = dataclasses.replace(request, inputs=None, **{n: given[n] for n in names})
        return step(inside, given["used"], progress)

    return kernels.repeat_while(unfinished, body, progress, given)
