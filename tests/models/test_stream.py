"""Text as it is made, and text that ends at a stop."""

import numpy as np
import pytest
from keras import ops

import keras_tx as ktx
from keras_tx.decoding import Greedy
from keras_tx.models import decoding_run
from keras_tx.models.stop_texts import StopTexts
from tests.models import tools

PROMPTS = [[], [5], [1, 2, 3, 4, 5, 6, 7], [12, 0, 12], [9] * 11]


@pytest.fixture(scope="module")
def gpt():
    return tools.make_gpt("rotary", start_token_id=2, end_token_id=12)


@pytest.fixture(scope="module")
def text_gpt():
    tokenizer = ktx.data.train_tokenizer([], kind="byte")
    return tools.make_gpt(vocabulary_size=None, max_sequence_length=41, tokenizer=tokenizer)


def one_token_at_a_time(monkeypatch):
    monkeypatch.setattr(decoding_run, "MOST_STEPS", 1)


def joined(pieces, rows):
    together = [[] for _ in range(rows)]
    for piece in pieces:
        for row, ids in zip(together, piece, strict=True):
            row.extend(ids)
    return together


@pytest.mark.parametrize("strategy", ["greedy", "sample"])
def test_the_pieces_are_what_generate_returns(gpt, strategy, monkeypatch):
    arguments = {"strategy": strategy, "max_new_tokens": 7, "seed": 3}
    whole = gpt.generate(PROMPTS, **arguments)
    assert joined(gpt.stream(PROMPTS, **arguments), 5) == whole
    one_token_at_a_time(monkeypatch)
    pieces = list(gpt.stream(PROMPTS, **arguments))
    assert joined(pieces, 5) == whole and len(pieces) == 7
    if strategy == "greedy":
        pieces = list(gpt.stream(PROMPTS[2], **arguments))
        assert sum(pieces, []) == gpt.generate(PROMPTS[2], **arguments) and all(pieces)


def test_whoever_stops_asking_stops_the_work(gpt, monkeypatch):
    one_token_at_a_time(monkeypatch)
    pieces = gpt.stream(PROMPTS[2], max_new_tokens=7)
    first = next(pieces)
    assert first == gpt.generate(PROMPTS[2], max_new_tokens=1)
    pieces.close()
    assert list(pieces) == []
    assert list(gpt.stream([])) == []


class Says(Greedy):
    """Whatever the model thinks: a text byte by byte, then the end token."""

    def __init__(self, text, model):
        super().__init__()
        self.text = text
        self.script = np.array([*text.encode(), model.end_token_id, *[0] * 64], "int32")

    def choose(self, logits, step, request, used):
        return ops.take(ops.convert_to_tensor(self.script), step)

    @property
    def compiled_in(self):
        return (Says, self.text)


def test_half_a_character_waits_for_the_rest(text_gpt, monkeypatch):
    one_token_at_a_time(monkeypatch)
    text = "añ€😀z"
    says = Says(text, text_gpt)
    assert list(text_gpt.stream("x", strategy=says)) == list(text)
    broken = Says("ab", text_gpt)
    broken_pieces = list(text_gpt.stream(["x", ""], strategy=broken))
    assert broken_pieces == [["a", "a"], ["b", "b"]]


def test_bytes_that_make_no_character_are_told_at_the_end(text_gpt, monkeypatch):
    one_token_at_a_time(monkeypatch)
    says = Says("a€", text_gpt)
    pieces = list(text_gpt.stream("x", strategy=says, max_new_tokens=3))
    assert pieces == ["a", "\ufffd"]
    assert text_gpt.generate("x", strategy=says, max_new_tokens=3) == "a\ufffd"


@pytest.mark.parametrize(
    "stop, kept, tokens",
    [
        ("\n\n", "one\ntwo", 9),
        (["tw", "ne"], "o", 3),
        ("€", "one\ntwo\n\nthree ", 18),
        ("never", "one\ntwo\n\nthree € four", 23),
        ("\ufffd", "one\ntwo\n\nthree € four", 23),  # which half of the € is not
    ],
)
def test_a_row_ends_at_a_stop(text_gpt, monkeypatch, stop, kept, tokens):
    one_token_at_a_time(monkeypatch)
    says = Says("one\ntwo\n\nthree € four", text_gpt)
    arguments = {"strategy": says, "stop": stop}
    result = text_gpt.generate(["x", "yy"], return_dict=True, **arguments)
    assert result["text"] == [kept, kept]
    assert result["lengths"].tolist() == [tokens] * 2
    assert [len(ids) for ids in result["token_ids"]] == [tokens] * 2
    most = tokens + (tokens == 23)  # then the end token's probability is in it
    free = text_gpt.generate(["x", "yy"], strategy=says, max_new_tokens=most, return_dict=True)
    tools.assert_close(result["scores"], free["scores"])
    pieces = list(text_gpt.stream("x", **arguments))
    assert "".join(pieces) == kept


def test_no_more_tokens_are_made_behind_a_stop(text_gpt, monkeypatch):
    one_token_at_a_time(monkeypatch)
    says = Says("abcdefghijklmnop", text_gpt)
    advanced = []
    inner = decoding_run.CompiledLoop.__init__

    def counted(self, *arguments):
        inner(self, *arguments)
        advance = self.advance
        self.advance = lambda *x: (advanced.append(1), advance(*x))[1]

    monkeypatch.setattr(decoding_run.CompiledLoop, "__init__", counted)
    assert text_gpt.generate("x", strategy=says, stop="cd", max_new_tokens=14) == "ab"
    assert len(advanced) == 4


def test_what_may_begin_a_stop_waits():
    stops = StopTexts(["\n\n", "END"])
    for text, told in [("a\n", "a"), ("aE", "a"), ("aEN", "a"), ("aENx", "aENx"), ("", "")]:
        assert stops.without_a_beginning(text) == told
    assert StopTexts(None).without_a_beginning("a\n") == "a\n"
    assert StopTexts("x").without_a_beginning("ax"[:1]) == "a"


def test_beams_are_not_streamed_and_cut_at_the_end(text_gpt):
    with pytest.raises(ValueError, match="Beam knows its text only at the end"):
        text_gpt.stream("x", strategy="beam")
    beams = ktx.decoding.Beam(3, num_results=2)
    texts = text_gpt.generate(["x", "y"], strategy=beams, max_new_tokens=9)
    assert [len(row) for row in texts] == [2, 2]
    stop = texts[0][0][3]
    cut = text_gpt.generate("x", strategy=beams, max_new_tokens=9, stop=stop)
    assert cut == [text[: text.find(stop)] if stop in text else text for text in texts[0]]


def test_errors_come_at_the_call(gpt):
    with pytest.raises(ValueError, match="`max_new_tokens` must be a positive integer"):
        gpt.stream([1], max_new_tokens=0)
    with pytest.raises(ValueError, match="`stop` is text"):
        gpt.stream([1], stop="x")
