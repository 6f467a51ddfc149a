"""The token loop by itself, over a decoder that is a table."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx import decoding
from keras_tx.decoding.buckets import bucket
from tests.decoding.table import Table, request, search

END = 4


def run(table, limits, max_new_tokens, end=END, pauses=()):
    strategy, rows = decoding.Greedy(), len(table)
    return search(Table(table), strategy, rows, max_new_tokens, limits, end, pauses=pauses)


def logits_for(*rows):
    """Logits (B, steps, 5) whose greatest are the given tokens, and their log-probabilities."""
    chosen = np.array(rows)
    logits = np.random.default_rng(1).normal(size=(*chosen.shape, 5)).astype("float32")
    np.put_along_axis(logits, chosen[..., None], 4.0, -1)
    return logits, 4.0 - np.log(np.exp(logits.astype("float64")).sum(-1))


@pytest.mark.parametrize("pauses", [(), (1, 2, 3, 4), (3, 3, 9)])
def test_rows_end_at_the_end_token_at_their_limit_or_at_the_last_step(pauses):
    table, log_p = logits_for([1, 2, 3, 0, 1], [2, END, 3, 3, 3], [3, 3, 3, 3, 3], [1, 1, 1, 1, 1])
    result = run(table, [9, 9, 2, 0], 5, pauses=pauses)
    assert result["token_ids"].tolist() == [
        [1, 2, 3, 0, 1],
        [2, 7, 7, 7, 7],
        [3, 3, 7, 7, 7],
        [7, 7, 7, 7, 7],
    ]
    assert result["lengths"].tolist() == [5, 1, 2, 0]
    scores = [log_p[0].sum(), log_p[1][:2].sum(), log_p[2][:2].sum(), 0]  # the end token counts
    np.testing.assert_allclose(result["scores"], scores, atol=1e-5)
    assert result["scores"].dtype == np.float32 and result["token_ids"].dtype == np.int32
    assert result["steps"] == 5


def test_there_are_no_more_steps_than_the_longest_row_has():
    table, _ = logits_for([1, END, 0, 0, 0], [END, 0, 0, 0, 0])
    assert run(table, [9, 9], 5)["steps"] == 2
    assert run(table, [1, 1], 5)["steps"] == 1
    assert run(table, [0, 0], 5)["steps"] == 0
    assert run(table, [9, 9], 1)["token_ids"].shape == (2, 1)


def test_without_an_end_token_nothing_ends_a_row():
    table, _ = logits_for([END, END, 1])
    assert run(table, [9], 3, end=None)["token_ids"].tolist() == [[END, END, 1]]


def test_greedy_takes_the_first_of_equals():
    assert run(np.ones((2, 3, 5)), [3, 3], 3)["token_ids"].tolist() == [[0, 0, 0]] * 2


def test_a_rule_of_ones_own_sees_the_text_and_the_step():
    seen = []

    def never_twice(logits, tokens, step):
        seen.append((tuple(tokens.shape), tuple(step.shape)))
        counts = ops.sum(ops.one_hot(tokens, 5), axis=1)  # -1 is no token
        return ops.where(counts > 0, -np.inf, logits)

    table, _ = logits_for([1, 1, 1, 1], [2, 2, 3, 3])
    strategy = decoding.Greedy(rules=[never_twice])
    asked = request(2, 4, strategy)
    result = decoding.generate_tokens(Table(table), strategy, asked)
    rows = ops.convert_to_numpy(result["token_ids"]).tolist()
    assert all(len(set(row)) == 4 for row in rows) and rows[0][0] == 1 and rows[1][0] == 2
    assert set(seen) == {((2, 4), (2,))}


def test_strategies_by_name_and_by_configuration():
    for name, kind in (("greedy", "Greedy"), ("sample", "Sample"), ("beam", "Beam")):
        assert type(decoding.get(name)) is getattr(decoding, kind)
    beam = decoding.Beam(3, length_penalty=[0.5, 2.0], num_results=2, banned_tokens=[1])
    assert decoding.get(beam) is beam
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(beam))
    assert again.get_config() == beam.get_config() and type(again) is decoding.Beam
    assert (
        repr(again) == "Beam(width=3, length_penalty=[0.5, 2.0], num_results=2, banned_tokens=[1])"
    )
    names = '"greedy", "sample", "beam" or a strategy object'
    with pytest.raises(ValueError, match=f"must be {names}. Received: 'best'"):
        decoding.get("best")


def test_arrays_and_numpy_numbers_are_plain_in_a_configuration():
    for strategy, same in (
        (decoding.Sample(np.array([0.5, 2.0])), decoding.Sample([0.5, 2.0])),
        (decoding.Sample(top_k=ops.convert_to_tensor([1, 2])), decoding.Sample(top_k=[1, 2])),
        (
            decoding.Greedy(banned_tokens=[np.array([1]), ()]),
            decoding.Greedy(banned_tokens=[[1], []]),
        ),
        (decoding.Beam(np.int64(3), num_results=np.int8(2)), decoding.Beam(3, num_results=2)),
    ):
        assert repr(strategy) == repr(same) and strategy.get_config() == same.get_config()
        assert strategy.compiled_in == same.compiled_in


@pytest.mark.parametrize("rules", [None, len, "ab", [len, 3]])
def test_rules_that_are_no_list_of_functions(rules):
    with pytest.raises(ValueError, match="`rules` must be a list of functions"):
        decoding.Greedy(rules=rules)


def test_buckets():
    assert [bucket(n) for n in (0, 1, 8, 9, 16, 17, 1000)] == [8, 8, 8, 16, 16, 32, 1024]
    assert [bucket(n, 1) for n in (1, 2, 3, 5)] == [1, 2, 4, 8]
