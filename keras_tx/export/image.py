"""Signatures of a model of images: encoded bytes or pixels in, labels and probabilities out."""

import dataclasses

import keras
import numpy as np

from keras_tx.export.endpoint import Endpoint
from keras_tx.export.verify import close, tolerance
from keras_tx.models.vit import ViT


def classifies(model: keras.Model) -> bool:
    """True for a model that sorts images into classes."""
    return isinstance(model, ViT)


def pixels(model: keras.Model) -> np.ndarray:
    """Two made-up images, uint8 (2, H, W, C)."""
    return np.random.default_rng(0).integers(0, 256, (2, *_shape(model)), np.uint8)


def endpoints(model: keras.Model) -> list[Endpoint]:
    """`serving_default` from encoded images, `pixels` from uint8 pixels.

    Files of images have 1, 3 or 4 channels: for others `serving_default` takes pixels too.
    """
    import tensorflow as tf

    height, width, channels = _shape(model)
    names = model.class_names or range(model.num_classes)
    names = [str(name) for name in names]

    pixels_spec = tf.TensorSpec((None, height, width, channels), tf.uint8, name="pixels")

    # One trace for both signatures.
    @tf.function(input_signature=[pixels_spec], autograph=False)
    def from_pixels(pixels):
        probabilities = tf.nn.softmax(tf.cast(model(pixels, training=False), tf.float32))
        ids = tf.argmax(probabilities, -1, tf.int32)
        labels = tf.gather(tf.constant(names), ids)
        return {"labels": labels, "label_ids": ids, "probabilities": probabilities}

    def from_bytes(image_bytes):
        images, readable = _read(image_bytes, height, width, channels)
        answer = from_pixels(images)
        return {
            "labels": tf.where(readable, answer["labels"], ""),
            "label_ids": tf.where(readable, answer["label_ids"], -1),
            "probabilities": tf.where(readable[:, None], answer["probabilities"], 0.0),
        }

    images = pixels(model)

    def check(answer, rows=slice(None)):
        logits = keras.ops.cast(model(images, training=False), "float32")
        expected = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
        if not close(answer["probabilities"][rows], expected, tolerance(model)):
            raise RuntimeError(
                f"The artefact of {model.name!r} gives other probabilities than the model does."
            )

    def check_bytes(answer):
        check(answer, slice(len(images)))
        if answer["label_ids"][-1] != -1 or answer["labels"][-1]:
            raise RuntimeError("Bytes that are no image were given a label.")

    by_pixels = Endpoint("pixels", from_pixels, {"pixels": pixels_spec}, {"pixels": images}, check)
    if channels not in (1, 3, 4):
        return [dataclasses.replace(by_pixels, name="serving_default"), by_pixels]
    encoded = [tf.io.encode_png(image).numpy() for image in images]
    return [
        Endpoint(
            "serving_default",
            from_bytes,
            {"image_bytes": tf.TensorSpec((None,), tf.string, name="image_bytes")},
            {"image_bytes": np.array([*encoded, b"no image"], object)},
            check_bytes,
        ),
        by_pixels,
    ]


def _shape(model):
    size = model.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return height, width, model.num_channels


def _read(image_bytes, height, width, channels):
    """The images at the model's size, zeros where the bytes are no image, and which are read."""
    import tensorflow as tf

    def decode(row, data):
        image = tf.io.decode_image(data, channels=channels, expand_animations=False)
        image = tf.ensure_shape(image, (None, None, channels))
        # As keras_tx.data does to the images that the model was trained on.
        image = tf.image.resize(image, (height, width), antialias=True)
        return row, tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)

    # A data set is the one place where a graph may go on after an error: bytes that cannot be
    # decoded fail neither their batch nor, behind a batching server, other requests.
    batch = tf.size(image_bytes, tf.int64)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    images = tf.data.Dataset.from_tensor_slices(image_bytes).enumerate().map(decode)
    # The row past the last keeps the data set from being empty.
    blank = (batch[None], tf.zeros((1, height, width, channels), tf.uint8))
    images = images.ignore_errors().concatenate(tf.data.Dataset.from_tensor_slices(blank))
    rows, images = images.batch(batch + 1).with_options(options).get_single_element()
    readable = tf.scatter_nd(rows[:, None], tf.ones_like(rows), (batch + 1,)) > 0
    images = tf.scatter_nd(rows[:, None], images, (batch + 1, height, width, channels))
    return images[:batch], readable[:batch]
