"""What models need of a keras-nlp tokenizer, the same whatever its class.

The Python side works on lists and never meets TensorFlow's graph; the graph side (`*_in_graph`) is
for a served signature on the TensorFlow backend. Both give the same ids and the same text.

`keras.utils.set_random_seed` clears TensorFlow's kernels, and with them the SentencePiece model of
every function traced before. Exported models have their own; a live one must be traced again, with
a fresh tokenizer (`deserialize_keras_object(serialize(tokenizer))`).

A tokenizer may be any of keras-nlp's: `SentencePieceTokenizer` (the default of
`keras_tx.data.train_tokenizer`), `ByteTokenizer`, `WordPieceTokenizer`, `BytePairTokenizer` and
their subclasses. Text never becomes a control id: start, end and padding are added by the models
and the data pipelines, so `add_bos`, `add_eos` and `sequence_length` must be left alone.
"""

import base64
import functools

import keras

# UTF-8 never uses these bytes, and text is made valid UTF-8 before it is split into bytes.
_BYTE_SPECIAL_IDS = {"pad": 0xFD, "start": 0xFE, "end": 0xFF}

_FAMILIES = {
    "SentencePieceTokenizer": "sentencepiece",
    "ByteTokenizer": "byte",
    "WordPieceTokenizer": "wordpiece",
    "BytePairTokenizer": "bytepair",
}

_WORD_PIECE_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "start": ("[START]", "[CLS]", "<s>"),
    "end": ("[END]", "[SEP]", "</s>"),
}


def special_ids(tokenizer) -> dict[str, int | None]:
    """The ids of padding, start and end: `{"pad": ..., "start": ..., "end": ...}`, None if absent.

    A `ByteTokenizer` has none of its own; it gets 253, 254 and 255, bytes that UTF-8 never uses.
    """
    kind = _kind(tokenizer)
    if kind == "sentencepiece":
        processor = _processor(tokenizer.proto)
        ids = {
            "pad": processor.pad_id(),
            "start": processor.bos_id(),
            "end": processor.eos_id(),
        }
        return {name: int(id) if id >= 0 else None for name, id in ids.items()}
    if kind == "byte":
        return dict(_BYTE_SPECIAL_IDS)
    declared = {name: _declared_id(tokenizer, f"{name}_token") for name in _WORD_PIECE_NAMES}
    if kind == "wordpiece" and not any(id is not None for id in declared.values()):
        vocabulary = set(tokenizer.get_vocabulary())
        for name, candidates in _WORD_PIECE_NAMES.items():
            token = next((token for token in candidates if token in vocabulary), None)
            declared[name] = None if token is None else int(tokenizer.token_to_id(token))
    return declared


def vocabulary_size(tokenizer) -> int:
    """The number of ids, special ones included."""
    _kind(tokenizer)
    return int(tokenizer.vocabulary_size())


def encode(tokenizer, texts: list[str]) -> list[list[int]]:
    """The ids of each text, without start, end or padding.

    Args:
        tokenizer: A keras-nlp tokenizer.
        texts: Any Unicode strings; an empty one gives an empty list.
    """
    if isinstance(texts, str):
        raise ValueError(f"Expected a list of strings. Received the string {texts!r:.200}.")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"Expected a list of strings. Received an item {text!r}.")
        if not text.isascii():
            _check_encodable(text)
    _check_settings(tokenizer)
    if not texts:
        return []
    rows = tokenizer.tokenize(texts)
    rows = rows.to_list() if hasattr(rows, "to_list") else rows
    return [[int(id) for id in row] for row in rows]


def decode(tokenizer, rows) -> list[str]:
    """The text of each row of ids.

    Special ids, and ids that are no id of the vocabulary, are left out. Bytes that make no
    character become U+FFFD.

    Args:
        tokenizer: A keras-nlp tokenizer.
        rows: A list of lists of ids, or an array (rows, ids).
    """
    kind = _kind(tokenizer)
    size = vocabulary_size(tokenizer)
    skipped = {id for id in special_ids(tokenizer).values() if id is not None}
    kept = [[id for id in map(int, row) if 0 <= id < size and id not in skipped] for row in rows]
    if kind == "byte":
        return [bytes(row).decode("utf-8", "replace") for row in kept]
    # keras-nlp takes a list that begins with an empty row for something else.
    filled = [row for row in kept if row]
    texts = iter([str(text) for text in tokenizer.detokenize(filled)] if filled else [])
    return [next(texts) if row else "" for row in kept]


def encode_in_graph(tokenizer, strings):
    """The ids of each string, inside a `tf.function` or a SavedModel.

    The SavedModel must track the tokenizer (as an attribute of the exported object). Byte
    tokenizers need core TensorFlow ops only, the others TF Text's, which TF Serving links.

    Args:
        tokenizer: A keras-nlp tokenizer.
        strings: A string tensor (batch,), the batch unknown or not. Bytes that are no UTF-8
            become U+FFFD.

    Returns:
        A ragged int32 tensor (batch, None).
    """
    import tensorflow as tf

    _check_settings(tokenizer)
    if tf.executing_eagerly():
        texts = [text.decode("utf-8", "replace") for text in tf.constant(strings).numpy()]
        return tf.ragged.constant(encode(tokenizer, texts), tf.int32, ragged_rank=1)
    strings = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
    if _kind(tokenizer) == "byte":
        return _bytes_in_graph(tokenizer, strings)
    return tf.cast(tokenizer.tokenize(strings), tf.int32)


def decode_in_graph(tokenizer, ids, lengths=None):
    """The text of each row of ids, inside a `tf.function` or a SavedModel; always valid UTF-8.

    Args:
        tokenizer: A keras-nlp tokenizer.
        ids: Ragged (batch, None) or dense (batch, length) integer tensor. Special ids, and ids
            that are no id of the vocabulary, are left out.
        lengths: (batch,), how many ids of each dense row count; None: all.

    Returns:
        A string tensor (batch,).
    """
    import tensorflow as tf

    kind = _kind(tokenizer)
    if not isinstance(ids, tf.RaggedTensor):
        ids = tf.RaggedTensor.from_tensor(ids, lengths=lengths)
    if tf.executing_eagerly():
        return tf.constant(decode(tokenizer, ids.to_list()), tf.string)
    ids = tf.cast(ids, tf.int32)
    kept = tf.logical_and(ids >= 0, ids < vocabulary_size(tokenizer))
    for id in special_ids(tokenizer).values():
        if id is not None:
            kept = tf.logical_and(kept, tf.not_equal(ids, id))
    ids = tf.ragged.boolean_mask(ids, kept)
    if kind == "byte":
        table = tf.constant([bytes([byte]) for byte in range(256)])
        texts = tf.strings.reduce_join(tf.gather(table, ids), axis=-1)
    else:
        texts = tokenizer.detokenize(ids)
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def serialize(tokenizer) -> dict:
    """The tokenizer as a dictionary that holds its vocabulary.

    `keras.saving.serialize_keras_object` leaves the vocabulary out: it is written beside the
    configuration when a whole model is saved, and lost everywhere else. This one is read back
    by plain `keras.saving.deserialize_keras_object`, vocabulary included.
    """
    kind = _kind(tokenizer)
    serialized = keras.saving.serialize_keras_object(tokenizer)
    config = serialized["config"]
    if kind == "sentencepiece":
        config["proto"] = base64.b64encode(tokenizer.proto).decode("ascii")
    elif kind == "wordpiece":
        config["vocabulary"] = list(tokenizer.get_vocabulary())
        config["split_on_cjk"] = tokenizer.split_on_cjk
    elif kind == "bytepair":
        config["vocabulary"] = dict(tokenizer.vocabulary)
        config["merges"] = list(tokenizer.merges)
    return serialized


def _kind(tokenizer) -> str:
    """The family of the tokenizer, told by the names of its classes: no import of keras-nlp."""
    families = {
        cls.__name__
        for cls in type(tokenizer).__mro__
        if cls.__module__.startswith(("keras_hub", "keras_nlp"))
    }
    kind = next((_FAMILIES[name] for name in sorted(families & set(_FAMILIES))), "other")
    methods = ("tokenize", "detokenize", "vocabulary_size")
    if not all(hasattr(tokenizer, name) for name in methods):
        raise ValueError(
            "Expected a tokenizer of keras-nlp (keras_tx.data.train_tokenizer makes one). "
            f"Received {tokenizer!r:.200}."
        )
    if (
        kind == "sentencepiece"
        and tokenizer.proto is None
        or (kind in ("wordpiece", "bytepair") and tokenizer.vocabulary is None)
    ):
        raise ValueError(
            f"The tokenizer {tokenizer.name!r} has no vocabulary: keras-nlp keeps it outside the "
            "configuration. Serialize it with keras_tx.data.tokenizers.serialize, or load the "
            "whole model from its .keras file."
        )
    return kind


def _check_settings(tokenizer):
    _kind(tokenizer)
    for name in ("sequence_length", "add_bos", "add_eos"):
        value = getattr(tokenizer, name, None)
        if value:
            raise ValueError(
                f"The tokenizer must not pad, cut or add control ids: models and data pipelines "
                f"do. Received a tokenizer with {name}={value!r}; make it without."
            )


def _check_encodable(text):
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"Expected text that UTF-8 can hold. Received a lone surrogate "
            f"{text[error.start]!r} at position {error.start}."
        ) from None


def _declared_id(tokenizer, name):
    """An id set beside its token. GPT-2's `pad_token_id` is 0 without a token: a word's id."""
    if getattr(tokenizer, name, None) is None:
        return None
    id = getattr(tokenizer, f"{name}_id", None)
    return None if id is None else int(id)


def _bytes_in_graph(tokenizer, strings):
    """Core ops only; keras-nlp's own fails on a batch of empty strings."""
    import tensorflow as tf

    if tokenizer.lowercase or tokenizer.normalization_form is not None:
        import tensorflow_text as tf_text

        if tokenizer.lowercase:
            strings = tf_text.case_fold_utf8(strings)
        if tokenizer.normalization_form is not None:
            strings = tf_text.normalize_utf8(strings, tokenizer.normalization_form)
    pieces = tf.strings.bytes_split(strings)
    flat = tf.reshape(tf.io.decode_raw(pieces.flat_values, tf.uint8), [-1])
    return tf.cast(pieces.with_flat_values(flat), tf.int32)


@functools.lru_cache(maxsize=16)
def _processor(proto: bytes):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=proto)
