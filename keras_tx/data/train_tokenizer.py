"""Trains a keras-nlp tokenizer on texts."""

import collections
import io
import pathlib
import re
import tempfile

from keras_tx.data import tokenizers
from keras_tx.data.batches import check_positive

# Padding, start, end and unknown, then the 256 bytes.
_RESERVED = 4 + 256

_MAX_CHARACTERS = 8_000_000

# SentencePiece writes a space as U+2581, so a U+2581 of the text must become something else and
# back: U+E000 escapes it and itself. Code points in hexadecimal, as SentencePiece reads them.
_ESCAPES = (("2581", "E000 E001"), ("E000", "E000 E002"))


def train_tokenizer(texts, vocabulary_size: int = 4096, *, kind: str = "sentencepiece"):
    """A keras-nlp tokenizer trained on texts; the same texts give the same tokenizer.

    Kinds:

    - `"sentencepiece"`, the default: byte pair encoding by SentencePiece, lossless.
      `detokenize(tokenize(text)) == text` for every text: nothing is normalised, white space and
      line ends are kept (runs of spaces and `".\\n\\n"` may be one piece), characters not in the
      vocabulary are spelled in bytes. Ids: padding 0, start 1, end 2, unknown 3 (never met),
      bytes 4 to 259. It is the default because it is the one subword tokenizer that is lossless,
      trains in well under a second on a megabyte, and runs inside a served graph with ops that
      TensorFlow Serving links, in constant memory. keras-nlp's own trainer normalises the text,
      so `sentencepiece`, on which that trainer stands, is called directly.
    - `"byte"`: one id a byte, nothing to train, lossless; core TensorFlow ops only.
    - `"wordpiece"`: keras-nlp's WordPiece trainer. Not lossless: white space is dropped.

    Args:
        texts: Strings, from the training part only.
        vocabulary_size: The largest number of ids, at least 261 for `"sentencepiece"`. A text too
            small for it gives a smaller vocabulary. Ignored by `"byte"`.
        kind: One of the kinds above.

    At most 8 million characters are used, taken evenly from all of the text.
    """
    trainers = {"sentencepiece": _sentence_piece, "byte": _byte, "wordpiece": _word_piece}
    if kind not in trainers:
        raise ValueError(f"Expected a kind of {sorted(trainers)}. Received kind={kind!r}.")
    if isinstance(texts, str):
        texts = [texts]
    sentences = _sentences(texts)
    if kind != "byte" and not sentences:
        raise ValueError("Expected texts to train a tokenizer on. Received no character at all.")
    return trainers[kind](sentences, vocabulary_size)


def resolve_tokenizer(tokenizer, texts, vocabulary_size):
    """The tokenizer itself, or one trained on the texts when it is None or the name of a kind."""
    if tokenizer is None or isinstance(tokenizer, str):
        check_positive(vocabulary_size=vocabulary_size)
        return train_tokenizer(texts, vocabulary_size, kind=tokenizer or "sentencepiece")
    tokenizers.special_ids(tokenizer)
    return tokenizer


def _sentences(texts):
    """Pieces of at most 2,000 characters, cut before line ends where there are any."""
    pieces = []
    for text in texts:
        pieces += re.findall(r"(?s).{1,2000}(?=\n|$)|.{1,2000}", text)
    step = -(-sum(map(len, pieces)) // _MAX_CHARACTERS)
    return pieces[::step] if step > 1 else pieces


def _sentence_piece(sentences, vocabulary_size):
    import keras_nlp
    import sentencepiece

    if vocabulary_size <= _RESERVED:
        raise ValueError(
            f"Expected a vocabulary_size of at least {_RESERVED + 1}: 256 bytes and 4 special ids "
            f"come first. Received vocabulary_size={vocabulary_size}. "
            'For a smaller one pass tokenizer="byte" (256 ids).'
        )
    sentences = _common_characters(sentences, max(1, (vocabulary_size - _RESERVED) // 2))
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        normalize, denormalize = (pathlib.Path(folder, name) for name in ("there", "back"))
        normalize.write_text("".join(f"{a}\t{b}\n" for a, b in _ESCAPES), encoding="utf-8")
        denormalize.write_text("".join(f"{b}\t{a}\n" for a, b in _ESCAPES), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            byte_fallback=True,
            normalization_rule_tsv=str(normalize),
            denormalization_rule_tsv=str(denormalize),
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=1 << 16,
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            num_threads=1,
            minloglevel=2,
        )
    return keras_nlp.tokenizers.SentencePieceTokenizer(
        proto=_without_paths(model.getvalue()), name="tokenizer"
    )


def _without_paths(proto):
    """The model without the names of the temporary files that the escapes were read from."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(proto)
    for spec in (model.normalizer_spec, model.denormalizer_spec):
        spec.ClearField("normalization_rule_tsv")
    return model.SerializeToString(deterministic=True)


def _common_characters(sentences, room):
    """The sentences cut at rare characters, which are spelled in bytes.

    Each character that stays takes an id, so no more stay than there is room for.
    """
    counts = collections.Counter()
    for sentence in sentences:
        counts.update(sentence)
    enough = 0.9995 * counts.total()
    for character in ("\u2581", "\ue000", "\ue001", "\ue002"):  # of the escapes
        del counts[character]
    kept, covered = "", 0
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:room]:
        if covered >= enough:
            break
        kept, covered = kept + character, covered + count
    if not kept:
        return [" "]
    rare = re.compile(f"[^{re.escape(kept)}]+")
    pieces = [piece for sentence in sentences for piece in rare.split(sentence)]
    # SentencePiece drops line ends at the end of a sentence.
    return [piece for piece in pieces if piece.strip("\n")] or [" "]


def _byte(sentences, vocabulary_size):
    import keras_nlp

    return keras_nlp.tokenizers.ByteTokenizer(
        lowercase=False, normalization_form=None, name="tokenizer"
    )


def _word_piece(sentences, vocabulary_size):
    import keras_nlp
    import tensorflow as tf

    vocabulary = keras_nlp.tokenizers.compute_word_piece_vocabulary(
        tf.data.Dataset.from_tensor_slices(sentences),
        vocabulary_size=vocabulary_size,
        reserved_tokens=["[PAD]", "[START]", "[END]", "[UNK]"],
    )
    return keras_nlp.tokenizers.WordPieceTokenizer(vocabulary=vocabulary, name="tokenizer")
