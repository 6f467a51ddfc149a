"""Reads images and their classes from wherever they lie: TFDS, folders, arrays."""

import pathlib

import numpy as np

from keras_tx.data.sources import (
    TEST_SPLITS,
    is_path,
    is_sequence,
    no_source,
    open_source,
    splits,
)

_IMAGE_FILES = {".png", ".jpg", ".jpeg", ".bmp", ".gif"}


def read_images(source, *, image_size=None, features=None, download: bool = False, data_dir=None):
    """`(train, test, class_names)`; train and test are `(images, labels)`.

    Test is None where the source has no part of its own for it. Images are uint8
    (rows, height, width, channels), labels int32 (rows,).
    """
    size = _image_size(image_size)
    if is_path(source):
        opened = open_source(source, download, data_dir)
        if isinstance(opened, pathlib.Path):
            return _read_image_folder(opened, size)
        image, label = _image_features(opened, features)
        names = getattr(opened.info.features[label], "names", None)
        parts = [
            None
            if part is None
            else _stack(*zip(*((row[image], row[label]) for row in part), strict=True), size)
            for part in splits(opened)
        ]
    elif is_sequence(source) and len(source) == 2:
        names = None
        nested = all(is_sequence(part) and len(part) == 2 for part in source) and all(
            np.ndim(images) >= 3 for images, _ in source
        )
        parts = [_stack(*part, size) for part in source] if nested else [_stack(*source, size)]
        parts += [None] * (2 - len(parts))
    else:
        raise no_source(
            "a folder of images, arrays (images, labels), or ((images, labels), (images, labels))",
            source,
        )
    if not names:
        count = 1 + max(int(labels.max()) for _, labels in filter(None, parts))
        names = [str(number) for number in range(count)]
    return *parts, list(names)


def _image_features(builder, given):
    import tensorflow_datasets as tfds

    features = builder.info.features
    keys = tuple(given or builder.info.supervised_keys or ("image", "label"))
    if (
        len(keys) != 2
        or not set(keys) <= set(features)
        or not isinstance(features[keys[0]], tfds.features.Image)
        or not isinstance(features[keys[1]], tfds.features.ClassLabel)
    ):
        raise ValueError(
            f"Expected an image and a class label of {builder.info.full_name}; pass "
            f"features=(image, label) of {dict(features.items())}. Received features={given!r}."
        )
    return keys


def _image_size(image_size):
    if image_size is None:
        return None
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        raise ValueError(
            f"Expected image_size to be None, a positive number or (height, width). "
            f"Received {image_size!r}."
        )
    return size


def _stack(images, labels, size):
    """Arrays of one shape and type, resized if asked."""
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or len(labels) == 0:
        raise ValueError(
            f"Expected labels of whole numbers, shape (rows,). Received shape {labels.shape}, "
            f"dtype {labels.dtype}."
        )
    if len(images) != len(labels):
        raise ValueError(
            f"Expected as many images as labels. Received {len(images)} and {len(labels)}."
        )
    if labels.min() < 0:
        raise ValueError(f"Expected labels from 0 up. Received {int(labels.min())}.")
    shapes = {np.shape(image)[:2] for image in images} if size is None else ()
    if len(shapes) > 1:
        raise ValueError(
            f"Expected images of one size. Received {len(shapes)} sizes, such as "
            f"{sorted(shapes)[:3]}. Pass image_size=(height, width) to resize them."
        )
    images = images if isinstance(images, np.ndarray) else [np.asarray(image) for image in images]
    dtypes = {image.dtype for image in images}
    if dtypes != {np.dtype("uint8")}:
        raise ValueError(
            f"Expected images of dtype uint8, values 0 to 255: models scale the pixels "
            f"themselves. Received {sorted(map(str, dtypes))}."
        )
    if {np.ndim(image) for image in images} == {2}:
        images = [image[..., None] for image in images]
    if {np.ndim(image) for image in images} != {3}:
        raise ValueError("Expected images of shape (height, width) or (height, width, channels).")
    if len({image.shape[2] for image in images}) > 1:
        raise ValueError("Expected all images to have as many channels.")
    if size is not None and {image.shape[:2] for image in images} != {size}:
        images = [_resize(image, size) for image in images]
    return np.ascontiguousarray(np.stack(images)), labels.astype("int32")


def _resize(image, size):
    import tensorflow as tf

    resized = tf.image.resize(image, size, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8).numpy()


def _read_image_folder(path, size):
    """`<class>/<image>` or `<split>/<class>/<image>`; class numbers follow the sorted names."""
    if not path.is_dir():
        raise ValueError(f"Expected a folder of images. Received the file {str(path)!r}.")
    folders = _folders(path)
    if "train" in folders:
        test = next((name for name in TEST_SPLITS if name in folders), None)
        roots = [path / "train", test and path / test]
    else:
        roots = [path, None]
    class_names = _folders(roots[0])
    files = [root and _image_paths(root, class_names) for root in roots]
    if not files[0]:
        raise ValueError(
            f"Expected {str(roots[0])!r} to hold one folder of images for each class, files "
            f"{sorted(_IMAGE_FILES)}. It holds the folders {class_names}."
        )
    decoded = [part and [(_decode(file), label) for file, label in part] for part in files]
    channels = {image.shape[2] for part in decoded if part for image, _ in part}
    if channels - {1} and channels != {3}:
        channels = 1 if channels <= {1, 2} else 3
        decoded = [part and [(_decode(file, channels), n) for file, n in part] for part in files]
    parts = [part and _stack(*zip(*part, strict=True), size) for part in decoded]
    return parts[0], parts[1] or None, class_names


def _folders(path):
    return sorted(f.name for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))


def _image_paths(root, class_names):
    unknown = sorted(set(_folders(root)) - set(class_names))
    if unknown:
        raise ValueError(f"{str(root)!r} holds classes that training does not have: {unknown}.")
    return [
        (file, label)
        for label, name in enumerate(class_names)
        for file in sorted((root / name).rglob("*"))
        if file.suffix.lower() in _IMAGE_FILES
    ]


def _decode(file, channels=0):
    import tensorflow as tf

    try:
        return tf.io.decode_image(
            file.read_bytes(), channels=channels, expand_animations=False
        ).numpy()
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(f"Expected {str(file)!r} to be an image: {error.message}") from None
