"""Images and their classes to batches."""

import pathlib

import numpy as np

from keras_tx.data.batches import batched, check_positive, check_seed, pad_rows, random
from keras_tx.data.hold_out import hold_out_images
from keras_tx.data.image_sources import read_images


def image_classification(
    source: str | pathlib.Path | tuple,
    *,
    image_size: int | tuple[int, int] | None = None,
    batch_size: int = 128,
    class_names: list[str] | None = None,
    test_source: str | pathlib.Path | tuple | None = None,
    features: tuple[str, str] | None = None,
    seed: int = 0,
    download: bool = False,
    data_dir: str | pathlib.Path | None = None,
):
    """Images as `(train, test, class_names)`, for a classifier.

    Each batch is `(images (B, H, W, C), labels (B,), weights (B,))`: uint8 as in the files (the
    model scales), int32, float32; always of the same shape. Training rows are shuffled as a
    function of (seed, epoch), and those that fill no batch are left out, in each epoch others.
    The test is in order and complete: its last batch is filled up with black images of weight 0.

    Args:
        source: A TFDS name (`"fashion_mnist"`), a prepared TFDS folder or the folder above its
            versions, a folder of images (`<class>/<image>`, or `train/<class>/<image>` beside
            `test/...`; PNG, JPEG, BMP, GIF), arrays `(images, labels)`, or
            `((images, labels), (images, labels))` as `keras.datasets` gives. Without a test split
            (`test`, else `validation`) every tenth image of each class is held out, of a class of
            less than ten the last.
        image_size: Side, or (height, width), to which images are resized; None: as they are, and
            then all alike.
        batch_size: B; if there are fewer training images, their number.
        class_names: Names of the classes, where the source has none; None: their numbers.
        test_source: Another source whose images are the test (its test split, if it has one);
            of the same classes.
        features: Names of the image and label features of a TFDS data set; None: its supervised
            keys, or else `("image", "label")`.
        seed: Of the order of the training images.
        download: Whether TFDS may fetch a data set that is not on this machine.
        data_dir: Where TFDS keeps its data sets; None: its default.

    Returns:
        `(train, test, class_names)`: two `tf.data.Dataset` of known cardinality, held in memory,
        for `fit` and `evaluate` on every backend; and a list of str.

    Raises:
        ValueError: If there is nothing to read, images are of several sizes without `image_size`
            or not uint8, a data set is not on this machine while `download=False`, or a number is
            out of its range.

    Example:
        >>> images, labels = np.zeros((4, 8, 8, 1), "uint8"), [0, 1, 0, 1]
        >>> train, test, class_names = image_classification((images, labels), batch_size=2)
        >>> class_names
        ['0', '1']
    """
    check_positive(batch_size=batch_size)
    check_seed(seed)
    reading = {
        "image_size": image_size,
        "features": features,
        "download": download,
        "data_dir": data_dir,
    }
    train, test, names = read_images(source, **reading)
    if test_source is not None:
        first, second, test_names = read_images(test_source, **reading)
        test = first if second is None else second
        if test_names[: len(names)] != names[: len(test_names)]:
            raise ValueError(
                f"Expected the test's classes to be the training's. Received {test_names} and "
                f"{names}."
            )
    elif test is None:
        train, test = hold_out_images(*train)
    names = _class_names(class_names, names, train, test)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise ValueError(
            f"Expected training and test images of one shape. Received {train[0].shape[1:]} and "
            f"{test[0].shape[1:]}. Pass image_size to resize them."
        )
    return _training(*train, batch_size, seed), _test(*test, batch_size), names


def _class_names(given, found, train, test):
    names = list(found if given is None else given)
    needed = 1 + max(int(train[1].max()), int(test[1].max()))
    if len(names) < needed:
        raise ValueError(
            f"Expected a name for each of the {needed} classes. Received {len(names)}: {names}."
        )
    return [str(name) for name in names]


def _training(images, labels, batch_size, seed):
    batch_size = min(batch_size, len(labels))
    num_batches = len(labels) // batch_size
    weights = np.ones(batch_size, "float32")

    def batches(epoch):
        order = random(seed, epoch).permutation(len(labels))
        for rows in order[: num_batches * batch_size].reshape(num_batches, batch_size):
            yield images[rows], labels[rows], weights

    return batched(batches, num_batches, _signature(batch_size, images))


def _test(images, labels, batch_size):
    num_batches = -(-len(labels) // batch_size)

    def batches(epoch):
        for begin in range(0, len(labels), batch_size):
            part = slice(begin, begin + batch_size)
            weights = np.ones(len(labels[part]), "float32")
            yield tuple(pad_rows(x, batch_size) for x in (images[part], labels[part], weights))

    return batched(batches, num_batches, _signature(batch_size, images))


def _signature(batch_size, images):
    import tensorflow as tf

    return (
        tf.TensorSpec((batch_size, *images.shape[1:]), tf.uint8),
        tf.TensorSpec((batch_size,), tf.int32),
        tf.TensorSpec((batch_size,), tf.float32),
    )
