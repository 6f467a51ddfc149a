"""`generate` with strategies: seeds, parameters for each row, one program for all of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_tx as ktx
from keras_tx.decoding import Beam, Greedy, Sample, Speculative
from keras_tx.models import programs
from tests.models import tools

PROMPTS = [[], [5], [1, 2, 3, 4, 5, 6, 7], [12, 0, 12], [9] * 11]


@pytest.fixture(scope="module")
def gpt():
    return tools.make_gpt("rotary", start_token_id=2)


def test_a_drawn_row_is_the_same_alone(gpt):
    arguments = {"strategy": Sample(1.5, top_p=0.9), "max_new_tokens": 6}
    together = gpt.generate(PROMPTS, seed=[7, 8, 9, 10, 2**31 + 5], **arguments)
    assert together[1:3] == gpt.generate(PROMPTS[1:3], seed=[8, 9], **arguments)
    assert together[4:] == gpt.generate(PROMPTS[4:], seed=2**31 + 5, **arguments)
    assert together[:4] == gpt.generate(PROMPTS[:4], seed=7, **arguments)
    assert together[:4] == gpt.generate(PROMPTS[:4], seed=7, batch_size=2, verbose=0, **arguments)
    others = gpt.generate(PROMPTS[:4], seed=8, **arguments)
    assert others != together[:4]


def test_seeds_of_any_size_and_kind(gpt):
    arguments = {"strategy": Sample(1.5), "max_new_tokens": 6}
    expected = gpt.generate(PROMPTS[:2], seed=[3, 4], **arguments)
    for seed in (2**80 + 3, 3 - 2**64, np.uint64(2**63 + 3), np.array(3), [2**70 + 3, np.int8(4)]):
        assert gpt.generate(PROMPTS[:2], seed=seed, **arguments) == expected


def test_without_a_seed_the_draws_differ_and_follow_the_global_one(gpt):
    arguments = {"strategy": Sample(3.0), "max_new_tokens": 9}
    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        drawn.append([gpt.generate([1, 2], **arguments) for _ in range(3)])
    assert drawn[0] == drawn[1]
    assert len({tuple(row) for row in drawn[0]}) == 3


def test_parameters_are_each_rows_own(gpt):
    mixed = Sample(
        [1.0, 0.0, 2.0, 1.0, 1.0],
        top_k=[0, 0, 1, 0, 2],
        repetition_penalty=[1.0, 1.0, 1.0, 5.0, 1.0],
        banned_tokens=[[], [], [], [], [10, 6]],
        forced_tokens=[[4, None, 5], [], [], [], []],
    )
    rows = gpt.generate(PROMPTS, strategy=mixed, max_new_tokens=6, seed=1)
    greedy = gpt.generate(PROMPTS, max_new_tokens=6)
    assert rows[1:3] == greedy[1:3]
    assert rows[0][0] == 4 and rows[0][2] == 5
    assert not {10, 6} & set(rows[4])
    alone = Sample(top_k=2, banned_tokens=[10, 6])
    assert rows[4] == gpt.generate(PROMPTS[4], strategy=alone, max_new_tokens=6, seed=5)
    parts = gpt.generate(PROMPTS, strategy=mixed, max_new_tokens=6, seed=1, batch_size=2, verbose=0)
    assert parts == rows


def test_one_trace_serves_all_parameters_and_one_those_without_rules(backend):
    if backend == "torch":
        return  # PyTorch runs eagerly: it traces nothing
    gpt = tools.make_gpt(num_layers=1, end_token_id=1)
    count, start = [], gpt.start
    gpt.start = lambda *arguments, **more: (count.append(1), start(*arguments, **more))[1]
    for strategy in (Sample(), Sample(0.3, top_k=3, top_p=0.5, min_p=0.1, typical_p=0.5)):
        gpt.generate([[4, 5], [6]], strategy=strategy, max_new_tokens=6, seed=len(count))
    assert len(count) == 1
    for strategy in (
        Sample(repetition_penalty=1.0),
        Sample(0.3, top_k=3, top_p=0.5, repetition_penalty=2.0, frequency_penalty=1.0),
        Sample(presence_penalty=[-1.0, 0.0]),
        Sample([0.5, 2.0], no_repeat_ngram_size=[1, 3], min_new_tokens=4),
        Sample(banned_tokens=[1, 2, 3], forced_tokens=[5, None, 6]),
    ):
        gpt.generate([[4, 5], [6]], strategy=strategy, max_new_tokens=6, seed=len(count))
    assert len(count) == 2
    for strategy in (Beam(3), Beam(3, length_penalty=0.5, early_stopping=True)):
        gpt.generate([[4, 5], [6]], strategy=strategy, max_new_tokens=6)
    assert len(count) == 3


def test_a_draft_of_the_same_shape_keeps_its_weights(monkeypatch):
    monkeypatch.setattr(ktx.GPT, "prefill_chunk", 2)
    if keras.backend.backend() == "torch":
        monkeypatch.setattr("keras_tx.kernels.torch.EAGER_STEPS", 0)
    gpt = tools.make_gpt(num_layers=1)
    draft = tools.randomize(ktx.GPT(**tools.gpt_arguments(num_layers=1)), seed=77)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    expected = gpt.generate(prompt, max_new_tokens=8)
    strategy = Speculative(draft)
    for _ in range(2):
        assert gpt.generate(prompt, strategy=strategy, max_new_tokens=8) == expected


class Only:
    """A rule that has no hash, and says that it equals all others."""

    def __init__(self, token):
        self.token = token

    def __eq__(self, other):
        return True

    def __call__(self, logits, tokens, step):
        return ops.where(ops.equal(ops.arange(logits.shape[-1]), self.token), logits, -np.inf)


def test_a_rule_without_a_hash_is_none_but_itself(gpt):
    rules = [Only(3), Only(4), Only(3)]
    found = [gpt.generate([1], strategy=Greedy(rules=[r]), max_new_tokens=2) for r in rules]
    assert found == [[3, 3], [4, 4], [3, 3]]


def test_programs_are_forgotten(monkeypatch):
    gpt = tools.make_gpt(num_layers=1)
    monkeypatch.setattr(programs, "MOST", 3)
    made = []

    def made_for(*keys):
        made.clear()
        for key in keys:
            programs.program(gpt, key, lambda key=key: made.append(key))
        return made

    assert made_for(1, 2, 3, 1, 4) == [1, 2, 3, 4]
    assert made_for(1, 3, 4) == [] and made_for(2) == [2]  # which was not used for longest
    gpt.set_weights([2 * weight for weight in gpt.get_weights()])
    assert made_for(2) == []
    gpt.quantize("int8")
    assert made_for(2) == [2]


def test_a_draft_changes_no_greedy_text(gpt):
    draft = tools.make_gpt("learned", num_layers=1, start_token_id=2)
    for strategy in (Speculative(draft, 3), Speculative(gpt, 2)):
        result = gpt.generate(PROMPTS, strategy=strategy, return_dict=True)
        expected = gpt.generate(PROMPTS, return_dict=True)
        assert result["token_ids"] == expected["token_ids"]
        tools.assert_close(result["scores"], expected["scores"])
    assert (result["accepted_tokens"] == result["drafted_tokens"]).all()  # its own guesses


def test_a_draft_is_in_the_configuration():
    draft = tools.make_gpt(num_layers=1)
    strategy = Speculative(draft, 3, strategy=Sample(0.5, top_k=3))
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(strategy))
    assert again.get_config() == strategy.get_config()
    assert (again.num_draft_tokens, again.strategy.top_k) == (3, 3)
    assert again.draft.count_params() == draft.count_params()


def test_a_draft_of_another_vocabulary(gpt):
    draft = tools.make_gpt(vocabulary_size=12, num_layers=1, start_token_id=2)
    with pytest.raises(ValueError, match="12 tokens, the model 13"):
        gpt.generate([1], strategy=Speculative(draft))


def test_a_model_that_cannot_go_back_takes_no_guesses(gpt):
    model = ktx.Seq2Seq(13, hidden_dim=4, start_token_id=1, end_token_id=2)
    with pytest.raises(ValueError, match="The model must have.*Seq2Seq, without extend, rewind"):
        model.generate([3], strategy=Speculative(gpt))


def test_beams_of_a_recurrent_model_bring_their_attention():
    model = tools.randomize(
        ktx.Seq2Seq(13, hidden_dim=7, pad_token_id=0, start_token_id=1, end_token_id=2)
    )
    sources = [[5, 6, 7], [8], [5, 5, 5, 5, 6]]
    strategy = Beam(3, num_results=2)
    result = model.generate(sources, strategy=strategy, max_new_tokens=5, return_dict=True)
    assert result["attention_scores"].shape == (3, 2, result["lengths"].max(), 5)
    source = sources[2]
    for place, new in enumerate(result["token_ids"][2]):
        target = [model.start_token_id, *new]
        inputs = {"source_ids": np.array([source]), "target_ids": np.array([target])}
        _, scores = model(inputs, return_attention_scores=True)
        seen = ops.convert_to_numpy(scores["attention"])[0, 0, : len(new)]
        tools.assert_close(result["attention_scores"][2, place, : len(new)], seen)
    alone = model.generate(source, strategy=strategy, max_new_tokens=5)
    assert alone == result["token_ids"][2]


def test_prompts_in_all_forms(gpt):
    rows = [[1, 2, 3], [4], [5, 6]]
    expected = gpt.generate(rows, max_new_tokens=4)

    def same(prompts):
        return gpt.generate(prompts, max_new_tokens=4, verbose=0) == expected

    assert same(tf.ragged.constant(rows))
    assert same(tf.data.Dataset.from_tensor_slices(tf.ragged.constant(rows)))
    assert same(tf.data.Dataset.from_tensor_slices(tf.ragged.constant(rows)).batch(2))
    assert same(iter(rows)) and same(np.array(row) for row in rows)
    assert same([ops.convert_to_tensor(row) for row in rows])
    assert same([[np.int64(token) for token in row] for row in rows])
    tokens = [ops.convert_to_tensor(token) for token in rows[0]]
    assert gpt.generate(tokens, max_new_tokens=4) == expected[0]
    with pytest.raises(ValueError, match="a row of ids, in each element.*Received: 1"):
        gpt.generate(tf.data.Dataset.from_tensor_slices([1, 2]))
    padded = np.array([[1, 2, 3], [4, 4, 4]])
    assert gpt.generate(tf.data.Dataset.from_tensor_slices(padded), max_new_tokens=4) == (
        gpt.generate(padded, max_new_tokens=4)
    )


def test_texts_in_all_forms():
    tokenizer = ktx.data.train_tokenizer([], kind="byte")
    gpt = tools.make_gpt(vocabulary_size=None, max_sequence_length=31, tokenizer=tokenizer)
    texts = ["fox", "", "the quick"]
    expected = gpt.generate(texts, max_new_tokens=4)
    data = tf.data.Dataset.from_tensor_slices(texts)
    for prompts in (data, data.batch(2), np.array(texts), tf.constant(texts), iter(texts)):
        assert gpt.generate(prompts, max_new_tokens=4) == expected
    assert gpt.generate(b"fox", max_new_tokens=4) == expected[0]
    with pytest.raises(ValueError, match="texts or ids alone. Received elements of type dict"):
        gpt.generate(data.map(lambda text: {"text": text}))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"seed": [1, 2]}, "`seed` must be an integer, or one for each of the 5 prompts"),
        ({"seed": 1.5}, "`seed` must be an integer"),
        ({"seed": True}, "`seed` must be an integer"),
        ({"seed": [[1], [1, 2]]}, "`seed` must be an integer"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer. Received: 0"),
        ({"strategy": Sample([1.0, 2.0])}, "one for each of the 5"),
        ({"strategy": Greedy(banned_tokens=[13])}, "ids from 0 to 12"),
        ({"max_new_tokens": True}, "must be a positive integer. Received: True"),
    ],
)
def test_errors(gpt, arguments, message):
    with pytest.raises(ValueError, match=message):
        gpt.generate(PROMPTS, **arguments)
