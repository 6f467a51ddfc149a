"""Holds a part of a source out as the test, where the source has none of its own."""

import zlib

import numpy as np


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
