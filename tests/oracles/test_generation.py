"""Generation equals transformers' `generate` on the same weights, token for token."""

import numpy as np
import pytest

from keras_tx.decoding import Beam, Greedy
from tests.models import tools
from tests.oracles.parity import rebuilt
from tests.oracles.reference import reference

NEW, END = 5, 3
FAMILIES = ("GPT-2", "Llama")


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request):
    """A model of transformers and ours, which end at the same token."""
    found = reference(request.param)
    model = rebuilt(found, {})  # its own, as its end is another
    model.end_token_id = END
    return found, model


def generated(found, **arguments):
    """[(tokens without the end, score or None)] of transformers, one list a prompt."""
    import torch

    ids = torch.tensor(found.inputs).long()
    several = arguments.get("num_return_sequences", 1)
    with torch.no_grad():
        output = found.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            eos_token_id=END,
            pad_token_id=0,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **arguments,
        )
    rows = output.sequences[:, ids.shape[1] :].tolist()
    rows = [row[: row.index(END)] if END in row else row for row in rows]
    scores = getattr(output, "sequences_scores", None)
    scores = None if scores is None else scores.numpy().reshape(-1, several)
    return [rows[i : i + several] for i in range(0, len(rows), several)], scores


RULES = [
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 0.8},
    {"min_new_tokens": 4},
]


@pytest.mark.parametrize("rules", [{}, *RULES], ids=str)
def test_greedy(pair, rules):
    found, model = pair
    expected, _ = generated(found, **rules)
    assert model.generate(found.inputs, strategy=Greedy(**rules), max_new_tokens=NEW) == [
        row for (row,) in expected
    ]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("penalty", [0.6, 1.0, 2.0])
def test_beam(pair, penalty, early):
    found, model = pair
    expected, scores = generated(
        found,
        num_beams=4,
        num_return_sequences=3,
        length_penalty=penalty,
        early_stopping=early,
    )
    strategy = Beam(4, length_penalty=penalty, early_stopping=early, num_results=3)
    result = model.generate(found.inputs, strategy=strategy, max_new_tokens=NEW, return_dict=True)
    assert result["token_ids"] == expected
    tools.assert_close(result["scores"], scores)


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_beam_with_rules(pair, rules):
    found, model = pair
    expected, scores = generated(found, num_beams=3, length_penalty=0.6, **rules)
    strategy = Beam(3, length_penalty=0.6, **rules)
    result = model.generate(found.inputs, strategy=strategy, max_new_tokens=NEW, return_dict=True)
    assert result["token_ids"] == [row for (row,) in expected]
    tools.assert_close(result["scores"], np.ravel(scores))


def test_the_penalties_and_the_rules_are_felt(pair):
    """Otherwise the tests above would hold whatever they do."""
    found, _ = pair
    free = generated(found)[0]
    assert all(generated(found, **rules)[0] != free for rules in RULES[:3])
    beams = [generated(found, num_beams=4, length_penalty=p)[0] for p in (0.6, 2.0)]
    assert beams[0] != beams[1] and beams[1] != free
