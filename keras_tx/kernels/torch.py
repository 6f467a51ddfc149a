"""PyTorch."""

import torch


def compiled(function, variables):
    """`function` without the bookkeeping for gradients."""
    del variables

    def inference(*arguments):
        with torch.inference_mode():
            return function(*arguments)

    return inference


def serial_loop(start, stop, body, carry):
    """`carry = body(i, carry)` for i from start to stop - 1, one after the other."""
    for index in range(int(start), int(stop)):
        carry = body(index, carry)
    return carry


def put(x, index, row):
    """`x` with `x[index] = row`, in place."""
    x[index] = row
    return x


def with_gradient(forward, backward):
    """A function whose gradient is written by hand.

    Args:
        forward: `forward(inputs, constants) -> output, residuals`, all but the output tuples.
        backward: `backward(inputs, constants, output, residuals, upstream)` -> the gradients of
            `inputs`.

    Returns:
        `function(inputs, constants)`; nothing is derived by `constants`.
    """

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context, constants, *inputs):
            output, residuals = forward(inputs, constants)
            context.constants = constants
            context.num_inputs = len(inputs)
            context.save_for_backward(*inputs, output, *residuals)
            return output

        @staticmethod
        def backward(context, upstream):
            saved, count = context.saved_tensors, context.num_inputs
            with torch.no_grad():
                gradients = backward(
                    saved[:count], context.constants, saved[count], saved[count + 1 :], upstream
                )
            return (None, *gradients)

    return lambda inputs, constants: Function.apply(constants, *inputs)
