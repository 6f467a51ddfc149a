"""Alignment scores of recurrent attention: Bahdanau et al. 2015, A.1.2; Luong et al. 2015."""

from keras import ops


def additive_scores(query, keys, score_vector):
    """v . tanh(q_t + k_s) for every step t and position s, in float32.

    Args:
        query: (B, T, U), projected.
        keys: (B, S, U), projected.
        score_vector: v, (U, 1).

    Returns:
        float32 (B, T, S).
    """
    query, keys = ops.cast(query, "float32"), ops.cast(keys, "float32")
    hidden = ops.tanh(query[:, :, None, :] + keys[:, None, :, :])  # (B, T, S, U)
    # Two dimensions: TensorFlow's product of more does not compile under XLA inside a loop.
    flat = ops.reshape(hidden, (-1, hidden.shape[-1]))
    scores = ops.matmul(flat, ops.cast(score_vector, "float32"))
    return ops.reshape(scores, ops.shape(hidden)[:-1])


def multiplicative_scores(query, keys):
    """q_t . k_s for every step t and position s, in float32.

    Args:
        query: (B, T, D).
        keys: (B, S, D).

    Returns:
        float32 (B, T, S).
    """
    query, keys = ops.cast(query, "float32"), ops.cast(keys, "float32")
    return ops.matmul(query, ops.swapaxes(keys, -1, -2))
