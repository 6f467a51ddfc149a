"""A thousand calls with whatever comes: few traces, none of them late, and no memory lost."""

import gc

import numpy as np
import pytest

from keras_tx.decoding import Greedy, Sample
from tests.models import tools

CALLS = 1000
BATCHES, LENGTHS, NEW = (1, 2, 4, 8), (8, 16, 32), (8, 16)


def within(generator, buckets, bucket):
    """A size that is rounded up to this bucket."""
    smaller = [size for size in buckets if size < bucket]
    return int(generator.integers(max(smaller, default=0) + 1, bucket + 1))


def options(generator, rows):
    """Parameters at random, for all rows or for each."""

    def some(draw):
        kind = generator.integers(3)
        return None if kind == 0 else draw() if kind == 1 else [draw() for _ in range(rows)]

    def uniform(low, high):
        return lambda: float(generator.uniform(low, high))

    def integer(high):
        return lambda: int(generator.integers(high))

    rules = {
        "repetition_penalty": some(uniform(0.5, 2)),
        "frequency_penalty": some(uniform(-1, 1)),
        "presence_penalty": some(uniform(-1, 1)),
        "no_repeat_ngram_size": some(integer(4)),
        "min_new_tokens": some(integer(9)),
        "banned_tokens": generator.integers(0, tools.VOCABULARY, 3).tolist(),
    }
    filters = {
        "temperature": some(uniform(0, 2)) or 1.0,
        "top_k": some(integer(9)),
        "top_p": some(uniform(0.1, 1)),
        "min_p": some(uniform(0, 1)),
        "typical_p": some(uniform(0.1, 1)),
    }
    return rules, filters


def resident_mb():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


@pytest.mark.soak
def test_a_thousand_calls(backend):
    generator = np.random.default_rng(11)
    gpt = tools.make_gpt(max_sequence_length=48, start_token_id=2, end_token_id=3)
    traced, start = [], gpt.start

    def counted(*arguments, **more):
        traced.append(call)
        return start(*arguments, **more)

    gpt.start = counted
    for call in range(CALLS):
        batch, length, new = (generator.choice(buckets) for buckets in (BATCHES, LENGTHS, NEW))
        rows = within(generator, BATCHES, batch)
        longest = within(generator, LENGTHS, length)
        lengths = [longest, *generator.integers(0, longest + 1, rows - 1)]
        prompts = [generator.integers(0, tools.VOCABULARY, n).tolist() for n in lengths]
        rules, filters = options(generator, rows)
        strategy = Greedy(**rules) if generator.integers(2) else Sample(**rules, **filters)
        limit = within(generator, NEW, new)
        result = gpt.generate(
            prompts, strategy=strategy, max_new_tokens=limit, seed=call, return_dict=True
        )
        assert (result["lengths"] <= limit).all() and len(result["token_ids"]) == rows
        assert np.isfinite(result["scores"]).all()
        banned = set(rules["banned_tokens"])
        assert not any(banned & set(row) for row in result["token_ids"])
        if call == CALLS // 2:
            half = resident_mb()
    assert resident_mb() - half < 16
    if backend != "torch":  # which runs eagerly: it traces nothing
        assert len(traced) <= 2 * len(BATCHES) * len(LENGTHS) * len(NEW)
        assert max(traced) < CALLS // 2
