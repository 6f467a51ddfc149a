"""Reads texts, text pairs and images from wherever they lie: TFDS, folders, files, lists, arrays.

Each reader returns `(train, test)` (images: and class names); test is None where the source has no
part of its own for it.
"""

import pathlib
import re
import zlib

import numpy as np

_TFDS_NAME = re.compile(r"[A-Za-z_]\w*(/[\w.\-]+)*(:[\w.*]+)*")
_TEST_SPLITS = ("test", "validation", "valid", "dev", "val")
_IMAGE_FILES = {".png", ".jpg", ".jpeg", ".bmp", ".gif"}


def read_texts(source, *, features=None, download=False, data_dir=None):
    """`(train, test)`, lists of documents.

    Of a TFDS data set `features`, or else `text`, or else its only text feature, is read.
    """
    if _is_path(source):
        opened = _open(source, download, data_dir)
        if isinstance(opened, pathlib.Path):
            if opened.is_dir():
                raise ValueError(
                    f"Expected a text file or a TFDS folder (with dataset_info.json). "
                    f"Received the folder {str(source)!r}."
                )
            return [_read_file(opened)], None
        name = _text_features(opened, 1, features)[0]
        parts = _splits(opened)
        return tuple(None if part is None else [_text(row[name]) for row in part] for part in parts)
    documents = list(source) if _is_sequence(source) else None
    if not documents or not all(isinstance(document, str) for document in documents):
        raise _no_source("a text file, or a list of strings", source)
    return documents, None


def read_pairs(source, *, features=None, download=False, data_dir=None):
    """`(train, test)`, lists of `(source text, target text)`.

    Of a TFDS data set `features`, or else the supervised keys, or else its only two text features
    in the order of their names, are read; of a file the first two columns of each line, separated
    by a tab.
    """
    if _is_path(source):
        opened = _open(source, download, data_dir)
        if isinstance(opened, pathlib.Path):
            if opened.is_dir():
                raise ValueError(
                    f"Expected a file of tab-separated pairs or a TFDS folder (with "
                    f"dataset_info.json). Received the folder {str(source)!r}."
                )
            return _read_columns(opened), None
        first, second = _text_features(opened, 2, features)
        return tuple(
            None if part is None else [(_text(row[first]), _text(row[second])) for row in part]
            for part in _splits(opened)
        )
    pairs = list(source) if _is_sequence(source) else None
    if not pairs:
        raise _no_source("a file of tab-separated pairs, or a list of pairs of strings", source)
    for pair in pairs:
        if (
            not isinstance(pair, (tuple, list))
            or len(pair) != 2
            or not all(isinstance(text, str) for text in pair)
        ):
            raise ValueError(f"Expected pairs (source text, target text). Received {pair!r:.200}.")
    return [tuple(pair) for pair in pairs], None


def read_images(source, *, image_size=None, features=None, download=False, data_dir=None):
    """`(train, test, class_names)`; train and test are `(images, labels)`.

    Images are uint8 (rows, height, width, channels), labels int32 (rows,).
    """
    size = _image_size(image_size)
    if _is_path(source):
        opened = _open(source, download, data_dir)
        if isinstance(opened, pathlib.Path):
            return _read_image_folder(opened, size)
        image, label = _image_features(opened, features)
        names = getattr(opened.info.features[label], "names", None)
        parts = [
            None
            if part is None
            else _stack(*zip(*((row[image], row[label]) for row in part), strict=True), size)
            for part in _splits(opened)
        ]
    elif _is_sequence(source) and len(source) == 2:
        names = None
        nested = all(_is_sequence(part) and len(part) == 2 for part in source) and all(
            np.ndim(images) >= 3 for images, _ in source
        )
        parts = [_stack(*part, size) for part in source] if nested else [_stack(*source, size)]
        parts += [None] * (2 - len(parts))
    else:
        raise _no_source(
            "a folder of images, arrays (images, labels), or ((images, labels), (images, labels))",
            source,
        )
    if not names:
        count = 1 + max(int(labels.max()) for _, labels in filter(None, parts))
        names = [str(number) for number in range(count)]
    return *parts, list(names)


def hold_out_text(documents):
    """The last tenth: of the documents, or of the only one, at a line end where there is one."""
    if len(documents) > 1:
        count = max(1, len(documents) // 10)
        return documents[:-count], documents[-count:]
    text = documents[0]
    cut = len(text) - max(1, len(text) // 10)
    line_end = text.rfind("\n", len(text) - len(text) // 5, cut) + 1
    cut = line_end or cut
    if not text[:cut]:
        raise ValueError(f"Expected a text of at least 2 characters. Received {text!r}.")
    return [text[:cut]], [text[cut:]]


def hold_out_pairs(pairs):
    """A tenth of the distinct sources, those with the smallest CRC-32, and all their pairs.

    So the order of the pairs does not matter and no source is on both sides.
    """
    sources = sorted({source for source, _ in pairs}, key=lambda text: (_crc(text), text))
    if len(sources) < 2:
        raise ValueError(
            f"Expected pairs with at least 2 different sources, to hold one out. "
            f"Received {len(sources)}. Give a test_source of its own."
        )
    held_out = set(sources[: max(1, len(sources) // 10)])
    return (
        [pair for pair in pairs if pair[0] not in held_out],
        [pair for pair in pairs if pair[0] in held_out],
    )


def hold_out_images(images, labels):
    """Of each class every tenth image, at least the last of two."""
    test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        test[rows[9::10] if len(rows) >= 10 else rows[1:][-1:]] = True
    if not test.any():
        raise ValueError(
            f"Expected at least 2 images of one class, to hold one out. Received {len(labels)} "
            "images of as many classes. Give a test_source of its own."
        )
    return (images[~test], labels[~test]), (images[test], labels[test])


def _crc(text):
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _is_path(source):
    return isinstance(source, (str, pathlib.Path))


def _is_sequence(source):
    return isinstance(source, (list, tuple, np.ndarray))


def _no_source(expected, source):
    return ValueError(
        f"Expected a TFDS name, a TFDS folder, {expected}. Received {type(source).__name__} "
        f"{source!r:.200}."
    )


def _open(source, download, data_dir):
    """A TFDS builder, or the path of a plain file or folder."""
    path = pathlib.Path(source).expanduser()
    if path.is_dir():
        folder = _prepared_folder(path)
        if folder is None:
            return path
        import tensorflow_datasets as tfds

        return tfds.builder_from_directory(folder)
    if path.exists():
        return path
    if not isinstance(source, str) or not _TFDS_NAME.fullmatch(source):
        raise ValueError(f"Expected a file, a folder or a TFDS name. There is no {str(source)!r}.")
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(source, data_dir=data_dir, try_gcs=False)
    except ValueError as error:
        reason = str(error).partition("Available datasets")[0].strip()
        raise ValueError(
            f"Expected a file, a folder or a TFDS name. Received {source!r}: no such file or "
            f"folder here ({pathlib.Path.cwd()}), and tensorflow-datasets says: {reason}"
        ) from None
    if download:
        builder.download_and_prepare()
    return builder


def _prepared_folder(path):
    """The folder itself if it holds a prepared data set, or its newest version."""
    if (path / "dataset_info.json").exists():
        return path
    for pattern in ("*/dataset_info.json", "*/*/dataset_info.json"):
        folders = [file.parent for file in path.glob(pattern)]
        if len({folder.parent for folder in folders}) > 1:
            names = sorted(str(folder.relative_to(path)) for folder in folders)
            raise ValueError(f"Expected one TFDS data set in {str(path)!r}. Received {names}.")
        if folders:
            return max(folders, key=_version)
    return None


def _version(folder):
    return [int(part) if part.isdigit() else -1 for part in folder.name.split(".")]


def _splits(builder):
    """The rows of the training and of the test split; None where there is no test split."""
    names = list(builder.info.splits)
    if names and "train" not in names:
        raise ValueError(
            f"Expected {builder.info.full_name} to have a split 'train'. It has {names}."
        )
    test = next((name for name in _TEST_SPLITS if name in names), None)
    if not names:
        # Not prepared, or a stand-in that knows its splits only when asked.
        try:
            return _rows(builder, "train"), _rows(builder, "test")
        except ValueError:
            return _rows(builder, "train"), None
    return _rows(builder, "train"), test and _rows(builder, test)


def _rows(builder, split):
    import tensorflow_datasets as tfds

    try:
        dataset = builder.as_dataset(split=split, shuffle_files=False)
    except AssertionError as error:
        config = builder.builder_config
        name = f"{builder.name}/{config.name}" if config else builder.name
        raise ValueError(
            f"The data set {name!r} is not on this machine (looked in {builder.data_dir}). Pass "
            f"download=True to fetch it, or run tensorflow_datasets.load({name!r}) once, or pass "
            "the folder that holds it as source or its parent as data_dir."
        ) from error
    return list(tfds.as_numpy(dataset))


def _text_features(builder, count, given):
    """Names of the features to read. Their order in a prepared folder means nothing."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    names = sorted(name for name in features if isinstance(features[name], tfds.features.Text))
    if given is None:
        preferred = builder.info.supervised_keys if count == 2 else ("text",)
        chosen = preferred if preferred and set(preferred) <= set(names) else names
    else:
        chosen = (given,) if isinstance(given, str) else tuple(given)
    if len(chosen) != count or not set(chosen) <= set(names):
        wanted = "(source, target)" if count == 2 else "a name"
        raise ValueError(
            f"Expected {count} text feature(s) of {builder.info.full_name}; pass features={wanted} "
            f"of {names}. Received features={given!r}."
        )
    return chosen


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


def _text(value):
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _read_file(path):
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected {str(path)!r} to be UTF-8 text. Byte {error.start} is not; convert the "
            "file, for example by iconv."
        ) from None
    if not text:
        raise ValueError(f"Expected a text. The file {str(path)!r} is empty.")
    return text


def _read_columns(path):
    pairs = []
    for number, line in enumerate(re.split(r"\r?\n", _read_file(path)), 1):
        columns = line.split("\t")
        if not line.strip():
            continue
        if len(columns) < 2:
            raise ValueError(
                f"Expected two columns separated by a tab on each line of {str(path)!r}. "
                f"Line {number} is {line!r:.200}."
            )
        pairs.append((columns[0], columns[1]))
    return pairs


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
        test = next((name for name in _TEST_SPLITS if name in folders), None)
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
