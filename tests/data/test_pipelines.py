"""Texts, pairs and images to batches: complete, in a reproducible order, of few shapes."""

import numpy as np
import pytest

from keras_tx import data
from keras_tx.data import tokenizers


def all_batches(dataset):
    return [
        tuple(
            {name: array.numpy() for name, array in part.items()}
            if isinstance(part, dict)
            else part.numpy()
            for part in batch
        )
        for batch in dataset
    ]


def ids_of(tokenizer, text):
    special = tokenizers.special_ids(tokenizer)
    return [*tokenizers.encode(tokenizer, [text])[0], special["end"]]


def covered_ids(dataset):
    return [id for _, y, w in all_batches(dataset) for id in y[w > 0].tolist()]


def language(source, tokenizer, **changes):
    arguments = {"sequence_length": 13, "batch_size": 3, "tokenizer": tokenizer, **changes}
    return data.language_modeling(source, **arguments)


# --- language modeling


@pytest.mark.parametrize(
    ("length", "stride"),
    [(1, None), (11, None), (12, 1), (13, 5), (14, None), (53, 13), (53, 1), (53, 5)],
)
def test_each_test_token_once(tokenizer, byte_tokenizer, text, length, stride):
    held_out = text[:length]
    for each in (tokenizer, byte_tokenizer):
        _, test, same = language([text], each, test_source=[held_out, "é"], test_stride=stride)
        assert same is each
        assert covered_ids(test) == ids_of(each, held_out) + ids_of(each, "é")
        covered, num_tokens = data.covered_text(test, each)
        assert covered == held_out + "é"
        assert num_tokens == len(covered_ids(test))
        assert len(all_batches(test)) == len(test)


def test_test_windows_have_context(tokenizer, text):
    _, test, _ = language([text], tokenizer, test_stride=5)
    stream = np.array(covered_ids(test))
    rows = [row for x, y, w in all_batches(test) for row in zip(x["token_ids"], y, w, strict=True)]
    rows = [row for row in rows if row[2].any()]
    assert rows[0][2].all()
    position = 13
    for token_ids, targets, weights in rows[1:]:
        new = int(weights.sum())
        assert new <= 5
        np.testing.assert_array_equal(targets[weights > 0], stream[position : position + new])
        np.testing.assert_array_equal(targets[:8], stream[position - 8 : position])
        np.testing.assert_array_equal(token_ids[1:9], targets[:8])
        position += new
    assert position == len(stream)


def test_training_windows_are_text(tokenizer, text):
    train, _, _ = language([text], tokenizer)
    train_text = data.covered_text(language([text], tokenizer, test_source=[text])[1], tokenizer)
    assert train_text[0] == text
    stream = "," + ",".join(map(str, [1, *ids_of(tokenizer, text)])) + ","
    for x, y, w in all_batches(train):
        assert x["token_ids"].dtype == y.dtype == np.int32
        assert w.dtype == np.float32
        assert w.all()
        assert x["token_ids"].shape == y.shape == w.shape == (3, 13)
        np.testing.assert_array_equal(x["token_ids"][:, 1:], y[:, :-1])
        for row in x["token_ids"]:
            assert "," + ",".join(map(str, row)) + "," in stream


def test_epochs_together_show_every_token():
    text = "".join(map(chr, range(33, 127)))
    tokenizer = data.train_tokenizer([], kind="byte")
    train, _, _ = language([text], tokenizer, test_source=["x"], batch_size=2)
    batches = [batch for epoch in range(40) for batch in train.keras_tx_order.batches(epoch)]
    seen = {id for _, y, w in batches for id in y[w > 0].tolist()}
    assert seen == {*range(33, 127), 255}
    train, _, _ = language([text], tokenizer, test_source=["x"], batch_size=2, random_offset=False)
    assert sorted(covered_ids(train)) == [*range(33, 127), 255]


def test_a_text_shorter_than_a_window(byte_tokenizer):
    for random_offset in (True, False):
        train, test, _ = language(
            ["abc"], byte_tokenizer, test_source=["z"], random_offset=random_offset
        )
        ((x, y, w),) = all_batches(train)
        assert y[0].tolist() == [97, 98, 99, 255] + [253] * 9
        assert x["token_ids"][0].tolist() == [254, 97, 98, 99] + [253] * 9
        assert w[0].tolist() == [1] * 4 + [0] * 9
        assert all_batches(test)[0][2].sum() == 2


def test_the_start_of_a_document_is_no_target(byte_tokenizer):
    train, test, _ = language(
        ["ab", "cd"], byte_tokenizer, test_source=["ef", "gh"], random_offset=False
    )
    for dataset, letters in ((train, "abcd"), (test, "efgh")):
        x, y, w = all_batches(dataset)[0]
        a, b, c, d = letters.encode()
        assert x["token_ids"][0].tolist()[:8] == [254, a, b, 255, 254, c, d, 253]
        assert y[0].tolist()[:8] == [a, b, 255, 254, c, d, 255, 253]
        assert w[0].tolist()[:8] == [1, 1, 1, 0, 1, 1, 1, 0]


def test_one_separator_of_documents():
    import keras_nlp

    tokenizer = keras_nlp.tokenizers.GPT2Tokenizer(
        vocabulary={"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}, merges=["a b"]
    )
    train, _, _ = language(
        ["ab", "b"], tokenizer, test_source=["a"], random_offset=False, sequence_length=4
    )
    x, y, w = all_batches(train)[0]
    assert x["token_ids"].tolist() == [[3, 2, 3, 1]]
    assert y.tolist() == [[2, 3, 1, 3]]
    assert w.all()


def test_a_tokenizer_without_special_ids():
    import keras_nlp

    plain = keras_nlp.tokenizers.BytePairTokenizer(
        vocabulary={letter: number for number, letter in enumerate("abcdefgh")} | {"ab": 8},
        merges=["a b"],
    )
    train, test, _ = language(
        ["abcdefgh" * 5], plain, sequence_length=3, test_source=["cdefgh"], random_offset=False
    )
    for x, y, _w in all_batches(train):
        assert {tuple(b) for b in np.stack([x["token_ids"], y], -1).reshape(-1, 2).tolist()} <= {
            (0, 8), (8, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (0, 0)
        }  # fmt: skip
    assert covered_ids(test) == [2, 3, 4, 5, 6, 7]


def test_the_last_tenth_is_held_out(byte_tokenizer):
    lines = [f"line {n}\n" for n in range(100)]
    train, test, tokenizer = language(["".join(lines)], byte_tokenizer, random_offset=False)
    assert data.covered_text(test, tokenizer)[0] == "".join(lines[90:])
    train, test, tokenizer = language(lines, byte_tokenizer)
    assert data.covered_text(test, tokenizer)[0] == "".join(lines[90:])


def test_a_trained_tokenizer_sees_no_test_text():
    train, test, tokenizer = language(
        ["abc " * 50], None, vocabulary_size=300, test_source=["zyx " * 50]
    )
    pieces = "".join(tokenizer.get_vocabulary()[260:])
    assert not set("zyx") & set(pieces)
    assert data.covered_text(test, tokenizer)[0] == "zyx " * 50


def test_bits_per_byte():
    assert data.bits_per_byte(np.log(2) * 3, num_tokens=7, num_bytes=21) == pytest.approx(1)
    with pytest.raises(ValueError, match="num_bytes=0"):
        data.bits_per_byte(1.0, 3, 0)


# --- the order


def pipelines(text, tokenizer, seed=0):
    pairs = [(f"{n} " * (n % 7), f"{n}") for n in range(60)]
    images = np.arange(40 * 2 * 3, dtype="uint8").reshape(40, 2, 3)
    return [
        language([text], tokenizer, seed=seed)[0],
        data.text_pairs(pairs, tokenizer=tokenizer, batch_size=4, seed=seed)[0],
        data.image_classification((images, np.arange(40) % 4), batch_size=5, seed=seed)[0],
    ]


def same(first, second):
    def flat(batches):
        return [
            array
            for inputs, *rest in batches
            for array in [*(inputs.values() if isinstance(inputs, dict) else [inputs]), *rest]
        ]

    first, second = flat(first), flat(second)
    return len(first) == len(second) and all(
        a.shape == b.shape and (a == b).all() for a, b in zip(first, second, strict=True)
    )


def test_order_is_a_function_of_seed_and_epoch(text, tokenizer):
    others = pipelines(text, tokenizer, seed=1)
    again = pipelines(text, tokenizer)
    for first, second, other in zip(pipelines(text, tokenizer), again, others, strict=True):
        epochs = [all_batches(first) for _ in range(3)]
        assert [len(epoch) for epoch in epochs] == [len(first)] * 3
        assert not same(epochs[0], epochs[1])
        assert not same(epochs[0], all_batches(other))
        next(iter(second))  # a look is no epoch
        assert same(epochs[0], all_batches(second))
        assert same(epochs[1], all_batches(second))
        data.set_epoch(second, 1)
        assert same(epochs[1], all_batches(second))
        assert same(epochs[2], all_batches(second))


def test_fit_takes_the_epochs_in_order(text, tokenizer):
    import keras

    train, test, tokenizer = language([text], tokenizer)
    model = keras.Sequential([keras.Input((13,), dtype="int32"), keras.layers.Embedding(330, 330)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    asked = []
    batches = train.keras_tx_order.batches
    train.keras_tx_order.batches = lambda epoch: asked.append(epoch) or batches(epoch)

    def by_tensor(x, y, w):
        return x["token_ids"], y, w

    history = model.fit(
        train.map(by_tensor), validation_data=test.map(by_tensor), epochs=3, verbose=0
    )
    assert len(train) > 5
    assert sorted(set(asked)) == [0, 1, 2]
    assert train.keras_tx_order.epoch == 3
    assert np.isfinite(history.history["val_loss"]).all()


# --- pairs

PAIRS = [("a" * (n % 23), "b" * (n % 17)) for n in range(100)]


def pairs_of(dataset):
    """The texts back from the batches, which are checked on the way."""
    pairs = []
    for x, y, w in all_batches(dataset):
        source_ids, target_ids = x["source_ids"], x["target_ids"]
        assert source_ids.dtype == target_ids.dtype == y.dtype == np.int32
        assert source_ids.shape == target_ids.shape == y.shape == w.shape
        for source, inputs, targets, weights in zip(source_ids, target_ids, y, w, strict=True):
            count = int(weights.sum())
            assert (weights[:count] == 1).all()
            if not count:
                assert {*source, *inputs, *targets} == {253}
                continue
            assert inputs[0] == 254
            assert targets[count - 1] == 255
            assert (targets[count:] == 253).all()
            np.testing.assert_array_equal(inputs[1:count], targets[: count - 1])
            assert (inputs[count:] == 253).all()
            pairs.append(
                (bytes(source[source != 253].tolist()), bytes(targets[: count - 1].tolist()))
            )
    return sorted((a.decode(), b.decode()) for a, b in pairs)


def test_each_pair_once_an_epoch(byte_tokenizer):
    train, test, _ = data.text_pairs(
        PAIRS, tokenizer="byte", test_source=PAIRS[:31], batch_size=7, buckets=(8, 16, 29)
    )
    assert pairs_of(train) == pairs_of(train) == sorted(PAIRS)
    assert pairs_of(test) == sorted(PAIRS[:31])
    for dataset in (train, test):
        shapes = {x["source_ids"].shape for x, _, _ in all_batches(dataset)}
        assert shapes <= {(7, 8), (7, 16), (7, 29)}
        assert len(all_batches(dataset)) == len(dataset)


def test_buckets_are_balanced_by_default():
    train, _, _ = data.text_pairs(PAIRS * 5, tokenizer="byte", test_source=PAIRS, batch_size=5)
    lengths = [x["source_ids"].shape[1] for x, _, _ in all_batches(train)]
    assert set(lengths) == {16, 24}
    one, _, _ = data.text_pairs(PAIRS, tokenizer="byte", buckets=1, max_sequence_length=23)
    assert {x["source_ids"].shape[1] for x, _, _ in all_batches(one)} == {23}


def test_no_source_on_both_sides():
    pairs = [(str(n % 20), str(n)) for n in range(60)]
    train, test, _ = data.text_pairs(pairs, tokenizer="byte")
    train, test = pairs_of(train), pairs_of(test)
    assert len({source for source, _ in test}) == 2
    assert not {source for source, _ in train} & {source for source, _ in test}
    assert sorted(train + test) == sorted(pairs)
    again = data.text_pairs(pairs[::-1], tokenizer="byte")[1]
    assert pairs_of(again) == test


def test_long_pairs_are_dropped_or_refused():
    arguments = {"tokenizer": "byte", "test_source": PAIRS[:20], "max_sequence_length": 11}
    with pytest.raises(ValueError, match='62 longer ones among 100 training pairs.*"drop"'):
        data.text_pairs(PAIRS, **arguments)
    train, test, _ = data.text_pairs(PAIRS, **arguments, too_long="drop")
    short = [pair for pair in PAIRS if len(pair[0]) <= 11 and len(pair[1]) <= 10]
    assert pairs_of(train) == sorted(short)
    with pytest.raises(ValueError, match="All .* are longer"):
        data.text_pairs(
            [("long", "longer"), ("long too", "and longer")],
            tokenizer="byte", max_sequence_length=1, too_long="drop",
        )  # fmt: skip
    with pytest.raises(ValueError, match="longest pair, 22 tokens"):
        data.text_pairs(PAIRS, tokenizer="byte", buckets=(8, 16))


def test_a_tokenizer_for_each_side(tokenizer, byte_tokenizer):
    train, _, source_tokenizer = data.text_pairs(
        [("The fox", "caffè"), ("The dog", "più")],
        tokenizer=tokenizer,
        target_tokenizer=byte_tokenizer,
        batch_size=1,
    )
    assert source_tokenizer is tokenizer
    ((x, y, w),) = all_batches(train)
    assert tokenizers.decode(tokenizer, x["source_ids"])[0] in ("The fox", "The dog")
    assert tokenizers.decode(byte_tokenizer, y)[0] in ("caffè", "più")


# --- images


def test_every_test_image_once():
    images = np.arange(23, dtype="uint8")[:, None, None, None] * np.ones((1, 3, 5, 1), "uint8")
    labels = np.arange(23) % 2
    train, test, names = data.image_classification(
        ((images, labels), (images, labels[:, None])), batch_size=7
    )
    assert names == ["0", "1"]
    x, y, w = (np.concatenate(part) for part in zip(*all_batches(test), strict=True))
    assert x.dtype == np.uint8
    assert y.dtype == np.int32
    assert x[:, 0, 0, 0].tolist() == [*range(23), *[0] * 5]
    assert y.tolist() == [*labels.tolist(), *[0] * 5]
    assert w.tolist() == [1] * 23 + [0] * 5
    batches = all_batches(train)
    assert len(batches) == len(train) == 3
    shown = [int(image[0, 0, 0]) for x, _, _ in batches for image in x]
    assert len(set(shown)) == 21
    for x, y, w in batches:
        assert (x[:, 0, 0, 0] % 2 == y).all()
        assert w.all()


def test_a_tenth_of_each_class_is_held_out():
    images = np.arange(45, dtype="uint8")[:, None, None] * np.ones((1, 2, 2), "uint8")
    labels = np.array([0] * 30 + [1] * 12 + [2] * 2 + [3])
    _, test, _ = data.image_classification((images, labels), batch_size=8)
    ((x, y, w),) = all_batches(test)
    assert x[w > 0, 0, 0, 0].tolist() == [9, 19, 29, 39, 43]


@pytest.mark.parametrize("name", ["language", "pairs", "images"])
def test_bad_numbers_are_refused(name, text):
    functions = {
        "language": lambda **k: data.language_modeling([text], tokenizer="byte", **k),
        "pairs": lambda **k: data.text_pairs(PAIRS, tokenizer="byte", **k),
        "images": lambda **k: data.image_classification(
            (np.zeros((9, 2, 2), "uint8"), np.zeros(9, int)), **k
        ),
    }
    for value in (0, -1, 2.5, "3", True):
        with pytest.raises(ValueError, match="batch_size to be a positive whole number"):
            functions[name](batch_size=value)
    with pytest.raises(ValueError, match="seed to be a whole number"):
        functions[name](seed=-1)


def test_bad_arguments_are_refused(text, tokenizer):
    with pytest.raises(ValueError, match="at most sequence_length=8. Received 9"):
        data.language_modeling([text], sequence_length=8, test_stride=9)
    with pytest.raises(ValueError, match="test part .* holds none"):
        language([text], tokenizer, test_source=["", ""])
    with pytest.raises(ValueError, match="at least 2 characters"):
        language(["a"], tokenizer)
    with pytest.raises(ValueError, match='"raise" or "drop". Received \'cut\''):
        data.text_pairs(PAIRS, too_long="cut")
    with pytest.raises(ValueError, match="rising order"):
        data.text_pairs(PAIRS, buckets=(16, 8))
    with pytest.raises(ValueError, match="2 different sources"):
        data.text_pairs([("a", "b"), ("a", "c")])
    with pytest.raises(ValueError, match="Expected a data set made by keras_tx.data"):
        data.set_epoch([1], 2)
    images = np.zeros((9, 2, 2), "uint8")
    with pytest.raises(ValueError, match="dtype uint8"):
        data.image_classification((images / 255, np.zeros(9, int)))
    with pytest.raises(ValueError, match="Received 9 and 8"):
        data.image_classification((images, np.zeros(8, int)))
    with pytest.raises(ValueError, match="labels of whole numbers"):
        data.image_classification((images, np.zeros(9)))
    with pytest.raises(ValueError, match="labels from 0 up"):
        data.image_classification((images, np.full(9, -1)))
    with pytest.raises(ValueError, match="name for each of the 4 classes"):
        data.image_classification((images, np.full(9, 3)), class_names=["a"])
    with pytest.raises(ValueError, match="one shape"):
        data.image_classification(
            (images, np.zeros(9, int)), test_source=(images[:, :1], np.zeros(9, int))
        )
    with pytest.raises(ValueError, match="image_size to be None"):
        data.image_classification((images, np.zeros(9, int)), image_size=(0, 3))
