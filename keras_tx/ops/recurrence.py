"""One step of a gated recurrent unit, its input projected outside the loop."""

from keras import ops

STATES = {"gru": 1, "lstm": 2}
GATES = {"gru": 3, "lstm": 4}


def gru_step(inputs, recurrent, hidden):
    """Cho et al. 2014, Eq. 5 to 8, the reset gate after the product (as cuDNN has it).

    Args:
        inputs: W x + b, (B, 3 D): update, reset, candidate.
        recurrent: U h + b', (B, 3 D).
        hidden: h, (B, D).

    Returns:
        The new h, (B, D).
    """
    x_update, x_reset, x_candidate = ops.split(inputs, 3, axis=-1)
    h_update, h_reset, h_candidate = ops.split(recurrent, 3, axis=-1)
    update = ops.sigmoid(x_update + h_update)
    reset = ops.sigmoid(x_reset + h_reset)
    candidate = ops.tanh(x_candidate + reset * h_candidate)
    return candidate + update * (hidden - candidate)


def lstm_step(inputs, recurrent, carry):
    """Hochreiter and Schmidhuber 1997 with a forget gate, which begins open (bias 1).

    Args:
        inputs: W x + b, (B, 4 D): input, forget, candidate, output.
        recurrent: U h, (B, 4 D).
        carry: c, (B, D).

    Returns:
        The new h and c, each (B, D).
    """
    write, forget, candidate, output = ops.split(inputs + recurrent, 4, axis=-1)
    carry = ops.sigmoid(forget + 1.0) * carry + ops.sigmoid(write) * ops.tanh(candidate)
    return ops.sigmoid(output) * ops.tanh(carry), carry
