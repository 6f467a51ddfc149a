import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_tx.ops import routing
from tests.contract.running import staged


@settings(max_examples=6)
@given(
    num_choices=st.sampled_from([1, 37]),
    num_experts=st.sampled_from([1, 7]),
    size=st.sampled_from([3, 8]),
    crowd=st.booleans(),
    seed=st.integers(0, 99),
)
def test_blocks_hold_each_choice_once_and_each_one_expert(
    num_choices, num_experts, size, crowd, seed
):
    random = np.random.default_rng(seed)
    experts = random.integers(0, 1 if crowd else num_experts, num_choices).astype("int32")
    row_of_choice, choice_of_row, expert_of_block = map(
        ops.convert_to_numpy,
        staged(
            lambda experts: routing.sort_into_blocks(experts, num_experts, size),
            ops.convert_to_tensor(experts),
        ),
    )
    assert len(choice_of_row) == (num_choices // size + num_experts) * size
    assert len(expert_of_block) * size == len(choice_of_row)
    np.testing.assert_array_equal(choice_of_row[row_of_choice], np.arange(num_choices))
    np.testing.assert_array_equal(expert_of_block[row_of_choice // size], experts)
    empty = np.setdiff1d(np.arange(len(choice_of_row)), row_of_choice)
    assert (choice_of_row[empty] == num_choices).all()
    assert ((expert_of_block >= 0) & (expert_of_block < num_experts)).all()


def test_block_size():
    assert [routing.block_size(n, 4) for n in (None, 1, 33, 100, 10_000)] == [64, 8, 16, 32, 128]


@pytest.mark.parametrize("masked", [False, True])
def test_balance_loss(masked):
    random = np.random.default_rng(0)
    logits = random.standard_normal((13, 5)).astype("float32")
    probabilities, experts, weights = map(ops.convert_to_numpy, routing.route_top_k(logits, 3))
    exact = np.exp(logits.astype("float64"))
    exact /= exact.sum(-1, keepdims=True)
    np.testing.assert_allclose(probabilities, exact, atol=1e-6)
    mask = np.arange(13) % 3 > 0 if masked else np.ones(13, bool)
    counts, totals = np.zeros(5), np.zeros(5)
    for token in range(13):
        best = np.argsort(-exact[token])[:3]
        np.testing.assert_array_equal(experts[token], best)
        np.testing.assert_allclose(
            weights[token], exact[token, best] / exact[token, best].sum(), atol=1e-6
        )
        if mask[token]:
            counts[best] += 1 / 3
            totals += exact[token]
    expected = 5 * np.sum(counts / mask.sum() * totals / mask.sum())
    got = routing.balance_loss(
        ops.convert_to_tensor(probabilities),
        ops.convert_to_tensor(experts),
        ops.convert_to_tensor(mask) if masked else None,
    )
    np.testing.assert_allclose(float(got), expected, rtol=1e-6)


def test_balance_loss_is_1_when_even_and_0_without_tokens():
    even = ops.full((4, 4), 0.25)
    experts = ops.arange(4, dtype="int32")[:, None]
    np.testing.assert_allclose(float(routing.balance_loss(even, experts)), 1.0, rtol=1e-6)
    assert float(routing.balance_loss(even, experts, np.zeros(4, bool))) == 0.0
