"""Pairs of texts to batches of few shapes."""

import pathlib

import keras
import numpy as np

from keras_tx.data import tokenizers
from keras_tx.data.batches import batched, check_positive, check_seed, pad_rows, random
from keras_tx.data.hold_out import hold_out_pairs
from keras_tx.data.text_sources import read_pairs
from keras_tx.data.train_tokenizer import resolve_tokenizer

_MULTIPLE = 8


def text_pairs(
    source: str | pathlib.Path | list[tuple[str, str]],
    *,
    vocabulary_size: int = 4096,
    tokenizer: str | keras.layers.Layer | None = None,
    target_tokenizer: keras.layers.Layer | None = None,
    max_sequence_length: int | None = None,
    too_long: str = "raise",
    buckets: int | list[int] = 4,
    batch_size: int = 64,
    test_source: str | pathlib.Path | list[tuple[str, str]] | None = None,
    features: tuple[str, str] | None = None,
    seed: int = 0,
    download: bool = False,
    data_dir: str | pathlib.Path | None = None,
):
    """Text pairs as `(train, test, tokenizer)`, for a model from a source to a target text.

    Each batch is `({"source_ids": (B, S), "target_ids": (B, T)}, targets (B, T), weights (B, T))`:
    int32, int32, float32. `source_ids` are the source's tokens. `target_ids` are the start token
    and the target's tokens, `targets` the target's tokens and the end token. All are right-padded
    with the padding id; weights are 1 on targets and 0 on padding.

    Pairs of like length share a batch: S = T is one of a few lengths (`buckets`), B always the
    same. Pairs left over in a bucket go on to the next longer one; the last batch is filled up
    with rows of padding. So each pair comes exactly once in every epoch. Training batches are
    shuffled as a function of (seed, epoch), the test is in fixed order.

    Args:
        source: A TFDS name (`"ted_hrlr_translate/pt_to_en"`), a prepared TFDS folder or the folder
            above its versions, a file with a tab between source and target on each line, or a list
            of pairs. Without a test split (`test`, else `validation`) a tenth of the distinct
            sources is held out with all their pairs: those with the smallest CRC-32.
        vocabulary_size: Number of ids of the tokenizer to train; not used when one is given.
        tokenizer: A keras-nlp tokenizer, or the kind to train on the training texts of both sides:
            None or `"sentencepiece"`, `"byte"`, `"wordpiece"`
            (see `keras_tx.data.train_tokenizer`).
        target_tokenizer: The targets' own tokenizer; None: the same.
        max_sequence_length: The most tokens of a source, and of a target with its start or end
            token. None: as long as the longest.
        too_long: What becomes of longer pairs: `"raise"` or `"drop"` (of test pairs too). No text
            is ever cut.
        buckets: How many lengths, chosen so that each bucket holds about as many training pairs,
            or the lengths themselves, in rising order.
        batch_size: B.
        test_source: Another source whose pairs are the test (its test split, if it has one).
        features: Names of the source and target features of a TFDS data set; None: its supervised
            keys, or else its only two text features in the order of their names.
        seed: Of the order of the training batches.
        download: Whether TFDS may fetch a data set that is not on this machine.
        data_dir: Where TFDS keeps its data sets; None: its default.

    Returns:
        `(train, test, tokenizer)`: two `tf.data.Dataset` of known cardinality, held in memory,
        for `fit` and `evaluate` on every backend; and the tokenizer (of the source, if there are
        two).

    Raises:
        ValueError: If there is nothing to read, a data set is not on this machine while
            `download=False`, a pair is too long while `too_long="raise"`, or a number is out of its
            range.

    Example:
        >>> pairs = [("one", "uno"), ("two", "due"), ("three", "tre")]
        >>> train, test, tokenizer = text_pairs(pairs, tokenizer="byte", batch_size=2)
        >>> inputs, targets, weights = next(iter(train))
        >>> inputs["source_ids"].shape
        (2, 8)
    """
    check_positive(batch_size=batch_size)
    check_seed(seed)
    if max_sequence_length is not None:
        check_positive(max_sequence_length=max_sequence_length)
    if too_long not in ("raise", "drop"):
        raise ValueError(f'Expected too_long to be "raise" or "drop". Received {too_long!r}.')
    _check_buckets(buckets)
    reading = {"features": features, "download": download, "data_dir": data_dir}
    train, test = read_pairs(source, **reading)
    if test_source is not None:
        parts = read_pairs(test_source, **reading)
        test = parts[0] if parts[1] is None else parts[1]
    elif test is None:
        train, test = hold_out_pairs(train)
    texts = [text for side in zip(*train, strict=True) for text in side]
    tokenizer = resolve_tokenizer(tokenizer, texts, vocabulary_size)
    sides = (tokenizer, tokenizer if target_tokenizer is None else target_tokenizer)
    special = _special_ids(sides)
    train, test = (
        _fitting(_encoded(sides, pairs), max_sequence_length, too_long, name)
        for name, pairs in (("training", train), ("test", test))
    )
    lengths = _lengths(buckets, train, test, max_sequence_length)
    return (
        _dataset(train, lengths, batch_size, special, seed),
        _dataset(test, lengths, batch_size, special, None),
        tokenizer,
    )


def _check_buckets(buckets):
    if isinstance(buckets, int):
        check_positive(buckets=buckets)
        return
    lengths = list(buckets)
    check_positive(**{f"buckets[{n}]": length for n, length in enumerate(lengths)})
    if not lengths or sorted(set(lengths)) != lengths:
        raise ValueError(
            f"Expected buckets to be a number, or lengths in rising order. Received {buckets!r}."
        )


def _special_ids(sides):
    source, target = (tokenizers.special_ids(tokenizer) for tokenizer in sides)
    absent = [name for name, id in target.items() if id is None]
    if absent or source["pad"] is None:
        raise ValueError(
            "Expected tokenizers with ids for padding, and for start and end in the target's. "
            f"Received {source} and {target}. keras_tx.data.train_tokenizer makes such ones."
        )
    return {"source_pad": source["pad"], **target}


def _encoded(sides, pairs):
    texts = list(zip(*pairs, strict=True))
    return list(
        zip(
            *(tokenizers.encode(side, text) for side, text in zip(sides, texts, strict=True)),
            strict=True,
        )
    )


def _length(pair):
    source, target = pair
    return max(len(source), len(target) + 1)


def _fitting(pairs, limit, too_long, name):
    if limit is None:
        return pairs
    fitting = [pair for pair in pairs if _length(pair) <= limit]
    if len(fitting) < len(pairs) and too_long == "raise":
        raise ValueError(
            f"Expected at most max_sequence_length={limit} tokens a side. Received "
            f"{len(pairs) - len(fitting)} longer ones among {len(pairs)} {name} pairs, the longest "
            f'{max(map(_length, pairs))}. Raise max_sequence_length, or pass too_long="drop".'
        )
    if not fitting:
        raise ValueError(
            f"Expected {name} pairs of at most max_sequence_length={limit} tokens. All "
            f"{len(pairs)} are longer."
        )
    return fitting


def _lengths(buckets, train, test, limit):
    longest = max(_length(pair) for part in (train, test) for pair in part)
    if not isinstance(buckets, int):
        lengths = list(buckets)
        if lengths[-1] < longest:
            raise ValueError(
                f"Expected the last bucket to hold the longest pair, {longest} tokens. Received "
                f'buckets={buckets!r}. Add one, or pass max_sequence_length and too_long="drop".'
            )
        return lengths
    shares = np.arange(1, buckets + 1) / buckets
    quantiles = np.quantile([_length(pair) for pair in train], shares, method="higher")
    quantiles[-1] = longest
    rounded = sorted({int(-(-length // _MULTIPLE) * _MULTIPLE) for length in quantiles})
    return [length if limit is None else min(length, limit) for length in rounded]


def _dataset(pairs, lengths, batch_size, special, seed):
    """Batches of the pairs; shuffled unless seed is None."""
    bucket_of = np.searchsorted(lengths, [_length(pair) for pair in pairs])
    members = [np.flatnonzero(bucket_of == bucket) for bucket in range(len(lengths))]

    def plan(epoch):
        """(length, pair numbers) of each batch."""
        numbers = None if seed is None else random(seed, epoch)
        batches, left = [], np.array([], int)
        for length, rows in zip(lengths, members, strict=True):
            rows = np.concatenate([left, rows if numbers is None else numbers.permutation(rows)])
            full = len(rows) // batch_size * batch_size
            batches += [(length, part) for part in rows[:full].reshape(-1, batch_size)]
            left = rows[full:]
        if len(left):
            batches.append((lengths[bucket_of[left].max()], left))
        if numbers is not None:
            batches = [batches[number] for number in numbers.permutation(len(batches))]
        return batches

    def batches(epoch):
        for length, rows in plan(epoch):
            sources = [pairs[row][0] for row in rows]
            inputs = [[special["start"], *pairs[row][1]] for row in rows]
            targets = [[*pairs[row][1], special["end"]] for row in rows]
            real = [[1] * len(row) for row in targets]
            yield (
                {
                    "source_ids": _padded(sources, batch_size, length, special["source_pad"]),
                    "target_ids": _padded(inputs, batch_size, length, special["pad"]),
                },
                _padded(targets, batch_size, length, special["pad"]),
                _padded(real, batch_size, length, 0).astype("float32"),
            )

    return batched(batches, len(plan(0)), _signature(batch_size))


def _padded(rows, batch_size, length, value):
    array = np.full((len(rows), length), value, "int32")
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return pad_rows(array, batch_size, value)


def _signature(batch_size):
    import tensorflow as tf

    ids = tf.TensorSpec((batch_size, None), tf.int32)
    weights = tf.TensorSpec((batch_size, None), tf.float32)
    return {"source_ids": ids, "target_ids": ids}, ids, weights
