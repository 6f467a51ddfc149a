"""Text to batches of windows."""

import pathlib

import keras
import numpy as np

from keras_tx.data import tokenizers
from keras_tx.data.batches import batched, check_positive, check_seed, pad_rows, random
from keras_tx.data.hold_out import hold_out_text
from keras_tx.data.text_sources import read_texts
from keras_tx.data.train_tokenizer import resolve_tokenizer

_ENCODED_AT_ONCE = 100_000
_NAMES = ("start", "end", "pad")


def language_modeling(
    source: str | pathlib.Path | list[str],
    *,
    vocabulary_size: int = 4096,
    tokenizer: str | keras.layers.Layer | None = None,
    sequence_length: int = 256,
    batch_size: int = 16,
    random_offset: bool = True,
    test_stride: int | None = None,
    test_source: str | pathlib.Path | list[str] | None = None,
    features: str | None = None,
    seed: int = 0,
    download: bool = False,
    data_dir: str | pathlib.Path | None = None,
):
    """Text as `(train, test, tokenizer)`, for a model that predicts the next token.

    Each batch is `({"token_ids": (B, T)}, targets (B, T), weights (B, T))`: int32, int32, float32,
    always of the same shape. The documents lie in a row, each between the start and the end token;
    a window is T tokens of it, anywhere, and its targets are the tokens that follow. Weights are 1
    where the target is a token of the text or an end token, 0 where it is padding or the start of
    the next document. (A tokenizer without a start token: the end token, or else padding, stands
    before the first document.)

    Training windows lie end to end; each epoch begins them at another place (`random_offset`) and
    shuffles them, as a function of (seed, epoch). The windows that fill no batch are left out, in
    each epoch others. Test windows are in order, and each token of the test text has weight 1
    exactly once; see `keras_tx.data.bits_per_byte`.

    Args:
        source: A TFDS name (`"tiny_shakespeare"`), a prepared TFDS folder or the folder above its
            versions, a text file (UTF-8), or a list of documents. Without a test split (`test`,
            else `validation`) a tenth is held out: the last tenth of the documents, or of a single
            document, cut at a line end where there is one.
        vocabulary_size: Number of ids of the tokenizer to train; not used when one is given.
        tokenizer: A keras-nlp tokenizer, or the kind to train on the training text: None or
            `"sentencepiece"`, `"byte"`, `"wordpiece"` (see `keras_tx.data.train_tokenizer`).
        sequence_length: T.
        batch_size: B; if there are fewer training windows, their number.
        random_offset: Whether training windows begin elsewhere in each epoch.
        test_stride: How many new tokens each test window scores; the tokens before them in the
            window are context with weight 0. None: T, no overlap. Smaller costs time and gives
            every token at least `T - test_stride` tokens of context.
        test_source: Another source whose text is the test (its test split, if it has one).
        features: Name of the text feature of a TFDS data set; None: `text`, or else the only one.
        seed: Of the order of the training windows.
        download: Whether TFDS may fetch a data set that is not on this machine.
        data_dir: Where TFDS keeps its data sets; None: its default.

    Returns:
        `(train, test, tokenizer)`: two `tf.data.Dataset` of known cardinality, held in memory,
        for `fit` and `evaluate` on every backend; and the tokenizer.

    Raises:
        ValueError: If there is nothing to read, a text is empty, a data set is not on this machine
            while `download=False`, or a number is out of its range.

    Example:
        >>> train, test, tokenizer = language_modeling(
        ...     ["one two three " * 9], tokenizer="byte", sequence_length=8, batch_size=2
        ... )
        >>> inputs, targets, weights = next(iter(train))
        >>> inputs["token_ids"].shape
        (2, 8)
    """
    check_positive(sequence_length=sequence_length, batch_size=batch_size)
    check_seed(seed)
    stride = sequence_length if test_stride is None else test_stride
    check_positive(test_stride=stride)
    if stride > sequence_length:
        raise ValueError(
            f"Expected test_stride to be at most sequence_length={sequence_length}. "
            f"Received {stride}: tokens would be left out."
        )
    reading = {"features": features, "download": download, "data_dir": data_dir}
    train, test = read_texts(source, **reading)
    if test_source is not None:
        parts = read_texts(test_source, **reading)
        test = parts[0] if parts[1] is None else parts[1]
    elif test is None:
        train, test = hold_out_text(train)
    for name, documents in (("training", train), ("test", test)):
        if not any(documents):
            raise ValueError(f"Expected text. The {name} part of {source!r:.200} holds none.")
    tokenizer = resolve_tokenizer(tokenizer, train, vocabulary_size)
    special = tokenizers.special_ids(tokenizer)
    if special["start"] == special["end"]:
        special["start"] = None  # GPT-2's one separator
    return (
        _training(
            _stream(tokenizer, special, train),
            special,
            sequence_length,
            batch_size,
            random_offset,
            seed,
        ),
        _test(_stream(tokenizer, special, test), special, sequence_length, batch_size, stride),
        tokenizer,
    )


def _stream(tokenizer, special, documents):
    """All ids in a row, the start token before and the end token after each document."""
    start, end, pad = ([] if id is None else [id] for id in map(special.get, _NAMES))
    # The first token, too, needs one to follow.
    ids = [] if start else (end or pad or [0])[:]
    for document in documents:
        ids += start
        for row in tokenizers.encode(tokenizer, list(_pieces(document))):
            ids += row
        ids += end
    if len(ids) < 2:
        raise ValueError("Expected text that gives tokens. The tokenizer gave none.")
    return np.array(ids, "int32")


def _pieces(text):
    """The text cut at line ends: the time to encode a piece can grow faster than its length."""
    begin = 0
    while begin < len(text):
        end = begin + _ENCODED_AT_ONCE
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end


def _windows(stream, begins, length, special):
    """Inputs and targets of the windows that begin there, and which targets are text."""
    at = np.asarray(begins)[:, None] + np.arange(length)  # (rows, T)
    exists = at < len(stream) - 1
    at = np.where(exists, at, 0)
    pad = special["pad"] or 0
    inputs, targets = (np.where(exists, stream[at + shift], pad) for shift in (0, 1))
    return inputs.astype("int32"), targets.astype("int32"), exists & (targets != special["start"])


def _training(stream, special, length, batch_size, random_offset, seed):
    tokens = len(stream) - 1
    if random_offset:
        count = max(1, (tokens - length + 1) // length)
        slack = max(0, tokens - count * length)
    else:
        count, slack = -(-tokens // length), 0
    batch_size = min(batch_size, count)
    num_batches = count // batch_size

    def batches(epoch):
        numbers = random(seed, epoch)
        begins = numbers.integers(slack + 1) + length * numbers.permutation(count)
        for rows in begins[: num_batches * batch_size].reshape(num_batches, batch_size):
            inputs, targets, real = _windows(stream, rows, length, special)
            yield {"token_ids": inputs}, targets, real.astype("float32")

    return batched(batches, num_batches, _signature(batch_size, length))


def _test(stream, special, length, batch_size, stride):
    """The first window scores all its tokens, each later one the last `stride`."""
    extra = -(-max(0, len(stream) - 1 - length) // stride)
    scored = np.concatenate([[0], length + stride * np.arange(extra)])
    begins = np.concatenate([[0], scored[1:] - (length - stride)])
    num_batches = -(-len(begins) // batch_size)
    inputs, targets, real = _windows(stream, begins, length, special)
    new = begins[:, None] + np.arange(length) >= scored[:, None]
    rows = num_batches * batch_size
    inputs, targets = (pad_rows(ids, rows, special["pad"] or 0) for ids in (inputs, targets))
    weights = pad_rows((real & new).astype("float32"), rows)

    def batches(epoch):
        for begin in range(0, rows, batch_size):
            part = slice(begin, begin + batch_size)
            yield {"token_ids": inputs[part]}, targets[part], weights[part]

    return batched(batches, num_batches, _signature(batch_size, length))


def _signature(batch_size, length):
    import tensorflow as tf

    ids = tf.TensorSpec((batch_size, length), tf.int32)
    return {"token_ids": ids}, ids, tf.TensorSpec((batch_size, length), tf.float32)
