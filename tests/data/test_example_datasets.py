"""The prepared example datasets: what their data card says of them is true."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

ROOT = Path(__file__).parents[2] / "examples" / "datasets"
NAMES = ["optical_digits", "python_reference", "world_english_diodati"]


def read(name, split, as_supervised=False):
    builder = tfds.builder_from_directory(ROOT / name / "1.0.0")
    return list(tfds.as_numpy(builder.as_dataset(split=split, as_supervised=as_supervised)))


def words(text):
    return " ".join(re.findall(r"\w+", text.casefold()))


def paragraphs(texts):
    return [" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text)]


@pytest.fixture(scope="module")
def pairs():
    return {
        split: [
            (english.decode(), italian.decode())
            for english, italian in read("world_english_diodati", split, as_supervised=True)
        ]
        for split in ("train", "test")
    }


@pytest.fixture(scope="module")
def reference():
    return {
        split: [example["text"].decode() for example in read("python_reference", split)]
        for split in ("train", "test")
    }


def test_the_folders_are_the_ones_described():
    prepared = sorted(path.parents[1].name for path in ROOT.glob("*/*/dataset_info.json"))
    assert prepared == NAMES
    card = (ROOT / "README.md").read_text()
    assert all(f"## `{name}`" in card for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_folder_is_small_and_names_no_machine(name):
    files = [path for path in (ROOT / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 3_000_000
    for path in files:
        if path.suffix == ".json":
            description = path.read_text()
            assert json.loads(description)
            assert not re.search(r"/(home|root|tmp|work|usr|var|Users)/", description)


@pytest.mark.parametrize(
    "name, train, test",
    [
        ("optical_digits", 1438, 359),
        ("python_reference", 70, 9),
        ("world_english_diodati", 9514, 2000),
    ],
)
def test_counts_and_slices(name, train, test):
    builder = tfds.builder_from_directory(ROOT / name / "1.0.0")
    assert builder.info.splits["train"].num_examples == train
    assert builder.info.splits["test"].num_examples == test
    assert len(read(name, "train[:7]")) == 7
    parts = [len(read(name, f"test[{part}]")) for part in (":40%", "40%:")]
    assert sum(parts) == test
    assert min(parts) > 0


def test_tfds_load_finds_them_by_name():
    dataset = tfds.load("optical_digits", data_dir=ROOT, split="test[:3]", download=False)
    assert len(dataset) == 3


def test_pairs_share_no_source_and_no_target(pairs):
    for side in (0, 1):
        train, test = ({words(pair[side]) for pair in pairs[split]} for split in ("train", "test"))
        assert len(train) > 9000
        assert len(test) > 1900
        assert train.isdisjoint(test)


def test_pairs_are_clean_and_of_at_most_20_words(pairs):
    for english, italian in pairs["train"] + pairs["test"]:
        assert 1 <= len(english.split()) <= 20
        assert 1 <= len(italian.split()) <= 20
        for text in (english, italian):
            assert text == " ".join(text.split())
            assert not re.search(r"[\[\]`<>*\d]", text)


def test_pairs_have_the_same_lengths_in_both_splits(pairs):
    shares = {}
    for split in ("train", "test"):
        lengths = [len(english.split()) for english, _ in pairs[split]]
        shares[split] = np.histogram(lengths, [1, 10, 15, 18, 21])[0] / len(lengths)
    np.testing.assert_allclose(shares["train"], shares["test"], atol=0.03)


def test_pairs_hold_none_of_the_later_translation(pairs):
    # The aligned text has the Riveduta's words in Acts 14 and Ezekiel 34 and 48.
    italian = " ".join(italian for split in pairs.values() for _, italian in split)
    assert "perciocchè" in italian
    for later in ("perché", "poiché", "E traversata la Pisidia", "Beniamino, una parte"):
        assert later not in italian


def test_digits():
    builder = tfds.builder_from_directory(ROOT / "optical_digits" / "1.0.0")
    assert builder.info.features["label"].names == list("0123456789")
    assert builder.info.features["image"].shape == (8, 8, 1)
    levels = np.rint(np.arange(17) * 255 / 16).astype("uint8")
    images = {}
    for split in ("train", "test"):
        examples = read("optical_digits", split, as_supervised=True)
        stack = np.stack([image for image, _ in examples])
        assert stack.shape[1:] == (8, 8, 1)
        assert stack.dtype == np.uint8
        assert set(np.unique(stack)) == set(levels)
        counts = np.bincount([label for _, label in examples], minlength=10)
        assert counts.shape == (10,)
        np.testing.assert_allclose(counts / len(examples), 0.1, atol=0.005)
        images[split] = {image.tobytes() for image in stack}
    assert images["train"].isdisjoint(images["test"])


def test_reference_is_whole_and_in_order(reference):
    assert reference["train"][0].startswith('The "assert" statement\n******')
    assert "yield" in reference["test"][-1]
    assert all(text.endswith("\n") for text in reference["train"])
    sizes = {split: len("".join(texts).encode()) for split, texts in reference.items()}
    assert sizes == {"train": 415_742, "test": 46_296}


def test_held_out_paragraphs_are_not_in_the_training_text(reference):
    train, test = (set(paragraphs(reference[split])) - {""} for split in ("train", "test"))
    assert len(train) > 1000
    assert len(test) > 200
    assert train.isdisjoint(test)
