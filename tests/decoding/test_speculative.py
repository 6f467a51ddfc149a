"""Guesses of a draft change nothing but the time: greedily not a token, drawn not a probability."""

import itertools

import numpy as np
import pytest

from keras_tx import decoding
from tests.decoding.table import Table, search

END, VOCABULARY, LIMIT = 3, 5, 6


def random_table(rows, seed, scale=1.0):
    logits = np.random.default_rng(seed).normal(size=(rows, LIMIT, VOCABULARY, VOCABULARY))
    return scale * logits


def run(strategy, table, limits=None, end=END, seeds=None, pauses=()):
    return search(Table(table), strategy, len(table), LIMIT, limits, end, seeds, pauses)


@pytest.mark.parametrize("count, noise", [(1, 0.7), (2, 5.0), (4, 0.0), (9, 0.7)])
def test_greedily_the_text_is_the_same(count, noise):
    table = random_table(11, 1)
    limits = np.array([6, 6, 6, 5, 4, 3, 2, 1, 0, 6, 6])
    expected = run(decoding.Greedy(), table, limits)
    draft = Table(table + noise * random_table(11, 2))
    strategy = decoding.Speculative(draft, count)
    found = run(strategy, table, limits)
    for name in ("token_ids", "lengths"):
        assert found[name].tolist() == expected[name].tolist()
    np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-5)
    assert (found["accepted_tokens"] <= found["drafted_tokens"]).all()
    if noise == 0:
        assert (found["accepted_tokens"] == found["drafted_tokens"]).all()
    if noise == 5:
        assert found["accepted_tokens"].sum() < 0.6 * found["drafted_tokens"].sum()
    if count == 2:
        paused = run(strategy, table, limits, pauses=(1, 2, 3))
        assert paused["token_ids"].tolist() == found["token_ids"].tolist()


def test_rules_see_the_guesses_before_them():
    table = random_table(7, 3)
    rules = {"repetition_penalty": 3.0, "no_repeat_ngram_size": 1, "min_new_tokens": 4}
    expected = run(decoding.Greedy(**rules), table)
    draft = Table(table + 0.3 * random_table(7, 4))
    found = run(decoding.Speculative(draft, 3, strategy=decoding.Greedy(**rules)), table)
    assert found["token_ids"].tolist() == expected["token_ids"].tolist()
    assert all(len(set(row[:4])) == 4 for row in found["token_ids"].tolist())


def test_drawn_texts_are_distributed_as_without_a_draft():
    """Chi-square of the first three tokens over 20,000 rows, each with a seed of its own."""
    one = random_table(1, 5)
    other = one + random_table(1, 6)
    rows = 20000
    strategy = decoding.Speculative(
        Table(np.repeat(other, rows, 0)), 2, strategy=decoding.Sample(0.8, top_k=4)
    )
    found = run(strategy, np.repeat(one, rows, 0), limits=np.full(rows, 3), end=None)
    logits = one[0] / 0.8
    kept = np.where(logits >= np.sort(logits, -1)[..., -4:-3], np.exp(logits), 0)
    p = kept / kept.sum(-1, keepdims=True)
    counts, expected = [], []
    texts = [tuple(row[:3]) for row in found["token_ids"].tolist()]
    for text in itertools.product(range(VOCABULARY), repeat=3):
        probability = p[0, 0, text[0]] * p[1, text[0], text[1]] * p[2, text[1], text[2]]
        count = texts.count(text)
        assert probability > 0 or count == 0
        if probability * rows >= 5:
            counts.append(count)
            expected.append(probability * rows)
    counts, expected = np.array(counts), np.array(expected)
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert len(counts) > 30
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)
    assert 0.2 < found["accepted_tokens"].sum() / found["drafted_tokens"].sum() < 0.9


def test_a_row_is_the_same_alone():
    table, draft = random_table(5, 7), random_table(5, 8)
    strategy = decoding.Sample(1.3)
    seeds = np.array([3, 1, 4, 1, 5])
    together = run(decoding.Speculative(Table(draft), 3, strategy=strategy), table, seeds=seeds)
    part = slice(2, 3)
    alone = decoding.Speculative(Table(draft[part]), 3, strategy=strategy)
    found = run(alone, table[part], seeds=seeds[part])
    assert found["token_ids"][0].tolist() == together["token_ids"][2].tolist()


def test_a_draft_that_knows_nothing_costs_time_alone():
    """Its logits are no numbers."""
    table = random_table(3, 9)
    found = run(decoding.Speculative(Table(np.nan * table), 2), table)
    assert found["token_ids"].tolist() == run(decoding.Greedy(), table)["token_ids"].tolist()


class Forward:
    """A decoder that cannot go back."""

    def start(self, inputs, max_new_tokens):
        raise NotImplementedError

    step = start


def test_errors():
    draft = Table(random_table(1, 1))
    with pytest.raises(ValueError, match='must be "greedy", "sample".*Received: Beam'):
        decoding.Speculative(draft, strategy=decoding.Beam())
    with pytest.raises(ValueError, match="`num_draft_tokens` must be a positive integer"):
        decoding.Speculative(draft, 0)
    with pytest.raises(ValueError, match="The draft must have.*Forward, without rewind"):
        decoding.Speculative(Forward())
    strategy = decoding.Speculative(draft)
    with pytest.raises(ValueError, match="The model must have.*Forward, without extend, rewind"):
        strategy.begin(Forward(), None)
