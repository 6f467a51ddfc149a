"""Log-likelihood of targets under logits."""

from keras import ops


def token_log_likelihood(logits, targets):
    """log softmax(logits)[target], and whether the target has the greatest logit.

    Args:
        logits: (..., V).
        targets: Integers (...), 0 <= target < V.

    Returns:
        Two float32 tensors (...): log-likelihoods (nats), and 1.0 where the prediction is right.
    """
    logits = ops.cast(logits, "float32")
    targets = ops.cast(targets, "int32")
    chosen = ops.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    correct = ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), targets)
    return chosen - ops.logsumexp(logits, axis=-1), ops.cast(correct, "float32")
