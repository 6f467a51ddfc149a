"""PyTorch."""

import torch


def compiled(function, variables, *, jit_compile=False, overwrites=()):
    """`function` without the bookkeeping for gradients; arguments as on the other backends."""
    del variables, jit_compile, overwrites

    def inference(*arguments):
        with torch.inference_mode():
            return function(*arguments)

    return inference


def serial_loop(start, stop, body, carry):
    """`carry = body(i, carry)` for i from start to stop - 1, one after the other."""
    for index in range(int(start), int(stop)):
        carry = body(index, carry)
    return carry


def rows(x):
    """x (n, ...) as rows that `row` takes and `put` replaces one by one, in place."""
    return x


def row(rows, index):
    return rows[index]


def put(rows, index, row):
    """The rows with `row` in that place."""
    rows[index] = row
    return rows


def stacked(rows):
    """The reverse of `rows`."""
    return rows


def with_gradient(forward, backward):
    """A function whose gradient is written by hand.

    Args:
        forward: `forward(inputs, constants) -> output, residuals`, all but the output tuples.
        backward: `backward(inputs, constants, output, residuals, upstream)` -> the gradients of
            `inputs`.

    Returns:
        `function(inputs, constants)`; nothing is derived by `constants`, and a gradient of its
        gradient is an error.
    """
    return lambda inputs, constants: _WithGradient.apply(forward, backward, constants, *inputs)


class _WithGradient(torch.autograd.Function):
    """One class for all calls: a class is part of a cycle, and would hold each call's tensors."""

    @staticmethod
    def forward(context, forward, backward, constants, *inputs):
        output, residuals = forward(inputs, constants)
        context.pull_back = backward
        context.constants = constants
        context.num_inputs = len(inputs)
        context.save_for_backward(*inputs, output, *residuals)
        return output

    @staticmethod
    def backward(context, upstream):
        if torch.is_grad_enabled():  # with `create_graph`: what the loops do in place has no graph
            raise NotImplementedError(
                "The gradient of tiled attention has no gradient of its own on PyTorch. Received: "
                'a backward pass with `create_graph=True`. Use implementation="dense".'
            )
        saved, count = context.saved_tensors, context.num_inputs
        gradients = context.pull_back(
            saved[:count], context.constants, saved[count], saved[count + 1 :], upstream
        )
        return (None, None, None, *gradients)


# From so many scores a head a loop over tiles is faster than all at once
# (on a CPU, for what its own kernel does not honour).
MANY_SCORES = 512 * 512
HAS_FUSED_ATTENTION = True


def fused_attention(
    query, key, value, *, scale, causal=False, mask=None, may_hide_all=True, bias=None
):
    """PyTorch's scaled dot-product attention; queries that see nothing give 0.

    Args:
        query: (B, N, T, H).
        key, value: (B, K, S, H), K divides N.
        scale: Factor of the products.
        causal: Whether query i sees keys 0 to i only; needs T = S and no mask.
        mask: Boolean, broadcastable to (B, N, T, S), True = take part.
        may_hide_all: Whether the mask may hide every key from a query.
        bias: Added to the scores, (B or 1, N or 1, T, S).
    """
    alive = None
    if mask is not None and may_hide_all:  # what PyTorch gives then differs from case to case
        alive = mask.any(-1, keepdim=True)
        mask = mask | ~alive
    if bias is not None:
        mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
        mask = mask.to(query.dtype)
    output = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output if alive is None else torch.where(alive, output, 0.0)
