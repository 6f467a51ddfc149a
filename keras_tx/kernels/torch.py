"""PyTorch."""

import contextlib
import contextvars
import inspect
import weakref

import torch
from keras import tree
from keras.layers import Layer
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from keras_tx.kernels.torch_graph import depends_on_values, simplify, without_graph

# Of the compiled function that runs now: {loop: its traced body}, and how often it ran before.
_loops = contextvars.ContextVar("loops", default=None)
# A trace takes as long as a hundred steps or two: one that is never used again costs no more.
EAGER_STEPS = 64
# Of one function so many loops are remembered; their shapes, and what is in use, may be any.
MOST_LOOPS = 64


def compiled(function, variables, *, jit_compile=False, overwrites=()):
    """`function` without the bookkeeping for gradients, and with its long loops traced.

    Arguments as on the other backends.
    """
    del variables, jit_compile, overwrites
    loops = {}

    def inference(*arguments):
        before = _loops.set(loops)
        try:
            with torch.inference_mode():
                return function(*arguments)
        finally:
            _loops.reset(before)

    return inference


def tracing(variables, *, jit_compile=False):
    """Nothing to do: reading a variable costs nothing."""
    del variables, jit_compile
    return contextlib.nullcontext()


def known(x):
    """A scalar that this backend, which runs eagerly, knows: as a number."""
    return x.item() if torch.is_tensor(x) else x


def repeat_while(condition, body, carry, given):
    """`carry = body(carry, given)` as long as `condition(carry)`; both nested tensors.

    What the body needs of the outside is `given`; it must hold on to no other tensor. In a compiled
    function the body is traced after some steps, for shapes, and numbers in `given`, like these:
    most of a small model's step is Python, of which a trace is free. A body that cannot be traced,
    as it asks for values, is run as it is.
    """
    loops = _loops.get()
    if loops is None:
        while condition(carry):
            carry = body(carry, given)
        return carry
    signature = _signature(body, carry, given)
    loop = loops[signature] = loops.pop(signature, None) or _Loop()  # to the end
    if len(loops) > MOST_LOOPS:
        del loops[next(iter(loops))]
    while loop.steps < EAGER_STEPS:
        if not condition(carry):
            return carry
        carry = body(carry, given)
        loop.steps += 1
    carry = tree.map_structure(torch.clone, carry)  # the traced body writes into it
    while condition(carry):
        if loop.traced is None:
            loop.traced = _traced(body, carry, given)
        carry = loop.traced(carry, given)
    return carry


class _Loop:
    steps = 0
    traced = None


def _signature(body, carry, given):
    leaves = tree.flatten((carry, given))
    kinds = [(tuple(x.shape), x.dtype) if torch.is_tensor(x) else x for x in leaves]
    return (body.__code__, *_layers_of(body, set()), *kinds)


def _layers_of(function, seen):
    """The identities of the layers that a function closes over: another model is another loop."""
    for cell in function.__closure__ or ():
        held = cell.cell_contents
        if id(held) not in seen:
            seen.add(id(held))
            if isinstance(held, Layer):
                yield id(held)
            elif inspect.isfunction(held):
                yield from _layers_of(held, seen)


def _traced(body, carry, given):
    try:
        return _TracedBody(body, carry, given)
    except Exception:  # it asks for values: somebody's own rule may, and runs as it is
        return body


class _TracedBody:
    """The operations of one step, without the Python between them."""

    def __init__(self, body, carry, given):
        leaves = tree.flatten((carry, given))
        places = [place for place, leaf in enumerate(leaves) if torch.is_tensor(leaf)]

        def flat(*tensors):
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            with _WithoutValues(tensors):
                return tree.flatten(body(*tree.pack_sequence_as((carry, given), filled)))

        # A tensor of inference mode cannot be traced.
        with torch.inference_mode(False), torch.no_grad():
            graph = make_fx(flat)(*[leaves[place].clone() for place in places])
        if depends_on_values(graph):
            raise NotImplementedError("A value is asked for where there is none yet")
        simplify(graph, lent=sum(map(torch.is_tensor, tree.flatten(carry))))
        self.run = without_graph(graph)
        self.structure = tree.map_structure(lambda leaf: 0, carry)

    def __call__(self, carry, given):
        tensors = [x for x in tree.flatten((carry, given)) if torch.is_tensor(x)]
        return tree.pack_sequence_as(self.structure, list(self.run(*tensors)))


class _WithoutValues(TorchFunctionMode):
    """An error where a trace would keep a value of one step as that of all.

    Sizes that depend on values are found in the graph, see `depends_on_values`.

    Args:
        tensors: Those that change from step to step, with all that is made of them.
    """

    asks = {
        *(torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__),
        *(torch.Tensor.__repr__, torch.Tensor.__format__, torch.Tensor.__dlpack__),
    }

    def __init__(self, tensors):
        super().__init__()
        self.changing = weakref.WeakValueDictionary({id(x): x for x in tensors})

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = keywords or {}
        given = [x for x in tree.flatten((arguments, keywords)) if torch.is_tensor(x)]
        changes = any(self.changing.get(id(x)) is x for x in given)
        if changes and function in self.asks:
            raise NotImplementedError("A value is asked for where there is none yet")
        result = function(*arguments, **keywords)
        if changes:
            made = [x for x in tree.flatten(result) if torch.is_tensor(x)]
            # What ends so writes into its first argument.
            written = given[:1] if function.__name__.endswith("_") else []
            self.changing.update((id(x), x) for x in (*made, *written))
        return result


def updated(x, indices, new, *, overwrites=False):
    """x (..., H) with `new` (M, H) in its rows, counted through, at different `indices` (M,)."""
    del overwrites
    copy = x.clone(memory_format=torch.contiguous_format)
    copy.view(-1, x.shape[-1]).index_put_((indices,), new)
    return copy


def settled(nested, readers):
    """Nothing to do: what is read is read before it is overwritten."""
    del readers
    return nested


def products_of_few(query, key):
    """query (B, K, T, H) key^T, (B, K, S, H) -> (B, K, T, S)."""
    return torch.matmul(query, key.mT)


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
