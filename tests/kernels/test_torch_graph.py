"""A traced graph gives the same with fewer operations, whatever is written where."""

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("only the torch backend traces such graphs", allow_module_level=True)

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from keras_tx.kernels.torch_graph import simplify


def simplified(function, *inputs, lent=0):
    """The function as a simplified graph, which agreed with it, and how often it calls what."""
    with torch.no_grad():
        graph = make_fx(function)(*[x.clone() for x in inputs])
        simplify(graph, lent)
        for seed in range(2):  # the second time shows whether a constant was written to
            generator = torch.Generator().manual_seed(seed)
            fresh = [
                torch.randn(x.shape, generator=generator) if x.is_floating_point() else x
                for x in inputs
            ]
            expected = function(*[x.clone() for x in fresh])
            actual = graph(*[x.clone() for x in fresh])
            assert all(a.equal(b) for a, b in zip(actual, expected, strict=True))
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return graph, calls


X, PLACES = torch.zeros(4, 6), torch.tensor([1, 3])


def test_constants_and_repetitions_and_reshapes_go():
    def function(x):
        mask = (torch.arange(6) < 3)[None]
        first = torch.where(mask, x, 0.0).unsqueeze(0).squeeze(0)
        second = torch.where((torch.arange(6) < 3)[None], x, 0.0)
        return [first + 1, (second + 1) * 2]

    _, calls = simplified(function, X)
    names = [str(call) for call in calls]
    assert names.count("aten.where.self") == 1
    assert not {"aten.arange.default", "aten.lt.Scalar", "aten.unsqueeze.default"} & set(names)


def test_a_weight_is_no_constant():
    weight = torch.nn.Parameter(torch.ones(6))
    with torch.no_grad():
        graph = make_fx(lambda x: [x + weight * 2])(X)
        simplify(graph)
        weight.fill_(5.0)
        assert (graph(X)[0] == 10).all()


def test_what_is_lent_is_written_to():
    def function(x, y):
        return [x.clone().index_put_((PLACES,), y[PLACES]), y.clone().index_fill_(0, PLACES, 1.0)]

    graph, _ = simplified(function, X, X, lent=1)
    x, y = torch.ones(4, 6), torch.zeros(4, 6)
    first, second = graph(x, y)
    assert first.data_ptr() == x.data_ptr() and (y == 0).all() and second[1, 0] == 1


def test_only_what_nobody_reads_again_is_written_to():
    def function(x):
        rows = x[PLACES]
        changed = rows.clone().zero_()
        return [changed, rows + 1]

    _, calls = simplified(function, X, lent=1)
    assert torch.ops.aten.clone.default in calls


def test_equal_tensors_that_are_written_to_stay_apart():
    def function(x):
        first, second = torch.zeros(4, 6), torch.zeros(4, 6)
        first.view(-1)[:3] = x[0, :3]
        twice = [x * 2, x * 2]  # whoever gets them may write to one
        return [first, second, *twice]

    graph, calls = simplified(function, X)
    assert calls.count(torch.ops.aten.zeros.default) == 2
    results = graph(X)
    assert len({x.data_ptr() for x in results}) == 4


def test_a_reshape_that_does_not_say_so_shares_memory():
    def function(x):
        first, second = x.T.reshape(24), x.T.reshape(24)
        first[0] = 9.0
        kept = torch.ones(3, 4).T.reshape(2, 6)
        kept += 1.0
        changed = torch.ones(3, 4).T.reshape(2, 6).clone().mul_(2)
        return [first, second, kept * x[0], changed, x.T.reshape(24), x.T.reshape(24)]

    graph, _ = simplified(function, X)
    results = graph(X)
    assert len({x.data_ptr() for x in results}) == len(results)


def test_what_is_written_to_by_name():
    def function(x):
        sums = torch.zeros(4, 6)
        torch.cumsum(x, -1, out=sums)
        return [x - sums, x + torch.zeros(4, 6)]

    simplified(function, X)


def test_what_is_read_before_and_after_a_write_is_read_twice():
    def function(x):
        x = x.clone()
        before = x.view(-1) * 2
        x.index_fill_(0, PLACES, 7.0)
        return [before + 1, x.view(-1) * 2 + 1]

    simplified(function, X)


def test_noise_is_drawn_each_time():
    def function(x):
        return [(torch.rand(4) - torch.rand(4)).abs().sum() + 0 * x.sum()]

    with torch.no_grad():
        graph = make_fx(function)(X)
        simplify(graph)
        assert graph(X)[0] != graph(X)[0] and graph(X)[0] > 0
