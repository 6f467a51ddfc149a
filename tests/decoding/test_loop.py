"""The token loop by itself, over a model that is a table."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tx import decoding
from keras_tx.decoding.buckets import bucket

END = 4


def run(table, limits, max_new_tokens, end_token_id=END, pad_token_id=7):
    """Row b takes token argmax(table[step, b]); the state counts the steps of the model."""
    table = ops.convert_to_tensor(np.asarray(table, "float32"))

    def start(inputs, max_new_tokens):
        return table[0], {"steps": ops.cast(0, "int32")}

    def step(tokens, state):
        steps = state["steps"] + 1
        return ops.take(table, steps, axis=0), {"steps": steps}

    result, state = decoding.generate_tokens(
        start,
        step,
        None,
        strategy=decoding.Greedy(),
        max_new_tokens=max_new_tokens,
        limits=ops.convert_to_tensor(np.asarray(limits, "int32")),
        end_token_id=end_token_id,
        pad_token_id=pad_token_id,
    )
    return {k: ops.convert_to_numpy(v) for k, v in result.items()}, int(state["steps"])


def logits_for(*rows):
    """Logits (steps, B, 5) whose greatest are the given tokens, and their log-probabilities."""
    chosen = np.array(rows).T
    logits = np.random.default_rng(1).normal(size=(*chosen.shape, 5)).astype("float32")
    np.put_along_axis(logits, chosen[..., None], 4.0, -1)
    log_p = 4.0 - np.log(np.exp(logits.astype("float64")).sum(-1))
    return logits, log_p.T


def test_rows_end_at_the_end_token_at_their_limit_or_at_the_last_step():
    table, log_p = logits_for([1, 2, 3, 0, 1], [2, END, 3, 3, 3], [3, 3, 3, 3, 3], [1, 1, 1, 1, 1])
    result, steps = run(table, [9, 9, 2, 0], 5)
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
    assert steps == 4


def test_the_model_steps_no_further_than_the_longest_row():
    table, _ = logits_for([1, END, 0, 0, 0], [END, 0, 0, 0, 0])
    assert run(table, [9, 9], 5)[1] == 1
    assert run(table, [1, 1], 5)[1] == 0
    assert run(table, [9, 9], 1)[0]["token_ids"].shape == (2, 1)


def test_without_an_end_token_nothing_ends_a_row():
    table, _ = logits_for([END, END, 1])
    assert run(table, [9], 3, end_token_id=None)[0]["token_ids"].tolist() == [[END, END, 1]]


def test_greedy_takes_the_first_of_equals():
    assert ops.convert_to_numpy(decoding.Greedy()(ops.ones((2, 5)))).tolist() == [0, 0]


def test_strategies_by_name_and_by_configuration():
    assert isinstance(decoding.get("greedy"), decoding.Greedy)
    greedy = decoding.Greedy()
    assert decoding.get(greedy) is greedy
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(greedy))
    assert isinstance(again, decoding.Greedy)
    with pytest.raises(ValueError, match='must be "greedy" or a strategy object. Received: \'bea'):
        decoding.get("beam")


def test_buckets():
    assert [bucket(n) for n in (0, 1, 8, 9, 16, 17, 1000)] == [8, 8, 8, 16, 16, 32, 1024]
    assert [bucket(n, 1) for n in (1, 2, 3, 5)] == [1, 2, 4, 8]
