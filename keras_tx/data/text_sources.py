"""Reads texts and text pairs from wherever they lie: TFDS, files, lists.

Each reader returns `(train, test)`; test is None where the source has no part of its own for it.
"""

import pathlib
import re

from keras_tx.data.sources import is_path, is_sequence, no_source, open_source, splits


def read_texts(source, *, features=None, download: bool = False, data_dir=None):
    """`(train, test)`, lists of documents.

    Of a TFDS data set `features`, or else `text`, or else its only text feature, is read.
    """
    if is_path(source):
        opened = open_source(source, download, data_dir)
        if isinstance(opened, pathlib.Path):
            if opened.is_dir():
                raise ValueError(
                    f"Expected a text file or a TFDS folder (with dataset_info.json). "
                    f"Received the folder {str(source)!r}."
                )
            return [_read_file(opened)], None
        name = _text_features(opened, 1, features)[0]
        parts = splits(opened)
        return tuple(None if part is None else [_text(row[name]) for row in part] for part in parts)
    documents = list(source) if is_sequence(source) else None
    if not documents or not all(isinstance(document, str) for document in documents):
        raise no_source("a text file, or a list of strings", source)
    return documents, None


def read_pairs(source, *, features=None, download: bool = False, data_dir=None):
    """`(train, test)`, lists of `(source text, target text)`.

    Of a TFDS data set `features`, or else the supervised keys, or else its only two text features
    in the order of their names, are read; of a file the first two columns of each line, separated
    by a tab.
    """
    if is_path(source):
        opened = open_source(source, download, data_dir)
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
            for part in splits(opened)
        )
    pairs = list(source) if is_sequence(source) else None
    if not pairs:
        raise no_source("a file of tab-separated pairs, or a list of pairs of strings", source)
    for pair in pairs:
        if (
            not isinstance(pair, (tuple, list))
            or len(pair) != 2
            or not all(isinstance(text, str) for text in pair)
        ):
            raise ValueError(f"Expected pairs (source text, target text). Received {pair!r:.200}.")
    return [tuple(pair) for pair in pairs], None


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
