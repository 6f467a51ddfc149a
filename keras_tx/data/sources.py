"""What the readers share: telling what a source is, and opening it when it is TFDS's."""

import pathlib
import re

import numpy as np

TEST_SPLITS = ("test", "validation", "valid", "dev", "val")

_TFDS_NAME = re.compile(r"[A-Za-z_]\w*(/[\w.\-]+)*(:[\w.*]+)*")


def is_path(source):
    return isinstance(source, (str, pathlib.Path))


def is_sequence(source):
    return isinstance(source, (list, tuple, np.ndarray))


def no_source(expected, source):
    return ValueError(
        f"Expected a TFDS name, a TFDS folder, {expected}. Received {type(source).__name__} "
        f"{source!r:.200}."
    )


def open_source(source, download, data_dir):
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


def splits(builder):
    """The rows of the training and of the test split; None where there is no test split."""
    names = list(builder.info.splits)
    if names and "train" not in names:
        raise ValueError(
            f"Expected {builder.info.full_name} to have a split 'train'. It has {names}."
        )
    test = next((name for name in TEST_SPLITS if name in names), None)
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
