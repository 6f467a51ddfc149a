"""The adapter over keras-nlp's tokenizers: lossless, the same in Python and in the graph."""

import importlib.util
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_tx import data
from keras_tx.data import tokenizers

AWKWARD = [
    "",
    " ",
    "\n",
    "\r\n\t  two  spaces\n\n",
    "<s>hi</s><pad><unk><0x41>[PAD]",
    "\u2581 lower one eighth block \u2581\u2581",
    "\ue000\ue001\u2581\ue000\ue002\ue000",
    "\x00nul\x00",
    "\U0001f469\u200d\U0001f680 emoji e\u0301 \u00e9 \ufb01 \u2028",
]


def fresh(tokenizer):
    """A copy made after the test's seed was set, which clears TF Text's models."""
    return keras.saving.deserialize_keras_object(tokenizers.serialize(tokenizer))


@settings(max_examples=200)
@given(text=st.text())
@example(text="\u2581\ue000\ue001")
@example(text="\ufeff \u3000\u200b")
def test_round_trip_of_any_text(tokenizer, byte_tokenizer, text):
    for each in (tokenizer, byte_tokenizer):
        ids = tokenizers.encode(each, [text, "", text])
        assert tokenizers.decode(each, ids) == [text, "", text]
        special = set(tokenizers.special_ids(each).values())
        assert not special & set(ids[0])


def test_keras_nlps_own_round_trip(tokenizer):
    for text in AWKWARD:
        ids = [int(id) for id in tokenizer.tokenize(text)]
        assert tokenizer.detokenize([ids]) == [text]


def test_ids_fill_the_vocabulary(tokenizer, byte_tokenizer, word_piece_tokenizer):
    assert tokenizers.special_ids(tokenizer) == {"pad": 0, "start": 1, "end": 2}
    assert tokenizers.vocabulary_size(tokenizer) == 330
    assert tokenizers.special_ids(byte_tokenizer) == {"pad": 253, "start": 254, "end": 255}
    assert tokenizers.vocabulary_size(byte_tokenizer) == 256
    assert tokenizers.special_ids(word_piece_tokenizer) == {"pad": 0, "start": 1, "end": 2}


def test_word_piece_gives_words(word_piece_tokenizer):
    ids = tokenizers.encode(word_piece_tokenizer, ["The fox", "", "[PAD]"])
    assert tokenizers.decode(word_piece_tokenizer, ids)[:2] == ["The fox", ""]
    assert not {0, 1, 2} & set(ids[2])


def test_absent_special_ids_are_none():
    import keras_nlp

    plain = keras_nlp.tokenizers.BytePairTokenizer(
        vocabulary={"a": 0, "b": 1, "ab": 2}, merges=["a b"]
    )
    assert tokenizers.special_ids(plain) == {"pad": None, "start": None, "end": None}
    assert tokenizers.decode(plain, [[0, 1, 0, 2, 9]]) == ["abaab"]


def test_decoding_leaves_out_what_is_no_text(tokenizer, byte_tokenizer, word_piece_tokenizer):
    for each in (tokenizer, byte_tokenizer, word_piece_tokenizer):
        special = list(tokenizers.special_ids(each).values())
        ids = tokenizers.encode(each, ["The"])[0]
        rows = [[], [*special, -1, *ids, 10**6, -(2**31)], special]
        assert tokenizers.decode(each, rows) == ["", "The", ""]
    assert tokenizers.decode(tokenizer, np.zeros((0, 3), int)) == []


@settings(max_examples=50)
@given(ids=st.lists(st.integers(-5, 400), max_size=20))
def test_any_ids_decode_to_valid_text(tokenizer, byte_tokenizer, ids):
    for each in (tokenizer, byte_tokenizer):
        tokenizers.decode(each, [ids])[0].encode("utf-8")


def test_graph_equals_python(tokenizer, byte_tokenizer, word_piece_tokenizer):
    import tensorflow as tf

    rng = np.random.default_rng(3)
    letters = list("ab \n\t<s>\u2581\ue000\ue001\ue002\u00e9\U0001f600\x00")
    texts = AWKWARD + ["".join(rng.choice(letters, n)) for n in rng.integers(0, 12, 100)]
    spec = [tf.TensorSpec([None], tf.string)]
    for each in map(fresh, (tokenizer, byte_tokenizer, word_piece_tokenizer)):
        lossy = type(each) is type(word_piece_tokenizer)
        encode = tf.function(
            lambda strings, each=each: tokenizers.encode_in_graph(each, strings),
            input_signature=spec,
        )
        decode = tf.function(
            lambda strings, each=each: tokenizers.decode_in_graph(
                each, tokenizers.encode_in_graph(each, strings)
            ),
            input_signature=spec,
        )
        for batch in (texts, [""], ["", ""], []):
            if lossy:  # TF Text ends a word at NUL, keras-nlp's Python does not
                batch = [text.replace("\x00", "") for text in batch]
            strings = tf.constant(batch, tf.string)
            ids = encode(strings)
            assert ids.dtype == tf.int32
            assert ids.to_list() == tokenizers.encode(each, batch)
            decoded = [text.decode() for text in decode(strings).numpy()]
            assert decoded == tokenizers.decode(each, ids.to_list())
            assert lossy or decoded == batch


def test_graph_mends_invalid_bytes_and_ids(tokenizer, byte_tokenizer, word_piece_tokenizer):
    import tensorflow as tf

    for each in map(fresh, (tokenizer, byte_tokenizer, word_piece_tokenizer)):
        encode = tf.function(lambda strings, each=each: tokenizers.encode_in_graph(each, strings))
        decode = tf.function(
            lambda ids, lengths, each=each: tokenizers.decode_in_graph(each, ids, lengths)
        )
        special = set(tokenizers.special_ids(each).values())
        strings = tf.constant([b"\xff\xfe\xfdA", b"\xe2\x96", b"A"])
        ids = encode(strings)
        assert not special & set(ids.flat_values.numpy().tolist())
        assert tokenizers.encode_in_graph(each, strings).to_list()[2] == ids.to_list()[2]

        size = tokenizers.vocabulary_size(each)
        ids = tf.constant(np.random.default_rng(0).integers(-3, size + 50, (7, 11)))
        lengths = tf.constant([0, 11, 5, 1, 2, 3, 0])
        texts = [text.decode("utf-8") for text in decode(ids, lengths).numpy()]
        eager = tokenizers.decode_in_graph(each, ids, lengths).numpy()
        assert texts == [text.decode("utf-8") for text in eager]
        assert texts[0] == texts[6] == ""


def test_saved_model_holds_the_tokenizer(
    tokenizer, byte_tokenizer, word_piece_tokenizer, tmp_path, backend
):
    if backend != "tensorflow":
        pytest.skip("only there Keras layers are what a SavedModel can track; exports run there")
    import tensorflow as tf

    for number, each in enumerate((tokenizer, byte_tokenizer, word_piece_tokenizer)):
        module = tf.Module()
        module.tokenizer = each

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def round_trip(strings, each=each):
            ids = tokenizers.encode_in_graph(each, strings)
            lengths = ids.row_lengths()
            return {
                "text": tokenizers.decode_in_graph(each, ids.to_tensor(), lengths),
                "lengths": lengths,
            }

        path = str(tmp_path / str(number))
        tf.saved_model.save(module, path, signatures=round_trip)
        serve = tf.saved_model.load(path).signatures["serving_default"]
        batch = ["The fox", "", "<s> the"]
        assert [text.decode() for text in serve(tf.constant(batch))["text"].numpy()] == (
            tokenizers.decode(each, tokenizers.encode(each, batch))
        )
        assert serve(tf.constant(["", ""]))["text"].numpy().tolist() == [b"", b""]


def test_serialize_holds_the_vocabulary(tokenizer, byte_tokenizer, word_piece_tokenizer):
    import keras_nlp

    pairs = keras_nlp.tokenizers.BytePairTokenizer(
        vocabulary={"a": 0, "b": 1, "ab": 2}, merges=["a b"]
    )
    for each in (tokenizer, byte_tokenizer, word_piece_tokenizer, pairs):
        written = json.loads(json.dumps(tokenizers.serialize(each)))
        again = keras.saving.deserialize_keras_object(written)
        texts = ["ab", "", "ba"]
        assert tokenizers.encode(again, texts) == tokenizers.encode(each, texts)
        assert tokenizers.serialize(again) == tokenizers.serialize(each)


MODEL = """
import sys
import keras
from keras_tx.data import tokenizers


@keras.saving.register_keras_serializable(package="test")
class Holder(keras.Model):
    def __init__(self, tokenizer, **kwargs):
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.dense = keras.layers.Dense(2)
        self(keras.ops.zeros((1, 3)))

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        plain = keras.saving.serialize_keras_object(self.tokenizer)
        return {**super().get_config(), "tokenizer": plain}

    @classmethod
    def from_config(cls, config):
        tokenizer = keras.saving.deserialize_keras_object(config.pop("tokenizer"))
        return cls(tokenizer, **config)


if __name__ == "__main__":
    heavy = {"tensorflow_datasets", "tensorflow_text", "keras_nlp", "keras_hub", "sentencepiece"}
    if keras.backend.backend() != "tensorflow":
        heavy.add("tensorflow")
    print(sorted(heavy & set(sys.modules)))
    model = keras.saving.load_model(sys.argv[1])
    print(tokenizers.encode(model.tokenizer, ["The fox", ""]))
"""


def test_keras_file_in_a_fresh_process_and_a_free_import(tokenizer, tmp_path):
    script = tmp_path / "holder.py"
    script.write_text(MODEL)
    spec = importlib.util.spec_from_file_location("holder", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path / "model.keras"
    module.Holder(tokenizer).save(path)
    result = subprocess.run(
        [sys.executable, str(script), str(path)], capture_output=True, text=True, check=False
    )
    expected = tokenizers.encode(tokenizer, ["The fox", ""])
    assert result.stdout.split("\n")[:2] == ["[]", str(expected)], result.stderr


def test_training_is_deterministic(text):
    first, second = (data.train_tokenizer([text], 300) for _ in range(2))
    assert first.proto == second.proto


def test_frequent_text_takes_few_ids(tokenizer):
    assert len(tokenizers.encode(tokenizer, ["The quick brown fox"])[0]) < 15
    assert len(tokenizers.encode(tokenizer, ["        "])[0]) < 4


@pytest.mark.parametrize(
    "texts", [["a"], ["\n"], [" \n\n "], ["\u2581"], ["".join(map(chr, range(0x4E00, 0x4F00)))]]
)
def test_smallest_texts_and_vocabulary(texts):
    small = data.train_tokenizer(texts, 261)
    assert tokenizers.vocabulary_size(small) <= 261
    assert tokenizers.decode(small, tokenizers.encode(small, texts)) == texts


def test_errors(tokenizer):
    import keras_nlp

    with pytest.raises(ValueError, match='at least 261.*vocabulary_size=260.*tokenizer="byte"'):
        data.train_tokenizer(["abc"], 260)
    with pytest.raises(ValueError, match="kind='bpe'"):
        data.train_tokenizer(["abc"], kind="bpe")
    with pytest.raises(ValueError, match="no character at all"):
        data.train_tokenizer(["", ""])
    with pytest.raises(ValueError, match="lone surrogate .* position 1"):
        tokenizers.encode(tokenizer, ["a\ud800"])
    with pytest.raises(ValueError, match="list of strings. Received an item 3"):
        tokenizers.encode(tokenizer, ["a", 3])
    with pytest.raises(ValueError, match="list of strings.*'text'"):
        tokenizers.encode(tokenizer, "text")
    with pytest.raises(ValueError, match="tokenizer of keras-nlp"):
        tokenizers.special_ids("gpt2")
    padding = keras_nlp.tokenizers.ByteTokenizer(sequence_length=5)
    with pytest.raises(ValueError, match="sequence_length=5"):
        tokenizers.encode(padding, ["a"])
    lost = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tokenizer))
    with pytest.raises(ValueError, match="has no vocabulary"):
        tokenizers.vocabulary_size(lost)
