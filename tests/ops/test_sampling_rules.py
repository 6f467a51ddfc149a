"""Each rule against transformers' own, the hash against numpy, and draws against their odds."""

import functools

import keras
import numpy as np
import pytest
from keras import ops
from scipy import stats

from keras_tx import kernels
from keras_tx.ops import hashing, sampling_rules
from tests.oracles.reference import transformers

B, L, V = 5, 19, 97
INFINITY = float("inf")


@functools.cache
def compiled(function):
    """In a TensorFlow graph batch and length are unknown."""
    if keras.backend.backend() != "tensorflow":
        return kernels.compiled(function, [])
    import tensorflow as tf

    def spec(x):
        is_logits = x.ndim == 2 and x.dtype == np.float32
        return tf.TensorSpec([None, x.shape[-1]] if is_logits else [None] * x.ndim, x.dtype)

    def call(*arrays):
        signature = [spec(x) for x in arrays]
        return tf.function(function, autograph=False, input_signature=signature)(*arrays)

    return call


def run(function, *arrays):
    arrays = [np.asarray(x) for x in arrays]
    arrays = [x.astype("float32") if x.dtype == np.float64 else x for x in arrays]
    arrays = [x.astype("int32") if x.dtype == np.int64 else x for x in arrays]
    return ops.convert_to_numpy(compiled(function)(*map(ops.convert_to_tensor, arrays)))


def random_logits(rows=B, vocabulary=V, removed=True):
    generator = np.random.default_rng(3)
    logits = 3 * generator.normal(size=(rows, vocabulary)).astype("float32")
    if removed:
        logits[generator.random(logits.shape) < 0.2] = -INFINITY
    return logits


def random_texts(ids=V):
    """Texts of other lengths at other places, none at all among them."""
    generator = np.random.default_rng(4)
    tokens = np.full((B, L), -1, "int32")
    texts = []
    for row, (begin, length) in enumerate([(0, L), (3, 11), (0, 7), (8, L - 8), (5, 0)]):
        tokens[row, begin : begin + length] = generator.integers(0, ids, length)
        texts.append(tokens[row, begin : begin + length].tolist())
    return tokens, texts


def by_transformers(name, logits, values, texts=None, neutral=None, **arguments):
    """Row by row: its processors take one number for all rows."""
    import torch

    rows = []
    for row, value in enumerate(values):
        scores = torch.tensor(logits[row : row + 1])
        text = torch.tensor([texts[row] if texts else [0]], dtype=torch.int64)
        if value != neutral and text.shape[1]:
            given = {key: each(row) for key, each in arguments.items()}
            scores = getattr(transformers(), name)(value, **given)(text, scores)
        rows.append(scores.numpy()[0])
    return np.stack(rows)


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


FILTERS = {
    "top_k": ("TopKLogitsWarper", [1, 5, V + 9, 0, 60], 0),
    "top_p": ("TopPLogitsWarper", [0.0, 0.3, 0.95, 1.0, 0.999], 1.0),
    "min_p": ("MinPLogitsWarper", [1.0, 0.1, 0.001, 0.0, 0.5], 0.0),
    "typical_p": ("TypicalLogitsWarper", [0.01, 0.3, 0.95, 1.0, 0.999], 1.0),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters(name):
    oracle, values, neutral = FILTERS[name]
    logits = random_logits()
    expected = by_transformers(oracle, logits, values, neutral=neutral)
    found = run(getattr(sampling_rules, name), logits, values)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found[3], logits[3])  # the neutral value, beside others
    assert (found > -INFINITY).sum() < (logits > -INFINITY).sum()


def test_temperature():
    logits = random_logits()
    values = [0.1, 3.0, 0.7, 1.0, 0.0]
    found = run(sampling_rules.temperature, logits, values)
    expected = by_transformers("TemperatureLogitsWarper", logits[:4], values[:4], neutral=1.0)
    np.testing.assert_allclose(log_softmax(found[:4]), log_softmax(expected), rtol=1e-5)
    np.testing.assert_array_equal(found[3], logits[3])
    assert np.flatnonzero(found[4] > -INFINITY).tolist() == [logits[4].argmax()]


def test_temperature_0_takes_the_first_of_equals_and_small_ones_do_not_overflow():
    logits = [[1.0, 5.0, 5.0], [-3e38, 3e38, 1e38]]
    found = run(sampling_rules.temperature, logits, [0.0, 1e-30])
    assert (found > -INFINITY).tolist() == [[False, True, False]] * 2


def test_a_row_of_nothing_stays_nothing():
    logits = np.full((2, V), -INFINITY)
    np.testing.assert_array_equal(run(sampling_rules.temperature, logits, [0.5, 0.0]), logits)
    for name in FILTERS:
        values = [2, 3] if name == "top_k" else [0.5, 0.6]
        np.testing.assert_array_equal(run(getattr(sampling_rules, name), logits, values), logits)


def test_repetition_penalty():
    logits, (tokens, texts) = random_logits(), random_texts()
    values = [1.3, 0.7, 1.0, 2.0, 2.0]
    found = run(sampling_rules.repetition_penalty, logits, tokens, values)
    name = "RepetitionPenaltyLogitsProcessor"
    expected = by_transformers(name, logits, values, texts, neutral=1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(found[[2, 4]], logits[[2, 4]])


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_penalties_of_the_new_text(name):
    logits, (tokens, texts) = random_logits(), random_texts(ids=5)
    values, steps = np.array([1.3, -0.7, 0.4, 0.0, 2.0]), np.array([L, 4, 0, 3, 0])
    expected = logits.copy()
    for row, (text, step, value) in enumerate(zip(texts, steps, values, strict=True)):
        for token in range(V):
            count = text[len(text) - step :].count(token)
            count = min(count, 1) if name == "presence_penalty" else count
            expected[row, token] -= value * count
    found = run(getattr(sampling_rules, name), logits, tokens, steps, values)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (found[:2] != logits[:2]).any(1).all()
    np.testing.assert_array_equal(found[2:], logits[2:])


@pytest.mark.parametrize("sizes", [[1, 2, 3, 0, 2], [2, 1, 4, 3, 1], [99, 0, 2, 2, 3]])
def test_no_repeat_ngrams(sizes):
    logits, (tokens, texts) = random_logits(removed=False), random_texts(ids=2)
    removed = np.zeros(logits.shape, bool)
    for row, (text, size) in enumerate(zip(texts, sizes, strict=True)):
        for token in range(V):
            runs = [text[i : i + size] for i in range(len(text) - size + 1)]
            ending = [*text[len(text) - size + 1 :], token] if len(text) >= size else None
            removed[row, token] = size > 0 and ending in runs
    expected = np.where(removed, -INFINITY, logits)
    found = run(sampling_rules.no_repeat_ngrams, logits, tokens, sizes)
    np.testing.assert_array_equal(found, expected)
    assert removed.any()
    name = "NoRepeatNGramLogitsProcessor"
    np.testing.assert_array_equal(found, by_transformers(name, logits, sizes, texts, neutral=0))


def test_ngrams_as_long_as_the_text():
    logits, tokens = random_logits(4, removed=False), np.ones((4, 5), int)
    found = run(sampling_rules.no_repeat_ngrams, logits, tokens, [4, 5, 6, 99])
    assert (found[:, 1] == -INFINITY).tolist() == [True, True, False, False]


def test_ban():
    logits = random_logits(3, 7, removed=False)
    found = run(sampling_rules.ban, logits, [[3, -1, 3], [-1, -1, -1], [0, 6, 7]])
    assert [np.flatnonzero(row == -INFINITY).tolist() for row in found] == [[3], [], [0, 6]]
    np.testing.assert_array_equal(found[found > -INFINITY], logits[found > -INFINITY])


def test_force():
    logits = random_logits(5, 7, removed=False)
    logits[3, 2] = -INFINITY
    ids = [[1, -1], [1, -1], [1, 4], [2, 2], [1, 4]]
    found = run(sampling_rules.force, logits, ids, [0, 1, 1, 0, 2])
    left = [np.flatnonzero(row > -INFINITY).tolist() for row in found]
    everything = list(range(7))
    assert left == [[1], everything, [4], [2], everything]
    assert (found[0, 1], found[3, 2]) == (logits[0, 1], 0)


def test_hold_back():
    logits, steps, values = random_logits(removed=False), [0, 1, 2, 3, 0], [1, 2, 2, 2, 0]
    found = run(lambda x, step, y: sampling_rules.hold_back(x, step, y, 13), logits, steps, values)
    expected = by_transformers(
        "MinNewTokensLengthLogitsProcessor",
        logits,
        [2] * B,  # length of the prompt
        [[0] * (2 + step) for step in steps],
        min_new_tokens=lambda row: values[row],
        eos_token_id=lambda row: 13,
    )
    np.testing.assert_array_equal(found, expected)
    assert (found[:, 13] == -INFINITY).tolist() == [True, True, False, False, False]


def kept(name, logits, values):
    found = run(getattr(sampling_rules, name), np.array(logits, "float32"), values)
    return [np.flatnonzero(row > -INFINITY).tolist() for row in found]


def test_ties_at_the_threshold_stay_together():
    logits = np.log([[0.1, 0.3, 0.3, 0.3], [0.0625, 0.25, 0.4375, 0.25]])
    assert kept("top_k", logits, [1, 2]) == [[1, 2, 3], [1, 2, 3]]
    assert kept("top_p", logits, [0.2, 0.5]) == [[1, 2, 3], [1, 2, 3]]
    assert kept("typical_p", logits[:1], [0.2]) == [[1, 2, 3]]
    assert kept("typical_p", logits[:1], [0.0]) == [[1, 2, 3]]


@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_odd_logits(name):
    values = {"top_k": [1] * 4, "min_p": [0.9] * 4}.get(name, [0.4] * 4)
    logits = [
        [-INFINITY, -2.0, -INFINITY],
        [-3e38, 3e38, 2.9e38],
        [-1e9, -1e9 + 500, -1e9],
        [-1e-40, 20.0, 0.0],
    ]
    assert kept(name, logits, values) == [[1]] * 4
    assert kept(name, [[-3.0]], values[:1]) == [[0]]


def test_top_k_counts_far_below_the_greatest():
    logits = [[90.0, -30.0, -1e30, -1e9, -40.0], [0.0, -1e-5, -2e-5, -3e-5, -4e-5]]
    assert kept("top_k", logits, [3, 3]) == [[0, 1, 4], [0, 1, 2]]
    assert kept("top_k", logits, [4, 4]) == [[0, 1, 3, 4], [0, 1, 2, 3]]


def numpy_uniform(seed, place):
    def mix(x):
        x = (x ^ (x >> 16)) * 0x21F0AAAD & 0xFFFFFFFF
        x = (x ^ (x >> 15)) * 0x735A2D97 & 0xFFFFFFFF
        return x ^ (x >> 15)

    seed, place = np.asarray(seed) % 2**32, np.asarray(place) % 2**32
    number = mix(mix((seed + 0x5851F42D) % 2**32) ^ mix((place + 0x2545F491) % 2**32))
    return (number >> 8) / 2.0**24


def uniform(seed, place):
    return run(hashing.uniform, *np.broadcast_arrays(seed, place)).astype("float64")


def test_uniform_is_the_same_everywhere():
    seeds = np.array([0, 1, -1, 2**31 - 1, -(2**31), 1729])
    places = np.array([0, -1, 7, 2**31 - 1, 3, 2])
    np.testing.assert_array_equal(uniform(seeds, places), numpy_uniform(seeds, places))
    assert run(hashing.uniform, seeds, places).dtype == np.float32


N = 20_000
PLANES = {
    "seeds": (np.arange(N), np.zeros(N, int)),
    "places": (np.zeros(N, int), np.arange(N)),
    "both": (np.arange(N), np.arange(N)),
}


@pytest.mark.parametrize("name", PLANES)
def test_neighbours_have_nothing_to_do_with_each_other(name):
    x = uniform(*PLANES[name])
    assert 0 <= x.min() < 0.001 and 0.999 < x.max() < 1
    assert stats.chisquare(np.histogram(x, 64, (0, 1))[0]).pvalue > 0.01
    for distance in (1, 2, 3, 8, 16):
        left, right = x[:-distance], x[distance:]
        pairs = np.histogram2d(left, right, 8, [[0, 1]] * 2)[0]
        assert stats.chisquare(pairs.ravel()).pvalue > 0.001
        assert abs(np.corrcoef(left, right)[0, 1]) < 4 / N**0.5


def test_the_next_seed_is_not_the_next_place():
    n = np.arange(N)
    one, other = uniform(n + 1, n % 7), uniform(n, n % 7 + 1)
    assert np.mean(one == other) < 0.001
    assert abs(np.corrcoef(one, other)[0, 1]) < 4 / N**0.5
    # Nor does a seed's sequence stand in another's, further on.
    (first, second) = uniform(np.array([[5], [6]]), np.arange(2000))
    assert len(np.intersect1d(first, second)) < 5


def test_draws_follow_the_filtered_probabilities():
    logits = random_logits(1, 31)
    repeated = np.repeat(logits, N, axis=0)

    def draw(logits, seed):
        logits = sampling_rules.temperature(logits, ops.full_like(logits[:, 0], 4.0))
        logits = sampling_rules.top_k(logits, ops.full_like(seed, 20))
        logits = sampling_rules.top_p(logits, ops.full_like(logits[:, 0], 0.9))
        return sampling_rules.draw(logits, hashing.uniform(seed, ops.full_like(seed, 3)))

    found = run(draw, repeated, np.arange(N))
    p = np.exp(log_softmax(logits[0] / 4.0))
    order = np.argsort(-p)
    p[order[20:]] = 0
    p /= p.sum()
    p[order[np.cumsum(p[order]) - p[order] >= 0.9]] = 0
    p /= p.sum()
    assert found.dtype == np.int32 and 5 < (p > 0).sum() < 20
    counts = np.bincount(found, minlength=31)
    assert counts[p == 0].sum() == 0
    assert stats.chisquare(counts[p > 0], N * p[p > 0]).pvalue > 0.01


@pytest.mark.parametrize("vocabulary", [1, 2, 97, 50257])
def test_draws_never_take_what_has_no_probability(vocabulary):
    logits = random_logits(9, vocabulary, removed=vocabulary > 2)
    logits[4:, 0] = logits[4:, -1] = -INFINITY
    logits[:, vocabulary // 2] = 1.0
    logits[8] = np.where(np.arange(vocabulary) == vocabulary // 2, -3e38, -INFINITY)
    for number in (0.0, 1e-30, 0.5, 1 - 2.0**-24, 1.0):
        found = run(sampling_rules.draw, logits, np.full(9, number))
        assert (np.take_along_axis(logits, found[:, None], 1) > -INFINITY).all()
        p = np.exp(log_softmax(logits))
        sums = np.cumsum(p, 1)
        after = np.take_along_axis(sums, found[:, None], 1)[:, 0]
        before = after - np.take_along_axis(p, found[:, None], 1)[:, 0]
        assert (before < number + 1e-6).all() and (after > number - 1e-6).all()


def test_the_sums_of_a_large_vocabulary_are_exact_enough():
    logits = np.zeros((8, 50257), "float32")
    numbers = np.random.default_rng(1).random(8).astype("float32")
    found = run(sampling_rules.draw, logits, numbers)
    assert np.abs(found - numbers * 50257).max() <= 1.1
