"""Named tensors to be assigned to a model, all or none of them."""

from operator import attrgetter

import keras
import numpy as np


class State:
    """Plans which tensor goes where, and assigns when everything fits.

    A linear layer's weight is (out, in), as in PyTorch, and is transposed; a position's or token's
    may have leading axes of 1 more or fewer than ours.

    Args:
        tensors: {name: array}.
        inputs_first: Whether the weights of linear layers are (in, out), as GPT-2's.
        gain_offset: What is added to the gain of a normalization: 1 for Gemma's.
    """

    def __init__(self, tensors: dict, *, inputs_first: bool = False, gain_offset: float = 0.0):
        self.tensors = tensors
        self.inputs_first = inputs_first
        self.gain_offset = gain_offset
        self.unread = set(tensors)
        self.problems = []
        self.planned = []  # (variable, names, function of their arrays)
        self.kept = set()

    def __contains__(self, name):
        return name in self.tensors

    def root(self, prefix: str) -> str:
        """The prefix, if names have it: a tower may be saved alone."""
        return prefix if any(name.startswith(prefix) for name in self.tensors) else ""

    def plan(self, variable, names, shapes, make):
        """A variable becomes what `make` gives for the arrays of these names and shapes."""
        for name, shape in zip(names, shapes, strict=True):
            self.unread.discard(name)
            if name not in self.tensors:
                self.problems.append(f"missing: {name} {tuple(shape)}")
            elif tuple(self.tensors[name].shape) != tuple(shape):
                received = tuple(self.tensors[name].shape)
                self.problems.append(f"shape of {name}: expected {tuple(shape)}, got {received}")
        self.planned.append((variable, names, make))

    def constant(self, variable, value):
        self.plan(variable, (), (), lambda: value)

    def keep(self, variable):
        """A variable stays as it is."""
        self.kept.add(id(variable))

    def variable(self, variable, name: str):
        """A tensor as it is, but for leading axes of 1."""
        shape = variable.shape
        given = tuple(self.tensors[name].shape) if name in self else shape
        expected = given if _without_ones(given) == _without_ones(shape) else shape
        self.plan(variable, [name], [expected], lambda x: x.reshape(shape))

    def norm(self, layer, name: str):
        """The gain and, if there is one, the bias of a normalization."""
        gain, *bias = layer.weights
        self.plan(gain, [f"{name}.weight"], [gain.shape], lambda x: x + self.gain_offset)
        for variable in bias:
            self.plan(variable, [f"{name}.bias"], [variable.shape], lambda x: x)

    def dense(self, layer, names, widths=None, order=None):
        """One or more linear layers side by side, of these widths; then their units in an order."""
        inputs, units = layer.kernel.shape
        widths = widths or [units // len(names)] * len(names)
        shapes = [(inputs, width) if self.inputs_first else (width, inputs) for width in widths]
        order = slice(None) if order is None else order

        def kernel(*arrays):
            columns = arrays if self.inputs_first else [array.T for array in arrays]
            return np.concatenate(columns, axis=1)[:, order]

        self.plan(layer.kernel, [f"{name}.weight" for name in names], shapes, kernel)
        if layer.use_bias:
            biases = [f"{name}.bias" for name in names]
            shapes = [(width,) for width in widths]
            self.plan(layer.bias, biases, shapes, lambda *arrays: np.concatenate(arrays)[order])

    def parts(self, owner, table: dict, prefix: str):
        """Layers and variables of an owner: {path of attributes: name, or names side by side}."""
        for path, names in table.items():
            part = attrgetter(path)(owner)
            names = [f"{prefix}{name}" for name in ([names] if isinstance(names, str) else names)]
            if isinstance(part, keras.layers.Dense):
                self.dense(part, names)
            elif isinstance(part, keras.layers.Layer):
                self.norm(part, *names)
            else:
                self.variable(part, *names)

    def same(self, name: str, other: str):
        """A tensor that may be there and must then equal another: a tied one, saved twice."""
        self.unread.discard(name)
        if name in self and other in self:
            if not np.array_equal(np.asarray(self.tensors[name]), np.asarray(self.tensors[other])):
                self.problems.append(
                    f"{name} differs from {other}, and the configuration says that they are tied"
                )

    def finish(self, model, ignored: tuple[str, ...] = ()):
        """Assigns what was planned, unless something does not fit.

        Args:
            model: Whose weights must all be planned.
            ignored: Endings of names that hold no weights, or none that the model uses.
        """
        unread = sorted(name for name in self.unread if not name.endswith(ignored))
        done = self.kept | {id(variable) for variable, *_ in self.planned}
        problems = [
            *dict.fromkeys(self.problems),
            *(f"not used: {name}" for name in unread),
            *(f"nothing for {weight.path}" for weight in model.weights if id(weight) not in done),
        ]
        if problems:
            shown = problems[:10]
            if len(problems) > len(shown):
                shown.append(f"and {len(problems) - len(shown)} more")
            raise ValueError(
                f"The tensors must be those of the configuration that {model.name} was built from. "
                "Nothing was assigned. Received:\n  " + "\n  ".join(shown)
            )
        for variable, names, make in self.planned:
            variable.assign(make(*[_float32(self.tensors[name]) for name in names]))


def _without_ones(shape) -> tuple:
    shape = tuple(shape)
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape


def _float32(array):
    return np.asarray(array).astype("float32")
