"""`generate`: what goes in, what comes out, and that neighbours and padding change nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_tx as ktx
from tests.models import tools

PROMPTS = [[], [5], [1, 2, 3, 4, 5, 6, 7], [12, 0, 12], [9] * 11]


@pytest.fixture(scope="module")
def gpt():
    return tools.make_gpt("rotary", start_token_id=2)


@pytest.fixture(scope="module")
def naive(gpt):
    return make_naive(gpt)


@pytest.fixture(scope="module")
def text_gpt():
    tokenizer = ktx.data.train_tokenizer([], kind="byte")
    return tools.make_gpt(vocabulary_size=None, max_sequence_length=31, tokenizer=tokenizer)


def make_naive(gpt):
    """Greedy continuation by the whole model on the growing sequence, of one fixed shape."""
    forward = tools.forward(gpt)

    def naive(prompt, limit, end_token_id=None):
        sequence = list(prompt) or [gpt.start_token_id]
        new, score = [], 0.0
        for _ in range(min(limit, gpt.max_sequence_length - len(sequence))):
            # What stands behind the sequence changes nothing before it.
            padded = np.zeros((1, gpt.max_sequence_length), "int32")
            padded[0, : len(sequence)] = sequence
            logits = forward(padded)[0, len(sequence) - 1].astype("float64")
            token = int(logits.argmax())
            score += logits[token] - np.log(np.exp(logits).sum())
            if token == end_token_id:
                break
            sequence, new = [*sequence, token], [*new, token]
        return new, score

    return naive


def test_a_batch_equals_each_row_alone_and_the_whole_model(gpt, naive):
    together = gpt.generate(PROMPTS, max_new_tokens=6, return_dict=True)
    assert set(together) == {"token_ids", "lengths", "scores"}
    for row, prompt in enumerate(PROMPTS):
        expected, score = naive(prompt, 6)
        assert together["token_ids"][row] == expected
        assert together["lengths"][row] == 6
        tools.assert_close(together["scores"][row], score)
        alone = gpt.generate([prompt], max_new_tokens=6, return_dict=True)
        assert alone["token_ids"] == [expected]
        tools.assert_close(alone["scores"][0], score)


def test_without_a_limit_it_stops_where_the_context_ends(gpt, naive):
    rows = gpt.generate(PROMPTS)
    assert [len(row) for row in rows] == [16, 16, 10, 14, 6]
    assert rows[4] == naive(PROMPTS[4], 99)[0]
    assert gpt.generate(PROMPTS, max_new_tokens=99) == rows
    assert [len(row) for row in gpt.generate(PROMPTS, max_new_tokens=np.int64(7))] == [7] * 4 + [6]
    full = [1] * (tools.LENGTH - 1)
    assert len(gpt.generate(full)) == 1


def test_an_end_token_ends_a_row_and_is_not_in_it(gpt, naive):
    free = gpt.generate(PROMPTS, max_new_tokens=6)
    end = free[2][3]
    ended = tools.make_gpt("rotary", start_token_id=2, end_token_id=end)
    result = ended.generate(PROMPTS, max_new_tokens=6, return_dict=True)
    for row, prompt in enumerate(PROMPTS):
        expected, score = naive(prompt, 6, end)
        assert result["token_ids"][row] == expected
        assert result["lengths"][row] == len(expected)
        tools.assert_close(result["scores"][row], score)
    assert min(result["lengths"]) < 6


def test_another_end_token_is_another_program():
    gpt = tools.make_gpt()
    free = gpt.generate([5, 6], max_new_tokens=6)
    gpt.end_token_id = free[2]
    assert gpt.generate([5, 6], max_new_tokens=6) == free[: free.index(free[2])]


def test_what_goes_in_comes_out(gpt):
    new = gpt.generate([1, 2, 3], max_new_tokens=4)
    assert len(new) == 4 and all(type(token) is int for token in new)
    assert gpt.generate([[1, 2, 3]], max_new_tokens=4) == [new]
    assert gpt.generate((1, 2, 3), max_new_tokens=4) == new
    assert gpt.generate(np.array([1, 2, 3]), max_new_tokens=4) == new
    assert gpt.generate(np.array([[1, 2, 3]]), max_new_tokens=4) == [new]
    assert gpt.generate(ops.convert_to_tensor([[1, 2, 3]]), max_new_tokens=4) == [new]
    assert gpt.generate(tf.constant([[1, 2, 3]]), max_new_tokens=4) == [new]
    assert gpt.generate([np.array([1, 2, 3])], max_new_tokens=4) == [new]
    assert gpt.generate([]) == [] == gpt.generate([], stop="x")
    nothing = gpt.generate([], return_dict=True)
    assert {name: len(value) for name, value in nothing.items()} == dict.fromkeys(nothing, 0)
    begun = gpt.generate([2], max_new_tokens=4)
    assert gpt.generate([[]], max_new_tokens=4) == [begun]
    for no_ids in (np.zeros(0, "int64"), tf.constant([], "int32"), ops.zeros((0,), "int32")):
        assert gpt.generate(no_ids, max_new_tokens=4) == begun


def test_padding_behind_a_prompt_is_no_part_of_it():
    gpt = tools.make_gpt(pad_token_id=0)
    rows = gpt.generate(np.array([[1, 2, 3, 0, 0], [1, 2, 3, 4, 5]]), max_new_tokens=4)
    assert rows[0] == gpt.generate([1, 2, 3], max_new_tokens=4)


def test_without_a_padding_id_0_is_a_word(gpt, naive):
    assert gpt.generate([1, 2, 3, 0, 0], max_new_tokens=6) == naive([1, 2, 3, 0, 0], 6)[0]


def test_text_goes_in_and_comes_out(text_gpt):
    new = text_gpt.generate("fox", max_new_tokens=9)
    assert isinstance(new, str)
    texts = text_gpt.generate(["fox", "", "the quick"], max_new_tokens=9)
    assert texts[0] == new and len(texts) == 3
    result = text_gpt.generate(["fox"], max_new_tokens=9, return_dict=True)
    assert list(result) == ["text", "token_ids", "lengths", "scores"] and result["text"] == [new]
    assert list(text_gpt.generate([], return_dict=True)) == list(result)
    single = text_gpt.generate("fox", max_new_tokens=9, return_dict=True)
    assert single["text"] == [new]


@pytest.mark.parametrize("stop", ["", ["x", ""], 3, [3], [None]])
def test_a_stop_that_is_no_text(text_gpt, stop):
    with pytest.raises(ValueError, match="`stop` must be text or a list of texts, none of them em"):
        text_gpt.generate("fox", stop=stop)


def test_stop_cuts_the_text(text_gpt):
    text = text_gpt.generate("fox", max_new_tokens=20)
    assert len(text) > 5
    stop = text[4]
    assert text_gpt.generate("fox", max_new_tokens=20, stop=stop) == text[: text.index(stop)]
    stops = [text[4:6], "never there", text[2:4]]
    cut = min(text.index(stops[0]), text.index(stops[2]))
    assert text_gpt.generate(["fox"], max_new_tokens=20, stop=stops) == [text[:cut]]


def test_generation_follows_the_weights():
    gpt = tools.make_gpt()
    gpt.compile(keras.optimizers.SGD(0.5))
    seen = []

    class Generate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(self.model.generate([1, 2, 3], max_new_tokens=6, return_dict=True))

    before = gpt.generate([1, 2, 3], max_new_tokens=6, return_dict=True)
    x = tools.tokens(4, 7)
    gpt.fit(x, np.roll(x, -1, 1), epochs=2, verbose=0, callbacks=[Generate()])
    scores = [float(result["scores"][0]) for result in (before, *seen)]
    assert len(set(scores)) == 3
    expected, score = make_naive(gpt)([1, 2, 3], 6)
    assert seen[-1]["token_ids"] == [expected]
    tools.assert_close(seen[-1]["scores"][0], score)
    copy = keras.models.clone_model(gpt)
    copy.set_weights(gpt.get_weights())
    assert copy.generate([1, 2, 3], max_new_tokens=6) == expected


@pytest.mark.parametrize("variant", [*sorted(tools.GPT_VARIANTS), "pad"])
def test_a_traced_step_is_the_step(variant, backend, monkeypatch):
    if backend != "torch":
        return  # the others trace the whole loop
    from keras_tx.kernels import torch as torch_kernels

    changes = {"pad_token_id": 0} if variant == "pad" else {}
    gpt = tools.make_gpt("rotary" if variant == "pad" else variant, **changes)
    prompts, steps = [[1], [2, 3], [4] * 5], []
    run = torch_kernels._TracedBody.__call__
    monkeypatch.setattr(
        torch_kernels._TracedBody, "__call__", lambda *x: (steps.append(1), run(*x))[1]
    )

    def both():
        """Traced, and step by step."""
        traced = gpt.generate(prompts, return_dict=True)
        with monkeypatch.context() as patch:
            patch.setattr(torch_kernels, "EAGER_STEPS", 99)
            gpt.__dict__.pop("_programs")
            return traced, gpt.generate(prompts, return_dict=True)

    monkeypatch.setattr(torch_kernels, "EAGER_STEPS", 0)
    for _ in range(2):
        traced, eager = both()
        assert traced["token_ids"] == eager["token_ids"]
        tools.assert_close(traced["scores"], eager["scores"])
        gpt.set_weights([1.5 * weight for weight in gpt.get_weights()])
    assert len(steps) > 20


def test_a_trace_sees_other_weights(backend, monkeypatch):
    if backend != "torch":
        return  # as above
    gpt = tools.make_gpt()
    before = gpt.generate([1, 2, 3], return_dict=True)["scores"]
    weights = gpt.get_weights()
    gpt.set_weights([1.5 * weight for weight in weights])
    other = gpt.generate([1, 2, 3], return_dict=True)["scores"]
    gpt.set_weights(weights)
    assert other[0] != before[0]
    assert gpt.generate([1, 2, 3], return_dict=True)["scores"] == before


@pytest.mark.parametrize("ask", ["item", "tolist", "numpy", "mask", "nonzero"])
def test_a_rule_that_asks_for_values_is_run_at_each_step(gpt, backend, monkeypatch, ask):
    if backend != "torch":
        return  # the others have no values to give
    from keras_tx.kernels import torch as torch_kernels

    how_long = {
        "item": lambda tokens: (tokens[0] >= 0).sum().item(),
        "tolist": lambda tokens: sum(token >= 0 for token in tokens[0].tolist()),
        "numpy": lambda tokens: int((ops.convert_to_numpy(tokens[0]) >= 0).sum()),
        "mask": lambda tokens: len(tokens[0][tokens[0] >= 0]),
        "nonzero": lambda tokens: len((tokens[0] >= 0).nonzero()),
    }[ask]

    def count(logits, tokens, step):
        return ops.where(ops.equal(ops.arange(logits.shape[-1]), how_long(tokens)), 99.0, logits)

    monkeypatch.setattr(torch_kernels, "EAGER_STEPS", 0)
    rows = gpt.generate([[0, 0]], strategy=ktx.decoding.Greedy(rules=[count]), max_new_tokens=6)
    assert rows == [[2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize("ask", ["unique", "where", "format"])
def test_a_rule_whose_sizes_depend_on_values_runs_as_it_is(gpt, ask, backend, monkeypatch):
    if backend != "torch":
        return  # elsewhere such a rule cannot be compiled
    import torch

    from keras_tx.kernels import torch as torch_kernels

    def rule(logits, tokens, step):
        here = tokens[0] >= 0
        count = {
            "unique": lambda: len(torch.unique(torch.cumsum(here, 0) * here)) - 1,
            "where": lambda: len(torch.where(here)[0]),
            "format": lambda: int(f"{here.sum()}"),
        }[ask]()
        return ops.where(ops.equal(ops.arange(logits.shape[-1]), count), 99.0, logits)

    monkeypatch.setattr(torch_kernels, "EAGER_STEPS", 0)
    rows = gpt.generate([[0, 0]], strategy=ktx.decoding.Greedy(rules=[rule]), max_new_tokens=6)
    assert rows == [[2, 3, 4, 5, 6, 7]]


def test_one_trace_serves_a_bucket(backend):
    if backend == "torch":
        return  # PyTorch runs eagerly: it traces nothing
    gpt = tools.make_gpt(num_layers=1, start_token_id=2)
    count, start = [], gpt.start
    gpt.start = lambda *arguments: (count.append(1), start(*arguments))[1]
    for prompt in ([1], [1, 2, 3], [4] * 8):
        gpt.generate(prompt, max_new_tokens=3)
        gpt.generate(prompt, max_new_tokens=7)
    gpt.set_weights([2 * weight for weight in gpt.get_weights()])
    gpt.generate([5, 6], max_new_tokens=8)
    assert len(count) == 1
    gpt.generate([4] * 9, max_new_tokens=3)
    assert len(count) == 2
    gpt.generate([[4], [5], [6]], max_new_tokens=3)
    gpt.generate([[4], [5], [6], [7] * 7], max_new_tokens=3)
    assert len(count) == 3


@pytest.mark.parametrize(
    "prompts, arguments, message",
    [
        ([1] * 17, {}, "leaves no room.*at most 16 of its 17 tokens.*larger max_sequence_length"),
        ([1, 13], {}, "must be from 0 to 12. Received: from 1 to 13"),
        ([[1], [-1]], {}, "must be from 0 to 12. Received: from -1 to -1"),
        ([1.5], {}, "integers alone.*Received a list of: float"),
        ([1, "a"], {}, "Received a list of: id, text"),
        ([[1, 2.0]], {}, "must hold integers alone. Received: .1, 2.0."),
        (7, {}, "must be text, a list of texts, ids.*Received: int"),
        ("fox", {}, "has no tokenizer: give ids, or build the model with `tokenizer=`"),
        ([1], {"max_new_tokens": 0}, "`max_new_tokens` must be a positive integer. Received: 0"),
        ([1], {"max_new_tokens": 2.5}, "must be a positive integer. Received: 2.5"),
        ([1], {"stop": "x"}, "`stop` is text"),
        ([1], {"strategy": "best"}, "`strategy` must be"),
    ],
)
def test_errors(gpt, prompts, arguments, message):
    with pytest.raises(ValueError, match=message):
        gpt.generate(prompts, **arguments)


def test_an_empty_prompt_needs_a_start_token():
    with pytest.raises(ValueError, match="no start token to stand for it.*`start_token_id=`"):
        tools.make_gpt().generate([[]])
