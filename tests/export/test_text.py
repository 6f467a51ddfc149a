"""Published models that generate: text in, text out, as `generate` says."""

import keras
import numpy as np
import pytest

import keras_tx as ktx
from keras_tx.export import publish, text
from tests.serving_session import serve, signatures

backend = keras.backend.backend()
on_tensorflow = pytest.mark.skipif(
    backend != "tensorflow",
    reason="the artefact is made on TensorFlow; the last two tests make it from other backends",
)
LENGTH, NEW = 47, 13
TEXTS = ["", "The first", "déjà vu", "x" * (LENGTH - 1), "日本", "a\x00b\n", "The first"]
TOO_LONG = ["y" * LENGTH, "z" * 1000]


def decided(model):
    """The model with weights under which prompts and places get different tokens."""
    random = np.random.default_rng(2)
    model.set_weights([w + 0.5 * random.standard_normal(w.shape) for w in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def gpt():
    sizes = {"num_layers": 1, "hidden_dim": 24, "num_heads": 3, "max_sequence_length": LENGTH}
    tokenizer = ktx.data.train_tokenizer([], kind="byte")
    return decided(ktx.GPT(tokenizer=tokenizer, **sizes))


@pytest.fixture(scope="module")
def published(gpt, tmp_path_factory):
    return publish(gpt, tmp_path_factory.mktemp("gpt"), max_new_tokens=NEW)


def ask(path, texts, text_ops=False):
    answer = serve(path, "serving_default", {"text": texts}, text_ops=text_ops)
    return {**answer, "text": [text.decode() for text in answer["text"]]}


@on_tensorflow
def test_the_signatures_are_named_and_batch_first(published):
    answer = {"token_ids": ("int32", [None, NEW]), "lengths": ("int32", [None])}
    answer["scores"] = ("float32", [None])
    assert signatures(published) == {
        "serving_default": {
            "inputs": {"text": ("object", [None])},
            "outputs": {"text": ("object", [None]), **answer},
        },
        "token_ids": {
            "inputs": {"token_ids": ("int32", [None, None]), "lengths": ("int32", [None])},
            "outputs": answer,
        },
    }


@on_tensorflow
def test_a_byte_model_needs_core_operations_alone_and_answers_as_generate(gpt, published):
    expected = gpt.generate(TEXTS, max_new_tokens=NEW, return_dict=True)
    assert len(set(expected["text"])) >= 5  # the weights tell the prompts apart
    served = ask(published, TEXTS)
    assert served["text"] == expected["text"]
    assert served["lengths"].tolist() == expected["lengths"].tolist()
    np.testing.assert_allclose(served["scores"], expected["scores"], atol=1e-3)
    for ids, length, row in zip(
        served["token_ids"], served["lengths"], expected["token_ids"], strict=True
    ):
        assert ids[:length].tolist() == row and set(ids[length:]) <= {gpt.pad_token_id}
    for row, prompt in enumerate(TEXTS):
        assert ask(published, [prompt])["text"] == [expected["text"][row]]


@on_tensorflow
def test_a_prompt_without_room_gets_nothing_and_harms_no_neighbour(gpt, published):
    served = ask(published, [*TEXTS, *TOO_LONG])
    assert served["text"] == [*gpt.generate(TEXTS, max_new_tokens=NEW), "", ""]
    assert served["lengths"][-2:].tolist() == [0, 0] and served["scores"][-2:].tolist() == [0, 0]
    assert ask(published, TOO_LONG)["text"] == ["", ""]
    assert ask(published, ["", ""])["text"] == gpt.generate(["", ""], max_new_tokens=NEW)


@on_tensorflow
def test_bytes_that_are_no_text_are_read_and_every_answer_is_text(published):
    served = serve(published, "serving_default", {"text": [b"\xff\xfe", b"ok\xc3"]})
    for said in served["text"]:
        said.decode()


@on_tensorflow
def test_ids_beyond_a_length_do_not_count_and_unknown_ids_harm_no_neighbour(gpt, published):
    prompts = [[3, 5, 8], [13], [], [3, 999], [3, -1]]
    expected = gpt.generate(prompts[:3], max_new_tokens=NEW)
    token_ids = np.full((5, 4), 777, "int32")
    for place, prompt in zip(token_ids, prompts, strict=True):
        place[: len(prompt)] = prompt
    lengths = np.array([3, 1, 0, 2, 2], "int32")
    served = serve(published, "token_ids", {"token_ids": token_ids, "lengths": lengths})
    rows = [ids[:n].tolist() for ids, n in zip(served["token_ids"], served["lengths"], strict=True)]
    assert rows == [*expected, [], []]
    # A length greater than the row is the row's.
    served = serve(published, "token_ids", {"token_ids": [[3, 5, 8]], "lengths": [99]})
    assert served["token_ids"][0].tolist() == expected[0]


@on_tensorflow
def test_a_reply_ends_with_its_end_token(gpt, tmp_path):
    last = gpt.generate("The first", max_new_tokens=NEW, return_dict=True)["token_ids"][0][5]
    config = {**gpt.get_config(), "end_token_id": last, "name": "ending"}
    ending = ktx.GPT.from_config(config)
    ending.set_weights(gpt.get_weights())
    expected = ending.generate(TEXTS, max_new_tokens=NEW, return_dict=True)
    assert min(expected["lengths"]) < NEW - 5
    served = ask(publish(ending, tmp_path, max_new_tokens=NEW), TEXTS)
    assert served["text"] == expected["text"]
    assert served["lengths"].tolist() == expected["lengths"].tolist()


@on_tensorflow
def test_without_a_tokenizer_ids_are_served(tmp_path):
    sizes = {"num_layers": 1, "hidden_dim": 10, "num_heads": 5, "max_sequence_length": 11}
    model = decided(ktx.GPT(17, position="rotary", **sizes))
    path = publish(model, tmp_path)  # as many new tokens as fit
    request = {"token_ids": [[3, 5, 8], [13, 0, 0]], "lengths": [3, 1]}
    served = serve(path, "serving_default", request, text_ops=False)
    assert served["lengths"].tolist() == [8, 10] and served["token_ids"].shape == (2, 10)
    assert served["token_ids"][0, :8].tolist() == model.generate([3, 5, 8])
    # Nothing stands for an empty prompt here: it gets nothing.
    request = {"token_ids": [[3, 5, 8], [0, 0, 0]], "lengths": [3, 0]}
    assert serve(path, "serving_default", request)["lengths"].tolist() == [8, 0]


def test_a_number_of_new_tokens_that_cannot_be_is_a_clear_error(gpt, tmp_path):
    for number in (0, LENGTH, -3):
        with pytest.raises(ValueError, match=f"from 1 to {LENGTH - 1}"):
            publish(gpt, tmp_path / "base", max_new_tokens=number)
    for number in (2.5, True, "7"):
        with pytest.raises(ValueError, match="must be an integer"):
            publish(gpt, tmp_path / "base", max_new_tokens=number)
    assert not (tmp_path / "base").exists()


@on_tensorflow
@pytest.mark.parametrize("name", ["tokens", "text"])
def test_an_artefact_that_chooses_otherwise_is_not_published(gpt, tmp_path, monkeypatch, name):
    if name == "tokens":
        honest = gpt.generate_ids

        def generate_ids(*arguments):
            answer = honest(*arguments)
            return {**answer, "token_ids": (answer["token_ids"] + 1) % 256}

        monkeypatch.setattr(gpt, "generate_ids", generate_ids)
    else:
        monkeypatch.setattr(
            text.tokenizers, "decode", lambda tokenizer, rows: ["other"] * len(rows)
        )
    with pytest.raises(RuntimeError, match="chooses token|is not what the tokenizer"):
        publish(gpt, tmp_path, max_new_tokens=2)
    assert list(tmp_path.iterdir()) == []


@on_tensorflow
def test_sources_of_any_length_and_the_attention_over_them(tmp_path):
    sizes = {"hidden_dim": 11, "max_sequence_length": 7, "pad_token_id": 0}
    model = decided(ktx.Seq2Seq(19, start_token_id=1, end_token_id=2, **sizes))
    prompts = [[3, 5, 8], list(range(3, 19)) * 2, [13], []]
    expected = model.generate(prompts, return_dict=True)
    token_ids = np.zeros((4, 32), "int32")
    for place, prompt in zip(token_ids, prompts, strict=True):
        place[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts], "int32")
    path = publish(model, tmp_path)
    served = serve(path, "token_ids", {"token_ids": token_ids, "lengths": lengths}, text_ops=False)
    for row, ids in enumerate(expected["token_ids"]):
        count = served["lengths"][row]
        assert served["token_ids"][row, :count].tolist() == ids
        scores = served["attention_scores"][row]
        np.testing.assert_allclose(
            scores[:count], expected["attention_scores"][row][:count, :32], atol=1e-5
        )
        assert not scores[count:].any()
        alone = {"token_ids": token_ids[row : row + 1], "lengths": lengths[row : row + 1]}
        alone = serve(path, "token_ids", alone, text_ops=False)
        np.testing.assert_allclose(alone["attention_scores"][0], scores, atol=1e-5)


@pytest.mark.skipif(backend == "torch", reason="to save time: the translator is made from there")
def test_a_sentencepiece_model_of_any_backend_answers_as_generate(tmp_path):
    lines = ["the quick brown fox jumps over the lazy dog", "ünïcödé and other text to learn"]
    tokenizer = ktx.data.train_tokenizer(lines, vocabulary_size=301)
    sizes = {"num_layers": 1, "hidden_dim": 24, "num_heads": 3, "max_sequence_length": LENGTH}
    model = decided(ktx.GPT(tokenizer=tokenizer, gated=True, **sizes))
    prompts = ["", "the quick", "日本", "ünï", " lazy  dog\n", "a", "b"]
    path = publish(model, tmp_path, max_new_tokens=NEW)
    expected = model.generate(prompts, max_new_tokens=NEW)
    assert ask(path, prompts, text_ops=True)["text"] == expected
    assert ask(path, prompts[1:2], text_ops=True)["text"] == expected[1:2]


@pytest.mark.skipif(backend == "jax", reason="to save time: the language model is made from there")
def test_a_translator_of_any_backend_answers_as_generate(tmp_path):
    sources = ["the light was good", "let there be light", "and it was so"]
    targets = ["la luce era buona", "sia la luce", "e così fu"]
    model = ktx.Seq2Seq(
        hidden_dim=17,
        cell="lstm",
        attention="luong",
        max_sequence_length=NEW,
        tokenizer=ktx.data.train_tokenizer(sources, vocabulary_size=283),
        target_tokenizer=ktx.data.train_tokenizer(targets, vocabulary_size=281),
    )
    prompts = ["", *sources, "light", "日本", "x" * 40]
    path = publish(decided(model), tmp_path)
    expected = model.generate(prompts)
    assert ask(path, prompts, text_ops=True)["text"] == expected
    assert ask(path, prompts[1:2], text_ops=True)["text"] == expected[1:2]
