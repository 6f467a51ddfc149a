"""Loops that PyTorch traces, each for its shapes and the numbers in what it is given."""

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("only the torch backend traces such loops", allow_module_level=True)

import torch

from keras_tx import kernels
from keras_tx.kernels import torch as torch_kernels


def test_few_loops_are_remembered(monkeypatch):
    made, initialize = [], torch_kernels._TracedBody.__init__
    monkeypatch.setattr(
        torch_kernels._TracedBody, "__init__", lambda *x: (made.append(1), initialize(*x))[1]
    )
    monkeypatch.setattr(torch_kernels, "EAGER_STEPS", 0)
    monkeypatch.setattr(torch_kernels, "MOST_LOOPS", 2)

    def body(carry, given):
        return {"index": carry["index"] + 1, "x": carry["x"] * given["factor"]}

    def power(x, factor):
        first = {"index": torch.tensor(0), "x": x}
        return kernels.repeat_while(lambda c: c["index"] < 3, body, first, {"factor": factor})["x"]

    run = kernels.compiled(power, [])
    x = torch.ones(2)
    for factor, count in ((1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4)):
        assert run(x, factor).tolist() == [factor**3] * 2
        assert len(made) == count, factor


def test_a_trace_keeps_no_tensor_of_a_step():
    def body(carry, given):
        return {"x": carry["x"] + given["step"]}

    carry, given = {"x": torch.zeros(3)}, {"step": torch.ones(3)}
    traced = torch_kernels._TracedBody(body, carry, given)
    assert traced(carry, given)["x"].tolist() == [1, 1, 1]
    assert not any(map(torch.is_tensor, keras.tree.flatten(vars(traced))))
