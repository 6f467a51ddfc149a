"""`score`, `rank` and `perplexity`: log-likelihoods of given text, held against the logits."""

import functools

import numpy as np
import pytest
from keras import ops

import keras_tx as ktx
from keras_tx import layers, weights
from keras_tx.data import tokenizers
from keras_tx.models import text_scoring
from tests.models import tools

TEXTS = [[], [5], [1, 2, 3, 4, 5, 6, 7], [12, 0, 12], list(range(13)) + [3, 1, 4, 1]]
START = 2


def dynamic(**changes):
    """Rotary positions that depend on each row's length."""
    position = layers.RotaryEncoding(scaling=layers.DynamicScaling(3.0, 5))
    block = layers.TransformerBlock(
        attention=layers.MultiHeadSelfAttention(2, 4, causal=True, position=position)
    )
    return tools.randomize(ktx.GPT(**tools.gpt_arguments(block=block, **changes)))


@pytest.fixture(scope="module")
def gpt():
    return tools.make_gpt("rotary", start_token_id=START)


@pytest.fixture(scope="module")
def text_gpt():
    tokenizer = ktx.data.train_tokenizer([], kind="byte")
    return tools.make_gpt(vocabulary_size=None, max_sequence_length=31, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def translator():
    return make_translator()


def make_translator(**changes):
    arguments = {"pad_token_id": 0, "start_token_id": 1, "end_token_id": 2, **changes}
    sizes = {"vocabulary_size": 11, "target_vocabulary_size": 13, "hidden_dim": 5}
    return tools.randomize(ktx.Seq2Seq(**sizes, **arguments))


def log_softmax(logits):
    logits = logits.astype("float64")
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@functools.cache
def forward(model):
    return tools.forward(model)


def whole(gpt, sequence, first):
    """log p of sequence[first:], each given all before it: the whole model, float64 logits."""
    # What stands behind the sequence changes nothing before it, and one shape is compiled once.
    inputs = {"token_ids": np.zeros((1, gpt.max_sequence_length), "int32")}
    inputs["token_ids"][0, : max(0, len(sequence) - 1)] = sequence[:-1]
    if any(getattr(block.attention, "depends_on_length", False) for block in gpt.blocks):
        inputs["lengths"] = np.array([min(len(sequence), gpt.max_sequence_length)], "int32")
    places = np.arange(first - 1, max(first, len(sequence)) - 1)
    return log_softmax(forward(gpt)(inputs))[0][places, sequence[first:]]


@pytest.mark.parametrize("variant", ["none", "list", "biases"])
def test_a_text_is_scored_by_the_logits_of_the_whole_model(variant):
    gpt = tools.make_gpt(variant, start_token_id=START)
    found = gpt.score(TEXTS)
    assert [len(row) for row in found] == [len(text) for text in TEXTS]
    assert all(row.dtype == "float32" for row in found)
    tools.assert_close(found, [whole(gpt, [START, *text], 1) for text in TEXTS])


def test_without_a_start_token_the_first_token_has_no_score():
    gpt = tools.make_gpt()
    expected = [whole(gpt, text, 1) for text in TEXTS]
    assert [len(row) for row in expected] == [0, 0, 6, 2, 16]
    tools.assert_close(gpt.score(TEXTS), expected)


def test_padding_and_other_rows_change_nothing():
    for gpt in (tools.make_gpt(pad_token_id=0, start_token_id=START), dynamic(start_token_id=2)):
        texts = [[5], [1, 2, 3, 4, 5, 6, 7], [12, 11, 12], [9] * 17]
        together = gpt.score(texts, batch_size=3, verbose=0)
        tools.assert_close(together, [gpt.score(text) for text in texts], 1e-6)
        tools.assert_close(together, [whole(gpt, [START, *text], 1) for text in texts])
    gpt = tools.make_gpt(pad_token_id=0, start_token_id=START)
    array = np.array([[1, 2, 3, 0, 0], [1, 2, 3, 4, 5]])
    assert [len(row) for row in gpt.score(array)] == [3, 5]


def test_a_continuation_is_scored_given_its_prompt(gpt):
    prompts, more = [[], [5], [1, 2, 3], [12, 0, 12], [7] * 9], [[4, 4], [3], [], [8] * 9, [6] * 9]
    expected = [
        whole(gpt, (prompt or [START]) + text, max(1, len(prompt)))
        for prompt, text in zip(prompts, more, strict=True)
    ]
    found = gpt.score(prompts, more)
    assert [len(row) for row in found] == [2, 1, 0, 9, 9]
    tools.assert_close(found, expected)
    tools.assert_close(gpt.score(prompts[3], more[3]), expected[3])
    tools.assert_close(gpt.score(np.array([1, 2]), np.array([3])), whole(gpt, [1, 2, 3], 2))


def test_what_was_generated_has_the_score_that_it_was_generated_with(gpt, translator):
    prompts = [[1, 2, 3], [5], []]
    made = gpt.generate(prompts, max_new_tokens=5, return_dict=True)
    scored = gpt.score(prompts, made["token_ids"], return_dict=True)
    assert scored["token_ids"] == made["token_ids"]
    tools.assert_close(scored["scores"], made["scores"])
    sources = [[5, 6, 7], [3], [9, 9, 8, 1]]
    made = translator.generate(sources, return_dict=True)
    ended = made["lengths"] < translator.max_sequence_length
    scored = translator.score(sources, made["token_ids"], return_dict=True)
    assert ended.any()
    tools.assert_close(scored["scores"][ended], made["scores"][ended])


def test_the_form_of_what_is_returned(gpt):
    one = gpt.score([1, 2, 3])
    assert isinstance(one, np.ndarray) and one.shape == (3,)
    many = gpt.score([[1, 2, 3]])
    assert isinstance(many, list) and len(many) == 1
    np.testing.assert_array_equal(many[0], one)
    assert gpt.score([]) == [] == gpt.score([], [])
    result = gpt.score([[1, 2], [3]], return_dict=True)
    assert set(result) == {"token_ids", "log_likelihoods", "lengths", "scores"}
    assert result["token_ids"] == [[1, 2], [3]] and list(result["lengths"]) == [2, 1]
    tools.assert_close(result["scores"], [row.sum() for row in result["log_likelihoods"]])
    assert gpt.score([], return_dict=True)["log_likelihoods"] == []


def test_text_has_the_tokens_that_generate_sees(text_gpt):
    start = text_gpt.start_token_id
    text = list(b"the fox")
    tools.assert_close(text_gpt.score("the fox"), whole(text_gpt, [start, *text], 1))
    expected = [whole(text_gpt, text, 4), whole(text_gpt, [start, *text], 1)]
    tools.assert_close(text_gpt.score(["the ", ""], ["fox", "the fox"]), expected)


def test_the_border_of_a_continuation():
    tokenizer = ktx.data.train_tokenizer(["ab ab ab abc"] * 9, vocabulary_size=264)
    gpt = tools.make_gpt(vocabulary_size=None, tokenizer=tokenizer)
    joined, ab, a, b = tokenizers.encode(tokenizer, ["abab", "ab", "a", "b"])
    assert len(ab) == 1 and joined[:1] == ab  # and the border of a, b is inside a token
    result = gpt.score(["ab", "a"], ["ab", "b"], return_dict=True)
    assert result["token_ids"] == [joined[1:], b]
    tools.assert_close(result["log_likelihoods"][1], whole(gpt, a + b, len(a)))


def targets_alone(model, source, targets):
    inputs = {
        "source_ids": np.zeros((1, 9 if model.source_pad_token_id == 0 else len(source)), "int32"),
        "target_ids": np.zeros((1, 11), "int32"),
    }
    inputs["source_ids"][0, : len(source)] = source
    inputs["target_ids"][0, : len(targets)] = [model.start_token_id, *targets[:-1]]
    return log_softmax(forward(model)(inputs))[0][np.arange(len(targets)), targets]


@pytest.mark.parametrize("changes", [{}, {"attention": None, "num_layers": 2}])
def test_targets_are_scored_given_sources(changes):
    model = make_translator(**changes)
    sources, targets = [[5, 6, 7], [3], [9] * 9], [[4, 12], [], [7] * 10]
    found = model.score(sources, targets)
    expected = [targets_alone(model, s, [*t, 2]) for s, t in zip(sources, targets, strict=True)]
    tools.assert_close(found, expected)
    tools.assert_close(model.score(sources[0], targets[0]), expected[0])
    written = model.score(sources, [[*row, 2] for row in targets])  # the end token, once
    tools.assert_close(written, expected)


def test_sources_are_padded_where_no_id_is_padding():
    model = make_translator(pad_token_id=None, end_token_id=None)
    sources, targets = [[5, 6, 0], [0]], [[4, 12], [0, 3]]
    expected = [targets_alone(model, s, t) for s, t in zip(sources, targets, strict=True)]
    tools.assert_close(model.score(sources, targets), expected)


def test_logits_exist_a_chunk_at_a_time(gpt, backend, monkeypatch):
    expected = gpt.score(TEXTS)
    small = tools.make_gpt("rotary", start_token_id=START)
    monkeypatch.setattr(text_scoring, "CHUNK", 9 * tools.VOCABULARY)
    seen, logits = [], small._logits
    small._logits = lambda states: (seen.append(tuple(states.shape)), logits(states))[1]
    tools.assert_close(small.score(TEXTS), expected, 1e-6)
    assert {rows for _, rows, _ in seen} == {8}
    assert len(seen) == (4 * 32 // 8 if backend == "torch" else 1)


def test_one_trace_serves_a_bucket(backend):
    if backend == "torch":
        return  # PyTorch runs eagerly: it traces nothing
    gpt = tools.make_gpt(num_layers=1, start_token_id=START)
    count, read = [], gpt._hidden_states
    gpt._hidden_states = lambda *arguments: (count.append(1), read(*arguments))[1]
    for text in ([1], [1, 2, 3], [4] * 8):
        gpt.score(text)
        gpt.score([3], text)
    before = gpt.score([5, 6])
    assert len(count) == 1
    gpt.set_weights([2 * weight for weight in gpt.get_weights()])
    assert not np.allclose(gpt.score([5, 6]), before)
    assert len(count) == 1
    gpt.score([4] * 9)
    assert len(count) == 2
    gpt.score([[4], [5], [6]])
    gpt.score([[4], [5], [6], [7] * 7])
    assert len(count) == 3


def test_choices_are_ranked(gpt, translator):
    prompt, choices = [1, 2, 3], [[4], [5, 6, 7], [7, 7], [4]]
    sums = [gpt.score(prompt, choice).sum(dtype="float64") for choice in choices]
    for penalty in (0.0, 0.6, 1.0):
        scores = [s / len(c) ** penalty for s, c in zip(sums, choices, strict=True)]
        found = gpt.rank(prompt, choices, length_penalty=penalty)
        assert [choice for choice, _ in found] == [
            choices[place] for place in sorted(range(4), key=lambda place: -scores[place])
        ]
        tools.assert_close([score for _, score in found], sorted(scores, reverse=True))
    assert gpt.rank([], [[4], [5]])[0][1] == max(gpt.score([[], []], [[4], [5]]))[0]
    assert gpt.rank([1], []) == []
    assert [score for _, score in gpt.rank([1], [[4, 5], [6, 7]], length_penalty=1e300)] == [0, 0]
    assert len(gpt.rank([1], (ops.convert_to_tensor([token]) for token in (4, 5)))) == 2
    (best, score), (_, other) = translator.rank([5, 6], [[4, 4], [3]])
    tools.assert_close(score, translator.score([5, 6], best).sum())
    assert score > other


def test_texts_are_ranked(text_gpt):
    assert text_gpt.rank("the ", []) == []
    ranked = text_gpt.rank("the ", ["fox", "ox", "dog"])
    assert {choice for choice, _ in ranked} == {"fox", "ox", "dog"}
    choice, score = ranked[0]
    tools.assert_close(score, text_gpt.score("the ", choice).sum())


def naive_perplexity(gpt, tokens, stride):
    """Each token in the first window that reaches it, one window at a time."""
    window, scores, begin = gpt.max_sequence_length, [], 0
    while len(scores) < len(tokens) - 1:
        ids = tokens[begin : begin + window]
        scores += list(whole(gpt, ids, len(scores) + 1 - begin))
        begin += stride
    return np.exp(-np.mean(scores))


@pytest.mark.parametrize("stride", [1, 5, None, 16])
def test_perplexity_slides_a_window(gpt, stride):
    tokens = list(tools.tokens(53))
    found = gpt.perplexity(tokens, stride=stride, verbose=0)
    assert type(found) is float
    expected = naive_perplexity(gpt, [START, *tokens], stride or 8)
    tools.assert_close(found, expected)


def test_perplexity_of_a_short_text_is_that_of_its_scores(gpt, text_gpt):
    expected = np.exp(-gpt.score([1, 2, 3, 4]).mean())
    tools.assert_close(gpt.perplexity([1, 2, 3, 4]), expected)
    tools.assert_close(text_gpt.perplexity("the fox"), np.exp(-text_gpt.score("the fox").mean()))
    without = tools.make_gpt()
    tools.assert_close(without.perplexity([1, 2]), np.exp(-without.score([1, 2])[0]))


def test_perplexity_is_that_of_transformers():
    import torch

    from tests.oracles.reference import reference

    case = reference("GPT-2")
    gpt = weights.build(case.config)
    weights.assign(gpt, case.state, case.config)
    window, stride = gpt.max_sequence_length, 5
    tokens, total, count, last = list(map(int, tools.tokens(47))), 0.0, 0, 0
    for begin in range(0, len(tokens), stride):  # as in its guide to perplexity
        end = min(begin + window, len(tokens))
        ids = torch.tensor([tokens[begin:end]])
        with torch.no_grad():
            logits = case.model(ids).logits[0].double().log_softmax(-1).numpy()
        for place in range(max(1, last - begin), end - begin):
            total += logits[place - 1, tokens[begin + place]]
            count += 1
        last = end
        if end == len(tokens):
            break
    assert count == len(tokens) - 1
    gpt.start_token_id = None
    tools.assert_close(gpt.perplexity(tokens, stride=stride, verbose=0), np.exp(-total / count))


def test_progress_is_shown_for_many_batches(gpt, capsys):
    gpt.perplexity(list(tools.tokens(53)), batch_size=8)
    assert not capsys.readouterr().out
    gpt.perplexity(list(tools.tokens(53)), batch_size=2)
    assert "3/3" in capsys.readouterr().out
    gpt.score([[1]] * 3, batch_size=2, verbose=0)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda g: g.score([1] * 18), "at most 18 tokens.*Received: 19. Use `perplexity`"),
        (lambda g: g.score([1] * 9, [1] * 10), "at most 18 tokens long.*Received: 19"),
        (lambda g: g.score([1, 13]), "must be from 0 to 12. Received: from 1 to 13"),
        (lambda g: g.score([[1], [2]], [[1]]), "one continuation for each prompt.*2 prompts, 1"),
        (lambda g: g.score([1], [[1]]), "both alone or both in lists"),
        (lambda g: g.score([1], 7), "`continuations` must be text, a list of texts.*int"),
        (lambda g: g.score("fox"), "has no tokenizer"),
        (lambda g: g.score([1], batch_size=0), "`batch_size` must be a positive integer"),
        (lambda g: g.rank([[1], [2]], [[1]]), "`prompt` must be one text, or one list of ids"),
        (lambda g: g.rank([1], [1, 2]), "`choices` must be a list"),
        (lambda g: g.rank([1], [[1], []]), "must have a token"),
        (lambda g: g.rank([1], 5), "`choices` must be text, a list.*Received: int"),
        (lambda g: g.rank([1], None), "`choices` must be text, a list.*Received: NoneType"),
        (lambda g: g.rank([1], [[1]], length_penalty="x"), "`length_penalty` must be a number"),
        (lambda g: g.perplexity([1, 2], stride=0), "`stride` must be from 1 to 16"),
        (lambda g: g.perplexity([1, 2], stride=17), "`stride` must be from 1 to 16"),
        (lambda g: g.perplexity([[1], [2]]), "must be one text, or one list of ids. Received: 2"),
        (lambda g: g.perplexity([]), "needs 1 or more"),
    ],
)
def test_errors(gpt, call, message):
    with pytest.raises(ValueError, match=message):
        call(gpt)


def test_errors_of_models_without_a_start_token(translator):
    gpt = tools.make_gpt()
    with pytest.raises(ValueError, match="no start token to stand for it"):
        gpt.score([[]], [[1]])
    with pytest.raises(ValueError, match="needs 2 or more"):
        gpt.perplexity([1])
    with pytest.raises(ValueError, match="scores targets given sources"):
        translator.score([[1]])
    with pytest.raises(ValueError, match="which token stands before a target"):
        make_translator(start_token_id=None).score([[1]], [[1]])


def test_text_and_ids_are_not_mixed(text_gpt):
    with pytest.raises(ValueError, match="must both be text, or both be ids"):
        text_gpt.score("fox", [1])
    with pytest.raises(ValueError, match="`choices` must be a list.*'fox'"):
        text_gpt.rank("the ", "fox")
