"""Log-likelihood of targets with never more than a chunk of logits at once."""

from collections.abc import Callable

from keras import ops

from keras_tx import kernels
from keras_tx.ops.cross_entropy import token_log_likelihood


def chunked_log_likelihood(states, targets, logits_of: Callable, chunk: int):
    """log softmax(logits_of(states))[target], `chunk` rows after `chunk` rows.

    Args:
        states: (R, D), R known.
        targets: Integers (R,), 0 <= target < V.
        logits_of: From (C, D) to (C, V).
        chunk: The most rows whose logits exist at once. It divides R, or is larger.

    Returns:
        float32 (R,), nats.
    """
    rows, dim = states.shape
    if rows <= chunk:
        return token_log_likelihood(logits_of(states), targets)[0]
    chunks = rows // chunk
    states = kernels.rows(ops.reshape(states, (chunks, chunk, dim)))
    targets = kernels.rows(ops.reshape(targets, (chunks, chunk)))

    def score(i, found):
        logits = logits_of(kernels.row(states, i))
        return kernels.put(found, i, token_log_likelihood(logits, kernels.row(targets, i))[0])

    found = kernels.rows(ops.zeros((chunks, chunk), "float32"))
    found = kernels.serial_loop(0, chunks, score, found)
    return ops.reshape(kernels.stacked(found), (rows,))
