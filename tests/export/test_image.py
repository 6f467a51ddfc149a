"""Published models of images: encoded bytes or pixels in, labels and probabilities out."""

import keras
import numpy as np
import pytest

import keras_tx as ktx
from keras_tx.export import publish
from tests.serving_session import serve, signatures

on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="the artefact is made on TensorFlow; the first test makes it from any backend",
)
CLASSES = ["zero", "one", "dós", "three", "four"]


def make(channels=3, class_names=CLASSES):
    return ktx.ViT(
        5,
        num_layers=1,
        hidden_dim=12,
        num_heads=3,
        image_size=(8, 6),
        patch_size=2,
        num_channels=channels,
        class_names=class_names,
    )


def images(count=7, channels=3, size=(8, 6)):
    return np.random.default_rng(3).integers(0, 256, (count, *size, channels), np.uint8)


def png(image):
    import tensorflow as tf

    return tf.io.encode_png(image).numpy()


def probabilities(model, pixels):
    return keras.ops.convert_to_numpy(keras.ops.softmax(model.predict(pixels, verbose=0)))


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(7)
    return make()


@pytest.fixture(scope="module")
def published(model, tmp_path_factory):
    return publish(model, tmp_path_factory.mktemp("vit"))


def test_images_and_pixels_of_any_backend_are_answered_as_predict_says(model, published):
    pixels = images()
    expected = probabilities(model, pixels)
    best = expected.argmax(axis=-1)
    for batch in (1, 7):
        for name, request in (
            ("serving_default", {"image_bytes": [png(image) for image in pixels[:batch]]}),
            ("pixels", {"pixels": pixels[:batch]}),
        ):
            served = serve(published, name, request, text_ops=False)
            np.testing.assert_allclose(served["probabilities"], expected[:batch], atol=1e-5)
            assert served["label_ids"].tolist() == best[:batch].tolist()
            assert [label.decode() for label in served["labels"]] == [
                CLASSES[index] for index in best[:batch]
            ]


@on_tensorflow
def test_the_signatures_are_named_and_batch_first(published):
    outputs = {
        "labels": ("object", [None]),
        "label_ids": ("int32", [None]),
        "probabilities": ("float32", [None, 5]),
    }
    assert signatures(published, text_ops=False) == {
        "serving_default": {"inputs": {"image_bytes": ("object", [None])}, "outputs": outputs},
        "pixels": {"inputs": {"pixels": ("uint8", [None, 8, 6, 3])}, "outputs": outputs},
    }


@on_tensorflow
def test_bytes_that_are_no_image_get_no_label_and_harm_no_neighbour(model, published):
    import tensorflow as tf

    pixels = images(1)
    whole = png(pixels[0])
    jpeg = tf.io.encode_jpeg(pixels[0]).numpy()
    requests = [whole, b"", b"no image", whole[:-30], jpeg[: len(jpeg) // 2], whole]
    served = serve(published, "serving_default", {"image_bytes": requests}, text_ops=False)
    assert (served["label_ids"] == -1).tolist() == [False, True, True, True, True, False]
    assert (served["labels"] == b"").tolist() == [False, True, True, True, True, False]
    np.testing.assert_array_equal(served["probabilities"][1:5], 0)
    expected = probabilities(model, pixels)
    np.testing.assert_allclose(served["probabilities"][[0, 5]], [expected[0]] * 2, atol=1e-5)
    served = serve(published, "serving_default", {"image_bytes": [b"alone"]}, text_ops=False)
    assert served["label_ids"].tolist() == [-1]


@on_tensorflow
def test_other_sizes_and_formats_are_read_as_the_training_data_is(model, published, tmp_path):
    import tensorflow as tf

    large = images(1, size=(31, 17))[0]
    grey = images(1, channels=1)[0]
    files = {"a.png": png(large), "b.jpg": tf.io.encode_jpeg(large).numpy(), "c.png": png(grey)}
    (tmp_path / "class").mkdir()
    for name, data in files.items():
        (tmp_path / "class" / name).write_bytes(data)
    train, test, _ = ktx.data.image_classification(str(tmp_path), image_size=(8, 6), batch_size=3)
    batches = [*train.as_numpy_iterator(), *test.as_numpy_iterator()]
    read = np.concatenate([inputs for inputs, _, _ in batches])
    served = serve(
        published, "serving_default", {"image_bytes": list(files.values())}, text_ops=False
    )
    expected = probabilities(model, read)
    for row in served["probabilities"]:  # shuffled and split
        assert np.abs(expected - row).max(axis=1).min() < 1e-5


@on_tensorflow
@pytest.mark.parametrize("channels", [1, 4, 2])
def test_other_channels_and_classes_without_names(channels, tmp_path):
    model = make(channels, class_names=None)
    path = publish(model, tmp_path)
    pixels = images(2, channels)
    request = {"image_bytes": [png(image) for image in pixels]}
    if channels == 2:  # no file of an image has two
        request = {"pixels": pixels}
    served = serve(path, "serving_default", request)
    expected = probabilities(model, pixels)
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-5)
    assert [int(label) for label in served["labels"]] == expected.argmax(axis=-1).tolist()
