"""Beam search against the search of all texts, and against a slow one of its own kind."""

import numpy as np
import pytest

from keras_tx import decoding
from tests.decoding.table import Table, search

END, VOCABULARY, LIMIT = 3, 5, 4


@pytest.fixture(scope="module")
def table():
    return Table(2 * np.random.default_rng(3).normal(size=(7, LIMIT, VOCABULARY, VOCABULARY)))


def found_by(strategy, table, limits=None):
    return search(table, strategy, len(table.table), LIMIT, limits, END)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
def test_a_wide_beam_finds_the_best_of_all_texts(table, penalty):
    strategy = decoding.Beam(64, length_penalty=penalty, num_results=4)
    found = found_by(strategy, table)
    for row in range(len(table.table)):
        texts = table.texts(row, LIMIT, END)
        best = sorted(texts, key=lambda text: -text[1] / text[2] ** penalty)[:4]
        for place, (tokens, value, count) in enumerate(best):
            length = found["lengths"][row, place]
            assert found["token_ids"][row, place].tolist() == tokens + [7] * (LIMIT - len(tokens))
            assert length == len(tokens)
            np.testing.assert_allclose(found["scores"][row, place], value / count**penalty, 1e-5)


def slow_beam(log_p, limit, width, penalty, early):
    """As the docstring of `Beam` says it, in lists."""
    running, ended = [([], 0.0)], []
    for step in range(limit):
        candidates = [
            (tokens + [token], value + log_p[step, tokens[-1] if tokens else 0, token])
            for tokens, value in running
            for token in range(log_p.shape[-1])
        ]
        candidates.sort(key=lambda text: -text[1])
        for tokens, value in candidates[:width]:
            if tokens[-1] == END or step + 1 == limit:
                ended.append((tokens, value / len(tokens) ** penalty))
        ended = sorted(ended, key=lambda text: -text[1])[:width]
        running = [text for text in candidates[: 2 * width] if text[0][-1] != END][:width]
        full = len(ended) == width
        worth = running[0][1] / (step + 1) ** penalty if running else -np.inf
        if full and (early or worth <= ended[-1][1]):
            break
    return ended


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_narrow_beam_is_the_one_of_the_definition(table, width, early):
    penalties, limits = np.linspace(-1.0, 3.0, 7), np.array([4, 4, 3, 4, 2, 1, 4])
    strategy = decoding.Beam(
        width, length_penalty=penalties, early_stopping=early, num_results=width
    )
    found = found_by(strategy, table, limits)
    for row, penalty in enumerate(penalties):
        log_p = table.log_probabilities(row)
        ended = slow_beam(log_p, limits[row], width, penalty, early)
        assert len(ended) == width
        for place, (tokens, score) in enumerate(ended):
            kept = tokens[:-1] if tokens[-1] == END else tokens
            token_ids = np.reshape(found["token_ids"][row], (width, LIMIT))[place]
            assert token_ids.tolist() == kept + [7] * (LIMIT - len(kept))
            scores = np.reshape(found["scores"][row], (width,))
            np.testing.assert_allclose(scores[place], score, 1e-5)


def test_a_beam_of_one_is_greedy(table):
    beam, greedy = found_by(decoding.Beam(1), table), found_by(decoding.Greedy(), table)
    assert beam["token_ids"].tolist() == greedy["token_ids"].tolist()
    assert beam["token_ids"].shape == (7, LIMIT) and beam["scores"].shape == (7,)


def test_texts_that_do_not_exist(table):
    """With one token to come there are no more texts than tokens; a row without room has none."""
    found = found_by(decoding.Beam(7, num_results=7), table, limits=[1] * 6 + [0])
    assert (found["scores"][:6, :VOCABULARY] > -np.inf).all()
    assert (found["scores"][:6, VOCABULARY:] == -np.inf).all()
    assert not found["lengths"][:6, VOCABULARY:].any() and not found["lengths"][6].any()
    assert (found["token_ids"][:6, VOCABULARY:] == 7).all()


def test_a_text_exists_whatever_the_penalty_and_the_vocabulary(table):
    for penalty in (-1e30, 1e30):
        found = found_by(decoding.Beam(2, length_penalty=penalty), table)
        assert np.isfinite(found["scores"]).all()
    decoder = Table(np.zeros((1, LIMIT, 1, 1), "float32"))
    found = search(decoder, decoding.Beam(3, num_results=3), 1, LIMIT)
    assert found["token_ids"][0, 0].tolist() == [0] * LIMIT
    assert found["scores"].tolist() == [[0, -np.inf, -np.inf]]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"width": 0}, "`width` must be a positive integer. Received: 0"),
        ({"width": True}, "`width` must be a positive integer. Received: True"),
        ({"width": 2, "num_results": 3}, "`num_results` may be at most the width, 2. Received: 3"),
        ({"num_results": 0}, "`num_results` must be a positive integer. Received: 0"),
        ({"length_penalty": "long"}, "length_penalty"),
        ({"early_stopping": 2}, "early_stopping"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        decoding.Beam(**arguments)
