"""Every kind of source goes through the same functions; what is no source is refused at once."""

from itertools import permutations

import numpy as np
import pytest

from keras_tx import data
from keras_tx.data import tokenizers


def texts_of(dataset, tokenizer):
    return sorted(
        tuple(tokenizers.decode(tokenizer, [source, target]))
        for x, y, w in dataset.as_numpy_iterator()
        for source, target, real in zip(x["source_ids"], y, w, strict=True)
        if real.any()
    )


def write_images(folder, counts, size=(4, 6), mode="RGB", suffix=".png"):
    from PIL import Image

    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new(mode, size, number).save(folder / name / f"{number}{suffix}")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A prepared folder of texts, pairs and images, in two versions."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "first": tfds.features.Text(),
            "image": tfds.features.Image(shape=(2, 3, 1)),
            "label": tfds.features.ClassLabel(names=["odd", "even"]),
            "note": tfds.features.Text(),
            "second": tfds.features.Text(),
        }
    )

    def part(count):
        return tf.data.Dataset.from_tensor_slices(
            {
                "first": [f"a{n}" for n in range(count)],
                "image": np.arange(count, dtype="uint8")[:, None, None, None]
                * np.ones((1, 2, 3, 1), "uint8"),
                "label": [1] * count,
                "note": ["note"] * count,
                "second": [f"b{n}" for n in range(count)],
            }
        )

    root = tmp_path_factory.mktemp("tfds")
    for version, count in (("1.9.0", 10), ("1.10.0", 20)):
        tfds.dataset_builders.store_as_tfds_dataset(
            name="things",
            version=version,
            data_dir=str(root),
            features=features,
            split_datasets={"train": part(count), "test": part(3)},
        )
    return root / "things"


@pytest.mark.parametrize("folder", ["", "1.10.0", "1.9.0"])
def test_prepared_folder(prepared, folder):
    count = 10 if folder == "1.9.0" else 20
    source = prepared / folder
    train, test, tokenizer = data.text_pairs(
        str(source), tokenizer="byte", batch_size=3, features=("second", "first")
    )
    assert texts_of(train, tokenizer) == sorted((f"b{n}", f"a{n}") for n in range(count))
    assert len(texts_of(test, tokenizer)) == 3

    _, test, tokenizer = data.language_modeling(source, tokenizer="byte", features="first")
    assert data.covered_text(test, tokenizer)[0] in {
        "".join(p) for p in permutations(["a0", "a1", "a2"])
    }

    train, test, names = data.image_classification(source, batch_size=2)
    assert names == ["odd", "even"]
    values = [int(image[0, 0, 0]) for x, _, _ in train.as_numpy_iterator() for image in x]
    assert sorted(values) == list(range(count))


def test_which_features_must_be_clear(prepared):
    with pytest.raises(ValueError, match="features=.source, target. of .'first', 'note', 'second'"):
        data.text_pairs(prepared)
    with pytest.raises(ValueError, match="features=a name.*Received features='image'"):
        data.language_modeling(prepared, features="image")
    with pytest.raises(ValueError, match="features=.image, label."):
        data.image_classification(prepared, features=("note", "label"))


def test_tfds_names():
    import tensorflow_datasets as tfds

    with tfds.testing.mock_data(num_examples=5):
        train, test, tokenizer = data.language_modeling(
            "tiny_shakespeare", vocabulary_size=280, sequence_length=7, batch_size=2
        )
        assert next(iter(train))[1].shape == (2, 7)
        assert data.covered_text(test, tokenizer)[0]

        train, test, tokenizer = data.text_pairs(
            "ted_hrlr_translate/pt_to_en", vocabulary_size=300, batch_size=2
        )
        assert len(texts_of(train, tokenizer)) == len(texts_of(test, tokenizer)) == 5

        train, test, names = data.image_classification("fashion_mnist", batch_size=2)
        assert names[0] == "T-shirt/top"
        images, labels, _ = next(iter(test))
        assert images.shape == (2, 28, 28, 1)
        assert labels.shape == (2,)


def test_a_data_set_not_here_fails_at_once(tmp_path):
    with pytest.raises(ValueError, match="'tiny_shakespeare' is not on this.*download=True"):
        data.language_modeling("tiny_shakespeare", data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"load\('ted_hrlr_translate/pt_to_en'\)"):
        data.text_pairs("ted_hrlr_translate/pt_to_en", data_dir=tmp_path)
    with pytest.raises(ValueError, match="'fashion_mnist' is not on this machine"):
        data.image_classification("fashion_mnist", data_dir=tmp_path)
    with pytest.raises(ValueError, match="tensorflow-datasets says: Dataset nothing not found"):
        data.image_classification("nothing")
    with pytest.raises(ValueError, match=r"There is no 'notes\.txt'"):
        data.language_modeling("notes.txt")


def test_text_file(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes("a\r\n\tb  ß\n".encode() * 10)
    for source in (path, str(path)):
        train, test, tokenizer = data.language_modeling(
            source, vocabulary_size=270, sequence_length=4, test_source=path
        )
        assert data.covered_text(test, tokenizer)[0] == "a\r\n\tb  ß\n" * 10
    path.write_bytes(b"abc\xff")
    with pytest.raises(ValueError, match="Byte 3 is not"):
        data.language_modeling(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        data.language_modeling(path)
    with pytest.raises(ValueError, match="text file or a TFDS folder"):
        data.language_modeling(tmp_path)


def test_tab_separated_file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("one\tuno\tCC-BY\n\ntwo\tdue\r\n\tnulla", encoding="utf-8", newline="")
    train, _, tokenizer = data.text_pairs(path, tokenizer="byte", test_source=[("x", "y")])
    expected = [("", "nulla"), ("one", "uno"), ("two", "due")]
    assert texts_of(train, tokenizer) == expected
    path.write_text("one\tuno\ntwo due\n")
    with pytest.raises(ValueError, match="Line 2 is 'two due'"):
        data.text_pairs(path)


@pytest.mark.parametrize("source", [None, 3, [], ["a", 3], {"a": "b"}, b"abc"])
def test_no_source_of_text(source):
    with pytest.raises(ValueError, match="Expected a TFDS name.*list of strings"):
        data.language_modeling(source)


@pytest.mark.parametrize("source", [None, [], ["ab"], [("a",)], [("a", 3)]])
def test_no_source_of_pairs(source):
    with pytest.raises(ValueError, match="pairs"):
        data.text_pairs(source)


@pytest.mark.parametrize("source", [None, [], [1, 2, 3], {}])
def test_no_source_of_images(source):
    with pytest.raises(ValueError, match="folder of images"):
        data.image_classification(source)


def test_folder_of_images(tmp_path):
    write_images(tmp_path / "all", {"dog": 12, "cat": 3, ".cache": 1})
    train, test, names = data.image_classification(tmp_path / "all", batch_size=4)
    assert names == ["cat", "dog"]
    assert next(iter(train))[0].shape == (4, 6, 4, 3)
    ((x, y, w),) = test.as_numpy_iterator()
    assert y[w > 0].tolist() == [0, 1]

    write_images(tmp_path / "split" / "train", {"a": 2, "b": 2})
    write_images(tmp_path / "split" / "validation", {"b": 1})
    train, test, names = data.image_classification(tmp_path / "split", batch_size=4)
    assert len(next(iter(train))[1]) == 4
    ((x, y, w),) = test.as_numpy_iterator()
    assert y[w > 0].tolist() == [1]


def test_images_of_many_sizes_and_kinds(tmp_path):
    write_images(tmp_path / "a", {"gray": 2}, mode="L")
    train, _, _ = data.image_classification(tmp_path / "a")
    assert next(iter(train))[0].shape == (1, 6, 4, 1)

    write_images(tmp_path / "b", {"gray": 2}, mode="L")
    write_images(tmp_path / "b", {"color": 2}, mode="RGBA", size=(5, 5))
    write_images(tmp_path / "b", {"photo": 2}, suffix=".JPG")
    with pytest.raises(ValueError, match="one size.*Pass image_size"):
        data.image_classification(tmp_path / "b")
    train, _, names = data.image_classification(tmp_path / "b", image_size=3, batch_size=3)
    assert names == ["color", "gray", "photo"]
    images = next(iter(train))[0]
    assert images.shape == (3, 3, 3, 3)
    assert images.dtype == np.uint8

    (tmp_path / "b" / "photo" / "bad.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="bad.png' to be an image"):
        data.image_classification(tmp_path / "b", image_size=3)
    with pytest.raises(ValueError, match="one folder of images for each class"):
        data.image_classification(tmp_path / "b" / "photo")
    with pytest.raises(ValueError, match="folder of images. Received the file"):
        data.image_classification(tmp_path / "b" / "photo" / "bad.png")


def test_resizing_keeps_a_flat_image():
    images = np.full((4, 8, 6, 1), 77, "uint8")
    train, _, _ = data.image_classification((images, [0, 0, 1, 1]), image_size=(5, 7))
    assert (next(iter(train))[0].numpy() == 77).all()
    assert next(iter(train))[0].shape[1:] == (5, 7, 1)
