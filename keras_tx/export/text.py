"""Signatures of a model that generates: text or ids in, text and ids out, greedily."""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_tx import kernels
from keras_tx.data import tokenizers
from keras_tx.decoding import Greedy
from keras_tx.export.endpoint import Endpoint
from keras_tx.export.verify import tolerance
from keras_tx.models.text_generation import TextGeneration

# So many of a reply's first tokens are compared with the model's own choices.
CHECKED_TOKENS = 8


def generates(model: keras.Model) -> bool:
    """True for a model that has `generate`."""
    return isinstance(model, TextGeneration)


def check(model: keras.Model, max_new_tokens: int | None) -> None:
    """Raises ValueError for a number of new tokens that no reply of the model can have."""
    most = int(rooms(model).max())
    if most < 1:
        raise ValueError(
            f"{model.name!r} has no room for a new token: build it with a larger "
            f"max_sequence_length. It is {model.max_sequence_length}."
        )
    if max_new_tokens is None:
        return
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int | np.integer):
        raise ValueError(f"`max_new_tokens` must be an integer. Received: {max_new_tokens!r}.")
    if not 1 <= max_new_tokens <= most:
        raise ValueError(
            f"`max_new_tokens` must be from 1 to {most}, the most that {model.name!r} has room for "
            f"(max_sequence_length={model.max_sequence_length}). Received: {max_new_tokens}."
        )


def rooms(model: keras.Model) -> np.ndarray:
    """How many tokens may follow a prompt of 0, 1, ... tokens; the last entry is for all longer."""
    lengths = np.arange(1, model.max_sequence_length + 2, dtype="int32")
    try:
        empty = model.room(np.zeros(1, "int32"))
    except ValueError:  # nothing stands for an empty prompt
        empty = [0]
    return np.concatenate([empty, model.room(lengths)]).clip(0).astype("int32")


def resources(model: keras.Model) -> list:
    """The model's tokenizers, their tables made."""
    if not generates(model) or model.tokenizer is None:
        return []
    found = [model.tokenizer]
    if model.output_tokenizer is not model.tokenizer:
        found.append(model.output_tokenizer)
    for tokenizer in found:
        # A table made inside a trace is lost to the next one.
        tokenizer.build(None)
    return found


def fingerprint(model: keras.Model) -> list[np.ndarray]:
    """What the model says first to two made-up prompts, and after one more token."""
    token_ids, lengths = _made_up_prompts(model)
    logits, state = model.start(model.prompt_inputs(token_ids, lengths), 1)
    next_logits, _ = model.step(ops.zeros_like(lengths), state)
    return [ops.convert_to_numpy(logits), ops.convert_to_numpy(next_logits)]


def endpoints(model: keras.Model, max_new_tokens: int | None) -> list[Endpoint]:
    """`token_ids` from ids, and `serving_default` from text, or from ids without a tokenizer."""
    import tensorflow as tf

    room = rooms(model)
    most = int(max_new_tokens or room.max())
    inputs = {
        "token_ids": tf.TensorSpec((None, None), tf.int32, name="token_ids"),
        "lengths": tf.TensorSpec((None,), tf.int32, name="lengths"),
    }

    # One trace for both signatures.
    @tf.function(input_signature=list(inputs.values()), autograph=False)
    def generate(token_ids, lengths):
        return _generate(model, room, most, token_ids, lengths)

    token_ids, lengths = map(ops.convert_to_numpy, _made_up_prompts(model))
    sample = {"token_ids": token_ids, "lengths": lengths}

    def check(answer):
        _check_choices(model, room, most, token_ids, lengths, answer)

    from_ids = Endpoint("token_ids", generate, inputs, sample, check)
    if model.tokenizer is None:
        return [dataclasses.replace(from_ids, name="serving_default"), from_ids]
    return [_text_endpoint(model, room, most, generate), from_ids]


def _text_endpoint(model, room, most, generate):
    import tensorflow as tf

    def from_text(text):
        rows = tokenizers.encode_in_graph(model.tokenizer, text)
        answer = generate(rows.to_tensor(), tf.cast(rows.row_lengths(), tf.int32))
        text = tokenizers.decode_in_graph(
            model.output_tokenizer, answer["token_ids"], answer["lengths"]
        )
        # The attention of text whose tokens the client does not know says nothing.
        kept = ("token_ids", "lengths", "scores")
        return {"text": text, **{name: answer[name] for name in kept}}

    texts = ["", "A", "The first", "One more, then the end."]
    encoded = tokenizers.encode(model.tokenizer, texts)
    fits = [room[min(len(row), len(room) - 1)] > 0 for row in encoded]
    texts = [text for text, fit in zip(texts, fits, strict=True) if fit] or [""]
    encoded = [row for row, fit in zip(encoded, fits, strict=True) if fit] or [[]]

    def check(answer):
        lengths = np.array([len(row) for row in encoded], "int32")
        token_ids = np.zeros((len(encoded), max(1, lengths.max())), "int32")
        for place, row in zip(token_ids, encoded, strict=True):
            place[: len(row)] = row
        _check_choices(model, room, most, token_ids, lengths, answer)
        rows = [ids[:n] for ids, n in zip(answer["token_ids"], answer["lengths"], strict=True)]
        expected = tokenizers.decode(model.output_tokenizer, rows)
        served = [text.decode() for text in answer["text"]]
        if served != expected:
            raise RuntimeError(
                f"The artefact's text is not what the tokenizer of {model.name!r} makes of its "
                f"ids: {served} instead of {expected}."
            )

    return Endpoint(
        "serving_default",
        from_text,
        {"text": tf.TensorSpec((None,), tf.string, name="text")},
        {"text": np.array([text.encode() for text in texts], object)},
        check,
    )


def _generate(model, room, most, token_ids, lengths):
    """The token loop, where a prompt that cannot be answered gets nothing and harms no other."""
    import tensorflow as tf

    lengths = tf.clip_by_value(lengths, 0, tf.shape(token_ids)[1])
    limits = tf.minimum(tf.gather(room, tf.minimum(lengths, len(room) - 1)), most)
    if not room[-1]:
        longest = len(room) - 2
        token_ids, lengths = token_ids[:, :longest], tf.minimum(lengths, longest)
    # A batch of empty prompts still has a place for the token that begins them.
    token_ids = tf.pad(token_ids, [[0, 0], [0, tf.maximum(0, 1 - tf.shape(token_ids)[1])]])
    read = tf.sequence_mask(lengths, tf.shape(token_ids)[1])
    known = (token_ids >= 0) & (token_ids < model.prompt_vocabulary_size)
    limits = tf.where(tf.reduce_all(known | ~read, axis=1), limits, 0)
    token_ids = tf.where(known & read, token_ids, model.pad_token_id or 0)
    with kernels.tracing(model.variables):
        return model.generate_ids(token_ids, lengths, limits, Greedy(), most)


def _made_up_prompts(model):
    """Two prompts of 5 and 3 tokens, or what has room; int32 (2, P) and (2,)."""
    size = max(1, min(5, int(np.flatnonzero(rooms(model)).max())))
    ids = np.random.default_rng(0).integers(0, model.prompt_vocabulary_size, (2, size), "int32")
    lengths = np.array([size, max(1, size - 2)], "int32")
    ids[1, lengths[1] :] = model.pad_token_id or 0
    return ops.convert_to_tensor(ids), ops.convert_to_tensor(lengths)


def _check_choices(model, room, most, token_ids, lengths, answer):
    """Raises RuntimeError unless each token of the reply is the model's best, or as good.

    The reply is read back through the model's own `start` and `step`, so that two tokens between
    which rounding decides are both right.
    """
    served, counts = answer["token_ids"], answer["lengths"]
    limits = np.minimum(room[np.minimum(lengths, len(room) - 1)], most)
    inputs = model.prompt_inputs(ops.convert_to_tensor(token_ids), ops.convert_to_tensor(lengths))
    steps = min(most, CHECKED_TOKENS)
    logits, state = model.start(inputs, steps)
    for place in range(steps):
        scores = ops.convert_to_numpy(ops.cast(logits, "float32"))
        slack = max(1e-3, tolerance(model)) * max(1.0, np.abs(scores).max())
        chosen = served[:, place].copy()
        ends = (counts == place) & (place < limits)
        if ends.any():
            if model.end_token_id is None:
                raise RuntimeError(f"The artefact of {model.name!r} ends a reply too early.")
            chosen[ends] = model.end_token_id
        open_ = (place < counts) | ends
        rows = np.arange(len(chosen))
        wrong = open_ & (scores[rows, chosen] < scores.max(axis=1) - slack)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise RuntimeError(
                f"The artefact of {model.name!r} chooses token {chosen[row]} at place {place} "
                f"where the model chooses {scores[row].argmax()}."
            )
        if place + 1 < steps:
            logits, state = model.step(ops.convert_to_tensor(served[:, place]), state)
    if (counts > limits).any():
        raise RuntimeError(f"The artefact of {model.name!r} gives more tokens than it may.")
