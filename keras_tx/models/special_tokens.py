"""The ids of padding, start and end."""

from keras_tx.data import tokenizers


def special_token_ids(
    tokenizer,
    vocabulary_size: int,
    *,
    pad_token_id: int | None = None,
    start_token_id: int | None = None,
    end_token_id: int | None = None,
) -> tuple[int | None, int | None, int | None]:
    """Padding, start and end: the ids given to a constructor, or else the tokenizer's, or None."""
    given = {"pad": pad_token_id, "start": start_token_id, "end": end_token_id}
    own = {} if tokenizer is None else tokenizers.special_ids(tokenizer)
    ids = {name: own.get(name) if id is None else id for name, id in given.items()}
    for name, id in ids.items():
        if id is not None and not 0 <= id < vocabulary_size:
            raise ValueError(
                f"`{name}_token_id` must be from 0 to {vocabulary_size - 1}, an id of the "
                f"vocabulary, or None. Received: {id}"
            )
    return ids["pad"], ids["start"], ids["end"]
